"""The acknowledgement state against a twin that is a set of positions, and its two persisted forms."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from magnetar.core.ids import Position
from magnetar.core.limits import MIB
from magnetar.managed.ack_state import PARTIAL_BATCHES_MAX, PARTIAL_WORDS_MAX, AckState
from magnetar.managed.entry_bitmap import COMPACT_BYTES, EntryBitmap, value_of, words_of
from magnetar.managed.info_codec import (
    decode_cursor_info,
    decode_position,
    encode_cursor_info,
    encode_position,
    restore_acks,
)
from magnetar.managed.ledger_list import LedgerList, LedgerRecord
from magnetar.managed.settings import ManagedLedgerSettings


def ledgers(*entries: int) -> LedgerList:
    """Ledgers 10, 20, ... with so many entries."""
    return LedgerList([LedgerRecord(10 * (index + 1), count) for index, count in enumerate(entries)])


def check(entries: list[int], acks: list[Position], mark: Position, ranges: str) -> AckState:
    state = AckState(ledgers(*entries), (10, -1))
    for position in acks:
        state.acknowledge([position])
    assert state.mark_delete == mark
    assert " ".join(f"{low[0]}:{low[1]}..{high[0]}:{high[1]}" for low, high in state.ranges()) == ranges
    together = AckState(ledgers(*entries), (10, -1))
    together.acknowledge(acks)
    assert (together.mark_delete, together.ranges()) == (mark, state.ranges())
    return state


def test_in_order() -> None:
    check([5], [(10, 0), (10, 1), (10, 2)], (10, 2), "")


def test_out_of_order_and_the_gap_closes() -> None:
    check([5], [(10, 1), (10, 3)], (10, -1), "10:0..10:1 10:2..10:3")
    check([5], [(10, 1), (10, 3), (10, 0)], (10, 1), "10:2..10:3")
    check([5], [(10, 1), (10, 3), (10, 0), (10, 2)], (10, 3), "")


def test_over_the_end_of_ledgers() -> None:
    check([2, 0, 2], [(10, 0), (10, 1)], (10, 1), "")
    check([2, 0, 2], [(10, 0), (10, 1), (30, 0)], (30, 0), "")
    check([2, 0, 2], [(30, 0), (30, 1), (10, 1)], (10, -1), "10:0..10:1 30:-1..30:1")
    check([2, 0, 2], [(30, 0), (30, 1), (10, 1), (10, 0)], (30, 1), "")


def test_what_is_no_entry_is_ignored() -> None:
    state = check([2], [(10, 2), (10, 1 << 60), (11, 0), (10, -1), (9, 0)], (10, -1), "")
    assert not state.acknowledge_cumulative((10, 2))
    assert not state.acknowledge_cumulative((99, 0))
    assert not state.acknowledge_batch_indexes((10, 2), [0], 2)


def test_batch_indexes() -> None:
    state = AckState(ledgers(3), (10, -1))
    assert not state.acknowledge_batch_indexes((10, 1), [0b1101], 4)
    assert state.remaining_ack_set((10, 1)) == [0b1101]
    assert not state.acknowledge_batch_indexes((10, 1), [0b0111], 4)
    assert state.remaining_ack_set((10, 1)) == [0b0101]
    assert state.acknowledge_batch_indexes((10, 1), [0b1010], 4)
    assert not state.acknowledge_batch_indexes((10, 1), [0], 4)
    assert state.is_acknowledged((10, 1))
    assert state.remaining_ack_set((10, 1)) is None
    assert state.acknowledge_cumulative((10, 2), [0b10])
    assert state.mark_delete == (10, 1)
    assert state.remaining_ack_set((10, 2)) == [0b10]
    assert state.acknowledge_cumulative((10, 2), [])
    assert not state.partial


def test_a_cumulative_acknowledgement_within_a_batch_takes_nothing_back() -> None:
    state = AckState(ledgers(3), (10, -1))
    assert not state.acknowledge_batch_indexes((10, 1), [0b0111], 4)
    assert state.acknowledge_cumulative((10, 1), [0b1100])
    assert (state.mark_delete, state.remaining_ack_set((10, 1))) == ((10, 0), [0b0100])


def test_a_cumulative_acknowledgement_of_what_was_left_of_a_batch_takes_all_of_it() -> None:
    """Each part was acknowledged: what nothing is left of is no part, which the next owner would not take over."""
    state = AckState(ledgers(5), (10, -1))
    assert not state.acknowledge_batch_indexes((10, 1), [0b011], 3)
    assert state.acknowledge_cumulative((10, 1), [0b100])
    assert state.mark_delete == (10, 1)
    assert state.remaining_ack_set((10, 1)) is None


def test_a_cumulative_acknowledgement_within_a_batch_that_is_acknowledged_takes_all_before_it() -> None:
    state = AckState(ledgers(5), (10, -1))
    state.acknowledge([(10, 2)])
    assert state.acknowledge_cumulative((10, 2), [0b100])
    assert (state.mark_delete, state.individual_count, state.partial or {}) == ((10, 2), 0, {})


def test_words_are_signed_and_start_at_entry_zero() -> None:
    state = AckState(ledgers(200), (10, 69))
    state.acknowledge([(10, 127), (10, 128)])
    assert state.long_arrays() == [(10, [0, -(1 << 63), 1])]
    assert words_of(0) == []
    assert value_of([-1, 1]) == (1 << 65) - 1


@given(st.sets(st.integers(0, 300)), st.integers(0, 300), st.integers(0, 300))
def test_bitmap_is_a_set(ids: set[int], first: int, last: int) -> None:
    bitmap = EntryBitmap()
    for entry_id in ids:
        assert bitmap.add(entry_id)
        assert not bitmap.add(entry_id)
    assert {each for each in range(400) if bitmap.contains(each)} == ids
    assert bitmap.count(first, last) == len([each for each in ids if first <= each <= last])
    assert bitmap.end_of_run(first) == next(each for each in range(first, 999) if each not in ids)
    above = {each for each in ids if each > first}
    assert {each for low, high in bitmap.ranges(first) for each in range(low, high + 1)} == above
    assert value_of(bitmap.words(first)) == sum(1 << each for each in above)
    assert bitmap.runs(first) == len(bitmap.ranges(first))
    assert bitmap.ranges(first, 2) == bitmap.ranges(first)[:2]
    missing = [each for each in range(last, 999) if each not in ids]
    assert [bitmap.missing_at(last, number) for number in (1, 7, 300)] == [missing[0], missing[6], missing[299]]
    bitmap.add_range(first, last)
    assert {each for each in range(400) if bitmap.contains(each)} == ids | set(range(first, last + 1))


def test_a_bitmap_forgets_what_is_below_and_nothing_else() -> None:
    bitmap = EntryBitmap()
    bitmap.add_range(8 * COMPACT_BYTES - 3, 8 * COMPACT_BYTES + 2)
    bitmap.add(8 * COMPACT_BYTES + 100)
    bitmap.forget_below(8 * COMPACT_BYTES)
    assert bitmap.ranges(8 * COMPACT_BYTES - 1) == [
        (8 * COMPACT_BYTES, 8 * COMPACT_BYTES + 2),
        (8 * COMPACT_BYTES + 100, 8 * COMPACT_BYTES + 100),
    ]
    assert len(bitmap.bits) < COMPACT_BYTES


def riddled(entries: int) -> AckState:
    """Every second entry is acknowledged, but the first."""
    state = AckState(ledgers(entries), (10, -1))
    state.acknowledge([(10, entry_id) for entry_id in range(1, entries, 2)])
    return state


def quickest_seconds(work: Callable[[], object]) -> float:
    """Of the processor's time, the best of three."""
    found = []
    for _ in range(3):
        began = time.process_time()
        work()
        found.append(time.process_time() - began)
    return min(found)


