"""What waits with Key_Shared: in whose queue it is, in which order, and how much work it is."""

from __future__ import annotations

from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st
from magnetar.broker.dispatch.consumer import Consumer, ConsumerIdentity, KeySharedPolicy
from magnetar.broker.dispatch.entry_batch import EntryBatch
from magnetar.broker.dispatch.hash_ring import ConsistentHashSelector
from magnetar.broker.dispatch.key_shared import SLOTS_ASKED_MAX, KeySharedDispatcher, Selector
from magnetar.broker.dispatch.split_ranges import SplitRangeSelector
from magnetar.broker.dispatch.sticky_ranges import StickyRangeSelector
from magnetar.core.ids import Position
from magnetar.managed.entry import Entry
from magnetar.wire.pulsar.enums import SubscriptionType

from broker.tests.subscription_stage import LEDGER, StagedConnection

SLOTS: Final = [number * 6_000 + 1 for number in range(10)]
"""All over the ring."""

ENTRIES: Final = 5_000


def consumer(name: str, permits: int = 0) -> Consumer:
    one = Consumer(ConsumerIdentity(1, name, SubscriptionType.KEY_SHARED), StagedConnection())
    one.allow(permits)
    return one


class CountedSelector(ConsistentHashSelector):
    """Counts how often anybody asks who owns a slot."""

    asked = 0

    def owner(self, slot: int) -> Consumer | None:
        self.asked += 1
        return super().owner(slot)


class CountedPosition(tuple[int, int]):
    """Counts comparisons of it with others."""

    __slots__ = ()
    compared = 0

    def __lt__(self, other: Any) -> bool:
        type(self).compared += 1
        return super().__lt__(other)


def batch_of(first: int, count: int, slot: int) -> EntryBatch:
    batch = EntryBatch()
    batch.entries = [Entry(LEDGER, number, b"") for number in range(first, first + count)]
    batch.message_counts = [1] * count
    batch.key_hashes = [slot] * count
    return batch


def crowded() -> tuple[KeySharedDispatcher, CountedSelector]:
    """Thousands of entries of ten slots wait for two consumers."""
    selector = CountedSelector()
    dispatcher = KeySharedDispatcher(KeySharedPolicy(), selector)
    dispatcher.add(consumer("a"))
    dispatcher.add(consumer("b"))
    dispatcher.redeliver([((LEDGER, number), SLOTS[number % 10]) for number in range(ENTRIES)])
    assert dispatcher.take_replay(100) == []
    selector.asked = 0
    return dispatcher, selector


def test_a_consumer_that_comes_or_leaves_moves_slots_and_not_each_entry_that_waits() -> None:
    """With 200 000 that wait each coming and each leaving stopped the broker for half a second."""
    dispatcher, selector = crowded()
    passing = consumer("c")
    for change in (dispatcher.add, dispatcher.remove):
        change(passing)
        assert dispatcher.take_replay(100) == []
        assert selector.asked <= 2 * len(SLOTS)
        selector.asked = 0
    assert dispatcher.waiting == ENTRIES


def test_what_those_held_who_left_is_asked_for_by_slot() -> None:
    dispatcher, selector = crowded()
    passing = consumer("c")
    dispatcher.add(passing)
    dispatcher.remove(passing)
    dispatcher.redeliver([((LEDGER, ENTRIES + number), SLOTS[number % 10]) for number in range(ENTRIES)])
    assert dispatcher.take_replay(100) == []
    assert selector.asked <= 2 * len(SLOTS)
    assert dispatcher.waiting == 2 * ENTRIES


def test_entries_that_are_read_again_are_compared_with_one_that_waits_each(monkeypatch: pytest.MonkeyPatch) -> None:
    """All that waited were looked at for each: a third of a second with 200 000."""
    dispatcher = KeySharedDispatcher(KeySharedPolicy(), ConsistentHashSelector())
    dispatcher.add(consumer("a", permits=1_000))
    dispatcher.redeliver([(CountedPosition((LEDGER, number)), SLOTS[0]) for number in range(1_000)])
    monkeypatch.setattr(CountedPosition, "compared", 0)
    assignments, left = dispatcher.assign(batch_of(1_000, 100, SLOTS[0]), replayed=True)
    assert (assignments, len(left)) == ([], 100)
    assert CountedPosition.compared <= 2 * 100


@pytest.mark.parametrize(("entry_id", "slot", "sent"), [(5, 0, False), (5, 1, True), (4, 0, True), (3, 0, True)])
def test_what_is_read_again_waits_only_behind_an_earlier_entry_of_its_key(entry_id: int, slot: int, sent: bool) -> None:
    dispatcher = KeySharedDispatcher(KeySharedPolicy(), ConsistentHashSelector())
    dispatcher.add(consumer("a", permits=10))
    dispatcher.redeliver([((LEDGER, 2), SLOTS[2]), ((LEDGER, 4), SLOTS[0])])
    assignments, _ = dispatcher.assign(batch_of(entry_id, 1, SLOTS[slot]), replayed=True)
    assert bool(assignments) is sent


def test_an_entry_that_is_acknowledged_while_it_waits_holds_up_none_that_is_read_again() -> None:
    dispatcher = KeySharedDispatcher(KeySharedPolicy(), ConsistentHashSelector())
    dispatcher.add(consumer("a", permits=10))
    dispatcher.redeliver([((LEDGER, 4), SLOTS[0]), ((LEDGER, 6), SLOTS[0])])
    dispatcher.acknowledged(None, (LEDGER, 4), 0)
    assignments, _ = dispatcher.assign(batch_of(5, 1, SLOTS[0]), replayed=True)
    assert assignments


