"""Batches, called as Spark calls them: options, schemas, undecodable messages, push-down, what clients pack."""

from __future__ import annotations

import datetime as dt
import json
import time
from collections.abc import Iterable
from typing import Any

import pulsar
import pytest
from magnetar.spark.errors import BadOption, BadRecord
from pulsar.schema import AvroSchema, Float, Integer, JsonSchema, Record, String, StringSchema
from pyspark.sql.datasource import EqualTo, GreaterThanOrEqual, In, IsNotNull, LessThan, StringStartsWith
from pyspark.sql.types import StructType
from spark_fakes.data_source import Checkpoint, Driver, planned, read, source_of
from spark_fakes.topics import Topics

pytestmark = [pytest.mark.clients, pytest.mark.timeout(60)]

METADATA = ["__key", "__topic", "__messageId", "__publishTime", "__eventTime", "__messageProperties"]


def numbered(numbers: Iterable[int]) -> list[bytes]:
    return [b"%d" % number for number in numbers]


def options(topics: Topics, topic: str, **more: str) -> dict[str, str]:
    return {**topics.urls, "topic": topic, **more}


def values(rows: list[dict[str, Any]], name: str = "value") -> list[Any]:
    return [row[name] for row in rows]


class Order(Record):  # type: ignore[misc] # The official client has no types.
    number = Integer()
    name = String()


def later_order() -> Any:
    """The same record with one field more."""

    class Order(Record):  # type: ignore[misc] # The official client has no types.
        number = Integer()
        name = String()
        price = Float(default=1.5, required=True, required_default=True)

    return Order


Priced: Any = later_order()


class TestOptions:
    @pytest.mark.parametrize(
        ("given", "text"),
        [
            ({"topicz": "a"}, "there is no option topicz.*topic"),
            (
                {"startingOffsets": "soon"},
                "option startingOffsets: soon is not understood; earliest, latest, or a JSON",
            ),
            ({"startingOffsets": '{"a": '}, 'option startingOffsets: {"a": is no JSON object'),
            ({"startingOffsets": '{"a": "x"}'}, 'option startingOffsets: "x" for a is no place'),
            ({"startingOffsets": '{"other": "1:2"}'}, "option startingOffsets does not say where in .*options"),
            ({"startingOffsets": "latest"}, "a batch from latest on has no messages"),
            ({"startingTime": "yesterday"}, "option startingTime: yesterday is no time"),
            ({"startingOffsets": "earliest", "startingTime": "0"}, "startingOffsets and startingTime"),
            ({"failOnDataLoss": "maybe"}, "option failOnDataLoss: 'maybe' is not understood; true or false"),
            ({"columns": "value,nothing"}, "option columns: there is no nothing; there are value, __key"),
            ({"mode": "PERMISSIV"}, "did you mean permissive"),
        ],
    )
    def test_refused(self, topics: Topics, given: dict[str, str], text: str) -> None:
        topic = topics.new("options")
        with pytest.raises(BadOption, match=text):
            read(options(topics, topic, **given))

    def test_case_of_names_does_not_matter(self, topics: Topics) -> None:
        topic = topics.new("options")
        topics.send(topic, [b"x"])
        given = {"SERVICE.URL": topics.urls["service.url"], "Admin.Url": topics.urls["admin.url"], "TOPIC": topic}
        assert values(read({**given, "splitbytes": "1M"})) == [b"x"]

    def test_without_admin_api(self, topics: Topics) -> None:
        topic = topics.new("options")
        topics.send(topic, numbered(range(3)))
        topics.roll(topic)
        topics.send(topic, numbered(range(3, 5)))
        assert values(read({"service.url": topics.urls["service.url"], "topic": topic})) == numbered(range(5))

    def test_empty_topic(self, topics: Topics) -> None:
        reader, partitions = planned(options(topics, topics.new("empty")))
        assert partitions == []
        # Spark makes a partition of none of its own.
        for nothing in (None, type("InputPartition", (), {"value": None})()):
            assert not list(reader.read(nothing))  # type: ignore[arg-type] # As Spark does.


