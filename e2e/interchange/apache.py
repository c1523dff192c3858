"""Apache's parts as lean processes, started by the distribution's own scripts."""

from __future__ import annotations

import os
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

from e2e.interchange.parts import BookiePart, BrokerPart, jvm_environment
from e2e.part import Part
from e2e.peers import distribution

SHELL_SECONDS_MAX = 120.0
COMMAND_LOGGER = " org.apache.bookkeeper.tools.cli.commands."
LOG_HEAD = re.compile(r"\d{4}-\d\d-\d\dT")


class ApacheBookie(BookiePart):
    """`bookkeeper bookie` with DbLedgerStorage, as Pulsar's settings have it."""

    def command(self) -> list[str]:
        return [str(distribution.home() / "bin" / "bookkeeper"), "bookie"]

    def environment(self) -> dict[str, str]:
        return {**jvm_environment(self.folder.parent / "logs"), "BOOKIE_CONF": str(self.configuration)}


class ApacheAutoRecovery(Part):
    """`bookkeeper autorecovery`: auditor and replication worker in a process of their own."""

    def __init__(self, folder: Path, configuration: Path) -> None:
        super().__init__(folder)
        self._configuration = configuration

    def command(self) -> list[str]:
        return [str(distribution.home() / "bin" / "bookkeeper"), "autorecovery"]

    def environment(self) -> dict[str, str]:
        return {**jvm_environment(self.folder.parent / "logs"), "BOOKIE_CONF": str(self._configuration)}

    def ready(self) -> bool:
        return bool(self.log_text())


class ApacheBroker(BrokerPart):
    """`pulsar broker`."""

    def command(self) -> list[str]:
        return [str(distribution.home() / "bin" / "pulsar"), "broker"]

    def environment(self) -> dict[str, str]:
        return {**jvm_environment(self.folder.parent / "logs"), "PULSAR_BROKER_CONF": str(self.configuration)}


@dataclass(frozen=True, slots=True)
class ShellAnswer:
    """What a shell command printed and how it ended."""

    code: int
    text: str

    def lines_with(self, text: str) -> list[str]:
        return [line for line in self.text.splitlines() if text in line]

    def said(self) -> str:
        """What the command itself printed: its log lines without their heads, and lines that are not log lines."""
        return "\n".join(
            line.partition(" - ")[2] if COMMAND_LOGGER in line else line
            for line in self.text.splitlines()
            if COMMAND_LOGGER in line or not LOG_HEAD.match(line)
        )


class Shell:
    """`bookkeeper shell COMMAND…` with a settings file of its own."""

    def __init__(self, configuration: Path, logs: Path) -> None:
        self._configuration = configuration
        self._logs = logs

    def run(self, *words: str, timeout_s: float = SHELL_SECONDS_MAX) -> ShellAnswer:
        """Run it to its end. The text has both outputs. subprocess.TimeoutExpired when it takes too long."""
        command = [str(distribution.home() / "bin" / "bookkeeper"), "shell", *words]
        finished = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            env={**os.environ, **self._environment()},
            timeout=timeout_s,
            check=False,
        )
        text = (finished.stdout + finished.stderr).decode(errors="replace")
        self._logs.mkdir(parents=True, exist_ok=True)
        with (self._logs / "shell.log").open("a") as log:
            log.write(f"$ bookkeeper shell {' '.join(words)}\n{text}\n[{finished.returncode}]\n")
        return ShellAnswer(finished.returncode, text)

    def expect(self, *words: str, timeout_s: float = SHELL_SECONDS_MAX) -> ShellAnswer:
        """Run it; it must end well."""
        answer = self.run(*words, timeout_s=timeout_s)
        assert answer.code == 0, f"bookkeeper shell {' '.join(words)} ended with {answer.code}:\n{answer.text[-4000:]}"
        return answer

    def _environment(self) -> dict[str, str]:
        return {**jvm_environment(self._logs), "BOOKIE_CONF": str(self._configuration)}


def initialize_cluster(
    zookeeper: str,
    name: str,
    logs: Path,
    addresses: tuple[str, str] = ("http://127.0.0.1:1", "pulsar://127.0.0.1:1"),
    transaction_coordinators: int = 16,
) -> None:
    """`pulsar initialize-cluster-metadata`. subprocess.CalledProcessError when it fails."""
    store = f"zk:{zookeeper}"
    urls = ["--web-service-url", addresses[0], "--broker-service-url", addresses[1]]
    command = [str(distribution.home() / "bin" / "pulsar"), "initialize-cluster-metadata", "--cluster", name]
    command += ["--metadata-store", store, "--configuration-metadata-store", store, *urls]
    command += ["--initial-num-transaction-coordinators", str(transaction_coordinators)]
    logs.mkdir(parents=True, exist_ok=True)
    with (logs / "initialize.log").open("ab") as log:
        subprocess.run(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env={**os.environ, **jvm_environment(logs)},
            check=True, timeout=SHELL_SECONDS_MAX,
        )  # fmt: skip
