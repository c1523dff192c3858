"""Snapshots of transaction buffers as Apache's brokers write them to `__transaction_buffer_snapshot`: Avro records.
Pure.

`snapshot*.avsc` are the schemas that Apache Pulsar 4.0 registers, letter by letter, so that both kinds of brokers share
one schema version. A record may list hundreds of thousands of transactions. So it is written and read by hand, some of
them at a time, where a library would do it in one go. Facts: pulsar-broker
`transaction/buffer/metadata/TransactionBufferSnapshot`; Avro 1.11 specification, "Binary Encoding".
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from functools import cache
from importlib.resources import files
from typing import Any, Final, NamedTuple, TypeAlias

from magnetar.broker.subscriptions.visibility import TransactionBits
from magnetar.core.errors import PeerError
from magnetar.core.ids import Position, signed64, unsigned64
from magnetar.wire.avro import AvroDecoder, AvroInput, BadAvro, parse_record_schema, read_record
from magnetar.wire.pulsar.generated.pulsar_api_pb2 import KeyValue, Schema

SINGLE: Final = "snapshot"
SEGMENT: Final = "snapshot_segment"
INDEXES: Final = "snapshot_indexes"

SCHEMA_PROPERTIES: Final = {"__alwaysAllowNull": "true", "__jsr310ConversionEnabled": "false"}
"""Properties that Java's clients register with the schema; brokers compare them, too."""

Aborted: TypeAlias = tuple[TransactionBits, Position]
"""A transaction, and where its abort marker is."""

PRESENT: Final = b"\x02"
"""Which branch of a union follows: null is the first, the value the second."""

END_OF_ARRAY: Final = b"\x00"


class BadSnapshot(PeerError):
    """A snapshot that cannot be read."""


class Snapshot(NamedTuple):
    """The fields of a snapshot beside the transactions that it lists."""

    topic: str
    max_read_position: Position
    """Everything up to it has ended; `aborted` tells how."""


@cache
def schema_text(kind: str) -> bytes:
    """A schema as it is registered."""
    return files("magnetar.broker.transactions.buffers").joinpath(f"{kind}.avsc").read_bytes().rstrip(b"\n")


def is_like(kind: str, text_of_schema: bytes) -> bool:
    """Whether a schema has the same fields in the same order: versions of Pulsar differ in what Java makes of them."""
    if text_of_schema == schema_text(kind):
        return True
    try:
        return bool(_bare(json.loads(text_of_schema)) == _bare(json.loads(schema_text(kind))))
    except (ValueError, RecursionError):
        return False


def _bare(schema: Any) -> Any:
    if isinstance(schema, dict):
        return {name: _bare(value) for name, value in schema.items() if name not in ("java-class", "doc")}
    return [_bare(one) for one in schema] if isinstance(schema, list) else schema


def registered_schema(kind: str) -> Schema:
    """The schema that a producer of snapshots registers."""
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
    return PRESENT + number(len(encoded)) + encoded


def aborted_block(aborted: Sequence[Aborted]) -> bytes:
    """Some transactions of a snapshot's list."""
    parts = [number(len(aborted))]
    for (most_bits, least_bits), (ledger_id, entry_id) in aborted:
        parts += (number(entry_id), number(ledger_id), number(signed64(least_bits)), number(signed64(most_bits)))
    return b"".join(parts)


def encode_snapshot(snapshot: Snapshot, blocks: Iterable[bytes]) -> bytes:
    """A snapshot with these blocks, none of which is empty. A list without any is there, but empty, as Java's is."""
    ledger_id, entry_id = snapshot.max_read_position
    parts = [PRESENT, *blocks, END_OF_ARRAY, number(entry_id), number(ledger_id), text(snapshot.topic)]
    return b"".join(parts)


# --- reading


class RecordReading:
    """Reads one record field by field. All of it raises `BadSnapshot`."""

    def __init__(self, payload: bytes) -> None:
        self._source = AvroInput(payload)
        self._in_block = 0
        self._ended = True

    def number(self) -> int:
        """An Avro `long`."""
        try:
            return self._source.number()
        except BadAvro as error:
            raise BadSnapshot(f"a snapshot that is cut off: {error}") from error

    def text(self) -> str:
        """A `string` that may be null: then it is empty."""
        if self.is_null():
            return ""
        try:
            return self._source.take(self.number()).decode()
        except (BadAvro, UnicodeDecodeError) as error:
            raise BadSnapshot(f"a text that is none: {error}") from error

    def is_null(self) -> bool:
        """Which branch of a union follows: null, or the value."""
        branch = self.number()
        if branch not in (0, 1):
            raise BadSnapshot(f"branch {branch} of a union of two")
        return branch == 0

    def begin_list(self) -> None:
        """A list that may be null follows; then call `rows` until it gives nothing."""
        self._in_block = 0
        self._ended = self.is_null()

    def rows(self, numbers: int, count_max: int) -> list[tuple[int, ...]]:
        """The next ones of the list, which are of so many numbers each; empty: there are no more."""
        found: list[tuple[int, ...]] = []
        read = self.number
        while len(found) < count_max and not self._ended:
            if self._in_block == 0:
                self._begin_block(numbers)
                continue
            found.append(tuple([read() for _ in range(numbers)]))
            self._in_block -= 1
        return found

    def _begin_block(self, numbers: int) -> None:
        count = self.number()
        if count < 0:
            self.number()  # The block's bytes, for who passes over it.
            count = -count
        if count * numbers > self._source.end - self._source.at:
            raise BadSnapshot(f"{count} elements in {self._source.end - self._source.at} bytes")
        self._in_block = count
        self._ended = count == 0


class SnapshotReading:
    """Reads one snapshot: `some` until it gives nothing, then `rest`. Both raise `BadSnapshot`."""

    def __init__(self, payload: bytes) -> None:
        self._record = RecordReading(payload)
        self._record.begin_list()

    def some(self, count_max: int) -> list[Aborted]:
        """The next ones of the list; empty: there are no more."""
        return [
            ((unsigned64(most_bits), unsigned64(least_bits)), (ledger_id, entry_id))
            for entry_id, ledger_id, least_bits, most_bits in self._record.rows(4, count_max)
        ]

    def rest(self) -> Snapshot:
        """The fields behind the list of transactions."""
        entry_id, ledger_id = self._record.number(), self._record.number()
        return Snapshot(self._record.text(), (ledger_id, entry_id))


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
