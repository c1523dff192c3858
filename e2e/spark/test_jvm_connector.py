"""StreamNative's connector for the JVM, on the newest Spark on which it both reads and writes, as people have it today.

It and our data source read each other's topics and the official client's, and every row is the same to each of them.
It is given its own topic column when it writes: on Spark later than 3.1, its option `topic` is refused by Spark."""

import base64
import datetime as dt
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pulsar
import pytest
from pulsar import schema

from e2e.cluster import admin
from e2e.server import StandaloneProcess
from e2e.spark import environments
from e2e.spark.running import Spark

CONNECTOR = "io.streamnative.connectors:pulsar-spark-connector_2.12:3.1.1.4"
PYSPARK = "3.4.4"

TOPICS = Path(__file__).parent / "programs" / "topics.py"
BATCHED = 900
"""Of a thousand messages, so many are sent in batches."""
EVENT_TIME_MS = 1_700_000_000_000
META = ["__topic", "__messageId", "__publishTime", "__eventTime", "__messageProperties"]
KEYED = ["CAST(__key AS STRING) AS __key", *META]
"""The connector has keys as bytes."""

# A first run makes an environment and downloads the connector.
pytestmark = [pytest.mark.clients, pytest.mark.slow, pytest.mark.timeout(1800)]

Row = dict[str, Any]


@pytest.fixture(scope="module")
def jvm_spark(make_spark: Callable[..., Spark]) -> Spark:
    """PySpark with the connector, from Maven Central."""
    configuration = {
        "spark.jars.packages": CONNECTOR,
        "spark.jars.ivy": str(environments.cache() / "ivy"),
        # Tasks are tried again, as on a cluster: the client in the connector now and then reads a schema that it was
        # answered after it has emptied the object for the next answer, when the answer comes quickly.
        "spark.master": "local[2, 4]",
    }
    return make_spark(pyspark=PYSPARK, configuration=configuration)


class SomeRecord(schema.Record):  # type: ignore[misc] # The client has no types.
    """What the official client sends."""

    id = schema.Long()
    name = schema.String()
    share = schema.Double()
    even = schema.Boolean()


def reading(urls: dict[str, str], topic: str, select: list[str]) -> dict[str, Any]:
    """A step of the script."""
    return {"do": "read", "options": {**urls, "topic": topic}, "select": select}


def ran(spark: Spark, *steps: dict[str, Any]) -> list[Any]:
    """The steps' answers."""
    answers: list[Any] = spark.run(TOPICS, {"steps": list(steps)})
    return answers


def in_order(rows: list[Row]) -> list[Row]:
    """By topic and place in it, whatever tasks they came from."""
    return sorted(rows, key=lambda row: (row["__topic"], [int(part) for part in row["__messageId"].split(":")]))


def from_jvm(rows: list[Row]) -> list[Row]:
    """The connector's rows as ours are: its message ids are the client's bytes, ours are text."""
    return in_order([{**row, "__messageId": message_id(row["__messageId"])} for row in rows])


def message_id(encoded: str) -> str:
    """`ledger:entry`, and the number in the batch if it came in one."""
    decoded = pulsar.MessageId.deserialize(base64.b64decode(encoded))
    parts = [decoded.ledger_id(), decoded.entry_id()]
    return ":".join(str(part) for part in (*parts, *([decoded.batch_index()] if decoded.batch_index() >= 0 else [])))


def time_text(milliseconds: int) -> str:
    """As Spark's JSON has it."""
    moment = dt.datetime.fromtimestamp(milliseconds / 1000, dt.UTC)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{milliseconds % 1000:03d}Z"


def encoded(value: bytes) -> str:
    """As Spark's JSON has bytes."""
    return base64.b64encode(value).decode()


def received(stock: pulsar.Client, topic: str, values: schema.Schema | None = None) -> list[pulsar.Message]:
    """All messages of the topic, by the official client."""
    found = []
    reader = stock.create_reader(topic, pulsar.MessageId.earliest, schema=values or schema.BytesSchema())
    while reader.has_message_available():
        found.append(reader.read_next(10_000))
    reader.close()
    return found


def avro_schema(server: StandaloneProcess, topic: str) -> schema.AvroSchema:
    """What the registry has for it."""
    path = topic.replace("://", "/").removeprefix("persistent/")
    found = admin.get_json(f"{server.admin_url}/admin/v2/schemas/{path}/schema")
    assert found["type"] == "AVRO"
    return schema.AvroSchema(None, schema_definition=json.loads(found["data"]))


