"""Rows as messages and entries: pure."""

from __future__ import annotations

import base64
import json
from datetime import UTC, datetime
from itertools import pairwise

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from magnetar.client.message import OutgoingMessage
from magnetar.core.hashing import java_string_hash, murmur3_32
from magnetar.spark.errors import BadOption, SinkRefused
from magnetar.spark.sink.rows import (
    BATCH_IDS_MAX,
    BATCH_SHIFT,
    FINGERPRINT_BITS,
    ROWS_MAX,
    EntryCutter,
    HashingScheme,
    RowConverter,
    RowLayout,
    RowNumbers,
    RowRules,
    SinkTopic,
    rows_of_nulls,
    split_entry,
)
from magnetar.spark.sink.targets import encoder_of
from magnetar.spark.values.api import SchemaDefinition
from magnetar.spark.values.definitions import definition_for
from magnetar.wire.pulsar.enums import SchemaType


class TextEncoder:
    definition = SchemaDefinition(type=SchemaType.STRING)
    separates_keys = False

    def encode(self, batch: pa.RecordBatch) -> list[bytes | None]:
        return [None if value is None else value.encode() for value in batch.column(0).to_pylist()]

    def encode_keys(self, batch: pa.RecordBatch) -> list[bytes | None]:
        return []


class SeparatingEncoder(TextEncoder):
    separates_keys = True

    def encode_keys(self, batch: pa.RecordBatch) -> list[bytes | None]:
        return [b"\x00" if value else None for value in batch.column(0).to_pylist()]


def target(partitions: int = 0) -> SinkTopic:
    return SinkTopic(
        topic="persistent://public/default/t",
        partitions=partitions,
        definition=TextEncoder.definition,
        deduplicates=True,
    )


def converter(schema: pa.Schema, spark_partition: int = 0, batch_id: int = 0, **rules: bool) -> RowConverter:
    return RowConverter(
        RowLayout(schema),
        RowRules(
            spark_partition=spark_partition,
            hashing_scheme=HashingScheme.MURMUR3 if rules.get("murmur") else HashingScheme.JAVA_STRING,
            numbers=RowNumbers(batch_id),
            numbered=rules.get("numbered", True),
        ),
    )


def converted(
    columns: dict[str, pa.Array], partitions: int = 0, spark_partition: int = 0, **rules: bool
) -> list[tuple[int, OutgoingMessage]]:
    batch = pa.RecordBatch.from_pydict(columns)
    rows = range(batch.num_rows)
    return converter(batch.schema, spark_partition, **rules).messages(batch, rows, target(partitions), TextEncoder())


