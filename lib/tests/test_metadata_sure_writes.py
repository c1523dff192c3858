"""Writes that are asked for again when their answer is lost: one's own doing is no conflict, another's is."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
from magnetar.metadata.coordination import LockState, LockTaken, ResourceLock
from magnetar.metadata.faulty import FaultyStore, RequestFate
from magnetar.metadata.memory import MemoryMetadataStore
from magnetar.metadata.store import (
    MUST_NOT_EXIST,
    MetadataStore,
    Node,
    NodeNotFound,
    StoreClosed,
    StoreUnavailable,
    VersionConflict,
)
from magnetar.metadata.sure_writes import ATTEMPTS_MAX, delete_surely, put_surely
from magnetar.sim.virtual_time import VirtualTimeLoop

new_event_loop = VirtualTimeLoop

UNSURE = [RequestFate.REFUSED, RequestFate.LOST, RequestFate.LATE]
PATH = "/a/node"
LATE_SECONDS = 5.0


class World:
    """A tree, and a session with it that treats the next requests as it is told."""

    def __init__(self) -> None:
        self.tree = MemoryMetadataStore()
        self.fates: dict[str, list[RequestFate]] = {}
        self.asked: list[str] = []
        self.meanwhile: Callable[[], Awaitable[object]] | None = None
        self.store = FaultyStore(self.tree, self._fate, late_seconds=LATE_SECONDS)

    async def value(self) -> bytes | None:
        """What stands there once all is done that is on its way."""
        await asyncio.sleep(2 * LATE_SECONDS)
        node = await self.tree.get(PATH)
        return None if node is None else node.value

    async def node(self, value: bytes = b"before") -> Node:
        await self.tree.put(PATH, value)
        node = await self.tree.get(PATH)
        assert node is not None
        return node

    def _fate(self, verb: str, path: str) -> RequestFate:
        assert path == PATH
        self.asked.append(verb)
        fates = self.fates.get(verb)
        return fates.pop(0) if fates else RequestFate.DONE


@pytest.fixture
async def world() -> AsyncIterator[World]:
    world = World()
    yield world
    await world.store.close()


@pytest.mark.parametrize("fate", UNSURE)
@pytest.mark.parametrize("times", [1, 2])
async def test_a_creation_whose_answer_is_lost_is_no_conflict_with_itself(
    world: World, fate: RequestFate, times: int
) -> None:
    world.fates["put"] = [fate] * times
    stat = await put_surely(world.store, PATH, b"mine", MUST_NOT_EXIST)
    assert (stat.version, await world.value()) == (0, b"mine")


@pytest.mark.parametrize("fate", UNSURE)
async def test_a_change_whose_answer_is_lost_is_made_once(world: World, fate: RequestFate) -> None:
    node = await world.node()
    world.fates["put"] = [fate]
    world.fates["get"] = [RequestFate.REFUSED]
    stat = await put_surely(world.store, PATH, b"after", node.stat.version)
    assert (stat.version, await world.value()) == (node.stat.version + 1, b"after")


@pytest.mark.parametrize("fate", [RequestFate.REFUSED, RequestFate.LATE])
@pytest.mark.parametrize("theirs", [b"theirs", b"mine"])
async def test_what_another_wrote_is_a_conflict(world: World, fate: RequestFate, theirs: bytes) -> None:
    node = await world.node()
    await world.tree.put(PATH, b"another")
    await world.tree.put(PATH, theirs)
    world.fates["put"] = [fate]
    with pytest.raises(VersionConflict):
        await put_surely(world.store, PATH, b"mine", node.stat.version)
    assert await world.value() == theirs


async def test_a_conflict_at_once_is_not_looked_into(world: World) -> None:
    await world.node(b"mine")
    with pytest.raises(VersionConflict):
        await put_surely(world.store, PATH, b"mine", MUST_NOT_EXIST)
    assert world.asked == ["put"]


async def test_what_was_asked_for_before_is_found(world: World) -> None:
    await world.node(b"mine")
    assert (await put_surely(world.store, PATH, b"mine", MUST_NOT_EXIST, asked_before=True)).version == 0
    with pytest.raises(VersionConflict):
        await put_surely(world.store, PATH, b"other", MUST_NOT_EXIST, asked_before=True)


async def test_attempts_end(world: World) -> None:
    world.fates["put"] = [RequestFate.REFUSED] * 100
    with pytest.raises(StoreUnavailable):
        await put_surely(world.store, PATH, b"mine", MUST_NOT_EXIST)
    assert len(world.asked) == ATTEMPTS_MAX


async def test_attempts_end_though_nobody_can_look_at_what_stands_there(world: World) -> None:
    world.fates["put"] = [RequestFate.LOST]
    world.fates["get"] = [RequestFate.REFUSED] * 100
    with pytest.raises(StoreUnavailable):
        await put_surely(world.store, PATH, b"mine", MUST_NOT_EXIST)
    assert world.asked.count("put") == ATTEMPTS_MAX


async def test_attempts_of_a_deletion_end(world: World) -> None:
    node = await world.node()
    world.fates["delete"] = [RequestFate.REFUSED] * 100
    with pytest.raises(StoreUnavailable):
        await delete_surely(world.store, PATH, node)
    assert world.asked.count("delete") == ATTEMPTS_MAX


async def test_a_store_that_is_closed_is_not_asked_again(world: World) -> None:
    await world.tree.close()
    with pytest.raises(StoreClosed):
        await put_surely(world.store, PATH, b"mine", MUST_NOT_EXIST)
    assert world.asked == ["put"]


@pytest.mark.parametrize("fate", UNSURE)
@pytest.mark.parametrize("times", [1, 2])
async def test_a_deletion_whose_answer_is_lost_is_done(world: World, fate: RequestFate, times: int) -> None:
    node = await world.node()
    world.fates["delete"] = [fate] * times
    await delete_surely(world.store, PATH, node)
    assert await world.value() is None


async def test_a_deletion_of_what_was_gone_or_changed_before_says_so(world: World) -> None:
    node = await world.node()
    await world.tree.put(PATH, b"changed")
    with pytest.raises(VersionConflict):
        await delete_surely(world.store, PATH, node)
    world.fates["delete"] = [RequestFate.REFUSED]
    with pytest.raises(VersionConflict):
        await delete_surely(world.store, PATH, node)
    await world.tree.delete(PATH)
    with pytest.raises(NodeNotFound):
        await delete_surely(world.store, PATH, node)


async def test_a_deletion_leaves_alone_what_another_made_since(world: World) -> None:
    node = await world.node(b"old")
    world.fates["delete"] = [RequestFate.LOST]
    deletion = asyncio.ensure_future(delete_surely(world.store, PATH, node))
    while await world.tree.get(PATH) is not None:
        await asyncio.sleep(0)
    await world.tree.put(PATH, b"new")
    await deletion
    assert await world.value() == b"new"


# --- locks


def lock(store: MetadataStore, value: bytes) -> ResourceLock:
    return ResourceLock(store, PATH, value, lambda _: None)


@pytest.mark.parametrize("fate", UNSURE)
@pytest.mark.parametrize("times", [1, 2])
async def test_a_lock_is_taken_though_answers_are_lost(world: World, fate: RequestFate, times: int) -> None:
    world.fates["put"] = [fate] * times
    mine = lock(world.store, b"mine")
    await mine.acquire()
    assert mine.state is LockState.HELD
    await mine.release()
    assert await world.value() is None


@pytest.mark.parametrize("fate", UNSURE)
async def test_a_lock_that_was_not_taken_for_sure_is_left_to_others(world: World, fate: RequestFate) -> None:
    """It would stand as long as this session lives, although nobody here holds it."""
    world.fates["put"] = [fate]
    world.fates["get"] = [RequestFate.DONE, *[RequestFate.REFUSED] * (ATTEMPTS_MAX - 1)]
    with pytest.raises(StoreUnavailable):
        await lock(world.store, b"mine").acquire()
    theirs = lock(world.tree.another_session(), b"theirs")
    await theirs.acquire()
    await theirs.release()


@pytest.mark.parametrize("fate", UNSURE)
async def test_a_lock_that_nobody_waits_for_any_more_is_left_to_others(world: World, fate: RequestFate) -> None:
    world.fates["put"] = [fate]
    waiting = asyncio.ensure_future(lock(world.store, b"mine").acquire())
    while "put" not in world.asked:
        await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.wait([waiting])
    await asyncio.sleep(2 * LATE_SECONDS)
    theirs = lock(world.tree.another_session(), b"theirs")
    await theirs.acquire()
    await theirs.release()


@pytest.mark.parametrize("fate", UNSURE)
async def test_a_lock_is_released_though_answers_are_lost(world: World, fate: RequestFate) -> None:
    mine = lock(world.store, b"mine")
    await mine.acquire()
    world.fates["delete"] = [fate, fate]
    await mine.release()
    theirs = lock(world.tree.another_session(), b"theirs")
    await theirs.acquire()
    with pytest.raises(LockTaken):
        await lock(world.store, b"mine").acquire()
    await theirs.release()