class TestPlaces:
    def test_offsets(self, topics: Topics) -> None:
        topic = topics.new("places")
        ids = topics.send(topic, numbered(range(10)))
        place = [f"{one.ledger_id()}:{one.entry_id()}" for one in ids]
        given = options(
            topics,
            topic,
            startingOffsets=json.dumps({topic: place[3]}),
            endingOffsets=json.dumps({topic: place[6]}),
        )
        assert values(read(given)) == numbered(range(3, 7))
        assert values(read({**given, "endingOffsets": "latest"})) == numbered(range(3, 10))

    def test_within_a_batch(self, topics: Topics) -> None:
        topic = topics.new("places")
        topics.send_batches(topic, numbered(range(20)), 10)
        rows = read(options(topics, topic))
        first, last = rows[4]["__messageId"], rows[12]["__messageId"]
        assert first.endswith(":4")
        given = {"startingOffsets": json.dumps({topic: first}), "endingOffsets": json.dumps({topic: last})}
        assert read(options(topics, topic, **given)) == rows[4:13]

    def test_times(self, topics: Topics) -> None:
        topic = topics.new("times")
        topics.send(topic, numbered(range(5)))
        time.sleep(0.005)
        topics.roll(topic)
        topics.send(topic, numbered(range(5, 10)))
        time.sleep(0.005)
        topics.send(topic, numbered(range(10, 12)))
        rows = read(options(topics, topic))
        from_ms, to_ms = (str(int(rows[place]["__publishTime"].timestamp() * 1000)) for place in (5, 10))
        assert values(read(options(topics, topic, startingTime=from_ms))) == numbered(range(5, 12))
        assert values(read(options(topics, topic, endingTime=to_ms))) == numbered(range(10))
        assert values(read(options(topics, topic, startingTime=from_ms, endingTime=to_ms))) == numbered(range(5, 10))
        text = rows[5]["__publishTime"].isoformat()
        assert values(read(options(topics, topic, startingTime=text))) == numbered(range(5, 12))
        assert read(options(topics, topic, startingTime="2100-01-01")) == []
        assert read(options(topics, topic, endingTime="2001-01-01")) == []


