"""Writing from Spark: batches and streams whose executors and drivers die, each row stored once."""

from __future__ import annotations

import json
import os
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pulsar
import pytest
from magnetar.standalone.threaded import ThreadedCluster
from pyspark import TaskContext, cloudpickle
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource

pytestmark = [pytest.mark.slow, pytest.mark.clients, pytest.mark.timeout(400)]

# Spark's workers cannot import this file: what is made here goes to them by value.
cloudpickle.register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call] # pyspark's


def dying(iterator: Iterator[Any], flag: str, kind: str) -> Iterator[Any]:
    """The items; after some of them this process dies, or its task fails, if the file is not there yet."""
    for number, item in enumerate(iterator):
        yield item
        if number == 1 and flag and not Path(flag).exists():
            if Path(flag).parent.exists():
                Path(flag).touch()
            if kind == "exit":
                os._exit(9)
            raise ValueError("this attempt fails")


class DyingSource(DataSource):
    """The data source, with writers that die in the middle of a write."""

    @classmethod
    def name(cls) -> str:
        return "dyingpulsar"

    def _ours(self) -> tuple[dict[str, str], str, str]:
        given = dict(self.options)
        return given, given.pop("flag", ""), given.pop("kind", "exit")

    def writer(self, schema: Any, overwrite: bool) -> Any:
        from magnetar.spark.sink.spark_writers import PulsarBatchWriter

        options, flag, kind = self._ours()

        class DyingWriter(PulsarBatchWriter):
            def write(self, iterator: Iterator[Any]) -> Any:
                context = TaskContext.get()
                assert context is not None
                return super().write(dying(iterator, flag if context.partitionId() == 0 else "", kind))

        return DyingWriter(options, schema, overwrite=overwrite)

    def streamWriter(self, schema: Any, overwrite: bool) -> Any:  # noqa: N802
        from magnetar.spark.sink.spark_writers import PulsarStreamWriter

        options, flag, kind = self._ours()

        class DyingStreamWriter(PulsarStreamWriter):
            def write(self, iterator: Iterator[Any]) -> Any:
                context = TaskContext.get()
                assert context is not None
                # The second micro-batch.
                mine = context.getLocalProperty("streaming.sql.batchId") == "1"
                return super().write(dying(iterator, flag if mine else "", kind))

        return DyingStreamWriter(options, schema, complete=overwrite)


@pytest.fixture(scope="module")
def cluster() -> Iterator[ThreadedCluster]:
    with ThreadedCluster() as running:
        request = urllib.request.Request(
            f"{running.admin_url}/admin/v2/namespaces/public/default/deduplication",
            method="POST",
            data=json.dumps(True).encode(),
            headers={"Content-Type": "application/json"},
        )
        urllib.request.urlopen(request).close()
        yield running


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    session = (
        SparkSession.builder.master("local[1,3]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.execution.arrow.maxRecordsPerBatch", "500")
        .config("spark.sql.warehouse.dir", str(tmp_path_factory.mktemp("warehouse")))
        .getOrCreate()
    )
    # Spark finds `pulsar` by itself.
    session.dataSource.register(DyingSource)
    yield session
    session.stop()


