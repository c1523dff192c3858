"""Rows of a data frame as messages: which topic and partition each goes to, and in which entries they are sent.

Everything here depends on the rows alone, never on time or on how Spark cuts its batches: a task that is tried again
makes the same entries with the same numbers, which is what brokers tell repetitions by."""

from __future__ import annotations

import base64
import enum
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from google_crc32c import extend as extend_crc32c
from magnetar.client.message import OutgoingMessage
from magnetar.core.hashing import java_string_hash, murmur3_32
from magnetar.spark.errors import SinkRefused
from magnetar.spark.message_keys import KEY_IS_BYTES
from magnetar.spark.options.parsing import complete_name
from magnetar.spark.values.api import SchemaDefinition, ValueEncoder
from magnetar.spark.values.definitions import is_bytes, is_text

TOPIC_COLUMN: Final = "__topic"
PARTITION_COLUMN: Final = "__partition"
KEY_COLUMN: Final = "__key"
EVENT_TIME_COLUMN: Final = "__eventTime"
DELIVER_AT_COLUMN: Final = "__deliverAt"
PROPERTIES_COLUMN: Final = "__messageProperties"

MADE_BY_BROKERS: Final = ("__messageId", "__publishTime")
"""Columns that reading gives and writing makes anew: left out, so that what was read can be written as it is."""

FINGERPRINT_BITS: Final = 8
ROW_NUMBER_BITS: Final = 26
BATCH_SHIFT: Final = ROW_NUMBER_BITS + FINGERPRINT_BITS
ROWS_MAX: Final = 1 << ROW_NUMBER_BITS
BATCH_IDS_MAX: Final = 1 << (63 - BATCH_SHIFT)
"""Sequence ids are signed 64-bit numbers: 29 bits for the micro-batch (17 years of one per second), 26 for the row in
the Spark partition, and 8 of a fingerprint of the rows up to there, and of how many partitions the topic has. What a
broker remembers of a producer, its highest number, thus also tells whether a further attempt has the same rows."""

FINGERPRINT_MASK: Final = (1 << FINGERPRINT_BITS) - 1

MESSAGE_OVERHEAD_BYTES: Final = 24
"""What a message's own metadata takes in a batch, without key and properties; for the size of batches only."""


class HashingScheme(enum.Enum):
    """How keys choose partitions; the names are those of Java's client."""

    JAVA_STRING = "JavaStringHash"
    MURMUR3 = "Murmur3_32Hash"

    def hash_of(self, key: str) -> int:
        """The hash of a key, which is not negative."""
        return java_string_hash(key) if self is HashingScheme.JAVA_STRING else murmur3_32(key.encode())


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkTopic:
    """What is known of a topic that rows go to. Pickled with the tasks, so that each of them and each further attempt
    has the same."""

    topic: str
    """Complete name, without -partition-N unless only that partition was asked for."""
    partitions: int
    """How many partitions the topic has; 0: it is not partitioned."""
    definition: SchemaDefinition
    """What producers register; NONE: they have no schema."""
    deduplicates: bool
    """Brokers said that they do for this topic. False: nobody was asked, or nobody has to."""


class RowNumbers:
    """Sequence ids of one task: the micro-batch's number above that of the row, above the fingerprint."""

    def __init__(self, batch_id: int) -> None:
        """Raises `SinkRefused` for a batch id that leaves no room."""
        if not 0 <= batch_id < BATCH_IDS_MAX:
            raise SinkRefused(
                f"batch {batch_id} of the query has no sequence ids any more (there are {BATCH_IDS_MAX}): "
                "go on with a new checkpoint"
            )
        self.first_sequence_id = batch_id << BATCH_SHIFT
        self.rows = 0

    def take(self, rows: int) -> int:
        """The number of the first of so many further rows."""
        first = self.rows
        self.rows += rows
        if self.rows > ROWS_MAX:
            raise SinkRefused(
                f"a Spark partition of more than {ROWS_MAX} rows has no sequence ids for all of them: "
                "repartition the data frame into more"
            )
        return first


