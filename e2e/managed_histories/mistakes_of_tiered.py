"""Mistakes in offloads: what goes before what, and what is forgotten."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from magnetar.managed.ledger_list import LedgerRecord
from magnetar.managed.offload import upkeep
from magnetar.managed.offload.choice import bookkeeper_copies_due
from magnetar.managed.offload.context import copy_of
from magnetar.managed.offload.copies import TieredAccess
from magnetar.managed.offload.offloads import Offloads
from magnetar.managed.offload.run import OffloadRun
from magnetar.managed.offload.upkeep import OffloadUpkeep
from magnetar.managed.trimming.trimming import Trimming
from magnetar.tiered.object_offloader import ObjectOffloader

from e2e.simulation.planting import Mistake, Patch, original


def bookkeeper_goes_unverified() -> list[Patch]:
    """Nobody reads what was copied before BookKeeper's copy goes."""

    async def nothing(self: Any, *arguments: Any) -> None:
        del self, arguments

    return [(TieredAccess, "verify", nothing), (ObjectOffloader, "_verify", nothing)]


def bookkeeper_goes_before_its_record() -> list[Patch]:
    """BookKeeper's copy goes, and then the list says so."""
    right = original(OffloadUpkeep, "_give_up_bookkeeper")

    async def give_up(self: OffloadUpkeep) -> None:
        for ledger_id in self._bookkeeper_due():
            record = self._parts.appends.ledgers.get(ledger_id)
            if record is not None:
                await self._tiered.verify(record)
                await self._parts.shared.ledgers.delete(ledger_id)
        await right(self)

    return [(OffloadUpkeep, "_give_up_bookkeeper", give_up)]


def the_lag_is_ignored() -> list[Patch]:
    """BookKeeper's copy goes as soon as there is another one."""

    def due(self: OffloadUpkeep) -> list[int]:
        shared, policy = self._parts.shared, self._parts.appends.settings.offload
        return bookkeeper_copies_due(self._records(), replace(policy, deletion_lag_ms=-1), shared.clock.now_ms())

    return [(OffloadUpkeep, "_bookkeeper_due", due)]


def objects_go_before_their_record() -> list[Patch]:
    """What is trimmed goes from the store first, and from the list afterwards."""
    right = original(Trimming, "_remove")

    async def remove(self: Trimming, *, retain: bool) -> list[LedgerRecord]:
        for ledger_id in self._trimmable(retain=retain):
            record = self._appends.ledgers.get(ledger_id)
            copy = None if record is None else copy_of(record)
            if copy is not None:
                lease = await self._offloads._tiered.lease()  # noqa: SLF001
                await lease.offloader.delete(ledger_id, copy.uid, copy.stored)
        found: list[LedgerRecord] = await right(self, retain=retain)
        return found

    return [(Trimming, "_remove", remove)]


def what_was_trimmed_is_not_owed() -> list[Patch]:
    """The list forgets a ledger, and with it what is in the store."""
    return [(Offloads, "owed_for", lambda self, records: {})]


def what_was_begun_is_not_owed() -> list[Patch]:
    """Who finds a copy that was begun and left takes it out of its record, and remembers it nowhere."""

    def nothing(properties: Mapping[str, str], records: Any) -> dict[str, str]:
        del records
        return dict(properties)

    return [(upkeep, "with_owed", nothing)]


def complete_before_it_is_copied() -> list[Patch]:
    """The record says that all is there, and then it is copied."""
    right = original(OffloadRun, "_copy")

    async def copy(self: OffloadRun, lease: Any, record: LedgerRecord) -> None:
        await self._complete()
        await right(self, lease, record)

    return [(OffloadRun, "_copy", copy)]


def objects_are_deleted_once() -> list[Patch]:
    """What is owed is forgotten when it was asked for, whatever the store has answered."""
    right = original(upkeep, "_delete")

    async def delete(tiered: TieredAccess, objects: Any) -> None:
        from magnetar.core.errors import MagnetarError

        try:
            await right(tiered, objects)
        except MagnetarError:
            return

    return [(upkeep, "_delete", delete)]


TIERED_MISTAKES: Final[dict[str, Mistake]] = {
    "bookkeeper-goes-before-its-record": bookkeeper_goes_before_its_record,
    "bookkeeper-goes-unverified": bookkeeper_goes_unverified,
    "complete-before-it-is-copied": complete_before_it_is_copied,
    "objects-are-deleted-once": objects_are_deleted_once,
    "objects-go-before-their-record": objects_go_before_their_record,
    "the-lag-is-ignored": the_lag_is_ignored,
    "what-was-begun-is-not-owed": what_was_begun_is_not_owed,
    "what-was-trimmed-is-not-owed": what_was_trimmed_is_not_owed,
}
