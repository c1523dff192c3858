"""A disk in memory that fails at any change, and knows what a crash would leave."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from pathlib import Path

from magnetar.core.disk import DiskFile


class Failed(OSError):
    """The disk does no more."""


class Inode:
    def __init__(self, data: bytes = b"") -> None:
        self.data = bytearray(data)
        self.durable = bytes(data)


class FailingDisk:
    """Files in memory that know what a crash would leave. Fails at the `fail_at`-th change, and from then on unless
    `once`."""

    def __init__(self) -> None:
        self.names: dict[Path, Inode] = {}
        self.durable_names: dict[Path, Inode] = {}
        self.changes = 0
        self.fail_at = 1 << 60
        self.once = False

    def change(self) -> None:
        """Before everything that changes the disk."""
        self.changes += 1
        if self.changes == self.fail_at or (self.changes > self.fail_at and not self.once):
            raise Failed(errno.EIO, "the disk failed")

    def copy(self) -> FailingDisk:
        """The same files on another disk, all durable."""
        other = FailingDisk()
        inodes = {id(inode): Inode(bytes(inode.data)) for inode in self.names.values()}
        other.names = {path: inodes[id(inode)] for path, inode in self.names.items()}
        other.durable_names = dict(other.names)
        return other

    def crash(self, *, keep_names: bool, keep_data: bool) -> FailingDisk:
        """What a restart finds: only what was made durable, or more than that."""
        other = FailingDisk()
        inodes: dict[int, Inode] = {}
        for path, inode in (self.names if keep_names else self.durable_names).items():
            data = bytes(inode.data) if keep_data else inode.durable
            other.names[path] = inodes.setdefault(id(inode), Inode(data))
        other.durable_names = dict(other.names)
        return other

    def create(self, path: Path) -> DiskFile:
        self.change()
        if path in self.names:
            raise FileExistsError(path)
        self.names[path] = Inode()
        return FailingFile(self, self.names[path])

    def open(self, path: Path, *, writable: bool = False) -> DiskFile:
        if path not in self.names:
            raise FileNotFoundError(path)
        return FailingFile(self, self.names[path])

    def list_names(self, directory: Path) -> list[str]:
        return [path.name for path in self.names if path.parent == directory]

    def read_whole(self, path: Path) -> bytes | None:
        return bytes(self.names[path].data) if path in self.names else None

    def replace_whole(self, path: Path, content: bytes) -> None:
        self.change()
        self.names[path] = self.durable_names[path] = Inode(content)

    def delete(self, path: Path) -> None:
        self.change()
        self.names.pop(path, None)

    def rename(self, source: Path, target: Path) -> None:
        self.change()
        self.names[target] = self.names.pop(source)

    def link(self, path: Path, another: Path) -> None:
        self.change()
        self.names.setdefault(another, self.names[path])

    def make_directory(self, path: Path) -> None:
        raise AssertionError(path)

    def sync_directory(self, directory: Path) -> None:
        self.change()
        self.durable_names = dict(self.names)

    def usage_bytes(self, directory: Path) -> tuple[int, int]:
        return 1 << 40, 1 << 40


class FailingFile:
    def __init__(self, disk: FailingDisk, inode: Inode) -> None:
        self.disk = disk
        self.inode = inode

    def pread(self, size_bytes: int, position: int) -> bytes:
        return bytes(self.inode.data[position : position + size_bytes])

    def pwritev(self, parts: Sequence[bytes], position: int, *, durable: bool = False) -> int:
        content = b"".join(parts)
        try:
            self.disk.change()
        except Failed:
            self._put(content[: len(content) // 2], position)  # Torn.
            raise
        self._put(content, position)
        if durable:
            self.inode.durable = bytes(self.inode.data)
        return len(content)

    def _put(self, content: bytes, position: int) -> None:
        data = self.inode.data
        if len(data) < position:
            data.extend(bytes(position - len(data)))
        data[position : position + len(content)] = content

    def allocate(self, position: int, size_bytes: int) -> None:
        raise AssertionError(position)

    def sync(self) -> None:
        self.disk.change()
        self.inode.durable = bytes(self.inode.data)

    def truncate(self, size_bytes: int) -> None:
        self.disk.change()
        del self.inode.data[size_bytes:]

    def size_bytes(self) -> int:
        return len(self.inode.data)

    def close(self) -> None:
        pass
