"""Transactions of stock Java and Go clients while brokers and bookies are killed; every promise is checked afterwards.

`python -m e2e.transactions [--count 8] [--seed N] [--clients java,go]`

Three brokers, four bookies and a ZooKeeper as processes. In each transaction a client takes one message of a topic of
three partitions and publishes its number to three topics, one of them of three partitions. Seven of ten are committed,
a few are left to their time-out. Meanwhile, in turn, the broker of a transaction coordinator, of an output topic, of an
input partition, and a bookie get SIGKILL and start again. At the end everything is to be through in a bounded time.
The promises are in `checks`. The seed fixes who suffers when.
"""

from __future__ import annotations

import argparse
import json
import logging
import random
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from subprocess import Popen
from typing import Any, Final

from e2e import processes
from e2e.clients import builds
from e2e.cluster import admin
from e2e.cluster.local import LocalCluster, Size
from e2e.cluster.parts import Bookie, Broker
from e2e.transactions import checks
from e2e.transactions.checks import Ended, Event, Flood, Given
from e2e.transactions.watching import Feeder, Watchers, read_all

logger: Final = logging.getLogger("e2e.transactions")

SIZE: Final = Size(zookeepers=1, bookies=4, brokers=3, proxies=0)
NAMESPACE: Final = "public/transactions"
BUNDLES: Final = 12
PARTITIONS: Final = 3
COORDINATORS: Final = 16
OPEN_MAX: Final = 40
"""Of each coordinator."""
INPUTS_PER_SECOND: Final = 15
WORKERS: Final = 6
TIMEOUT_MS: Final = 10_000
"""Of a transaction."""
FLOOD_TIMEOUT_MS: Final = 120_000
FLOOD_ANSWER_MS_MAX: Final = 5_000
FLOW_SECONDS_MAX: Final = 90.0
"""Each client has a commit confirmed so long after a fault."""
DRAIN_SECONDS_MAX: Final = 120.0
"""So long after the last fault no subscription has a message left."""
END_SECONDS_MAX: Final = 100.0
READY_SECONDS_MAX: Final = 90.0
SUBSCRIPTION, WATCHING = "work", "watch"


class Failure(Exception):
    """A program ended, or something did not come to be in its time."""


class Work:
    """A client's program with topics of its own, who feeds it and who watches what it publishes."""

    def __init__(self, client: str, cluster: LocalCluster, seed: int) -> None:
        self.client = client
        self.folder = cluster.folder / client
        self.folder.mkdir(parents=True)
        prefix = f"persistent://{NAMESPACE}/{client}"
        self.input = f"{prefix}-input"
        self.outputs = [f"{prefix}-{name}" for name in ("first", "second", "third")]
        self.history = self.folder / "work.jsonl"
        self.committed = 0
        self._url = cluster.broker_service_url
        self._seed = seed
        for topic in (self.input, self.outputs[-1]):
            path = topic.replace("://", "/")
            admin.call("PUT", f"{cluster.admin_url}/admin/v2/{path}/partitions", PARTITIONS)
        self.feeder = Feeder(self._url, self.input, INPUTS_PER_SECOND)
        self.watchers = Watchers(self._url, self.outputs, WATCHING)
        self.program: Popen[bytes] | None = None

    @property
    def partitions(self) -> list[str]:
        """Every topic that messages are in."""
        whole = [f"{topic}-partition-{number}" for topic in (self.input, self.outputs[-1]) for number in range(3)]
        return [*whole, *self.outputs[:-1]]

    def start(self) -> None:
        """Everything; returns once the program works."""
        self.feeder.start()
        self.watchers.start()
        self.program = self._spawn("work", self.history, TIMEOUT_MS)
        wait(lambda: self.alive() and bool(self.events()), READY_SECONDS_MAX, f"{self.client} is not ready")

    def alive(self) -> bool:
        """Raises Failure when the program has ended."""
        assert self.program is not None
        if self.program.poll() is not None:
            log = (self.folder / "work.log").read_text(errors="replace")
            raise Failure(f"{self.client} ended with {self.program.returncode}: {log[-2000:]}")
        return True

    def tell(self, what: str) -> None:
        """`drain`: commit everything from now on. `stop`: begin nothing any more."""
        (self.folder / what).touch()

    def end(self) -> None:
        """The program has ended by itself, or is ended."""
        assert self.program is not None
        deadline = time.monotonic() + END_SECONDS_MAX
        while self.program.poll() is None and time.monotonic() < deadline:
            time.sleep(0.1)
        processes.end(self.program, grace_s=2)

    def leave(self) -> None:
        """Leave nothing running, whatever has failed."""
        if self.program is not None:
            processes.end(self.program, grace_s=2)
        self.watchers.stop()
        self.feeder.abandon()

    def events(self) -> list[Event]:
        """What the program wrote so far."""
        return checks.read(self.history) if self.history.exists() else []

    def commits(self) -> int:
        """How many the client was told of."""
        return sum(isinstance(event, Ended) and event.committed for event in self.events())

    def flood(self) -> Flood:
        """Open transactions until one is refused."""
        history = self.folder / "flood.jsonl"
        program = self._spawn("flood", history, FLOOD_TIMEOUT_MS)
        try:
            wait(lambda: program.poll() is not None, END_SECONDS_MAX, f"{self.client}'s flood does not end")
        finally:
            processes.end(program, grace_s=2)
        found = [event for event in checks.read(history) if isinstance(event, Flood)]
        if not found:
            raise Failure(f"{self.client}'s flood: {(self.folder / 'flood.log').read_text()[-2000:]}")
        return found[0]

    def _spawn(self, mode: str, history: Path, timeout_ms: int) -> Popen[bytes]:
        options = {
            "service_url": self._url,
            "input": self.input,
            "subscription": SUBSCRIPTION,
            "outputs": self.outputs,
            "workers": WORKERS,
            "seed": self._seed % (1 << 30),
            "timeout_ms": timeout_ms,
            "history": str(history),
            "stop_file": str(self.folder / "stop"),
            "drain_file": str(self.folder / "drain"),
            "most": COORDINATORS * OPEN_MAX + 1,
        }
        file = self.folder / f"{mode}.json"
        file.write_text(json.dumps(options, indent=2))
        command = [*builds.transaction_command(self.client), mode, str(file)]
        return processes.spawn(command, self.folder / f"{mode}.log")


