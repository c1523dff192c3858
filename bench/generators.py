"""Load generators on stock clients, behind one call: run a scenario, sample the server around its window, give figures.

`GoLoad` is a small program on the stock Go client, `bench/load`: it publishes, consumes and measures end
to end in one process. Publishing 1 KiB unbatched cost the Go client 15 µs of CPU a message, `pulsar-perf` at its
cheapest settings 37 µs (most of it the JVM's warm-up), and servers and generator share two cores. The client's own
`perf` costs the same as ours but has one topic, no end-to-end latency and a line every ten seconds. `pulsar-perf`,
Apache's own and what users run first, publishes as fast as receipts come, whether its consumer keeps up or not.
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
from typing import IO, Protocol

from e2e import processes
from e2e.peers import distribution

HERE = Path(__file__).parent
# Beyond its window a run has warm-up, start and the flushing of what is pending.
GRACE_S = 120.0


EXCLUSIVE, SHARED, KEY_SHARED = "Exclusive", "Shared", "Key_Shared"
PENDING_MAX, PENDING_TOPIC_MAX = 50_000, 1000
"""Messages without a receipt that a client may have, over all topics and for one."""
BACKLOG_BYTES_PER_S = 10_000_000
"""At least so fast a backlog is made and drained; a slower server breaks the run."""


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
    subscriptions: int = 1
    """Of each topic; every message is consumed so often."""
    subscription_type: str = EXCLUSIVE
    consumers: int = 1
    """Of each subscription."""
    keys: int = 0
    """Different keys of messages; 0: messages have none."""

    @property
    def pending(self) -> int:
        """Messages without a receipt that a producer may have."""
        return max(1, min(PENDING_TOPIC_MAX, PENDING_MAX // self.topics))

    @property
    def backlog_seconds_max(self) -> float:
        """For making a backlog, and again for draining it."""
        return self.backlog * self.size_bytes / BACKLOG_BYTES_PER_S


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
    """Of the window, as the server's."""


def out_to_in(published_per_s: float, consumed_per_s: float, subscriptions: int) -> float:
    """What came out to what went in, once for each subscription; below 1 the backlog grows. 0 when nothing went in."""
    return consumed_per_s / (published_per_s * subscriptions) if published_per_s else 0.0


class Generator(Protocol):
    """Drives one scenario with a stock client."""

    short: str
    """What figures are called by."""
    name: str
    """With the version of its client."""

    def run(
        self, scenario: Scenario, service_url: str, window_s: float, server_cpu_s: Callable[[], float]
    ) -> Figures | None:
        """Runs to the end; None when this generator cannot do the scenario. Raises Broken."""


class GoLoad:
    """`bench/load`: publishes and consumes in one process with the stock Go client."""

    short = "go"
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
            f"-drain={scenario.backlog_seconds_max}s",
            f"-pending={scenario.pending}",
            f"-subscriptions={scenario.subscriptions}",
            f"-type={scenario.subscription_type}",
            f"-consumers={scenario.consumers}",
            f"-keys={scenario.keys}",
            f"-window={window_s}s",
            f"-warmup={warmup_s(window_s)}s",
        ]
        timeout_s = window_s + GRACE_S + 2 * scenario.backlog_seconds_max
        lines, cpu, client_cpu = watch_both(command, server_cpu_s, timeout_s)
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
            client_cpu_s=client_cpu,
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
    lines, server, _ = watch_both(command, server_cpu_s, timeout_s)
    return lines, server


def watch_both(
    command: list[str], server_cpu_s: Callable[[], float], timeout_s: float
) -> tuple[list[str], float, float]:
    """The same, with the program's own CPU seconds in between at the end. Raises Broken."""
    with tempfile.TemporaryFile("w+") as errors:
        program = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True)
        limit = threading.Timer(timeout_s, program.kill)
        limit.start()
        assert program.stdout is not None
        lines: list[str] = []
        marks: dict[str, tuple[float, float]] = {}
        try:
            for line in program.stdout:
                lines.append(line.strip())
                if lines[-1] in ("window start", "window end"):
                    marks[lines[-1]] = (server_cpu_s(), processes.cpu_seconds([program.pid]))
        finally:
            limit.cancel()
            program.kill()
            program.stdout.close()
            program.wait()
        errors.seek(0)
        if len(marks) != 2 or not lines[-1].startswith("{"):
            raise Broken(f"{command[0]} ended with {program.returncode}: {errors.read()[-2000:]}")
    first, last = marks["window start"], marks["window end"]
    return lines, last[0] - first[0], last[1] - first[1]


LINE_EVERY_S = 10.0
_FIGURES = r"\s*(?P<total>\d+) msg.*?(?P<rate>[\d.]+)\s+msg/s.*?med:\s*(?P<p50>[\d.]+).*?99pct:\s*(?P<p99>[\d.]+)"
PRODUCED = re.compile("Throughput produced:" + _FIGURES)
CONSUMED = re.compile("Throughput received:" + _FIGURES)
STARTED = "Start receiving from"
"""What the consumer logs once it has subscribed everywhere; under a producer's load that may take for ever."""


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


