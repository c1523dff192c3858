"""Bookies die, hang, fill up and lose their ZooKeeper session under load; nothing confirmed may be missing afterwards.

`python -m e2e.storage.storm [--fault kill|pause|session|clock|stall|answers|stops|mixed] [--count 100] [--seed N]`

Four bookies of ours as processes over a real ZooKeeper, ledgers on three of them (Qw 3, Qa 2), writers that go on all
the while. `kill`: SIGKILL and a new start on the same disk, now and then two bookies at once. `pause`: SIGSTOP for
longer than a session lives (`--pause-seconds`). `session`: ZooKeeper itself stands still until every session is lost,
or is killed. `clock`: wall clocks go ten minutes forward and back, and no session may end. `stall`: disks hang for up
to 15 seconds. `answers`: connections to ZooKeeper, the writers' as well, lose answers to what was applied, stand still
one way, or end within a frame. `stops`: bookies stand still for up to 20 seconds while others are killed. At the end
every ledger is recovered and read whole. The seed fixes who suffers when; the machine decides the rest. `--mistake`
plants one of `e2e.disturbing.mistakes`, which must be found.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import uvloop
from magnetar.core.clock import SystemClock
from magnetar.ledger.api import LedgerOptions
from magnetar.ledger.bookie_client.tcp_bookie import TcpBookieSettings
from magnetar.ledger.bookie_client.tcp_connections import TcpBookieConnections
from magnetar.ledger.client import BookKeeperClient
from magnetar.ledger.settings import LedgerClientSettings
from magnetar.metadata.factory import open_store

from e2e import processes
from e2e.disturbing.mistakes import FORGETFUL_DISK, MISTAKES
from e2e.disturbing.storms import Trouble
from e2e.interchange.cluster import Cluster
from e2e.interchange.ours import OurBookie
from e2e.storage import disturbed
from e2e.storage.ledger_load import LedgerLoad, check

logger: Final = logging.getLogger("e2e.storage")

BOOKIES = 4
WRITERS = 4
RATE_PER_S = 500.0
CHECKS_AT_ONCE = 4
OPTIONS = LedgerOptions(ensemble_size=3, write_quorum=3, ack_quorum=2)
TIMEOUT_S = 3.0
"""Of adds and reads: a bookie that hangs costs this long, and a storm has many that do."""
STALL_SECONDS_MAX = 120.0
SESSION_LOSS_S = 8.0
"""Twice the session's time of `e2e.interchange.parts`."""
FAULTS = ("kill", "pause", "session", "mixed", *disturbed.FAULTS)


class Storm:
    """Disturbs a cluster, one thing at a time."""

    def __init__(self, cluster: Cluster, bookies: list[OurBookie], rng: random.Random, pause_s: float) -> None:
        self._cluster = cluster
        self._bookies = bookies
        self._rng = rng
        self._pause_s = pause_s

    async def kill(self) -> str:
        """One bookie, sometimes two; back on their disks after up to three seconds."""
        victims = self._rng.sample(self._bookies, 2 if self._rng.random() < 0.2 else 1)
        for victim in victims:
            await asyncio.to_thread(victim.kill)
        await asyncio.sleep(self._rng.uniform(0.0, 3.0))
        for victim in victims:
            await asyncio.to_thread(victim.start)
        return "killed " + " and ".join(victim.folder.name for victim in victims)

    async def pause(self) -> str:
        """One bookie stands still, its connections open, until long after its session is over."""
        victim = self._rng.choice(self._bookies)
        victim.pause()
        await asyncio.sleep(self._pause_s)
        victim.resume()
        return f"paused {victim.folder.name} for {self._pause_s:.0f} s"

    async def session(self) -> str:
        """Every session is lost, or ZooKeeper dies and comes back at once."""
        if self._rng.random() < 0.5:
            self._cluster.zookeeper.pause()
            await asyncio.sleep(SESSION_LOSS_S)
            self._cluster.zookeeper.resume()
            return "ZooKeeper stood still"
        await asyncio.to_thread(self._cluster.zookeeper.restart)
        return "ZooKeeper was killed"

    async def mixed(self) -> str:
        """Any of the others; pauses are rare, as they are long."""
        how: Sequence[Callable[[], Awaitable[str]]] = [self.kill] * 8 + [self.session] * 2 + [self.pause]
        return await self._rng.choice(how)()


@dataclass(frozen=True, slots=True)
class Course:
    """What a run is to do."""

    fault: str
    count: int
    seed: int
    pause_s: float
    mistake: str = ""


