"""A note beside the journal of how far it was durable at last: it tells an end that is gone from one never written.

A journal's end that became zeros looks as a power failure leaves a write that was never confirmed. The note is not
synced itself, and not written for each group, which would double what an add costs. So after kill -9 it may be
`NOTE_SECONDS` old; after a power failure older, torn, or gone. Whatever it says was true, so that it refuses no
healthy journal.
"""

from __future__ import annotations

import logging
import struct
from pathlib import Path
from typing import Final

import google_crc32c
from magnetar.core.disk import Disk, DiskFile

logger: Final = logging.getLogger(__name__)

NOTE_FILE: Final = "durableEnd"
NOTE_SECONDS: Final = 0.1
"""How often a journal that always has something to write notes its end."""
NOTE_IDLE_SECONDS: Final = 0.005
"""How long one waits for more to write before it notes its end: longer than a client takes that waits for each."""

_NOTE: Final = struct.Struct(">8sQQ")
_CHECKSUM: Final = struct.Struct(">I")
_WORD: Final = b"MGTRdend"


def encode_note(mark: tuple[int, int]) -> bytes:
    """What `NOTE_FILE` holds: everything before (file id, offset) was durable."""
    content = _NOTE.pack(_WORD, *mark)
    return content + _CHECKSUM.pack(google_crc32c.value(content))


def read_note(disk: Disk, directory: Path) -> tuple[int, int]:
    """What was noted in a journal's directory; (0, 0) when nothing was, or it is damaged. OSError."""
    content = disk.read_whole(directory / NOTE_FILE)
    if content is None or not content.strip(b"\0"):
        return (0, 0)  # Just being made.
    if len(content) == _NOTE.size + _CHECKSUM.size:
        _, file_id, offset = _NOTE.unpack_from(content)
        if content == encode_note((file_id, offset)):
            return (int(file_id), int(offset))
    logger.warning("%s is damaged and left out: it does not match its checksum", directory / NOTE_FILE)
    return (0, 0)


class EndNote:
    """The note of one journal. On the journal's worker. What goes wrong with it is told once, and hinders nothing."""

    def __init__(self, disk: Disk, directory: Path) -> None:
        """Begins with what stands there; the name of a new one is made durable."""
        self._path = directory / NOTE_FILE
        self._file: DiskFile | None = None
        self._failed = False
        try:
            self._file = self._opened(disk)
        except OSError as error:
            self._tell(str(error))

    def _opened(self, disk: Disk) -> DiskFile:
        try:
            return disk.open(self._path, writable=True)
        except FileNotFoundError:
            file = disk.create(self._path)
            disk.sync_directory(self._path.parent)
            return file

    def note(self, mark: tuple[int, int]) -> None:
        """Everything before (file id, offset) is durable."""
        if self._file is None:
            return
        content = encode_note(mark)
        try:
            written = self._file.pwritev([content], 0)
            problem = "" if written == len(content) else f"{written} of {len(content)} bytes were written"
        except OSError as error:
            problem = str(error)
        if problem:
            self._tell(problem)

    def close(self) -> None:
        """Let go of the file."""
        file, self._file = self._file, None
        if file is None:
            return
        try:
            file.close()
        except OSError as error:
            self._tell(str(error))

    def _tell(self, problem: str) -> None:
        if not self._failed:
            logger.warning("%s cannot be kept up: %s", self._path, problem)
        self._failed = True
