"""How often entries were asked for again: counted, bounded, stored with the cursor, forgotten with acknowledgements."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st
from magnetar.core.ids import Position
from magnetar.core.limits import KIB
from magnetar.managed.ack_state import AckState
from magnetar.managed.entry import Entry
from magnetar.managed.info_codec import (
    POSITION_IN_NODE,
    decode_cursor_info,
    decode_position,
    encode_cursor_info,
    encode_position,
    restore_acks,
)
from magnetar.managed.ledger_list import LedgerList, LedgerRecord
from magnetar.managed.redelivery_counts import (
    COUNTED_ENTRIES_MAX,
    COUNTED_ENTRIES_SPARE,
    REDELIVERIES_MAX,
    STORED_COUNTS_MAX,
    RedeliveryCounts,
)
from magnetar.managed.settings import ManagedLedgerSettings
from magnetar.wire.pulsar.generated.cursor_additions_pb2 import CursorAdditions
from magnetar.wire.pulsar.generated.ml_data_formats_pb2 import PositionInfo

SETTINGS = ManagedLedgerSettings()
ENTRIES = 20
LEDGERS = (3, 5)
EVERYWHERE = [(ledger_id, entry_id) for ledger_id in LEDGERS for entry_id in range(ENTRIES)]
BEFORE_ALL: Position = (LEDGERS[0], -1)


def new_state(mark: Position = BEFORE_ALL, entries: int = ENTRIES) -> AckState:
    return AckState(LedgerList([LedgerRecord(each, entries, 0, 1) for each in LEDGERS]), mark)


def told(state: AckState, positions: list[Position]) -> list[int]:
    """What consumers would be told of these entries."""
    entries = [Entry(ledger_id, entry_id, b"") for ledger_id, entry_id in positions]
    counts = state.redeliveries.of(entries) if state.redeliveries is not None else None
    return counts if counts is not None else [0] * len(entries)


def through_a_ledger(state: AckState) -> AckState:
    """What the next owner finds in the cursor's ledger."""
    stored = decode_position(encode_position(state, {}, SETTINGS))
    found = new_state((stored.ledgerId, stored.entryId))
    restore_acks(found, stored)
    return found


def through_the_node(state: AckState) -> AckState:
    """What the next owner finds in the cursor's node."""
    stored = decode_cursor_info(encode_cursor_info(state, {}, {"k": "v"}, SETTINGS, 1, POSITION_IN_NODE))
    found = new_state((stored.markDeleteLedgerId, stored.markDeleteEntryId))
    restore_acks(found, stored)
    return found


def test_counts_are_sparse() -> None:
    counts = RedeliveryCounts()
    entries = [Entry(1, number, b"") for number in range(3)]
    assert counts.of(entries) is None
    counts.increment([(1, 1)])
    counts.increment([(1, 1)])
    assert counts.of(entries) == [0, 2, 0]
    counts.forget((1, 1))
    counts.forget((1, 2))
    assert counts.of(entries) is None


@pytest.mark.parametrize("stored", [through_a_ledger, through_the_node])
def test_counts_are_stored(stored: Callable[[AckState], AckState]) -> None:
    state = new_state()
    assert state.redelivered([(3, 1), (5, 2)])
    assert state.redelivered([(5, 2)])
    found = stored(state)
    assert told(found, [(3, 0), (3, 1), (5, 2)]) == [0, 1, 2]
    assert found.redelivered([(5, 2)])
    assert told(stored(found), [(3, 1), (5, 2)]) == [1, 3]


def test_a_cursor_without_redeliveries_stores_what_it_always_did() -> None:
    state = new_state()
    plain = encode_position(state, {"p": 1}, SETTINGS)
    state.redelivered([(3, 1)])
    assert encode_position(state, {"p": 1}, SETTINGS) != plain
    state.acknowledge([(3, 1)])
    state.reset(BEFORE_ALL)
    assert encode_position(state, {"p": 1}, SETTINGS) == plain
    with_ledger = encode_cursor_info(state, {}, {}, SETTINGS, 1, 9)
    state.redelivered([(3, 1)])
    assert encode_cursor_info(state, {}, {}, SETTINGS, 1, 9) == with_ledger, "the counts are in the ledger"


