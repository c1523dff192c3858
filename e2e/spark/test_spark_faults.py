"""A cluster of processes read past its brokers while its parts are killed, and queries whose executors and drivers are:
every message that was stored comes out, and comes out once.

MAGNETAR_E2E_ROWS: of how many messages the large topic is made."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeAlias

import pulsar
import pytest

from e2e import processes
from e2e.cluster import admin
from e2e.cluster.local import LocalCluster, Size
from e2e.spark import numbered
from e2e.spark.numbered import Numbers
from e2e.spark.running import RunningScript, Spark

pytestmark = pytest.mark.timeout(1500)

ROWS = int(os.environ.get("MAGNETAR_E2E_ROWS", "10000000"))
PROGRAM = Path(__file__).parent / "programs" / "numbers.py"
NAMESPACE = "public/spark-faults"
PARTITIONS = 4

BROKER_SETTINGS = {
    # Ledgers that are closed, and one that is in use, of each partition.
    "managedLedgerMaxEntriesPerLedger": "800",
    "managedLedgerMinLedgerRolloverTimeMinutes": "0",
    "loadBalancerSheddingEnabled": "false",
    "loadBalancerAutoBundleSplitEnabled": "false",
}
BOOKIE_SETTINGS = {"journalMaxBackups": "0"}
"""Journals that are done with would double what is on disk."""

STARTED_SECONDS_MAX = 300.0
"""Until a Spark that was started has come to where it is awaited."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    folder = Path(tmp_path_factory.mktemp("cluster"))
    with LocalCluster(folder, Size(bookies=4, brokers=2, proxies=0), broker_settings=BROKER_SETTINGS) as running:
        for bookie in running.bookies:
            bookie.settings.update(BOOKIE_SETTINGS)
        running.start()
        url = f"{running.admin_url}/admin/v2/namespaces/{NAMESPACE}"
        admin.call("PUT", url, {})
        admin.call("POST", f"{url}/retention", {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1})
        admin.call("POST", f"{url}/deduplication", True)
        # Two copies: one bookie may be away.
        quorums = {"bookkeeperEnsemble": 3, "bookkeeperWriteQuorum": 2, "bookkeeperAckQuorum": 2}
        admin.call("POST", f"{url}/persistence", {**quorums, "managedLedgerMaxMarkDeleteRate": 0.0})
        yield running


@pytest.fixture
def whole(cluster: LocalCluster) -> LocalCluster:
    """The cluster with all its parts."""
    for part in (*cluster.bookies, *cluster.brokers):
        if not part.running:
            part.start()
    return cluster


@pytest.fixture(scope="module")
def spark(make_spark: Callable[..., Spark]) -> Spark:
    """Tasks are tried again where an executor dies."""
    return make_spark(configuration={"spark.master": "local[2,4]", "spark.sql.shuffle.partitions": "4"})


def urls(cluster: LocalCluster, **more: str) -> dict[str, str]:
    return {"service.url": cluster.service_url, "admin.url": cluster.admin_url, **more}


def topic(name: str) -> str:
    return f"persistent://{NAMESPACE}/{name}"


@pytest.fixture
def told(capsys: pytest.CaptureFixture[str]) -> Callable[[str], None]:
    """Prints for those who watch."""

    def tell(text: str) -> None:
        with capsys.disabled():
            sys.stdout.write(f"\n{time.strftime('%H:%M:%S')} {text}")
            sys.stdout.flush()

    return tell


def python_workers() -> list[int]:
    """Of the Sparks that were started here: processes that a daemon of theirs has forked."""

    def is_daemon(pid: int) -> bool:
        try:
            return b"pyspark.daemon" in Path(f"/proc/{pid}/cmdline").read_bytes()
        except OSError:
            return False

    daemons = [pid for pid in processes.tree(os.getpid()) if is_daemon(pid)]
    return [pid for daemon in daemons for pid in processes.tree(daemon)[1:]]


def wait_for(running: RunningScript, holds: Callable[[], bool], what: str) -> None:
    """Looks often: what is awaited may last for milliseconds."""
    give_up_at = time.monotonic() + STARTED_SECONDS_MAX
    while not holds():
        if time.monotonic() > give_up_at or running.ended:
            running.kill()
            raise AssertionError(f"{what} does not come; {running.log_tail()}")
        time.sleep(0.001)


