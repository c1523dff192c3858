"""What transactions hold of a subscription, and the records that say so: pure."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from magnetar.broker.transactions import pending_state
from magnetar.broker.transactions.pending_handle import PENDING_ACK_TRANSITIONS, PendingAckState
from magnetar.broker.transactions.pending_index import TrimPoints
from magnetar.broker.transactions.pending_log import log_name
from magnetar.broker.transactions.pending_records import (
    AckedEntry,
    BadPendingAckRecord,
    PendingAckOperation,
    PendingAckRecord,
    decode_records,
    encode_batch,
    encode_record,
)
from magnetar.broker.transactions.pending_state import WHOLE, CumulativeAck, HeldAcknowledgements, held_entry
from magnetar.core.errors import Misuse
from magnetar.core.ids import Position
from magnetar.core.topic_name import TopicName
from magnetar.managed.entry_bitmap import words_of

ACK, COMMIT, ABORT = PendingAckOperation.ACK, PendingAckOperation.COMMIT, PendingAckOperation.ABORT
FIRST, SECOND, THIRD = (3, 9), (3, 10), (0, 1)


class Cursor:
    """What a cursor has acknowledged."""

    def __init__(self, mark: Position = (7, -1), acknowledged: frozenset[Position] = frozenset()) -> None:
        self.mark_delete = mark
        self.acknowledged = set(acknowledged)
        self.left: dict[Position, list[int]] = {}

    def is_acknowledged(self, position: Position) -> bool:
        return position <= self.mark_delete or position in self.acknowledged

    def remaining_ack_set(self, position: Position) -> list[int] | None:
        return self.left.get(position)


def part(entry_id: int, bits: int, size: int = 10) -> pending_state.HeldEntry:
    """The acknowledgement of these messages of a batch."""
    return held_entry(AckedEntry((7, entry_id), words_of(((1 << size) - 1) & ~bits) or [0], size))


def whole(entry_id: int) -> pending_state.HeldEntry:
    return held_entry(AckedEntry((7, entry_id), (), 0))


# --- records


INDIVIDUAL = PendingAckRecord(
    ACK, FIRST, cumulative=False, entries=[AckedEntry((7, 300), (-2, 5), 70), AckedEntry((8, 0), (), 0)]
)
COMMITTED = PendingAckRecord(COMMIT, FIRST, cumulative=False, entries=[])

WRITTEN_BY_APACHE = {
    "08011000180920032a14080710ac0218feffffffffffffffff01180520462a06080810002000": [INDIVIDUAL],
    "080110011800200f2a06080710011806": [
        PendingAckRecord(ACK, (15, 0), cumulative=True, entries=[AckedEntry((7, 1), (6,), 0)])
    ],
    "0802100018092003": [COMMITTED],
    "0803100118092003": [PendingAckRecord(ABORT, FIRST, cumulative=True, entries=[])],
    "0e0100010a2608011000180920032a14080710ac0218feffffffffffffffff01180520462a060808100020000a080802100018092003": [
        INDIVIDUAL,
        COMMITTED,
    ],
}
"""Entries that Apache Pulsar 4.0.8's own classes have written, and what they say."""


@pytest.mark.parametrize("written", WRITTEN_BY_APACHE)
def test_records_are_apaches_byte_for_byte(written: str) -> None:
    records = WRITTEN_BY_APACHE[written]
    data = bytes.fromhex(written)
    assert decode_records(data) == records
    assert (encode_record(records[0]) if len(records) == 1 else encode_batch(records)) == data


entries = st.builds(
    AckedEntry,
    st.tuples(st.integers(0, 2**62), st.integers(0, 2**62)),
    st.lists(st.integers(-(2**63), 2**63 - 1), max_size=3).map(tuple),
    st.integers(0, 2**31 - 1),
)
records = st.builds(
    PendingAckRecord,
    st.sampled_from(PendingAckOperation),
    st.tuples(st.integers(0, 2**62), st.integers(0, 2**62)),
    st.booleans(),
    st.lists(entries, max_size=3),
)


@given(st.lists(records, max_size=4))
def test_records_come_back(several: list[PendingAckRecord]) -> None:
    known = [
        each._replace(entries=[one._replace(batch_size=0) for one in each.entries]) if each.cumulative else each
        for each in several
    ]
    assert decode_records(encode_batch(several)) == known
    for given_one, one in zip(several, known, strict=True):
        assert decode_records(encode_record(given_one)) == [one]


