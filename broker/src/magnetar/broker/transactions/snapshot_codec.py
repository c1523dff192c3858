"""Snapshots of transaction buffers as Apache's brokers write them to `__transaction_buffer_snapshot`: Avro records.
Pure.

`snapshot*.avsc` are the schemas that Apache Pulsar 4.0 registers, letter by letter, so that both kinds of brokers share
one schema version. A record may list hundreds of thousands of transactions. So it is written and read by hand, some of
them at a time, where a library would do it in one go. Facts: pulsar-broker
`transaction/buffer/metadata/TransactionBufferSnapshot`; Avro 1.11 specification, "Binary Encoding".
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from importlib.resources import files
from typing import Final, NamedTuple, TypeAlias

from magnetar.broker.subscriptions.visibility import TransactionBits
from magnetar.core.errors import PeerError
from magnetar.core.ids import Position, signed64, unsigned64
from magnetar.wire.avro import AvroDecoder, AvroInput, BadAvro, parse_record_schema, read_record
from magnetar.wire.pulsar.generated.pulsar_api_pb2 import KeyValue, Schema

SINGLE: Final = "snapshot"
SEGMENT: Final = "snapshot_segment"
INDEXES: Final = "snapshot_indexes"

SCHEMA_PROPERTIES: Final = {"__alwaysAllowNull": "true", "__jsr310ConversionEnabled": "false"}
"""What Java's clients register beside the schema; brokers compare it, too."""

Aborted: TypeAlias = tuple[TransactionBits, Position]
"""A transaction, and where its abort marker is."""

_NULL: Final = b"\x00"
_PRESENT: Final = b"\x02"
"""Which branch of a union follows: null is the first, the value the second."""

_END_OF_ARRAY: Final = b"\x00"

ABORTED_BYTES_MIN: Final = 4
"""What an aborted transaction takes at least: four numbers."""


class BadSnapshot(PeerError):
    """A snapshot that cannot be read."""


class Snapshot(NamedTuple):
    """What a snapshot says beside the transactions that it lists."""

    topic: str
    max_read_position: Position
    """Everything up to it has ended; `aborted` tells how."""


@cache
def schema_text(kind: str) -> bytes:
    """A schema as it is registered."""
    return files("magnetar.broker.transactions").joinpath(f"{kind}.avsc").read_bytes().rstrip(b"\n")


def registered_schema(kind: str) -> Schema:
    """What a producer of snapshots brings along."""
    properties = [KeyValue(key=key, value=value) for key, value in SCHEMA_PROPERTIES.items()]
    return Schema(name="", schema_data=schema_text(kind), type=Schema.Avro, properties=properties)


# --- writing


def number(value: int) -> bytes:
    """An Avro `long`."""
    value = (value << 1) ^ (value >> 63)
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def text(value: str) -> bytes:
    """An Avro `string` of a field that may be null."""
    encoded = value.encode()
    return _PRESENT + number(len(encoded)) + encoded


def aborted_block(aborted: Sequence[Aborted]) -> bytes:
    """Some transactions of a snapshot's list."""
    parts = [number(len(aborted))]
    for (most_bits, least_bits), (ledger_id, entry_id) in aborted:
        parts += (number(entry_id), number(ledger_id), number(signed64(least_bits)), number(signed64(most_bits)))
    return b"".join(parts)


def encode_snapshot(snapshot: Snapshot, blocks: Iterable[bytes]) -> bytes:
    """A snapshot with these blocks, none of which is empty. A list without any is there, but empty, as Java's is."""
    ledger_id, entry_id = snapshot.max_read_position
    parts = [_PRESENT, *blocks, _END_OF_ARRAY, number(entry_id), number(ledger_id), text(snapshot.topic)]
    return b"".join(parts)


# --- reading


class SnapshotReading:
    """Reads one snapshot: `some` until it gives nothing, then `rest`. Both raise `BadSnapshot`."""

    def __init__(self, payload: bytes) -> None:
        self._source = AvroInput(payload)
        self._in_block = 0
        self._ended = self._branch_is_null()

    def some(self, count_max: int) -> list[Aborted]:
        """The next ones of the list; empty: there are no more."""
        found: list[Aborted] = []
        read = self._read
        while len(found) < count_max:
            if self._in_block == 0:
                self._begin_block()
                if self._ended:
                    break
            entry_id, ledger_id, least_bits, most_bits = read(), read(), read(), read()
            found.append(((unsigned64(most_bits), unsigned64(least_bits)), (ledger_id, entry_id)))
            self._in_block -= 1
        return found

    def rest(self) -> Snapshot:
        """What follows the list."""
        entry_id, ledger_id = self._read(), self._read()
        if self._branch_is_null():
            return Snapshot("", (ledger_id, entry_id))
        try:
            return Snapshot(self._source.take(self._read()).decode(), (ledger_id, entry_id))
        except (BadAvro, UnicodeDecodeError) as error:
            raise BadSnapshot(f"a snapshot of a topic without a name: {error}") from error

    def _read(self) -> int:
        try:
            return self._source.number()
        except BadAvro as error:
            raise BadSnapshot(f"a snapshot that is cut off: {error}") from error

    def _branch_is_null(self) -> bool:
        branch = self._read()
        if branch not in (0, 1):
            raise BadSnapshot(f"branch {branch} of a union of two")
        return branch == 0

    def _begin_block(self) -> None:
        if self._ended:
            return
        count = self._read()
        if count < 0:
            self._read()  # The block's bytes, for who passes over it.
            count = -count
        if count * ABORTED_BYTES_MIN > self._source.end - self._source.at:
            raise BadSnapshot(f"{count} transactions in {self._source.end - self._source.at} bytes")
        self._in_block = count
        self._ended = count == 0


def decode_other(decoder: AvroDecoder, payload: bytes) -> tuple[Snapshot, list[Aborted]]:
    """A snapshot that was written by a schema with other fields, or another order. Raises `BadSnapshot`."""
    try:
        record = read_record(decoder, payload)
        aborted = [
            (
                (unsigned64(int(one["txnIdMostBits"])), unsigned64(int(one["txnIdLeastBits"]))),
                (int(one["ledgerId"]), int(one["entryId"])),
            )
            for one in record["aborts"] or ()
        ]
        position = (int(record["maxReadPositionLedgerId"]), int(record["maxReadPositionEntryId"]))
        return Snapshot(str(record["topicName"] or ""), position), aborted
    except (BadAvro, KeyError, TypeError, ValueError) as error:
        raise BadSnapshot(f"a snapshot that does not fit: {error!r}") from error


def parse_schema(text_of_schema: bytes) -> AvroDecoder:
    """A schema that a snapshot was written by. Raises `BadSnapshot`."""
    try:
        return parse_record_schema(text_of_schema)
    except BadAvro as error:
        raise BadSnapshot(str(error)) from error