class TestColumns:
    def test_all_of_them_become_what_the_message_has(self) -> None:
        moment = datetime(2026, 3, 1, 12, 0, 0, 123_456, tzinfo=UTC)
        properties = pa.array([[("a", "1"), ("b", "2")], None], pa.map_(pa.string(), pa.string()))
        found = converted(
            {
                "value": pa.array(["x", None]),
                "__key": pa.array(["k", None]),
                "__eventTime": pa.array([moment, None], pa.timestamp("us", tz="UTC")),
                "__deliverAt": pa.array([None, 1_800_000_000_000], pa.int64()),
                "__messageProperties": properties,
                "__messageId": pa.array(["1:2", "1:3"]),
                "__publishTime": pa.array([moment, moment], pa.timestamp("us", tz="UTC")),
            }
        )
        (_, first), (_, second) = found
        assert (first.payload, first.key, first.event_time_ms) == (b"x", "k", 1_772_366_400_123)
        assert (first.properties, first.deliver_at_ms) == ({"a": "1", "b": "2"}, 0)
        assert (second.payload, second.key, second.event_time_ms) == (None, None, 0)
        assert (second.properties, second.deliver_at_ms) == ({}, 1_800_000_000_000)

    def test_binary_keys_are_marked_as_base64(self) -> None:
        ((_, message),) = converted({"value": pa.array(["x"]), "__key": pa.array([b"\x00\xff"])})
        assert (message.key, message.key_is_base64) == (base64.b64encode(b"\x00\xff").decode(), True)

    def test_keys_are_what_they_were_when_it_is_said(self) -> None:
        keys = pa.array([b"\x00", "é".encode(), b"n", None])
        are_bytes = pa.array([True, False, None, False])
        found = converted({"value": pa.array(list("abcd")), "__key": keys, "__keyIsBytes": are_bytes})
        assert [(message.key, message.key_is_base64) for _, message in found] == [
            ("AA==", True),
            ("é", False),
            ("bg==", True),
            (None, False),
        ]

    def test_separated_keys_are_the_encoders(self) -> None:
        batch = pa.RecordBatch.from_pydict({"value": pa.array(["x", ""])})
        found = converter(batch.schema).messages(batch, range(2), target(), SeparatingEncoder())
        assert [(message.key, message.key_is_base64) for _, message in found] == [("AA==", True), (None, True)]

    def test_time_without_zone_is_utc(self) -> None:
        times = pa.array([datetime(2026, 3, 1)], pa.timestamp("us"))  # noqa: DTZ001
        ((_, message),) = converted({"value": pa.array(["x"]), "__eventTime": times})
        assert message.event_time_ms == 1_772_323_200_000

    @pytest.mark.parametrize(
        ("columns", "says"),
        [
            ({"value": pa.array(["x"]), "__key": pa.array([1])}, "__key has to be string or binary; it is int64"),
            ({"value": pa.array(["x"]), "__keys": pa.array(["k"])}, "__keys means nothing here"),
            ({"__key": pa.array(["k"])}, "no column for the messages' values"),
            ({"value": pa.array(["x"]), "__eventTime": pa.array(["soon"])}, "__eventTime has to be timestamp"),
            (
                {"value": pa.array(["x"]), "__keyIsBytes": pa.array([True]), "__key": pa.array(["k"])},
                "__keyIsBytes goes with a binary __key",
            ),
            ({"value": pa.array(["x"]), "__keyIsBytes": pa.array([True])}, "__keyIsBytes goes with a binary __key"),
        ],
    )
    def test_bad_columns_are_refused(self, columns: dict[str, pa.Array], says: str) -> None:
        with pytest.raises(SinkRefused, match=says):
            RowLayout(pa.RecordBatch.from_pydict(columns).schema)

    @pytest.mark.parametrize(
        ("columns", "says"),
        [
            ({"__eventTime": pa.array([5, -1])}, "row 1 of Spark partition 0: __eventTime is before 1970"),
            (
                {"__key": pa.array([b"k", b"\xff"]), "__keyIsBytes": pa.array([False, False])},
                "row 1 of Spark partition 0: __keyIsBytes is false, and __key is no text",
            ),
            (
                {"__messageProperties": pa.array([[], [("p", None)]], pa.map_(pa.string(), pa.string()))},
                "row 1 of Spark partition 0: property 'p' is null",
            ),
            ({"__partition": pa.array([None, 1])}, "row 1 of Spark partition 0: __partition is 1, and .* has 0 part"),
        ],
    )
    def test_bad_rows_are_named(self, columns: dict[str, pa.Array], says: str) -> None:
        with pytest.raises(SinkRefused, match=says):
            converted({"value": pa.array(["x", "y"]), **columns})


class TestNoValue:
    def test_rows_of_nulls_with_a_key_are_tombstones(self) -> None:
        batch = pa.RecordBatch.from_pydict(
            {"a": pa.array([None, 1, None]), "b": pa.array([None, None, None], pa.string())}
        )
        assert rows_of_nulls(batch) == [0, 2]
        assert rows_of_nulls(batch.slice(1, 1)) == []

    def test_without_a_key_they_are_what_the_encoder_makes(self) -> None:
        class Records(TextEncoder):
            def encode(self, batch: pa.RecordBatch) -> list[bytes | None]:
                return [b"{}"] * batch.num_rows

        batch = pa.RecordBatch.from_pydict({"a": pa.array([None, None], pa.string()), "__key": pa.array(["k", None])})
        found = converter(batch.schema).messages(batch, range(2), target(), Records())
        assert [message.payload for _, message in found] == [None, b"{}"]


