"""Closed ledgers become MapFiles in directories of a file system that is mounted here, as Apache's driver `filesystem`
writes them (Pulsar: FileSystemManagedLedgerOffloader): `<base>/<managed ledger>/<ledger id>-<uid>`."""

from __future__ import annotations

import asyncio
import re
import shutil
from collections.abc import Awaitable, Callable, Iterator, Mapping
from pathlib import Path
from typing import Final, TypeVar
from urllib.parse import unquote, urlsplit
from uuid import UUID

from magnetar.core.errors import Misuse, SettingError
from magnetar.ledger.api import EntryNotFound, LedgerReader
from magnetar.tiered.api import (
    OffloadDamaged,
    OffloadedLedgerNotFound,
    OffloadedObject,
    OffloadedPage,
    OffloadRefused,
    OffloadUnavailable,
)
from magnetar.tiered.closed_ledger import described_as_closed
from magnetar.tiered.map_file import MapFileReader, MapFileWriter, sync_folder
from magnetar.wire.bookkeeper.ledger_metadata import LedgerMetadata
from magnetar.wire.offload.errors import BadOffload

DRIVER: Final = "filesystem"
MANAGED_LEDGER_KEY: Final = "ManagedLedgerName"
"""Where `open` and `delete` find a ledger's directory by its name; without it, they look for it."""
READ_BYTES_MAX: Final = 8 << 20
WRITE_BYTES: Final = 1 << 20
ENTRIES_PER_READ: Final = 1000
LEVELS: Final = 4
"""Of directories above a ledger's: tenant, namespace, domain, topic."""

_NAME: Final = re.compile(r"(0|[1-9][0-9]{0,18})-([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})(\.unfinished)?")
T = TypeVar("T")


class FileOffloader:
    """An `Offloader` on a directory."""

    def __init__(self, uri: str) -> None:
        """`uri` is `file:///…` (`fileSystemURI`). Raises `SettingError`."""
        if not uri:
            raise SettingError(
                f"fileSystemURI must be set for the driver {DRIVER}: a folder that all brokers mount, file:///…"
            )
        parts = urlsplit(uri)
        if parts.scheme != "file" or parts.netloc not in ("", "localhost") or not parts.path.startswith("/"):
            raise SettingError(f"fileSystemURI={uri}: only file systems that are mounted here are served: file:///…")
        self._uri = uri
        self._base = Path(unquote(parts.path))

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
        """Copy a closed ledger that is not empty. The directory gets its name when all of it is on the disk."""
        described = described_as_closed(ledger, described)
        folder = self._folder(managed_ledger_name, ledger.ledger_id, uid)
        unfinished = folder.with_name(folder.name + ".unfinished")
        try:
            await _in_thread(folder, lambda: shutil.rmtree(unfinished, ignore_errors=True))
            writer = await _in_thread(folder, lambda: MapFileWriter(unfinished, uid, described))
            try:
                await self._copy(ledger, writer, folder)
                await _in_thread(folder, lambda: _name(writer, unfinished, folder))
            finally:
                writer.close()
        except BaseException:
            await _finished(asyncio.to_thread(shutil.rmtree, unfinished, ignore_errors=True))
            raise

    async def open(self, ledger_id: int, uid: UUID, stored: Mapping[str, str]) -> LedgerReader:
        """Open what was offloaded."""
        folder = await self._found(ledger_id, uid, stored)
        reader = await _in_thread(folder, lambda: MapFileReader(folder), ledger_id)
        return FileLedgerReader(ledger_id, reader, folder)

    async def delete(self, ledger_id: int, uid: UUID, stored: Mapping[str, str]) -> None:
        """Remove the directory of one offload, whole or not. A missing one is no error."""
        try:
            folder = await self._found(ledger_id, uid, stored)
        except OffloadedLedgerNotFound:
            return
        await _in_thread(folder, lambda: _remove(folder))

    async def page(self, after: str = "", *, count_max: int = 1000) -> OffloadedPage:
        """The directories of ledgers whose keys, the paths below the base, come after this one."""

        def listed() -> list[OffloadedObject]:
            found: list[OffloadedObject] = []
            for one in _ledgers(self._base, (), tuple(after.split("/"))):
                found.append(one)
                if len(found) == count_max:
                    break
            return found

        objects = await _in_thread(self._base, listed)
        return OffloadedPage(objects=objects, next_after=objects[-1].key if len(objects) == count_max else None)

    async def metadata_of(self, key: str) -> Mapping[str, str]:
        """The metadata of a copy, as the path of its directory tells it."""
        name, _, _ = key.rpartition("/")
        if not await asyncio.to_thread((self._base / key).is_dir):
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
            await _in_thread(folder, lambda: writer.append(begin, payloads))  # noqa: B023  (waited for)
            first += len(payloads)

    async def _found(self, ledger_id: int, uid: UUID, stored: Mapping[str, str]) -> Path:
        name = stored.get(MANAGED_LEDGER_KEY)
        if name:
            return self._folder(name, ledger_id, uid)
        pattern = "/".join(["*"] * LEVELS + [f"{ledger_id}-{uid}*"])
        found = await _in_thread(self._base, lambda: sorted(self._base.glob(pattern)))
        if not found:
            raise OffloadedLedgerNotFound(f"{ledger_id}-{uid} is nowhere below {self._base}")
        return found[0].with_name(f"{ledger_id}-{uid}")

    def _folder(self, managed_ledger_name: str, ledger_id: int, uid: UUID) -> Path:
        parts = managed_ledger_name.split("/")
        if not all(part not in ("", ".", "..") and "\0" not in part for part in parts):
            raise Misuse(f"{managed_ledger_name!r} names no managed ledger")
        return self._base.joinpath(*parts, f"{ledger_id}-{uid}")


