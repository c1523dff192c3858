"""Brokers, proxies and ZooKeeper fail under the load of several stock clients; every history is checked afterwards.

`python -m e2e.cluster.storm --fault owner|proxy|zookeeper|session|pause|unloads|rolling|bookie|mixed [--count N] …`,
or `--fault clock|stall|answers|stops`.

Three brokers, four bookies, a proxy and an ensemble of three ZooKeepers, all as processes; Python, Go and Java clients
that produce and consume all the while, some through the proxy and some not. `owner`: kill -9 of the broker that serves
one of the topics. `proxy`: kill -9 of the proxy. `zookeeper`: kill -9 of the ensemble's leader. `session`: ZooKeeper
stands still until every session is over. `pause`: the owner is stopped (SIGSTOP) past its session, another takes its
topics, and it goes on as if nothing had been. `unloads`: topics and bundles are unloaded as fast as it goes, `--count`
times. `rolling`: every broker in turn is stopped in good order and started again. `clock`: wall clocks of brokers and
bookies go ten minutes forward and back; nobody may notice, and delayed messages come. `stall`: bookies' disks hang for
up to 15 seconds. `answers`: connections to ZooKeeper lose answers to what was applied, stand still one way, or end
within a frame, while topics are unloaded and ledgers are short. `stops`: brokers and bookies stand still for up to 20
seconds while others are killed. The seed fixes who suffers when. `--mistake` plants one of `e2e.disturbing.mistakes`,
which must be found.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import random
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from e2e import corpus, processes, run_clients
from e2e.cluster import admin, disturbed
from e2e.cluster.local import LocalCluster, Size
from e2e.cluster.parts import Broker
from e2e.disturbing.mistakes import FORGETFUL_DISK, MISTAKES
from e2e.disturbing.storms import LostAnswers, Trouble
from e2e.run_clients import ENDLESS, Failure, Run, Tail
from e2e.workload import CLIENTS, SubscriptionType, Workload

logger: Final = logging.getLogger("e2e.cluster")

FAULTS = ("owner", "proxy", "zookeeper", "session", "pause", "unloads", "rolling", "bookie", "mixed", *disturbed.FAULTS)
SIZE = Size(zookeepers=3, bookies=4, brokers=3, proxies=1)
MESSAGES_PER_SECOND = 200
CORPUS_LINES = 10_000
BEYOND_SESSION_S = 4.0
"""How much longer than a session lives somebody stands still."""
FLOW_SECONDS_MAX = 90.0
"""Every client has a receipt again so long after a fault: the session, the clients' longest backoff, and room."""


