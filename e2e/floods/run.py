"""Thousands of clients that mean no good beside one that does: memory stays bounded, and the one is served.

`python -m e2e.floods.run` (`make floods`) is the long form: 5 000 idle, 1 000 slow, 1 000 that read nothing of what
they ask for, 1 000 with half a frame, all at once, on a standalone process of its own. What it asserts: the process
never has more than 1 GiB in memory; once all of them stand, the stock client's 99th percentile at most doubles, in the
best of three attempts. While they come, with all their requests, it is told, and bounded less strictly.

The 99th percentile before is taken while the same clients flood a second server: they take processor time from the
stock client, too, and on a machine of their own would not. How it was without any flood is told.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import subprocess
import sys
import tempfile
import time
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from e2e import processes
from e2e.floods.honest import StockClient, p99
from e2e.server import MagnetarStandalone, StandaloneProcess

RSS_BYTES_MAX: Final = 1 << 30
LATENCY_TIMES_MAX: Final = 2.0
QUICK_FLOOR_MS: Final = 25.0
"""In the short form a client that needs no more than this is served, and no second server is flooded: other tests run
beside it."""
CLEARED_SECONDS: Final = 10.0
"""A server has let go of thousands of connections by then."""
ARRIVAL_MS_MAX: Final = 250.0
"""The 99th percentile as they come."""

ATTEMPTS: Final = 3
PARTITIONS: Final = 2_000
TOPIC: Final = "persistent://public/default/honest"


@dataclass(frozen=True, slots=True)
class Numbers:
    """How many of each kind, for how long."""

    idle: int = 5_000
    slow: int = 1_000
    silent: int = 1_000
    half: int = 1_000
    arrival_seconds: float = 30.0
    """Within it what eight thousand clients brought with them is dealt with, and newcomers come at a slow pace."""
    seconds: float = 20.0
    floor_ms: float = 0.0
    """A 99th percentile that is good whatever it was before."""

    @property
    def connections(self) -> int:
        """Altogether."""
        return self.idle + self.slow + self.silent + self.half


QUICK: Final = Numbers(500, 100, 100, 100, arrival_seconds=5.0, seconds=2.0, floor_ms=QUICK_FLOOR_MS)


@dataclass(frozen=True, slots=True)
class Outcome:
    """Of one attempt."""

    alone_p99_ms: float
    before_p99_ms: float | None
    """While another server is flooded; None: there is no other one."""
    arrival_p99_ms: float
    flooded_p99_ms: float
    rss_peak_bytes: int
    floor_ms: float

    @property
    def paced(self) -> bool:
        """Whether the stock client did not suffer much."""
        before_ms = self.alone_p99_ms if self.before_p99_ms is None else self.before_p99_ms
        patience_ms = max(self.floor_ms, LATENCY_TIMES_MAX * before_ms)
        return self.arrival_p99_ms <= ARRIVAL_MS_MAX and self.flooded_p99_ms <= patience_ms

    def __str__(self) -> str:
        before = self.before_p99_ms
        return (
            f"p99 alone {self.alone_p99_ms:.1f} ms, "
            f"{'' if before is None else f'while another server is flooded {before:.1f} ms, '}"
            f"as they come {self.arrival_p99_ms:.1f} ms, flooded {self.flooded_p99_ms:.1f} ms, "
            f"memory at most {self.rss_peak_bytes >> 20} MiB"
        )


def rss_peak_bytes(pid: int) -> int:
    """The most that a process ever had in memory."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("the system does not tell")


def make_topics(server: StandaloneProcess, count: int) -> None:
    """So many, with long names, in one request."""
    name = "long-" * 30
    request = urllib.request.Request(
        f"{server.admin_url}/admin/v2/persistent/public/default/{name}/partitions",
        str(count).encode(),
        {"Content-Type": "application/json"},
        method="PUT",
    )
    urllib.request.urlopen(request, timeout=120).close()


def flooded_p99_ms(target: StandaloneProcess, numbers: Numbers, client: StockClient) -> tuple[float, float]:
    """Of a stock client while a server, its own or another one, is flooded: as they come, and afterwards."""
    command = [sys.executable, "-m", "e2e.floods.attack", "--port", str(target.port)]
    for kind in ("idle", "slow", "silent", "half"):
        command += [f"--{kind}", str(getattr(numbers, kind))]
    seconds = 2 * (numbers.arrival_seconds + numbers.seconds)
    attack = subprocess.Popen([*command, "--seconds", str(seconds)], stdout=subprocess.PIPE, text=True)
    try:
        assert attack.stdout is not None
        connected = json.loads(attack.stdout.readline())
        assert connected["connected"] >= numbers.connections
        arrival = p99(client.latencies_ms(numbers.arrival_seconds))
        return arrival, p99(client.latencies_ms(numbers.seconds))
    finally:
        attack.terminate()
        attack.communicate()


def flood(server: StandaloneProcess, other: StandaloneProcess | None, numbers: Numbers) -> Outcome:
    """A stock client alone, then beside a flood of the other server, if there is one, and of its own."""
    with StockClient(server.service_url, TOPIC) as client:
        alone = p99(client.latencies_ms(numbers.seconds))
        before: float | None = None
        if other is not None:
            _, before = flooded_p99_ms(other, numbers, client)
            time.sleep(CLEARED_SECONDS)
        arrival, flooded = flooded_p99_ms(server, numbers, client)
    for each in (server, *([other] if other is not None else [])):
        assert each.pids, f"a server has died:\n{each.log_tail()}"
    return Outcome(alone, before, arrival, flooded, rss_peak_bytes(server.pids[0]), numbers.floor_ms)


def floods(numbers: Numbers, topics: int, attempts: int, *, other_first: bool = True) -> list[Outcome]:
    """Attempts until one is good in every respect. Asserts that memory is bounded in each. `other_first`: what it is
    compared with is taken while another server is flooded."""
    outcomes: list[Outcome] = []
    with tempfile.TemporaryDirectory(prefix="magnetar-floods-") as folder:
        server, *others = (
            MagnetarStandalone(Path(folder) / name) for name in (("data", "other") if other_first else ("data",))
        )
        with contextlib.ExitStack() as stack:
            for each in (server, *others):
                stack.callback(each.stop)
                each.start()
                make_topics(each, topics)
            for _ in range(attempts):
                outcome = flood(server, others[0] if others else None, numbers)
                outcomes.append(outcome)
                now_mib = processes.memory(server.pids).rss_bytes >> 20
                print(f"{outcome}, now {now_mib} MiB", flush=True)
                assert outcome.rss_peak_bytes < RSS_BYTES_MAX
                if outcome.paced:
                    break
                time.sleep(CLEARED_SECONDS)
    return outcomes


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a tenth of it")
    given = parser.parse_args()
    processes.leave_nothing_behind()
    numbers = QUICK if given.quick else Numbers()
    outcomes = floods(numbers, PARTITIONS, ATTEMPTS, other_first=not given.quick)
    return 0 if outcomes[-1].paced else 1


if __name__ == "__main__":
    sys.exit(main())
