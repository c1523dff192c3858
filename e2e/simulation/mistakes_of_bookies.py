"""Mistakes in bookies: journal, fences, checkpoints, garbage collection, replication."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, Final

from magnetar.bookie.adds import BookieAdds
from magnetar.bookie.autorecovery.replication.replicator import LedgerReplicator
from magnetar.bookie.bookie import Bookie
from magnetar.bookie.checkpoint import Checkpointer
from magnetar.bookie.gc.compaction import SwitchOver
from magnetar.bookie.gc.ledger_collection import LedgerCollection
from magnetar.bookie.gc.live_ledgers import StoredLiveLedgers
from magnetar.bookie.journal import format as journal_format
from magnetar.bookie.journal.journal import Journal
from magnetar.bookie.ledger_state import BookieLedgerState, LedgerStates
from magnetar.bookie.replay import Replay
from magnetar.bookie.storage.directories import BookieDirectories, Marks
from magnetar.bookie.storage.entry_log_writer import EntryLogWriter
from magnetar.bookie.storage.ledger_storage import LedgerStorage
from magnetar.sim.disk import SimulatedDisk, SimulatedFile
from magnetar.wire.bookkeeper import ledger_metadata
from magnetar.wire.bookkeeper.codes import BookieCode, BookieError

from e2e.simulation.planting import Mistake, Patch, original


def fence_in_memory() -> list[Patch]:
    """A fencing read is answered before the fence is on the disk."""

    async def fence(self: Bookie, ledger_id: int, master_key: bytes) -> None:
        state = self._states.get_or_create(ledger_id)
        if state.master_key and state.master_key != master_key:
            raise BookieError(BookieCode.EUA, "wrong master key")
        state.fenced = True

    return [(Bookie, "fence", fence)]


def journal_without_sync() -> list[Patch]:
    """Adds are acknowledged when they are in the page cache."""
    right = SimulatedFile.pwritev

    def pwritev(self: SimulatedFile, parts: Sequence[bytes], position: int, *, durable: bool = False) -> int:
        return right(self, parts, position, durable=False)

    return [(SimulatedFile, "pwritev", pwritev)]


def deletions_forgotten() -> list[Patch]:
    """A bookie takes a ledger that it has deleted for a new one, and its former writer's entries with it."""
    return [(LedgerStorage, "was_deleted", lambda self, ledger_id: False)]


def checkpoint_without_sync() -> list[Patch]:
    """A checkpoint forgets the journal before its entries are on the disk."""
    return [(EntryLogWriter, "sync", lambda self: None)]


def unsynced_names() -> list[Patch]:
    """New files are synced, their directories are not."""
    return [(SimulatedDisk, "sync_directory", lambda self, directory: None)]


def replicas_named_first() -> list[Patch]:
    """AutoRecovery names a new bookie in the metadata without having copied anything to it."""

    async def copy(self: LedgerReplicator, *_: Any) -> None:
        return None

    return [(LedgerReplicator, "copy", copy)]


def stale_collection() -> list[Patch]:
    """Garbage collection deletes what a metadata server that lags behind does not list yet."""

    async def catch_up(self: StoredLiveLedgers) -> None:
        return None

    async def exists(self: StoredLiveLedgers, ledger_id: int) -> bool:
        return False

    return [(StoredLiveLedgers, "catch_up", catch_up), (StoredLiveLedgers, "exists", exists)]


def fenced_takes_normal_adds() -> list[Patch]:
    """A fenced ledger takes what its writer sends."""
    right = original(BookieAdds, "_check_add")

    def check_add(self: BookieAdds, state: BookieLedgerState, master_key: bytes, flags: int) -> int:
        code = right(self, state, master_key, flags)
        return 0 if code == BookieCode.EFENCED else code

    return [(BookieAdds, "_check_add", check_add)]


def replay_forgets_fences() -> list[Patch]:
    """A restart does not take fences out of the journal."""
    right = original(Replay, "_apply_meta")

    def apply_meta(self: Replay, record: bytes) -> None:
        if journal_format.record_ids(record)[1] != journal_format.FENCE_RECORD:
            right(self, record)

    return [(Replay, "_apply_meta", apply_meta)]


def _forgetting(wanted: Callable[[BookieLedgerState], bool]) -> list[Patch]:
    """A failed checkpoint forgets that the index lacks some states."""
    right = LedgerStates.flushed

    def flushed(self: LedgerStates, *, stored: bool) -> None:
        self._flushing -= {each.ledger_id for each in self._states.values() if wanted(each)}
        right(self, stored=stored)

    return [(LedgerStates, "flushed", flushed)]


def checkpoint_failure_forgets_fences() -> list[Patch]:
    """After a failed checkpoint fences are not written to the index any more."""
    return _forgetting(lambda state: state.fenced)