class Storm:
    """Disturbs a cluster, one thing at a time; each disturbance says what it did."""

    def __init__(self, cluster: LocalCluster, runs: list[Run], rng: random.Random) -> None:
        self.cluster = cluster
        self._runs = runs
        self._rng = rng
        self._session_s = cluster.settings.session_timeout_ms / 1000

    def owner(self) -> str:
        victim = self._owner(self._rng.choice(self._runs))
        victim.kill()
        time.sleep(self._rng.uniform(0.0, 2 * self._session_s))
        victim.start()
        return f"killed {victim.folder.name}"

    def proxy(self) -> str:
        victim = self._rng.choice(self.cluster.proxies)
        victim.kill()
        time.sleep(self._rng.uniform(0.0, 3.0))
        victim.start()
        return f"killed {victim.folder.name}"

    def bookie(self) -> str:
        victim = self._rng.choice(self.cluster.bookies)
        victim.kill()
        time.sleep(self._rng.uniform(0.0, 3.0))
        victim.start()
        return f"killed {victim.folder.name}"

    def zookeeper(self) -> str:
        leader = self.cluster.ensemble.leader()
        leader.kill()
        self.cluster.ensemble.leader()
        leader.start()
        return "killed ZooKeeper's leader"

    def session(self) -> str:
        for server in self.cluster.ensemble.servers:
            server.pause()
        time.sleep(self._session_s + BEYOND_SESSION_S)
        for server in self.cluster.ensemble.servers:
            server.resume()
        return "ZooKeeper stood still for longer than a session"

    def pause(self) -> str:
        victim = self._owner(self._rng.choice(self._runs))
        victim.pause()
        time.sleep(self._session_s + BEYOND_SESSION_S)
        victim.resume()
        return f"stopped {victim.folder.name} past its session"

    def unloads(self) -> str:
        """One topic, or the bundle that it is in."""
        topic = self._topic(self._rng.choice(self._runs)).removeprefix("persistent://")
        path = f"/admin/v2/persistent/{topic}/unload"
        if self._rng.random() < 0.5:
            path = f"/admin/v2/namespaces/public/default/{self._bundle(topic)}/unload"
        admin.call("PUT", self.cluster.admin_url + path)
        return f"unloaded {path}"

    def rolling(self) -> str:
        for broker in self.cluster.brokers:
            broker.stop()
            broker.start()
        return "restarted every broker in turn"

    def mixed(self) -> str:
        kinds: list[Callable[[], str]] = [self.owner, self.proxy, self.zookeeper, self.unloads, self.bookie]
        kinds += [self.owner, self.unloads, self.pause, self.session, self.rolling]
        return self._rng.choice(kinds)()

    @staticmethod
    def _topic(run: Run) -> str:
        return f"{run.topic}-partition-0" if run.workload.partitions else run.topic

    def _owner(self, run: Run) -> Broker:
        path = "/lookup/v2/topic/" + self._topic(run).replace("://", "/")
        url = admin.get_json(self.cluster.admin_url + path)["brokerUrl"]
        return next(broker for broker in self.cluster.brokers if broker.service_url == url)

    def _bundle(self, topic: str) -> str:
        path = f"/lookup/v2/topic/persistent/{topic}/bundle"
        return admin.call("GET", self.cluster.admin_url + path).decode()


def draw(rng: random.Random, client: str, kind: SubscriptionType) -> Workload:
    """An endless workload."""
    return Workload(
        client=client,
        subscription_type=kind,
        batched=rng.random() < 0.5,
        compression="NONE",
        keyed=kind is SubscriptionType.KEY_SHARED or rng.random() < 0.5,
        partitions=rng.choice([0, 3]),
        restart=True,
        count=ENDLESS,
        producers=1,
    )


def new_runs(cluster: LocalCluster, rng: random.Random, clients: list[str]) -> list[Run]:
    """One run per client and way in."""
    kinds = list(SubscriptionType)
    rng.shuffle(kinds)
    runs = []
    for number, client in enumerate(clients):
        workload = draw(rng, client, kinds[number % len(kinds)])
        folder = cluster.folder / f"{number}-{workload.name}"
        folder.mkdir(parents=True)
        url = cluster.service_url if number % 2 == 0 else cluster.broker_service_url
        run = Run(
            workload,
            cluster,
            folder,
            topic=f"persistent://public/default/storm-{number}",
            service_url=url,
            rate=MESSAGES_PER_SECOND,
            idle_timeout_s=180.0,
            linger_ms=3000,
        )
        corpus.write(folder / "corpus.txt", CORPUS_LINES)
        run_clients.create_topic(run.server, run.topic, workload.partitions)
        runs.append(run)
    return runs


