"""Writing without Spark: tasks and their further attempts against a real broker, read back with the stock client."""

from __future__ import annotations

import json
import threading
import time
import urllib.request
from collections.abc import Iterator
from typing import Any, Final, cast

import pulsar
import pyarrow as pa
import pytest
from magnetar.client.client import PulsarClient
from magnetar.client.errors import ConnectionFailed
from magnetar.client.producer import ProducerOptions
from magnetar.core.hashing import java_string_hash
from magnetar.core.topic_name import TopicName
from magnetar.spark import runtime
from magnetar.spark.brokers.client_factory import make_client
from magnetar.spark.errors import ClusterUnreachable, SinkRefused, TopicMissing
from magnetar.spark.sink.options import SinkOptions, parse_sink_options
from magnetar.spark.sink.rows import BATCH_SHIFT, FINGERPRINT_BITS
from magnetar.spark.sink.targets import SinkTopicFinder
from magnetar.spark.sink.writing import TaskIdentity, TaskWriter, prepare
from magnetar.spark.values.api import SchemaDefinition
from magnetar.standalone.threaded import ThreadedCluster
from magnetar.wire.pulsar.enums import SchemaType
from magnetar.wire.pulsar.errors import PulsarError, ServerError
from pulsar.schema import AvroSchema, Long
from pulsar.schema import Record as AvroRecord
from pulsar.schema import String as Text

pytestmark = [pytest.mark.slow, pytest.mark.clients]

PLAIN: Final = "public/plain"
"""A namespace without deduplication."""


def admin(cluster: ThreadedCluster, method: str, path: str, body: Any = None) -> None:
    request = urllib.request.Request(
        f"{cluster.admin_url}/admin/v2/{path}",
        method=method,
        data=None if body is None else json.dumps(body).encode(),
        headers={"Content-Type": "application/json"},
    )
    urllib.request.urlopen(request).close()


@pytest.fixture(scope="module")
def cluster() -> Iterator[ThreadedCluster]:
    with ThreadedCluster() as running:
        admin(running, "POST", "namespaces/public/default/deduplication", True)
        admin(running, "PUT", f"namespaces/{PLAIN}", {})
        yield running