def wait(holds: Callable[[], bool], seconds_max: float, problem: str) -> float:
    """Until it holds; gives the seconds that it took. Raises Failure."""
    began = time.monotonic()
    while not holds():
        if time.monotonic() - began > seconds_max:
            raise Failure(f"{problem} after {seconds_max:.0f} s")
        time.sleep(0.2)
    return time.monotonic() - began


def owner(cluster: LocalCluster, topic: str) -> Broker:
    """The broker that serves the topic."""
    path = f"/lookup/v2/topic/{topic.replace('://', '/')}"
    url = admin.get_json(cluster.admin_url + path)["brokerUrl"]
    return next(broker for broker in cluster.brokers if broker.service_url == url)


def victim(cluster: LocalCluster, works: list[Work], kind: str, rng: random.Random) -> Broker | Bookie:
    """Who is killed."""
    work = rng.choice(works)
    if kind == "bookie":
        return rng.choice(cluster.bookies)
    if kind == "coordinator":
        assignment = "persistent://pulsar/system/transaction_coordinator_assign-partition-"
        return owner(cluster, f"{assignment}{rng.randrange(COORDINATORS)}")
    if kind == "input":
        return owner(cluster, f"{work.input}-partition-{rng.randrange(PARTITIONS)}")
    return owner(cluster, rng.choice([*work.outputs[:-1], f"{work.outputs[-1]}-partition-{rng.randrange(PARTITIONS)}"]))


KINDS: Final = ("coordinator", "output", "bookie", "input")


def disturb(cluster: LocalCluster, works: list[Work], count: int, rng: random.Random) -> None:
    """So many faults, one after the other; each client has commits confirmed again after each."""
    session_s = cluster.settings.session_timeout_ms / 1000
    for number in range(count):
        kind = KINDS[number % len(KINDS)]
        killed = victim(cluster, works, kind, rng)
        killed.kill()
        time.sleep(rng.uniform(0.0, 1.5 * session_s))
        killed.start()
        seconds = [wait_for_commit(work, f"{kind} {killed.folder.name} was killed") for work in works]
        what = f"killed {killed.folder.name} ({kind})"
        logger.info("%d of %d: %s; commits after %.1f s", number + 1, count, what, max(seconds))
        time.sleep(rng.uniform(0.5, 2.0))


def wait_for_commit(work: Work, fault: str) -> float:
    """Until the client is told of one commit more; gives the seconds. Raises Failure."""
    before = work.commits()
    problem = f"no commit of {work.client} after {fault},"
    return wait(lambda: work.alive() and work.commits() > before, FLOW_SECONDS_MAX, problem)


