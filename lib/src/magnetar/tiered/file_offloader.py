"""Closed ledgers become MapFiles in directories of a file system that is mounted here, as Apache's driver `filesystem`
writes them (Pulsar: FileSystemManagedLedgerOffloader): `<base>/<managed ledger>/<ledger id>-<uid>`."""

from __future__ import annotations

import asyncio
import re
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit
from uuid import UUID

from magnetar.core.errors import Misuse, SettingError
from magnetar.ledger.api import EntryNotFound, LedgerReader
from magnetar.tiered.api import (
    MANAGED_LEDGER_KEY,
    OffloadedLedgerNotFound,
    OffloadedObject,
    OffloadedPage,
    OffloadRefused,
    OffloadUnavailable,
)
from magnetar.tiered.closed_ledger import described_as_closed
from magnetar.tiered.file_threads import FileThreads, tidied
from magnetar.tiered.map_file import MapFileReader, MapFileWriter, sync_folder
from magnetar.wire.bookkeeper.ledger_metadata import LedgerMetadata

DRIVER: Final = "filesystem"
READ_BYTES_MAX: Final = 8 << 20
WRITE_BYTES: Final = 1 << 20
ENTRIES_PER_READ: Final = 1000
LEVELS: Final = 4
"""Of directories above a ledger's: tenant, namespace, domain, topic."""

_NAME: Final = re.compile(r"(0|[1-9][0-9]{0,18})-([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})(\.unfinished)?")


