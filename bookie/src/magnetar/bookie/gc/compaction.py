"""Copies what is wanted of an entry log into a new one and deletes the old one. A crash at any moment loses nothing.

The files of a compaction of log 1 into log 3 (BookKeeper: bookie/TransactionalEntryLogCompactor; either bookie can
finish what the other has begun):

1. `3.log.compacting` is being written. A restart deletes it.
2. `3.log.1.compacted`: complete and durable. A restart goes on from here.
3. `3.log` is a second name of the same file, durable before the index names it. Each entry whose place is still in
   log 1 gets its place in log 3; what was written again or deleted meanwhile stays as it is.
4. The index is durable: `1.log` is deleted, then `3.log.1.compacted`.

A copy that was emptied, as nothing in it is wanted any more, takes nobody's place, and one that cannot be read may not:
then both logs are collected as any others, and `3.log.1.compacted` goes, of a damaged copy once the old log is gone.

Copied are the entries that the index looks for in the old log, at that very place. What only the write cache or the
journal has, and ledgers' states, are not touched at all. When anything in the old log cannot be read or verified the
old log stays and the copy is thrown away.

Every step does little work, so that a thread which takes one after the other leaves the interpreter to the event loop.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from magnetar.bookie.gc.log_scan import LogScan, Record
from magnetar.bookie.storage import entry_log_format
from magnetar.bookie.storage.entry_log_format import DIGEST_UNKNOWN, SIZE_BYTES, EntryDamaged
from magnetar.bookie.storage.entry_log_writer import EntryLogWriter
from magnetar.bookie.storage.index_api import LedgerIndex
from magnetar.core.disk import Disk

logger: Final = logging.getLogger(__name__)

COMPACTING_SUFFIX: Final = ".log.compacting"
COMPACTED_SUFFIX: Final = ".compacted"
_COMPACTED: Final = re.compile(r"([0-9a-f]{1,16})\.log\.([0-9a-f]{1,16})\.compacted")


def compacting_name(new_log_id: int) -> str:
    """A copy that is being written."""
    return f"{new_log_id:x}{COMPACTING_SUFFIX}"


def compacted_name(new_log_id: int, old_log_id: int) -> str:
    """A complete copy whose places the index may not have yet."""
    return f"{new_log_id:x}.log.{old_log_id:x}{COMPACTED_SUFFIX}"


def compacted_ids(name: str) -> tuple[int, int] | None:
    """(new log, old log) of a complete copy's name; None for every other name."""
    match = _COMPACTED.fullmatch(name)
    return (int(match[1], 16), int(match[2], 16)) if match else None


class LogCopy:
    """Steps 1 and 2: the wanted entries of a log, in a complete and durable copy."""

    def __init__(
        self,
        disk: Disk,
        directory: Path,
        index: LedgerIndex,
        old_log_id: int,
        sizes_bytes: Mapping[int, int],
        new_log_id: int,
    ) -> None:
        """`sizes_bytes`: the log's ledgers that exist, and how many bytes (size words included) were found in it of
        each when it was learnt. OSError."""
        self._disk = disk
        self._directory = directory
        self._index = index
        self._old_log_id = old_log_id
        self._new_log_id = new_log_id
        self._expected_bytes = sizes_bytes
        self._digest_kinds: dict[int, int] = {}
        self._scanned_bytes: dict[int, int] = {}
        self._scan = LogScan(disk, directory / entry_log_format.file_name(old_log_id))
        self._writer = EntryLogWriter(disk, directory, 1 << 62, lambda: new_log_id, compacting_name)
        self.copied_entries = 0
        self.copied_bytes = 0

    def step(self) -> bool:
        """Copy on; False at the end of the old log. OSError; `EntryDamaged` when something in it cannot be trusted."""
        records = self._wanted(self._scan.next_records())
        if records:
            self._check_digests(records)
            self._write(records)
        if self._scan.damage:
            raise EntryDamaged(self._scan.damage)
        return not self._scan.ended

    def finish(self) -> bool:
        """All was copied: make it complete and durable. False when nothing was wanted and there is no copy. OSError,
        `EntryDamaged`."""
        self._compare_sizes()
        self._scan.close()
        if not self.copied_entries:
            return False
        self._writer.close()
        compacting = self._directory / compacting_name(self._new_log_id)
        self._disk.rename(compacting, self._directory / compacted_name(self._new_log_id, self._old_log_id))
        self._disk.sync_directory(self._directory)
        return True

    def give_up(self) -> None:
        """Throw the copy away; what cannot be deleted now is by the next start."""
        self._scan.close()
        self._writer.abandon()
        try:
            self._disk.delete(self._directory / compacting_name(self._new_log_id))
        except OSError as error:
            logger.warning("an unfinished compaction stays until the next one: %s", error)

    def _wanted(self, records: Sequence[Record]) -> list[Record]:
        alive, sizes = self._expected_bytes, self._scanned_bytes
        some: list[Record] = []
        for record in records:
            ledger_id = record[0]
            sizes[ledger_id] = sizes.get(ledger_id, 0) + len(record[3]) + SIZE_BYTES
            if ledger_id in alive:
                some.append(record)
        base = self._old_log_id << 32
        locations = self._index.locations_of([(record[0], record[1]) for record in some])
        return [record for record, place in zip(some, locations, strict=True) if place == base | record[2]]

    def _check_digests(self, records: Sequence[Record]) -> None:
        # Which digest a ledger has is told by its first entry; none (or an HMAC, which only clients can verify) too.
        kinds = self._digest_kinds
        for ledger_id, entry_id, position, entry in records:
            kind = entry_log_format.digest_kind(entry)
            if kinds.setdefault(ledger_id, kind) != kind:
                what = "wrong" if kind == DIGEST_UNKNOWN else "another than an earlier entry's"
                raise EntryDamaged(f"the digest of entry {ledger_id}:{entry_id} at {position} is {what}")

    def _write(self, records: Sequence[Record]) -> None:
        at = 0
        while at < len(records):
            ledger_id = records[at][0]
            end = at + 1
            while end < len(records) and records[end][0] == ledger_id:
                end += 1
            entries = [record[3] for record in records[at:end]]
            self._writer.append(ledger_id, entries)
            self.copied_entries += len(entries)
            self.copied_bytes += sum(map(len, entries))
            at = end

    def _compare_sizes(self) -> None:
        # A scan that lost its step without noticing, or took damage for an unfinished end, has seen less of some
        # ledger than there was.
        for ledger_id, size in self._expected_bytes.items():
            if self._scanned_bytes.get(ledger_id, 0) < size:
                raise EntryDamaged(
                    f"of ledger {ledger_id} only {self._scanned_bytes.get(ledger_id, 0)} bytes were seen, not {size}"
                )


