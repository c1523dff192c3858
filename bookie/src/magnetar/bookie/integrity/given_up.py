"""What a start that accepts a loss has given up: which entries this bookie ought to have, and denies from now on."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import Final

from magnetar.bookie.autorecovery.fragments import segments_of
from magnetar.bookie.integrity.limbo import ledgers_of
from magnetar.bookie.storage.ledger_storage import LedgerStorage
from magnetar.core.errors import MagnetarError
from magnetar.metadata.store import MetadataStore
from magnetar.wire.bookkeeper.ledger_metadata import LedgerMetadata, LedgerState

logger: Final = logging.getLogger(__name__)

LEDGERS_TOLD_MAX: Final = 1_000
"""Ledgers with lost entries that the log names, a line each; how many there are more is told besides."""
RANGES_TOLD_MAX: Final = 20
"""Ranges of lost entries that are told of one ledger."""
OWNER_KEY: Final = "pulsar/managed-ledger"
"""The key under which a broker names the managed ledger in a ledger's metadata."""


async def tell_given_up(storage: LedgerStorage, store: MetadataStore, bookie_id: str) -> int:
    """Log each ledger of which entries are missing here; how many there are. OSError. A metadata store that does not
    list its ledgers is logged: the start is not about that."""
    count = 0
    try:
        async for ledger_id, metadata in ledgers_of(store, bookie_id):
            text = given_up(metadata, bookie_id, await storage.entry_ids(ledger_id))
            if not text:
                continue
            count += 1
            if count <= LEDGERS_TOLD_MAX:
                owner = metadata.custom_metadata.get(OWNER_KEY, b"").decode("utf-8", "replace")
                logger.error("given up of ledger %d%s: %s", ledger_id, f" of {owner}" if owner else "", text)
    except MagnetarError as error:
        logger.error("what was given up cannot be listed: %s", error)  # noqa: TRY400  (no stack needed)
        return count
    more = f"; {LEDGERS_TOLD_MAX} are named above" if count > LEDGERS_TOLD_MAX else ""
    logger.error("entries of %d ledgers were given up%s; readers stop at them, until they are skipped", count, more)
    return count


def given_up(metadata: LedgerMetadata, bookie_id: str, stored: Sequence[int]) -> str:
    """In words, what a bookie lacks of a ledger; empty: nothing, as far as the metadata tells."""
    there = frozenset(stored)
    missing: list[int] = []
    for segment in segments_of(metadata):
        if bookie_id not in segment.bookies or not segment.closed:
            continue
        own = segment.bookies.index(bookie_id)
        missing += [
            entry_id
            for entry_id in range(segment.first_entry_id, segment.last_entry_id + 1)
            if entry_id not in there and segment.holds(own, entry_id)
        ]
    told = [f"entries {_ranges(missing)}"] if missing else []
    if metadata.state is not LedgerState.CLOSED and bookie_id in metadata.ensembles[-1][1]:
        told.append(f"it was open, maybe entries from {max(stored, default=-1) + 1} on")
    return ", and ".join(told)


def _ranges(entry_ids: Iterable[int]) -> str:
    ranges: list[tuple[int, int]] = []
    for entry_id in entry_ids:
        if ranges and ranges[-1][1] == entry_id - 1:
            ranges[-1] = (ranges[-1][0], entry_id)
        else:
            ranges.append((entry_id, entry_id))
    shown = [str(first) if first == last else f"{first} to {last}" for first, last in ranges[:RANGES_TOLD_MAX]]
    return ", ".join(shown) + (" and more" if len(ranges) > RANGES_TOLD_MAX else "")
