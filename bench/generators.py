"""Load generators on stock clients, behind one call: run a scenario, sample the server around its window, give figures.

`GoLoad` (the default) is a small program on the stock Go client, `bench/load`: it publishes, consumes and measures end
to end in one process. Publishing 1 KiB unbatched cost the Go client 15 µs of CPU a message, `pulsar-perf` at its
cheapest settings 37 µs (most of it the JVM's warm-up), and servers and generator share two cores. The client's own
`perf` costs the same as ours but has one topic, no end-to-end latency and a line every ten seconds. `pulsar-perf`,
Apache's own, is there to check that the choice of the generator does not decide the comparison.
"""

from __future__ import annotations

import functools
import json
import os
import re
import statistics
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from e2e import processes
from e2e.peers import distribution

HERE = Path(__file__).parent
# Beyond its window a run has warm-up, start and the flushing of what is pending.
GRACE_S = 120.0


class Broken(Exception):
    """The generator failed, or did not say what it should."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """One load. `rate` 0 means as fast as receipts come; `backlog` not 0 means drain so many messages."""

    name: str
    size_bytes: int
    batched: bool
    topics: int = 1
    rate: int = 0
    backlog: int = 0


@dataclass(frozen=True, slots=True)
class Figures:
    """What clients saw in the window. Percentiles are 0 where a generator does not measure them."""

    published_per_s: float
    consumed_per_s: float
    messages: int
    failed: int
    publish_p50_ms: float
    publish_p99_ms: float
    end_to_end_p50_ms: float
    end_to_end_p99_ms: float
    server_cpu_s: float
    client_cpu_s: float


class Generator(Protocol):
    """Drives one scenario with a stock client."""

    name: str

    def run(
        self, scenario: Scenario, service_url: str, window_s: float, server_cpu_s: Callable[[], float]
    ) -> Figures | None:
        """Runs to the end; None when this generator cannot do the scenario. Raises Broken."""


class GoLoad:
    """`bench/load`: publishes and consumes in one process with the stock Go client."""

    name = "go-load (pulsar-client-go 0.19)"

    def run(
        self, scenario: Scenario, service_url: str, window_s: float, server_cpu_s: Callable[[], float]
    ) -> Figures | None:
        command = [
            str(build()),
            f"-url={service_url}",
            f"-topic=persistent://public/default/{scenario.name}-{time.time_ns()}",
            f"-topics={scenario.topics}",
            f"-size={scenario.size_bytes}",
            f"-batched={str(scenario.batched).lower()}",
            f"-rate={scenario.rate}",
            f"-backlog={scenario.backlog}",
            f"-window={window_s}s",
            f"-warmup={warmup_s(window_s)}s",
        ]
        lines, cpu = watch(command, server_cpu_s, window_s + GRACE_S + (300 if scenario.backlog else 0))
        found = json.loads(lines[-1])
        return Figures(
            published_per_s=found["published"] / found["seconds"],
            consumed_per_s=found["consumed"] / found["seconds"],
            messages=max(found["published"], found["consumed"]),
            failed=found["failed"],
            publish_p50_ms=found["publish"]["p50_ms"],
            publish_p99_ms=found["publish"]["p99_ms"],
            end_to_end_p50_ms=found["end_to_end"]["p50_ms"],
            end_to_end_p99_ms=found["end_to_end"]["p99_ms"],
            server_cpu_s=cpu,
            client_cpu_s=found["client_cpu_s"],
        )


def warmup_s(window_s: float) -> float:
    """A third of the window: the JVM servers need some seconds of load to compile what is hot."""
    return max(5.0, window_s / 3)


@functools.cache
def build() -> Path:
    """Raises subprocess.CalledProcessError when there is no Go or it does not compile."""
    binary = HERE / "load" / "build" / "load"
    subprocess.run(["go", "build", "-o", str(binary), "."], cwd=HERE / "load", check=True)
    return binary


def watch(command: list[str], server_cpu_s: Callable[[], float], timeout_s: float) -> tuple[list[str], float]:
    """Runs the program; gives its lines and the server's CPU seconds between `window start` and `window end`."""
    with tempfile.TemporaryFile("w+") as errors:
        program = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True)
        limit = threading.Timer(timeout_s, program.kill)
        limit.start()
        assert program.stdout is not None
        lines: list[str] = []
        marks: dict[str, float] = {}
        try:
            for line in program.stdout:
                lines.append(line.strip())
                if lines[-1] in ("window start", "window end"):
                    marks[lines[-1]] = server_cpu_s()
        finally:
            limit.cancel()
            program.kill()
            program.stdout.close()
            program.wait()
        errors.seek(0)
        if len(marks) != 2 or not lines[-1].startswith("{"):
            raise Broken(f"{command[0]} ended with {program.returncode}: {errors.read()[-2000:]}")
    return lines, marks["window end"] - marks["window start"]


