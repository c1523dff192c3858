"""Parts for bookies whose disk can crash: an index that stands on a `Disk`, a journal worker without a thread.

With these a simulator, or a test, runs the real storage on a simulated disk:
`BookieEnvironment(disk=disk, open_index=DiskIndexes(disk).open, new_journal_worker=ExecutorJournalWorker)`.
"""

from __future__ import annotations

import asyncio
import struct
import zlib
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

from magnetar.bookie.storage.index_api import DELETED_LEDGERS_MAX
from magnetar.core.disk import Disk, DiskFile, write_all

INDEX_FILE: Final = "index.log"
_HEAD: Final = struct.Struct(">II")
_STATE: Final = struct.Struct(">cq")
_PLACE: Final = struct.Struct(">cqqq")
_PUT_STATE: Final = b"S"
_PUT_PLACE: Final = b"P"
_DELETE: Final = b"D"
_NOWHERE: Final = -1
"""The location of an entry that was forgotten."""


class DiskIndexes:
    """`OpenIndex` of one disk."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk

    def open(self, directory: Path, block_cache_bytes: int, *, create: bool) -> DiskIndex:
        """Open the index of a ledger directory; one that is missing is made."""
        del block_cache_bytes, create
        return DiskIndex(self._disk, directory)


class IndexContents:
    """What the log of a `DiskIndex` says."""

    def __init__(self) -> None:
        self.ledgers: dict[int, bytes] = {}
        """The encoded state of each ledger."""
        self.places: dict[int, dict[int, int]] = {}
        """Ledger id → entry id → location."""
        self.deleted: OrderedDict[int, None] = OrderedDict()
        """The last ones, oldest first."""

    def load(self, content: bytes) -> int:
        """Apply the records in it; returns where the first one stands that is not whole."""
        at = 0
        while at + _HEAD.size <= len(content):
            size, checksum = _HEAD.unpack_from(content, at)
            record = content[at + _HEAD.size : at + _HEAD.size + size]
            if size == 0 or len(record) < size or zlib.crc32(record) != checksum:
                break
            self.apply(record)
            at += _HEAD.size + size
        return at

    def apply(self, record: bytes) -> None:
        """One change."""
        kind = record[:1]
        if kind == _PUT_PLACE:
            _, ledger_id, entry_id, location = _PLACE.unpack(record)
            places = self.places.setdefault(ledger_id, {})
            places[entry_id] = location
            if location == _NOWHERE:
                del places[entry_id]
            return
        _, ledger_id = _STATE.unpack_from(record)
        if kind == _PUT_STATE:
            self.ledgers[ledger_id] = record[_STATE.size :]
        else:
            self.delete(ledger_id)

    def delete(self, ledger_id: int) -> None:
        """Remove a ledger. Nothing is left of it but that it was deleted."""
        self.ledgers.pop(ledger_id, None)
        self.places.pop(ledger_id, None)
        self.deleted[ledger_id] = None
        if len(self.deleted) > DELETED_LEDGERS_MAX:
            self.deleted.popitem(last=False)


class DiskIndex:
    """A `LedgerIndex` in memory, with a log of its changes on a disk. As with RocksDB's log, a crash cuts off an end of
    what was not synced."""

    def __init__(self, disk: Disk, directory: Path) -> None:
        self._contents = IndexContents()
        self._ledgers = self._contents.ledgers
        self._places = self._contents.places
        path = directory / INDEX_FILE
        content = disk.read_whole(path) or b""
        content = content[: self._contents.load(content)]
        # Without the torn end: what is written next must not stand behind it.
        disk.replace_whole(path, content)
        self._file: DiskFile = disk.open(path, writable=True)
        self._position = len(content)

    def ledger(self, ledger_id: int) -> bytes | None:
        """The encoded state of a ledger, or None."""
        return self._ledgers.get(ledger_id)

    def put_ledgers(self, states: Sequence[tuple[int, bytes]]) -> None:
        """Store states; durable on return."""
        if states:
            self._write([_STATE.pack(_PUT_STATE, ledger_id) + value for ledger_id, value in states])
            self._file.sync()

    def ledger_ids(self) -> Iterator[int]:
        """All ledgers with a state, ascending."""
        return iter(sorted(self._ledgers))

    def put_locations(self, ledger_id: int, entry_ids: Sequence[int], locations: Sequence[int]) -> None:
        """Store the places of entries of one ledger. Durable after `sync`."""
        places = zip(entry_ids, locations, strict=True)
        self._write([_PLACE.pack(_PUT_PLACE, ledger_id, entry_id, location) for entry_id, location in places])

    def sync(self) -> None:
        """Make every `put_locations` so far durable."""
        self._file.sync()

    def location(self, ledger_id: int, entry_id: int) -> int | None:
        """Where an entry is, or None."""
        return self._places.get(ledger_id, {}).get(entry_id)

    def locations(self, ledger_id: int, first_entry_id: int, count_max: int) -> list[int]:
        """Where consecutive entries are, from the first one to the first missing one."""
        places = self._places.get(ledger_id, {})
        found: list[int] = []
        while len(found) < count_max and (location := places.get(first_entry_id + len(found))) is not None:
            found.append(location)
        return found

    def last_entry_id(self, ledger_id: int) -> int:
        """The greatest entry id of a ledger, or -1."""
        return max(self._places.get(ledger_id, ()), default=-1)

    def entry_ids(self, ledger_id: int) -> list[int]:
        """All entry ids of a ledger, ascending."""
        return sorted(self._places.get(ledger_id, ()))

    def stored_ledger_ids(self, first_ledger_id: int, count_max: int) -> list[int]:
        """Ledgers that have a state or any place, ascending, from `first_ledger_id` on; fewer than asked for only when
        there are no more."""
        stored = sorted(self._ledgers.keys() | self._places.keys())
        begin = bisect_left(stored, first_ledger_id)
        return stored[begin : begin + count_max]

    def locations_of(self, entries: Sequence[tuple[int, int]]) -> list[int | None]:
        """(ledger id, entry id) → where each is, or None."""
        return [self.location(ledger_id, entry_id) for ledger_id, entry_id in entries]

    def places(
        self, after: tuple[int, int], count_max: int
    ) -> tuple[list[tuple[int, int, int]], tuple[int, int] | None]:
        """The next `count_max` entries of all behind `after` (ledger id, entry id; (0, -1): from the first one):
        (ledger id, entry id, location), ascending. And where to go on; None at the end."""
        behind = sorted(
            (ledger_id, entry_id, location)
            for ledger_id, places in self._places.items()
            for entry_id, location in places.items()
            if (ledger_id, entry_id) > after
        )
        found = behind[:count_max]
        return found, found[-1][:2] if len(behind) >= count_max > 0 else None

    def forget_places(self, entries: Sequence[tuple[int, int]]) -> None:
        """Forget where these entries are (ledger id, entry id); durable on return."""
        if entries:
            self._write([_PLACE.pack(_PUT_PLACE, ledger_id, entry_id, _NOWHERE) for ledger_id, entry_id in entries])
            self._file.sync()

    def locations_in_log(
        self, log_id: int, after: tuple[int, int], count_max: int
    ) -> tuple[list[tuple[int, int, int]], tuple[int, int] | None]:
        """Looks at `count_max` entries of all behind `after` (ledger id, entry id; (0, -1): from the first one) for
        those that are in a log: (ledger id, entry id, location). And where to go on; None at the end."""
        looked_at, behind = self.places(after, count_max)
        return [place for place in looked_at if place[2] >> 32 == log_id], behind

    def move_locations(self, old_log_id: int, places: Sequence[tuple[int, int, int]]) -> int:
        """(ledger id, entry id, location) become the places of entries that still are in the old log; others stay as
        they are, whatever `put_locations` does at the same time. Durable after `sync`. How many were moved."""
        moved = [
            _PLACE.pack(_PUT_PLACE, ledger_id, entry_id, location)
            for ledger_id, entry_id, location in places
            if (old := self.location(ledger_id, entry_id)) is not None and old >> 32 == old_log_id
        ]
        self._write(moved)
        return len(moved)

    def delete_ledgers(self, ledger_ids: Sequence[int]) -> None:
        """Forget states and places of these ledgers; durable on return. After a crash meanwhile `stored_ledger_ids`
        still has those that are not wholly gone."""
        if ledger_ids:
            self._write([_STATE.pack(_DELETE, ledger_id) for ledger_id in ledger_ids])
            self._file.sync()

    def was_deleted(self, ledger_id: int) -> bool:
        """Whether a ledger is one of the last `DELETED_LEDGERS_MAX` that `delete_ledgers` was given, also before a
        restart."""
        return ledger_id in self._contents.deleted

    def greatest_ledger_id(self) -> int:
        """The greatest id of the ledgers that have a state or any place, or are remembered as deleted; -1: none."""
        return max((*self._ledgers, *self._places, *self._contents.deleted), default=-1)

    def estimated_counts(self) -> tuple[int, int]:
        """(ledgers, entries), near enough for metrics; in memory, so that anybody may ask at any time."""
        return len(self._ledgers), sum(map(len, self._places.values()))

    def compact_locations(self) -> None:
        """Do nothing: in memory there is no space to give back."""

    def close(self) -> None:
        """Let go of everything. What was made durable stays."""
        self._file.close()

    def _write(self, records: Sequence[bytes]) -> None:
        framed = [_HEAD.pack(len(record), zlib.crc32(record)) + record for record in records]
        content = b"".join(framed)
        write_all(self._file, content, self._position)
        self._position += len(content)
        for record in records:
            self._contents.apply(record)


class ExecutorJournalWorker:
    """A `JournalWorker` that has one group after the other written by `loop.run_in_executor`: without a thread of its
    own, so that a simulated loop decides when."""

    def __init__(self) -> None:
        self.needs_waking = True
        self._run_group: Callable[[bool], bool] = lambda _wait: False
        self._running: asyncio.Future[bool] | None = None
        self._woken = False
        self._finished = asyncio.Event()

    def start(self, run_group: Callable[[bool], bool]) -> None:
        """Begin. `run_group(True)` blocks until something was appended and writes one group; `run_group(False)` writes
        all that is there and never waits for more. They answer False once the journal is closed and all is written."""
        self._run_group = run_group

    def wake(self) -> None:
        """Something was appended, or the journal was closed: `run_group` has work. On the event loop, never waits."""
        self._woken = True
        if self._running is None:
            self._woken = False
            loop = asyncio.get_running_loop()
            self._running = loop.run_in_executor(None, self._run_group, False)
            self._running.add_done_callback(self._ran)

    async def join(self) -> None:
        """Wait until `run_group` has answered False."""
        await self._finished.wait()

    def _ran(self, running: asyncio.Future[bool]) -> None:
        self._running = None
        if not running.result():
            self._finished.set()
        elif self._woken:
            self.wake()
