"""The records of a coordinator's log, and the table that they make."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from magnetar.broker.states import TransactionState
from magnetar.broker.transactions.coordinator_table import PURGED_FROM, LogPlace, TransactionTable
from magnetar.broker.transactions.names import TransactionId
from magnetar.broker.transactions.records import (
    Stamp,
    last_sequence_of,
    last_sequence_said,
    opened,
    partitions_added,
    state_changed,
    subscriptions_added,
)
from magnetar.wire.pulsar.errors import PulsarError, ServerError
from magnetar.wire.pulsar.transaction_log import BadTransactionRecord, Record, decode, encode, encode_batch

STAMP = Stamp(now_ms=1_700_000_000_123, last_sequence=301)
ID = TransactionId(3, 300)
A, B = "persistent://t/n/a", "persistent://t/n/b-partition-1"
OPEN, COMMITTING, COMMITTED = TransactionState.OPEN, TransactionState.COMMITTING, TransactionState.COMMITTED
ABORTING, ABORTED = TransactionState.ABORTING, TransactionState.ABORTED

RECORDS = {
    "new": opened(ID, 60_000, "alice", STAMP),
    "partitions": partitions_added(ID, [A, B], STAMP),
    "subscriptions": subscriptions_added(ID, [(A, "s")], STAMP),
    "update": state_changed(ID, OPEN, COMMITTING, STAMP),
}


@pytest.mark.parametrize(
    ("record", "stored"),
    [
        ("new", "080010ac02180340e0d40348fbd095ffbc3150fbd095ffbc3158ad026205616c696365"),
        (
            "partitions",
            "080110ac021803321270657273697374656e743a2f2f742f6e2f61321e70657273697374656e743a2f2f742f6e2f622d706172746974"
            "696f6e2d3150fbd095ffbc3158ad02",
        ),
        ("subscriptions", "080210ac0218033a170a1270657273697374656e743a2f2f742f6e2f6112017350fbd095ffbc3158ad02"),
        ("update", "080310ac0218032000280150fbd095ffbc3158ad02"),
    ],
)
def test_a_record_has_the_bytes_that_apaches_coordinator_writes(record: str, stored: str) -> None:
    # Written by the classes of Apache Pulsar 4.0.8.
    assert encode(RECORDS[record]).hex() == stored
    assert decode(bytes.fromhex(stored)) == [RECORDS[record]]


def test_several_records_in_one_entry_as_apaches_coordinator_writes_them() -> None:
    stored = bytes.fromhex(
        "0e0100010a15080310ac0218032000280150fbd095ffbc3158ad020a45080110ac021803321270657273697374656e743a2f2f742f6e2f61"
        "321e70657273697374656e743a2f2f742f6e2f622d706172746974696f6e2d3150fbd095ffbc3158ad02"
    )
    records = [RECORDS["update"], RECORDS["partitions"]]
    assert encode_batch(records) == stored
    assert decode(stored) == records
    assert last_sequence_of(stored) == 301


@pytest.mark.parametrize("owner", ["", "alice"])
def test_only_a_client_with_a_role_owns_its_transaction(owner: str) -> None:
    assert opened(ID, 1, owner, STAMP).HasField("owner") is bool(owner)


def test_a_timeout_beyond_a_java_long_ends_there() -> None:
    record = opened(ID, (1 << 64) - 1, "", STAMP)
    assert record.timeout_ms + record.start_time == (1 << 63) - 1


@pytest.mark.parametrize(
    "data",
    [b"\xff", b"\x0e\x01\x00\x01\xff", b"", b"\x10\x05", bytes([8, 9, 16, 5]), b"\x0e\x01\x00\x01\x0a\x00"],
    ids=["torn", "torn batch", "empty", "no operation", "an operation of a later version", "an empty one of a batch"],
)
def test_what_is_no_record_is_told(data: bytes) -> None:
    with pytest.raises(BadTransactionRecord):
        decode(data)


@pytest.mark.parametrize("field", ["owner", "partitions", "topic", "subscription"])
def test_a_text_that_is_no_text_is_told(field: str) -> None:
    """Protobuf would give it as bytes."""
    texts = {"owner": "alice", "partitions": "a-topic", "topic": "another", "subscription": "a-name"}
    record = opened(ID, 1, texts["owner"], STAMP)
    record.partitions.append(texts["partitions"])
    record.subscriptions.add(topic=texts["topic"], subscription=texts["subscription"])
    text = texts[field].encode()
    for data in (encode(record), encode_batch([record])):
        assert len(decode(data)) == 1
        with pytest.raises(BadTransactionRecord, match="no UTF-8"):
            decode(data.replace(text, b"\xff" + text[1:]))


@pytest.mark.parametrize("text", ["", "a", "-2", "1.5", str(2**63 - 1), "9" * 5000])
def test_a_last_id_that_is_none_is_told(text: str) -> None:
    assert last_sequence_said({}) == -1
    assert last_sequence_said({"max_local_txn_id": "41"}) == 41
    with pytest.raises(BadTransactionRecord, match="max_local_txn_id"):
        last_sequence_said({"max_local_txn_id": text})


@given(st.binary(max_size=80))
def test_any_bytes_are_records_or_told(data: bytes) -> None:
    try:
        for record in decode(data):
            assert record.HasField("metadata_op")
    except BadTransactionRecord:
        pass


# --- the table


def table_of(*records: Record, last_sequence: int = -1) -> tuple[TransactionTable, list[int]]:
    """The table after these records, and the places (numbers of records) that were given up, in order."""
    table = TransactionTable(3, last_sequence)
    done: list[int] = []
    for number, record in enumerate(records):
        done += [place.position[1] for place in table.apply(LogPlace((1, number)), record).done]
    return table, done


def of(sequence: int, timeout_ms: int = 60_000) -> Record:
    """A new transaction."""
    return opened(TransactionId(3, sequence), timeout_ms, "", Stamp(5, sequence))


def to(sequence: int, before: TransactionState, after: TransactionState, last: int = 0) -> Record:
    """A change of state."""
    return state_changed(TransactionId(3, sequence), before, after, Stamp(6, last))


def test_a_transaction_is_what_its_records_say() -> None:
    table, done = table_of(*RECORDS.values())
    found = table.get(300)
    assert done == []
    assert (found.id, found.owner, found.state) == (ID, "alice", COMMITTING)
    assert (found.started_ms, found.timeout_ms, found.expires_ms) == (STAMP.now_ms, 60_000, STAMP.now_ms + 60_000)
    assert list(found.partitions) == [A, B]
    assert list(found.subscriptions) == [(A, "s")]
    assert found.names_characters == len(A) + len(B) + len(A) + 1
    assert table.last_sequence == 301
    assert table.next_id() == TransactionId(3, 302)


@pytest.mark.parametrize(("going", "gone"), [(COMMITTING, COMMITTED), (ABORTING, ABORTED)])
def test_all_records_of_what_is_over_are_given_up(going: TransactionState, gone: TransactionState) -> None:
    table, done = table_of(of(0), of(1), to(0, OPEN, going), partitions_added(TransactionId(3, 1), [A], STAMP))
    assert done == []
    table, done = table_of(of(0), of(1), to(0, OPEN, going), to(0, going, gone))
    assert done == [0, 2, 3]
    assert [one.id.sequence for one in table] == [1]
    with pytest.raises(PulsarError) as refused:
        table.get(0)
    assert refused.value.code is ServerError.TRANSACTION_NOT_FOUND


@pytest.mark.parametrize(
    "late",
    [
        partitions_added(TransactionId(3, 0), [A], STAMP),
        subscriptions_added(TransactionId(3, 0), [(A, "s")], STAMP),
        to(0, OPEN, ABORTING),
        to(0, COMMITTING, ABORTED),
        to(0, OPEN, COMMITTED),
    ],
)
def test_a_record_that_comes_too_late_counts_for_nothing(late: Record) -> None:
    table, done = table_of(of(0), to(0, OPEN, COMMITTING), late)
    assert done == [2]
    found = table.get(0)
    assert (found.state, len(found.partitions), len(found.subscriptions)) == (COMMITTING, 0, 0)


def test_records_of_a_transaction_that_is_not_there_are_given_up() -> None:
    _, done = table_of(
        partitions_added(ID, [A], STAMP), subscriptions_added(ID, [(A, "s")], STAMP), to(300, OPEN, ABORTING)
    )
    assert done == [0, 1, 2]


def test_a_second_new_of_the_same_id_changes_nothing() -> None:
    table, done = table_of(of(0), partitions_added(TransactionId(3, 0), [A], STAMP), of(0, 1), to(0, OPEN, ABORTING))
    assert done == []
    assert table.get(0).timeout_ms == 60_000
    table, done = table_of(of(0), of(0), to(0, OPEN, ABORTING), to(0, ABORTING, ABORTED))
    assert done == [0, 1, 2, 3]


def test_the_low_water_mark_is_before_the_oldest_one_that_is_not_over() -> None:
    # Seen at Apache's 4.0.8: 0 when none is left, 2 with 3 alone.
    table, _ = table_of()
    assert table.low_water_mark == 0
    ended = [to(1, OPEN, ABORTING), to(1, ABORTING, ABORTED)]
    assert table_of(of(0))[0].low_water_mark == -1
    assert table_of(of(1), of(2), of(3))[0].low_water_mark == 0
    assert table_of(of(1), of(2), of(3), *ended)[0].low_water_mark == 1
    assert table_of(of(1), *ended)[0].low_water_mark == 0
    assert table_of(of(1), *ended, of(3))[0].low_water_mark == 2
    # Whatever order a log has them in.
    assert table_of(of(5), of(2))[0].low_water_mark == 1


def test_ids_go_on_behind_everything_that_was_ever_given() -> None:
    assert table_of()[0].next_id().sequence == 0
    assert table_of(last_sequence=7)[0].next_id().sequence == 8
    assert table_of(of(9), last_sequence=7)[0].next_id().sequence == 10
    # The id of a NEW that was never stored is in later records.
    assert table_of(of(3), to(3, OPEN, ABORTING, last=12))[0].next_id().sequence == 13


def test_a_long_transaction_does_not_keep_the_ids_of_all_that_end_meanwhile() -> None:
    table, _ = table_of(of(0))
    for sequence in range(1, 20_000):
        for number, record in enumerate((of(sequence), to(sequence, OPEN, ABORTING), to(sequence, ABORTING, ABORTED))):
            table.apply(LogPlace((1, number)), record)
        assert table.low_water_mark == -1
    assert len(table._ids) <= PURGED_FROM
    table.apply(LogPlace((2, 0)), of(20_000))
    table.apply(LogPlace((2, 1)), to(0, OPEN, ABORTING))
    table.apply(LogPlace((2, 2)), to(0, ABORTING, ABORTED))
    assert table.low_water_mark == 19_999


def test_ids_of_many_open_transactions_are_not_looked_through_each_time() -> None:
    table, _ = table_of(*(of(sequence) for sequence in range(PURGED_FROM + 1)))
    heap = table._ids
    for sequence in range(PURGED_FROM + 1, 2 * PURGED_FROM):
        table.apply(LogPlace((1, sequence)), of(sequence))
    assert table._ids is heap, "one and the same heap: it was not made anew"
    assert len(heap) == 2 * PURGED_FROM


def test_names_of_what_is_over_take_no_room_any_more() -> None:
    """Or a coordinator would refuse all transactions at last."""
    added = [partitions_added(TransactionId(3, 0), [A, B], STAMP), partitions_added(TransactionId(3, 1), [A], STAMP)]
    table, _ = table_of(of(0), of(1), *added)
    assert table.names_characters == 2 * len(A) + len(B)
    table, _ = table_of(of(0), of(1), *added, to(0, OPEN, COMMITTING), to(0, COMMITTING, COMMITTED))
    assert table.names_characters == len(A)
