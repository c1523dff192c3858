"""Follows a recording up to a moment: what the disk has for certain by then, and what is open."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Final

from e2e.power.files import Directory, File, NameChange
from e2e.power.recording import BrokenLog, Event, Kind

UNSEEN_NAMES: Final = ("LOG",)
"""How names begin whose content is written past the recorder: what RocksDB tells about itself. Nobody reads them."""


@dataclass(frozen=True, slots=True)
class Beginning:
    """What was in a folder before a recording, all of it durable."""

    root: Path
    entries: tuple[tuple[str, int, bytes | None], ...]
    """Path, inode and content; None of a directory. Directories stand before what is in them, the root first."""

    @classmethod
    def of(cls, root: Path) -> Beginning:
        """As it is now."""
        root = root.resolve()
        paths = [root, *sorted(root.rglob("*"))]
        found = [(str(path), path.stat().st_ino, None if path.is_dir() else path.read_bytes()) for path in paths]
        return cls(root, tuple(found))


class Replay:
    """A disk below one folder, fed with events in their order."""

    def __init__(self, beginning: Beginning, forget: Callable[[Event, str], bool] = lambda event, path: False) -> None:
        """`forget` names syncs that count as never made (with the path of the file): planted mistakes."""
        self._root = str(beginning.root)
        self._forget = forget
        self._inodes: dict[int, File | Directory] = {}
        self.paths: dict[int, str] = {}
        """Of each inode, the path that it had last."""
        self.top = Directory()
        self.followed: list[str] = []
        """Of each event that was followed, the path that it was about."""
        self.committed = 0
        """When the last sync that is over began."""
        for path, inode, content in beginning.entries:
            entry: File | Directory = File(content) if content is not None else Directory()
            if path == self._root:
                assert isinstance(entry, Directory)
                self.top = entry
            else:
                directory, name = self._parent(path)
                directory.settled[name] = entry
            self._know(inode, entry, path)

    def until(self, events: Sequence[Event], cut: int) -> Replay:
        """Follow events as they stand at a cut: what had not begun by then never happened."""
        for event in events:
            if event.begin > cut:
                break
            self._follow(event, cut)
            self.followed.append(event.other or event.path or self.paths.get(event.inode, ""))
        return self

    def _know(self, inode: int, entry: File | Directory, path: str) -> None:
        self._inodes[inode] = entry
        self.paths[inode] = path

    def _follow(self, event: Event, cut: int) -> None:
        kind = event.kind
        if kind is Kind.UNKNOWN:
            raise BrokenLog(f"what was done to {event.path} is not understood: {event}")
        if kind is Kind.OPENED:
            self._opened(event)
        elif kind is Kind.SYNCED:
            # A sync that was not over at the cut has promised nothing.
            if event.end <= cut and not self._forget(event, self.paths.get(event.inode, "")):
                self._inodes[event.inode].sync(event.begin)
                self.committed = max(self.committed, event.begin)
        elif kind is Kind.SYNCED_ALL:
            self._sync_all(event, cut)
        elif kind in (Kind.WRITTEN, Kind.TRUNCATED, Kind.ALLOCATED):
            self._change_content(event, cut)
        else:
            self._change_names(event)

    def _opened(self, event: Event) -> None:
        directory, name = self._parent(event.path)
        entry = directory.entries().get(name)
        if entry is None:
            entry = File()
            self._know(event.inode, entry, event.path)
            self._change(directory, event, {name: entry})
        if self._inodes.get(event.inode) is not entry:
            raise BrokenLog(f"{event.path} is another file than the one that was followed")
        if event.flags and isinstance(entry, File):
            entry.resize(0, event.end)

    def _change_content(self, event: Event, cut: int) -> None:
        file = self._inodes[event.inode] if event.inode else self._at(event.path)
        assert isinstance(file, File), event
        if event.kind is Kind.WRITTEN:
            durable = event.durable and event.end <= cut and not self._forget(event, self.paths.get(event.inode, ""))
            file.write(event.offset, event.data, event.end, durable=durable)
            self.committed = max(self.committed, event.begin if durable else 0)
        elif event.kind is Kind.TRUNCATED:
            file.resize(event.size, event.end)
        else:
            file.grow(event.offset + event.size, event.end)

    def _change_names(self, event: Event) -> None:
        directory, name = self._parent(event.path)
        if event.kind is Kind.MADE_DIRECTORY:
            made = Directory()
            self._know(event.inode, made, event.path)
            self._change(directory, event, {name: made})
        elif event.kind in (Kind.UNLINKED, Kind.REMOVED_DIRECTORY):
            self._change(directory, event, {name: None})
        else:
            self._change_other_name(event, directory, name)

    def _change_other_name(self, event: Event, directory: Directory, name: str) -> None:
        target, other = self._parent(event.other)
        entry = directory.entries()[name]
        if event.kind is Kind.LINKED:
            self._change(target, event, {other: entry})
        elif target is not directory:
            raise BrokenLog(f"{event.path} was moved to another folder, which this cannot cut in between")
        else:
            self._change(directory, event, {name: None, other: entry})
            self.paths.update({inode: event.other for inode, known in self._inodes.items() if known is entry})

    def _change(self, directory: Directory, event: Event, names: dict[str, File | Directory | None]) -> None:
        directory.changes.append(NameChange(event.end, names))

    def _sync_all(self, event: Event, cut: int) -> None:
        if event.end <= cut:
            for entry in (self.top, *self._inodes.values()):
                entry.sync(event.begin)
            self.committed = max(self.committed, event.begin)

    def _parent(self, path: str) -> tuple[Directory, str]:
        pure = PurePosixPath(path)
        parent = self._at(str(pure.parent))
        assert isinstance(parent, Directory), path
        return parent, pure.name

    def _at(self, path: str) -> File | Directory:
        entry: File | Directory = self.top
        for name in PurePosixPath(path).relative_to(self._root).parts:
            assert isinstance(entry, Directory), path
            entry = entry.entries()[name]
        return entry


def differences(replay: Replay, root: Path) -> list[str]:
    """Where files as they were followed differ from those in the folder: what the recorder has not seen."""
    return list(_differences(replay.top, root))


def _differences(directory: Directory, folder: Path) -> list[str]:
    entries = directory.entries()
    there = {path.name: path for path in folder.iterdir()}
    odd = sorted(entries.keys() ^ there.keys())
    found = [f"{folder / name} is {'there' if name in there else 'not there'}" for name in odd]
    for name in sorted(entries.keys() & there.keys()):
        entry, path = entries[name], there[name]
        if isinstance(entry, Directory) != path.is_dir():
            found.append(f"{path} is of another kind")
        elif isinstance(entry, Directory):
            found += _differences(entry, path)
        elif not name.startswith(UNSEEN_NAMES) and entry.all_of() != path.read_bytes():
            found.append(f"{path} has {path.stat().st_size} bytes, and other ones than were followed")
    return found
