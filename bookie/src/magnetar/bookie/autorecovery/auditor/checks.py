"""The auditor's checks: each goes through the metadata of all ledgers and marks, or counts, what is not as it should.

Nothing here keeps more in memory than the ledgers it works on. Every check leaves off when AutoRecovery is disabled
meanwhile.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import random
from collections.abc import AsyncIterator, Collection
from dataclasses import dataclass
from typing import Final

from magnetar.bookie.autorecovery.fragment_check import FragmentChecker
from magnetar.bookie.autorecovery.fragments import FragmentState, Segment, lost_fragments, segments_of
from magnetar.bookie.autorecovery.parallel import batches, for_each
from magnetar.bookie.autorecovery.registered_bookies import available_bookies
from magnetar.bookie.autorecovery.settings import AuditorSettings
from magnetar.bookie.autorecovery.underreplication import UnderreplicatedLedgers
from magnetar.bookie.counters import RecoveryCounters
from magnetar.core.clock import Clock
from magnetar.core.errors import PeerError, Unavailable
from magnetar.core.ids import NO_ENTRY
from magnetar.ledger.api import LedgerNotFound, LedgerUnauthorized
from magnetar.ledger.bookie_client.bookie_connection import BookieConnections
from magnetar.ledger.client import BookKeeperClient
from magnetar.ledger.placement import Adherence
from magnetar.ledger.recovery_driver import codec_for
from magnetar.metadata.store import MetadataStore
from magnetar.wire.bookkeeper.ledger_metadata import LedgerMetadata, LedgerState

logger: Final = logging.getLogger(__name__)

BATCH_LEDGERS: Final = 1000
"""Ledgers whose metadata one step of an audit holds: a few MB."""

READS_IN_FLIGHT_MAX: Final = 64
"""Metadata reads at a time; leaves the store half of what it takes from one client."""

SECOND_LOOK_SECONDS: Final = 5.0
"""After this long a ledger that seems to lack entries is looked at again: a write that was under way has arrived or
has failed by then, and metadata that was being changed has been."""


class ReplicationDisabled(Unavailable):
    """AutoRecovery was switched off during a check; it begins again when it is switched on."""


class NoBookies(Unavailable):
    """Not one bookie is registered: that is the metadata's trouble, or that of all, and no copy could be made."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditorParts:
    """What the checks work with."""

    store: MetadataStore
    underreplicated: UnderreplicatedLedgers
    client: BookKeeperClient
    connections: BookieConnections
    clock: Clock
    rng: random.Random
    settings: AuditorSettings
    counters: RecoveryCounters

    async def read(self, ledger_id: int) -> LedgerMetadata | None:
        """The ledger's metadata; None if it is gone, or damaged (which is logged)."""
        try:
            metadata, _ = await self.client.metadata.read(ledger_id)
        except LedgerNotFound:
            return None
        except PeerError as error:
            logger.warning("ledger %d cannot be audited: %s", ledger_id, error)
            return None
        return metadata

    async def check_enabled(self) -> None:
        """`ReplicationDisabled` when it is."""
        if not await self.underreplicated.enabled():
            raise ReplicationDisabled("AutoRecovery was disabled during a check")

    async def mark(self, ledger_id: int, missing_replicas: Collection[str]) -> None:
        """Mark the ledger; a damaged mark is logged and left."""
        try:
            await self.underreplicated.mark(ledger_id, sorted(missing_replicas))
        except PeerError as error:
            logger.warning("ledger %d cannot be marked: %s", ledger_id, error)


class BookieCheck:
    """Marks every ledger that names a bookie which is not registered (BookKeeper: AuditorBookieCheckTask).

    Open ledgers too: a writer that lives replaces the bookie itself, and workers give it the time to."""

    def __init__(self, parts: AuditorParts) -> None:
        self._parts = parts
        self._reads = asyncio.Semaphore(READS_IN_FLIGHT_MAX)

    async def run(self) -> int:
        """How many ledgers lack a bookie. Raises `Unavailable`; what was marked until then stays marked."""
        parts = self._parts
        marked = 0
        async for ledger_ids in batches(parts.client.metadata.ledger_ids(), BATCH_LEDGERS):
            await parts.check_enabled()
            named = await asyncio.gather(*map(self._bookies_of, ledger_ids))
            # Only now who is there: a bookie that joined meanwhile may be named already.
            available = await available_bookies(parts.store)
            if not available:
                raise NoBookies("no bookie is registered, so none is called lost")
            lost = {
                ledger_id: missing
                for ledger_id, bookies in zip(ledger_ids, named, strict=True)
                if (missing := bookies - available)
            }
            await asyncio.gather(*(self._mark(ledger_id, missing) for ledger_id, missing in lost.items()))
            marked += len(lost)
        return marked

    async def _bookies_of(self, ledger_id: int) -> frozenset[str]:
        async with self._reads:
            metadata = await self._parts.read(ledger_id)
        return frozenset() if metadata is None else bookies_of(metadata)

    async def _mark(self, ledger_id: int, missing: Collection[str]) -> None:
        async with self._reads:
            await self._parts.mark(ledger_id, missing)