@pytest.fixture(scope="module")
def stock(cluster: ThreadedCluster) -> Iterator[pulsar.Client]:
    client = pulsar.Client(cluster.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    yield client
    client.close()


def values_of(stock: pulsar.Client, topic: str) -> list[str]:
    reader = stock.create_reader(topic, pulsar.MessageId.earliest)
    found = []
    while reader.has_message_available():
        found.append(reader.read_next(5000).data().decode())
    reader.close()
    return found


def urls(cluster: ThreadedCluster) -> dict[str, str]:
    return {"service.url": cluster.service_url, "admin.url": cluster.admin_url}


class TestBatches:
    """`df.write`."""

    def test_written_once(self, spark: SparkSession, cluster: ThreadedCluster, stock: pulsar.Client) -> None:
        topic = cluster.unique_topic("batch")
        frame = spark.range(0, 4000, 1, 3).selectExpr("cast(id as string) as value", "cast(id % 7 as string) as __key")
        frame.write.format("pulsar").options(**urls(cluster)).option("topic", topic).mode("append").save()
        assert sorted(map(int, values_of(stock, topic))) == list(range(4000))

    @pytest.mark.parametrize("kind", ["exit", "raise"])
    def test_task_dies_in_the_middle(
        self, spark: SparkSession, cluster: ThreadedCluster, stock: pulsar.Client, tmp_path: Path, kind: str
    ) -> None:
        topic = cluster.unique_topic("dies")
        frame = spark.range(0, 8000, 1, 2).selectExpr("cast(id as string) as value")
        (
            frame.write.format("dyingpulsar")
            .options(**urls(cluster), topic=topic, flag=str(tmp_path / "died"), kind=kind, batchingMaxMessages="100")
            .mode("append")
            .save()
        )
        assert (tmp_path / "died").exists()
        assert sorted(map(int, values_of(stock, topic))) == list(range(8000))

    def test_records(self, spark: SparkSession, cluster: ThreadedCluster, stock: pulsar.Client) -> None:
        topic = cluster.unique_topic("records")
        frame = spark.range(0, 10, 1, 1).selectExpr("id", "cast(id as string) as name", "id as __eventTime")
        frame.write.format("pulsar").options(**urls(cluster), topic=topic, schemaType="json").mode("append").save()
        assert [json.loads(value) for value in values_of(stock, topic)] == [
            {"id": number, "name": str(number)} for number in range(10)
        ]

    def test_overwrite_is_refused(self, spark: SparkSession, cluster: ThreadedCluster) -> None:
        frame = spark.range(1).selectExpr("cast(id as string) as value")
        with pytest.raises(Exception, match="mode overwrite: messages of a topic cannot be replaced") as caught:
            frame.write.format("pulsar").options(**urls(cluster), topic="t").mode("overwrite").save()
        assert "Traceback" not in str(caught.value)

    def test_errors_of_tasks_come_without_traceback(self, spark: SparkSession, cluster: ThreadedCluster) -> None:
        frame = spark.range(1).selectExpr("cast(id as string) as value", "cast(-1 as bigint) as __eventTime")
        with pytest.raises(Exception, match="row 0 of Spark partition 0: __eventTime is before 1970") as caught:
            frame.write.format("pulsar").options(**urls(cluster), topic="t").mode("append").save()
        assert "sink/rows.py" not in str(caught.value)


class TestStreams:
    """`df.writeStream`."""

    @pytest.mark.parametrize("kind", ["exit", "raise"])
    def test_stream_and_its_restart_in_the_middle_of_a_batch(
        self, spark: SparkSession, cluster: ThreadedCluster, stock: pulsar.Client, tmp_path: Path, kind: str
    ) -> None:
        topic = cluster.unique_topic("stream")
        files = tmp_path / "files"
        files.mkdir()
        for number in range(3):
            lines = "".join(f"{line}\n" for line in range(number * 2000, number * 2000 + 2000))
            (files / f"{number}.txt").write_text(lines)
            os.utime(files / f"{number}.txt", (1_000_000 + number, 1_000_000 + number))

        def run(source: str, **more: str) -> None:
            frame = spark.readStream.option("maxFilesPerTrigger", "1").text(str(files))
            query = (
                frame.writeStream.format(source)
                .options(**urls(cluster), topic=topic, batchingMaxMessages="100", **more)
                .option("checkpointLocation", str(tmp_path / "checkpoint"))
                .trigger(availableNow=True)
                .start()
            )
            query.awaitTermination()

        if kind == "exit":
            # The task is tried again within the same run.
            run("dyingpulsar", flag=str(tmp_path / "died"), kind="exit")
            assert (tmp_path / "died").exists()
        else:
            # The query fails, and goes on from its checkpoint as another one.
            with pytest.raises(Exception, match="this attempt fails"):
                run("dyingpulsar", flag=str(tmp_path / "never" / "made"), kind="raise")
            assert 2000 < len(values_of(stock, topic)) < 4000
            run("pulsar")
        assert list(map(int, values_of(stock, topic))) == list(range(6000))
