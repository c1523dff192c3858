"""Runs workloads with stock clients against a server and checks what they were told against what they got.

`python -m e2e.run_clients [--server apache|magnetar] [--count N] [--only TEXT]`
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from subprocess import Popen
from typing import Final

from e2e import checkers, corpus, history, processes
from e2e.clients import builds
from e2e.history import Acknowledged, Received
from e2e.server import Server, new_server
from e2e.workload import Workload, matrix

logger: Final = logging.getLogger("e2e")
# The share of messages that has a receipt, and that has been consumed, when a restart in the middle happens.
RESTART_AT = 0.4
# A workload with a restart is spread over this time, so that its middle is not over before it is seen.
RESTART_SPREAD_S = 3
# More messages than any run sends: its stop file ends the producers.
ENDLESS = 100_000_000
FLOWING_AGAIN_S = 60.0
FLUSHED_S = 120.0


@dataclass(slots=True)
class Run:
    """One workload under way: its files, its two programs, the deaths it has seen."""

    workload: Workload
    server: Server
    folder: Path
    topic: str = ""
    service_url: str = ""
    """Where the clients connect; empty: to the server's own."""
    rate: int = 0
    idle_timeout_s: float = 60.0
    linger_ms: int = 1000
    deaths_ms: list[int] = field(default_factory=list)
    beginnings_ms: list[int] = field(default_factory=list)
    """Of faults that last; both their ends are in `deaths_ms`."""

    @property
    def stop_file(self) -> Path:
        return self.folder / "stop"

    def history_file(self, mode: str) -> Path:
        return self.folder / f"{mode}.jsonl"

    def spawn(self, mode: str) -> Popen[bytes]:
        options = {
            **self.workload.options(),
            "service_url": self.service_url or self.server.service_url,
            "topic": self.topic,
            "subscription": "e2e",
            "corpus": str(self.folder / "corpus.txt"),
            "history": str(self.history_file(mode)),
            "stop_file": str(self.stop_file),
            "rate": self.rate,
            "idle_timeout_s": self.idle_timeout_s,
            "linger_ms": self.linger_ms,
        }
        file = self.folder / f"{mode}.json"
        file.write_text(json.dumps(options, indent=2))
        return processes.spawn(
            [*builds.workload_command(self.workload.client), mode, str(file)], self.folder / f"{mode}.log"
        )

    def kill_and_restart(self) -> None:
        self.deaths_ms.append(time.time_ns() // 1_000_000)
        self.server.kill()
        self.server.restart()


class Failure(Exception):
    """A client program failed or did not finish."""


class Tail:
    """Counts the events of one kind in a growing history without reading it twice."""

    def __init__(self, path: Path, event: str) -> None:
        self._path = path
        self._needle = f'"event":"{event}"'.encode()
        self._offset = 0
        self.count = 0

    def poll(self) -> int:
        if self._path.exists():
            with self._path.open("rb") as file:
                file.seek(self._offset)
                chunk = file.read()
            whole = chunk[: chunk.rfind(b"\n") + 1]
            self._offset += len(whole)
            self.count += whole.count(self._needle)
        return self.count


def create_topic(server: Server, topic: str, partitions: int) -> None:
    """Creates it over the admin API when it has partitions; the others are created by their first use."""
    if partitions:
        url = f"{server.admin_url}/admin/v2/persistent/{topic.removeprefix('persistent://')}/partitions"
        request = urllib.request.Request(
            url, method="PUT", data=str(partitions).encode(), headers={"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=30):
            pass


def run(workload: Workload, server: Server, folder: Path, timeout_s: float = 600.0) -> list[str]:
    """Runs one workload; returns what the checkers object to. Raises Failure when a program does not finish."""
    folder.mkdir(parents=True, exist_ok=True)
    this = Run(workload, server, folder)
    this.rate = workload.count // RESTART_SPREAD_S if workload.restart else 0
    this.topic = f"persistent://public/default/{workload.name}-{time.time_ns() // 1_000_000}"
    corpus.write(folder / "corpus.txt", workload.count)
    create_topic(server, this.topic, workload.partitions)
    drive(this, restart_in_the_middle if workload.restart else lambda _: None, timeout_s)
    return verdict(this)


def drive(this: Run, disturb: Callable[[Run], None], timeout_s: float) -> None:
    """Starts the consumer, then the producer, disturbs the server, and waits for both programs to end."""
    deadline = time.monotonic() + timeout_s
    consumer = this.spawn("consume")
    programs = [consumer]
    try:
        _wait(lambda: Tail(this.history_file("consume"), "note").poll() > 0, consumer, "consumer ready", deadline)
        producer = this.spawn("produce")
        programs.append(producer)
        disturb(this)
        for program, mode in ((producer, "produce"), (consumer, "consume")):
            _wait(lambda program=program: program.poll() is not None, None, f"{mode} to end", deadline)  # type: ignore[misc]
            if program.returncode:
                raise Failure(f"{mode} ended with {program.returncode}: {_tail(this.folder / f'{mode}.log')}")
    finally:
        for program in programs:
            processes.end(program, grace_s=2)


def restart_in_the_middle(this: Run) -> None:
    """Kills the server once enough has been acknowledged and consumed, and starts it again on the same data."""
    acked = Tail(this.history_file("produce"), "acked")
    received = Tail(this.history_file("consume"), "received")
    enough = int(this.workload.count * RESTART_AT)
    _wait(lambda: acked.poll() >= enough and received.poll() >= enough // 2, None, "the middle", time.monotonic() + 120)
    this.kill_and_restart()


def finish_endless(this: Run) -> None:
    """Ends the producers of an endless run once messages flow again, and tells the consumer how many to expect."""
    acked = Tail(this.history_file("produce"), "acked")
    before = acked.poll()
    deadline = time.monotonic() + FLOWING_AGAIN_S
    while acked.poll() == before and time.monotonic() < deadline:
        time.sleep(0.1)
    this.stop_file.write_text(str(ENDLESS))
    sent = _number_sent(this)
    this.stop_file.write_text(str(sent))


def _number_sent(this: Run) -> int:
    """What the producer program notes when it has flushed everything."""
    deadline = time.monotonic() + FLUSHED_S
    while time.monotonic() < deadline:
        for line in reversed(this.history_file("produce").read_text().splitlines()):
            if '"text":"sent ' in line:
                return int(line.split('"text":"sent ')[1].split('"')[0])
        time.sleep(0.2)
    raise Failure("the producer did not end")


def verdict(this: Run) -> list[str]:
    """Reads both histories and checks them."""
    sent, got = (history.read(this.history_file(mode)) for mode in ("produce", "consume"))
    expected = checkers.Expectation(
        lines=(this.folder / "corpus.txt").read_bytes().splitlines(),
        subscription_type=this.workload.subscription_type,
        keyed=this.workload.keyed,
        deaths_ms=tuple(this.deaths_ms),
        beginnings_ms=tuple(this.beginnings_ms),
    )
    problems = checkers.check(sent, got, expected)
    told = sum(isinstance(event, Acknowledged) for event in sent)
    arrived = sum(isinstance(event, Received) for event in got)
    logger.info("%s: %d acknowledged, %d received, %d deaths", this.workload.name, told, arrived, len(this.deaths_ms))
    if this.workload.count and told < this.workload.count and not this.stop_file.exists():
        problems.append(f"only {told} of {this.workload.count} messages were acknowledged")
    return problems


def _wait(happened: Callable[[], bool], program: Popen[bytes] | None, what: str, deadline: float) -> None:
    while not happened():
        if program is not None and program.poll() is not None:
            raise Failure(f"waiting for {what}: the program ended with {program.returncode}")
        if time.monotonic() > deadline:
            raise Failure(f"waiting for {what}: out of time")
        time.sleep(0.05)


def _tail(log: Path) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-15:])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--server", choices=["magnetar", "apache"], default=None)
    parser.add_argument("--count", type=int, default=100_000)
    parser.add_argument("--only", default="", help="run workloads whose name has this text")
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    failures = 0
    folder = Path(tempfile.mkdtemp(prefix="magnetar-e2e-"))
    processes.leave_nothing_behind()
    server = new_server(arguments.server, folder / "data")
    server.start()
    try:
        for workload in matrix(arguments.count):
            if arguments.only not in workload.name:
                continue
            started = time.monotonic()
            try:
                problems = run(workload, server, folder / workload.name)
            except (Failure, processes.NotReady) as failure:
                problems = [str(failure)]
            failures += bool(problems)
            logger.info("%s %s (%.1f s)", "FAIL" if problems else "OK  ", workload.name, time.monotonic() - started)
            for problem in problems:
                logger.info("     %s", problem)
    finally:
        server.stop()
    logger.info("%d failed; histories and logs are in %s", failures, folder)
    return min(failures, 1)


if __name__ == "__main__":
    sys.exit(main())