class FileLedgerReader:
    """A `LedgerReader` over one directory; one read at a time."""

    def __init__(self, ledger_id: int, reader: MapFileReader, folder: Path) -> None:
        self.ledger_id = ledger_id
        self.last_add_confirmed = reader.last_entry_id
        self.length_bytes = reader.length_bytes
        self.closed = True
        self._reader = reader
        self._folder = folder
        self._reading = asyncio.Lock()

    async def read(self, first_entry_id: int, last_entry_id: int) -> list[bytes]:
        """Payloads of entries first..last; fewer, at least one, beyond 8 MiB."""
        if not 0 <= first_entry_id <= last_entry_id:
            raise Misuse(f"entries {first_entry_id} to {last_entry_id} are no range")
        if last_entry_id > self.last_add_confirmed:
            raise EntryNotFound(f"offloaded ledger {self.ledger_id} ends with entry {self.last_add_confirmed}")
        async with self._reading:
            return await _in_thread(
                self._folder,
                lambda: self._reader.read(first_entry_id, last_entry_id, READ_BYTES_MAX),
                self.ledger_id,
                first_entry_id,
            )

    async def close(self) -> None:
        """Close the file."""
        async with self._reading:
            self._reader.close()


async def _in_thread(folder: Path, work: Callable[[], T], ledger_id: int = -1, entry_id: int = 0) -> T:
    """Runs work on files in a thread; errors of the disk become ours. A cancelled caller waits, too: the thread
    uses the files."""
    try:
        return await _finished(asyncio.to_thread(work))
    except BadOffload as error:
        raise OffloadDamaged((ledger_id, entry_id), f"{folder} is damaged: {error}") from None
    except FileNotFoundError as error:
        raise OffloadedLedgerNotFound(f"{folder}: {error}") from None
    except PermissionError as error:
        raise OffloadRefused(f"{folder}: {error}") from None
    except OSError as error:
        raise OffloadUnavailable(f"{folder}: {error}") from None


async def _finished(work: Awaitable[T]) -> T:
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait((task,))
        raise


def _name(writer: MapFileWriter, unfinished: Path, folder: Path) -> None:
    writer.finish()
    unfinished.rename(folder)
    sync_folder(folder.parent)


def _remove(folder: Path) -> None:
    for one in (folder, folder.with_name(folder.name + ".unfinished")):
        if one.exists():
            shutil.rmtree(one)


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