class TestSchemas:
    def test_bytes_and_metadata(self, topics: Topics) -> None:
        topic = topics.new("bytes")
        topics.send(topic, [b"\x00\xff"], partition_key="k", properties={"a": "1"}, event_timestamp=1_500_000_000_123)
        topics.send(topic, [b""])
        first, second = read(options(topics, topic))
        assert list(first) == ["value", *METADATA]
        assert (first["value"], first["__key"], first["__topic"]) == (b"\x00\xff", "k", topic)
        assert first["__messageProperties"] == [("a", "1")]
        assert first["__eventTime"] == dt.datetime(2017, 7, 14, 2, 40, 0, 123000, dt.UTC)
        assert abs((first["__publishTime"] - dt.datetime.now(dt.UTC)).total_seconds()) < 60
        assert (second["value"], second["__key"], second["__eventTime"], second["__messageProperties"]) == (
            b"", None, None, [],
        )  # fmt: skip

    def test_key_as_bytes(self, topics: Topics) -> None:
        topic = topics.new("keys")
        topics.send(topic, [b"v"], partition_key="é")
        (row,) = read(options(topics, topic, keyType="binary", columns="*,__keyIsBytes"))
        assert list(row) == ["value", *METADATA, "__keyIsBytes"]
        assert (row["__key"], row["__keyIsBytes"]) == ("é".encode(), False)
        is_key = [IsNotNull(("__key",)), EqualTo(("__key",), "é".encode())]
        assert len(read(options(topics, topic, keyType="binary"), filters=is_key)) == 1
        assert len(read(options(topics, topic, keyType="binary", keys="é", columns="value"))) == 1
        with pytest.raises(BadOption, match="column __key is string in Arrow's terms, not binary"):
            read(options(topics, topic), StructType().add("__key", "binary"))

    def test_string(self, topics: Topics) -> None:
        topic = topics.new("string")
        topics.send(topic, ["grün", ""], StringSchema())
        assert values(read(options(topics, topic))) == ["grün", ""]

    @pytest.mark.parametrize("schema", [AvroSchema, JsonSchema])
    def test_records(self, topics: Topics, schema: Any) -> None:
        topic = topics.new("records", partitions=2)
        topics.send(topic, [Order(number=number, name=f"n{number}") for number in range(4)], schema(Order))
        rows = sorted(read(options(topics, topic)), key=lambda row: row["number"])
        assert [(row["number"], row["name"]) for row in rows] == [(number, f"n{number}") for number in range(4)]
        assert list(rows[0]) == ["number", "name", *METADATA]
        raw = read(options(topics, topic, rawValues="true"))
        assert list(raw[0]) == ["value", *METADATA]
        assert all(isinstance(row["value"], bytes) for row in raw)

    def test_schema_of_a_key_and_a_value(self, topics: Topics) -> None:
        topic = topics.new("pairs")
        document = {
            "type": "KEY_VALUE",
            "schema": json.dumps({"key": "", "value": ""}),
            "properties": {
                "kv.encoding.type": "INLINE",
                "key.schema.name": "k",
                "key.schema.type": "STRING",
                "key.schema.properties": "{}",
                "value.schema.name": "v",
                "value.schema.type": "STRING",
                "value.schema.properties": "{}",
            },
        }
        topics.admin("POST", f"schemas/{topic.partition('://')[2]}/schema", document)
        payload = (1).to_bytes(4, "big") + b"k" + (2).to_bytes(4, "big") + b"vv"
        producer = topics.client.create_producer(topic, schema=pulsar.schema.BytesSchema())
        producer.send(payload)
        producer.close()
        row = read(options(topics, topic))[0]
        assert (row["key"], row["value"]) == ("k", "vv")

    @pytest.mark.parametrize("stream", [False, True])
    def test_changes_on_the_way(self, topics: Topics, stream: bool) -> None:
        topic = topics.new("changes")
        topics.send(topic, [Order(number=0, name="old")], AvroSchema(Order))
        given = options(topics, topic)
        if not stream:
            topics.send(topic, [Priced(number=1, name="new", price=2.5)], AvroSchema(Priced))
            rows = read(given)
            assert [(row["number"], row["name"], row["price"]) for row in rows] == [(0, "old", 1.5), (1, "new", 2.5)]
            return
        # A table's columns stay while a query runs: what came later is left out, and what is new comes with a restart.
        checkpoint = Checkpoint()
        given |= {"startingOffsets": "earliest", "pollInterval": "10ms"}
        driver = Driver(given, checkpoint)
        driver.run()
        topics.send(topic, [Priced(number=1, name="new", price=2.5)], AvroSchema(Priced))
        driver.run_until(2)
        assert [(row["number"], row["name"]) for row in checkpoint.rows()] == [(0, "old"), (1, "new")]
        assert "price" not in checkpoint.rows()[1]
        driver.die()
        topics.send(topic, [Order(number=2, name="old")], AvroSchema(Order))
        Driver(given, checkpoint).run()
        assert [row.get("price") for row in checkpoint.rows()] == [None, None, 1.5]

    def test_two_topics(self, topics: Topics) -> None:
        orders, texts = topics.new("orders"), topics.new("texts")
        topics.send(orders, [Order(number=1, name="a")], AvroSchema(Order))
        topics.send(texts, ["b"], StringSchema())
        given = {**topics.urls, "topics": f"{orders},{texts}"}
        with pytest.raises(BadOption, match=f"{orders} and {texts} have different schemas, so they make no table"):
            read(given)
        for more in ({"allowDifferentTopicSchemas": "true"}, {"rawValues": "true"}):
            rows = read({**given, **more})
            assert {row["__topic"]: row["value"] for row in rows} == {orders: b"\x02\x02\x02\x02a", texts: b"b"}

    def test_columns(self, topics: Topics) -> None:
        topic = topics.new("columns")
        topics.send(topic, [Order(number=1, name="a")], AvroSchema(Order))
        for given in ('["name","__key"]', "name, __key"):
            assert read(options(topics, topic, columns=given)) == [{"name": "a", "__key": None}]
        # A schema that a user gives is a choice, too.
        schema = StructType.fromJson(json.loads(source_of(options(topics, topic)).schema().json()))
        assert read(options(topics, topic), StructType([schema["name"]])) == [{"name": "a"}]
        with pytest.raises(BadOption, match="the topic has no column nam: did you mean name"):
            read(options(topics, topic), StructType().add("nam", "string"))
        with pytest.raises(BadOption, match="column name is string in Arrow's terms, not int64"):
            read(options(topics, topic), StructType().add("name", "long"))


