"""What a topic knows of its transactions, its markers, and the bytes of snapshots."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest
from fastavro import parse_schema, schemaless_reader, schemaless_writer
from hypothesis import given
from hypothesis import strategies as st
from magnetar.broker.transactions.buffers.buffer_table import BufferTable
from magnetar.broker.transactions.buffers.markers import end_marker
from magnetar.broker.transactions.buffers.snapshot_codec import (
    SINGLE,
    Aborted,
    BadSnapshot,
    Snapshot,
    SnapshotReading,
    aborted_block,
    decode_other,
    encode_snapshot,
    registered_schema,
    schema_text,
)
from magnetar.broker.transactions.buffers.snapshot_codec import (
    parse_schema as parse_snapshot_schema,
)
from magnetar.core.ids import signed64
from magnetar.managed.entry import Entry
from magnetar.wire.pulsar.metadata import checksum_ok, full_metadata, metadata_bounds

from broker.tests.subscription_stage import stored_message

TOPIC = "persistent://public/default/t"

WITH_ABORTED = "02020c0a080600010e023a70657273697374656e743a2f2f7075626c69632f64656661756c742f74"
"""As Apache Pulsar 4.0.8 encodes a snapshot up to 7:-1 with transaction (3,4), whose marker is 5:6."""

WITHOUT_LIST = "00120e023a70657273697374656e743a2f2f7075626c69632f64656661756c742f74"
"""The same up to 7:9, where nobody has set the list."""

unsigned = st.integers(0, 2**64 - 1)
position = st.tuples(st.integers(-1, 2**62), st.integers(-1, 2**31))
aborted_lists = st.lists(st.tuples(st.tuples(unsigned, unsigned), position), max_size=20)


# --- the table


def first_of(table: BufferTable) -> tuple[int, int] | None:
    return table.first_open


def lost_of(table: BufferTable) -> tuple[int, int] | None:
    return table.lost


def test_the_oldest_open_transaction() -> None:
    table = BufferTable()
    assert first_of(table) is None
    assert table.stored((0, 1), (5, 0))
    assert table.stored((0, 2), (5, 1))
    assert not table.stored((0, 1), (5, 2))
    assert first_of(table) == (5, 0)
    table.commit((0, 1))
    assert first_of(table) == (5, 1)
    table.abort((0, 2), (5, 4))
    assert first_of(table) is None
    assert dict(table.aborted) == {(0, 2): (5, 4)}
    # A message that comes too late opens nothing.
    assert not table.stored((0, 2), (5, 5))
    assert first_of(table) is None


def test_what_a_coordinator_has_forgotten() -> None:
    table = BufferTable()
    table.stored((0, 3), (5, 0))
    table.stored((1, 1), (5, 1))
    assert lost_of(table) is None
    table.raise_low_water_mark(1, 9)
    assert lost_of(table) is None
    table.raise_low_water_mark(0, 3)
    assert lost_of(table) == (0, 3)
    table.raise_low_water_mark(0, 2)
    assert table.low_water_marks == {0: 3, 1: 9}
    table.abort((0, 3), (5, 2))
    assert lost_of(table) == (1, 1)
    assert [table.is_over((0, number)) for number in (0, 3, 4)] == [True, True, False]
    assert not table.is_over((2, 0))


def test_aborted_ones_go_with_the_ledger_of_their_newest_marker() -> None:
    table = BufferTable()
    for number, marker in ((1, (3, 0)), (2, (3, 5)), (3, (4, 0)), (1, (4, 1))):
        table.abort((0, number), marker)
    assert table.forget_before(3, 10) == []
    assert table.forget_before(4, 10) == [(0, 2)]
    assert list(table.aborted) == [(0, 3), (0, 1)]
    assert table.forget_before(9, 1) == [(0, 3)]


@pytest.mark.parametrize("bits", [{"txnid_most_bits": 0}, {"txnid_least_bits": 7}])
def test_a_message_with_half_of_an_id_is_of_no_transaction(bits: Any) -> None:
    """It would hide what comes behind it, and nobody would ever end it."""
    table = BufferTable()
    table.take(Entry(5, 0, stored_message(**bits)))
    assert first_of(table) is None
    table.take(Entry(5, 1, stored_message(txnid_most_bits=0, txnid_least_bits=7)))
    assert first_of(table) == (5, 1)


@given(st.lists(st.tuples(st.sampled_from(["store", "commit", "abort"]), st.integers(0, 4)), max_size=40))
def test_any_history(steps: list[tuple[str, int]]) -> None:
    """The same as by looking through the whole history."""
    table = BufferTable()
    first: dict[int, tuple[int, int]] = {}
    aborted: set[int] = set()
    committed: set[int] = set()
    for entry_id, (step, number) in enumerate(steps):
        if step == "store":
            table.stored((0, number), (1, entry_id))
            if number not in aborted | committed:
                first.setdefault(number, (1, entry_id))
            continue
        first.pop(number, None)
        if step == "abort":
            table.abort((0, number), (1, entry_id))
            aborted.add(number)
        else:
            table.commit((0, number))
            committed.add(number)
    assert table.first_open == min(first.values(), default=None)
    assert {bits[1] for bits in table.aborted} == aborted
    assert list(table.aborted.values()) == sorted(table.aborted.values())


# --- markers


@pytest.mark.parametrize(("commit", "kind"), [(True, 21), (False, 22)])
def test_a_marker_is_apaches(*, commit: bool, kind: int) -> None:
    # Markers.newTxnCommitMarker(-1, 3, 4) of Pulsar 4.0.8, but for the time and the checksum that follows from it.
    theirs = f"0a1170756c7361722e74786e2e6d61726b657210ffffffffffffffffff0118e1ba89c8a034a001{kind:02x}b00104b80103"
    marker = end_marker((3, 4), commit=commit, publish_time_ms=1795447479649)
    start, stop = metadata_bounds(marker)
    assert marker[start:stop].hex() == theirs
    assert stop == len(marker)
    assert checksum_ok(marker, 0, len(marker))
    assert full_metadata(marker).marker_type == kind


# --- snapshots


def read(payload: bytes, at_once: int = 3) -> tuple[Snapshot, list[Aborted]]:
    reading = SnapshotReading(payload)
    aborted: list[Aborted] = []
    while some := reading.some(at_once):
        aborted += some
    return reading.rest(), aborted


def test_snapshots_of_apache() -> None:
    snapshot = Snapshot(TOPIC, (7, -1))
    assert encode_snapshot(snapshot, [aborted_block([((3, 4), (5, 6))])]).hex() == WITH_ABORTED
    assert read(bytes.fromhex(WITH_ABORTED)) == (snapshot, [((3, 4), (5, 6))])
    assert read(bytes.fromhex(WITHOUT_LIST)) == (Snapshot(TOPIC, (7, 9)), [])


def test_the_schema_that_is_registered() -> None:
    schema = registered_schema(SINGLE)
    assert json.loads(schema.schema_data)["name"] == "TransactionBufferSnapshot"
    properties: list[Any] = list(schema.properties)
    assert {pair.key: pair.value for pair in properties} == {
        "__alwaysAllowNull": "true",
        "__jsr310ConversionEnabled": "false",
    }


@given(position, aborted_lists, st.integers(1, 7))
def test_snapshots_as_avro_reads_them(reached: tuple[int, int], aborted: list[Aborted], at_once: int) -> None:
    blocks = [aborted_block(aborted[first : first + at_once]) for first in range(0, len(aborted), at_once)]
    payload = encode_snapshot(Snapshot(TOPIC, reached), blocks)
    record: Any = schemaless_reader(io.BytesIO(payload), parse_schema(json.loads(schema_text(SINGLE))), None)
    assert record == {
        "topicName": TOPIC,
        "maxReadPositionLedgerId": reached[0],
        "maxReadPositionEntryId": reached[1],
        "aborts": [
            {
                "txnIdMostBits": signed64(most_bits),
                "txnIdLeastBits": signed64(least_bits),
                "ledgerId": ledger_id,
                "entryId": entry_id,
            }
            for (most_bits, least_bits), (ledger_id, entry_id) in aborted
        ],
    }
    written = io.BytesIO()
    schemaless_writer(written, parse_schema(json.loads(schema_text(SINGLE))), record)
    assert read(payload, at_once) == read(written.getvalue(), at_once) == (Snapshot(TOPIC, reached), aborted)
    assert decode_other(parse_snapshot_schema(schema_text(SINGLE)), payload) == (Snapshot(TOPIC, reached), aborted)


@given(st.binary(max_size=60))
def test_any_bytes_are_a_snapshot_or_told(payload: bytes) -> None:
    try:
        read(payload)
    except BadSnapshot:
        return


@pytest.mark.parametrize("cut", range(len(WITH_ABORTED) // 2))
def test_a_snapshot_that_is_cut_off(cut: int) -> None:
    with pytest.raises(BadSnapshot):
        read(bytes.fromhex(WITH_ABORTED)[:cut])


def test_a_snapshot_of_another_schema() -> None:
    schema = {"type": "record", "name": "Other", "fields": [{"name": "topicName", "type": "string"}]}
    with pytest.raises(BadSnapshot):
        decode_other(parse_snapshot_schema(json.dumps(schema).encode()), b"\x02t")