def send(producer: pulsar.Producer, numbers: range, value: Callable[[int], Any], **always: Any) -> None:
    """A message for each number, without waiting for each."""
    for number in numbers:
        producer.send_async(value(number), lambda _result, _id: None, **(always or metadata(number)))
    producer.flush()


def metadata(number: int) -> dict[str, Any]:
    """Now and then one without key, event time or properties.

    Only what is sent alone has no key: the connector's client, of 2019, takes the batch's for it otherwise."""
    return {
        "partition_key": f"key{number % 97}" if number % 10 or number < BATCHED else None,
        "event_timestamp": EVENT_TIME_MS + number if number % 7 else None,
        "properties": {"number": str(number), "text": "größer"} if number % 5 else None,
    }


class TestReading:
    """What the official client wrote: the connector's rows are what was sent, and ours are the connector's."""

    def test_partitions_and_metadata(
        self,
        jvm_spark: Spark,
        our_spark: Spark,
        stock: pulsar.Client,
        urls: dict[str, str],
        new_topic: Callable[..., str],
    ) -> None:
        topic = new_topic("plain", partitions=3)
        for batching, numbers in ((True, range(BATCHED)), (False, range(BATCHED, 1000))):
            producer = stock.create_producer(topic, batching_enabled=batching, batching_max_messages=50)
            send(producer, numbers, lambda number: b"\x00\xff%d" % number)
            producer.close()
        step = reading(urls, topic, ["value", *KEYED])
        (told,) = ran(jvm_spark, step)
        assert told["columns"]["value"] == "binary"
        by_value = {row["value"]: row for row in told["rows"]}
        assert len(told["rows"]) == len(by_value) == 1000
        for number in range(1000):
            row, sent = by_value[encoded(b"\x00\xff%d" % number)], metadata(number)
            assert row["__key"] == sent["partition_key"]
            assert row["__messageProperties"] == (sent["properties"] or {})
            event_time = sent["event_timestamp"]
            assert row["__eventTime"] == (event_time and time_text(event_time))
        (ours,) = ran(our_spark, step)
        assert in_order(ours["rows"]) == from_jvm(told["rows"])

    def test_schemas(
        self,
        jvm_spark: Spark,
        our_spark: Spark,
        stock: pulsar.Client,
        urls: dict[str, str],
        new_topic: Callable[..., str],
    ) -> None:
        def record(number: int) -> SomeRecord:
            name = f"n{number}" if number % 3 else None
            return SomeRecord(id=number, name=name, share=number / 8, even=number % 2 == 0)

        steps = []
        for values in (schema.AvroSchema(SomeRecord), schema.JsonSchema(SomeRecord), schema.StringSchema()):
            topic = new_topic(type(values).__name__)
            producer = stock.create_producer(topic, schema=values)
            is_text = isinstance(values, schema.StringSchema)
            send(producer, range(100), "text{}".format if is_text else record)
            producer.close()
            steps.append(reading(urls, topic, ["value" if is_text else "id, name, share, even", *KEYED]))
        for step in steps[:2]:
            step["select"] = ["id", "name", "share", "even", *KEYED]
        told, ours = ran(jvm_spark, *steps), ran(our_spark, *steps)
        for answer in told[:2]:
            assert [row["id"] for row in from_jvm(answer["rows"])] == list(range(100))
            for row in answer["rows"]:
                sent = record(row["id"])
                assert (row["name"], row["share"], row["even"]) == (sent.name, sent.share, sent.even)
        assert [row["value"] for row in from_jvm(told[2]["rows"])] == [f"text{number}" for number in range(100)]
        for answer, our_answer in zip(told, ours, strict=True):
            assert in_order(our_answer["rows"]) == from_jvm(answer["rows"])

    def test_stream_that_is_killed(
        self,
        jvm_spark: Spark,
        stock: pulsar.Client,
        urls: dict[str, str],
        new_topic: Callable[..., str],
        tmp_path: Path,
    ) -> None:
        topic = new_topic("stream", partitions=2)
        producer = stock.create_producer(topic, batching_max_messages=20)
        step = {
            "do": "stream",
            "options": {**urls, "topic": topic, "startingOffsets": "earliest"},
            "select": ["CAST(value AS STRING) AS value", *KEYED],
            "checkpoint": str(tmp_path / "checkpoint"),
            "folder": str(tmp_path / "batches"),
        }

        def send_numbers(numbers: range) -> None:
            # Two keys: each of the partitions has one, and so messages in order.
            for number in numbers:
                producer.send_async(b"%d" % number, lambda _result, _id: None, partition_key=f"k{number % 2}")
            producer.flush()

        def batch(number: int) -> list[int]:
            return sorted(int(row["value"]) for row in json.loads((tmp_path / f"batches/{number}.json").read_text()))

        send_numbers(range(300))
        ran(jvm_spark, step)
        assert batch(0) == list(range(300))
        send_numbers(range(300, 500))
        running = jvm_spark.start(TOPICS, {"steps": [{**step, "pause_in": 1}]})
        running.wait_for_file(tmp_path / "batches" / "paused", timeout_s=300)
        running.kill()
        send_numbers(range(500, 600))
        producer.close()
        # What was not committed is read once more, and no further than before.
        (tmp_path / "batches" / "1.json").unlink()
        ran(jvm_spark, step)
        assert batch(1) == list(range(300, 500))
        assert batch(2) == list(range(500, 600))