@given(st.binary(max_size=40))
def test_what_is_no_record_is_told(data: bytes) -> None:
    try:
        decode_records(data)
    except BadPendingAckRecord:
        return


@pytest.mark.parametrize("data", [b"", b"\x0e\x01\x00\x01\xff", b"\x08\x07", b"\x08\x01\x2a\x02\x08\x01"])
def test_damaged_records_are_refused(data: bytes) -> None:
    with pytest.raises(BadPendingAckRecord):
        decode_records(data)


@pytest.mark.parametrize(
    ("topic", "subscription", "name"),
    [
        ("persistent://public/default/t", "s", "public/default/persistent/t-s__transaction_pending_ack"),
        (
            "persistent://public/default/t-partition-3",
            "a b%",
            "public/default/persistent/t-partition-3-a+b%25__transaction_pending_ack",
        ),
        # What Apache's parser of topic names makes of it: tenant, cluster, namespace, topic.
        ("persistent://public/default/t", "a/b", "public/default/t-a/persistent/b__transaction_pending_ack"),
    ],
)
def test_the_log_is_called_as_by_apache(topic: str, subscription: str, name: str) -> None:
    assert log_name(TopicName.parse(topic), subscription) == name


# --- conflicts


def test_an_entry_is_held_by_one_transaction() -> None:
    held, cursor = HeldAcknowledgements(), Cursor()
    assert not held.conflict([whole(1)], cursor)
    held.hold(FIRST, [whole(1)])
    assert held.conflict([whole(1)], cursor)
    assert held.conflict([part(1, 0b1)], cursor)
    assert held.entries == {(7, 1): WHOLE}
    held.release(held.transactions[FIRST].records[0])
    held.forget(FIRST)
    assert not held.conflict([whole(1)], cursor)
    assert not held.entries


def test_messages_of_a_batch_are_held_one_by_one() -> None:
    held, cursor = HeldAcknowledgements(), Cursor()
    held.hold(FIRST, [part(1, 0b11)])
    assert held.conflict([part(1, 0b10)], cursor)
    assert held.conflict([whole(1)], cursor)
    assert not held.conflict([part(1, 0b100)], cursor)
    held.hold(SECOND, [part(1, 0b100)])
    assert held.entries == {(7, 1): 0b111}
    held.release(held.transactions[FIRST].records[0])
    assert held.entries == {(7, 1): 0b100}


def test_what_is_acknowledged_is_a_conflict() -> None:
    held, cursor = HeldAcknowledgements(), Cursor(acknowledged=frozenset({(7, 2)}))
    cursor.left[7, 3] = [0b11_1111_1110]
    assert held.conflict([whole(2)], cursor)
    assert held.conflict([part(3, 0b1)], cursor)
    assert not held.conflict([part(3, 0b10)], cursor)


def test_an_ack_set_of_zeros_is_every_message() -> None:
    assert held_entry(AckedEntry((7, 1), (0,), 3)).bits == 0b111
    assert held_entry(AckedEntry((7, 1), (0,), 0)).bits == WHOLE
    # Java leaves out zero words at the end: here the last 6 of 70 messages are acknowledged.
    assert held_entry(AckedEntry((7, 1), (-1,), 70)).bits == 0b111111 << 64
    assert held_entry(AckedEntry((7, 1), (0b101,), 0)).bits == 0b10


def test_no_client_has_us_make_a_bit_set_of_any_size() -> None:
    assert held_entry(AckedEntry((7, 1), (1,), 2**31 - 1)).bits.bit_length() <= pending_state.BATCH_MESSAGES_MAX


