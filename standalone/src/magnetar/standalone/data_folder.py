"""The folder of a standalone cluster: one process at a time has it, and only what is ours is ever removed from it."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from magnetar.core.errors import MagnetarError

LOCK_FILE: Final = "magnetar.lock"
"""Locked while a cluster runs here, and the mark of a folder that is ours. Holds the id of the process."""

CRASH_FOLDER: Final = "crashes"
"""The stacks of processes that crashed."""

CONTENTS: Final = ("metadata", "bookie", CRASH_FOLDER)
"""What a cluster stores, beside the lock."""

LOCK_BYTES_READ_MAX: Final = 32


class FolderInUse(MagnetarError):
    """Another process runs a cluster on this folder."""


class ForeignFolder(MagnetarError):
    """The folder holds something that no standalone cluster stored."""


@contextlib.contextmanager
def claimed(directory: Path, *, fresh: bool = False) -> Iterator[None]:
    """Have the folder to ourselves; make it when it is not there, empty it first when it shall be `fresh`.

    Raises `FolderInUse`, `ForeignFolder` (only when `fresh`) or OSError. The lock goes with the process, however it
    ends, so that a start after a crash needs no repair."""
    if fresh:
        check_removable(directory)
    directory.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(directory / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            owner = os.pread(descriptor, LOCK_BYTES_READ_MAX, 0).decode(errors="replace").strip() or "unknown"
            raise FolderInUse(f"{directory} is in use by another Magnetar, process {owner}.") from None
        os.ftruncate(descriptor, 0)
        with open(descriptor, "w", closefd=False) as file:
            file.write(f"{os.getpid()}\n")
        if fresh:
            for name in CONTENTS:
                with contextlib.suppress(FileNotFoundError):
                    shutil.rmtree(directory / name)
        yield
    finally:
        os.close(descriptor)


def check_removable(directory: Path) -> None:
    """Raise `ForeignFolder` unless everything in the folder is what a standalone cluster stored there."""
    try:
        names = {entry.name for entry in directory.iterdir()}
    except FileNotFoundError:
        return
    strangers = sorted(names - {LOCK_FILE, *CONTENTS})
    if strangers:
        shown = ", ".join(strangers[:3]) + (", …" if len(strangers) > 3 else "")
        raise ForeignFolder(f"--fresh does not empty {directory}: it holds {shown}, which is not Magnetar's.")
    if names and LOCK_FILE not in names:
        raise ForeignFolder(f"--fresh does not empty {directory}: Magnetar did not make it (it has no {LOCK_FILE}).")
