from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from magnetar.metadata.coordination import (
    LeaderElection,
    LeaderState,
    LockState,
    LockTaken,
    NameGenerator,
    ResourceLock,
    next_counter_value,
)
from magnetar.metadata.local import LocalStore
from magnetar.metadata.memory import MemoryMetadataStore
from magnetar.metadata.store import Node, Stat, StoreUnavailable

from lib.tests.metadata_contract import PATIENCE_SECONDS, value_of

LEADER = "/loadbalance/leader"
LOCK = "/namespace/public/default/0x00000000_0xffffffff"


async def eventually(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not condition():
            await asyncio.sleep(0.001)


class Candidate(LeaderElection):
    def __init__(self, store: LocalStore, name: bytes) -> None:
        self.states: list[LeaderState] = []
        super().__init__(store, LEADER, name, self.states.append)


class Holder(ResourceLock):
    def __init__(self, store: LocalStore, value: bytes) -> None:
        self.states: list[LockState] = []
        super().__init__(store, LOCK, value, self.states.append)


async def test_the_first_leads_and_the_next_follows_until_it_goes(store: LocalStore, other: LocalStore) -> None:
    first, second = Candidate(store, b"first"), Candidate(other, b"second")
    assert await first.start() is LeaderState.LEADING
    assert await second.start() is LeaderState.FOLLOWING
    assert (first.leader, second.leader) == (b"first", b"first")
    await first.close()
    await eventually(lambda: second.state is LeaderState.LEADING)
    assert second.leader == b"second"
    assert first.states == [LeaderState.LEADING, LeaderState.UNKNOWN]
    assert second.states == [LeaderState.FOLLOWING, LeaderState.LEADING]
    await second.close()
    assert not await store.exists(LEADER)


async def test_a_leader_whose_session_is_lost_stops_and_another_takes_over(
    store: LocalStore, other: LocalStore
) -> None:
    first, second = Candidate(store, b"first"), Candidate(other, b"second")
    await first.start()
    await second.start()
    store.expire_session()
    await eventually(lambda: LeaderState.UNKNOWN in first.states)
    await eventually(lambda: LeaderState.LEADING in (first.state, second.state))
    await eventually(lambda: LeaderState.UNKNOWN not in (first.state, second.state))
    assert {first.state, second.state} == {LeaderState.LEADING, LeaderState.FOLLOWING}
    assert first.leader == second.leader == await value_of(store, LEADER)
    await first.close()
    await second.close()


async def test_a_leader_whose_process_dies_is_replaced(store: LocalStore, other: LocalStore) -> None:
    first, second = Candidate(other, b"first"), Candidate(store, b"second")
    await first.start()
    await second.start()
    await other.close()
    await eventually(lambda: second.state is LeaderState.LEADING)
    await first.close()
    await second.close()


async def test_a_leftover_of_an_earlier_session_is_replaced(store: LocalStore, other: LocalStore) -> None:
    await other.put(LEADER, b"me", ephemeral=True)
    candidate = Candidate(store, b"me")
    assert await candidate.start() is LeaderState.LEADING
    node = await store.get(LEADER)
    assert node is not None
    assert node.stat.owned_by_this_session
    await candidate.close()


async def test_an_election_waits_for_a_store_that_is_out_of_reach(store: LocalStore, other: LocalStore) -> None:
    first, second = Candidate(store, b"first"), Candidate(other, b"second")
    store.disconnect()
    with pytest.raises(StoreUnavailable):
        await first.start()
    store.reconnect()
    await first.start()
    await second.start()
    other.disconnect()
    await first.close()
    await asyncio.sleep(0.01)
    assert second.state is LeaderState.FOLLOWING
    other.reconnect()
    await eventually(lambda: second.state is LeaderState.LEADING)
    await second.close()


async def test_a_round_that_fails_is_held_again_though_nobody_tells_of_a_change(
    store: LocalStore, other: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = Candidate(store, b"first"), Candidate(other, b"second")
    await first.start()
    await second.start()
    # More failures than there are notifications of one change.
    get, failures = other.get, [StoreUnavailable("no answer") for _ in range(4)]

    async def get_at_last(path: str, **more: Any) -> Node | None:
        if failures:
            raise failures.pop()
        return await get(path, **more)

    monkeypatch.setattr(other, "get", get_at_last)
    await first.close()
    await eventually(lambda: second.state is LeaderState.LEADING)
    assert not failures
    await second.close()


async def test_a_callback_that_fails_does_not_end_the_election(
    store: LocalStore, other: LocalStore, caplog: pytest.LogCaptureFixture
) -> None:
    first = Candidate(store, b"first")
    await first.start()
    failures = [ValueError("callback")]

    def fail_once(_: LeaderState) -> None:
        if second.state is LeaderState.LEADING and failures:
            raise failures.pop()

    second = LeaderElection(other, LEADER, b"second", fail_once)
    await second.start()
    await first.close()
    await eventually(lambda: second.state is LeaderState.LEADING)
    await eventually(lambda: "not settled" in caplog.text)
    await second.close()


async def test_one_holds_the_lock_and_the_other_is_told_who(store: LocalStore, other: LocalStore) -> None:
    first, second = Holder(store, b"first"), Holder(other, b"second")
    await first.acquire()
    assert first.state is LockState.HELD
    with pytest.raises(LockTaken) as taken:
        await second.acquire()
    assert taken.value.holder == b"first"
    assert not [task for task in asyncio.all_tasks() if task is not asyncio.current_task() and LOCK in task.get_name()][
        1:
    ]
    await second.release()
    assert await value_of(store, LOCK) == b"first"
    await first.release()
    assert not await store.exists(LOCK)
    again = Holder(other, b"second")
    await again.acquire()
    await again.release()
    assert first.states == []


async def test_a_lock_can_change_its_value(store: LocalStore) -> None:
    lock = Holder(store, b"1")
    await lock.acquire()
    await lock.update(b"2")
    assert await value_of(store, LOCK) == b"2"
    await lock.release()


async def some_turns(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


class FarStore(MemoryMetadataStore):
    """Requests and answers are on their way for three turns of the loop each; the request of a put may take longer."""

    put_turns = 3

    async def get(self, path: str, *, watch: bool = True) -> Node | None:
        await some_turns(3)
        found = await super().get(path, watch=watch)
        await some_turns(3)
        return found

    async def put(self, *arguments: Any, **named: Any) -> Stat:
        await some_turns(self.put_turns)
        found = await super().put(*arguments, **named)
        await some_turns(3)
        return found

    async def delete(self, *arguments: Any, **named: Any) -> None:
        await some_turns(3)
        await super().delete(*arguments, **named)
        await some_turns(3)


@pytest.mark.parametrize("put_turns", [3, 15])
@pytest.mark.parametrize("turns", range(0, 24, 2))
async def test_an_update_on_its_way_does_not_outlive_a_release(turns: int, put_turns: int) -> None:
    """A broker that drains would stay listed as alive, with nobody left who takes it off. Whether its write or the
    deletion comes first: the one that comes to no node makes it anew."""
    store = FarStore()
    lock = Holder(store, b"before")
    await lock.acquire()
    store.put_turns = put_turns
    updating = asyncio.create_task(lock.update(b"after"))
    await some_turns(turns)
    await lock.release()
    (outcome,) = await asyncio.gather(updating, return_exceptions=True)
    assert outcome is None or "was released" in str(outcome)
    assert not await store.exists(LOCK)
    assert lock.state is LockState.FREE
    await store.close()


async def test_a_lock_is_taken_again_after_its_session_was_lost(store: LocalStore, other: LocalStore) -> None:
    lock = Holder(store, b"1")
    await lock.acquire()
    store.expire_session()
    await eventually(lambda: lock.states == [LockState.IN_DOUBT, LockState.HELD])
    node = await store.get(LOCK)
    assert node is not None
    assert node.stat.owned_by_this_session
    await lock.release()


async def test_a_lock_that_another_took_meanwhile_is_lost(store: LocalStore, other: LocalStore) -> None:
    lock = Holder(store, b"1")
    await lock.acquire()
    store.disconnect()
    await other.delete(LOCK)
    await other.put(LOCK, b"2", ephemeral=True)
    store.expire_session()
    await eventually(lambda: lock.state is LockState.LOST)
    assert lock.states == [LockState.IN_DOUBT, LockState.LOST]
    with pytest.raises(LockTaken, match="held by another: b'2'"):
        await lock.update(b"3")
    await lock.release()
    assert await value_of(store, LOCK) == b"2"


async def test_a_lock_whose_node_is_removed_is_taken_again(store: LocalStore, other: LocalStore) -> None:
    lock = Holder(store, b"1")
    await lock.acquire()
    await other.delete(LOCK)
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not await other.exists(LOCK):
            await asyncio.sleep(0.001)
    assert await value_of(other, LOCK) == b"1"
    await eventually(lambda: lock.state is LockState.HELD)
    await lock.release()


async def test_counters_never_repeat(store: LocalStore, other: LocalStore) -> None:
    values = await asyncio.gather(
        *(next_counter_value(s, "/counters/producer-name") for _ in range(5) for s in (store, other))
    )
    assert len(set(values)) == 10
    await other.close()
    assert await next_counter_value(store, "/counters/producer-name") > max(values)


async def test_names_are_unique_across_generators(store: LocalStore, other: LocalStore) -> None:
    first = await NameGenerator.open(store, "/counters/producer-name", "standalone")
    second = await NameGenerator.open(other, "/counters/producer-name", "standalone")
    assert [first.next_name(), first.next_name(), second.next_name()] == [
        "standalone-0-0",
        "standalone-0-1",
        "standalone-1-0",
    ]
