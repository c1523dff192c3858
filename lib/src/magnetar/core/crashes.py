"""Crashes of the interpreter: their stacks are kept in a file, told at the next start, and counted.

Without a folder for that they go to standard error, where logs go, and nobody counts them.
"""

from __future__ import annotations

import faulthandler
import logging
import os
import sys
from pathlib import Path
from typing import BinaryIO, Final

logger: Final = logging.getLogger(__name__)

DIRECTORY_VARIABLE: Final = "MAGNETAR_CRASH_DIRECTORY"
"""The environment variable that names the folder for processes without a data folder of their own."""

TRACE_FILE: Final = "crash.trace"
"""Empty unless the process crashed since it was started."""

KEPT_NAME: Final = "crash-{number}.trace"

COUNT_FILE: Final = "crashes"

TRACE_BYTES_MAX: Final = 256 * 1024
"""Bytes told of one trace: a few hundred threads with deep stacks."""

KEPT_MAX: Final = 10
"""Traces that are kept; older ones are deleted."""


class Crashes:
    """The crashes of processes that use one folder, one after the other."""

    def __init__(self) -> None:
        self.count: int = 0
        """How often a process crashed here before this one was started."""
        self._file: BinaryIO | None = None

    def tell_on_standard_error(self) -> None:
        """Have the stacks of all threads written to the log when the interpreter crashes."""
        if sys.__stderr__ is not None:
            faulthandler.enable(sys.__stderr__, all_threads=True)

    def record_where_told(self) -> None:
        """Record crashes in the folder that the environment names; without one, nowhere."""
        directory = os.environ.get(DIRECTORY_VARIABLE)
        if directory:
            self.record_in(Path(directory))

    def record_in(self, directory: Path) -> None:
        """Tell of the last process's crash, if it crashed; have those of this one kept in the folder.

        A folder that cannot be written is told, and changes nothing."""
        try:
            directory.mkdir(parents=True, exist_ok=True)
            self.count = _count(directory)
            trace = directory / TRACE_FILE
            if trace.exists() and trace.stat().st_size:
                self._tell(directory, trace)
            file = trace.open("wb", buffering=0)
        except OSError as error:
            logger.warning("crashes are not recorded in %s: %s", directory, error)
            return
        previous, self._file = self._file, file
        faulthandler.enable(file, all_threads=True)
        if previous is not None:
            previous.close()

    def _tell(self, directory: Path, trace: Path) -> None:
        self.count += 1
        kept = directory / KEPT_NAME.format(number=self.count)
        trace.replace(kept)
        (directory / COUNT_FILE).write_text(f"{self.count}\n")
        (directory / KEPT_NAME.format(number=self.count - KEPT_MAX)).unlink(missing_ok=True)
        with kept.open("rb") as file:
            stacks = file.read(TRACE_BYTES_MAX).decode(errors="replace")
        logger.error(
            "the process before this one crashed, number %d here; please report %s:\n%s", self.count, kept, stacks
        )


def _count(directory: Path) -> int:
    try:
        return int((directory / COUNT_FILE).read_text()[:20])
    except (FileNotFoundError, ValueError):
        return 0


METRIC_NAME: Final = "magnetar_crashes_total"
METRIC_TEXT: Final = "Crashes of the interpreter that were recorded before this process started."

CRASHES: Final = Crashes()
"""The crashes of this process and of those before it that used the same folder."""