WIDE = [
    "id",
    "CAST(id AS INT) AS small",
    "CAST(id AS DOUBLE) / 8 AS share",
    "CAST(id AS FLOAT) AS single",
    "id % 2 = 0 AS even",
    "CASE WHEN id % 3 <> 0 THEN concat('name', id) END AS name",
    "CAST(concat('x', id) AS BINARY) AS raw",
    "array(id, id + 1) AS pair",
    "named_struct('x', id, 'y', CAST(id AS STRING)) AS inner",
    "map('it', id) AS by_name",
    f"timestamp_millis({EVENT_TIME_MS} + id) AS at",
    "date_add(DATE'2024-01-01', CAST(id % 365 AS INT)) AS day",
    "CAST(id AS DECIMAL(10, 2)) AS price",
]
WIDE_NAMES = [expression.rpartition(" AS ")[2] for expression in WIDE]
# Of JSON the connector reads no dates at all, and timestamps only on the Spark that it is built for, which is 3.1: it
# takes a method of its options that is not in later ones.
NOT_IN_JSON = ("at", "day")
JSON = [expression for name, expression in zip(WIDE_NAMES, WIDE, strict=True) if name not in NOT_IN_JSON]
JSON_NAMES = [name for name in WIDE_NAMES if name not in NOT_IN_JSON]


def wide(number: int) -> Row:
    """The row that WIDE makes of the id, as JSON."""
    return {
        "id": number,
        "small": number,
        "share": number / 8,
        "single": float(number),
        "even": number % 2 == 0,
        "name": f"name{number}" if number % 3 else None,
        "raw": encoded(b"x%d" % number),
        "pair": [number, number + 1],
        "inner": {"x": number, "y": str(number)},
        "by_name": {"it": number},
        "at": time_text(EVENT_TIME_MS + number),
        "day": str(dt.date(2024, 1, 1) + dt.timedelta(days=number % 365)),
        "price": float(number),
    }


def written(topic: str, select: list[str]) -> list[str]:
    """Expressions of rows with everything that both sinks take."""
    return [
        f"'{topic}' AS __topic",
        "CAST(id AS STRING) AS __key",
        f"{EVENT_TIME_MS} + id AS __eventTime",
        *select,
    ]


def values(answer: dict[str, Any], names: list[str]) -> list[Row]:
    """Only these columns, by number."""
    found = [{name: row[name] for name in names} for row in answer["rows"]]
    return sorted(found, key=lambda row: int(row[names[0]]))