def perf_options(scenario: Scenario, service_url: str) -> tuple[list[str], list[str]]:
    """The options of `pulsar-perf consume` and `pulsar-perf produce` for a scenario."""
    common = ["-u", service_url, "-t", str(scenario.topics)]
    subscribing = ["-ns", str(scenario.subscriptions), "-n", str(scenario.consumers)]
    sending = ["-s", str(scenario.size_bytes), "-r", str(scenario.rate or 10_000_000)]
    pending = ["-o", str(PENDING_TOPIC_MAX), *(["-p", str(PENDING_MAX)] if scenario.topics > 1 else [])]
    batching = ["-b", "1"] if scenario.batched else ["-db"]
    return (
        [*common, *subscribing, "-st", scenario.subscription_type, "-sp", "Earliest"],
        [*common, *sending, *pending, *batching],
    )


@dataclass(frozen=True, slots=True)
class _Perf:
    """A running `pulsar-perf` and the file of its output, which may grow for as long as it runs."""

    process: subprocess.Popen[bytes]
    output: IO[str]

    @property
    def pid(self) -> int:
        return self.process.pid

    def text(self) -> str:
        """All that it has said so far."""
        return Path(f"/proc/self/fd/{self.output.fileno()}").read_text(errors="replace")


class PulsarPerf:
    """Apache's `pulsar-perf`, a producing and a consuming JVM at the settings at which it costs least.

    Figures are the means and medians of its ten-second lines that lie in the window; a window shorter than ten seconds
    is lengthened to that. It does neither drains nor a stated number of keys.
    """

    short = "pulsar-perf"
    name = f"pulsar-perf {distribution.PULSAR_VERSION}"
    start_seconds_max = 120.0
    """Until a consumer has its first messages: a JVM's start, and that of all topics."""

    def run(
        self, scenario: Scenario, service_url: str, window_s: float, server_cpu_s: Callable[[], float]
    ) -> Figures | None:
        if scenario.backlog or scenario.keys:
            return None
        window_s = max(window_s, LINE_EVERY_S)
        lines = int(window_s // LINE_EVERY_S)
        tool = str(distribution.home() / "bin" / "pulsar-perf")
        topic = f"persistent://public/default/{scenario.name}-{time.time_ns()}"
        consuming, producing = perf_options(scenario, service_url)
        consumer = self._start([tool, "consume", *consuming, topic])
        try:
            self._wait_until(consumer, lambda text: STARTED in text)
            producer = self._start([tool, "produce", *producing, topic])
        except BaseException:
            self._stop(consumer)
            raise

        def client_cpu_s() -> float:
            return processes.cpu_seconds([*processes.tree(producer.pid), *processes.tree(consumer.pid)])

        try:
            self._wait_until(consumer, lambda text: any(line.total for line in intervals(text, CONSUMED)))
            time.sleep(warmup_s(window_s))
            before, client_before = server_cpu_s(), client_cpu_s()
            time.sleep(window_s)
            cpu, client_cpu = server_cpu_s() - before, client_cpu_s() - client_before
        finally:
            outputs = [self._stop(program) for program in (producer, consumer)]
        produced = intervals(outputs[0], PRODUCED)[-lines:]
        consumed = intervals(outputs[1], CONSUMED)[-lines:]
        if not produced or not consumed:
            raise Broken(f"pulsar-perf gave no figures: {outputs[0][-1000:]}")
        rate = statistics.mean(interval.rate for interval in produced)
        consumed_rate = statistics.mean(interval.rate for interval in consumed)
        return Figures(
            published_per_s=rate,
            consumed_per_s=consumed_rate,
            messages=int(max(rate, consumed_rate) * window_s),
            failed=0,
            publish_p50_ms=statistics.median(interval.p50_ms for interval in produced),
            publish_p99_ms=statistics.median(interval.p99_ms for interval in produced),
            end_to_end_p50_ms=statistics.median(interval.p50_ms for interval in consumed),
            end_to_end_p99_ms=statistics.median(interval.p99_ms for interval in consumed),
            server_cpu_s=cpu,
            client_cpu_s=client_cpu,
        )

    def _start(self, command: list[str]) -> _Perf:
        environment = {
            **os.environ,
            "PULSAR_MEM": "-Xmx1g -XX:MaxDirectMemorySize=1g",
            "PULSAR_GC": "-XX:+UseSerialGC",
            "PULSAR_LOG_DIR": str(HERE / "results" / "raw"),
        }
        output = tempfile.TemporaryFile("w+")  # noqa: SIM115  (closed by `_stop`)
        started = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, env=environment)
        return _Perf(started, output)

    def _wait_until(self, consumer: _Perf, said: Callable[[str], bool]) -> None:
        deadline = time.monotonic() + self.start_seconds_max
        while not said(consumer.text()):
            if consumer.process.poll() is not None or time.monotonic() > deadline:
                raise Broken(f"pulsar-perf consumed nothing: {consumer.text()[-1000:]}")
            time.sleep(0.5)

    def _stop(self, program: _Perf) -> str:
        processes.end(program.process)
        text = program.text()
        program.output.close()
        return text


GENERATORS: dict[str, type[GoLoad] | type[PulsarPerf]] = {"go": GoLoad, "pulsar-perf": PulsarPerf}
