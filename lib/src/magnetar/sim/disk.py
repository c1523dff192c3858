"""A disk that forgets what was not synced, tears, fills up, fails and slows down: a `magnetar.core.disk.Disk`.

`Platter` is the hardware, which outlives programs. `SimulatedDisk` is how one process sees it; once the process is
dead every call on it raises `SimulatedCrash`, so nothing that still unwinds can change a byte.

File names are adversarial, as POSIX allows: until its directory is synced, each name is as before or as after.
"""

from __future__ import annotations

import errno
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from magnetar.sim.inode import Inode
from magnetar.sim.process import Process, SimulatedCrash
from magnetar.sim.trace import Trace

FILE_OVERHEAD_BYTES: Final = 4096
"""What an empty file takes of the disk's room."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedDiskSettings:
    """How the disk is when nothing is wrong with it."""

    capacity_bytes: int = 1 << 40
    read_seconds: float = 60e-6
    write_seconds: float = 20e-6
    sync_seconds: float = 300e-6


class PlatterWatcher(Protocol):
    """Told of what becomes durable, or stops being so, at that moment. Must not use the disk."""

    def content_settled(self, path: Path, inode: Inode) -> None:
        """More of a file's content is durable; `path` is the name that it was opened or replaced by."""
        ...

    def names_settled(self) -> None:
        """Names came, went, or became durable."""
        ...

    def power_lost(self) -> None:
        """What was not durable is lost, or durable now: contents and names."""
        ...


class Platter:
    """What is kept, and what goes wrong with it."""

    def __init__(
        self, name: str, rng: random.Random, trace: Trace, settings: SimulatedDiskSettings | None = None
    ) -> None:
        self.name = name
        self.rng = rng
        self.settings = settings or SimulatedDiskSettings()
        self.capacity_bytes = self.settings.capacity_bytes
        self.sync_slowness = 1.0
        """Factor on the time of syncs."""
        self.error_share = 0.0
        """Writes and syncs that fail with EIO."""
        self.failing_name = ""
        """Writes and syncs of files of this name fail with EIO."""
        self.read_error_share = 0.0
        """Reads of files that fail with EIO."""
        self.crash_after_operations = -1
        """When this many changes have been made the process dies in the middle of the next one; negative: never."""
        self.crash_loses_power = True
        """Whether it dies because the power fails, which tears what is written, or by a signal between two changes."""
        self.on_crash: Callable[[bool], None] = lambda loses_power: None
        """Kills the process that uses the disk, and calls `lose_power` if the power fails."""
        self.operations = 0
        self.mounted: Process | None = None
        self.watcher: PlatterWatcher | None = None
        """Who is told what is durable."""
        self.trace = trace
        self._directories: dict[str, dict[str, Inode]] = {}
        self._durable: dict[str, dict[str, Inode]] = {}

    def mount(self, process: Process) -> SimulatedDisk:
        """Give the disk to a process; any earlier one has lost it."""
        self.mounted = process
        return SimulatedDisk(self, process)

    # --- what goes wrong

    def lose_power(self) -> None:
        """Forget what was not synced, in content and in names."""
        self.mounted = None
        inodes: dict[int, Inode] = {}
        for path, seen in self._directories.items():
            durable = self._durable.setdefault(path, {})
            for name in sorted(seen.keys() | durable.keys()):
                before, after = durable.get(name), seen.get(name)
                for inode in (before, after):
                    if inode is not None:
                        inodes.setdefault(id(inode), inode)
                if before is not after and self.rng.random() < 0.5:
                    _set(durable, name, after)
            self._directories[path] = dict(durable)
        for inode in inodes.values():
            inode.lose_power(self.rng)
        self.trace.note(self.name, "lost power")
        if self.watcher is not None:
            self.watcher.power_lost()

    def wipe(self) -> None:
        """Lose everything: a new, empty disk."""
        self.mounted = None
        self._directories.clear()
        self._durable.clear()

    def files(self) -> list[tuple[str, Inode]]:
        """(path, file) of everything, sorted by path."""
        return sorted(
            (f"{path}/{name}", inode) for path, names in self._directories.items() for name, inode in names.items()
        )

    @property
    def used_bytes(self) -> int:
        """How much of the capacity is taken."""
        return sum(
            FILE_OVERHEAD_BYTES + inode.size_bytes for names in self._directories.values() for inode in names.values()
        )

    # --- names

    def find(self, path: Path) -> Inode | None:
        """The file at a path."""
        return self._directories.get(str(path.parent), {}).get(path.name)

    def find_durable(self, path: Path) -> Inode | None:
        """The file that stands at a path, and that a power failure now would leave there for certain."""
        directory = str(path.parent)
        inode = self._durable.get(directory, {}).get(path.name)
        return inode if inode is self._directories.get(directory, {}).get(path.name) else None

    def durable_names(self, directory: Path) -> list[str]:
        """Names that a power failure now would leave for certain; unsorted. None in a directory that is not there."""
        seen = self._directories.get(str(directory), {})
        return [name for name, inode in self._durable.get(str(directory), {}).items() if seen.get(name) is inode]

    def content_settled(self, path: Path, inode: Inode) -> None:
        """Tell the watcher."""
        if self.watcher is not None:
            self.watcher.content_settled(path, inode)

    def names_settled(self) -> None:
        """Tell the watcher."""
        if self.watcher is not None:
            self.watcher.names_settled()

    def directory(self, path: Path) -> dict[str, Inode]:
        """The names in a directory. FileNotFoundError."""
        names = self._directories.get(str(path))
        if names is None:
            raise FileNotFoundError(errno.ENOENT, "no such directory", str(path))
        return names

    def make_directory(self, path: Path) -> None:
        """The directory and its parents; directories themselves are durable at once."""
        for one in (path, *path.parents):
            self._directories.setdefault(str(one), {})
            self._durable.setdefault(str(one), {})

    def sync_directory(self, path: Path) -> None:
        """Names are durable as they are."""
        self._durable[str(path)] = dict(self.directory(path))
        self.names_settled()

    def set_durably(self, path: Path, inode: Inode) -> None:
        """A name that is durable at once."""
        self.directory(path.parent)[path.name] = inode
        self._durable[str(path.parent)][path.name] = inode
        self.content_settled(path, inode)


