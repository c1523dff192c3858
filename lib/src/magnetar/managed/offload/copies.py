"""Reads one ledger from whichever of its copies can be read: in tiered storage, or at the bookies."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from magnetar.core.errors import MagnetarError, Misuse, Unavailable
from magnetar.ledger.api import EntryUnreadable, LedgerReader, LedgerUnavailable
from magnetar.managed.append_path import AppendPath
from magnetar.managed.ledger_list import LedgerRecord
from magnetar.managed.offload.context import copy_of
from magnetar.managed.offload.counters import NOTHING_OFFLOADED, OffloadCounters
from magnetar.managed.shared import Shared
from magnetar.tiered.api import MANAGED_LEDGER_KEY
from magnetar.tiered.offloaders import StoreLease
from magnetar.tiered.policy import ReadFirst

logger: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LedgerCopy:
    """One place that a ledger can be read from."""

    name: str
    tiered: bool
    open: Callable[[], Awaitable[LedgerReader]]


class CopiesReader:
    """A `LedgerReader` over the copies of a ledger: when one fails, the next one is read, from then on."""

    def __init__(self, copies: Sequence[LedgerCopy], counted: Callable[[], OffloadCounters]) -> None:
        """`copies` are at least one, in the order in which they are tried."""
        self.ledger_id: int = -1
        self.last_add_confirmed: int = -1
        self.length_bytes: int = 0
        self.closed: bool = True
        self._copies: Sequence[LedgerCopy] = copies
        self._counted: Callable[[], OffloadCounters] = counted
        self._index: int = -1
        self._reader: LedgerReader | None = None
        self._errors: list[MagnetarError] = []
        self._turn: asyncio.Lock = asyncio.Lock()

    @property
    def tiered(self) -> bool:
        """Whether it reads from tiered storage now."""
        return self._copies[self._index].tiered

    async def open(self) -> None:
        """Open the first copy that can be opened. What it raises says best why none can."""
        await self._go_on(None)

    async def read(self, first_entry_id: int, last_entry_id: int) -> list[bytes]:
        """Payloads of entries first..last; fewer, at least one, when a later one cannot be had. What it raises says
        best why no copy has them; then this is of no use any more."""
        while True:
            reader = self._reader
            if reader is None:
                raise _most_hopeful(self._errors)
            tiered = self.tiered
            try:
                payloads = await reader.read(first_entry_id, last_entry_id)
            except Misuse:
                raise
            except MagnetarError as error:
                async with self._turn:
                    if self._reader is reader:
                        await self._go_on(error)
            else:
                if tiered:
                    self._counted().read_bytes += sum(map(len, payloads))
                return payloads

    async def close(self) -> None:
        """Let go of it. Nothing is written."""
        reader, self._reader = self._reader, None
        if reader is not None:
            await reader.close()

    async def _go_on(self, error: MagnetarError | None) -> None:
        """Open the next copy that can be opened, after this error of the one before."""
        await self.close()
        if error is not None:
            self._failed(error)
        while self._index + 1 < len(self._copies):
            self._index += 1
            copy = self._copies[self._index]
            try:
                reader = await copy.open()
            except MagnetarError as failure:
                self._failed(failure)
                continue
            self._reader = reader
            self.ledger_id, self.closed = reader.ledger_id, reader.closed
            self.last_add_confirmed, self.length_bytes = reader.last_add_confirmed, reader.length_bytes
            return
        raise _most_hopeful(self._errors)

    def _failed(self, error: MagnetarError) -> None:
        copy = self._copies[self._index]
        self._errors.append(error)
        if copy.tiered:
            self._counted().read_errors += 1
        if self._index + 1 < len(self._copies):
            logger.warning("%s cannot be read, the other copy is: %r", copy.name, error)


def _most_hopeful(errors: Sequence[MagnetarError]) -> MagnetarError:
    """An error that may pass, if there is one: data must not count as lost because of the other copy's."""
    for error in errors:
        if isinstance(error, Unavailable) and not isinstance(error, EntryUnreadable):
            return error
    return errors[0]


