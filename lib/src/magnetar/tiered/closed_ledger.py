"""The rule which ledgers may be offloaded, closed ones with entries, and the metadata stored beside the copy."""

from __future__ import annotations

from dataclasses import replace

from magnetar.core.errors import Misuse
from magnetar.ledger.api import LedgerReader
from magnetar.wire.bookkeeper.ledger_metadata import LedgerMetadata, LedgerState


def described_as_closed(ledger: LedgerReader, described: LedgerMetadata) -> LedgerMetadata:
    """The ledger's metadata with the end that its reader knows. `Misuse` for a ledger that is open or empty."""
    if not ledger.closed or ledger.last_add_confirmed < 0:
        raise Misuse(f"ledger {ledger.ledger_id} is open or empty: only closed ones with entries are offloaded")
    return replace(
        described,
        state=LedgerState.CLOSED,
        last_entry_id=ledger.last_add_confirmed,
        length_bytes=ledger.length_bytes,
    )