def ride_out(storm: Storm, runs: list[Run], fault: str, count: int, trouble: Trouble | None) -> list[str]:
    """The whole run on a started cluster; what is wrong afterwards."""
    disturb: Callable[[], str] = trouble.disturb if trouble is not None else getattr(storm, fault)
    over = threading.Event()

    def wait_and_finish(run: Run) -> None:
        over.wait()
        run_clients.finish_endless(run)

    with ThreadPoolExecutor(len(runs)) as pool:
        rides = [pool.submit(run_clients.drive, run, wait_and_finish, 7200.0) for run in runs]
        try:
            _wait_for_flow(runs)
            for number in range(1, count + 1):
                # Of a clock that jumps clients are to notice nothing.
                _disturb(disturb, runs if fault != "clock" else [], f"{number} of {count}")
                if fault != "unloads":
                    _wait_for_flow(runs)
            if trouble is not None:
                trouble.finish()
        finally:
            over.set()
        problems = [] if trouble is None else trouble.problems
        for run, ride in zip(runs, rides, strict=True):
            error = ride.exception()
            found = run_clients.verdict(run) if error is None else [str(error)]
            if trouble is not None and error is None:
                found += disturbed.missing(storm.cluster, run)
            problems += [f"{run.workload.name}: {problem}" for problem in found]
    return problems


def _disturb(disturb: Callable[[], str], runs: list[Run], which: str) -> None:
    began_ms = time.time_ns() // 1_000_000
    what = disturb()
    for run in runs:
        run.deaths_ms += [began_ms, time.time_ns() // 1_000_000]
        run.beginnings_ms.append(began_ms)
    logger.info("%s: %s (%.1f s)", which, what, (time.time_ns() // 1_000_000 - began_ms) / 1000)


def _wait_for_flow(runs: list[Run]) -> None:
    """Until every client has new receipts; how long that took is told."""
    tails = [Tail(run.history_file("produce"), "acked") for run in runs]
    before = [tail.poll() for tail in tails]
    began = time.monotonic()
    while any(tail.poll() <= count for tail, count in zip(tails, before, strict=True)):
        if time.monotonic() - began > FLOW_SECONDS_MAX:
            stuck = [run.workload.name for run, t, c in zip(runs, tails, before, strict=True) if t.count <= c]
            raise Failure(f"no receipt for {FLOW_SECONDS_MAX:.0f} s: {', '.join(stuck)}")
        time.sleep(0.05)
    logger.info("receipts for all after %.1f s; %s", time.monotonic() - began, [tail.count for tail in tails])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fault", choices=FAULTS, default="mixed")
    parser.add_argument("--count", type=int, default=10)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--clients", default=",".join(CLIENTS), help="stock clients, by language; may repeat")
    parser.add_argument("--mistake", choices=sorted([FORGETFUL_DISK, *MISTAKES]), default="")
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    logging.getLogger("kazoo").setLevel(logging.WARNING)
    fault, count, mistake = arguments.fault, arguments.count, arguments.mistake
    seed = arguments.seed if arguments.seed is not None else random.SystemRandom().randrange(1 << 31)
    replay = f"python -m e2e.cluster.storm --fault {fault} --count {count} --seed {seed}"
    replay += f" --mistake {mistake}" if mistake else ""
    logger.info("replay: %s", replay)
    folder = Path(tempfile.mkdtemp(prefix="magnetar-cluster-storm-"))
    rng = random.Random(seed)
    processes.leave_nothing_behind()
    with contextlib.ExitStack() as stack:
        cluster = stack.enter_context(LocalCluster(folder, SIZE))
        disturbed.plant(cluster, mistake)
        trouble = disturbed.prepare(fault, cluster, rng, stack, mistake)
        cluster.start()
        try:
            runs = new_runs(cluster, rng, arguments.clients.split(","))
            storm = Storm(cluster, runs, rng)
            if isinstance(trouble, LostAnswers):
                trouble.provoke = disturbed.provoked_by(storm.unloads)
            problems = ride_out(storm, runs, fault, count, trouble)
        except Failure as failure:
            problems = [str(failure), *(trouble.problems if trouble is not None else [])]
    for problem in problems:
        logger.info("FAIL %s", problem)
    if mistake:
        logger.info("%s: %s", mistake, "found" if problems else "NOT FOUND")
        return 0 if problems else 1
    logger.info("%s\nhistories and logs: %s\nreplay: %s", "FAIL" if problems else "OK", folder, replay)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
