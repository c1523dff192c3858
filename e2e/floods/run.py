"""Thousands of clients that mean no good beside one that does: memory stays bounded, and the one is served.

`python -m e2e.floods.run` (`make floods`) is the long form: 5 000 idle, 1 000 slow, 1 000 that read nothing of what
they ask for, 1 000 with half a frame, all at once, on a standalone process of its own. What it asserts: the process
never has more than 1 GiB in memory; once all of them stand, the stock client's 99th percentile at most doubles or is
below 5 ms, in the best of three attempts. While they come, with all their requests, it is told, and bounded less
strictly.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
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
"""In the short form a client that needs no more than this is served, however quick it was alone: other tests run
beside it."""
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
    floor_ms: float = 5.0
    """A 99th percentile that is good however quick the client was alone: 2 to 2.5 ms on a quiet machine."""

    @property
    def connections(self) -> int:
        """Altogether."""
        return self.idle + self.slow + self.silent + self.half


QUICK: Final = Numbers(500, 100, 100, 100, arrival_seconds=5.0, seconds=2.0, floor_ms=QUICK_FLOOR_MS)


@dataclass(frozen=True, slots=True)
class Outcome:
    """Of one attempt."""

    alone_p99_ms: float
    arrival_p99_ms: float
    flooded_p99_ms: float
    rss_peak_bytes: int
    floor_ms: float

    @property
    def paced(self) -> bool:
        """Whether the stock client did not suffer much."""
        patience_ms = max(self.floor_ms, LATENCY_TIMES_MAX * self.alone_p99_ms)
        return self.arrival_p99_ms <= ARRIVAL_MS_MAX and self.flooded_p99_ms <= patience_ms


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


def flood(server: StandaloneProcess, numbers: Numbers) -> Outcome:
    """A stock client alone, then beside the flood."""
    command = [sys.executable, "-m", "e2e.floods.attack", "--port", str(server.port)]
    for kind in ("idle", "slow", "silent", "half"):
        command += [f"--{kind}", str(getattr(numbers, kind))]
    seconds = 2 * (numbers.arrival_seconds + numbers.seconds)
    with StockClient(server.service_url, TOPIC) as client:
        alone = p99(client.latencies_ms(numbers.seconds))
        attack = subprocess.Popen([*command, "--seconds", str(seconds)], stdout=subprocess.PIPE, text=True)
        try:
            assert attack.stdout is not None
            connected = json.loads(attack.stdout.readline())
            assert connected["connected"] >= numbers.connections
            arrival = p99(client.latencies_ms(numbers.arrival_seconds))
            flooded = p99(client.latencies_ms(numbers.seconds))
        finally:
            attack.terminate()
            attack.communicate()
    assert server.pids, f"the server has died:\n{server.log_tail()}"
    return Outcome(alone, arrival, flooded, rss_peak_bytes(server.pids[0]), numbers.floor_ms)


def floods(numbers: Numbers, topics: int, attempts: int) -> list[Outcome]:
    """Attempts until one is good in every respect. Asserts that memory is bounded in each."""
    outcomes: list[Outcome] = []
    with tempfile.TemporaryDirectory(prefix="magnetar-floods-") as folder:
        server = MagnetarStandalone(Path(folder) / "data")
        server.start()
        try:
            make_topics(server, topics)
            for _ in range(attempts):
                outcome = flood(server, numbers)
                outcomes.append(outcome)
                print(
                    f"p99 alone {outcome.alone_p99_ms:.1f} ms, as they come {outcome.arrival_p99_ms:.1f} ms, "
                    f"flooded {outcome.flooded_p99_ms:.1f} ms, "
                    f"memory at most {outcome.rss_peak_bytes >> 20} MiB, now "
                    f"{processes.memory(server.pids).rss_bytes >> 20} MiB",
                    flush=True,
                )
                assert outcome.rss_peak_bytes < RSS_BYTES_MAX
                if outcome.paced:
                    break
        finally:
            server.stop()
    return outcomes


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a tenth of it")
    given = parser.parse_args()
    processes.leave_nothing_behind()
    outcomes = floods(QUICK if given.quick else Numbers(), PARTITIONS, ATTEMPTS)
    return 0 if outcomes[-1].paced else 1


if __name__ == "__main__":
    sys.exit(main())
