"""Reading in a real Spark: what its users see of errors, filters that it hands down, queries that stop and go on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from pulsar.schema import JsonSchema, Record, String
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import col
from pyspark.sql.streaming.query import StreamingQuery
from spark_fakes.early_workers import check_early, early_workers
from spark_fakes.topics import Topics, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.clients, pytest.mark.timeout(900)]

WORKER_SECONDS_MAX: Final = 600
"""For a worker's imports, which it begins when it has connected."""


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    with early_workers():
        session = (
            SparkSession.builder.master("local[2]")
            .config("spark.ui.enabled", "false")
            .config("spark.driver.memory", "1g")
            .config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
            .config("spark.driver.host", "127.0.0.1")
            .config("spark.driver.bindAddress", "127.0.0.1")
            .config("spark.python.authenticate.socketTimeout", f"{WORKER_SECONDS_MAX}s")
            .config("spark.sql.shuffle.partitions", "1")
            .config("spark.sql.session.timeZone", "UTC")
            .config("spark.sql.python.filterPushdown.enabled", "true")
            .config("spark.sql.warehouse.dir", str(tmp_path_factory.mktemp("warehouse")))
            .getOrCreate()
        )
    check_early(session)
    yield session
    session.stop()


def frame(spark: SparkSession, topics: Topics, topic: str, **options: str) -> DataFrame:
    return spark.read.format("pulsar").options(**topics.urls, topic=topic, **options).load()


class Named(Record):  # type: ignore[misc] # The official client has no types.
    name = String()


class TestBatches:
    def test_numbers(self, spark: SparkSession, topics: Topics) -> None:
        topic = topics.new("numbers", partitions=2)
        topics.send_batches(topic, [b"%d" % number for number in range(20_000)], 500)
        whole = frame(spark, topics, topic, splitBytes="1m")
        found = whole.selectExpr("sum(cast(cast(value as string) as long))", "count(*)", "min(__messageId)")
        assert tuple(found.collect()[0])[:2] == (19_999 * 10_000, 20_000)
        assert whole.limit(1).count() == 1
        assert all(topics.subscriptions(f"{topic}-partition-{number}") == {} for number in range(2))

    def test_filters(self, spark: SparkSession, topics: Topics) -> None:
        topic = topics.new("filters", partitions=2)
        for number in range(6):
            topics.send(
                f"{topic}-partition-{number % 2}", [b"%d" % number], partition_key=f"k{number % 3}",
                event_timestamp=1_000_000_000_000 + 1000 * number,
            )  # fmt: skip

        def found(condition: str) -> list[int]:
            # Spark keeps what is left by filters for all that the frame is used for later.
            whole = frame(spark, topics, topic, pushFilters="true")
            return sorted(int(row.value) for row in whole.where(condition).collect())

        assert found("__key = 'k1'") == [1, 4]
        assert found("__key IN ('k0', 'k1') AND value <> X'30'") == [1, 3, 4]
        assert found("__key = 'k1' OR __key = 'k2'") == [1, 2, 4, 5]
        assert found(f"__topic = '{topic}-partition-1'") == [1, 3, 5]
        assert found("__topic LIKE '%-partition-1'") == [1, 3, 5]
        assert found("__eventTime >= timestamp_seconds(1000000003)") == [3, 4, 5]
        assert found("__publishTime > current_timestamp()") == []
        assert found("__key IS NULL") == []

    @pytest.mark.parametrize(
        ("options", "text"),
        [
            ({"topicz": "x"}, "there is no option topicz"),
            ({"startingOffsets": "{"}, "option startingOffsets: { is no JSON object"),
            ({"topic": "persistent://public/default/nowhere"}, "there is no topic persistent://public/default/nowhere"),
        ],
    )
    def test_errors_of_users(self, spark: SparkSession, topics: Topics, options: dict[str, str], text: str) -> None:
        given = {**topics.urls, "topic": topics.new("errors"), **options}
        with pytest.raises(Exception, match="PYTHON_DATA_SOURCE_ERROR") as caught:
            spark.read.format("pulsar").options(**given).load().collect()
        assert text in str(caught.value)
        assert "Traceback" not in str(caught.value)

    def test_undecodable(self, spark: SparkSession, topics: Topics) -> None:
        topic = topics.new("bad")
        topics.send(topic, [Named(name="a")], JsonSchema(Named))
        topics.send(topic, [b"{nonsense"])
        with pytest.raises(Exception, match="cannot be read") as caught:
            frame(spark, topics, topic).collect()
        assert "With option mode=PERMISSIVE or mode=DROPMALFORMED the query goes on" in str(caught.value)
        assert "columns.py" not in str(caught.value)
        kept = (
            spark.read.format("pulsar")
            .schema("name string, _corrupt_record binary, __messageId string")
            .options(**topics.urls, topic=topic, mode="PERMISSIVE")
            .load()
        )
        rows = [(row.name, row._corrupt_record) for row in kept.collect()]
        assert rows == [("a", None), (None, b"{nonsense")]
        assert frame(spark, topics, topic, mode="DROPMALFORMED").count() == 1


