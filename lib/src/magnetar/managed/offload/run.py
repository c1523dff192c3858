"""One ledger's way to tiered storage.

Prepare: the record names the UUID under which the copy is written, and gives up that of an earlier attempt. Copy: data,
then index. Verify: the copy is read. Complete: the record says that it is whole. Each step is one write of the list, or
none; whoever owns the managed ledger after a crash finds the UUID in the record, and removes what was written under it.
"""

from __future__ import annotations

import asyncio
import enum
import logging
from collections.abc import Hashable
from typing import Final
from uuid import UUID

from magnetar.core.backoff import doubled
from magnetar.core.clock import Clock
from magnetar.core.errors import MagnetarError, PeerError, Unavailable
from magnetar.core.transitions import Transitions
from magnetar.ledger.api import LedgerReader, LedgerUnavailable
from magnetar.managed.errors import ManagedLedgerError, ManagedLedgerFenced
from magnetar.managed.info_codec import decode_ledger_info
from magnetar.managed.ledger_list import LedgerRecord
from magnetar.managed.offload.context import begun, completed, copy_of
from magnetar.managed.offload.copies import TieredAccess
from magnetar.managed.offload.counters import OffloadCounters
from magnetar.managed.offload.owed import owed_property
from magnetar.managed.parts import ManagedLedgerParts
from magnetar.managed.paths import ledger_path
from magnetar.managed.states import ManagedLedgerState
from magnetar.tiered.offloaders import StoreLease

logger: Final = logging.getLogger(__name__)

COMPLETIONS_MAX: Final = 5
"""Attempts to write that an offload is complete: hours of copying must not be in vain for one lost answer."""
COMPLETION_PAUSE_SECONDS: Final = 1.0
COMPLETION_PAUSE_SECONDS_MAX: Final = 10.0


class OffloadSuperseded(ManagedLedgerError):
    """The ledger is gone from the list, or its record names another copy: this offload is not wanted any more."""


class OffloadState(enum.Enum):
    """How far the offload of a ledger is."""

    WAITING = enum.auto()
    """For its turn at the store."""
    PREPARING = enum.auto()
    COPYING = enum.auto()
    VERIFYING = enum.auto()
    COMPLETING = enum.auto()
    COMPLETE = enum.auto()
    FAILED = enum.auto()


_S = OffloadState

OFFLOAD_TRANSITIONS: Final = Transitions(
    "an offload",
    {
        _S.WAITING: {_S.PREPARING, _S.FAILED},
        _S.PREPARING: {_S.COPYING, _S.FAILED},
        _S.COPYING: {_S.VERIFYING, _S.FAILED},
        _S.VERIFYING: {_S.COMPLETING, _S.FAILED},
        _S.COMPLETING: {_S.COMPLETE, _S.FAILED},
        _S.COMPLETE: (),
        _S.FAILED: (),
    },
)


class _TimedReader:
    """A `LedgerReader` whose reads are timed."""

    def __init__(self, reader: LedgerReader, clock: Clock, counters: OffloadCounters) -> None:
        self.ledger_id: int = reader.ledger_id
        self.last_add_confirmed: int = reader.last_add_confirmed
        self.length_bytes: int = reader.length_bytes
        self.closed: bool = reader.closed
        self._reader: LedgerReader = reader
        self._clock: Clock = clock
        self._counters: OffloadCounters = counters

    async def read(self, first_entry_id: int, last_entry_id: int) -> list[bytes]:
        """Read; what fails counts as well."""
        began_seconds = self._clock.monotonic_seconds()
        try:
            return await self._reader.read(first_entry_id, last_entry_id)
        finally:
            self._counters.ledger_reads += 1
            self._counters.ledger_read_seconds += self._clock.monotonic_seconds() - began_seconds

    async def close(self) -> None:
        """Closes the ledger's reader. The run that opened it calls this."""