async def ride_out(cluster: Cluster, course: Course) -> list[str]:
    """The whole run; what is wrong afterwards."""
    rng, seed = random.Random(course.seed), course.seed
    bookies = [cluster.our_bookie(f"bookie{number}") for number in range(BOOKIES)]
    with contextlib.ExitStack() as stack:
        trouble, store_url = disturbed.prepare(course.fault, cluster, bookies, rng, stack, course.mistake)
        await asyncio.to_thread(cluster.start, *bookies)
        store = await open_store(store_url)
        clock = SystemClock()
        times = TcpBookieSettings(add_timeout_seconds=TIMEOUT_S, read_timeout_seconds=TIMEOUT_S)
        connections = TcpBookieConnections(store, clock, times)
        await connections.start()
        settings = LedgerClientSettings(add_timeout_seconds=TIMEOUT_S, quarantine_seconds=1.0)
        client = BookKeeperClient(store, connections, clock, settings=settings)
        load = LedgerLoad(client, OPTIONS, seed, rate_per_s=RATE_PER_S)
        writers = [asyncio.create_task(load.write(number)) for number in range(WRITERS)]
        storm = Storm(cluster, bookies, rng, course.pause_s)
        try:
            problems = await _disturb(getattr(storm, course.fault, None), trouble, course.count, rng, load)
            problems += await _goes_on(load)
            load.stop()
            await asyncio.gather(*writers)
            problems += await _check_all(BookKeeperClient(store, connections, clock, settings=settings), seed, load)
        finally:
            for writer in writers:
                writer.cancel()
            await asyncio.gather(*writers, return_exceptions=True)
            await client.close()
            await connections.close()
            await store.close()
    return problems


async def _disturb(
    disturb: Callable[[], Awaitable[str]] | None,
    trouble: Trouble | None,
    count: int,
    rng: random.Random,
    load: LedgerLoad,
) -> list[str]:
    """So many times; what was wrong meanwhile."""
    for number in range(1, count + 1):
        await asyncio.sleep(rng.uniform(0.0, 2.0))
        what = await disturb() if disturb else await asyncio.to_thread(trouble.disturb) if trouble else ""
        logger.info("%d of %d: %s; %d ledgers, %d confirmed", number, count, what, len(load.histories), load.confirmed)
    if trouble is None:
        return []
    await asyncio.to_thread(trouble.finish)
    return trouble.problems


async def _goes_on(load: LedgerLoad) -> list[str]:
    """After the storm writers must get on by themselves."""
    before, deadline = load.confirmed, time.monotonic() + STALL_SECONDS_MAX
    while load.confirmed < before + 1_000:
        if time.monotonic() > deadline:
            return [f"nothing goes on: {load.confirmed - before} entries in {STALL_SECONDS_MAX:.0f} s"]
        await asyncio.sleep(0.1)
    return []


async def _check_all(client: BookKeeperClient, seed: int, load: LedgerLoad) -> list[str]:
    limit = asyncio.Semaphore(CHECKS_AT_ONCE)

    async def one(number: int) -> list[str]:
        async with limit:
            return await check(client, seed, load.histories[number])

    found = await asyncio.gather(*(one(number) for number in range(len(load.histories))))
    await client.close()
    confirmed = load.confirmed
    logger.info("read %d ledgers with %d confirmed entries", len(load.histories), confirmed)
    return [problem for problems in found for problem in problems] + ([] if confirmed else ["nothing was confirmed"])


def main() -> int:
    """Run, and say how to run the same again."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fault", choices=FAULTS, default="kill")
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--pause-seconds", type=float, default=60.0)
    parser.add_argument("--mistake", choices=sorted([FORGETFUL_DISK, *MISTAKES]), default="")
    given = parser.parse_args()
    logging.basicConfig(level=logging.ERROR, format="%(message)s")
    logger.setLevel(logging.INFO)
    seed = given.seed if given.seed is not None else random.SystemRandom().randrange(1 << 31)
    course = Course(given.fault, given.count, seed, given.pause_seconds, given.mistake)
    replay = f"python -m e2e.storage.storm --fault {course.fault} --count {course.count} --seed {seed}"
    replay += f" --mistake {course.mistake}" if course.mistake else ""
    folder = Path(tempfile.mkdtemp(prefix="magnetar-storm-"))
    logger.info("replay: %s", replay)
    processes.leave_nothing_behind()
    with Cluster(folder) as cluster:
        problems = uvloop.run(ride_out(cluster, course))
    for problem in problems:
        logger.info("FAIL %s", problem)
    if course.mistake:
        logger.info("%s: %s", course.mistake, "found" if problems else "NOT FOUND")
        return 0 if problems else 1
    if problems:
        logger.info("FAIL\ndata and logs: %s\nreplay: %s", folder, replay)
        return 1
    shutil.rmtree(folder)
    logger.info("OK\nreplay: %s", replay)
    return 0


if __name__ == "__main__":
    sys.exit(main())