@pytest.fixture(scope="module")
def bad(topics: Topics) -> str:
    """Of three messages the one in the middle is no record: its producer has said nothing of a schema."""
    topic = topics.new("bad")
    topics.send(topic, [Order(number=1, name="a")], JsonSchema(Order))
    topics.send(topic, [b"{nonsense"])
    topics.send(topic, [Order(number=2, name="b")], JsonSchema(Order))
    return topic


class TestUndecodable:
    def test_fails(self, topics: Topics, bad: str) -> None:
        with pytest.raises(BadRecord) as caught:
            read(options(topics, bad))
        assert str(caught.value).startswith(f"{bad}: message ")
        assert "With option mode=PERMISSIVE or mode=DROPMALFORMED the query goes on" in str(caught.value)

    def test_dropped(self, topics: Topics, bad: str, caplog: pytest.LogCaptureFixture) -> None:
        assert values(read(options(topics, bad, mode="DROPMALFORMED")), "number") == [1, 2]
        assert "1 bad messages in all" in caplog.text

    def test_kept(self, topics: Topics, bad: str) -> None:
        rows = read(options(topics, bad, mode="PERMISSIVE"))
        assert values(rows, "number") == [1, None, 2]
        assert rows[1]["__messageId"]
        columns = "number,_corrupt_record,__topic"
        rows = read(options(topics, bad, mode="permissive", columns=columns))
        assert [list(row.values())[:2] for row in rows] == [[1, None], [None, b"{nonsense"], [2, None]]
        columns = "number,odd"
        rows = read(options(topics, bad, mode="permissive", columns=columns, columnNameOfCorruptRecord="odd"))
        assert values(rows, "odd") == [None, b"{nonsense", None]

    def test_no_matter_when_nobody_looks(self, topics: Topics, bad: str) -> None:
        assert len(read(options(topics, bad, columns="__messageId"))) == 3
        assert values(read(options(topics, bad, rawValues="true")))[1] == b"{nonsense"


@pytest.fixture(scope="module")
def topic(topics: Topics) -> str:
    """Ten messages in two partitions, of three keys, with times."""
    topic = topics.new("pushed", partitions=2)
    for number in range(10):
        topics.send(
            f"{topic}-partition-{number % 2}", [b"%d" % number], partition_key=f"k{number % 3}",
            event_timestamp=1_000_000_000_000 + number,
        )  # fmt: skip
        time.sleep(0.002)
    return topic