def test_a_slot_gives_up_places_of_what_is_acknowledged() -> None:
    """To skip them all at once would take long."""
    dispatcher, _ = crowded()
    for number in range(10, ENTRIES):
        dispatcher.acknowledged(None, (LEDGER, number), 0)
        assert all(len(heap) <= 3 + ENTRIES / 10 for heap in dispatcher._slots.values())
    assert [len(heap) for heap in dispatcher._slots.values()] == pytest.approx([2] * 10, abs=1)
    for one in dispatcher.consumers:
        one.allow(100)
    assert dispatcher.take_replay(100) == [(LEDGER, number) for number in range(10)]
    assert (dispatcher._slots, dispatcher._queued) == ({}, {})


class Straightforward:
    """What waits, in one list."""

    def __init__(self, selector: ConsistentHashSelector) -> None:
        self.selector = selector
        self.waiting: dict[Position, int] = {}

    def take(self, consumers: list[Consumer], count_max: int) -> list[Position]:
        """The first ones of each, as long as there are fewer than so many."""
        taken: list[Position] = []
        for one in consumers:
            own = [each for each in sorted(self.waiting) if self.selector.owner(self.waiting[each]) is one]
            taken += own[: min(max(0, one.room), count_max - len(taken))]
        for each in taken:
            del self.waiting[each]
        return sorted(taken)


MOVES = st.lists(
    st.tuples(st.sampled_from(["wait", "wait", "ack", "join", "leave", "take", "fail"]), st.integers(0, 40)),
    max_size=80,
)


@given(MOVES)
def test_what_waits_is_sent_in_its_order_by_whoever_owns_its_slot_now(moves: list[tuple[str, int]]) -> None:
    selector = ConsistentHashSelector()
    dispatcher, model = KeySharedDispatcher(KeySharedPolicy(), selector), Straightforward(selector)
    present = [consumer("first", 3)]
    dispatcher.add(present[0])
    for action, number in moves:
        position = (number % 2, number)
        if action == "wait":
            dispatcher.redeliver([(position, SLOTS[number % 7])])
            model.waiting.setdefault(position, SLOTS[number % 7])
        elif action == "ack":
            dispatcher.acknowledged(None, position, 0)
            model.waiting.pop(position, None)
        elif action == "join":
            present.append(consumer(f"c{number}", number % 4))
            dispatcher.add(present[-1])
        elif action == "leave" and len(present) > 1:
            dispatcher.remove(present.pop(number % len(present)))
        elif action in ("take", "fail"):
            before = dict(model.waiting)
            assert dispatcher.take_replay(number % 6 + 1) == model.take(present, number % 6 + 1)
            dispatcher.replay_finished(failed=action == "fail")
            if action == "fail":
                model.waiting = before
        assert dispatcher.waiting == len(model.waiting)
        assert dispatcher._queued == model.waiting
        assert {slot: heap[0] for slot, heap in dispatcher._slots.items()} == {
            slot: min(each for each in model.waiting if model.waiting[each] == slot) for slot in model.waiting.values()
        }
        assert sorted(dispatcher._waiting_per_hash) == sorted(dispatcher._slots)


def test_of_thousands_of_slots_the_owners_are_listed_and_not_asked_for_one_by_one() -> None:
    selector = CountedSelector()
    dispatcher = KeySharedDispatcher(KeySharedPolicy(), selector)
    first = consumer("a", permits=SLOTS_ASKED_MAX)
    dispatcher.add(first)
    dispatcher.redeliver([((LEDGER, number), 1 + number * 13) for number in range(ENTRIES)])
    held = [Entry(LEDGER, ENTRIES + number, b"") for number in range(ENTRIES)]
    first.hold(held, [1] * ENTRIES, [2 + number * 13 for number in range(ENTRIES)])
    second = consumer("b", permits=SLOTS_ASKED_MAX)
    dispatcher.add(second)
    taken = dispatcher.take_replay(2 * ENTRIES)
    assert selector.asked == 0
    assert sorted(dispatcher.draining) == [slot for slot in first.pending.per_hash if selector.owner(slot) is second]
    owners = [selector.owner(1 + number * 13) for _, number in taken]
    assert sorted(one.name for one in owners if one is not None) == ["a"] * SLOTS_ASKED_MAX + ["b"] * SLOTS_ASKED_MAX


@pytest.mark.parametrize("make", [ConsistentHashSelector, SplitRangeSelector, StickyRangeSelector])
def test_the_list_of_owners_says_what_each_slot_says(make: type[Selector]) -> None:
    selector = make()
    assert set(selector.owners()) == {None}
    present: list[Consumer] = []
    for number in range(5):
        identity = ConsumerIdentity(1, f"c{number}", SubscriptionType.KEY_SHARED)
        ranges = [(number * 100, number * 100 + 60), (65_535 - number, 65_535 - number)]
        identity.key_shared = KeySharedPolicy(sticky=True, ranges=ranges)
        present.append(Consumer(identity, StagedConnection()))
        selector.add(present[-1])
    for gone in (None, present[4], present[0]):
        if gone is not None:
            selector.remove(gone)
        table = selector.owners()
        assert table[:65_536] == [selector.owner(slot) for slot in range(65_536)]
