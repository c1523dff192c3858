"""A Java program of ours at the end of a pipe: a line in, lines out."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Self

from e2e.interchange.parts import LEAN_COLLECTOR, LEAN_JVM


class JavaPipe:
    """Its process, killed at the end."""

    def __init__(self, arguments: Sequence[str], log: Path) -> None:
        """`arguments` are of `java`, beside those that keep it small and quiet. `log` gets what it says otherwise."""
        command = ["java", *LEAN_JVM.split(), *LEAN_COLLECTOR.split(), "-Dlog4j2.level=WARN", *arguments]
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
        """Whatever it is doing."""
        assert self._process.stdin is not None
        self._process.kill()
        self._process.wait()
        self._process.stdin.close()
        self.answers.close()
        self._log.close()

    @property
    def answers(self) -> IO[str]:
        """What it writes."""
        assert self._process.stdout is not None
        return self._process.stdout

    def tell(self, line: str) -> None:
        """One line."""
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()

    def answer(self) -> str:
        """The next line; empty when it has ended."""
        return self.answers.readline().rstrip("\n")
