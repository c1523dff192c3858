"""What a bookie knows of ledgers beside their entries: what is stored, what must not be forgotten."""

from __future__ import annotations

import asyncio
import struct
import time
from collections.abc import Awaitable, Callable

from magnetar.bookie.app import RunningBookie
from magnetar.bookie.bookie import LAC_WAITERS_MAX
from magnetar.bookie.ledger_state import LEDGER_STATES_MAX, UNSAVED_MAX, BookieLedgerState, LedgerStates, decode_state
from magnetar.wire.bookkeeper.entry import EntryCodec


def explicit(ledger_id: int, lac: int) -> bytes:
    return struct.pack(">qq", ledger_id, lac)


def test_an_older_explicit_lac_is_not_kept() -> None:
    state = BookieLedgerState(1)
    assert state.take_explicit_lac(explicit(1, 5))
    assert not state.take_explicit_lac(explicit(1, 4))
    assert state.explicit_lac == explicit(1, 5)


def test_what_a_failed_checkpoint_did_not_store_comes_with_the_next() -> None:
    states = LedgerStates(lambda _: None, lambda _: False)
    for ledger_id in (3, 1):
        states.touch(states.get_or_create(ledger_id))
    fenced = states.get_or_create(3)
    taken = states.take_dirty()
    assert [ledger_id for ledger_id, _ in taken] == [1, 3]
    assert not states.anything_dirty()
    fenced.fenced = True
    states.flushed(stored=False)
    again = dict(states.take_dirty())
    assert sorted(again) == [1, 3]
    assert decode_state(3, again[3]).fenced
    states.flushed(stored=True)
    assert not states.anything_dirty()
    assert states.take_dirty() == []


def test_a_ledger_that_was_deleted_meanwhile_is_not_stored_again() -> None:
    states = LedgerStates(lambda _: None, lambda _: False)
    states.touch(states.get_or_create(1))
    states.take_dirty()
    states.forget(1)
    states.flushed(stored=False)
    assert states.take_dirty() == []


def test_memory_lets_go_of_nothing_that_the_index_cannot_give_back() -> None:
    """Not of a state that is not stored, nor of a fence that is not durable, nor of one that somebody waits for."""
    states = LedgerStates(lambda _: None, lambda _: False)
    unsaved, fencing, awaited = (states.get_or_create(ledger_id) for ledger_id in range(3))
    states.touch(unsaved)
    fencing.fenced = True
    awaited.lac_waiters.append(lambda _: None)
    for ledger_id in range(3, LEDGER_STATES_MAX + 2):
        states.get_or_create(ledger_id)
    assert [states.known(ledger_id) for ledger_id in range(3)] == [unsaved, fencing, awaited]
    assert states.known(3) is None
    states.take_dirty()
    for ledger_id in range(LEDGER_STATES_MAX + 2, 2 * LEDGER_STATES_MAX):
        states.get_or_create(ledger_id)
    assert states.known(0) is unsaved
    states.flushed(stored=True)
    fencing.fence_durable = True
    for ledger_id in range(2 * LEDGER_STATES_MAX, 3 * LEDGER_STATES_MAX):
        states.get_or_create(ledger_id)
    assert [states.known(ledger_id) for ledger_id in range(3)] == [None, None, awaited]


def test_a_new_ledger_costs_the_same_however_many_states_must_stay() -> None:
    """A cluster's topics all begin new ledgers after a restart: none of their states is stored before a checkpoint."""
    states = LedgerStates(lambda _: None, lambda _: False)
    for ledger_id in range(LEDGER_STATES_MAX):
        states.touch(states.get_or_create(ledger_id))
    assert states.crowded()

    def add(first_ledger_id: int) -> float:
        began = time.process_time()
        for ledger_id in range(first_ledger_id, first_ledger_id + 1_000):
            states.touch(states.get_or_create(ledger_id))
        return time.process_time() - began

    # A copy of all states, and a look at two thousand of them, for each new one took two seconds.
    assert min(add(LEDGER_STATES_MAX + round_ * 1_000) for round_ in range(5)) < 0.1
    states.take_dirty()
    states.flushed(stored=True)
    assert not states.crowded()
    for ledger_id in range(2 * LEDGER_STATES_MAX, 3 * LEDGER_STATES_MAX):
        states.get_or_create(ledger_id)
    assert sum(states.known(ledger_id) is not None for ledger_id in range(3 * LEDGER_STATES_MAX)) == LEDGER_STATES_MAX


async def test_a_checkpoint_comes_when_many_ledgers_are_new(start: Callable[[], Awaitable[RunningBookie]]) -> None:
    running = await start()
    fences = (running.bookie.fence(ledger_id, EntryCodec(1, "CRC32C").master_key) for ledger_id in range(UNSAVED_MAX))
    await asyncio.gather(*fences)
    async with asyncio.timeout(30):
        while running.parts.states.anything_dirty():
            await asyncio.sleep(0.01)


async def test_who_stops_waiting_for_a_last_add_confirmed_is_not_told(
    start: Callable[[], Awaitable[RunningBookie]],
) -> None:
    bookie = (await start()).bookie
    codec = EntryCodec(1, "CRC32C")
    await bookie.write_lac(1, codec.master_key, 0, explicit(1, 0))
    gone: list[int] = []
    told: list[int] = []
    assert bookie.wait_for_lac(1, gone.append)
    assert bookie.wait_for_lac(1, told.append)
    bookie.stop_waiting_for_lac(1, gone.append)
    bookie.stop_waiting_for_lac(1, gone.append)
    bookie.stop_waiting_for_lac(2, gone.append)
    await bookie.write_lac(1, codec.master_key, 7, explicit(1, 7))
    assert (gone, told) == ([], [7])
    for _ in range(LAC_WAITERS_MAX):
        assert bookie.wait_for_lac(1, gone.append)
    assert not bookie.wait_for_lac(1, told.append)
