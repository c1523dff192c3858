"""The work after offloads: copies that were begun and left are given up, BookKeeper's copies go after the lag, and
objects that nothing names any more are deleted, until they are gone."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from typing import Final

from magnetar.core.errors import MagnetarError
from magnetar.managed.ledger_list import LedgerRecord
from magnetar.managed.offload.choice import begun_and_left, bookkeeper_copies_due
from magnetar.managed.offload.context import (
    bookkeeper_owed,
    bookkeeper_settled,
    copy_of,
    without_bookkeeper,
    without_copy,
)
from magnetar.managed.offload.copies import TieredAccess
from magnetar.managed.offload.owed import OWED_MAX, OWED_PREFIX, OwedObjects, owed_objects, owed_property
from magnetar.managed.parts import ManagedLedgerParts
from magnetar.managed.states import ManagedLedgerState

logger: Final = logging.getLogger(__name__)

LEDGERS_AT_ONCE: Final = 32
"""Ledgers that one write of the list changes: those behind them wait no longer than these take to be verified."""

UPKEEP_AT_ONCE_MAX: Final = 16
"""Managed ledgers of a process that verify and delete at a time, in one store: a hundred thousand topics must not ask
it all at once."""


class OffloadUpkeep:
    """Of one managed ledger; the caller sees to it that it runs once at a time."""

    __slots__ = ("_parts", "_tiered")

    def __init__(self, parts: ManagedLedgerParts, tiered: TieredAccess) -> None:
        self._parts: ManagedLedgerParts = parts
        self._tiered: TieredAccess = tiered

    def due(self, under_way: Collection[int]) -> bool:
        """Whether there is anything to do, but for the ledgers whose offload runs."""
        records = self._records()
        return (
            any(each not in under_way for each in begun_and_left(records))
            or bool(self._bookkeeper_due())
            or any(map(bookkeeper_owed, records))
            or bool(owed_objects(self._parts.appends.properties))
        )

    async def run(self, under_way: Callable[[], Collection[int]]) -> MagnetarError | None:
        """Do what can be done; the first failure, after which what is left is tried another time."""
        try:
            turns = (await self._tiered.lease()).upkeep
        except MagnetarError as error:
            return error
        await turns.enter(UPKEEP_AT_ONCE_MAX)
        try:
            return await self._run(under_way)
        finally:
            turns.leave()

    async def _run(self, under_way: Callable[[], Collection[int]]) -> MagnetarError | None:

        async def give_up_begun() -> None:
            await self._give_up_begun(under_way)

        first: MagnetarError | None = None
        steps: Sequence[Callable[[], Awaitable[None]]] = (
            give_up_begun,
            self._give_up_bookkeeper,
            self._delete_at_bookies,
            self._delete_objects,
        )
        for step in steps:
            try:
                await step()
            except MagnetarError as error:
                logger.warning("%s: what was offloaded is not cleared up: %r", self._parts.appends.name, error)
                first = first or error
        return first

    def removable(self, records: Iterable[LedgerRecord], under_way: Collection[int]) -> list[LedgerRecord]:
        """The first of these that may leave the list now."""
        room = OWED_MAX - sum(key.startswith(OWED_PREFIX) for key in self._parts.appends.properties)
        found: list[LedgerRecord] = []
        for record in records:
            if record.ledger_id in under_way:
                break
            if copy_of(record) is not None:
                if room <= 0:
                    logger.warning("%s: %d offloads wait for deletion: not trimmed", self._parts.appends.name, OWED_MAX)
                    break
                room -= 1
            found.append(record)
        return found

    @property
    def has_objects(self) -> bool:
        """Whether records or properties name any objects."""
        return bool(owed_objects(with_owed(self._parts.appends.properties, self._records())))

    async def delete_all(self) -> None:
        """Remove every object that the records and the properties name."""
        await delete_everything(self._tiered, self._records(), self._parts.appends.properties, self._parts.appends.name)

    # --- the steps

    async def _give_up_begun(self, under_way: Callable[[], Collection[int]]) -> None:
        """Gives up offloads that were begun and do not run: their objects are owed a deletion, whole or not."""
        async with self._parts.node.lock:
            left = set(begun_and_left(self._records())).difference(under_way())
            given_up = self.removable((each for each in self._records() if each.ledger_id in left), ())
            if given_up and self._allowed():
                changed = [without_copy(record) for record in given_up]
                await self._write(changed, with_owed({}, given_up))

    async def _give_up_bookkeeper(self) -> None:
        """The record says so before the first byte goes. Nobody has looked at the copy since it was made: it is read
        once more before it becomes the only one."""
        verified: list[LedgerRecord] = []
        failure: MagnetarError | None = None
        for ledger_id in self._bookkeeper_due()[:LEDGERS_AT_ONCE]:
            record = self._parts.appends.ledgers.get(ledger_id)
            if record is None:
                continue
            try:
                await self._tiered.verify(record)
            except MagnetarError as error:
                self._tiered.counted().read_errors += 1
                logger.warning("BookKeeper's copy of ledger %d stays, the other one is not whole: %r", ledger_id, error)
                failure = failure or error
            else:
                verified.append(record)
        async with self._parts.node.lock:
            due = self._bookkeeper_due()
            changed = [without_bookkeeper(record) for record in verified if record.ledger_id in due]
            if changed and self._allowed():
                await self._write(changed, {})
        if failure is not None:
            raise failure

    async def _delete_at_bookies(self) -> None:
        owing = [record for record in self._records() if bookkeeper_owed(record)]
        if not owing:
            return
        for record in owing:
            await self._parts.readers.forget(record.ledger_id)  # Reads under way end first.
            await self._parts.shared.ledgers.delete(record.ledger_id)
        async with self._parts.node.lock:
            changed = [bookkeeper_settled(record) for record in self._records() if record in owing]
            if changed and self._allowed():
                await self._write(changed, {})

    async def _delete_objects(self) -> None:
        owed = owed_objects(self._parts.appends.properties)
        if not owed:
            return
        gone: list[str] = []
        try:
            for key, objects in owed.items():
                await self._parts.readers.forget(objects.ledger_id)
                await _delete(self._tiered, objects)
                gone.append(key)
        finally:
            await self._forget_owed(gone)

    async def _forget_owed(self, gone: Sequence[str]) -> None:
        async with self._parts.node.lock:
            if gone and self._allowed():
                await self._write([], dict.fromkeys(gone))

    async def _write(self, changed: Sequence[LedgerRecord], changes: Mapping[str, str | None]) -> None:
        """Store the list with these instead of those that they are of, and hold them for true once that is sure."""
        by_id = {record.ledger_id: record for record in changed}
        await self._parts.rollover.write_list(
            [by_id.get(record.ledger_id, record) for record in self._records()], changes
        )
        for record in self._records():
            if record.ledger_id in by_id:
                record.rest = by_id[record.ledger_id].rest

    def _bookkeeper_due(self) -> list[int]:
        shared = self._parts.shared
        return bookkeeper_copies_due(self._records(), self._parts.appends.settings.offload, shared.clock.now_ms())

    def _records(self) -> list[LedgerRecord]:
        return self._parts.appends.ledgers.records()

    def _allowed(self) -> bool:
        return self._parts.appends.state not in (ManagedLedgerState.FENCED, ManagedLedgerState.CLOSED)


def with_owed(properties: Mapping[str, str], records: Iterable[LedgerRecord]) -> dict[str, str]:
    """The properties that also remember what these records have in tiered storage."""
    found = dict(properties)
    for record in records:
        copy = copy_of(record)
        if copy is not None:
            key, value = owed_property(record.ledger_id, copy)
            found[key] = value
    return found


async def delete_everything(
    tiered: TieredAccess, records: Iterable[LedgerRecord], properties: Mapping[str, str], name: str
) -> None:
    """Remove every object that a list and its properties name. Raises what the store does.

    Without a store nothing can be done: then the objects are told in the log, and the managed ledger can go."""
    owed = owed_objects(with_owed(properties, records))
    if not owed:
        return
    if not tiered.has_store:
        for objects in owed.values():
            logger.warning("%s: no store is configured: left over there: %s", name, objects)
        return
    for objects in owed.values():
        await _delete(tiered, objects)


async def _delete(tiered: TieredAccess, objects: OwedObjects) -> None:
    lease = await tiered.lease()
    try:
        await lease.offloader.delete(objects.ledger_id, objects.uid, tiered.with_name(objects.stored))
    except (MagnetarError, TimeoutError) as error:
        tiered.counted().deletions_failed += 1
        tiered.counted().last_error = str(error) or repr(error)
        raise
    tiered.counted().deletions += 1