class TestRouting:
    def test_keys_choose_as_javas_client_does(self) -> None:
        columns = {"value": pa.array(["x"] * 3), "__key": pa.array(["order-1", "ü", None])}
        assert [partition for partition, _ in converted(columns, 5, 7)] == [
            java_string_hash("order-1") % 5,
            java_string_hash("ü") % 5,
            7 % 5,
        ]
        assert [partition for partition, _ in converted(columns, 5, 7, murmur=True)] == [
            murmur3_32(b"order-1") % 5,
            murmur3_32("ü".encode()) % 5,
            2,
        ]

    def test_partition_column_goes_before(self) -> None:
        columns = {
            "value": pa.array(["x", "y"]),
            "__key": pa.array(["k", "k"]),
            "__partition": pa.array([4, None], pa.int32()),
        }
        assert [partition for partition, _ in converted(columns, 5)] == [4, java_string_hash("k") % 5]

    def test_rows_are_parted_by_topic_with_their_numbers(self) -> None:
        batch = pa.RecordBatch.from_pydict({"value": pa.array(list("abcd")), "__topic": pa.array(["t", "u", "u", "t"])})
        parts = converter(batch.schema).by_topic(batch, 100, "")
        assert [(topic, rows.column(0).to_pylist(), list(numbers)) for topic, rows, numbers in parts] == [
            ("persistent://public/default/t", ["a", "d"], [100, 103]),
            ("persistent://public/default/u", ["b", "c"], [101, 102]),
        ]

    def test_several_spellings_are_one_topic(self) -> None:
        names = ["t", "public/default/t", "u", "persistent://public/default/t", "t"]
        batch = pa.RecordBatch.from_pydict({"value": pa.array(list("abcde")), "__topic": pa.array(names)})
        parts = converter(batch.schema).by_topic(batch, 0, "")
        assert [(topic, list(numbers)) for topic, _, numbers in parts] == [
            ("persistent://public/default/t", [0, 1, 3, 4]),
            ("persistent://public/default/u", [2]),
        ]

    def test_names_that_are_none_are_told_by_the_column(self) -> None:
        batch = pa.RecordBatch.from_pydict({"value": pa.array(["a"]), "__topic": pa.array(["a/b"])})
        with pytest.raises(BadOption, match="column __topic: 'a/b' is no topic"):
            converter(batch.schema).by_topic(batch, 0, "")

    def test_option_topic_goes_before_the_column(self) -> None:
        batch = pa.RecordBatch.from_pydict({"value": pa.array(["a", "b"]), "__topic": pa.array(["t", None])})
        ((topic, rows, numbers),) = converter(batch.schema).by_topic(batch, 0, "mine")
        assert (topic, rows.num_rows, list(numbers)) == ("mine", 2, [0, 1])

    def test_rows_without_topic_are_named(self) -> None:
        batch = pa.RecordBatch.from_pydict({"value": pa.array(["a", "b"]), "__topic": pa.array(["t", None])})
        with pytest.raises(SinkRefused, match="row 11 of Spark partition 3: __topic is null"):
            converter(batch.schema, 3).by_topic(batch, 10, "")
        with pytest.raises(SinkRefused, match="set option topic, or add the column __topic"):
            converter(pa.schema({"value": pa.string()})).by_topic(batch.select(["value"]), 0, "")


class TestNumbers:
    def test_batch_above_row(self) -> None:
        numbers = RowNumbers(7)
        assert (numbers.take(10), numbers.take(5)) == (0, 10)
        assert numbers.first_sequence_id == 7 << BATCH_SHIFT

    def test_messages_carry_them_only_when_they_shall(self) -> None:
        columns = {"value": pa.array(["x", "y"])}
        assert [message.sequence_id for _, message in converted(columns)] == [0, 1 << FINGERPRINT_BITS]
        assert [message.sequence_id for _, message in converted(columns, numbered=False)] == [None, None]

    def test_too_many_are_refused(self) -> None:
        last = RowNumbers(BATCH_IDS_MAX - 1)
        assert last.first_sequence_id + (ROWS_MAX << FINGERPRINT_BITS) - 1 == (1 << 63) - 1
        last.take(ROWS_MAX)
        with pytest.raises(SinkRefused, match="repartition"):
            last.take(1)
        with pytest.raises(SinkRefused, match="new checkpoint"):
            RowNumbers(BATCH_IDS_MAX)


def numbered(payloads: list[bytes]) -> list[OutgoingMessage]:
    messages = [OutgoingMessage(payload) for payload in payloads]
    for number, message in enumerate(messages):
        message.sequence_id = number << FINGERPRINT_BITS
    return messages