class TestWriting:
    """What the connector wrote is the same to itself, to the official client and to our data source."""

    def test_batches(
        self,
        jvm_spark: Spark,
        our_spark: Spark,
        server: StandaloneProcess,
        stock: pulsar.Client,
        urls: dict[str, str],
        new_topic: Callable[..., str],
    ) -> None:
        texts, records = new_topic("texts"), new_topic("records", partitions=2)
        write = {"do": "write", "options": urls, "count": 1000}
        steps = [
            {**write, "select": written(texts, ["CAST(id AS STRING) AS value"])},
            {**write, "select": written(records, WIDE)},
        ]
        reads = [reading(urls, texts, ["value", *KEYED]), reading(urls, records, [*WIDE_NAMES, *KEYED])]
        _, _, *told = ran(jvm_spark, *steps, *reads)
        assert values(told[0], ["value"]) == [{"value": str(number)} for number in range(1000)]
        assert values(told[1], WIDE_NAMES) == [wide(number) for number in range(1000)]

        messages = received(stock, texts, schema.StringSchema())
        assert sorted(int(message.value()) for message in messages) == list(range(1000))
        for message in messages:
            # The connector's keys are bytes, which Python's client shows as they are sent.
            assert message.partition_key() == encoded(message.value().encode())
            assert message.event_timestamp() == EVENT_TIME_MS + int(message.value())
        for partition in range(2):
            topic = f"{records}-partition-{partition}"
            for message in received(stock, topic, avro_schema(server, records)):
                record = message.value()
                number = record["id"]
                assert message.event_timestamp() == EVENT_TIME_MS + number
                assert {**record, "raw": encoded(record["raw"])} == {
                    **wide(number),
                    "at": dt.datetime.fromtimestamp((EVENT_TIME_MS + number) / 1000, dt.UTC),
                    "day": dt.date(2024, 1, 1) + dt.timedelta(days=number % 365),
                }

        ours = ran(our_spark, *reads)
        for answer, our_answer in zip(told, ours, strict=True):
            assert in_order(our_answer["rows"]) == from_jvm(answer["rows"])

    def test_streams(
        self,
        jvm_spark: Spark,
        our_spark: Spark,
        stock: pulsar.Client,
        urls: dict[str, str],
        new_topic: Callable[..., str],
        tmp_path: Path,
    ) -> None:
        source, target = new_topic("from"), new_topic("to")
        producer = stock.create_producer(source)
        step = copying(urls, source, target, tmp_path)
        told: list[Any] = []
        for numbers in (range(500), range(500, 1000)):
            send(producer, numbers, lambda number: b"%d" % number, partition_key="k")
            # The second one goes on from the checkpoint.
            told = ran(jvm_spark, step, reading(urls, target, ["value", *KEYED]))
        producer.close()
        assert sorted(int(message.data()) for message in received(stock, target)) == list(range(1000))
        assert [int(row["value"]) for row in from_jvm(told[1]["rows"])] == list(range(1000))
        (ours,) = ran(our_spark, reading(urls, target, ["value", *META]))
        assert in_order(ours["rows"]) == [
            {name: value for name, value in row.items() if name != "__key"} for row in from_jvm(told[1]["rows"])
        ]


def copying(urls: dict[str, str], source: str, target: str, folder: Path) -> dict[str, Any]:
    """A step that streams texts from a topic to another one."""
    return {
        "do": "stream_write",
        "source": {**urls, "topic": source, "startingOffsets": "earliest"},
        "select": [f"'{target}' AS __topic", "CAST(__key AS STRING) AS __key", "CAST(value AS STRING) AS value"],
        "options": urls,
        "checkpoint": str(folder / "checkpoint"),
    }


class TestOurs:
    """What our data source wrote is the same to the connector."""

    def test_batches(
        self, jvm_spark: Spark, our_spark: Spark, urls: dict[str, str], new_topic: Callable[..., str]
    ) -> None:
        texts, avro, objects = new_topic("texts"), new_topic("avro", partitions=2), new_topic("json")
        write = {"do": "write", "options": urls, "count": 1000}
        steps = [
            {**write, "select": written(texts, ["CAST(id AS STRING) AS value"])},
            {**write, "select": written(avro, WIDE)},
            {**write, "select": written(objects, JSON), "options": {**urls, "schemaType": "json"}},
        ]
        reads = [
            reading(urls, texts, ["value", *KEYED]),
            reading(urls, avro, [*WIDE_NAMES, *KEYED]),
            reading(urls, objects, [*JSON_NAMES, *KEYED]),
        ]
        _, _, _, *ours = ran(our_spark, *steps, *reads)
        told = ran(jvm_spark, *reads)
        assert values(told[0], ["value"]) == [{"value": str(number)} for number in range(1000)]
        for answer, names in ((told[1], WIDE_NAMES), (told[2], JSON_NAMES)):
            rows = [{name: wide(number)[name] for name in names} for number in range(1000)]
            assert values(answer, names) == rows
        for answer, our_answer in zip(told, ours, strict=True):
            assert from_jvm(answer["rows"]) == in_order(our_answer["rows"])

    def test_streams(
        self,
        jvm_spark: Spark,
        our_spark: Spark,
        stock: pulsar.Client,
        urls: dict[str, str],
        new_topic: Callable[..., str],
        tmp_path: Path,
    ) -> None:
        source, target = new_topic("from"), new_topic("to")
        producer = stock.create_producer(source)
        for numbers in (range(500), range(500, 1000)):
            send(producer, numbers, lambda number: b"%d" % number, partition_key="k")
            ran(our_spark, copying(urls, source, target, tmp_path))
        producer.close()
        (told,) = ran(jvm_spark, reading(urls, target, ["value", *KEYED]))
        assert [int(row["value"]) for row in from_jvm(told["rows"])] == list(range(1000))
        assert {row["__key"] for row in told["rows"]} == {"k"}
