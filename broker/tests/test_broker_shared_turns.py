"""Shared: whose turn it is where few of very many consumers have room."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from magnetar.broker.dispatch.consumer import Consumer, ConsumerIdentity
from magnetar.broker.dispatch.entry_batch import EntryBatch
from magnetar.broker.dispatch.shared import SharedDispatcher
from magnetar.managed.entry import Entry
from magnetar.wire.pulsar.enums import SubscriptionType

from broker.tests.straightforward_dispatch import RoundRobin
from broker.tests.subscription_stage import LEDGER, StagedConnection

MANY = 1_000


def consumer(name: str, permits: int, priority: int) -> Consumer:
    identity = ConsumerIdentity(1, name, SubscriptionType.SHARED)
    identity.priority_level = priority
    one = Consumer(identity, StagedConnection())
    one.allow(permits)
    return one


def batch_of(count: int) -> EntryBatch:
    batch = EntryBatch()
    batch.entries = [Entry(LEDGER, number, b"") for number in range(count)]
    batch.message_counts = [1] * count
    return batch


class Looks(list[Any]):
    """Consumers of one priority; counts looks at one of them."""

    taken = 0

    def __getitem__(self, index: Any) -> Any:
        type(self).taken += 1
        return super().__getitem__(index)


@pytest.mark.parametrize(
    "priority_of",
    [lambda number: 0, lambda number: number // MANY, lambda number: number],
    ids=["one priority", "better ones without room", "a priority each"],
)
@pytest.mark.parametrize("permits", [0, 1], ids=["nothing", "one message"])
def test_consumers_that_have_no_room_are_not_looked_at_for_each_entry(
    monkeypatch: pytest.MonkeyPatch, priority_of: Callable[[int], int], permits: int
) -> None:
    """Two of 30 000 that took all: each turn of the event loop was a third of a second."""
    dispatcher = SharedDispatcher(1)
    for number in range(MANY):
        dispatcher.add(consumer(f"c{number}", permits, priority_of(number)))
    for number in (MANY, MANY + 1):
        dispatcher.add(consumer(f"c{number}", 10 * MANY, priority_of(number)))
    for level in dispatcher._levels:
        level.consumers = Looks(level.consumers)
    monkeypatch.setattr(Looks, "taken", 0)
    entries = MANY * permits + 4_000
    assignments, left = dispatcher.assign(batch_of(entries), replayed=False)
    assert Looks.taken <= 3 * entries + 4 * MANY
    assert (len(left), sum(len(share) for _, share in assignments)) == (0, entries)
    assert {one.name for one, share in assignments if len(share) > 1} <= {f"c{MANY}", f"c{MANY + 1}"}


@given(
    st.lists(st.tuples(st.integers(0, 8), st.integers(0, 1)), min_size=1, max_size=10),
    st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9), st.integers(0, 40)), max_size=6),
)
def test_a_batch_is_given_out_as_one_entry_after_another(
    joining: list[tuple[int, int]], moves: list[tuple[int, int, int]]
) -> None:
    dispatcher, straightforward = SharedDispatcher(1), RoundRobin()
    rooms: dict[Consumer, int] = {}
    for number, (permits, priority) in enumerate(joining):
        one = consumer(f"c{number}", permits, priority)
        rooms[one] = permits
        dispatcher.add(one)
        straightforward.add(one)
    for at, more, entries in moves:
        one = list(rooms)[at % len(rooms)]
        one.allow(more)
        rooms[one] += more
        chosen: dict[Consumer, list[int]] = {}
        sent = 0
        while sent < entries and (found := straightforward.next(rooms)) is not None:
            chosen.setdefault(found, []).append(sent)
            rooms[found] -= 1
            found.permits -= 1
            sent += 1
        for consumer_, numbers in chosen.items():
            consumer_.permits += len(numbers)
        assignments, left = dispatcher.assign(batch_of(entries), replayed=False)
        assert {one: [entry.entry_id for entry in share.entries] for one, share in assignments} == chosen
        assert [entry.entry_id for entry in left.entries] == list(range(sent, entries))
        for consumer_, share in assignments:
            consumer_.permits -= len(share)
