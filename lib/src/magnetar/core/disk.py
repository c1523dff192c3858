"""The disk as storage code sees it: production passes `SystemDisk`, the simulator one that crashes.

Only what a log-structured store needs: files written at positions, durability on demand, names that are durable once
their directory was synced. Methods raise OSError, block, and may be called from any thread.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Protocol

FILE_MODE: Final = 0o644

_DURABLE_WRITE: Final[int] = getattr(os, "RWF_DSYNC", 0)
"""Write and make durable in one system call, where the kernel can (Linux 4.7)."""


class DiskFile(Protocol):
    """One open file."""

    def pread(self, size_bytes: int, position: int) -> bytes:
        """Up to that many bytes; fewer only at the file's end."""
        ...

    def pwritev(self, parts: Sequence[bytes], position: int, *, durable: bool = False) -> int:
        """Write the parts in a row; how many bytes were written, which may be fewer than given.

        With `durable` what was written is on the disk on return, together with the file's size."""
        ...

    def allocate(self, position: int, size_bytes: int) -> None:
        """Have room from the position on, reading as zeros. ENOSPC when there is none."""
        ...

    def sync(self) -> None:
        """Make what was written so far durable, together with the file's size."""
        ...

    def truncate(self, size_bytes: int) -> None:
        """Cut the file off."""
        ...

    def size_bytes(self) -> int:
        """How long the file is."""
        ...

    def close(self) -> None:
        """Let go of the file. Nothing becomes durable by it."""
        ...


class Disk(Protocol):
    """Files and directories."""

    def create(self, path: Path) -> DiskFile:
        """A new, empty file, for reading and writing. FileExistsError. Its name is durable after `sync_directory`."""
        ...

    def open(self, path: Path, *, writable: bool = False) -> DiskFile:
        """A file that is there. FileNotFoundError."""
        ...

    def list_names(self, directory: Path) -> list[str]:
        """Names in a directory, in no order. FileNotFoundError."""
        ...

    def read_whole(self, path: Path) -> bytes | None:
        """A small file's content, or None when there is none."""
        ...

    def replace_whole(self, path: Path, content: bytes) -> None:
        """Replace a small file, durably: after a crash there is the old content or the new one."""
        ...

    def delete(self, path: Path) -> None:
        """Remove a file; a missing one is no error. Not durable before `sync_directory`: it may come back."""
        ...

    def rename(self, source: Path, target: Path) -> None:
        """Give a file another name, replacing what had it. Not durable before `sync_directory`."""
        ...

    def link(self, path: Path, another: Path) -> None:
        """Give a file a second name; it goes when both are deleted. A name that is there already is no error (and is
        not looked at). Not durable before `sync_directory`. OSError also where file systems cannot do it."""
        ...

    def make_directory(self, path: Path) -> None:
        """A directory and its parents, durably; one that is there is no error."""
        ...

    def sync_directory(self, directory: Path) -> None:
        """Make the names in a directory durable."""
        ...

    def usage_bytes(self, directory: Path) -> tuple[int, int]:
        """(total, free) bytes of the file system that the directory is on."""
        ...


def write_all(file: DiskFile, content: bytes, position: int) -> None:
    """Write all of it: a write may stop short of what it was given, most often as the disk is full. OSError."""
    written = 0
    while written < len(content):
        some = file.pwritev([content[written:]], position + written)
        if some <= 0:
            raise OSError(errno.ENOSPC, f"only {written} of {len(content)} bytes could be written")
        written += some