def test_what_is_acknowledged_is_not_counted() -> None:
    state = new_state((3, 4))
    state.acknowledge([(3, 7)])
    assert not state.redelivered([(3, 4), (3, 7)])
    assert state.redeliveries is None


def test_stored_counts_of_other_entries_hit_nobody() -> None:
    """Acknowledged later than the record tells, trimmed, or never there."""
    state = new_state()
    state.redelivered([(3, 1), (3, 6), (5, 0), (5, 1)])
    stored = decode_position(encode_position(state, {}, SETTINGS))
    later = AckState(LedgerList([LedgerRecord(5, 1, 0, 1), LedgerRecord(8, 3, 0, 1)]), (5, -1))
    restore_acks(later, stored)
    assert told(later, [(5, 0), (5, 1), (8, 0), (8, 1)]) == [1, 0, 0, 0]
    marked = new_state((3, 5))
    restore_acks(marked, stored)
    assert told(marked, [(3, 1), (3, 6)]) == [0, 1]


def test_whoever_knows_only_pulsars_fields_reads_the_rest() -> None:
    state = new_state((3, 2))
    state.acknowledge([(3, 4)])
    plain = decode_position(encode_position(state, {"p": 1}, SETTINGS))
    state.redelivered([(3, 5)])
    stored = decode_position(encode_position(state, {"p": 1}, SETTINGS))
    written_again = PositionInfo(ledgerId=stored.ledgerId, entryId=stored.entryId, properties=stored.properties)
    written_again.individualDeletedMessages.extend(stored.individualDeletedMessages)
    written_again.individualDeletedMessageRanges.extend(stored.individualDeletedMessageRanges)
    assert written_again == plain


@pytest.mark.parametrize("field", [b"\xff\xff", b"\x08", CursorAdditions().SerializeToString()])
def test_a_field_that_makes_no_sense_counts_nothing(field: bytes) -> None:
    number = 60_001 << 3 | 2
    tag = bytes([number & 0x7F | 0x80, number >> 7 & 0x7F | 0x80, number >> 14])
    state = new_state((3, 2))
    stored = decode_position(encode_position(state, {}, SETTINGS) + tag + bytes([len(field)]) + field)
    restore_acks(state, stored)
    assert state.redeliveries is None


def test_stored_numbers_are_checked() -> None:
    additions = CursorAdditions()
    ledger = additions.redeliveries.add(ledgerId=3)
    ledger.entryIds.extend([0, 1, 2, 1 << 63])
    ledger.counts.extend([0, REDELIVERIES_MAX + 1, REDELIVERIES_MAX, 1])
    ledger.entryIds.append(4)  # Without a count.
    state = new_state()
    plain = encode_position(state, {}, SETTINGS)
    restore_acks(state, decode_position(plain + additions.SerializeToString()))
    assert told(state, [(3, each) for each in range(5)]) == [0, 0, REDELIVERIES_MAX, 0, 0]
    state.redelivered([(3, 2)])
    assert told(state, [(3, 2)]) == [REDELIVERIES_MAX]


def test_the_highest_counts_are_stored_and_no_more_than_fit() -> None:
    entries = STORED_COUNTS_MAX + 500
    state = new_state(entries=entries)
    everything = [(ledger_id, entry_id) for ledger_id in LEDGERS for entry_id in range(entries)]
    state.redelivered(everything)
    state.redelivered(everything[-700:])
    record = encode_position(state, {}, SETTINGS)
    assert len(record) < 140 * KIB
    found = new_state(entries=entries)
    restore_acks(found, decode_position(record))
    assert found.redeliveries is not None
    assert len(found.redeliveries) == STORED_COUNTS_MAX
    assert told(found, everything[-700:]) == [2] * 700
    assert told(found, everything[:1]) == [1]
    again = found.redeliveries.highest(3)
    assert len(again) == 3
    assert {times for _, times in again} == {2}