class RowLayout:
    """Which columns of a data frame are what."""

    def __init__(self, schema: pa.Schema) -> None:
        """Raises `SinkRefused` for columns that do not fit."""
        kinds: dict[str, tuple[str, Any]] = {
            TOPIC_COLUMN: ("string", is_text),
            PARTITION_COLUMN: ("int", pa.types.is_integer),
            KEY_COLUMN: ("string or binary", lambda kind: is_text(kind) or is_bytes(kind)),
            KEY_IS_BYTES: ("boolean, beside a binary __key", pa.types.is_boolean),
            EVENT_TIME_COLUMN: ("timestamp, or bigint in milliseconds", _is_time),
            DELIVER_AT_COLUMN: ("timestamp, or bigint in milliseconds", _is_time),
            PROPERTIES_COLUMN: ("map<string,string>", _is_properties),
        }
        self.value_columns: list[str] = []
        self._present: set[str] = set()
        self.binary_keys = False
        for field in schema:
            if field.name in kinds:
                wanted, fits = kinds[field.name]
                if not fits(field.type):
                    raise SinkRefused(f"column {field.name} has to be {wanted}; it is {field.type}")
                self._present.add(field.name)
                if field.name == KEY_COLUMN:
                    self.binary_keys = not is_text(field.type)
            elif field.name.startswith("__") and field.name not in MADE_BY_BROKERS:
                raise SinkRefused(
                    f"column {field.name} means nothing here: {', '.join((*kinds, *MADE_BY_BROKERS))} and columns "
                    "without __ in front are accepted"
                )
            elif field.name not in MADE_BY_BROKERS:
                self.value_columns.append(field.name)
        if self.has(KEY_IS_BYTES) and not self.binary_keys:
            raise SinkRefused(
                f"column {KEY_IS_BYTES} goes with a binary {KEY_COLUMN}, as keyType=binary reads them: leave it out"
            )
        if not self.value_columns:
            raise SinkRefused(
                "the data frame has no column for the messages' values: add `value`, or columns of any name"
            )

    def has(self, column: str) -> bool:
        """Whether the data frame has this column of metadata."""
        return column in self._present


@dataclass(frozen=True, slots=True, kw_only=True)
class RowRules:
    """How a task makes messages of rows."""

    spark_partition: int
    hashing_scheme: HashingScheme
    numbers: RowNumbers
    numbered: bool
    """Messages carry their sequence ids; False: the producer numbers them."""


