"""Reads the metadata of all ledgers, many at a time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Final

from magnetar.bookie.autorecovery.parallel import batches
from magnetar.core.errors import PeerError
from magnetar.ledger.api import LedgerNotFound
from magnetar.ledger.metadata_ops import LedgerMetadataOps
from magnetar.wire.bookkeeper.ledger_metadata import LedgerMetadata

READS_IN_FLIGHT: Final = 64
"""Hides the store's delay and leaves it room for others."""


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
