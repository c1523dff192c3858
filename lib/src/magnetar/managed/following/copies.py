"""The ledgers of a followed managed ledger, opened for reading without recovery: their writer is not disturbed."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from magnetar.ledger.api import EntryNotFound, LedgerNotFound, LedgerObserver, LedgerReader
from magnetar.managed.append_path import AppendPath
from magnetar.managed.ledger_list import LedgerList
from magnetar.managed.offload.copies import TieredAccess
from magnetar.managed.shared import Shared
from magnetar.tiered.api import MANAGED_LEDGER_KEY

logger: Final = logging.getLogger(__name__)


class FollowedCopies(TieredAccess):
    """Opens the copy of a ledger that is to be read. `missing` is awaited when one is not there: the owner may have
    trimmed it, and the list is to say so before the reader hears of it."""

    __slots__ = ("_missing", "_source")

    def __init__(
        self, shared: Shared, appends: AppendPath, missing: Callable[[], Awaitable[None]], source: str | None = None
    ) -> None:
        """`source` is whose ledgers these are, if they are another's."""
        super().__init__(shared, appends)
        self._missing: Callable[[], Awaitable[None]] = missing
        self._source: str = source or appends.name

    def with_name(self, stored: Mapping[str, str]) -> Mapping[str, str]:
        """What is kept beside a copy, and whose it is: it was written under its owner's name."""
        return {**stored, MANAGED_LEDGER_KEY: self._source}

    async def at_bookies(self, ledger_id: int) -> LedgerReader:
        """Open BookKeeper's copy, as far as the list says that it is confirmed."""
        try:
            observer = await self._shared.ledgers.observe(ledger_id, password=self._appends.settings.password)
        except LedgerNotFound:
            await self._missing()
            raise
        return ListedReader(observer, self._appends.ledgers, self._missing)


class ListedReader:
    """A `LedgerReader` that reads what the list says is there, also beyond what bookies vouch for."""

    def __init__(self, observer: LedgerObserver, ledgers: LedgerList, missing: Callable[[], Awaitable[None]]) -> None:
        self.ledger_id: int = observer.ledger_id
        self.closed: bool = observer.closed
        self.length_bytes: int = observer.length_bytes
        self._observer: LedgerObserver = observer
        self._ledgers: LedgerList = ledgers
        self._missing: Callable[[], Awaitable[None]] = missing

    @property
    def last_add_confirmed(self) -> int:
        """The last entry that the list has of this ledger."""
        return self._ledgers.entries_in(self.ledger_id) - 1

    @last_add_confirmed.setter
    def last_add_confirmed(self, last_add_confirmed: int) -> None:
        raise NotImplementedError("the list says what is confirmed")

    async def read(self, first_entry_id: int, last_entry_id: int) -> list[bytes]:
        """Payloads of entries first..last; fewer, at least one, when a later one cannot be had.

        `EntryNotFound`: the list has no such entry (any more), or no bookie. `EntryUnreadable`, `LedgerUnavailable`."""
        if last_entry_id > self.last_add_confirmed:
            raise EntryNotFound(
                f"ledger {self.ledger_id} is known up to {self.last_add_confirmed}, not {last_entry_id}"
            )
        self._observer.vouch(last_entry_id)
        try:
            return await self._observer.read(first_entry_id, last_entry_id)
        except (EntryNotFound, LedgerNotFound):
            await self._missing()
            raise

    async def close(self) -> None:
        """Let go of it. Nothing is written."""
        await self._observer.close()