LINE_EVERY_S = 10.0
_FIGURES = r"\s*(?P<total>\d+) msg.*?(?P<rate>[\d.]+)\s+msg/s.*?med:\s*(?P<p50>[\d.]+).*?99pct:\s*(?P<p99>[\d.]+)"
PRODUCED = re.compile("Throughput produced:" + _FIGURES)
CONSUMED = re.compile("Throughput received:" + _FIGURES)


@dataclass(frozen=True, slots=True)
class Interval:
    """One line of `pulsar-perf`: the state at its end, the rate and percentiles of the ten seconds before."""

    total: int
    rate: float
    p50_ms: float
    p99_ms: float


def intervals(output: str, pattern: re.Pattern[str]) -> list[Interval]:
    """The lines that match, whatever else the tool logs between them."""
    return [
        Interval(int(found["total"]), float(found["rate"]), float(found["p50"]), float(found["p99"]))
        for found in map(pattern.search, output.splitlines())
        if found is not None
    ]


class PulsarPerf:
    """Apache's `pulsar-perf`, a producing and a consuming JVM at the settings at which it costs least.

    Figures are the means and medians of its ten-second lines that lie in the window; a window shorter than ten seconds
    is lengthened to that.
    """

    name = f"pulsar-perf {distribution.PULSAR_VERSION}"
    start_s = 6.0

    def run(
        self, scenario: Scenario, service_url: str, window_s: float, server_cpu_s: Callable[[], float]
    ) -> Figures | None:
        if scenario.backlog:
            return None
        window_s = max(window_s, LINE_EVERY_S)
        lines = int(window_s // LINE_EVERY_S)
        tool = str(distribution.home() / "bin" / "pulsar-perf")
        topic = f"persistent://public/default/{scenario.name}-{time.time_ns()}"
        common = ["-u", service_url, "-t", str(scenario.topics)]
        sending = ["-s", str(scenario.size_bytes), "-r", str(scenario.rate or 10_000_000), "-o", "1000"]
        batching = ["-b", "1"] if scenario.batched else ["-db"]
        consumer = self._start([tool, "consume", *common, "-sp", "Earliest", topic])
        producer = self._start([tool, "produce", *common, *sending, *batching, topic])
        try:
            time.sleep(self.start_s + warmup_s(window_s))
            before = server_cpu_s()
            time.sleep(window_s)
            cpu = server_cpu_s() - before
            client_cpu = processes.cpu_seconds([producer.pid, consumer.pid])
        finally:
            outputs = [self._stop(program) for program in (producer, consumer)]
        produced = intervals(outputs[0], PRODUCED)[-lines:]
        consumed = intervals(outputs[1], CONSUMED)[-lines:]
        if not produced or not consumed:
            raise Broken(f"pulsar-perf gave no figures: {outputs[0][-1000:]}")
        rate = statistics.mean(interval.rate for interval in produced)
        return Figures(
            published_per_s=rate,
            consumed_per_s=statistics.mean(interval.rate for interval in consumed),
            messages=int(rate * window_s),
            failed=0,
            publish_p50_ms=statistics.median(interval.p50_ms for interval in produced),
            publish_p99_ms=statistics.median(interval.p99_ms for interval in produced),
            end_to_end_p50_ms=statistics.median(interval.p50_ms for interval in consumed),
            end_to_end_p99_ms=statistics.median(interval.p99_ms for interval in consumed),
            server_cpu_s=cpu,
            client_cpu_s=client_cpu,
        )

    def _start(self, command: list[str]) -> subprocess.Popen[str]:
        environment = {
            **os.environ,
            "PULSAR_MEM": "-Xmx1g -XX:MaxDirectMemorySize=1g",
            "PULSAR_GC": "-XX:+UseSerialGC",
            "PULSAR_LOG_DIR": str(HERE / "results" / "raw"),
        }
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment)

    def _stop(self, program: subprocess.Popen[str]) -> str:
        program.terminate()
        try:
            return program.communicate(timeout=20)[0]
        except subprocess.TimeoutExpired:
            program.kill()
            return program.communicate()[0]


GENERATORS: dict[str, type[GoLoad] | type[PulsarPerf]] = {"go": GoLoad, "pulsar-perf": PulsarPerf}