def test_one_transaction_acknowledges_cumulatively() -> None:
    held, cursor = HeldAcknowledgements(), Cursor(mark=(7, 4))
    assert held.cumulative_conflict(CumulativeAck(FIRST, (7, 4), 0), cursor)
    held.hold_cumulative(CumulativeAck(FIRST, (7, 6), 0b1100))
    assert held.cumulative_conflict(CumulativeAck(SECOND, (7, 9), 0), cursor)
    assert held.cumulative_conflict(CumulativeAck(FIRST, (7, 6), 0b1100), cursor)
    assert not held.cumulative_conflict(CumulativeAck(FIRST, (7, 6), 0b1000), cursor)
    assert not held.cumulative_conflict(CumulativeAck(FIRST, (7, 6), 0), cursor)
    assert held.cumulative_conflict(CumulativeAck(FIRST, (7, 5), 0), cursor)
    held.forget(SECOND)
    assert held.cumulative is not None
    held.forget(FIRST)
    assert held.cumulative is None


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pending_state, "HELD_ENTRIES_MAX", 3)
    monkeypatch.setattr(pending_state, "HELD_WORDS_MAX", 2)
    held = HeldAcknowledgements()
    assert held.has_room([whole(1), whole(2), whole(3)])
    assert not held.has_room([whole(1), whole(2), whole(3), whole(4)])
    held.hold(FIRST, [part(1, 1), part(2, 1)])
    assert not held.has_room([part(3, 1)])
    assert held.has_room([whole(3)])
    held.release(held.transactions[FIRST].records[0])
    assert held.has_room([part(1, 1), part(2, 1)])


def test_transactions_below_the_low_water_mark_are_left_behind() -> None:
    held = HeldAcknowledgements()
    for number in (4, 5, 6):
        held.hold((3, number), [whole(number)])
    held.hold((8, 1), [whole(8)])
    held.hold_cumulative(CumulativeAck((3, 2), (7, 1), 0))
    held.low_water_mark(3, -1)
    assert held.left_behind() == []
    held.low_water_mark(3, 5)
    held.low_water_mark(3, 0)
    assert held.left_behind() == [(3, 2), (3, 4), (3, 5)]
    assert held.low_water_marks == {3: 5}


def test_ends_are_remembered_within_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pending_state, "ENDED_KEPT", 3)
    held = HeldAcknowledgements()
    for number in (4, 5, 6, 7):
        assert not held.has_ended((3, number))
        held.note_ended((3, number))
    assert [held.has_ended((3, number)) for number in range(4, 9)] == [False, True, True, True, False]
    held.clear()
    assert held.has_ended((3, 7))
    # What a low-water mark tells of takes no room.
    held.low_water_mark(3, 6)
    held.note_ended((8, 1))
    assert list(held._ended) == [(3, 7), (8, 1)]
    assert held.has_ended((3, 4))
    held.low_water_mark(3, 9)
    held.low_water_mark(8, 1)
    held.note_ended((3, 9))
    assert not held._ended
    assert held.has_ended((3, 9))
    assert not held.has_ended((8, 2))


# --- what is held, by a model

MOVES = st.lists(
    st.tuples(
        st.sampled_from([FIRST, SECOND, THIRD]),
        st.sampled_from(["ack", "end"]),
        st.lists(st.tuples(st.integers(0, 3), st.integers(0, 0b111)), min_size=1, max_size=3),
    ),
    max_size=25,
)


@given(MOVES)
def test_bits_are_held_exactly_by_who_acknowledged_them(
    moves: list[tuple[Position, str, list[tuple[int, int]]]],
) -> None:
    """Against sets of (entry, message): 0 stands for the entry as a whole, which is all three."""
    held, cursor = HeldAcknowledgements(), Cursor()
    model: dict[Position, set[tuple[int, int]]] = {}
    for transaction, move, asked in moves:
        if move == "end":
            for record in held.transactions[transaction].records if transaction in held.transactions else ():
                held.release(record)
            held.forget(transaction)
            model.pop(transaction, None)
        else:
            wanted = [whole(entry) if not bits else part(entry, bits, 3) for entry, bits in asked]
            messages = {(entry, index) for entry, bits in asked for index in range(3) if not bits or bits >> index & 1}
            taken = set().union(*model.values())
            assert bool(held.conflict(wanted, cursor)) is bool(messages & taken)
            if not messages & taken:
                held.hold(transaction, wanted)
                model.setdefault(transaction, set()).update(messages)
        shown = {
            (position[1], index)
            for position, bits in held.entries.items()
            for index in range(3)
            if bits < 0 or bits >> index & 1
        }
        assert shown == set().union(*model.values())
        assert set(held.transactions) == set(model)


# --- replay