class FileOffloader:
    """An `Offloader` on a directory."""

    def __init__(self, uri: str) -> None:
        """`uri` is `file:///…` (`fileSystemURI`). Raises `SettingError`."""
        if not uri:
            raise SettingError(
                f"fileSystemURI must be set for the driver {DRIVER}: a folder that all brokers mount, file:///…"
            )
        base = _base_of(uri)
        if base is None:
            raise SettingError(f"fileSystemURI={uri}: only file systems that are mounted here are served: file:///…")
        self._uri = uri
        self._base = base
        self._threads = FileThreads()

    @property
    def driver(self) -> str:
        """The name that `OffloadDriverMetadata` keeps."""
        return DRIVER

    def stored_metadata(self) -> Mapping[str, str]:
        """The directory, under the name that Apache's driver gives to it."""
        return {"storageBasePath": self._uri}

    async def offload(
        self, ledger: LedgerReader, described: LedgerMetadata, uid: UUID, managed_ledger_name: str
    ) -> None:
        """Copy a closed ledger that is not empty. The directory gets its name when all of it is on the disk.

        The base must be there: what is written below one that is not mounted would be on this machine's own disk."""
        described = described_as_closed(ledger, described)
        folder = self._folder(managed_ledger_name, ledger.ledger_id, uid)
        unfinished = folder.with_name(folder.name + ".unfinished")
        await self._threads.run(folder, lambda: _clear_for(self._base, unfinished))
        try:
            writer = await self._threads.run(folder, lambda: MapFileWriter(unfinished, uid, described))
            try:
                await self._copy(ledger, writer, folder)
                await self._threads.run(folder, lambda: _name(writer, unfinished, folder))
            except BaseException:
                await tidied(self._threads.run(folder, writer.abandon))
                raise
        except BaseException:
            await tidied(self._threads.run(folder, lambda: shutil.rmtree(unfinished, ignore_errors=True)))
            raise

    async def open(self, ledger_id: int, uid: UUID, stored: Mapping[str, str]) -> LedgerReader:
        """Open what was offloaded."""
        folder = await self._found(ledger_id, uid, stored)
        reader = await self._threads.run(folder, lambda: MapFileReader(folder), ledger_id)
        return FileLedgerReader(ledger_id, reader, folder, self._threads)

    async def delete(self, ledger_id: int, uid: UUID, stored: Mapping[str, str]) -> None:
        """Remove the directory of one offload, whole or not. A missing one is no error."""
        try:
            folder = await self._found(ledger_id, uid, stored)
        except OffloadedLedgerNotFound:
            return
        await self._threads.run(folder, lambda: _remove(folder))

    async def page(self, after: str = "", *, count_max: int = 1000) -> OffloadedPage:
        """The directories of ledgers whose keys, the paths below the base, come after this one."""

        def listed() -> list[OffloadedObject]:
            found: list[OffloadedObject] = []
            for one in _ledgers(self._base, (), tuple(after.split("/"))):
                found.append(one)
                if len(found) == count_max:
                    break
            return found

        objects = await self._threads.run(self._base, listed)
        return OffloadedPage(objects=objects, next_after=objects[-1].key if len(objects) == count_max else None)

    async def metadata_of(self, key: str) -> Mapping[str, str]:
        """The metadata of a copy, as the path of its directory tells it."""
        name, _, _ = key.rpartition("/")
        if not await self._threads.run(self._base / key, (self._base / key).is_dir):
            raise OffloadedLedgerNotFound(f"{self._base / key} is missing")
        return {"managedledgername": name, "role": "data"}

    async def close(self) -> None:
        """Nothing is held."""

    async def _copy(self, ledger: LedgerReader, writer: MapFileWriter, folder: Path) -> None:
        last = ledger.last_add_confirmed
        average_bytes = max(1, ledger.length_bytes // (last + 1))
        count_max = max(1, min(ENTRIES_PER_READ, WRITE_BYTES // average_bytes))
        first = 0
        while first <= last:
            begin = first
            payloads = await ledger.read(begin, min(last, begin + count_max - 1))
            await self._threads.run(folder, lambda: writer.append(begin, payloads))  # noqa: B023  (waited for)
            first += len(payloads)

    async def _found(self, ledger_id: int, uid: UUID, stored: Mapping[str, str]) -> Path:
        """The directory, below today's base or the one that it was written to."""
        if stored.get("bucket"):
            raise OffloadRefused(f"ledger {ledger_id} was offloaded to the bucket {stored['bucket']}, and to no folder")
        then = _base_of(stored.get("storageBasePath") or "")
        bases = (self._base,) if then is None or then == self._base else (self._base, then)
        name = stored.get(MANAGED_LEDGER_KEY) or ""
        named = _is_name(name)  # Nothing was ever written under another.
        pattern = "/".join(["*"] * LEVELS + [f"{ledger_id}-{uid}*"])

        def found() -> Path:
            for base in bases:
                _check_mounted(base)
                folder = self._folder(name, ledger_id, uid, base) if named else next(base.glob(pattern), None)
                for one in () if folder is None else _names_of(folder.with_name(f"{ledger_id}-{uid}")):
                    if one.exists() or one.is_symlink():
                        return one.with_name(f"{ledger_id}-{uid}")
            raise OffloadedLedgerNotFound(f"{ledger_id}-{uid} is nowhere below {' or '.join(map(str, bases))}")

        return await self._threads.run(self._base, found)

    def _folder(self, managed_ledger_name: str, ledger_id: int, uid: UUID, base: Path | None = None) -> Path:
        if not _is_name(managed_ledger_name):
            raise Misuse(f"{managed_ledger_name!r} names no managed ledger")
        return (base or self._base).joinpath(*managed_ledger_name.split("/"), f"{ledger_id}-{uid}")


class FileLedgerReader:
    """A `LedgerReader` over one directory; one read at a time."""

    def __init__(self, ledger_id: int, reader: MapFileReader, folder: Path, threads: FileThreads) -> None:
        self.ledger_id = ledger_id
        self.last_add_confirmed = reader.last_entry_id
        self.length_bytes = reader.length_bytes
        self.closed = True
        self._reader = reader
        self._folder = folder
        self._threads = threads
        self._reading = asyncio.Lock()
        self._let_go = asyncio.Event()

    async def read(self, first_entry_id: int, last_entry_id: int) -> list[bytes]:
        """Payloads of entries first..last; fewer, at least one, beyond 8 MiB."""
        if not 0 <= first_entry_id <= last_entry_id:
            raise Misuse(f"entries {first_entry_id} to {last_entry_id} are no range")
        if last_entry_id > self.last_add_confirmed:
            raise EntryNotFound(f"offloaded ledger {self.ledger_id} ends with entry {self.last_add_confirmed}")
        async with self._reading:
            if self._let_go.is_set():
                raise OffloadUnavailable(f"{self._folder} was closed while somebody waited to read it")
            payloads = await self._threads.run(
                self._folder,
                lambda: self._reader.read(first_entry_id, last_entry_id, READ_BYTES_MAX),
                self.ledger_id,
                first_entry_id,
            )
            if self._let_go.is_set():
                await self._threads.run(self._folder, self._reader.close)  # Who let go did not wait any longer.
            return payloads

    async def close(self) -> None:
        """Close the file; a read that hangs closes it when it ends."""
        self._let_go.set()
        await tidied(self._close())

    async def _close(self) -> None:
        async with self._reading:
            await self._threads.run(self._folder, self._reader.close)


def _base_of(uri: str) -> Path | None:
    """The folder that a URI names, if it is mounted here."""
    try:
        parts = urlsplit(uri)
    except ValueError:
        return None
    path = unquote(parts.path)
    if parts.scheme != "file" or parts.netloc not in ("", "localhost") or not path.startswith("/") or "\0" in path:
        return None
    return Path(path)


def _is_name(managed_ledger_name: str) -> bool:
    return all(part not in ("", ".", "..") and "\0" not in part for part in managed_ledger_name.split("/"))


def _check_mounted(base: Path) -> None:
    """A mount that is missing must not pass for a store in which everything is lost, or is gone already. Every
    directory that was made below the base stays, so that one which is empty holds no store."""
    if not base.is_dir() or next(base.iterdir(), None) is None:
        raise OffloadUnavailable(f"{base} is missing or empty: is the file system mounted?")


def _name(writer: MapFileWriter, unfinished: Path, folder: Path) -> None:
    writer.finish()
    unfinished.rename(folder)
    sync_folder(folder.parent)


def _clear_for(base: Path, unfinished: Path) -> None:
    if not base.is_dir():
        raise OffloadUnavailable(f"{base} is no directory: is the file system mounted?")
    shutil.rmtree(unfinished, ignore_errors=True)


def _names_of(folder: Path) -> tuple[Path, Path]:
    return folder, folder.with_name(folder.name + ".unfinished")


def _remove(folder: Path) -> None:
    """Another owner may be at it, too. A link goes, and not what it leads to."""
    for one in _names_of(folder):
        if one.is_symlink():
            one.unlink(missing_ok=True)
        while one.exists():
            try:
                shutil.rmtree(one)
            except FileNotFoundError:
                continue


def _ledgers(folder: Path, path: tuple[str, ...], after: tuple[str, ...]) -> Iterator[OffloadedObject]:
    """Directories of ledgers in the order of their names, level by level; what is not after `after` as a whole is not
    looked at."""
    names = sorted(one.name for one in folder.iterdir() if one.is_dir()) if folder.exists() else []
    for name in names:
        here = (*path, name)
        if len(here) <= LEVELS:
            if here >= after[: len(here)]:
                yield from _ledgers(folder / name, here, after)
        elif here > after and (match := _NAME.fullmatch(name)) is not None:
            files = [one.stat() for one in (folder / name).iterdir() if one.is_file()]
            yield OffloadedObject(
                key="/".join(here),
                ledger_id=int(match[1]),
                uid=UUID(match[2]),
                is_index=False,
                size_bytes=sum(one.st_size for one in files),
                modified_ms=max((one.st_mtime_ns // 1_000_000 for one in files), default=0),
            )
