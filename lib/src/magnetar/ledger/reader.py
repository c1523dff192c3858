"""A ledger opened for reading."""

from __future__ import annotations

from magnetar.core.errors import Misuse
from magnetar.ledger.api import EntryNotFound, LedgerUnavailable
from magnetar.ledger.entry_reader import LedgerEntryReader
from magnetar.wire.bookkeeper.ledger_metadata import LedgerMetadata, LedgerState


class OpenLedgerReader:
    """A `LedgerReader`: reads up to the last entry that is known to be confirmed."""

    def __init__(
        self,
        ledger_id: int,
        metadata: LedgerMetadata,
        entries: LedgerEntryReader,
        last_add_confirmed: int,
        length_bytes: int,
    ) -> None:
        self.ledger_id = ledger_id
        self.last_add_confirmed = last_add_confirmed
        self.length_bytes = length_bytes
        self.closed = metadata.state is LedgerState.CLOSED
        self.metadata = metadata
        self._entries = entries

    async def read(self, first_entry_id: int, last_entry_id: int) -> list[bytes]:
        """Payloads of first..last. `EntryNotFound` beyond the last confirmed entry, `LedgerUnavailable`."""
        check_range(self.ledger_id, first_entry_id, last_entry_id, self.last_add_confirmed)
        try:
            return await self._entries.read(self.metadata, first_entry_id, last_entry_id)
        except (EntryNotFound, LedgerUnavailable):
            moved = await self._entries.moved(self.metadata)
            if moved is None:
                raise
        self.metadata = moved
        return await self._entries.read(moved, first_entry_id, last_entry_id)

    async def close(self) -> None:
        """Nothing is held."""


def check_range(ledger_id: int, first_entry_id: int, last_entry_id: int, last_add_confirmed: int) -> None:
    """`Misuse` for a range that is none, `EntryNotFound` for one that goes beyond the last confirmed entry."""
    if not 0 <= first_entry_id <= last_entry_id:
        raise Misuse(f"entries {first_entry_id} to {last_entry_id} are no range")
    if last_entry_id > last_add_confirmed:
        raise EntryNotFound(f"ledger {ledger_id} is confirmed up to entry {last_add_confirmed}, not {last_entry_id}")
