"""Apache's Java client at the end of a pipe: `java/TopicDriver.java`, run as it stands with the distribution's jars."""

from __future__ import annotations

import select
import subprocess
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

from e2e.interchange.parts import LEAN_COLLECTOR, LEAN_JVM
from e2e.peers import distribution

SOURCE = Path(__file__).parent / "java" / "TopicDriver.java"
ANSWER_SECONDS_MAX = 90.0
"""The first one comes after Java has compiled the source; opening the topics of transactions takes some seconds."""

NOTHING = "-"

VALUE = "substring_index(CAST(value AS STRING), '.', 1) AS value"
"""The value in Spark, without what the driver fills it up with to 40 kB."""


class Read(NamedTuple):
    """A message as a reader got it."""

    message_id: str
    """`ledger:entry`, in batches `ledger:entry:index`."""
    key: str | None
    value: str | None


class TopicDriver:
    """One client with transactions, each known by a name."""

    def __init__(self, service_url: str, log: Path) -> None:
        command = ["java", *LEAN_JVM.split(), *LEAN_COLLECTOR.split(), "-Dlog4j2.level=WARN"]
        command += ["-cp", f"{distribution.home()}/lib/*", str(SOURCE), service_url]
        self._log_path = log
        self._log = log.open("ab")
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, text=True, encoding="utf-8"
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Transactions that are open stay so until they time out."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.kill()
        self._process.wait()
        self._process.stdin.close()
        self._process.stdout.close()
        self._log.close()

    def begin(self, *names: str) -> None:
        """Transactions."""
        for name in names:
            self._ask("begin", name)

    def commit(self, name: str) -> None:
        """And wait until that is done."""
        self._ask("commit", name)

    def abort(self, name: str) -> None:
        """And wait until that is done."""
        self._ask("abort", name)

    def send(self, topic: str, *messages: str, transaction: str | None = None, batched: bool = False) -> None:
        """Send `key=value`, or `=value`, or `key=` for one without a value; all in one batch if that is wanted."""
        self._ask("send", topic, transaction or NOTHING, "batched" if batched else "single", *messages)

    def read(self, topic: str, *, compacted: bool = False) -> list[Read]:
        """All that can be read now, from the topic's beginning."""
        rows = (line.split(" ") for line in self._ask("read", topic, "compacted" if compacted else "all"))
        return [Read(place, *(None if word == NOTHING else word for word in words)) for place, *words in rows]

    def _ask(self, *words: str) -> list[str]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(" ".join(words) + "\n")
        self._process.stdin.flush()
        ready, _, _ = select.select([self._process.stdout], [], [], ANSWER_SECONDS_MAX)
        assert ready, f"no answer to {words[0]} in {ANSWER_SECONDS_MAX:.0f} s, see {self._log_path}"
        outcome, _, rest = self._process.stdout.readline().rstrip("\n").partition(" ")
        assert outcome == "ok", f"{' '.join(words[:3])}: {outcome} {rest}, see {self._log_path}"
        return [self._process.stdout.readline().rstrip("\n") for _ in range(int(rest))]
