"""The jobs on a real Spark against a real server: what is archived and replayed is what was sent, whatever dies."""

from __future__ import annotations

import contextlib
import json
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pulsar
import pytest
from magnetar.spark import runtime
from magnetar.spark.cluster import close_clusters
from magnetar.spark.errors import BadOption
from magnetar.spark.jobs.archive import Archived, ArchiveJob, run_archive
from magnetar.spark.jobs.archive_layout import SINK_LOG
from magnetar.spark.jobs.audit import AuditJob, run_audit
from magnetar.spark.jobs.dead_letters import DeadLetterJob, run_dead_letters
from magnetar.spark.jobs.job import ConnectionChoices
from magnetar.spark.jobs.replay import ReplayJob, in_order, outgoing, part_of, run_replay
from magnetar.spark.jobs.replay_plan import ReplayRound
from magnetar.spark.jobs.window_aggregation import WindowJob, run_windows
from magnetar.standalone.threaded import ThreadedCluster
from pulsar.schema import AvroSchema, Integer, Record, String
from pyspark.sql import SparkSession
from pyspark.sql import functions as f
from rich.console import Console

from e2e.cluster import admin
from e2e.spark.job_sessions import job_session

# On a machine that does a lot else, the session alone may take more than a minute.
pytestmark = [pytest.mark.slow, pytest.mark.clients, pytest.mark.timeout(600)]

Sent = tuple[str, str | None, int, dict[str, str]]
"""Value, key, event time in ms, properties."""


class Person(Record):  # type: ignore[misc] # The client has no types.
    """What one topic holds."""

    name = String()
    age = Integer()


@pytest.fixture(scope="module")
def cluster() -> Iterator[ThreadedCluster]:
    with ThreadedCluster() as running:
        admin.call("POST", f"{running.admin_url}/admin/v2/namespaces/public/default/deduplication", True)
        yield running
        runtime.run(close_clusters())


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    with job_session("jobs", tmp_path_factory.mktemp("warehouse")) as session:
        yield session