class TestScan:
    """A topic of gigabytes."""

    def test_everything_arrives_while_a_bookie_and_the_brokers_die(
        self, whole: LocalCluster, spark: Spark, tmp_path: Path, told: Callable[[str], None]
    ) -> None:
        large = Numbers(whole.admin_url, topic("large"), partitions=PARTITIONS, per_batch=1_000)
        large.make()
        begun = time.monotonic()
        large.produce(ROWS)
        seconds = time.monotonic() - begun
        told(f"{ROWS} messages produced in {seconds:.0f} s, {ROWS * numbered.VALUE_BYTES / seconds / 1e6:.0f} MB/s")
        options = urls(
            whole,
            topic=large.topic,
            readMode="bookies",
            splitBytes=str(max(1 << 20, ROWS * numbered.VALUE_BYTES // 40)),
        )
        progress = tmp_path / "progress"
        steps = [
            {"do": "scan", "options": options, "number": numbered.NUMBER, "progress": str(progress)},
            {"do": "expected", "count": ROWS, "value_of_id": numbered.VALUE_OF_ID},
        ]
        running = spark.start(PROGRAM, {"steps": steps})
        broker_pids = [pid for broker in whole.brokers for pid in broker.pids]
        wait_for(running, lambda: _number_in(progress) >= 2, "the first tasks' end")
        before = processes.cpu_seconds(broker_pids)
        whole.bookies[0].kill()
        told(f"bookie killed after {_number_in(progress)} tasks")
        killed = python_workers()
        for pid in killed:
            os.kill(pid, signal.SIGKILL)
        told(f"{len(killed)} Python workers of executors killed")
        at_kill = _number_in(progress)
        wait_for(running, lambda: _number_in(progress) >= at_kill + 4, "more tasks' end")
        broker_seconds = processes.cpu_seconds(broker_pids) - before
        for broker in whole.brokers:
            broker.kill()
        told(
            f"brokers killed after {_number_in(progress)} tasks; they had used {broker_seconds:.2f} s of CPU meanwhile"
        )
        scan, expected = running.answer(900)
        told(f"{ROWS} messages read in {scan['seconds']:.0f} s, {ROWS / scan['seconds'] / 1e6:.2f} million rows/s")
        assert scan["totals"] == expected
        assert expected["count"] == ROWS
        check_entries(scan["entries"], large)


def check_entries(entries: list[dict[str, Any]], large: Numbers) -> None:
    """Each entry is one batch as it was sent, and in each partition they have the order in which they were sent: so
    there is each message once."""
    firsts: dict[str, list[int]] = {}
    for entry in sorted(entries, key=lambda one: (one["topic"], one["ledger"], one["entry"])):
        count = large.per_batch
        assert (entry["rows"], entry["least"], entry["greatest"]) == (count, 0, count - 1), entry
        assert entry["places"] == count * (count - 1) // 2, entry
        assert entry["first"] == entry["last"], entry
        firsts.setdefault(entry["topic"], []).append(entry["first"])
    batches = ROWS // large.per_batch
    assert firsts == {
        f"{large.topic}-partition-{partition}": [
            batch * large.per_batch for batch in range(partition, batches, large.partitions)
        ]
        for partition in range(large.partitions)
    }


def _number_in(file: Path) -> int:
    return int(file.read_text()) if file.exists() else 0


Incident: TypeAlias = tuple[str, str, int]
"""Which query, what happens to it (`exit` or `pause`), and at which number."""


class Copying:
    """Two streaming queries of one topic, into files and into another topic, in drivers that are killed."""

    ROUND = 20_000
    """Messages that are produced before each start."""
    PER_TRIGGER = 3_000

    def __init__(self, cluster: LocalCluster, spark: Spark, folder: Path, told: Callable[[str], None]) -> None:
        self._told = told
        self._cluster = cluster
        self._spark = spark
        self.folder = folder
        self.source = Numbers(cluster.admin_url, topic("copied"), partitions=PARTITIONS, per_batch=100)
        self.source.make()
        self.target = topic("copy")
        admin.call("PUT", f"{cluster.admin_url}/admin/v2/{self.target.replace('://', '/')}")
        (folder / "flags").mkdir()

    def step(self, incidents: list[Incident], *, available_now: bool) -> dict[str, Any]:
        """Of the program."""
        source = urls(
            self._cluster,
            topic=self.source.topic,
            startingOffsets="earliest",
            readMode="bookies",
            maxRowsPerTrigger=str(self.PER_TRIGGER),
            failOnDataLoss="true",
        )
        return {
            "do": "copy",
            "source": source,
            "target": urls(self._cluster, topic=self.target),
            "number": numbered.NUMBER,
            "folder": str(self.folder),
            "flags": str(self.folder / "flags"),
            "incidents": incidents,
            "available_now": available_now,
        }

    def die(self, moment: str, holds: Callable[[], bool], incidents: list[Incident]) -> None:
        """Start, wait for the moment, and kill the driver with everything that it has started."""
        self.source.produce(self.ROUND)
        begun = time.monotonic()
        running = self._spark.start(PROGRAM, {"steps": [self.step(incidents, available_now=False)]})
        wait_for(running, holds, moment)
        running.kill()
        self._told(f"driver killed {time.monotonic() - begun:.0f} s after its start: {moment}; {self.state()}")

    def log(self, query: str, kind: str) -> set[int]:
        """Micro-batches in the checkpoint's offsets or commits."""
        folder = self.folder / f"{query}-checkpoint" / kind
        return {int(file.name) for file in folder.glob("*") if file.name.isdigit()}

    def flag(self, incident: Incident) -> Path:
        """Is there once it has happened."""
        return self.folder / "flags" / "-".join(map(str, incident))

    def files_of(self) -> set[int]:
        """Micro-batches whose files count."""
        return {int(file.name) for file in (self.folder / "files/_spark_metadata").glob("*") if file.name.isdigit()}

    def state(self) -> str:
        """Of both."""
        return ", ".join(
            f"{query} {len(self.log(query, 'offsets'))} planned and {len(self.log(query, 'commits'))} committed"
            for query in ("files", "topic")
        )


class TestQueries:
    """Streams out of a topic."""

    def test_drivers_and_executors_die(
        self, whole: LocalCluster, spark: Spark, tmp_path: Path, told: Callable[[str], None]
    ) -> None:
        case = Copying(whole, spark, tmp_path, told)

        def behind(query: str, kind: str, other: Callable[[], set[int]]) -> Callable[[], bool]:
            """Two micro-batches from now on, one is in the log and not where it comes later."""
            known = max(case.log(query, kind), default=-1)
            return lambda: any(number > known + 1 for number in case.log(query, kind) - other())

        # What an executor dies of stays possible until it has happened.
        exits = [("files", "exit", 2 * case.ROUND + 77), ("topic", "exit", 2 * case.ROUND + 99)]
        case.die("files: planned", behind("files", "offsets", lambda: case.log("files", "commits")), [])
        pause = ("topic", "pause", case.ROUND + 333)
        case.die("topic: in the middle of a task", case.flag(pause).exists, [pause])
        pause = ("files", "pause", 2 * case.ROUND + 5_050)
        case.die("files: in the middle of a task", case.flag(pause).exists, [*exits, pause])
        known = max(case.files_of(), default=-1)
        case.die(
            "files: written and not committed",
            lambda: any(number > known + 1 for number in case.files_of() - case.log("files", "commits")),
            exits,
        )
        case.die("topic: planned", behind("topic", "offsets", lambda: case.log("topic", "commits")), exits)
        case.die("topic: committed", behind("topic", "commits", set), exits)

        begun = time.monotonic()
        steps: list[dict[str, Any]] = [
            case.step(exits, available_now=True),
            {"do": "check_files", "folder": str(tmp_path)},
            {"do": "expected", "count": case.source.produced, "value_of_id": numbered.VALUE_OF_ID},
        ]
        _, found, expected = spark.run(PROGRAM, {"steps": steps}, timeout_s=600)
        told(f"the rest copied in {time.monotonic() - begun:.0f} s; {case.state()}")
        assert all(case.flag(one).exists() for one in exits)
        count = case.source.produced
        different = found.pop("different")
        assert (found, different) == (expected, count)
        self.check_copy(whole, case)
        self.check_backlog(whole, case)

    @staticmethod
    def check_copy(cluster: LocalCluster, case: Copying) -> None:
        """Each number once, and those of one partition in their order."""
        client = pulsar.Client(cluster.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
        reader = client.create_reader(case.target, pulsar.MessageId.earliest)
        by_partition: dict[str, list[int]] = {}
        while reader.has_message_available():
            message = reader.read_next(10_000)
            by_partition.setdefault(message.partition_key(), []).append(int(message.data()))
        client.close()
        per_batch = case.source.per_batch
        assert by_partition == {
            f"{case.source.topic}-partition-{partition}": [
                number for number in range(case.source.produced) if number // per_batch % PARTITIONS == partition
            ]
            for partition in range(PARTITIONS)
        }

    @staticmethod
    def check_backlog(cluster: LocalCluster, case: Copying) -> None:
        """The subscription has followed to the end."""
        path = case.source.topic.replace("://", "/")
        url = f"{cluster.admin_url}/admin/v2/{path}/partitioned-stats?getPreciseBacklog=true"
        found = {name: one["msgBacklog"] for name, one in admin.get_json(url)["subscriptions"].items()}
        assert found == {"copying-files": 0, "copying-topic": 0}