class TestStreams:
    def test_stopped_and_gone_on(self, spark: SparkSession, topics: Topics, tmp_path: Path) -> None:
        topic = topics.new("stream", partitions=2)
        topics.send(topic, [b"before"])

        def start() -> StreamingQuery:
            source = spark.readStream.format("pulsar").options(
                **topics.urls, topic=topic, predefinedSubscription="spark", maxRowsPerTrigger="3"
            )
            return (
                source.load()
                .select(col("value").cast("string").cast("int").alias("number"))
                .writeStream.format("parquet")
                .option("path", str(tmp_path / "out"))
                .option("checkpointLocation", str(tmp_path / "checkpoint"))
                .trigger(processingTime="50 milliseconds")
                .start()
            )

        def backlog() -> int:
            partitions = [topics.subscriptions(f"{topic}-partition-{number}") for number in range(2)]
            return sum(found["spark"] for found in partitions)

        def numbers() -> list[int]:
            return sorted(row.number for row in spark.read.parquet(str(tmp_path / "out")).collect())

        query = start()
        try:
            # It begins at the end, and says so with an empty micro-batch.
            wait_until(lambda: (tmp_path / "checkpoint" / "commits" / "0").exists())
            assert query.lastProgress is None or query.lastProgress.numInputRows == 0
            topics.send(topic, [b"%d" % number for number in range(10)])
            query.processAllAvailable()
            assert numbers() == list(range(10))
            wait_until(lambda: backlog() == 0)
        finally:
            query.stop()
        topics.send(topic, [b"%d" % number for number in range(10, 20)])
        assert backlog() == 10
        query = start()
        try:
            query.processAllAvailable()
            assert numbers() == list(range(20))
            wait_until(lambda: backlog() == 0)
        finally:
            query.stop()

    def test_trimmed_under_a_query(self, spark: SparkSession, topics: Topics, tmp_path: Path) -> None:
        topic = topics.new("trimmed")
        topics.send(topic, [b"0", b"1"])

        def start(**options: str) -> StreamingQuery:
            source = spark.readStream.format("pulsar").options(
                **topics.urls, topic=topic, startingOffsets="earliest", maxRowsPerTrigger="1", **options
            )
            writer = source.load().writeStream.foreachBatch(lambda _batch, _number: None)
            return writer.option("checkpointLocation", str(tmp_path / "c")).trigger(processingTime="10 seconds").start()

        query = start()
        wait_until(lambda: (tmp_path / "c" / "commits" / "0").exists())
        query.stop()
        topics.roll(topic)
        topics.truncate(topic)
        topics.send(topic, [b"2"])
        query = start()
        caught: Any = None
        try:
            query.awaitTermination(60)
        except Exception as error:  # noqa: BLE001 - Spark's
            caught = error
        assert "can no longer be read" in str(caught)
        assert "Traceback" not in str(caught)
        query.stop()

    def test_deleted_while_a_query_is_stopped(self, spark: SparkSession, topics: Topics, tmp_path: Path) -> None:
        topic = topics.new("deleted")
        topics.send(topic, [b"0", b"1"])

        def run(**options: str) -> None:
            source = spark.readStream.format("pulsar").schema("value binary")
            rows = source.options(**topics.urls, topic=topic, startingOffsets="earliest", **options).load()
            writer = rows.writeStream.format("parquet").option("path", str(tmp_path / "out"))
            writer = writer.option("checkpointLocation", str(tmp_path / "c")).trigger(availableNow=True)
            query = writer.start()
            try:
                query.awaitTermination(60)
            finally:
                query.stop()

        run()
        topics.delete(topic)
        with pytest.raises(Exception, match="The topic was deleted") as caught:
            run()
        assert f"{topic}: entries from " in str(caught.value)
        for _ in range(2):
            run(failOnDataLoss="false")
        topics.send(topic, [b"2"])
        run()
        assert sorted(row.value for row in spark.read.parquet(str(tmp_path / "out")).collect()) == [b"0", b"1", b"2"]
        with pytest.raises(Exception, match="there is no topic"):
            spark.readStream.format("pulsar").options(**topics.urls, topic=f"{topic}-not").load()