class RowConverter:
    """Rows of one data frame to messages."""

    def __init__(self, layout: RowLayout, rules: RowRules) -> None:
        self._layout = layout
        self._rules = rules

    def by_topic(
        self, batch: pa.RecordBatch, first_row: int, topic: str
    ) -> list[tuple[str, pa.RecordBatch, Sequence[int]]]:
        """(complete name of a topic, its rows, their numbers); all to `topic` if given. Raises `SinkRefused` and
        `BadOption`."""
        numbers = range(first_row, first_row + batch.num_rows)
        if topic:
            return [(topic, batch, numbers)]
        if not self._layout.has(TOPIC_COLUMN):
            raise SinkRefused(
                f"nothing says which topic rows go to: set option topic, or add the column {TOPIC_COLUMN}"
            )
        column = batch.column(TOPIC_COLUMN)
        if column.null_count:
            row = first_row + pc.index(pc.is_null(column), True).as_py()
            raise SinkRefused(f"row {row} of Spark partition {self._rules.spark_partition}: {TOPIC_COLUMN} is null")
        spellings: dict[str, list[str]] = {}
        for name in pc.unique(column).to_pylist():
            spellings.setdefault(complete_name(f"column {TOPIC_COLUMN}", name), []).append(name)
        if len(spellings) == 1:
            return [(next(iter(spellings)), batch, numbers)]
        parts: list[tuple[str, pa.RecordBatch, Sequence[int]]] = []
        for name, spelled in spellings.items():
            rows = pc.indices_nonzero(pc.is_in(column, pa.array(spelled, column.type)))
            parts.append((name, batch.take(rows), [first_row + row for row in rows.to_pylist()]))
        return parts

    def messages(
        self, batch: pa.RecordBatch, row_numbers: Sequence[int], target: SinkTopic, encoder: ValueEncoder
    ) -> list[tuple[int, OutgoingMessage]]:
        """(partition, message) of each row of one topic; partition -1 if it has none. Raises `SinkRefused`."""
        layout, rules = self._layout, self._rules
        count = batch.num_rows
        columns = batch.select(layout.value_columns)
        try:
            values = encoder.encode(columns)
        except SinkRefused as error:
            where = f"rows {row_numbers[0]} to {row_numbers[-1]} of Spark partition {rules.spark_partition}"
            raise SinkRefused(f"{target.topic}: {where}: {error}") from error
        keys, are_base64 = self._keys(batch, row_numbers, encoder)
        for row in rows_of_nulls(columns):
            if keys[row] is not None:
                values[row] = None
        event_times = self._times_ms(batch, EVENT_TIME_COLUMN, row_numbers)
        delivery_times = self._times_ms(batch, DELIVER_AT_COLUMN, row_numbers)
        properties: list[Any] = _optional(batch, layout, PROPERTIES_COLUMN, count)
        partitions = self._partitions(batch, row_numbers, target, keys)
        first_sequence_id = rules.numbers.first_sequence_id
        found: list[tuple[int, OutgoingMessage]] = []
        for row in range(count):
            message = OutgoingMessage(values[row], key=keys[row], event_time_ms=event_times[row])
            message.key_is_base64 = are_base64[row]
            if properties[row]:
                message.properties = self._properties(properties[row], row_numbers[row])
            message.deliver_at_ms = delivery_times[row]
            if rules.numbered:
                message.sequence_id = first_sequence_id + (row_numbers[row] << FINGERPRINT_BITS)
            found.append((partitions[row], message))
        return found

    def _keys(
        self, batch: pa.RecordBatch, row_numbers: Sequence[int], encoder: ValueEncoder
    ) -> tuple[list[str | None], list[bool]]:
        """Each key as it stands in a message, and whether that is base64."""
        count = batch.num_rows
        if encoder.separates_keys:
            return _base64(encoder.encode_keys(batch.select(self._layout.value_columns))), [True] * count
        if not self._layout.has(KEY_COLUMN):
            return [None] * count, [False] * count
        plain = batch.column(KEY_COLUMN).to_pylist()
        if not self._layout.binary_keys:
            return plain, [False] * count
        keys = _base64(plain)
        if not self._layout.has(KEY_IS_BYTES):
            return keys, [True] * count
        are_bytes: list[bool] = batch.column(KEY_IS_BYTES).fill_null(True).to_pylist()
        for row in range(count):
            if not are_bytes[row] and plain[row] is not None:
                keys[row] = self._text(plain[row], row_numbers[row])
        return keys, are_bytes

    def _text(self, key: bytes, row_number: int) -> str:
        try:
            return key.decode()
        except UnicodeDecodeError:
            raise self._bad(row_number, f"{KEY_IS_BYTES} is false, and {KEY_COLUMN} is no text (UTF-8)") from None

    def _times_ms(self, batch: pa.RecordBatch, name: str, row_numbers: Sequence[int]) -> list[int]:
        if not self._layout.has(name):
            return [0] * batch.num_rows
        column = batch.column(name)
        if pa.types.is_timestamp(column.type):
            # Both are since 1970 UTC; what is finer than a millisecond is cut off.
            column = column.cast(pa.timestamp("ms", tz=column.type.tz), safe=False).cast(pa.int64())
        times: list[int] = column.fill_null(0).to_pylist()
        if times and min(times) < 0:
            row = next(index for index, time in enumerate(times) if time < 0)
            raise self._bad(row_numbers[row], f"{name} is before 1970, which messages cannot have")
        return times

    def _properties(self, pairs: list[tuple[str, str | None]], row_number: int) -> dict[str, str]:
        found: dict[str, str] = {}
        for key, value in pairs:
            if value is None:
                raise self._bad(
                    row_number, f"property {key!r} is null: properties are texts; leave it out, or make it ''"
                )
            found[key] = value
        return found

    def _partitions(
        self, batch: pa.RecordBatch, row_numbers: Sequence[int], target: SinkTopic, keys: list[str | None]
    ) -> list[int]:
        count = target.partitions
        if not count:
            self._check_partitions(
                _optional(batch, self._layout, PARTITION_COLUMN, batch.num_rows), row_numbers, target
            )
            return [-1] * batch.num_rows
        own = self._rules.spark_partition % count
        scheme = self._rules.hashing_scheme
        by_key: dict[str | None, int] = {None: own}
        chosen: list[int] = []
        for key in keys:
            partition = by_key.get(key)
            if partition is None:
                assert key is not None
                partition = by_key[key] = scheme.hash_of(key) % count
            chosen.append(partition)
        if self._layout.has(PARTITION_COLUMN):
            wanted: list[int | None] = batch.column(PARTITION_COLUMN).to_pylist()
            self._check_partitions(wanted, row_numbers, target)
            chosen = [by_rule if asked is None else asked for asked, by_rule in zip(wanted, chosen, strict=True)]
        return chosen

    def _check_partitions(self, wanted: list[int | None], row_numbers: Sequence[int], target: SinkTopic) -> None:
        for row_number, partition in zip(row_numbers, wanted, strict=True):
            if partition is not None and not 0 <= partition < max(1, target.partitions):
                raise self._bad(
                    row_number,
                    f"{PARTITION_COLUMN} is {partition}, and {target.topic} has {target.partitions} partitions",
                )

    def _bad(self, row_number: int, why: str) -> SinkRefused:
        return SinkRefused(f"row {row_number} of Spark partition {self._rules.spark_partition}: {why}")


