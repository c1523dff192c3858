"""Sessions that are lost while somebody takes the lead or a lock: what was read before proves nothing after."""

from __future__ import annotations

import asyncio
import gc
import warnings

import pytest
from magnetar.metadata.coordination import LeaderElection, LeaderState, LockState, LockTaken, ResourceLock, give_up
from magnetar.metadata.memory import MemoryMetadataStore, MemoryTree
from magnetar.metadata.store import MUST_NOT_EXIST, Node

PATH = "/taken"


class SlowStore(MemoryMetadataStore):
    """The answer to a read of a node that is there comes when the gate is opened."""

    def __init__(self, tree: MemoryTree) -> None:
        super().__init__(tree)
        self.gate = asyncio.Event()
        self.reading = asyncio.Event()

    async def get(self, path: str, *, watch: bool = True) -> Node | None:
        node = await super().get(path, watch=watch)
        if node is not None and not self.gate.is_set():
            self.reading.set()
            await self.gate.wait()
        return node


async def lose_it_to_another(store: SlowStore, other: MemoryMetadataStore) -> None:
    """After our node was read as ours, and before we are told. What is read next takes its time again."""
    await store.reading.wait()
    store.expire_session()
    await other.put(PATH, b"other", MUST_NOT_EXIST, ephemeral=True)
    store.gate.set()
    store.gate = asyncio.Event()


async def test_nobody_leads_by_what_was_read_before_the_session_was_lost() -> None:
    tree = MemoryTree()
    store, other = SlowStore(tree), MemoryMetadataStore(tree)
    states: list[LeaderState] = []
    election = LeaderElection(store, PATH, b"ours", states.append)
    starting = asyncio.ensure_future(election.start())
    await lose_it_to_another(store, other)
    await starting
    assert election.state is not LeaderState.LEADING
    store.gate.set()
    async with asyncio.timeout(30):
        while election.state is not LeaderState.FOLLOWING:
            await asyncio.sleep(0)
    assert LeaderState.LEADING not in states
    assert election.leader == b"other"
    for closing in (election, store, other):
        await closing.close()


async def test_nobody_gives_up_the_node_of_another() -> None:
    """As when the session is lost on the way out."""
    tree = MemoryTree()
    store, other = MemoryMetadataStore(tree), MemoryMetadataStore(tree)
    await other.put(PATH, b"other", MUST_NOT_EXIST, ephemeral=True)
    await give_up(store, PATH)
    assert await other.exists(PATH)
    for closing in (store, other):
        await closing.close()


async def test_nor_holds_a_lock() -> None:
    tree = MemoryTree()
    store, other = SlowStore(tree), MemoryMetadataStore(tree)
    lock = ResourceLock(store, PATH, b"ours", lambda _: None)
    acquiring = asyncio.ensure_future(lock.acquire())
    await lose_it_to_another(store, other)
    await acquiring
    assert lock.state is not LockState.HELD
    store.gate.set()
    async with asyncio.timeout(30):
        while lock.state is not LockState.LOST:
            await asyncio.sleep(0)
    with pytest.raises(LockTaken):
        await lock.update(b"still ours")
    await lock.release()
    assert await other.exists(PATH)
    for closing in (store, other):
        await closing.close()


async def test_a_claim_whose_process_is_gone_is_torn_down_without_a_word() -> None:
    """As the simulator does with a world that has ended: nothing is asked of anybody, and nothing stays unawaited."""
    tree = MemoryTree()
    store = SlowStore(tree)
    await MemoryMetadataStore(tree).put(PATH, b"another", MUST_NOT_EXIST, ephemeral=True)
    lock = ResourceLock(store, PATH, b"ours", lambda _: None)
    claiming = lock.acquire()
    assert claiming.send(None) is not None  # It waits for the store.
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        claiming.close()
        gc.collect()
    assert [str(warning.message) for warning in told] == []