@pytest.fixture(scope="module")
def stock(cluster: ThreadedCluster) -> Iterator[pulsar.Client]:
    client = pulsar.Client(cluster.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    yield client
    client.close()


@pytest.fixture
def quiet() -> Console:
    return Console(quiet=True)


def choices(cluster: ThreadedCluster) -> ConnectionChoices:
    return ConnectionChoices(service_url=cluster.service_url, admin_url=cluster.admin_url)


def send(stock: pulsar.Client, topic: str, numbers: range) -> list[Sent]:
    producer = stock.create_producer(topic, batching_enabled=True, batching_max_publish_delay_ms=5)
    sent: list[Sent] = []
    for number in numbers:
        key = f"k{number % 5}" if number % 7 else None
        properties = {"number": str(number), "ü": "ö"} if number % 3 else {}
        event_time_ms = 1_700_000_000_000 + number if number % 2 else 0
        more = {"partition_key": key} if key is not None else {}
        producer.send_async(
            f"value {number}".encode(),
            lambda _result, _id: None,
            properties=properties,
            event_timestamp=event_time_ms or None,
            **more,
        )
        sent.append((f"value {number}", key, event_time_ms, properties))
    producer.flush()
    producer.close()
    return sent


def read(stock: pulsar.Client, topic: str) -> list[Sent]:
    reader = stock.create_reader(topic, pulsar.MessageId.earliest)
    found: list[Sent] = []
    while reader.has_message_available():
        message = reader.read_next(10_000)
        key = message.partition_key() or None
        found.append((message.data().decode(), key, message.event_timestamp(), message.properties()))
    reader.close()
    return found


def by_key(messages: list[Sent]) -> dict[str | None, list[Sent]]:
    found: dict[str | None, list[Sent]] = defaultdict(list)
    for message in messages:
        found[message[1]].append(message)
    return found


def in_archive(spark: SparkSession, path: Path) -> list[str]:
    rows = spark.read.parquet(str(path)).select("value").collect()
    return sorted(bytes(row[0]).decode() if isinstance(row[0], (bytes, bytearray)) else row[0] for row in rows)


def remove_newest(folder: Path) -> None:
    path = max(folder.glob("[0-9]*"), key=lambda path: int(path.name))
    path.unlink()
    (folder / f".{path.name}.crc").unlink(missing_ok=True)


def uncommit(checkpoint: Path) -> None:
    """As a driver leaves it that is killed after everything else of a micro-batch was done."""
    remove_newest(checkpoint / "commits")


class TestArchiveAndReplay:
    """What is archived, and read back into a topic."""

    def test_archive_restart_and_replay(
        self, spark: SparkSession, cluster: ThreadedCluster, stock: pulsar.Client, tmp_path: Path, quiet: Console
    ) -> None:
        topic = cluster.unique_topic("orders")
        output = tmp_path / "archive"
        job = ArchiveJob(choices=choices(cluster), topic=[topic], output=str(output))
        sent = send(stock, topic, range(300))
        first = run_archive(spark, job, quiet)
        assert (first.rows, first.batches) == (300, 1)
        sent += send(stock, topic, range(300, 500))
        second = run_archive(spark, job, quiet)
        assert second.rows == 200
        # The driver was killed after the files were there, before the micro-batch was committed: it is done again.
        uncommit(output / "_magnetar" / "checkpoint")
        third = run_archive(spark, job, quiet)
        assert third.offsets == second.offsets
        assert in_archive(spark, output) == sorted(one[0] for one in sent)
        # Killed before the files became part of the archive.
        uncommit(output / "_magnetar" / "checkpoint")
        remove_newest(output / SINK_LOG)
        assert run_archive(spark, job, quiet) == Archived(rows=200, batches=1, offsets=second.offsets)
        assert in_archive(spark, output) == sorted(one[0] for one in sent)

        target = cluster.unique_topic("replayed")
        replay = ReplayJob(choices=choices(cluster), archive=str(output), topic=target)
        done = run_replay(spark, replay, quiet)
        assert done.rows == 500
        assert read(stock, target) == sent
        # The same again, as after a failure: nothing is stored twice.
        run_replay(spark, replace(replay, resume=done.name), quiet)
        assert read(stock, target) == sent

        with pytest.raises(BadOption, match="there is no checkpoint of it"):
            run_archive(spark, replace(job, checkpoint=str(tmp_path / "new")), quiet)
        with pytest.raises(BadOption, match="begun without --raw"):
            run_archive(spark, replace(job, raw=True), quiet)

    def test_keys_of_bytes(self, spark: SparkSession, cluster: ThreadedCluster, tmp_path: Path, quiet: Console) -> None:
        topic, target = cluster.unique_topic("keys"), cluster.unique_topic("restored")
        keys: list[tuple[str, bytes | None, bool | None]] = [
            ("text", b"k", False),
            ("text as bytes", b"k", True),
            ("base64 as text", b"/wA=", False),
            ("bytes", b"\xff\x00", True),
            ("none", None, None),
        ]
        options = {**choices(cluster).options(), "keyType": "binary", "columns": "*,__keyIsBytes"}

        def restored(name: str, **more: str) -> list[tuple[str, bytes | None, bool | None]]:
            rows = spark.read.format("pulsar").options(**options, topic=name, **more).load()
            found = rows.select("value", "__key", "__keyIsBytes").collect()
            return [(row[0], None if row[1] is None else bytes(row[1]), row[2]) for row in found]

        frame = spark.createDataFrame(keys, "value string, __key binary, __keyIsBytes boolean").coalesce(1)
        writing = {**choices(cluster).options(), "deliveryGuarantee": "at-least-once"}
        frame.write.format("pulsar").options(**writing, topic=topic).mode("append").save()
        assert restored(topic) == keys
        output = str(tmp_path / "archive")
        run_archive(spark, ArchiveJob(choices=choices(cluster), topic=[topic], output=output), quiet)
        archived = {row["value"]: row["__key"] for row in spark.read.parquet(output).collect()}
        assert archived == {
            "text": "k", "text as bytes": "aw==", "base64 as text": "/wA=", "bytes": "/wA=", "none": None,
        }  # fmt: skip
        replay = ReplayJob(choices=choices(cluster), archive=output, topic=target)
        run_replay(spark, replay, quiet)
        assert restored(target) == keys

        # An archive from before there was the column tells only by schemas.
        old = spark.read.parquet(output).withColumns({"__topic": f.lit(topic)}).drop("__keyIsBytes").orderBy("value")
        for apart, keys_of_old in ((set(), [b"/wA=", b"/wA=", None, b"k", b"aw=="]), ({topic}, None)):
            rows = outgoing(old.where("value <> 'text'") if apart else old, replay, {topic: target}, keys_apart=apart)
            found = [bytes(row["__key"]) if row["__key"] is not None else None for row in rows.collect()]
            assert found == (keys_of_old or [b"\xff\x00", b"\xff\x00", None, b"k"])
            assert {row["__keyIsBytes"] for row in rows.collect()} == {bool(apart)}

    def test_filters_by_keys_of_bytes(self, spark: SparkSession, cluster: ThreadedCluster) -> None:
        topic = cluster.unique_topic("filtered")
        options = {**choices(cluster).options(), "topic": topic}
        frame = spark.createDataFrame([(b"\xff",), (b"k",), (None,)], "__key binary").withColumn("value", f.lit("v"))
        frame.write.format("pulsar").options(**options, deliveryGuarantee="at-least-once").mode("append").save()
        spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
        try:
            for given, condition, found in (
                ("binary", "__key = X'FF'", [b"\xff"]),
                ("binary", "__key in (X'FF', X'6B')", [b"\xff", b"k"]),
                ("text", "__key = 'k'", ["k"]),
                ("text", "__key = '/w=='", ["/w=="]),
            ):
                reader = spark.read.format("pulsar").options(**options, keyType=given, pushFilters="true")
                rows = reader.load().where(condition).select("__key").collect()
                assert sorted(key if given == "text" else bytes(key) for (key,) in rows) == sorted(found)
        finally:
            spark.conf.set("spark.sql.python.filterPushdown.enabled", "false")

    def test_records_of_partitions_into_another_namespace(
        self, spark: SparkSession, cluster: ThreadedCluster, stock: pulsar.Client, tmp_path: Path, quiet: Console
    ) -> None:
        """Decoded by the topic's schema, and encoded again by the same, which the new topic gets."""
        topic = cluster.unique_topic("people")
        admin.call(
            "PUT", f"{cluster.admin_url}/admin/v2/persistent/public/default/{topic.rpartition('/')[2]}/partitions", 2
        )
        admin.call("PUT", f"{cluster.admin_url}/admin/v2/namespaces/public/again", {})
        admin.call("POST", f"{cluster.admin_url}/admin/v2/namespaces/public/again/deduplication", True)
        schema = AvroSchema(Person)
        producer = stock.create_producer(topic, schema=schema, batching_enabled=False)
        for number in range(40):
            producer.send(Person(name=f"n{number}", age=number), partition_key=f"k{number % 8}")
        producer.close()
        output = tmp_path / "archive"
        job = ArchiveJob(
            choices=choices(cluster),
            topic=[topic],
            output=str(output),
            by_topic=True,
            subscription="archive",
        )
        assert run_archive(spark, job, quiet).rows == 40
        folder = f"source_topic=public.default.{topic.rpartition('/')[2]}"
        assert [path.name for path in output.glob("source_topic=*")] == [folder]

        replay = ReplayJob(choices=choices(cluster), archive=str(output), namespace="public/again")
        assert run_replay(spark, replay, quiet).rows == 40
        reader = stock.create_reader(
            f"persistent://public/again/{topic.rpartition('/')[2]}", pulsar.MessageId.earliest, schema=schema
        )
        ages: dict[str, list[int]] = defaultdict(list)
        while reader.has_message_available():
            message = reader.read_next(10_000)
            ages[message.partition_key()].append(message.value().age)
        reader.close()
        assert ages == {f"k{key}": list(range(key, 40, 8)) for key in range(8)}


def test_rounds_of_a_replay_are_in_numeric_order(spark: SparkSession) -> None:
    rows = spark.createDataFrame(
        [
            (topic, ledger, entry, index)
            for topic in "tu"
            for ledger in (10, 9, 2)
            for entry in (10, 9)
            for index in (1, 0)
        ],
        "__topic string, __ledger bigint, __entry bigint, __index int",
    )
    part = ReplayRound({"t": (9, 10), "u": (2, 2)}, 12)
    found = [tuple(row) for row in in_order(part_of(rows, part), part.tasks).collect()]
    assert [row[1:] for row in found if row[0] == "t"] == sorted(
        (ledger, entry, index) for ledger in (9, 10) for entry in (9, 10) for index in (0, 1)
    )
    assert [row[1:] for row in found if row[0] == "u"] == [(2, 9, 0), (2, 9, 1), (2, 10, 0), (2, 10, 1)]


def test_windows_to_a_topic(
    spark: SparkSession, cluster: ThreadedCluster, stock: pulsar.Client, tmp_path: Path, quiet: Console
) -> None:
    topic, target = cluster.unique_topic("clicks"), cluster.unique_topic("windows")
    producer = stock.create_producer(topic, schema=AvroSchema(Person), batching_enabled=False)

    def click(second: int, name: str, age: int) -> None:
        producer.send(Person(name=name, age=age), event_timestamp=1_700_000_000_000 + second * 1000)

    for second in range(0, 180, 10):
        click(second, "ab"[second % 20 == 0], second)
    job = WindowJob(
        choices=choices(cluster),
        topic=[topic],
        window="1min",
        watermark="30s",
        by=["name"],
        aggregate=["count", "sum:age", "avg:age"],
        output_topic=target,
        checkpoint=str(tmp_path / "checkpoint"),
        state_partitions=2,
    )
    assert run_windows(spark, job, quiet).rows == 18
    early = read(stock, target)
    # Its window is final already: it comes too late. The other makes all windows so far final.
    click(5, "a", 1_000)
    click(400, "a", 1)
    producer.close()
    run_windows(spark, job, quiet)
    found = [(key, json.loads(value), time_ms) for value, key, time_ms, _ in read(stock, target)]
    assert len(early) < len(found)
    # The driver was killed after windows were written: they are computed and written again, and not stored again.
    uncommit(tmp_path / "checkpoint")
    run_windows(spark, job, quiet)
    assert len(read(stock, target)) == len(found)
    expected: dict[tuple[str, int], list[int]] = defaultdict(list)
    for second in range(0, 180, 10):
        # Windows begin with the minutes of the clock: 1 700 000 000 is 20 s into one.
        expected["ab"[second % 20 == 0], (second + 20) // 60].append(second)
    assert {(key, (time_ms - 1_699_999_980_000) // 60_000 - 1) for key, _, time_ms in found} == set(expected)
    assert len(found) == len(expected)
    for key, value, time_ms in found:
        assert key is not None
        ages = expected[key, (time_ms - 1_699_999_980_000) // 60_000 - 1]
        assert (value["name"], value["count"], value["sum_age"]) == (key, len(ages), sum(ages))
        assert value["avg_age"] == sum(ages) / len(ages)


def test_dead_letters_of_a_stock_client(spark: SparkSession, cluster: ThreadedCluster, stock: pulsar.Client) -> None:
    topic = cluster.unique_topic("payments")
    name = topic.rpartition("/")[2]
    consumer = stock.subscribe(
        topic,
        "billing",
        consumer_type=pulsar.ConsumerType.Shared,
        negative_ack_redelivery_delay_ms=100,
        dead_letter_policy=pulsar.ConsumerDeadLetterPolicy(max_redeliver_count=1, initial_subscription_name="keep"),
    )
    producer = stock.create_producer(topic, batching_enabled=False)
    for number in range(6):
        reason = f"card {number} refused" if number % 3 else "no such account"
        producer.send(f"{number}".encode(), properties={"exception": reason})
    dead = stock.subscribe(f"{topic}-billing-DLQ", "watch", initial_position=pulsar.InitialPosition.Earliest)
    arrived = 0
    while arrived < 6:
        with contextlib.suppress(pulsar.Timeout):
            consumer.negative_acknowledge(consumer.receive(300))
        with contextlib.suppress(pulsar.Timeout):
            dead.acknowledge(dead.receive(50))
            arrived += 1
    for one in (consumer, dead, producer):
        one.close()
    report = run_dead_letters(spark, DeadLetterJob(choices=choices(cluster), pattern=f"{name}.*-DLQ"))
    [group] = report.groups
    assert (group.origin.topic, group.origin.subscription) == (topic, "billing")
    assert group.origin.dead_letter_topic == f"{topic}-billing-DLQ"
    assert [(one.reason, one.messages) for one in group.reasons] == [("card # refused", 4), ("no such account", 2)]
    assert group.reasons[0].oldest.origin_message_id
    assert abs(group.last.timestamp() - time.time()) < 600
    nothing = run_dead_letters(spark, DeadLetterJob(choices=choices(cluster), pattern="nothing-.*-DLQ"))
    assert (nothing.topics, nothing.messages) == ([], 0)


def test_audit(spark: SparkSession, cluster: ThreadedCluster, stock: pulsar.Client) -> None:
    topic = cluster.unique_topic("prices")
    producer = stock.create_producer(topic, batching_enabled=False)
    for key, value in (("a", b"1"), ("b", b"22"), ("a", b"333"), ("c", b"4"), ("c", b""), ("b", b"22"), ("b", b"22")):
        producer.send(value, partition_key=key)
    producer.send(b"55555")
    producer.close()
    [audit] = run_audit(spark, AuditJob(choices=choices(cluster), topic=[topic]))
    assert (audit.topic, audit.messages, audit.bytes) == (topic, 8, 23)
    compaction = audit.compaction
    assert (compaction.keys, compaction.keys_deleted, compaction.tombstones) == (3, 1, 1)
    assert (compaction.messages_left, compaction.bytes_left) == (2, 4 + 3)
    assert (compaction.keyless, compaction.keyless_bytes) == (1, 5)
    duplicates = audit.duplicates
    assert (duplicates.messages, duplicates.bytes, duplicates.groups, duplicates.soon) == (2, 6, 1, 1)
    assert (duplicates.samples[0].copies, duplicates.samples[0].key) == (3, "b")
    assert audit.gaps == ()
