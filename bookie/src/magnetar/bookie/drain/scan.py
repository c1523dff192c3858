"""Reads the metadata of all ledgers, many at a time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Final

from magnetar.bookie.autorecovery.fragments import names
from magnetar.bookie.autorecovery.parallel import batches
from magnetar.core.errors import PeerError
from magnetar.ledger.api import LedgerNotFound
from magnetar.ledger.metadata_ops import LedgerMetadataOps
from magnetar.wire.bookkeeper.ledger_metadata import LedgerMetadata

READS_IN_FLIGHT: Final = 64
"""Hides the store's delay and leaves it room for others."""


@dataclass(slots=True)
class Naming:
    """Which ledgers a bookie cannot do without."""

    ledger_ids: list[int] = field(default_factory=list)
    """Whose metadata names it, or cannot be read; ascending."""
    unreadable: dict[int, str] = field(default_factory=dict)
    """The ledgers among them that nobody can read, with the reason."""


async def ledgers_naming(
    ops: LedgerMetadataOps, bookie_id: str, see: Callable[[LedgerMetadata], None] = lambda _: None
) -> Naming:
    """Look at all ledgers; `see` is shown what can be read. Raises `StoreUnavailable`."""
    found = Naming()
    async for ledger_id, metadata in all_metadata(ops):
        if isinstance(metadata, PeerError):
            found.unreadable[ledger_id] = f"nobody can tell whether it names the bookie: {metadata}"
            found.ledger_ids.append(ledger_id)
            continue
        see(metadata)
        if names(metadata, (bookie_id,)):
            found.ledger_ids.append(ledger_id)
    return found


async def all_metadata(ops: LedgerMetadataOps) -> AsyncIterator[tuple[int, LedgerMetadata | PeerError]]:
    """(ledger id, metadata) of every ledger that is there all the while, ascending; the error in the place of metadata
    that nobody can read. Raises `StoreUnavailable`."""
    async for ledger_ids in batches(ops.ledger_ids(), READS_IN_FLIGHT):
        results = await asyncio.gather(*(_read(ops, ledger_id) for ledger_id in ledger_ids))
        for ledger_id, result in zip(ledger_ids, results, strict=True):
            if result is not None:
                yield ledger_id, result


async def _read(ops: LedgerMetadataOps, ledger_id: int) -> LedgerMetadata | PeerError | None:
    try:
        metadata, _ = await ops.read(ledger_id)
    except LedgerNotFound:
        return None
    except PeerError as error:
        return error
    return metadata