class SystemFile:
    """A file of the operating system."""

    __slots__ = ("_descriptor",)

    def __init__(self, path: Path, flags: int) -> None:
        self._descriptor = os.open(path, flags | os.O_CLOEXEC, FILE_MODE)
        if stat.S_ISDIR(os.fstat(self._descriptor).st_mode):
            # Opening a directory for reading succeeds, and reading it fails without its name.
            os.close(self._descriptor)
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))

    def pread(self, size_bytes: int, position: int) -> bytes:
        """Up to that many bytes; fewer only at the file's end."""
        return os.pread(self._descriptor, size_bytes, position)

    def pwritev(self, parts: Sequence[bytes], position: int, *, durable: bool = False) -> int:
        """Write the parts in a row; how many bytes were written, which may be fewer than given. With `durable` what was
        written is on the disk on return, together with the file's size."""
        if not durable:
            return os.pwritev(self._descriptor, parts, position)
        if _DURABLE_WRITE:
            return os.pwritev(self._descriptor, parts, position, _DURABLE_WRITE)
        written = os.pwritev(self._descriptor, parts, position)
        os.fsync(self._descriptor)
        return written

    def allocate(self, position: int, size_bytes: int) -> None:
        """Have room from the position on, reading as zeros. ENOSPC when there is none."""
        os.posix_fallocate(self._descriptor, position, size_bytes)

    def sync(self) -> None:
        """Make what was written so far durable, together with the file's size."""
        os.fdatasync(self._descriptor)

    def truncate(self, size_bytes: int) -> None:
        """Cut the file off."""
        os.ftruncate(self._descriptor, size_bytes)

    def size_bytes(self) -> int:
        """How long the file is."""
        return os.fstat(self._descriptor).st_size

    def close(self) -> None:
        """Let go of the file. Nothing becomes durable by it."""
        os.close(self._descriptor)


class SystemDisk:
    """The machine's own file systems."""

    def create(self, path: Path) -> SystemFile:
        """A new, empty file, for reading and writing. FileExistsError. Its name is durable after `sync_directory`."""
        return SystemFile(path, os.O_CREAT | os.O_EXCL | os.O_RDWR)

    def open(self, path: Path, *, writable: bool = False) -> SystemFile:
        """A file that is there. FileNotFoundError."""
        return SystemFile(path, os.O_RDWR if writable else os.O_RDONLY)

    def list_names(self, directory: Path) -> list[str]:
        """Names in a directory, in no order. FileNotFoundError."""
        return os.listdir(directory)

    def read_whole(self, path: Path) -> bytes | None:
        """A small file's content, or None when there is none."""
        try:
            return path.read_bytes()
        except FileNotFoundError:
            return None

    def replace_whole(self, path: Path, content: bytes) -> None:
        """Replace a small file, durably: after a crash there is the old content or the new one."""
        temporary = path.with_name(path.name + ".tmp")
        file = SystemFile(temporary, os.O_CREAT | os.O_TRUNC | os.O_WRONLY)
        try:
            write_all(file, content, 0)
            file.sync()
        finally:
            file.close()
        os.replace(temporary, path)
        self.sync_directory(path.parent)

    def delete(self, path: Path) -> None:
        """Remove a file; a missing one is no error. Not durable before `sync_directory`: it may come back."""
        path.unlink(missing_ok=True)

    def rename(self, source: Path, target: Path) -> None:
        """Give a file another name, replacing what had it. Not durable before `sync_directory`."""
        os.replace(source, target)

    def link(self, path: Path, another: Path) -> None:
        """Give a file a second name; it goes when both are deleted. A name that is there already is no error (and is
        not looked at). Not durable before `sync_directory`. OSError also where file systems cannot do it."""
        with contextlib.suppress(FileExistsError):
            os.link(path, another)

    def make_directory(self, path: Path) -> None:
        """A directory and its parents, durably; one that is there is no error."""
        make_directory(path)

    def sync_directory(self, directory: Path) -> None:
        """Make the names in a directory durable."""
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def usage_bytes(self, directory: Path) -> tuple[int, int]:
        """(total, free) bytes of the file system that the directory is on."""
        usage = shutil.disk_usage(directory)
        return usage.total, usage.free


def make_directory(path: Path) -> None:
    """A directory and its parents, durably; one that is there is no error. OSError."""
    path = path.absolute()
    missing = [one for one in (path, *path.parents) if not one.exists()]
    # Each is durable before the next is made. So of those that are there only the last may be without, if whoever made
    # it was killed in that moment.
    last = missing[-1].parent if missing else path
    with contextlib.suppress(PermissionError):  # Where we may not look it was not us.
        SystemDisk().sync_directory(last.parent)
    for one in reversed(missing):
        one.mkdir(exist_ok=True)
        SystemDisk().sync_directory(one.parent)