class AllLedgersCheck:
    """Asks the bookies of every ledger for the first and last entry of what they should hold, and marks ledgers that
    lack some (BookKeeper: AuditorCheckAllLedgersTask). Of an open ledger only confirmed entries are asked for.

    What seems to be missing is looked for once more before a ledger is marked, and a bookie that is registered but
    silent must be so both times."""

    def __init__(self, parts: AuditorParts, second_look_seconds: float = SECOND_LOOK_SECONDS) -> None:
        self._parts = parts
        self._second_look_seconds = second_look_seconds
        self._checker = FragmentChecker(parts.connections, parts.rng, READS_IN_FLIGHT_MAX)
        self.marked = 0
        self.failed = 0
        """Ledgers that could not be judged."""

    async def run(self) -> None:
        """Check all. Raises `Unavailable`."""
        self.marked = self.failed = 0
        await self._parts.check_enabled()
        in_flight = self._parts.settings.ledgers_in_flight_max
        async for ledger_ids in batches(self._parts.client.metadata.ledger_ids(), BATCH_LEDGERS):
            await self._parts.check_enabled()
            await for_each(_each(ledger_ids), self._check, in_flight)

    async def _check(self, ledger_id: int) -> None:
        bad, last_entry_id = await self._look(ledger_id, frozenset(self._parts.connections.readable_bookies()))
        if bad:
            await asyncio.sleep(self._second_look_seconds)
            available = await available_bookies(self._parts.store)
            if not available:
                raise NoBookies("no bookie is registered, so none is called lost")
            bad, _ = await self._look(ledger_id, available, last_entry_id)
        if bad:
            logger.warning("ledger %d lacks entries on %s", ledger_id, ", ".join(sorted(bad)))
            await self._parts.mark(ledger_id, bad)
            self.marked += 1

    async def _look(
        self, ledger_id: int, available: frozenset[str], up_to_entry_id: int | None = None
    ) -> tuple[set[str], int]:
        """Bookies of the ledger that do not hold what they should, and the last entry that was looked at. A second look
        goes no further than the first one: a bookie may be a little late with each newest entry."""
        metadata = await self._parts.read(ledger_id)
        if metadata is None:
            return set(), NO_ENTRY
        try:
            metadata, segments = await self._segments(ledger_id, metadata)
        except LedgerNotFound:
            return set(), NO_ENTRY
        except (Unavailable, LedgerUnauthorized) as error:
            logger.warning("ledger %d cannot be checked: %s", ledger_id, error)
            self.failed += 1
            return set(), NO_ENTRY
        if up_to_entry_id is not None:
            segments = [
                dataclasses.replace(segment, last_entry_id=min(segment.last_entry_id, up_to_entry_id))
                for segment in segments
            ]
        lost = bookies_of(metadata) - available
        bad: set[str] = set()
        codec = codec_for(ledger_id, metadata) if metadata.digest_type is not None else None
        percentage = self._parts.settings.verification_percentage
        for segment in segments:
            if segment.closed:
                verdicts = await self._checker.check(ledger_id, segment, codec, lost=lost, percentage=percentage)
            else:
                verdicts = lost_fragments(segment, lost)
            bad.update(
                segment.bookies[index] for index, verdict in verdicts.items() if verdict is not FragmentState.PRESENT
            )
        if up_to_entry_id is None:
            counters = self._parts.counters
            counters.ledgers_checked += 1
            counters.fragments_per_ledger.record(sum(len(segment.bookies) for segment in segments))
            counters.bookies_per_ledger.record(len(bookies_of(metadata)))
        return bad, segments[-1].last_entry_id

    async def _segments(self, ledger_id: int, metadata: LedgerMetadata) -> tuple[LedgerMetadata, list[Segment]]:
        if metadata.state is LedgerState.CLOSED:
            return metadata, segments_of(metadata)
        reader = await self._parts.client.open(ledger_id, password=metadata.password, recover=False)
        segments = segments_of(reader.metadata)
        last = segments[-1]
        if not last.closed and reader.last_add_confirmed >= last.first_entry_id:
            # A stretch that will not change any more, unless its end moves on.
            segments[-1] = dataclasses.replace(last, last_entry_id=reader.last_add_confirmed, closed=True)
        return reader.metadata, segments


class PlacementCheck:
    """Counts closed ledgers with a segment that is not spread as the placement policy wants it, and marks them if
    that is set (BookKeeper: AuditorPlacementPolicyCheckTask)."""

    def __init__(self, parts: AuditorParts) -> None:
        self._parts = parts
        self.not_adhering = 0
        self.overdue = 0

    async def run(self) -> None:
        """Check all. Raises `Unavailable`."""
        self.not_adhering = self.overdue = 0
        await self._parts.check_enabled()
        await self._count_overdue()
        await for_each(self._parts.client.metadata.ledger_ids(), self._check, READS_IN_FLIGHT_MAX)
        await self._parts.check_enabled()
        self._parts.counters.ledgers_not_adhering = self.not_adhering
        self._parts.counters.ledgers_overdue = self.overdue

    async def _count_overdue(self) -> None:
        grace_seconds = self._parts.settings.overdue_after_seconds
        if grace_seconds <= 0:
            return
        latest_ms = self._parts.clock.now_ms() - grace_seconds * 1000
        async for mark in self._parts.underreplicated.all():
            self.overdue += mark.created_ms < latest_ms

    async def _check(self, ledger_id: int) -> None:
        metadata = await self._parts.read(ledger_id)
        if metadata is None or metadata.state is not LedgerState.CLOSED:
            return
        adheres = self._parts.client.chooser.adheres
        if all(adheres(bookies, metadata.write_quorum) is Adherence.STRICT for _, bookies in metadata.ensembles):
            return
        self.not_adhering += 1
        logger.warning("ledger %d does not adhere to the placement policy", ledger_id)
        if self._parts.settings.repair_placement:
            # No bookie is missing: the mark names none, as Apache's.
            await self._parts.mark(ledger_id, ())


def bookies_of(metadata: LedgerMetadata) -> frozenset[str]:
    """All bookies that the ledger names."""
    return frozenset(bookie for _, ensemble in metadata.ensembles for bookie in ensemble)


async def _each(ledger_ids: list[int]) -> AsyncIterator[int]:
    for ledger_id in ledger_ids:
        yield ledger_id