class TestEntries:
    def test_cut_by_count_and_by_size(self) -> None:
        cutter = EntryCutter(3, 200, first_alone=False)
        messages = numbered([b"x"] * 4 + [b"y" * 150, b"y" * 100, b"z" * 1000, b"x"])
        entries = [entry for message in messages for entry in cutter.add(message)] + cutter.rest()
        assert [len(entry.messages) for entry in entries] == [3, 2, 1, 1, 1]
        assert cutter.rest() == []

    def test_what_is_to_be_delivered_later_stands_alone(self) -> None:
        cutter = EntryCutter(10, 10_000, first_alone=False)
        messages = numbered([b"x"] * 4)
        messages[2].deliver_at_ms = 5
        entries = [entry for message in messages for entry in cutter.add(message)] + cutter.rest()
        assert [(len(entry.messages), entry.alone) for entry in entries] == [(2, False), (1, True), (1, False)]

    def test_the_first_alone_when_it_is_tried_out_with(self) -> None:
        cutter = EntryCutter(3, 10_000, first_alone=True)
        entries = [entry for message in numbered([b"x"] * 5) for entry in cutter.add(message)] + cutter.rest()
        assert [len(entry.messages) for entry in entries] == [1, 3, 1]

    @given(
        sizes=st.lists(st.integers(0, 300), min_size=1, max_size=50),
        cuts=st.lists(st.integers(0, 50), max_size=5),
    )
    def test_entries_do_not_depend_on_sparks_batches(self, sizes: list[int], cuts: list[int]) -> None:
        messages = numbered([b"x" * size for size in sizes])

        def entries_of(parts: list[list[OutgoingMessage]]) -> list[list[int | None]]:
            cutter = EntryCutter(7, 500, first_alone=False)
            found = [entry for part in parts for message in part for entry in cutter.add(message)] + cutter.rest()
            return [[message.sequence_id for message in entry.messages] for entry in found]

        bounds = [0, *sorted(min(cut, len(messages)) for cut in cuts), len(messages)]
        parts = [messages[start:end] for start, end in pairwise(bounds)]
        assert entries_of(parts) == entries_of([messages])

    def test_numbers_tell_whether_rows_before_are_the_same(self) -> None:
        def last_number(payloads: list[bytes]) -> int:
            messages = numbered(payloads)
            cutter = EntryCutter(100, 10_000, first_alone=False)
            for message in messages:
                cutter.add(message)
            assert messages[-1].sequence_id is not None
            assert messages[-1].sequence_id >> FINGERPRINT_BITS == len(payloads) - 1
            return messages[-1].sequence_id

        assert last_number([b"a", b"b", b"c"]) == last_number([b"a", b"b", b"c"])
        assert last_number([b"a", b"b", b"c"]) != last_number([b"b", b"a", b"c"])

    def test_an_entry_is_split_where_the_broker_has_the_rest(self) -> None:
        cutter = EntryCutter(5, 10_000, first_alone=False)
        (entry,) = [entry for message in numbered([b"x"] * 5) for entry in cutter.add(message)]
        assert [len(part.messages) for part in split_entry(entry, (2 << FINGERPRINT_BITS) - 1)] == [2, 3]
        assert list(split_entry(entry, 5 << FINGERPRINT_BITS)) == list(split_entry(entry, -1)) == [entry]


class TestBytesForASchema:
    """One column of bytes called `value`: payloads that are encoded already, or bytes that the schema has."""

    FIELDS = (("value", pa.binary()),)

    def encoded(self, definition: SchemaDefinition, raw_values: bool | None = None) -> list[bytes | None]:
        batch = pa.RecordBatch.from_pydict({"value": pa.array([b"\x02a"])})
        return encoder_of(definition, self.FIELDS, raw_values).encode(batch)

    def record(self, field: str, kind: str, schema_type: SchemaType = SchemaType.AVRO) -> SchemaDefinition:
        schema = {"type": "record", "name": "R", "fields": [{"name": field, "type": kind}]}
        return SchemaDefinition(type=schema_type, data=json.dumps(schema).encode())

    def test_a_schema_without_such_bytes_has_encoded_them(self) -> None:
        for definition in (
            self.record("a", "string"),
            self.record("value", "string"),
            SchemaDefinition(type=SchemaType.STRING),
            SchemaDefinition(type=SchemaType.INT32),
        ):
            assert self.encoded(definition) == [b"\x02a"]

    def test_a_schema_with_such_bytes_encodes_them(self) -> None:
        assert self.encoded(self.record("value", "bytes")) == [b"\x04\x02a"]
        assert self.encoded(self.record("value", "bytes", SchemaType.JSON)) == [b'{"value":"AmE="}']
        assert self.encoded(definition_for(pa.schema(list(self.FIELDS)), "avro")) == [b"\x02\x04\x02a"]

    def test_unless_it_is_said(self) -> None:
        assert self.encoded(self.record("value", "bytes"), raw_values=True) == [b"\x02a"]
        assert self.encoded(SchemaDefinition(type=SchemaType.NONE), raw_values=True) == [b"\x02a"]
        with pytest.raises(SinkRefused, match="no fields value; it has a"):
            self.encoded(self.record("a", "string"), raw_values=False)
        with pytest.raises(SinkRefused, match="rawValues takes one column `value` of binary, not a int32"):
            encoder_of(self.record("a", "int"), [("a", pa.int32())], True)
