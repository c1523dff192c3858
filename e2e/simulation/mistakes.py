"""Known protocol mistakes, planted in the real code for a run: the simulator must find each of them.

Each is a patch of one method, undone afterwards.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from magnetar.bookie.autorecovery.replicator import LedgerReplicator
from magnetar.bookie.bookie import Bookie
from magnetar.bookie.entry_log_writer import EntryLogWriter
from magnetar.bookie.gc.live_ledgers import StoredLiveLedgers
from magnetar.ledger.metadata_ops import LedgerMetadataOps
from magnetar.ledger.recovery import EntrySearch, LastConfirmedRound
from magnetar.ledger.recovery_driver import LedgerRecovery
from magnetar.ledger.writer import OpenLedgerWriter
from magnetar.sim.disk import SimulatedDisk, SimulatedFile
from magnetar.wire.bookkeeper.codes import BookieCode, BookieError
from magnetar.wire.bookkeeper.ledger_metadata import LedgerMetadata

Patch = tuple[type, str, Any]
Mistake = Callable[[], list[Patch]]


def one_bookie_lac() -> list[Patch]:
    """Recovery takes the first bookie's word for where the ledger ends."""

    async def nothing_more(self: LedgerRecovery, first: int, metadata: LedgerMetadata, codec: Any) -> list[bytes]:
        return []

    return [
        (LastConfirmedRound, "covered", property(lambda self: self.answers >= 1)),
        (LedgerRecovery, "_read_on", nothing_more),
    ]


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


def blind_ensemble_change() -> list[Patch]:
    """A writer replaces a bookie without compare-and-set."""
    right_change = OpenLedgerWriter.change_ensemble
    right_write = LedgerMetadataOps.write

    async def write(self: LedgerMetadataOps, ledger_id: int, metadata: LedgerMetadata, version: int) -> int:
        if metadata.state.name == "OPEN":
            node = await self._store.get(_path(ledger_id))
            version = node.stat.version if node is not None else version
        return await right_write(self, ledger_id, metadata, version)

    assert right_change is not None
    return [(LedgerMetadataOps, "write", write)]


def _path(ledger_id: int) -> str:
    from magnetar.ledger.ledger_paths import ledger_path

    return ledger_path(ledger_id)


def one_denial() -> list[Patch]:
    """Recovery takes one bookie's denial of an entry for its absence."""
    right = EntrySearch.denied

    def denied(self: EntrySearch) -> None:
        right(self)
        self._denials_needed = 0

    return [(EntrySearch, "denied", denied)]


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


MISTAKES: Final[dict[str, Mistake]] = {
    "one-bookie-lac": one_bookie_lac,
    "fence-in-memory": fence_in_memory,
    "journal-without-sync": journal_without_sync,
    "blind-ensemble-change": blind_ensemble_change,
    "one-denial": one_denial,
    "checkpoint-without-sync": checkpoint_without_sync,
    "stale-collection": stale_collection,
    "unsynced-names": unsynced_names,
    "replicas-named-first": replicas_named_first,
}


class CodeIsCompiled(Exception):
    """A compiled class cannot be patched: `make decompile` first."""


@contextlib.contextmanager
def planted(mistake: Mistake | None) -> Iterator[None]:
    """Have the mistake in the code for a while. `CodeIsCompiled`."""
    if mistake is None:
        yield
        return
    before: list[Patch] = []
    try:
        for owner, name, wrong in mistake():
            right = owner.__dict__[name]
            try:
                setattr(owner, name, wrong)
            except TypeError:
                raise CodeIsCompiled(f"{owner.__qualname__} is compiled: make decompile") from None
            before.append((owner, name, right))
        yield
    finally:
        for owner, name, right in reversed(before):
            setattr(owner, name, right)