def test_what_is_counted_is_bounded() -> None:
    counts = RedeliveryCounts()
    counts.increment(EVERYWHERE[:5])
    counts.increment(EVERYWHERE[:5])
    most = COUNTED_ENTRIES_MAX + COUNTED_ENTRIES_SPARE
    counts.increment([(7, entry_id) for entry_id in range(most - 5)])
    assert len(counts) == most
    counts.increment([(8, 0)])
    assert len(counts) == COUNTED_ENTRIES_MAX
    assert counts.of([Entry(*position, b"") for position in EVERYWHERE[:5]]) == [2] * 5


def test_a_mark_that_jumps_takes_counts_with_it_in_the_end() -> None:
    state = new_state()
    state.redelivered(EVERYWHERE[:3])
    assert state.redeliveries is not None
    for entry_id in range(3):
        state.acknowledge_cumulative((3, 10 + entry_id))
    assert len(state.redeliveries) == 0
    assert encode_position(state, {}, SETTINGS) == encode_position(new_state((3, 12)), {}, SETTINGS)


def test_the_stored_form_is_made_once() -> None:
    state = new_state()
    state.redelivered([(3, 9)])
    encode_position(state, {}, SETTINGS)
    assert state.redeliveries is not None
    made = state.redeliveries.stored_form
    assert made
    state.acknowledge([(3, 0), (3, 1)])
    encode_position(state, {}, SETTINGS)
    assert state.redeliveries.stored_form is made, "others were acknowledged"
    state.acknowledge([(3, 9)])
    encode_position(state, {}, SETTINGS)
    assert state.redeliveries.stored_form == b""


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["again", "again", "ack", "cumulative", "ledger", "node", "reset"]),
        st.integers(0, len(EVERYWHERE) - 1),
    ),
    max_size=60,
)


@given(STEPS)
def test_counts_are_what_was_asked_since_and_no_more(steps: list[tuple[str, int]]) -> None:
    """Over any acknowledgements, seeks and changes of owner: an entry that is to be delivered says how often it was
    asked for."""
    state = new_state()
    twin: dict[Position, int] = {}
    for action, number in steps:
        position = EVERYWHERE[number]
        if action == "again":
            expected = not state.is_acknowledged(position)
            assert state.redelivered([position]) == expected
            if expected:
                twin[position] = twin.get(position, 0) + 1
        elif action == "ack":
            state.acknowledge([position])
        elif action == "cumulative":
            state.acknowledge_cumulative(position)
        elif action == "reset":
            state.reset((position[0], position[1] - 1))
            twin.clear()
        else:
            state = through_a_ledger(state) if action == "ledger" else through_the_node(state)
        left = [each for each in EVERYWHERE if not state.is_acknowledged(each)]
        twin = {each: times for each, times in twin.items() if not state.is_acknowledged(each)}
        assert told(state, left) == [twin.get(each, 0) for each in left]
        assert state.redeliveries is None or len(state.redeliveries) <= len(EVERYWHERE)


def test_forgetting_costs_in_proportion() -> None:
    """A mark that moves entry by entry below many counts does not look at all of them each time."""
    looked = count()

    class Counted(dict[Position, int]):
        def items(self):  # type: ignore[no-untyped-def]
            next(looked)
            return super().items()

    counts = RedeliveryCounts()
    counts.increment([(9, entry_id) for entry_id in range(1_000)])
    counts._counts = Counted(counts._counts)
    for entry_id in range(2_000):
        counts.mark_moved((3, entry_id))
    assert next(looked) == 2


def test_the_entry_at_the_mark_is_forgotten_with_those_before_it() -> None:
    """Everything up to the mark is acknowledged, itself included."""
    counts = RedeliveryCounts()
    counts.increment([(3, 4), (3, 5), (3, 6)])
    counts.mark_moved((3, 5))
    counts.forget_up_to((3, 5))
    assert counts.highest(10) == [((3, 6), 1)]
