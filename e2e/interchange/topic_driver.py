"""Apache's Java client at the end of a pipe: `java/TopicDriver.java`, run as it stands with the distribution's jars."""

from __future__ import annotations

import select
from pathlib import Path
from typing import NamedTuple

from e2e.interchange.java_pipe import JavaPipe
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


class TopicDriver(JavaPipe):
    """One client with transactions, each known by a name. Those that are open at its end stay so until they time
    out."""

    def __init__(self, service_url: str, log: Path) -> None:
        super().__init__(["-cp", f"{distribution.home()}/lib/*", str(SOURCE), service_url], log)
        self._log_path = log

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
        self.tell(" ".join(words))
        ready, _, _ = select.select([self.answers], [], [], ANSWER_SECONDS_MAX)
        assert ready, f"no answer to {words[0]} in {ANSWER_SECONDS_MAX:.0f} s, see {self._log_path}"
        outcome, _, rest = self.answer().partition(" ")
        assert outcome == "ok", f"{' '.join(words[:3])}: {outcome} {rest}, see {self._log_path}"
        return [self.answer() for _ in range(int(rest))]