class SwitchOver:
    """Steps 3 and 4: the copy takes the old log's place. May be begun again after a crash or an error."""

    def __init__(
        self,
        disk: Disk,
        directory: Path,
        index: LedgerIndex,
        logs: tuple[int, int],
        forget: Callable[[int], None] | None = None,
    ) -> None:
        """`logs`: new and old; `forget` is called with the old one once it is deleted. OSError."""
        self._disk = disk
        self._directory = directory
        self._index = index
        self._new_log_id, self._old_log_id = logs
        self._forget = forget
        self._marker = directory / compacted_name(self._new_log_id, self._old_log_id)
        new_path = directory / entry_log_format.file_name(self._new_log_id)
        disk.link(self._marker, new_path)
        disk.sync_directory(directory)
        # Before its places are looked at: an earlier attempt may have put them into memory only, and after an error the
        # index is opened again for this, without them.
        index.sync()
        self._scan = LogScan(disk, new_path)
        self.moved_entries = 0

    def step(self) -> bool:
        """Give the next entries their new places; False at the end. OSError; `EntryDamaged` when the copy itself
        cannot be read, in which case both logs stay."""
        records = self._scan.next_records()
        base = self._new_log_id << 32
        places = [(ledger_id, entry_id, base | position) for ledger_id, entry_id, position, _ in records]
        if places:
            self.moved_entries += self._index.move_locations(self._old_log_id, places)
        if self._scan.damage:
            raise EntryDamaged(f"{self._marker}: {self._scan.damage}")
        return not self._scan.ended

    def finish(self) -> None:
        """Every place was moved: delete the old log. OSError, `EntryDamaged`."""
        # Only what was finished has a ledgers map, and all entries stand in front of it.
        self._scan.read_map()
        if self._scan.position < self._scan.ledgers_map_offset:
            raise EntryDamaged(f"{self._marker} ends at {self._scan.position}, before its ledgers map")
        self._scan.close()
        self._index.sync()
        self._disk.delete(self._directory / entry_log_format.file_name(self._old_log_id))
        self._disk.sync_directory(self._directory)
        if self._forget is not None:
            self._forget(self._old_log_id)
        # Not before the old log is gone for good: it is what a restart would look for.
        self._disk.delete(self._marker)
        self._disk.sync_directory(self._directory)

    def give_up(self) -> bool:
        """After `EntryDamaged`: be done with it if the old log is gone or the copy was emptied; whether it was so.
        OSError."""
        old_name = entry_log_format.file_name(self._old_log_id)
        if not self._scan.emptied and old_name in self._disk.list_names(self._directory):
            return False
        # The copy keeps its other name, and is collected by that.
        self._disk.delete(self._marker)
        self._disk.sync_directory(self._directory)
        return True

    def close(self) -> None:
        """Leave it at this; `finish_compactions` goes on later."""
        self._scan.close()


def unfinished_compactions(disk: Disk, directory: Path) -> list[tuple[int, int]]:
    """Deletes copies that were not complete; (new log, old log) of those that were. OSError."""
    found: list[tuple[int, int]] = []
    for name in disk.list_names(directory):
        logs = compacted_ids(name)
        if logs is not None:
            found.append(logs)
        elif name.endswith(COMPACTING_SUFFIX):
            logger.info("deleting the unfinished compaction %s", directory / name)
            try:
                disk.delete(directory / name)
            except OSError as error:
                # It is in nobody's way: no other copy gets its number.
                logger.warning("%s stays until the next time: %s", directory / name, error)
    return sorted(found)


def finish_compactions(disk: Disk, directory: Path, index: LedgerIndex) -> int:
    """Before a directory's entry logs are opened: finish or undo what a crash has left. How many were finished.

    OSError. A complete copy that cannot be read stays beside the old log, and so do the places that name either."""
    count = 0
    for logs in unfinished_compactions(disk, directory):
        logger.info("finishing the compaction of entry log %x into %x", logs[1], logs[0])
        switch = SwitchOver(disk, directory, index, logs)
        try:
            while switch.step():
                pass
            switch.finish()
            count += 1
        except EntryDamaged as error:
            if not switch.give_up():
                logger.error("the compaction of %x into %x cannot be finished: %s", logs[1], logs[0], error)  # noqa: TRY400
        finally:
            switch.close()
    return count
