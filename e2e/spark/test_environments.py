"""Our data source where Spark is not one process: Spark Connect, executors by themselves, tasks that run twice; and a
stream in several micro-batches."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyspark
import pytest

from e2e.interchange.topic_driver import VALUE
from e2e.spark.running import Spark
from e2e.spark.workers import SparkWorkers

TOPICS = Path(__file__).parent / "programs" / "topics.py"
COUNT = 1000
NUMBERS = [str(number) for number in range(COUNT)]
CONNECT_PACKAGES = ("pandas", "grpcio-status", "googleapis-common-protos", "zstandard")
"""What `pyspark[connect]` has that our environment lacks."""

SPECULATION = {
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.minTaskRuntime": "500ms",
    "spark.speculation.quantile": "0.75",
    "spark.executor.memory": "512m",
    "spark.executor.extraJavaOptions": "-XX:+UseSerialGC",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "50",
}
# A first run makes an environment.
pytestmark = [pytest.mark.clients, pytest.mark.slow, pytest.mark.timeout(900)]


def there_and_back(urls: dict[str, str], new_topic: Callable[..., str], folder: Path) -> list[dict[str, Any]]:
    """Steps: a batch is written, read, streamed to another topic, streamed from there, and read there."""
    first, second = new_topic("batch", partitions=2), new_topic("stream", partitions=2)
    select = ["CAST(value AS STRING) AS value", "__key"]
    options = {"options": {**urls, "topic": first}, "select": select}
    stream = {"options": {**urls, "topic": second, "startingOffsets": "earliest"}, "select": select}
    return [
        {
            "do": "write",
            "options": {**urls, "topic": first},
            "count": COUNT,
            "select": ["CAST(id AS STRING) AS value", "CAST(id % 7 AS STRING) AS __key"],
        },
        {"do": "read", **options},
        {
            "do": "stream_write",
            "source": {**urls, "topic": first, "startingOffsets": "earliest"},
            "select": select,
            "options": {**urls, "topic": second},
            "checkpoint": str(folder / "written"),
        },
        {"do": "stream", **stream, "checkpoint": str(folder / "read"), "folder": str(folder / "batches")},
        {"do": "read", **stream},
    ]


def judge(answers: list[Any], folder: Path) -> None:
    """Each row is in each place once."""
    batches = [json.loads(file.read_text()) for file in (folder / "batches").glob("*.json")]
    for rows in (answers[1]["rows"], answers[4]["rows"], [row for batch in batches for row in batch]):
        assert Counter(row["value"] for row in rows) == Counter(NUMBERS)
        assert all(int(row["value"]) % 7 == int(row["__key"]) for row in rows)


class TestConnect:
    """A client of Spark Connect, which has no Java; its server is started with it, in another process."""

    def test_batches_and_streams(
        self, make_spark: Callable[..., Spark], urls: dict[str, str], new_topic: Callable[..., str], tmp_path: Path
    ) -> None:
        spark = make_spark(beside=CONNECT_PACKAGES)
        steps = there_and_back(urls, new_topic, tmp_path)
        judge(spark.run(TOPICS, {"remote": "local[2]", "steps": steps}), tmp_path)


@pytest.fixture
def workers(our_spark: Spark, tmp_path: Path) -> Iterator[SparkWorkers]:
    with SparkWorkers(our_spark.java_home, tmp_path / "workers") as running:
        yield running


class TestExecutors:
    """Executors that are processes by themselves, as on any cluster."""

    def test_local_cluster(
        self, make_spark: Callable[..., Spark], urls: dict[str, str], new_topic: Callable[..., str], tmp_path: Path
    ) -> None:
        # Workers put their files into a folder of SPARK_HOME.
        home = tmp_path / "home"
        home.mkdir()
        for each in Path(pyspark.__file__).parent.iterdir():
            (home / each.name).symlink_to(each)
        spark = make_spark(configuration={"spark.master": "local-cluster[2,1,1024]"}, home=home)
        judge(spark.run(TOPICS, {"steps": there_and_back(urls, new_topic, tmp_path)}), tmp_path)
        assert len(list((home / "work").glob("app-*/*"))) == 2

    def test_a_task_that_runs_twice_at_a_time(
        self,
        workers: SparkWorkers,
        make_spark: Callable[..., Spark],
        urls: dict[str, str],
        new_topic: Callable[..., str],
        tmp_path: Path,
    ) -> None:
        """Speculation: the first attempt stands still, before it has stored anything and in the middle; a second one
        begins. In the middle the first has the producer's name, and the second waits for it."""
        spark = make_spark(configuration={"spark.master": workers.url, **SPECULATION})
        folders = {"beginning": tmp_path / "beginning", "middle": tmp_path / "middle"}
        steps: list[dict[str, Any]] = []
        for word, folder in folders.items():
            folder.mkdir()
            topic = new_topic(f"twice-{word}")
            options = {**urls, "topic": topic, "batchingMaxMessages": "10"}
            stats = f"{urls['admin.url']}/admin/v2/{topic.replace('://', '/')}/stats"
            # Other tasks are over when a second attempt begins: a producer is that of the first attempt.
            slow = {"at": 0, "seconds": 60, "producing": "", "folder": str(folder)}
            if word == "middle":
                slow |= {"at": 200, "seconds": 3, "producing": stats}
            steps.append(
                {"do": "write", "options": options, "count": COUNT, "tasks": 4, "slow": slow, "select": ["id AS value"]}
            )
            steps.append({"do": "read", "options": {**urls, "topic": topic}, "select": [VALUE]})
        answers = spark.run(TOPICS, {"steps": steps})
        assert (folders["middle"] / "awake").exists()
        for folder, answer in zip(folders.values(), answers[1::2], strict=True):
            assert (folder / "again").exists()
            assert Counter(row["value"] for row in answer["rows"]) == Counter(NUMBERS)


class TestMicroBatches:
    """`availableNow` within limits."""

    def test_limited(
        self, our_spark: Spark, urls: dict[str, str], new_topic: Callable[..., str], tmp_path: Path
    ) -> None:
        topic = new_topic("limited", partitions=2)
        options = {**urls, "topic": topic}
        write = {"do": "write", "options": {**options, "batchingMaxMessages": "10"}, "count": COUNT}
        stream = {
            "do": "stream",
            "options": {**options, "startingOffsets": "earliest", "maxRowsPerTrigger": "300"},
            "select": ["CAST(value AS STRING) AS value"],
            "checkpoint": str(tmp_path / "checkpoint"),
            "folder": str(tmp_path / "batches"),
        }
        our_spark.run(TOPICS, {"steps": [{**write, "select": ["CAST(id AS STRING) AS value"]}, stream]})
        batches = [json.loads(file.read_text()) for file in (tmp_path / "batches").glob("*.json")]
        assert len(batches) == 4
        assert max(map(len, batches)) <= 300
        assert Counter(row["value"] for batch in batches for row in batch) == Counter(NUMBERS)