def _set(names: dict[str, Inode], name: str, inode: Inode | None) -> None:
    if inode is None:
        names.pop(name, None)
    else:
        names[name] = inode


class SimulatedFile:
    """One open file: a `magnetar.core.disk.DiskFile`."""

    __slots__ = ("_closed", "_disk", "_inode", "_path")

    def __init__(self, disk: SimulatedDisk, path: Path, inode: Inode) -> None:
        self._disk = disk
        self._path = path
        self._inode = inode
        self._closed = False

    def pread(self, size_bytes: int, position: int) -> bytes:
        """Up to that many bytes; fewer only at the file's end."""
        self._begin(self._disk.settings.read_seconds, changes=False)
        self._disk.may_fail_to_read()
        return self._inode.read(size_bytes, position)

    def pwritev(self, parts: Sequence[bytes], position: int, *, durable: bool = False) -> int:
        """Write the parts in a row; how many bytes were written, which may be fewer than given. With `durable` what was
        written is on the disk on return, together with the file's size."""
        disk = self._disk
        size = sum(map(len, parts))
        seconds = disk.settings.write_seconds
        if durable:
            seconds += disk.sync_seconds()
        self._begin(seconds, changes=True, torn=(parts, position) if durable else None)
        end = position + size
        room = disk.free_bytes()
        growth = max(0, end - self._inode.size_bytes)
        if growth > room:
            if size - (growth - room) <= 0:
                raise OSError(errno.ENOSPC, "no space left on the simulated disk", str(self._path))
            size -= growth - room
            parts = [b"".join(parts)[:size]]
        self._inode.write(parts, position, durable=durable)
        if durable:
            disk.note(f"wrote {self._path.name} {position}+{size} durably")
            disk.content_settled(self._path, self._inode)
        return size

    def allocate(self, position: int, size_bytes: int) -> None:
        """Have room from the position on, reading as zeros. ENOSPC when there is none."""
        self._begin(self._disk.settings.write_seconds, changes=True)
        end = position + size_bytes
        if end - self._inode.size_bytes > self._disk.free_bytes():
            raise OSError(errno.ENOSPC, "no space left on the simulated disk", str(self._path))
        if end > self._inode.size_bytes:
            self._inode.resize(end)

    def sync(self) -> None:
        """Make what was written so far durable, together with the file's size."""
        self._begin(self._disk.sync_seconds(), changes=True)
        self._inode.sync()
        self._disk.note(f"synced {self._path.name}")
        self._disk.content_settled(self._path, self._inode)

    def truncate(self, size_bytes: int) -> None:
        """Cut the file off."""
        self._begin(self._disk.settings.write_seconds, changes=True)
        self._inode.resize(size_bytes)

    def size_bytes(self) -> int:
        """How long the file is."""
        self._begin(0.0, changes=False)
        return self._inode.size_bytes

    def close(self) -> None:
        """Let go of the file. Nothing becomes durable by it."""
        self._closed = True

    def _begin(self, seconds: float, *, changes: bool, torn: tuple[Sequence[bytes], int] | None = None) -> None:
        if self._closed:
            raise OSError(errno.EBADF, "the file is closed", str(self._path))
        self._disk.begin(seconds, changes=changes, torn=None if torn is None else (self._inode, *torn))
        if changes:
            self._disk.may_fail_to_change(self._path)


