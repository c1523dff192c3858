"""Spark's archive job on the same Kubernetes as a cluster: its executors read topics straight from the bookies."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pulsar
import pyspark
import pytest
from pulsar.schema import Integer, JsonSchema, Record, String

from e2e.kube.clusters import DeployedCluster
from e2e.kube.kubectl import Namespace
from e2e.kube.spark_jobs import (
    CLAIM,
    IMAGE,
    JOB_SECONDS_MAX,
    MANIFESTS,
    archived,
    job_of,
    log_of_ended,
    prepare,
    run_job,
    run_on_volume,
    settings_words,
    small,
)

OUTPUT = "/archive/orders"
TOPIC = "persistent://public/default/orders"
PARTITIONS = 3
LEDGER_ENTRIES = 40
"""Small ledgers: an archive of many closed ones and one that is written to, for each partition."""

FIRST, SECOND = 60_000, 20_000
"""Messages before and between the runs."""
EXECUTORS = 2

STORED = """
import hashlib, json, sys
import pyarrow.dataset, pyarrow.parquet
files = pyarrow.dataset.dataset(sys.argv[1], format="parquet", partitioning="hive").files
columns = ["id", "text", "__messageId"]
rows = [row for file in files for row in pyarrow.parquet.ParquetFile(file).read(columns).to_pylist()]
lines = sorted(f"{row['id']:08d} {row['text']}" for row in rows)
print(json.dumps({
    "rows": len(rows),
    "digest": hashlib.sha256("\\n".join(lines).encode()).hexdigest(),
    "ids": len({row["__messageId"] for row in rows}),
    "files": sorted(files),
}))
"""
"""Every file that the archive has, whoever calls it his: what was written twice would be found twice."""


class Order(Record):  # type: ignore[misc]  # The client has no types.
    """What is archived."""

    id = Integer()
    text = String()


@dataclasses.dataclass(frozen=True, slots=True)
class Orders:
    """Messages of a topic with a schema, numbered without a gap."""

    cluster: DeployedCluster

    def keep(self) -> None:
        """Somebody subscribes: else ledgers would be trimmed. Before there are messages, which would be sent to it."""
        client = self._client()
        try:
            client.subscribe(TOPIC, "keeper", initial_position=pulsar.InitialPosition.Earliest).close()
        finally:
            client.close()

    def publish(self, first: int, count: int) -> None:
        """Each acknowledged."""
        client = self._client()
        try:
            producer = client.create_producer(
                TOPIC, schema=JsonSchema(Order), batching_enabled=True, batching_max_messages=200,
                block_if_queue_full=True, send_timeout_millis=120_000,
            )  # fmt: skip
            problems: list[object] = []

            def told(result: object, _: object) -> None:
                if result != pulsar.Result.Ok:
                    problems.append(result)

            for number in range(first, first + count):
                producer.send_async(Order(id=number, text=text_of(number)), told)
            producer.flush()
            assert not problems, problems[:3]
            producer.close()
        finally:
            client.close()

    def _client(self) -> pulsar.Client:
        return pulsar.Client(self.cluster.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))

    def sent_by_brokers(self) -> int:
        """Messages that brokers have given to anybody."""
        path = f"/admin/v2/{TOPIC.replace('://', '/')}/partitioned-stats"
        return int(self.cluster.admin("GET", path)["msgOutCounter"])

    def ledgers(self) -> int:
        """Of all partitions."""
        path = f"/admin/v2/{TOPIC.replace('://', '/')}-partition-"
        found = (self.cluster.admin("GET", f"{path}{number}/internalStats") for number in range(PARTITIONS))
        return sum(len(each["ledgers"]) for each in found)


def text_of(number: int) -> str:
    return hashlib.sha256(b"%d" % number).hexdigest()


def digest(count: int) -> str:
    lines = "\n".join(f"{number:08d} {text_of(number)}" for number in range(count))
    return hashlib.sha256(lines.encode()).hexdigest()


@pytest.fixture
def place(scratch: Namespace) -> Iterator[Namespace]:
    """The namespace, with what all jobs need and the volume of the archive."""
    prepare(scratch)
    yield scratch
    # The volume's last users, before their namespace goes.
    scratch("delete", "pods", "-l", "spark-role", "--wait=false")


def addresses(cluster: DeployedCluster) -> list[str]:
    """Where things are inside of Kubernetes, for a job that must not read from brokers."""
    return [
        *("--service-url", cluster.inner_service_url),
        *("--admin-url", f"http://{cluster.name}-proxy.{cluster.namespace.name}:8080"),
        *("--metadata-url", f"zk:{cluster.name}-zookeeper.{cluster.namespace.name}:2181"),
        *("--option", "readMode=bookies"),
    ]


def submitters_kubeconfig(namespace: Namespace, folder: Path) -> tuple[Path, str]:
    """Of somebody who may edit one namespace, by a token: Spark's client does not read every kind of key. And where
    the API server is."""
    namespace("create", "serviceaccount", "submitter")
    account = f"{namespace.name}:submitter"
    namespace("create", "rolebinding", "submitter", "--clusterrole=edit", f"--serviceaccount={account}")
    token = namespace("create", "token", "submitter", "--duration=2h").strip()
    view = json.loads(namespace.kubernetes("config", "view", "--minify", "--raw", "--flatten", "-o", "json"))
    view["users"] = [{"name": "submitter", "user": {"token": token}}]
    view["contexts"][0]["context"] |= {"user": "submitter", "namespace": namespace.name}
    file = folder / "submitter.conf"
    file.write_text(json.dumps(view))
    return file, view["clusters"][0]["cluster"]["server"]


def submit_from_outside(cluster: DeployedCluster, folder: Path) -> str:
    """`spark-submit` in cluster mode on the machine of the tests; gives the driver's log."""
    kubernetes, driver = cluster.namespace.kubernetes, "archive-driver"
    kubeconfig, server = submitters_kubeconfig(cluster.namespace, folder)
    settings = {
        **small(EXECUTORS),
        "spark.kubernetes.namespace": cluster.namespace.name,
        "spark.kubernetes.container.image": IMAGE,
        "spark.kubernetes.driver.pod.name": driver,
        "spark.kubernetes.authenticate.driver.serviceAccountName": "magnetar-spark",
        "spark.kubernetes.authenticate.executor.serviceAccountName": "default",
        "spark.driver.memoryOverhead": "1024m",
        "spark.kubernetes.driver.request.cores": "100m",
        "spark.ui.enabled": "false",
    }
    for role in ("driver", "executor"):
        settings |= {
            f"spark.kubernetes.{role}.podTemplateFile": str(MANIFESTS / "pod-template.yaml"),
            f"spark.kubernetes.{role}.volumes.persistentVolumeClaim.archive.mount.path": "/archive",
            f"spark.kubernetes.{role}.volumes.persistentVolumeClaim.archive.options.claimName": CLAIM,
        }
    home = Path(pyspark.__file__).parent
    command = [
        str(home / "bin" / "spark-submit"),
        *("--master", f"k8s://{server}", "--deploy-mode", "cluster"),
        *("--name", "archive", *settings_words(settings)),
        *("local:///opt/magnetar/job.py", "archive", "--topic", TOPIC, "--output", OUTPUT, *addresses(cluster)),
        # Several micro-batches of several tasks.
        *("--max-bytes-per-batch", "2m", "--file-bytes", "1m"),
    ]
    # What this machine calls Python would be sent along.
    here = {name: value for name, value in kubernetes.environment.items() if not name.startswith("PYSPARK_")}
    environment = {**here, "KUBECONFIG": str(kubeconfig), "SPARK_HOME": str(home)}
    submitted = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=JOB_SECONDS_MAX, check=False
    )
    assert submitted.returncode == 0, submitted.stderr[-4_000:]
    return log_of_ended(cluster.namespace, driver)


