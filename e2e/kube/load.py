"""Stock clients that work while the cluster is changed under them, and bytes that must all come back."""

from __future__ import annotations

import hashlib
import itertools
import logging
import random
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pulsar

from e2e import corpus, history, run_clients
from e2e.history import Acknowledged, Failed
from e2e.kube.clusters import DeployedCluster
from e2e.run_clients import ENDLESS, Run, Tail
from e2e.workload import SubscriptionType, Workload

logger: Final = logging.getLogger(__name__)

MESSAGES_PER_SECOND: Final = 200
CORPUS_LINES: Final = 10_000
FLOW_SECONDS_MAX: Final = 90.0
BREAKS_MS: Final = 5_000
RIDE_SECONDS_MAX: Final = 3600.0


class Load:
    """Producers and consumers that never stop until told, their histories checked then."""

    def __init__(self, cluster: DeployedCluster, folder: Path, kinds: tuple[SubscriptionType, ...]) -> None:
        self._over = threading.Event()
        self.runs = [self._new_run(cluster, folder, number, kind) for number, kind in enumerate(kinds)]
        self._pool = ThreadPoolExecutor(len(self.runs))
        self._rides: list[Future[None]] = [
            self._pool.submit(run_clients.drive, run, self._wait_and_finish, RIDE_SECONDS_MAX) for run in self.runs
        ]

    @staticmethod
    def _new_run(cluster: DeployedCluster, folder: Path, number: int, kind: SubscriptionType) -> Run:
        workload = Workload(
            client="python",
            subscription_type=kind,
            batched=number % 2 == 0,
            compression="NONE",
            keyed=kind is SubscriptionType.KEY_SHARED,
            partitions=3 if number % 2 == 0 else 0,
            restart=True,
            count=ENDLESS,
            producers=1,
        )
        its_folder = folder / f"{number}-{workload.name}"
        its_folder.mkdir(parents=True)
        run = Run(
            workload,
            cluster,  # type: ignore[arg-type]  # Of a server only its two URLs are asked for.
            its_folder,
            topic=f"persistent://public/default/load-{number}-{time.time_ns()}",
            service_url=cluster.service_url,
            rate=MESSAGES_PER_SECOND,
            idle_timeout_s=180.0,
            linger_ms=3000,
        )
        corpus.write(its_folder / "corpus.txt", CORPUS_LINES)
        run_clients.create_topic(run.server, run.topic, workload.partitions)
        return run

    def _wait_and_finish(self, run: Run) -> None:
        self._over.wait()
        run_clients.finish_endless(run)

    def wait_for_flow(self) -> float:
        """Until every producer has new receipts; how long that took."""
        tails = [Tail(run.history_file("produce"), "acked") for run in self.runs]
        before = [tail.poll() for tail in tails]
        began = time.monotonic()
        while any(tail.poll() <= count for tail, count in zip(tails, before, strict=True)):
            assert time.monotonic() - began < FLOW_SECONDS_MAX, f"no receipt for {FLOW_SECONDS_MAX:.0f} s"
            for ride in self._rides:
                if ride.done():
                    ride.result()
            time.sleep(0.05)
        return time.monotonic() - began

    @contextmanager
    def disturbed(self) -> Iterator[None]:
        """While connections may break: messages of that time may come twice."""
        began_ms = time.time_ns() // 1_000_000
        yield
        self.wait_for_flow()
        ended_ms = time.time_ns() // 1_000_000
        for run in self.runs:
            # A roll-out breaks connections again and again, as long as it lasts.
            run.deaths_ms += [*range(began_ms, ended_ms, BREAKS_MS), ended_ms]
            run.beginnings_ms.append(began_ms)

    def finish(self) -> None:
        """End it. Fails for whatever was lost, damaged, out of order, or could not be published."""
        self._over.set()
        problems = []
        for run, ride in zip(self.runs, self._rides, strict=True):
            ride.result()
            found = run_clients.verdict(run)
            events = history.read(run.history_file("produce"))
            failed = [event for event in events if isinstance(event, Failed)]
            found += [f"{len(failed)} messages could not be published, first {failed[0]}"] if failed else []
            problems += [f"{run.workload.name}: {problem}" for problem in found]
        self._pool.shutdown()
        assert not problems, "\n".join(problems)

    def longest_wait_seconds(self) -> float:
        """The longest time without a receipt that any producer had."""
        longest = 0.0
        for run in self.runs:
            events = history.read(run.history_file("produce"))
            times = [event.time_ms for event in events if isinstance(event, Acknowledged)]
            gaps = [after - before for before, after in itertools.pairwise(times)]
            longest = max(longest, max(gaps, default=0) / 1000)
        return longest


@contextmanager
def under_load(
    cluster: DeployedCluster,
    folder: Path,
    kinds: tuple[SubscriptionType, ...] = (SubscriptionType.SHARED, SubscriptionType.FAILOVER),
) -> Iterator[Load]:
    """Load on a cluster as long as the block runs; judged at its end."""
    load = Load(cluster, folder, kinds)
    try:
        load.wait_for_flow()
        yield load
    except BaseException:
        load._over.set()  # noqa: SLF001  (what ends the threads, whatever they found)
        raise
    load.finish()
    logger.info("the longest wait for a receipt: %.2f s", load.longest_wait_seconds())


class StoredBytes:
    """Bytes that were published once, and that must come back whole, whatever happened to those who keep them."""

    def __init__(self, cluster: DeployedCluster, topics: int, megabytes: int, message_bytes: int = 65_536) -> None:
        self._cluster = cluster
        self._message_bytes = message_bytes
        self._topics = [f"persistent://public/default/bytes-{time.time_ns()}-{number}" for number in range(topics)]
        self._count = megabytes * 1_000_000 // message_bytes // topics
        self._digests: dict[str, str] = {}

    def publish(self) -> None:
        """All of them, each acknowledged."""
        client = pulsar.Client(self._cluster.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
        try:
            for number, topic in enumerate(self._topics):
                source, digest = random.Random(number), hashlib.sha256()
                # Somebody who has not read them yet: without, they would not be kept.
                client.subscribe(topic, "keeper", initial_position=pulsar.InitialPosition.Earliest).close()
                producer = client.create_producer(topic, block_if_queue_full=True, send_timeout_millis=120_000)
                problems: list[object] = []

                def told(result: object, _: object, problems: list[object] = problems) -> None:
                    if result != pulsar.Result.Ok:
                        problems.append(result)

                for _ in range(self._count):
                    content = source.randbytes(self._message_bytes)
                    digest.update(content)
                    producer.send_async(content, told)
                producer.flush()
                assert not problems, problems[:3]
                producer.close()
                self._digests[topic] = digest.hexdigest()
        finally:
            client.close()

    def read_back(self) -> int:
        """Read every byte from the bookies, not out of the brokers' memory; how many there were."""
        total = 0
        client = pulsar.Client(self._cluster.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
        try:
            for topic in self._topics:
                self._cluster.admin("PUT", f"/admin/v2/{topic.replace('://', '/')}/unload")
                digest = hashlib.sha256()
                reader = client.create_reader(topic, pulsar.MessageId.earliest)
                for _ in range(self._count):
                    content = reader.read_next(timeout_millis=60_000).data()
                    digest.update(content)
                    total += len(content)
                assert not reader.has_message_available()
                reader.close()
                assert digest.hexdigest() == self._digests[topic], f"{topic} came back as something else"
        finally:
            client.close()
        return total