class SimulatedDisk:
    """A `magnetar.core.disk.Disk` for one process."""

    def __init__(self, platter: Platter, process: Process) -> None:
        self._platter = platter
        self._process = process
        self.settings = platter.settings

    def begin(self, seconds: float, *, changes: bool, torn: tuple[Inode, Sequence[bytes], int] | None = None) -> None:
        """An operation begins: it costs time, may fail, and may be the last one. OSError, `SimulatedCrash`."""
        platter = self._platter
        if platter.mounted is not self._process or not self._process.alive:
            raise SimulatedCrash
        platter.operations += 1
        self._process.spent_seconds += seconds
        if changes and platter.crash_after_operations >= 0:
            platter.crash_after_operations -= 1
            if platter.crash_after_operations < 0:
                if torn is not None and platter.crash_loses_power:
                    torn[0].tear(torn[1], torn[2], platter.rng)
                platter.on_crash(platter.crash_loses_power)
                raise SimulatedCrash
        if changes and platter.error_share and platter.rng.random() < platter.error_share:
            platter.trace.note(platter.name, "failed a write")
            raise OSError(errno.EIO, "the simulated disk failed")

    def may_fail_to_change(self, path: Path) -> None:
        """A file is about to be changed. OSError."""
        platter = self._platter
        if path.name == platter.failing_name:
            platter.trace.note(platter.name, f"failed a write of {path.name}")
            raise OSError(errno.EIO, "the simulated disk failed", str(path))

    def may_fail_to_read(self) -> None:
        """A read of a file begins. OSError."""
        platter = self._platter
        if platter.read_error_share and platter.rng.random() < platter.read_error_share:
            platter.trace.note(platter.name, "failed a read")
            raise OSError(errno.EIO, "the simulated disk failed")

    def sync_seconds(self) -> float:
        """How long the next sync takes."""
        platter = self._platter
        return platter.rng.expovariate(1 / platter.settings.sync_seconds) * platter.sync_slowness

    def free_bytes(self) -> int:
        """Room that is left."""
        return max(0, self._platter.capacity_bytes - self._platter.used_bytes)

    def note(self, what: str) -> None:
        """Into the trace."""
        self._platter.trace.note(self._process.name, what)

    def content_settled(self, path: Path, inode: Inode) -> None:
        """From an open file: more of it is durable."""
        self._platter.content_settled(path, inode)

    def create(self, path: Path) -> SimulatedFile:
        """A new, empty file, for reading and writing. FileExistsError. Its name is durable after `sync_directory`."""
        self._change()
        names = self._platter.directory(path.parent)
        if path.name in names:
            raise FileExistsError(errno.EEXIST, "the file exists", str(path))
        if self.free_bytes() < FILE_OVERHEAD_BYTES:
            raise OSError(errno.ENOSPC, "no space left on the simulated disk", str(path))
        inode = names[path.name] = Inode()
        return SimulatedFile(self, path, inode)

    def open(self, path: Path, *, writable: bool = False) -> SimulatedFile:
        """A file that is there. FileNotFoundError."""
        del writable
        self.begin(self.settings.read_seconds, changes=False)
        inode = self._platter.find(path)
        if inode is None:
            raise FileNotFoundError(errno.ENOENT, "no such file", str(path))
        return SimulatedFile(self, path, inode)

    def list_names(self, directory: Path) -> list[str]:
        """Names in a directory, in an order of chance. FileNotFoundError."""
        self.begin(self.settings.read_seconds, changes=False)
        names = sorted(self._platter.directory(directory))
        self._platter.rng.shuffle(names)
        return names

    def read_whole(self, path: Path) -> bytes | None:
        """A small file's content, or None when there is none."""
        self.begin(self.settings.read_seconds, changes=False)
        inode = self._platter.find(path)
        return None if inode is None else inode.read(inode.size_bytes, 0)

    def replace_whole(self, path: Path, content: bytes) -> None:
        """Replace a small file, durably: after a crash there is the old content or the new one."""
        self._change(self.sync_seconds())
        self._platter.directory(path.parent)
        if self.free_bytes() < FILE_OVERHEAD_BYTES + len(content):
            raise OSError(errno.ENOSPC, "no space left on the simulated disk", str(path))
        inode = Inode()
        inode.write([content], 0, durable=True)
        self._platter.set_durably(path, inode)
        self.note(f"replaced {path.name}")

    def delete(self, path: Path) -> None:
        """Remove a file; a missing one is no error. Not durable before `sync_directory`: it may come back."""
        self._change()
        self._platter.directory(path.parent).pop(path.name, None)
        self._platter.names_settled()

    def rename(self, source: Path, target: Path) -> None:
        """Give a file another name, replacing what had it. Not durable before `sync_directory`."""
        self._change()
        names = self._platter.directory(source.parent)
        if source.name not in names:
            raise FileNotFoundError(errno.ENOENT, "no such file", str(source))
        self._platter.directory(target.parent)[target.name] = names.pop(source.name)
        self._platter.names_settled()

    def link(self, path: Path, another: Path) -> None:
        """Give a file a second name; it goes when both are deleted. A name that is there already is no error (and is
        not looked at). Not durable before `sync_directory`. OSError also where file systems cannot do it."""
        self._change()
        inode = self._platter.find(path)
        if inode is None:
            raise FileNotFoundError(errno.ENOENT, "no such file", str(path))
        self._platter.directory(another.parent).setdefault(another.name, inode)

    def make_directory(self, path: Path) -> None:
        """A directory and its parents, durably; one that is there is no error."""
        self._change()
        self._platter.make_directory(path)

    def sync_directory(self, directory: Path) -> None:
        """Make the names in a directory durable."""
        self._change(self.sync_seconds())
        self._platter.sync_directory(directory)

    def usage_bytes(self, directory: Path) -> tuple[int, int]:
        """(total, free) bytes of the file system that the directory is on."""
        del directory
        self.begin(0.0, changes=False)
        return self._platter.capacity_bytes, self.free_bytes()

    def _change(self, seconds: float = 0.0) -> None:
        self.begin(seconds + self.settings.write_seconds, changes=True)