def backlog(cluster: LocalCluster, work: Work) -> int:
    """Messages that any subscription of the client's topics has left; a topic that moves counts as one."""
    left = 0
    for topic in work.partitions:
        try:
            found: dict[str, Any] = admin.get_json(f"{cluster.admin_url}/admin/v2/{topic.replace('://', '/')}/stats")
        except OSError:
            left += 1
            continue
        left += sum(int(one["msgBacklog"]) for one in found["subscriptions"].values())
    return left


def drained(cluster: LocalCluster, works: list[Work]) -> None:
    """Nothing is published any more, and all of it goes through."""
    for work in works:
        work.tell("drain")
        work.feeder.stop()
    problem = "something is held back"
    seconds = wait(lambda: not any(backlog(cluster, work) for work in works), DRAIN_SECONDS_MAX, problem)
    logger.info("all subscriptions were through %.1f s after the last fault", seconds)
    for work in works:
        work.tell("stop")
    for work in works:
        work.end()
        work.watchers.stop()


def verdict(work: Work, service_url: str) -> list[str]:
    """What is wrong with what a client was told."""
    given = Given(at_the_end=read_all(service_url, work.outputs), all_along=work.watchers.seen)
    events = work.events()
    ends = [event for event in events if isinstance(event, Ended)]
    logger.info(
        "%s: %d transactions, %d committed, %d aborted, %d left open, %d failed, %d of them unknown; %d inputs",
        work.client,
        len(ends),
        sum(one.committed for one in ends),
        sum(one.asked == "abort" and not one.error for one in ends),
        sum(one.asked == "nothing" and not one.error for one in ends),
        sum(bool(one.error) for one in ends),
        sum(one.unknown for one in ends),
        len(work.feeder.confirmed),
    )
    return checks.check(events, given, work.feeder.confirmed)


def run(cluster: LocalCluster, clients: list[str], count: int, seed: int) -> list[str]:
    """The whole run on a started cluster; what is wrong. Raises Failure."""
    rng = random.Random(seed)
    admin.call("PUT", f"{cluster.admin_url}/admin/v2/namespaces/{NAMESPACE}", {"bundles": {"numBundles": BUNDLES}})
    retention = {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1}
    admin.call("POST", f"{cluster.admin_url}/admin/v2/namespaces/{NAMESPACE}/retention", retention)
    works = [Work(client, cluster, seed) for client in clients]
    try:
        return ride_out(cluster, works, count, rng)
    finally:
        for work in works:
            work.leave()


def ride_out(cluster: LocalCluster, works: list[Work], count: int, rng: random.Random) -> list[str]:
    """From the first message to the verdict; what is wrong. Raises Failure."""
    for work in works:
        work.start()
    owners = {owner(cluster, topic).folder.name for work in works for topic in work.partitions}
    logger.info("topics are at %s", ", ".join(sorted(owners)))
    problems = [] if len(owners) == len(cluster.brokers) else [f"only {', '.join(owners)} have topics"]
    disturb(cluster, works, count, rng)
    drained(cluster, works)
    for work in works:
        problems += [f"{work.client}: {problem}" for problem in verdict(work, cluster.broker_service_url)]
    for work in works:
        flood = work.flood()
        logger.info("%s: refused after %d open, %d ms: %s", work.client, flood.opened, flood.took_ms, flood.error)
        found = checks.check_flood(flood, COORDINATORS * OPEN_MAX, FLOOD_ANSWER_MS_MAX)
        problems += [f"{work.client}: {problem}" for problem in found]
    return problems


def main() -> int:
    """Run it once and print what was wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=8, help="of faults (8)")
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--clients", default="java,go")
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", datefmt="%H:%M:%S")
    seed = arguments.seed if arguments.seed is not None else random.SystemRandom().randrange(1 << 31)
    replay = f"python -m e2e.transactions --count {arguments.count} --clients {arguments.clients} --seed {seed}"
    logger.info("replay: %s", replay)
    clients = arguments.clients.split(",")
    for client in clients:
        builds.transaction_command(client)
    folder = Path(tempfile.mkdtemp(prefix="magnetar-transactions-"))
    processes.leave_nothing_behind()
    settings = {
        "transactionCoordinatorEnabled": "true",
        "brokerDeduplicationEnabled": "true",
        "maxActiveTransactionsPerCoordinator": str(OPEN_MAX),
    }
    with LocalCluster(folder, SIZE, broker_settings=settings) as cluster:
        cluster.start()
        try:
            problems = run(cluster, clients, arguments.count, seed)
        except (Failure, AssertionError) as failure:
            problems = [str(failure)]
    for problem in problems:
        logger.info("FAIL %s", problem)
    logger.info("%s\nhistories and logs: %s\nreplay: %s", "FAIL" if problems else "OK", folder, replay)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
