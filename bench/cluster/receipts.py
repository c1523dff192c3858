"""A stock client that publishes steadily, and how long it goes without a receipt when something is done to the servers.

The client is `bench/load/receipts` on the stock Go client. What is taken is the longest pause between two receipts of a
topic that began before the disturbance was over (its request answered, its process dead): its end is when the client
was served again. Later pauses are those of a busy machine.
"""

from __future__ import annotations

import functools
import subprocess
import threading
import time
from bisect import bisect_right
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from bench.generators import HERE, Broken

NS = 1_000_000_000
RATE_PER_TOPIC = 50
FIRST_SECONDS_MAX = 60.0


@dataclass(frozen=True, slots=True)
class Interruption:
    """How a client was interrupted: how long it went without a receipt, and when after the disturbance that ended."""

    pause_s: float
    served_again_s: float


def interruption(received_ns: list[int], disturbed_ns: int, done_ns: int) -> Interruption | None:
    """The longest pause that ended after a disturbance was begun and began before it was done; None when no receipt
    came since. Times in order."""
    first = bisect_right(received_ns, disturbed_ns)
    if first == len(received_ns):
        return None
    previous = received_ns[first - 1] if first else disturbed_ns
    longest, ended = -1, 0
    for at in received_ns[first:]:
        if previous > done_ns:
            break
        # What was before the disturbance is not its doing.
        pause = at - max(previous, disturbed_ns)
        if pause > longest:
            longest, ended = pause, at
        previous = at
    return Interruption(longest / NS, (ended - disturbed_ns) / NS)


def percentile(values: list[float], share: float) -> float:
    """Of at least one value: the smallest that so large a share of them does not exceed."""
    ordered = sorted(values)
    return ordered[max(0, -(-int(share * 1000) * len(ordered) // 1000) - 1)]


@functools.cache
def build() -> Path:
    """subprocess.CalledProcessError when there is no Go or it does not compile."""
    binary = HERE / "load" / "build" / "receipts"
    subprocess.run(["go", "build", "-o", str(binary), "./receipts"], cwd=HERE / "load", check=True)
    return binary


class Publishing:
    """Publishes to the topics `prefix-0` … while the block runs. `backoff_ms` 0: the client's own, which doubles."""

    def __init__(self, service_url: str, prefix: str, topics: int, *, backoff_ms: int = 0) -> None:
        self._topics = topics
        self._received_ns: list[list[int]] = [[] for _ in range(topics)]
        self._latencies_s: list[float] = []
        self.errors: list[str] = []
        self._lock = threading.Lock()
        command = [str(build()), f"-url={service_url}", f"-topic={prefix}", f"-topics={topics}"]
        command += [f"-rate={RATE_PER_TOPIC}", f"-backoff={backoff_ms}ms"]
        self._program = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        self._reader = threading.Thread(target=self._read, name="receipts", daemon=True)
        self._reader.start()

    def __enter__(self) -> Self:
        self.wait_for_receipts(time.time_ns(), FIRST_SECONDS_MAX)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._program.kill()
        self._program.wait()
        self._reader.join()
        assert self._program.stdout is not None
        self._program.stdout.close()

    def wait_for_receipts(self, since_ns: int, seconds_max: float) -> None:
        """Until every topic had one since then. Raises Broken."""
        deadline = time.monotonic() + seconds_max
        while time.monotonic() < deadline:
            with self._lock:
                if all(times and times[-1] > since_ns for times in self._received_ns):
                    return
            if self._program.poll() is not None:
                raise Broken(f"the publishing client ended with {self._program.returncode}")
            time.sleep(0.005)
        raise Broken(f"no receipt for {seconds_max:.0f} s: {self.errors[-1:]}")

    def interruptions(self, disturbed_ns: int, done_ns: int, topics: list[int]) -> list[Interruption]:
        """One for each of these topics, which are known to have receipts since; older times are forgotten."""
        found = []
        with self._lock:
            for index in range(self._topics):
                if index in topics:
                    one = interruption(self._received_ns[index], disturbed_ns, done_ns)
                    assert one is not None
                    found.append(one)
                del self._received_ns[index][:-1]
        return found

    def forget_latencies(self) -> None:
        """Take them from here on."""
        with self._lock:
            self._latencies_s = []

    def latencies_s(self) -> list[float]:
        """How long each receipt took since."""
        with self._lock:
            return list(self._latencies_s)

    def _read(self) -> None:
        assert self._program.stdout is not None
        for line in self._program.stdout:
            kind, index, sent, received, *rest = line.split(maxsplit=4)
            with self._lock:
                if kind == "R":
                    self._received_ns[int(index)].append(int(received))
                    self._latencies_s.append((int(received) - int(sent)) / NS)
                else:
                    self.errors.append(" ".join(rest).strip())