class TieredAccess:
    """One managed ledger's way to its store, and to the copies of its ledgers."""

    __slots__ = ("_appends", "_counters", "_lease", "_shared")

    def __init__(self, shared: Shared, appends: AppendPath) -> None:
        self._shared: Shared = shared
        self._appends: AppendPath = appends
        self._lease: StoreLease | None = None
        self._counters: OffloadCounters | None = None

    @property
    def counters(self) -> OffloadCounters:
        """The counters of offloads, to be read."""
        return NOTHING_OFFLOADED if self._counters is None else self._counters

    def counted(self) -> OffloadCounters:
        """The counters of offloads, to be added to."""
        if self._counters is None:
            self._counters = OffloadCounters()
        return self._counters

    @property
    def has_store(self) -> bool:
        """Whether today's policy names a store."""
        return self._appends.settings.offload.store is not None

    async def lease(self) -> StoreLease:
        """The store of today's policy. `LedgerUnavailable` when there is none, with what to do."""
        store, problem = self._appends.settings.offload.store, self._appends.settings.offload.problem
        if store is None and problem:
            raise LedgerUnavailable(f"{self._appends.name} needs tiered storage, which is not set up: {problem}")
        if store is None:
            raise LedgerUnavailable(
                f"{self._appends.name} needs tiered storage, and there is none: set managedLedgerOffloadDriver in the "
                "broker's settings, or the offload policies of the namespace or the topic"
            )
        held = self._lease
        if held is None or held.store != store:
            self._lease = self._shared.offloaders.lease(store)
            if held is not None:
                await held.give_back()
        assert self._lease is not None
        return self._lease

    def with_name(self, stored: Mapping[str, str]) -> Mapping[str, str]:
        """What is kept beside a copy, and whose it is: without that, a file system is searched as a whole.
        (Pulsar: ManagedLedgerImpl.getLedgerHandle)"""
        return {**stored, MANAGED_LEDGER_KEY: self._appends.name}

    async def close(self) -> None:
        """Let go of the store."""
        held, self._lease = self._lease, None
        if held is not None:
            await held.give_back()

    def is_offloaded(self, ledger_id: int) -> bool:
        """Whether there is a whole copy in tiered storage."""
        return self._offloaded(ledger_id) is not None

    async def open_closed(self, ledger_id: int) -> LedgerReader:
        """Open a ledger that is not in use, wherever it is."""
        record = self._offloaded(ledger_id)
        return await self.at_bookies(ledger_id) if record is None else await self.open(record)

    def _offloaded(self, ledger_id: int) -> LedgerRecord | None:
        record = self._appends.ledgers.get(ledger_id)
        if record is None or record.rest is None:
            return None
        copy = copy_of(record)
        return record if copy is not None and copy.complete else None

    async def open(self, record: LedgerRecord) -> CopiesReader:
        """Open a ledger whose record knows of a whole copy in tiered storage."""
        copy = copy_of(record)
        assert copy is not None
        ledger_id, uid, stored = record.ledger_id, copy.uid, self.with_name(copy.stored)

        async def in_store() -> LedgerReader:
            return await (await self.lease()).offloader.open(ledger_id, uid, stored)

        copies = [LedgerCopy(f"the offloaded copy {uid} of ledger {ledger_id}", True, in_store)]
        if not copy.bookkeeper_deleted:
            name = f"BookKeeper's copy of ledger {ledger_id}"
            copies.append(LedgerCopy(name, False, lambda: self.at_bookies(ledger_id)))
            if self._appends.settings.offload.read_first is ReadFirst.BOOKKEEPER:
                copies.reverse()
        reader = CopiesReader(copies, self.counted)
        await reader.open()
        return reader

    async def at_bookies(self, ledger_id: int) -> LedgerReader:
        """Open BookKeeper's copy. A ledger whose closing failed is still open in its metadata: recovery settles its
        end. For a closed ledger it changes nothing."""
        return await self._shared.ledgers.open(ledger_id, password=self._appends.settings.password, recover=True)

    async def verify(self, record: LedgerRecord) -> None:
        """Whether all of a ledger is in tiered storage: its end is known there, first and last entry can be read.
        `LedgerUnavailable`, or what the offloader raises, when not."""
        copy = copy_of(record)
        assert copy is not None
        reader = await (await self.lease()).offloader.open(record.ledger_id, copy.uid, self.with_name(copy.stored))
        try:
            last = record.entries - 1
            if reader.last_add_confirmed < last:
                raise LedgerUnavailable(
                    f"the offloaded copy {copy.uid} of ledger {record.ledger_id} ends with entry "
                    f"{reader.last_add_confirmed}, and the ledger with {last}"
                )
            await reader.read(last, last)
            await reader.read(0, 0)
        finally:
            await reader.close()