class TestPushDown:
    def test_filters_of_spark(self, topics: Topics, topic: str) -> None:
        rows = read(options(topics, topic))
        by_value = {int(row["value"]): row for row in rows}

        def found(*filters: Any) -> set[int]:
            return set(map(int, values(read(options(topics, topic), filters=filters))))

        assert found(IsNotNull(("__key",)), EqualTo(("__key",), "k1")) == {1, 4, 7}
        assert found(In(("__key",), ("k1", "k2"))) == {1, 2, 4, 5, 7, 8}
        published = [by_value[number]["__publishTime"] for number in range(10)]
        assert found(GreaterThanOrEqual(("__publishTime",), published[4])) == set(range(4, 10))
        assert found(LessThan(("__publishTime",), published[4])) == set(range(4))
        occurred = dt.datetime.fromtimestamp(1_000_000_000.005, dt.UTC)
        assert found(GreaterThanOrEqual(("__eventTime",), occurred)) == set(range(5, 10))
        assert found(EqualTo(("__topic",), f"{topic}-partition-1")) == {1, 3, 5, 7, 9}
        assert found(StringStartsWith(("__topic",), f"{topic}-partition-0")) == {0, 2, 4, 6, 8}
        assert found(EqualTo(("__key",), "k1"), EqualTo(("__topic",), f"{topic}-partition-1")) == {1, 7}
        assert found(EqualTo(("__key",), "nobody's")) == set()

    def test_topics_that_are_not_wanted_are_not_planned(self, topics: Topics, topic: str) -> None:
        _, partitions = planned(options(topics, topic), filters=[EqualTo(("__topic",), f"{topic}-partition-1")])
        assert len(partitions) == 1
        _, partitions = planned(options(topics, topic), filters=[EqualTo(("__topic",), "another one")])
        assert partitions == []

    @pytest.mark.parametrize("stream", [False, True])
    def test_options(self, topics: Topics, topic: str, stream: bool) -> None:
        def found(**more: str) -> set[int]:
            if not stream:
                return set(map(int, values(read(options(topics, topic, **more)))))
            checkpoint = Checkpoint()
            Driver(options(topics, topic, startingOffsets="earliest", **more), checkpoint).run()
            return set(map(int, checkpoint.values()))

        assert found(keys="k0,k2") == {0, 2, 3, 5, 6, 8, 9}
        assert found(partitions="1") == {1, 3, 5, 7, 9}
        assert found(eventTimeFrom="1000000000003", eventTimeTo="1000000000006") == {3, 4, 5}
        assert found(publishTimeFrom="2000-01-01", publishTimeTo="2001-01-01") == set()


class TestPacked:
    @pytest.mark.parametrize("compression", ["NONE", "LZ4", "ZLib", "ZSTD", "SNAPPY"])
    def test_batches(self, topics: Topics, compression: str) -> None:
        topic = topics.new("packed")
        sent = [b"%d" % number * 10 for number in range(250)]
        topics.send_batches(topic, sent, 100, compression_type=getattr(pulsar.CompressionType, compression))
        rows = read(options(topics, topic))
        assert values(rows) == sent
        assert len({row["__messageId"] for row in rows}) == 250

    @pytest.mark.parametrize("compression", ["NONE", "ZSTD"])
    def test_chunks(self, topics: Topics, compression: str) -> None:
        topic = topics.new("chunks")
        large = bytes(number * number % 251 for number in range(12_000_000))
        producer = topics.client.create_producer(
            topic,
            batching_enabled=False,
            chunking_enabled=True,
            compression_type=getattr(pulsar.CompressionType, compression),
        )
        for value in (b"before", large, b"after"):
            producer.send(value)
        producer.close()
        for more in ({}, {"splitBytes": "1m"}):
            assert values(read(options(topics, topic, **more))) == [b"before", large, b"after"]

    def test_tasks_are_cut_by_size(self, topics: Topics) -> None:
        topic = topics.new("cut")
        topics.send_batches(topic, [b"x" * 1000] * 5000, 100)
        _, partitions = planned(options(topics, topic, splitBytes="1m"))
        assert len(partitions) == 5
        assert len(read(options(topics, topic, splitBytes="1m"))) == 5000