@dataclass(slots=True, eq=False)
class OutgoingEntry:
    """Messages that are stored as one: all or none."""

    messages: list[OutgoingMessage]
    size_bytes: int
    """About how many bytes the entry has, before compression."""
    alone: bool
    """One message that is no batch: brokers look at the delivery time of entries only."""


class EntryCutter:
    """Puts messages of one topic (one partition) together, in order."""

    __slots__ = ("_bytes_max", "_fingerprint", "_first_alone", "_messages", "_messages_max", "_size_bytes")

    def __init__(self, messages_max: int, bytes_max: int, *, first_alone: bool, partitions: int = 0) -> None:
        """`first_alone`: the very first message is an entry of its own. `partitions`: of the topic, which fingerprints
        tell as well: where there were others when rows were stored before, some of these would be stored again in
        another partition."""
        self._messages_max = messages_max
        self._bytes_max = bytes_max
        self._first_alone = first_alone
        self._fingerprint = extend_crc32c(0, partitions.to_bytes(4, "big"))
        self._messages: list[OutgoingMessage] = []
        self._size_bytes = 0

    def add(self, message: OutgoingMessage) -> list[OutgoingEntry]:
        """Entries that are complete now, in order. A message with a number gets its fingerprint."""
        if message.sequence_id is not None:
            self._fingerprint = extend_crc32c(self._fingerprint, message.payload or b"")
            if message.key is not None:
                self._fingerprint = extend_crc32c(self._fingerprint, message.key.encode())
            message.sequence_id |= self._fingerprint & FINGERPRINT_MASK
        size = size_bytes_of(message)
        if message.deliver_at_ms:
            self._first_alone = False
            return [*self.rest(), OutgoingEntry([message], size, alone=True)]
        done = self.rest() if self._size_bytes + size > self._bytes_max else []
        self._messages.append(message)
        self._size_bytes += size
        if self._first_alone or len(self._messages) >= self._messages_max:
            self._first_alone = False
            done += self.rest()
        return done

    def rest(self) -> list[OutgoingEntry]:
        """What waited for company: none or one."""
        if not self._messages:
            return []
        entry = OutgoingEntry(self._messages, self._size_bytes, alone=False)
        self._messages, self._size_bytes = [], 0
        return [entry]


def size_bytes_of(message: OutgoingMessage) -> int:
    """About what it takes in an entry."""
    size = MESSAGE_OVERHEAD_BYTES + len(message.payload or b"") + len((message.key or "").encode())
    if message.properties:
        size += sum(len(name.encode()) + len(value.encode()) + 6 for name, value in message.properties.items())
    return size


def split_entry(entry: OutgoingEntry, last_sequence_id: int) -> Iterator[OutgoingEntry]:
    """The messages up to that number, and those after it, apart; the entry itself when it is on one side."""
    numbers = [message.sequence_id for message in entry.messages]
    before = sum(1 for number in numbers if number is not None and number <= last_sequence_id)
    if before in (0, len(numbers)):
        yield entry
        return
    for part in (entry.messages[:before], entry.messages[before:]):
        yield OutgoingEntry(part, sum(map(size_bytes_of, part)), alone=False)


def rows_of_nulls(columns: pa.RecordBatch) -> list[int]:
    """Rows with null in every column: with a key they say that the key has no value any more, as reading gives it."""
    if not all(column.null_count for column in columns.columns):
        return []
    empty = pc.is_null(columns.column(0))
    for column in columns.columns[1:]:
        empty = pc.and_(empty, pc.is_null(column))
    rows: list[int] = pc.indices_nonzero(empty).to_pylist()
    return rows


def _optional(batch: pa.RecordBatch, layout: RowLayout, name: str, count: int) -> list[Any]:
    return batch.column(name).to_pylist() if layout.has(name) else [None] * count


def _base64(keys: Sequence[bytes | None]) -> list[str | None]:
    return [None if key is None else base64.b64encode(key).decode() for key in keys]


def _is_time(kind: pa.DataType) -> bool:
    return bool(pa.types.is_timestamp(kind) or pa.types.is_int64(kind))


def _is_properties(kind: pa.DataType) -> bool:
    return bool(pa.types.is_map(kind)) and is_text(kind.key_type) and is_text(kind.item_type)