def checkpoint_failure_forgets_keys() -> list[Patch]:
    """After a failed checkpoint master keys are not written to the index any more."""
    return _forgetting(lambda state: not state.fenced)


def marks_run_ahead() -> list[Patch]:
    """The checkpoint after a failed one takes the journals' marks of now, and writes only what failed."""
    right = Checkpointer.checkpoint

    async def checkpoint(self: Checkpointer, marks: Callable[[], Marks]) -> bool:
        self._failed_marks = None
        return await right(self, marks)

    return [(Checkpointer, "checkpoint", checkpoint)]


def marks_first() -> list[Patch]:
    """A checkpoint writes the journals' marks before what they cover."""
    right = Checkpointer.flush

    async def flush(self: Checkpointer, marks: Marks) -> None:
        self._directories.write_last_marks(marks)
        await right(self, marks)

    return [(Checkpointer, "flush", flush)]


def trims_what_is_marked() -> list[Patch]:
    """The journal file that the mark stands in is deleted as well."""
    right = BookieDirectories.trim_journals

    def trim_journals(self: BookieDirectories, marks: Marks, backups_max: int) -> None:
        right(self, tuple((file_id + 1, 0) for file_id, _ in marks), 0)

    return [(BookieDirectories, "trim_journals", trim_journals)]


def failed_groups_are_acknowledged() -> list[Patch]:
    """Adds are acknowledged although the journal could not write them."""
    right = original(Journal, "_complete")

    def complete(self: Journal, group: list[Any], size: int, error: OSError | None, times: tuple[float, float]) -> None:
        right(self, group, size, None, times)

    return [(Journal, "_complete", complete)]


def collect_before_listing() -> list[Patch]:
    """Garbage collection lists the metadata first, and its own ledgers when it comes to them."""
    right = LedgerCollection.delete_missing
    ledger_ids = StoredLiveLedgers.ledger_ids
    listed: dict[int, list[int]] = {}

    async def delete_missing(self: LedgerCollection, local: Sequence[int], report: Any) -> list[int]:
        deleted = await right(self, local, report) if id(self._live) in listed else []
        listed[id(self._live)] = [ledger_id async for ledger_id in ledger_ids(self._live)]  # type: ignore[arg-type]
        return deleted

    async def ids_listed_before(self: StoredLiveLedgers) -> AsyncIterator[int]:
        for ledger_id in listed[id(self)]:
            yield ledger_id

    async def exists(self: StoredLiveLedgers, ledger_id: int) -> bool:
        return ledger_id in listed[id(self)]

    return [
        (LedgerCollection, "delete_missing", delete_missing),
        (StoredLiveLedgers, "ledger_ids", ids_listed_before),
        (StoredLiveLedgers, "exists", exists),
    ]


def belongs_by_the_last_segment() -> list[Patch]:
    """Garbage collection takes a ledger for another bookie's that only older segments say is here."""

    async def belongs_to(self: StoredLiveLedgers, ledger_id: int, bookie_id: str) -> bool | None:
        metadata, _ = await self._metadata.read(ledger_id)
        if bookie_id in metadata.ensembles[-1][1]:
            return True
        return False if metadata.state is ledger_metadata.LedgerState.CLOSED else None

    return [(StoredLiveLedgers, "belongs_to", belongs_to)]


def compaction_without_sync() -> list[Patch]:
    """A compacted log is deleted before the index durably knows the new places."""
    right = SwitchOver.finish

    def finish(self: SwitchOver) -> None:
        class NoSync:
            def sync(self) -> None:
                """Not now."""

        self._index = NoSync()  # type: ignore[assignment]  # Nothing else is called from here on.
        right(self)

    return [(SwitchOver, "finish", finish)]


BOOKIE_MISTAKES: Final[dict[str, Mistake]] = {
    "belongs-by-the-last-segment": belongs_by_the_last_segment,
    "checkpoint-failure-forgets-fences": checkpoint_failure_forgets_fences,
    "checkpoint-failure-forgets-keys": checkpoint_failure_forgets_keys,
    "checkpoint-without-sync": checkpoint_without_sync,
    "collect-before-listing": collect_before_listing,
    "compaction-without-sync": compaction_without_sync,
    "deletions-forgotten": deletions_forgotten,
    "failed-groups-are-acknowledged": failed_groups_are_acknowledged,
    "fence-in-memory": fence_in_memory,
    "fenced-takes-normal-adds": fenced_takes_normal_adds,
    "journal-without-sync": journal_without_sync,
    "marks-first": marks_first,
    "marks-run-ahead": marks_run_ahead,
    "replay-forgets-fences": replay_forgets_fences,
    "replicas-named-first": replicas_named_first,
    "stale-collection": stale_collection,
    "trims-what-is-marked": trims_what_is_marked,
    "unsynced-names": unsynced_names,
}
