"""Replays on a real Spark of archives that are not as tidy as they could be."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pulsar
import pytest
from magnetar.spark import runtime
from magnetar.spark.cluster import close_clusters
from magnetar.spark.errors import BadOption
from magnetar.spark.jobs.archive import ArchiveJob, run_archive
from magnetar.spark.jobs.job import ConnectionChoices
from magnetar.spark.jobs.replay import ReplayJob, run_replay
from magnetar.standalone.threaded import ThreadedCluster
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession
from rich.console import Console

from e2e.cluster import admin
from e2e.spark.job_sessions import job_session

pytestmark = [pytest.mark.slow, pytest.mark.clients, pytest.mark.timeout(600)]

QUIET = Console(quiet=True)


@pytest.fixture(scope="module")
def cluster() -> Iterator[ThreadedCluster]:
    with ThreadedCluster() as running:
        for namespace in ("from", "to", "part"):
            admin.call("PUT", f"{running.admin_url}/admin/v2/namespaces/public/{namespace}", {})
            admin.call("POST", f"{running.admin_url}/admin/v2/namespaces/public/{namespace}/deduplication", True)
        admin.call(
            "POST",
            f"{running.admin_url}/admin/v2/namespaces/public/from/retention",
            {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1},
        )
        yield running
        runtime.run(close_clusters())


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    with job_session("replays", tmp_path_factory.mktemp("warehouse")) as session:
        yield session


@pytest.fixture(scope="module")
def stock(cluster: ThreadedCluster) -> Iterator[pulsar.Client]:
    client = pulsar.Client(cluster.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    yield client
    client.close()


def choices(cluster: ThreadedCluster) -> ConnectionChoices:
    return ConnectionChoices(service_url=cluster.service_url, admin_url=cluster.admin_url)


def send(stock: pulsar.Client, topic: str, count: int) -> list[str]:
    producer = stock.create_producer(topic, schema=pulsar.schema.StringSchema())
    values = [f"{topic} {number}" for number in range(count)]
    for value in values:
        producer.send(value)
    producer.close()
    return values


def read(stock: pulsar.Client, topic: str) -> list[str]:
    reader = stock.create_reader(topic, pulsar.MessageId.earliest, schema=pulsar.schema.StringSchema())
    found: list[str] = []
    while reader.has_message_available():
        found.append(reader.read_next(10_000).value())
    reader.close()
    return found


def test_a_replay_goes_on_though_the_archive_has_got_another_topic(
    spark: SparkSession, cluster: ThreadedCluster, stock: pulsar.Client, tmp_path: Path
) -> None:
    sent = {name: send(stock, f"public/from/grows-{name}", 5) for name in "abcd"}
    output = str(tmp_path / "archive")
    job = ArchiveJob(choices=choices(cluster), topics_pattern="public/from/grows-.*", output=output)
    assert run_archive(spark, job, QUIET).rows == 20
    replay = ReplayJob(choices=choices(cluster), archive=output, namespace="public/to")
    done = run_replay(spark, replay, QUIET)
    sent["z"] = send(stock, "public/from/grows-z", 5)
    assert run_archive(spark, job, QUIET).rows == 5
    run_replay(spark, replace(replay, resume=done.name), QUIET)
    assert {name: read(stock, f"public/to/grows-{name}") for name in sent} == sent


@pytest.mark.parametrize("by_topic", [False, True])
def test_a_part_of_an_archive_has_no_files_of_attempts_that_failed(
    spark: SparkSession, cluster: ThreadedCluster, stock: pulsar.Client, tmp_path: Path, by_topic: bool
) -> None:
    topic = f"public/from/part é 1%2 {by_topic}"
    sent = send(stock, topic, 5)
    output = tmp_path / "archive"
    job = ArchiveJob(choices=choices(cluster), topic=[topic], output=str(output), by_topic=by_topic)
    assert run_archive(spark, job, QUIET).rows == 5
    # As a task leaves it whose executor was killed when its file was written.
    [file] = output.rglob("*.parquet")
    shutil.copy(file, file.with_name(f"part-00000-killed{file.name[-20:]}"))
    target = f"persistent://public/part/target-{by_topic}"
    for part in (file.parent, f"{file.parent}/", output / file.relative_to(output).parts[0], f"{file.parent}*"):
        target += "-"
        replay = ReplayJob(choices=choices(cluster), archive=str(part), topic=target)
        assert run_replay(spark, replay, QUIET).rows == 5
        assert read(stock, target) == sent


def test_an_archive_without_messages(
    spark: SparkSession, cluster: ThreadedCluster, stock: pulsar.Client, tmp_path: Path
) -> None:
    stock.create_producer("public/from/silent").close()
    output = tmp_path / "archive"
    job = ArchiveJob(choices=choices(cluster), topic=["public/from/silent"], output=str(output))
    assert run_archive(spark, job, QUIET).rows == 0
    (tmp_path / "empty").mkdir()
    for folder in (output, tmp_path / "empty"):
        replay = ReplayJob(choices=choices(cluster), archive=str(folder), topic="public/to/silent")
        with pytest.raises(BadOption, match="is no archive of messages, or one without any"):
            run_replay(spark, replay, QUIET)
    with pytest.raises(AnalysisException, match="PATH_NOT_FOUND"):
        run_replay(spark, replace(replay, archive=str(tmp_path / "nowhere")), QUIET)