def test_replay_holds_what_is_open_and_names_what_is_ended() -> None:
    held, cursor = HeldAcknowledgements(), Cursor()
    one = PendingAckRecord(ACK, FIRST, cumulative=False, entries=[AckedEntry((7, 1), (), 0), AckedEntry((7, 2), (), 0)])
    again = [AckedEntry((7, 2), (), 0), AckedEntry((7, 3), (), 0)]
    refused = PendingAckRecord(ACK, SECOND, cumulative=False, entries=again)
    assert held.replay(one, cursor, lambda _: True) is None
    assert held.replay(refused, cursor, lambda _: True) is None
    assert set(held.entries) == {(7, 1), (7, 2)}
    assert (held.open_transactions, len(held.transactions)) == (1, 2)
    # A refused record is there, too, and its transaction is to be ended; nothing of the first one is let go.
    assert held.replay(PendingAckRecord(ABORT, SECOND, cumulative=False), cursor, lambda _: True) == SECOND
    assert held.transactions[SECOND].records == []
    assert held.replay(PendingAckRecord(COMMIT, FIRST, cumulative=False), cursor, lambda _: True) == FIRST
    assert held.replay(PendingAckRecord(COMMIT, THIRD, cumulative=False), cursor, lambda _: True) is None


def test_replay_leaves_out_what_is_acknowledged_or_gone() -> None:
    """A commit of which the cursor stored a part before the crash: the rest is held until the commit is replayed."""
    held, cursor = HeldAcknowledgements(), Cursor(mark=(7, 1))
    acks = [AckedEntry((7, entry), (), 0) for entry in (1, 2, 99)]
    held.replay(PendingAckRecord(ACK, FIRST, cumulative=False, entries=acks), cursor, lambda position: position[1] < 50)
    assert held.entries == {(7, 2): WHOLE}


@pytest.mark.parametrize(
    ("acks", "held_then"),
    [
        ([(FIRST, 4, ())], None),
        ([(FIRST, 6, (0b100,)), (SECOND, 8, ())], CumulativeAck(FIRST, (7, 6), 0b100)),
        ([(FIRST, 6, (0b100,)), (FIRST, 7, ())], CumulativeAck(FIRST, (7, 7), 0)),
    ],
)
def test_replay_of_cumulative_acknowledgements(
    acks: list[tuple[Position, int, tuple[int, ...]]], held_then: CumulativeAck | None
) -> None:
    held, cursor = HeldAcknowledgements(), Cursor(mark=(7, 4))
    for transaction, entry_id, words in acks:
        entry = AckedEntry((7, entry_id), words, 0)
        held.replay(PendingAckRecord(ACK, transaction, cumulative=True, entries=[entry]), cursor, lambda _: True)
    assert held.cumulative == held_then
    ended = held.replay(PendingAckRecord(COMMIT, FIRST, cumulative=True), cursor, lambda _: True)
    assert ended == (None if held_then is None else FIRST)


# --- trimming


def acked(*entry_ids: int) -> list[PendingAckRecord]:
    return [
        PendingAckRecord(ACK, FIRST, cumulative=False, entries=[AckedEntry((7, each), (), 0) for each in entry_ids])
    ]


def test_the_log_is_trimmed_where_the_mark_has_passed() -> None:
    points = TrimPoints(2)
    points.appended(acked(5), (1, 0))
    assert not points.due((7, 99))
    points.appended(acked(3), (1, 1))
    assert list(points.points) == [((7, 5), (1, 1))]
    assert not points.due((7, 4))
    assert points.trimmed_up_to((7, 4)) is None
    assert points.due((7, 5))
    assert points.trimmed_up_to((7, 5)) == (1, 1)
    assert points.trimmed_up_to((7, 5)) is None


def test_points_are_further_apart_the_more_there_are() -> None:
    points = TrimPoints(10)
    for number in range(10_000):
        points.appended(acked(number), (1, number))
    assert 30 < len(points.points) < 60


def test_ends_make_no_point_and_a_point_of_the_same_mark_moves_on() -> None:
    points = TrimPoints(1)
    points.appended([COMMITTED], (1, 0))
    assert not points.points
    points.appended(acked(5), (1, 1))
    points.appended(acked(2), (1, 2))
    assert list(points.points) == [((7, 5), (1, 2))]