class OffloadRun:
    """The offload of one ledger; used once."""

    __slots__ = ("_parts", "_tiered", "ledger_id", "state", "uid")

    def __init__(self, parts: ManagedLedgerParts, tiered: TieredAccess, ledger_id: int) -> None:
        self._parts: ManagedLedgerParts = parts
        self._tiered: TieredAccess = tiered
        self.ledger_id: int = ledger_id
        self.uid: UUID = parts.shared.offloaders.new_uid()
        self.state: OffloadState = OffloadState.WAITING

    async def run(self) -> None:
        """Do all of it. `OffloadSuperseded`, `ManagedLedgerFenced`, and what bookies, the store of objects and the
        metadata store raise; then the record may name a copy that is not whole."""
        lease = await self._tiered.lease()
        await lease.runs.enter(self._parts.appends.settings.offload.runs_max)
        try:
            await self._in_turn(lease)
        except BaseException:
            self._go(OffloadState.FAILED)
            raise
        finally:
            lease.runs.leave()

    async def _in_turn(self, lease: StoreLease) -> None:
        try:
            self._go(OffloadState.PREPARING)
            record = await self._prepare(lease)
            self._go(OffloadState.COPYING)
            await self._copy(lease, record)
            self._go(OffloadState.VERIFYING)
            await self._tiered.verify(record)
            self._go(OffloadState.COMPLETING)
            await self._complete()
        except asyncio.CancelledError:
            if self._parts.appends.state is ManagedLedgerState.FENCED:
                self._parts.shared.start(self._remove_unless_named(lease.store))
            raise
        except MagnetarError:
            if self.state is not OffloadState.PREPARING:
                await self._remove_unless_named(lease.store)
            raise
        self._go(OffloadState.COMPLETE)
        clock = self._parts.shared.clock
        self._tiered.counted().offloaded(self.ledger_id, record.size_bytes, clock.now_ms())
        await self._parts.readers.forget(self.ledger_id)  # Who reads on reads where it is read first now.

    async def _prepare(self, lease: StoreLease) -> LedgerRecord:
        offloader = lease.offloader
        parts = self._parts
        async with parts.node.lock:
            former = self._record()
            changed = begun(former, self.uid, offloader.driver, offloader.stored_metadata())
            owed: dict[str, str] = {}
            given_up = copy_of(former)
            if given_up is not None:
                if given_up.complete:
                    raise OffloadSuperseded(f"ledger {self.ledger_id} of {parts.appends.name} is offloaded already")
                key, value = owed_property(self.ledger_id, given_up)
                owed[key] = value
            await self._write(changed, owed)
            return changed

    async def _copy(self, lease: StoreLease, record: LedgerRecord) -> None:
        reader = await self._tiered.at_bookies(self.ledger_id)
        try:
            if reader.last_add_confirmed < record.entries - 1:
                raise LedgerUnavailable(
                    f"ledger {self.ledger_id} of {self._name} has {reader.last_add_confirmed + 1} entries at the "
                    f"bookies, and {record.entries} in the list"
                )
            described = await self._parts.shared.ledgers.describe(self.ledger_id)
            timed = _TimedReader(reader, self._parts.shared.clock, self._tiered.counted())
            await lease.offloader.offload(timed, described, self.uid, self._parts.appends.name)
        finally:
            await reader.close()

    async def _complete(self) -> None:
        """A write without an answer is tried again: the copy is whole, and the next write settles the one before."""
        for failures in range(COMPLETIONS_MAX):
            try:
                async with self._parts.node.lock:
                    record = self._record()
                    copy = copy_of(record)
                    if copy is None or copy.uid != self.uid:
                        raise OffloadSuperseded(f"ledger {self.ledger_id} has another copy by now")
                    changed = completed(record, self._parts.shared.clock.now_ms())
                    await self._write(changed, {})
                    return
            except Unavailable as error:
                if failures == COMPLETIONS_MAX - 1:
                    raise
                logger.warning("ledger %d is offloaded, and this is not stored yet: %r", self.ledger_id, error)
            await asyncio.sleep(doubled(COMPLETION_PAUSE_SECONDS, COMPLETION_PAUSE_SECONDS_MAX, failures))

    async def _write(self, changed: LedgerRecord, owed: dict[str, str]) -> None:
        parts = self._parts
        records = [changed if each.ledger_id == self.ledger_id else each for each in parts.appends.ledgers.records()]
        await parts.rollover.write_list(records, owed)
        record = parts.appends.ledgers.get(self.ledger_id)
        assert record is not None
        record.rest = changed.rest

    async def _remove_unless_named(self, store: Hashable) -> None:
        """Another owner may have come, and have removed what it found under our UUID before all of it was there. While
        a record names it, it is left to whoever owns the list."""
        lease = self._parts.shared.offloaders.lease(store)
        try:
            node = await self._parts.shared.store.get(ledger_path(self._name), watch=False)
            records = [] if node is None else decode_ledger_info(node.value).records
            named = {copy.uid for copy in map(copy_of, records) if copy is not None}
            if self.uid not in named:
                stored = self._tiered.with_name(lease.offloader.stored_metadata())
                await lease.offloader.delete(self.ledger_id, self.uid, stored)
        except (MagnetarError, PeerError) as error:
            logger.warning("%s: objects of %s may be left over: %r", self._name, self.uid, error)
        finally:
            await lease.give_back()

    def _record(self) -> LedgerRecord:
        if self._parts.appends.state in (ManagedLedgerState.FENCED, ManagedLedgerState.CLOSED):
            raise ManagedLedgerFenced(self._name)
        record = self._parts.appends.ledgers.get(self.ledger_id)
        if record is None:
            raise OffloadSuperseded(f"ledger {self.ledger_id} is no more in {self._name}")
        return record

    @property
    def _name(self) -> str:
        return self._parts.appends.name

    def _go(self, state: OffloadState) -> None:
        self.state = OFFLOAD_TRANSITIONS.step(self.state, state)