def run_as_job(cluster: DeployedCluster) -> str:
    """The Job as it stands in its file, with this cluster's addresses, image and sizes; gives the driver's log."""
    return run_job(cluster.namespace, job_of("archive.yaml", small(EXECUTORS), addresses(cluster)))


def stored(namespace: Namespace) -> dict[str, Any]:
    """What the archive holds."""
    found: dict[str, Any] = json.loads(run_on_volume(namespace, STORED, OUTPUT))
    return found


def executors_with_tasks(log: str) -> set[str]:
    """Their numbers, as the driver tells whom it gave tasks."""
    return set(re.findall(r"Starting task .*executor (\d+),", log))


def test_topics_are_archived_by_executors_that_read_from_bookies(
    new_cluster: Callable[..., DeployedCluster], place: Namespace, tmp_path: Path, note: Callable[[str], None]
) -> None:
    assert shutil.which("java"), "spark-submit needs Java 17 or later"
    small_ledgers = {
        "managedLedgerMaxEntriesPerLedger": LEDGER_ENTRIES,
        "managedLedgerMinLedgerRolloverTimeMinutes": 0,
    }
    cluster = new_cluster(broker={"settings": small_ledgers})
    cluster.admin("PUT", f"/admin/v2/{TOPIC.replace('://', '/')}/partitions", PARTITIONS)
    orders = Orders(cluster)
    orders.keep()
    orders.publish(0, FIRST)
    ledgers = orders.ledgers()
    assert ledgers > PARTITIONS

    began = time.monotonic()
    log = submit_from_outside(cluster, tmp_path)
    seconds = time.monotonic() - began
    assert archived(log) == FIRST
    assert len(executors_with_tasks(log)) == EXECUTORS
    first = stored(place)
    assert (first["rows"], first["ids"], first["digest"]) == (FIRST, FIRST, digest(FIRST))

    orders.publish(FIRST, SECOND)
    log = run_as_job(cluster)
    assert archived(log) == SECOND
    both = FIRST + SECOND
    second = stored(place)
    assert (second["rows"], second["ids"], second["digest"]) == (both, both, digest(both))
    assert set(first["files"]) < set(second["files"])

    assert orders.sent_by_brokers() == 0
    note(
        f"{FIRST:,} messages of {ledgers} ledgers in {seconds:.0f} s from spark-submit to its end, then {SECOND:,} more"
    )