def test_every_change_of_state_is_in_the_table() -> None:
    legal = {
        "NEW": {"REPLAYING", "CLOSED"},
        "REPLAYING": {"READY", "FAILED", "CLOSED"},
        "READY": {"FAILED", "CLOSED"},
        "FAILED": {"FAILED", "REPLAYING", "CLOSED"},
        "CLOSED": {"CLOSED"},
    }
    for before in PendingAckState:
        for after in PendingAckState:
            if after.name in legal[before.name]:
                assert PENDING_ACK_TRANSITIONS.step(before, after) is after
            else:
                with pytest.raises(Misuse):
                    PENDING_ACK_TRANSITIONS.step(before, after)


HISTORY = st.lists(
    st.tuples(st.sampled_from(["hold", "cumulative", "forget", "mark"]), st.integers(0, 1), st.integers(0, 9)),
    max_size=60,
)


@given(HISTORY)
def test_what_coordinators_have_forgotten_is_found(history: list[tuple[str, int, int]]) -> None:
    """As by looking at all of them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pending_state, "NUMBERS_KEPT", 2)
        held = HeldAcknowledgements()
        for entry_id, (step, coordinator, number) in enumerate(history):
            transaction = (coordinator, number)
            if step == "hold":
                held.hold(transaction, [pending_state.HeldEntry((1, entry_id), WHOLE, 0, 0)])
            elif step == "cumulative" and (held.cumulative is None or held.cumulative.transaction == transaction):
                held.hold_cumulative(CumulativeAck(transaction, (1, entry_id), 0))
            elif step == "forget":
                held.forget(transaction)
            elif step == "mark":
                held.low_water_mark(coordinator, number - 1)
            known = set(held.transactions) | ({held.cumulative.transaction} if held.cumulative else set())
            marks = held.low_water_marks
            wanted = sorted(one for one in known if one[0] in marks and one[1] <= marks[one[0]])
            assert sorted(held.left_behind()) == wanted
            assert sum(map(len, held._numbers.values())) <= 2 * (3 + 2 * len(known) + 2)


def test_open_at_two_looks() -> None:
    held = HeldAcknowledgements()
    held.hold((0, 1), [pending_state.HeldEntry((1, 1), WHOLE, 0, 0)])
    held.hold((0, 2), [pending_state.HeldEntry((1, 2), WHOLE, 0, 0)])
    assert held.still_open() == []
    held.hold_cumulative(CumulativeAck((0, 3), (1, 3), 0))
    assert held.still_open() == [(0, 1)]
    held.forget((0, 1))
    assert held.still_open() == [(0, 3)]
    assert held.still_open() == [(0, 2), (0, 3)]


def test_a_log_that_begins_anew_says_the_same() -> None:
    held = HeldAcknowledgements()
    first = held_entry(AckedEntry((1, 1), [0b110], 3))
    held.hold((0, 1), [first, held_entry(AckedEntry((1, 2), (), 0))])
    held.hold((0, 1), [held_entry(AckedEntry((1, 3), [0b10], 0))])
    held.hold((0, 2), [held_entry(AckedEntry((1, 1), [0b101], 3))])
    held.hold_cumulative(CumulativeAck((0, 3), (1, 9), 0b100))
    again = HeldAcknowledgements()
    for record in held.records():
        assert again.replay(record, Cursor((0, -1)), lambda _: True) is None
    assert (again.entries, again.sizes, again.cumulative) == (held.entries, held.sizes, held.cumulative)
    assert {one: acks.records for one, acks in again.transactions.items()} == {
        one: acks.records for one, acks in held.transactions.items()
    }


def test_points_are_near_again_once_they_are_used_up() -> None:
    """Or a subscription that once stood still would keep a long log for ever."""
    points = TrimPoints(10)
    for number in range(1_000):
        points.appended(acked(number), (1, number))
    assert points.trimmed_up_to((7, 999)) is not None
    assert not points.points
    for number in range(1_000, 1_020):
        points.appended(acked(number), (1, number))
    assert points.points


def test_the_size_of_a_batch_stays_known_when_another_acknowledgement_does_not_tell_it() -> None:
    held = HeldAcknowledgements()
    held.hold((0, 1), [held_entry(AckedEntry((7, 1), words_of(0b1110), 4))])
    held.hold((0, 2), [held_entry(AckedEntry((7, 1), words_of(0b1101), 0))])
    assert held.sizes == {(7, 1): 4}