@given(st.lists(st.integers(-(1 << 63), (1 << 64) - 1), max_size=6), st.integers(-1, 300), st.sets(st.integers(0, 300)))
def test_stored_bits_are_taken_over_as_their_stretches_are(words: list[int], mark: int, before: set[int]) -> None:
    """Whatever stands there: bits below the mark and behind the last entry count for nothing."""
    at_once, by_stretches = (AckState(ledgers(301, 4), (10, mark)) for _ in range(2))
    for state in (at_once, by_stretches):
        state.acknowledge([(10, entry_id) for entry_id in sorted(before)])
    value = value_of(words) if words else 0
    stretches = [((10, bit - 1), (10, bit)) for bit in range(value.bit_length()) if value >> bit & 1]
    at_once.load_long_arrays([(10, words), (20, words[:1]), (30, words), (5, words)])
    by_stretches.load_ranges(stretches)
    by_stretches.load_ranges([((20, bit - 1), (20, bit)) for bit in range(64) if words and words[0] >> bit & 1])
    assert at_once.mark_delete == by_stretches.mark_delete
    assert at_once.ranges() == by_stretches.ranges()
    assert at_once.backlog((20, 3)) == by_stretches.backlog((20, 3))


@pytest.mark.slow
def test_what_is_asked_of_a_million_gaps_is_answered_at_once() -> None:
    entries = 1_000_000
    state = riddled(entries)
    assert state.unacknowledged_at(entries // 2) == (10, entries - 2)
    assert state.range_count() == entries // 2
    assert len(state.ranges(100)) == 100
    assert quickest_seconds(lambda: state.unacknowledged_at(entries // 2)) < 0.05
    assert quickest_seconds(state.range_count) < 0.05
    assert quickest_seconds(lambda: state.ranges(100)) < 0.05


def test_a_mark_passes_many_batches_and_ledgers_at_once() -> None:
    state = AckState(ledgers(PARTIAL_BATCHES_MAX, 100), (10, -1))
    for entry_id in range(PARTIAL_BATCHES_MAX - 1):
        state.acknowledge_batch_indexes((10, entry_id), [1], 2)
    state.acknowledge_batch_indexes((20, 50), [1], 2)
    assert state.acknowledge_cumulative((20, 10))
    assert (state.partial, state.partial_words) == ({(20, 50): 1}, 1)
    assert state.acknowledge_cumulative((20, 60))
    assert (state.partial, state.partial_words) == ({}, 0)
    many = AckState(ledgers(*[10] * 20_000), (10, -1))
    assert many.unacknowledged_at(200_000) == (200_000, 9)
    assert quickest_seconds(lambda: many.unacknowledged_at(200_000)) < 0.05


SIZES = st.lists(st.integers(0, 12), min_size=1, max_size=5).map(lambda sizes: [1, *sizes])
POSITION = st.tuples(st.integers(1, 7).map(lambda index: index * 10), st.integers(-1, 12))
STEP = st.one_of(
    st.tuples(st.just("acknowledge"), st.lists(POSITION, max_size=8)),
    st.tuples(st.just("cumulative"), POSITION),
    st.tuples(st.just("cumulative in a batch"), st.tuples(POSITION, st.integers(1, 7))),
    st.tuples(st.just("batch"), st.tuples(POSITION, st.integers(0, 7))),
    st.tuples(st.just("grow"), st.integers(1, 4)),
    st.tuples(st.just("roll"), st.none()),
    st.tuples(st.just("trim"), st.none()),
)


class Twin:
    """Sets of positions; too simple to be wrong."""

    def __init__(self, ledger_list: LedgerList) -> None:
        self.ledgers = ledger_list
        self.acknowledged: set[Position] = set()
        self.partial: dict[Position, int] = {}

    def entries(self) -> list[Position]:
        return [(each.ledger_id, entry) for each in self.ledgers.records() for entry in range(each.entries)]

    def acknowledge(self, positions: list[Position]) -> None:
        self.acknowledged |= set(positions) & set(self.entries())
        self.partial = {key: left for key, left in self.partial.items() if key not in self.acknowledged}

    def batch(self, position: Position, left: int) -> None:
        if position in self.entries() and position not in self.acknowledged:
            left &= self.partial.get(position, 7)
            self.partial[position] = left
            if not left:
                self.acknowledge([position])


def compare(state: AckState, twin: Twin) -> None:
    entries = twin.entries()
    assert [each for each in entries if state.is_acknowledged(each)] == [
        each for each in entries if each in twin.acknowledged
    ]
    unacknowledged = [each for each in entries if each not in twin.acknowledged]
    following = state._ledgers.next_position(state.mark_delete)
    assert [state.unacknowledged_at(number + 1) for number in range(len(unacknowledged))] == unacknowledged
    assert state.range_count() == len(state.ranges())
    if unacknowledged:
        assert following == unacknowledged[0]
    else:
        assert following > state._ledgers.last_position()
    beyond = [each for each in entries if each in twin.acknowledged and each > state.mark_delete]
    assert state.individual_count == len(beyond)
    covered = [each for each in entries if any(low < each <= high for low, high in state.ranges())]
    assert covered == beyond
    assert state.backlog(state._ledgers.last_position()) == len(unacknowledged)
    assert {key: value_of(words_of(left)) for key, left in (state.partial or {}).items()} == twin.partial


def restored(state: AckState, stored_form: str) -> AckState:
    policy = ManagedLedgerSettings(persist_acks_as_long_array=stored_form == "words")
    again = AckState(state._ledgers, state.mark_delete)
    if stored_form == "node":
        info = decode_cursor_info(encode_cursor_info(state, {"p": 1}, {"c": "x"}, policy, 5))
        assert (info.markDeleteLedgerId, info.markDeleteEntryId) == state.mark_delete
        restore_acks(again, info)
    else:
        position = decode_position(encode_position(state, {"p": 1}, policy))
        assert (position.ledgerId, position.entryId) == state.mark_delete
        restore_acks(again, position)
    return again


@settings(max_examples=80, deadline=None)
@given(SIZES, st.lists(STEP, max_size=25), st.sampled_from(["words", "ranges", "node"]))
def test_twin(sizes: list[int], steps: list[tuple[str, object]], stored_form: str) -> None:
    ledger_list = ledgers(*sizes)
    state = AckState(ledger_list, (10, -1))
    twin = Twin(ledger_list)
    for name, what in steps:
        match name, what:
            case "acknowledge", list(positions):
                state.acknowledge(positions)
                twin.acknowledge(positions)
            case "cumulative", (int(ledger_id), int(entry_id)):
                state.acknowledge_cumulative((ledger_id, entry_id))
                if (ledger_id, entry_id) <= ledger_list.last_position():
                    twin.acknowledge([each for each in twin.entries() if each <= (ledger_id, entry_id)])
            case "cumulative in a batch", ((int(ledger_id), int(entry_id)), int(left)):
                state.acknowledge_cumulative((ledger_id, entry_id), [left])
                if (ledger_id, entry_id) in twin.entries():
                    twin.acknowledge([each for each in twin.entries() if each < (ledger_id, entry_id)])
                    twin.batch((ledger_id, entry_id), left)
            case "batch", ((int(ledger_id), int(entry_id)), int(left)):
                state.acknowledge_batch_indexes((ledger_id, entry_id), [left], 3)
                twin.batch((ledger_id, entry_id), left)
            case "grow", int(count):
                ledger_list.last().entries += count
            case "roll", None:
                ledger_list.add(LedgerRecord(ledger_list.ids[-1] + 10))
            case "trim", None:
                first = ledger_list.records()[0]
                if len(ledger_list) > 1 and state.mark_delete >= (first.ledger_id, first.entries - 1):
                    ledger_list.remove((first.ledger_id,))
                    state.renormalise()
            case _:
                raise AssertionError(name)
        compare(state, twin)
    again = restored(state, stored_form)
    compare(again, twin)
    assert (again.mark_delete, again.ranges()) == (state.mark_delete, state.ranges())


def test_a_batch_size_is_not_taken_at_its_word() -> None:
    state = AckState(ledgers(3), (10, -1))
    for _ in range(100):  # A mask of so many bits would have 256 MiB, and each would take half a second.
        assert not state.acknowledge_batch_indexes((10, 1), [0b101], 2**31 - 1)
    assert state.remaining_ack_set((10, 1)) == [0b101]
    assert not state.acknowledge_batch_indexes((10, 2), [-1, -1], 65)
    assert state.remaining_ack_set((10, 2)) == [-1, 1]


def test_long_ack_sets_take_as_many_times_longer_as_they_are_longer() -> None:
    def seconds(count: int) -> float:
        words = [-1] * count
        value = value_of(words)
        assert words_of(value) == words

        def once() -> float:
            began = time.process_time()
            value_of(words)
            words_of(value)
            return time.process_time() - began

        return min(once() for _ in range(5))

    # In proportion it is 16; by the square of the length it was above 100.
    assert seconds(320_000) < 64 * max(seconds(20_000), 0.000_1)


def test_what_is_noted_of_batches_is_bounded() -> None:
    state = AckState(ledgers(200), (10, -1))
    words = [-1] * 16_384
    for entry_id in range(1, 200):
        state.acknowledge_batch_indexes((10, entry_id), words, 0)
    assert state.partial is not None
    noted = len(state.partial)
    assert noted * len(words) == state.partial_words == PARTIAL_WORDS_MAX
    # Those that are noted may shrink further, and what they give back is there for others.
    assert not state.acknowledge_batch_indexes((10, 1), [1], 0)
    assert state.remaining_ack_set((10, 1)) == [1]
    assert not state.acknowledge_batch_indexes((10, 150), [1], 0)
    assert state.remaining_ack_set((10, 150)) == [1]
    assert len(decode_position(encode_position(state, {}, ManagedLedgerSettings())).SerializeToString()) < 3 * MIB
    state.acknowledge([(10, 1), (10, 2)])
    state.acknowledge_cumulative((10, 199))
    assert (state.partial_words, state.partial) == (0, {})


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("part"), st.integers(0, 5), st.lists(st.integers(-(2**63), 2**63 - 1), max_size=3)),
            st.tuples(st.just("whole"), st.integers(0, 5), st.just([])),
            st.tuples(st.just("up to"), st.integers(0, 5), st.lists(st.integers(-(2**63), 2**63 - 1), max_size=3)),
            st.tuples(st.just("reset"), st.integers(-1, 5), st.just([])),
        )
    )
)
def test_the_words_noted_are_counted(steps: list[tuple[str, int, list[int]]]) -> None:
    state = AckState(ledgers(6), (10, -1))
    for kind, entry_id, words in steps:
        if kind == "part":
            state.acknowledge_batch_indexes((10, entry_id), words, 0)
        elif kind == "whole":
            state.acknowledge([(10, entry_id)])
        elif kind == "up to":
            state.acknowledge_cumulative((10, entry_id), words)
        else:
            state.reset((10, entry_id))
        assert state.partial_words == sum(len(words_of(left)) for left in (state.partial or {}).values())
        assert all(position > state.mark_delete for position in state.partial or ())


def test_the_number_of_batches_noted_is_bounded() -> None:
    state = AckState(ledgers(PARTIAL_BATCHES_MAX + 10), (10, -1))
    for entry_id in range(1, PARTIAL_BATCHES_MAX + 10):
        state.acknowledge_batch_indexes((10, entry_id), [1], 2)
    assert state.partial is not None
    assert len(state.partial) == PARTIAL_BATCHES_MAX
    # One by one, as a client may: each costs what it passes, not what there is.
    for entry_id in range(PARTIAL_BATCHES_MAX):
        state.acknowledge_cumulative((10, entry_id))
    assert list(state.partial) == [(10, PARTIAL_BATCHES_MAX)]