@pytest.fixture(scope="module")
def stock(cluster: ThreadedCluster) -> Iterator[pulsar.Client]:
    client = pulsar.Client(cluster.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    yield client
    client.close()


def options_of(cluster: ThreadedCluster, topic: str, **more: str) -> SinkOptions:
    given = {"service.url": cluster.service_url, "admin.url": cluster.admin_url, **more}
    if topic:
        given["topic"] = topic
    return parse_sink_options({name: value for name, value in given.items() if value})


def rows_of(first: int, end: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(
        {"value": pa.array([f"row {number}" for number in range(first, end)], pa.string())}
    )


def write(
    options: SinkOptions, batches: list[pa.RecordBatch] | Iterator[pa.RecordBatch], identity: TaskIdentity | None = None
) -> int:
    plan = prepare(options, rows_of(0, 0).schema)
    return TaskWriter(plan, identity or task()).write(batches)


def task(query: str = "q", batch_id: int = 0, spark_partition: int = 0) -> TaskIdentity:
    return TaskIdentity(query=query, batch_id=batch_id, spark_partition=spark_partition)


def messages_of(stock: pulsar.Client, topic: str) -> list[Any]:
    reader = stock.create_reader(topic, pulsar.MessageId.earliest)
    found = []
    while reader.has_message_available():
        found.append(reader.read_next(5000))
    reader.close()
    return found


def values_of(stock: pulsar.Client, topic: str) -> list[str]:
    return [message.data().decode() for message in messages_of(stock, topic)]


def expected(first: int, end: int) -> list[str]:
    return [f"row {number}" for number in range(first, end)]


class Dies(Exception):
    """What a test's attempt ends by."""


def dying(batches: list[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from batches
    raise Dies


class TestOnce:
    def test_written_and_read_back(self, cluster: ThreadedCluster, stock: pulsar.Client) -> None:
        topic = cluster.unique_topic("plain")
        assert write(options_of(cluster, topic), [rows_of(0, 1500), rows_of(1500, 3000)]) == 3000
        found = messages_of(stock, topic)
        assert [message.data().decode() for message in found] == expected(0, 3000)
        assert found[0].producer_name() == "spark-q-0"

    def test_whole_attempt_again_stores_nothing_more(self, cluster: ThreadedCluster, stock: pulsar.Client) -> None:
        topic = cluster.unique_topic("again")
        for _ in range(3):
            write(options_of(cluster, topic), [rows_of(0, 2500)])
        assert values_of(stock, topic) == expected(0, 2500)

    def test_attempt_that_failed_in_the_middle(self, cluster: ThreadedCluster, stock: pulsar.Client) -> None:
        topic = cluster.unique_topic("middle")
        options = options_of(cluster, topic, batchingMaxMessages="100")
        with pytest.raises(Dies):
            write(options, dying([rows_of(0, 1000)]))
        assert 0 < len(values_of(stock, topic)) <= 1000
        write(options, [rows_of(0, 700), rows_of(700, 2000)])
        assert values_of(stock, topic) == expected(0, 2000)

    def test_entries_may_be_cut_otherwise_in_the_next_attempt(
        self, cluster: ThreadedCluster, stock: pulsar.Client
    ) -> None:
        topic = cluster.unique_topic("cut")
        with pytest.raises(Dies):
            write(options_of(cluster, topic, batchingMaxMessages="30"), dying([rows_of(0, 100)]))
        write(options_of(cluster, topic, batchingMaxMessages="70"), [rows_of(0, 300)])
        assert values_of(stock, topic) == expected(0, 300)

    def test_batches_of_a_stream_follow_each_other(self, cluster: ThreadedCluster, stock: pulsar.Client) -> None:
        topic = cluster.unique_topic("stream")
        options = options_of(cluster, topic)
        for batch_id in (0, 1, 1, 2):
            write(options, [rows_of(batch_id * 10, batch_id * 10 + 10)], task(batch_id=batch_id))
        assert values_of(stock, topic) == expected(0, 30)
        assert messages_of(stock, topic)[-1].data() == b"row 29"

    def test_partitions_of_spark_do_not_know_each_other(self, cluster: ThreadedCluster, stock: pulsar.Client) -> None:
        topic = cluster.unique_topic("two")
        for spark_partition in (0, 1, 1, 0):
            write(options_of(cluster, topic), [rows_of(0, 10)], task(spark_partition=spark_partition))
        assert sorted(values_of(stock, topic)) == sorted(expected(0, 10) * 2)

    def test_at_least_once_stores_all_attempts(self, cluster: ThreadedCluster, stock: pulsar.Client) -> None:
        topic = f"persistent://{PLAIN}/often"
        for _ in range(2):
            write(options_of(cluster, topic, deliveryGuarantee="at-least-once"), [rows_of(0, 10)])
        assert values_of(stock, topic) == expected(0, 10) * 2

    def test_no_rows_connect_to_nothing(self) -> None:
        nowhere = parse_sink_options({"service.url": "pulsar://127.0.0.1:1", "topic": "t"})
        plan = sink_plan(nowhere)
        assert TaskWriter(plan, task()).write([rows_of(0, 0)]) == 0


def sink_plan(options: SinkOptions) -> Any:
    from magnetar.spark.sink.rows import SinkTopic
    from magnetar.spark.sink.writing import WritePlan

    target = SinkTopic(
        topic=options.topic, partitions=0, definition=SchemaDefinition(type=SchemaType.NONE), deduplicates=True
    )
    return WritePlan(options=options, target=target)


class TestTwoAttemptsAtATime:
    def test_the_second_waits_for_the_first(self, cluster: ThreadedCluster, stock: pulsar.Client) -> None:
        topic = cluster.unique_topic("zombie")
        options = options_of(cluster, topic, batchingMaxMessages="100")
        goes_on = threading.Event()
        half = threading.Event()

        def slowly() -> Iterator[pa.RecordBatch]:
            yield rows_of(0, 1000)
            half.set()
            assert goes_on.wait(30)
            yield rows_of(1000, 2000)

        # Each with an event loop of its own in place of a process of its own would be more; the name is what counts.
        zombie = threading.Thread(target=lambda: write(options, slowly()))
        zombie.start()
        assert half.wait(30)
        threading.Timer(1.0, goes_on.set).start()
        started = time.monotonic()
        write(options, [rows_of(0, 2000)])
        zombie.join(30)
        assert time.monotonic() - started > 0.9
        assert values_of(stock, topic) == expected(0, 2000)

    def test_waiting_has_an_end(self, cluster: ThreadedCluster) -> None:
        topic = cluster.unique_topic("stuck")
        options = options_of(cluster, topic, attemptTimeout="1s")

        async def holds() -> Any:
            client = make_client(options.connection)
            await client.producer(TopicName.parse(topic), ProducerOptions(name="spark-q-0"))
            return client

        holder = runtime.run(holds())
        try:
            with pytest.raises(SinkRefused, match=r"rows 0 to 9 of Spark partition 0 to persistent.* after 1 s"):
                write(options, [rows_of(0, 10)])
        finally:
            runtime.run(holder.close())


class TestGuarantee:
    def test_refused_before_anything_is_written(self, cluster: ThreadedCluster) -> None:
        topic = f"persistent://{PLAIN}/refused"
        # A topic that is not there yet: its namespace tells.
        make_topic(cluster, topic)
        with pytest.raises(SinkRefused, match=f"topicPolicies set-deduplication --enable {topic} ") as caught:
            prepare(options_of(cluster, topic), rows_of(0, 0).schema)
        assert f"namespaces set-deduplication --enable {PLAIN} " in str(caught.value)

    def test_without_the_admin_api_the_first_row_shows_it(self, cluster: ThreadedCluster, stock: pulsar.Client) -> None:
        topic = f"persistent://{PLAIN}/tried"
        options = options_of(cluster, topic, **{"admin.url": ""})
        with pytest.raises(SinkRefused, match=r"deduplication is off for .*first row of Spark partition 0 is stored"):
            write(options, [rows_of(0, 100)])
        assert values_of(stock, topic) == ["row 0"]

    def test_without_the_admin_api_and_with_deduplication(self, cluster: ThreadedCluster, stock: pulsar.Client) -> None:
        topic = cluster.unique_topic("tried")
        options = options_of(cluster, topic, **{"admin.url": ""})
        with pytest.raises(Dies):
            write(options, dying([rows_of(0, 2000)]))
        write(options, [rows_of(0, 3000)])
        assert values_of(stock, topic) == expected(0, 3000)

    def test_older_batch_than_the_topic_has(self, cluster: ThreadedCluster) -> None:
        topic = cluster.unique_topic("older")
        write(options_of(cluster, topic), [rows_of(0, 10)], task(batch_id=5))
        with pytest.raises(SinkRefused, match=r"has rows of batch 5 .* this is batch 4: its checkpoint is older"):
            write(options_of(cluster, topic), [rows_of(0, 10)], task(batch_id=4))

    def test_rows_that_are_not_the_same_again(self, cluster: ThreadedCluster, stock: pulsar.Client) -> None:
        topic = cluster.unique_topic("shuffled")
        write(options_of(cluster, topic), [rows_of(0, 100)])
        for others in (rows_of(0, 90), rows_of(1, 101), rows_of(50, 300)):
            with pytest.raises(SinkRefused, match=r"stored other rows for it, up to row 99 of Spark partition 0: "):
                write(options_of(cluster, topic), [others])
        assert values_of(stock, topic) == expected(0, 100)

    def test_a_write_id_that_was_used_before(self, cluster: ThreadedCluster) -> None:
        topic = cluster.unique_topic("reused")
        options = options_of(cluster, topic, writeId="nightly")
        write(options, [rows_of(0, 10)])
        with pytest.raises(SinkRefused, match="writeId nightly may be of another write"):
            write(options, [rows_of(10, 20)])

    def test_partitions_were_added_between_attempts(self, cluster: ThreadedCluster) -> None:
        topic = cluster.unique_topic("grown")
        make_topic(cluster, topic, partitions=2)
        with pytest.raises(Dies):
            write(options_of(cluster, topic), dying([rows_of(0, 3000)]))
        admin(cluster, "POST", topic.replace("://", "/") + "/partitions", 4)
        with pytest.raises(SinkRefused, match=r"stored other rows for it.* the topic's partitions"):
            write(options_of(cluster, topic), [rows_of(0, 3000)])
        # Nothing of the next batch is the same as before anyway.
        write(options_of(cluster, topic), [rows_of(0, 10)], task(batch_id=1))


def make_topic(cluster: ThreadedCluster, topic: str, partitions: int = 0) -> None:
    path = topic.replace("://", "/")
    if partitions:
        admin(cluster, "PUT", f"{path}/partitions", partitions)
    else:
        admin(cluster, "PUT", path)


class TestColumns:
    def test_keys_go_to_their_partitions(self, cluster: ThreadedCluster, stock: pulsar.Client) -> None:
        topic = cluster.unique_topic("partitions")
        make_topic(cluster, topic, 4)
        keys = [f"key-{number}" for number in range(40)]
        batch = pa.RecordBatch.from_pydict({"value": pa.array(["ours"] * 40), "__key": pa.array(keys)})
        for _ in range(2):
            TaskWriter(prepare(options_of(cluster, topic), batch.schema), task()).write([batch])
        for partition in range(4):
            found = [message.partition_key() for message in messages_of(stock, f"{topic}-partition-{partition}")]
            assert found == [key for key in keys if java_string_hash(key) % 4 == partition]
            assert found

    def test_rows_name_their_topics(self, cluster: ThreadedCluster, stock: pulsar.Client) -> None:
        topics = [cluster.unique_topic("named") for _ in range(3)]
        batch = pa.RecordBatch.from_pydict(
            {"value": pa.array([f"row {n}" for n in range(300)]), "__topic": pa.array(topics * 100)}
        )
        plan = prepare(options_of(cluster, ""), batch.schema)
        for _ in range(2):
            TaskWriter(plan, task()).write([batch])
        for index, topic in enumerate(topics):
            assert values_of(stock, topic) == [f"row {n}" for n in range(index, 300, 3)]

    def test_several_spellings_of_a_topic(self, cluster: ThreadedCluster, stock: pulsar.Client) -> None:
        topic = cluster.unique_topic("spelled")
        names = [topic, topic.removeprefix("persistent://")] * 150
        batch = pa.RecordBatch.from_pydict(
            {"value": pa.array([f"row {n}" for n in range(300)]), "__topic": pa.array(names)}
        )
        plan = prepare(options_of(cluster, ""), batch.schema)
        for _ in range(2):
            TaskWriter(plan, task()).write([batch.slice(0, 100), batch.slice(100)])
        assert values_of(stock, topic) == expected(0, 300)

    def test_a_topic_and_its_partition_by_name_are_refused(self, cluster: ThreadedCluster) -> None:
        topic = cluster.unique_topic("both")
        make_topic(cluster, topic, partitions=2)
        batch = pa.RecordBatch.from_pydict(
            {"value": pa.array(["a", "b"]), "__topic": pa.array([topic, f"{topic}-partition-0"])}
        )
        with pytest.raises(SinkRefused, match=r"rows name both .*both-\S+ and .*-partition-0, .*column __partition"):
            TaskWriter(prepare(options_of(cluster, ""), batch.schema), task()).write([batch])

    def test_properties_times_and_no_value(self, cluster: ThreadedCluster, stock: pulsar.Client) -> None:
        topic = cluster.unique_topic("columns")
        batch = pa.RecordBatch.from_pydict(
            {
                "value": pa.array([b"a", None]),
                "__key": pa.array([b"\x01", b"\x02"]),
                "__eventTime": pa.array([1_000_000, None], pa.timestamp("us", tz="UTC")),
                "__messageProperties": pa.array([[("p", "1")], []], pa.map_(pa.string(), pa.string())),
            }
        )
        TaskWriter(prepare(options_of(cluster, topic), batch.schema), task()).write([batch])
        first, second = messages_of(stock, topic)
        assert (first.data(), first.properties(), first.event_timestamp()) == (b"a", {"p": "1"}, 1000)
        assert (second.data(), second.properties(), second.event_timestamp()) == (b"", {}, 0)
        assert first.partition_key() == "AQ=="

    def test_later_delivery(self, cluster: ThreadedCluster, stock: pulsar.Client) -> None:
        topic = cluster.unique_topic("later")
        consumer = stock.subscribe(topic, "s", consumer_type=pulsar.ConsumerType.Shared)
        at_ms = int(time.time() * 1000) + 1500
        batch = pa.RecordBatch.from_pydict(
            {"value": pa.array(["later", "now"]), "__deliverAt": pa.array([at_ms, None], pa.int64())}
        )
        TaskWriter(prepare(options_of(cluster, topic), batch.schema), task()).write([batch])
        assert consumer.receive(5000).data() == b"now"
        assert consumer.receive(5000).data() == b"later"
        assert time.time() * 1000 > at_ms - 50
        consumer.close()


class TestSchemas:
    def test_several_columns_are_a_record_by_the_registry(self, cluster: ThreadedCluster, stock: pulsar.Client) -> None:
        topic = cluster.unique_topic("avro")
        batch = pa.RecordBatch.from_pydict(
            {"id": pa.array([1, None]), "name": pa.array(["a", None]), "__key": pa.array(["k", "l"])}
        )
        for _ in range(2):
            # The second time the topic has the schema already.
            TaskWriter(prepare(options_of(cluster, topic), batch.schema), task()).write([batch])

        class Row(AvroRecord):  # type: ignore[misc] # The stock client has no types.
            id = Long()
            name = Text()

        reader = stock.create_reader(topic, pulsar.MessageId.earliest, schema=AvroSchema(Row))
        first = reader.read_next(5000)
        assert (first.value().id, first.value().name, first.partition_key()) == (1, "a", "k")
        assert reader.read_next(5000).data() == b""
        assert not reader.has_message_available()
        reader.close()

    def test_columns_have_to_go_with_the_topics_schema(self, cluster: ThreadedCluster) -> None:
        topic = cluster.unique_topic("other")
        batch = pa.RecordBatch.from_pydict({"id": pa.array([1]), "name": pa.array(["a"])})
        TaskWriter(prepare(options_of(cluster, topic), batch.schema), task()).write([batch])
        other = pa.schema({"id": pa.int64(), "surname": pa.string()})
        with pytest.raises(SinkRefused, match=r"the topic's schema has no fields surname; it has id, name"):
            prepare(options_of(cluster, topic), other)

    def test_schema_that_the_broker_refuses(self, cluster: ThreadedCluster) -> None:
        topic = cluster.unique_topic("incompatible")
        for kind, value in (("a", pa.array([1])), ("b", pa.array(["x"]))):
            batch = pa.RecordBatch.from_pydict({"id": value, "name": pa.array(["a"])})
            plan = prepare(options_of(cluster, topic, schemaType="avro"), batch.schema)
            if kind == "a":
                TaskWriter(plan, task()).write([batch])
                continue
            with pytest.raises(SinkRefused, match=r"row 0 .* does not go with the data frame's columns.*schemaType"):
                TaskWriter(plan, task("another")).write([batch])

    def test_bytes_for_a_topic_with_a_schema_are_encoded_already(
        self, cluster: ThreadedCluster, stock: pulsar.Client
    ) -> None:
        topic = cluster.unique_topic("replayed")
        records = pa.RecordBatch.from_pydict({"id": pa.array([7]), "name": pa.array(["a"])})
        TaskWriter(prepare(options_of(cluster, topic), records.schema), task("a")).write([records])
        (original,) = messages_of(stock, topic)
        raw = pa.RecordBatch.from_pydict({"value": pa.array([original.data()])})
        TaskWriter(prepare(options_of(cluster, topic), raw.schema), task("b")).write([raw])
        again = messages_of(stock, topic)[1]
        assert again.data() == original.data()
        assert again.schema_version() == original.schema_version() != ""


class TestRefusals:
    def test_terminated(self, cluster: ThreadedCluster) -> None:
        topic = cluster.unique_topic("ended")
        make_topic(cluster, topic)
        admin(cluster, "POST", topic.replace("://", "/") + "/terminate")
        with pytest.raises(SinkRefused, match="the topic is terminated"):
            write(options_of(cluster, topic), [rows_of(0, 10)])

    def test_too_large(self, cluster: ThreadedCluster, stock: pulsar.Client) -> None:
        topic = cluster.unique_topic("large")
        values = ["a"] * 10 + ["x" * (6 << 20)] + ["b"] * 10
        batch = pa.RecordBatch.from_pydict({"value": pa.array(values)})
        with pytest.raises(SinkRefused, match=r"row 10 of Spark partition 0 to .*: too large: .*maxMessageSize"):
            write(options_of(cluster, topic), [batch])
        assert values_of(stock, topic) in ([], ["a"] * 10)

    def test_namespace_that_is_not_there(self, cluster: ThreadedCluster) -> None:
        with pytest.raises((TopicMissing, ClusterUnreachable), match="nowhere"):
            write(options_of(cluster, "public/nowhere/t"), [rows_of(0, 10)])

    def test_nobody_answers(self) -> None:
        options = parse_sink_options({"service.url": "pulsar://127.0.0.1:1", "topic": "t", "operationtimeout": "1s"})
        with pytest.raises(ClusterUnreachable, match=r"127\.0\.0\.1:1"):
            write(options, [rows_of(0, 10)])

    async def test_a_broker_that_is_away_for_a_moment_ends_no_stream(self) -> None:
        """Each micro-batch asks anew, and Spark tries nothing again that the driver does."""
        failures: list[Exception] = [
            ConnectionFailed("it restarts"),
            PulsarError(ServerError.SERVICE_NOT_READY, "not yet"),
            ClusterUnreachable("the admin API does not answer"),
        ]

        class Restarting:
            def __init__(self) -> None:
                self.lookup = self

            async def partitions_of(self, topic: TopicName, *, create: bool) -> int:
                if failures:
                    raise failures.pop()
                return 4

        options = parse_sink_options({"service.url": "pulsar://127.0.0.1:1", "topic": "t", "schematype": "string"})
        client = cast(PulsarClient, Restarting())
        target = await SinkTopicFinder(client, options, [("value", pa.string())], None).find(options.topic)
        assert (target.partitions, failures) == (4, [])

    def test_numbers_are_the_batchs_above_the_rows(self, cluster: ThreadedCluster) -> None:
        topic = cluster.unique_topic("numbers")
        write(options_of(cluster, topic), [rows_of(0, 10)], task(batch_id=3))

        async def last() -> int:
            client = make_client(options_of(cluster, topic).connection)
            producer = await client.producer(TopicName.parse(topic), ProducerOptions(name="spark-q-0"))
            await client.close()
            return producer.last_sequence_id

        assert runtime.run(last()) >> FINGERPRINT_BITS == (3 << (BATCH_SHIFT - FINGERPRINT_BITS)) + 9


class TestFaults:
    def test_no_receipt_in_time_and_then_again(self, cluster: ThreadedCluster, stock: pulsar.Client) -> None:
        """What is sent behind a message without receipt would hide from the next attempt that it is missing."""
        topic = cluster.unique_topic("timeout")

        def stalling() -> Iterator[pa.RecordBatch]:
            yield rows_of(0, 1000)
            assert cluster._loop is not None
            cluster._loop.call_soon_threadsafe(time.sleep, 1.0)
            for first in range(1000, 4000, 100):
                yield rows_of(first, first + 100)
                time.sleep(0.05)

        with pytest.raises(ClusterUnreachable, match=r"rows \d+ to \d+ .*no receipt in time.*within its quota"):
            write(options_of(cluster, topic, sendTimeout="300ms", batchingMaxMessages="50"), stalling())
        stored = values_of(stock, topic)
        assert stored == expected(0, len(stored))
        write(options_of(cluster, topic, batchingMaxMessages="50"), [rows_of(0, 4000)])
        assert values_of(stock, topic) == expected(0, 4000)

    def test_topic_moves_meanwhile(self, cluster: ThreadedCluster, stock: pulsar.Client) -> None:
        topic = cluster.unique_topic("moving")

        def moving() -> Iterator[pa.RecordBatch]:
            for first in range(0, 20_000, 1000):
                yield rows_of(first, first + 1000)
                if first % 5000 == 0:
                    admin(cluster, "PUT", topic.replace("://", "/") + "/unload")

        options = options_of(cluster, topic, batchingMaxMessages="100")
        for _ in range(2):
            write(options, moving())
        assert values_of(stock, topic) == expected(0, 20_000)

    def test_many_attempts_die_anywhere(self, cluster: ThreadedCluster, stock: pulsar.Client) -> None:
        topic = cluster.unique_topic("dying")
        options = options_of(cluster, topic, batchingMaxMessages="37", batchingMaxBytes="1k", compressionType="ZSTD")
        for first in range(0, 3000, 271):
            with pytest.raises(Dies):
                write(options, dying([rows_of(0, first), rows_of(first, first + 13)]))
        write(options, [rows_of(0, 4000)])
        assert values_of(stock, topic) == expected(0, 4000)
