"""Counts entries that fewer bookies hold than should, from the bookies' own lists of entries.

Nothing is marked: a worker judges a fragment by its first and last entry and would find nothing to do. The counts and
the log tell people (BookKeeper: replication/AuditorReplicasCheckTask). Apache's bookies with DbLedgerStorage, Pulsar's
default, leave the question unanswered; whoever does is not asked again in the same run.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Final, Protocol

from magnetar.bookie.autorecovery.auditor.checks import AuditorParts, bookies_of
from magnetar.bookie.autorecovery.fragments import Segment, segments_of
from magnetar.bookie.autorecovery.parallel import for_each
from magnetar.bookie.availability import decode_availability
from magnetar.core.errors import PeerError
from magnetar.ledger.striping import kept_entries
from magnetar.wire.bookkeeper.codes import BookieCode, BookieError
from magnetar.wire.bookkeeper.ledger_metadata import LedgerState

logger: Final = logging.getLogger(__name__)

LEDGERS_IN_FLIGHT_MAX: Final = 8
"""Ledgers at a time: each holds the ids of all its entries, once for each bookie."""


class EntryLists(Protocol):
    """Who can be asked for a bookie's list of entries, such as `V3Queries`."""

    async def list_entries(self, bookie_id: str, ledger_id: int) -> bytes:
        """The packed list. `BookieError`."""
        ...


class ReplicasCheck:
    """Asks every bookie of every closed ledger that is not marked."""

    def __init__(self, parts: AuditorParts, lists: EntryLists) -> None:
        self._parts = parts
        self._lists = lists
        self.without_replica = 0
        """Ledgers with an entry that no bookie holds."""
        self.below_ack_quorum = 0
        """Ledgers with an entry that fewer than Qa bookies hold, but some."""
        self.below_write_quorum = 0
        """Ledgers with an entry that fewer than Qw bookies hold, but at least Qa."""
        self._silent: set[str] = set()

    async def run(self) -> None:
        """Check all. Raises `Unavailable`."""
        self.without_replica = self.below_ack_quorum = self.below_write_quorum = 0
        self._silent.clear()
        await self._parts.check_enabled()
        await for_each(self._parts.client.metadata.ledger_ids(), self._check, LEDGERS_IN_FLIGHT_MAX)
        await self._parts.check_enabled()
        counters = self._parts.counters
        counters.ledgers_with_entry_without_replica = self.without_replica
        counters.ledgers_with_entry_below_ack_quorum = self.below_ack_quorum
        counters.ledgers_with_entry_below_write_quorum = self.below_write_quorum

    async def _check(self, ledger_id: int) -> None:
        metadata = await self._parts.read(ledger_id)
        if metadata is None or metadata.state is not LedgerState.CLOSED:
            return
        if await self._parts.underreplicated.get(ledger_id) is not None:
            return
        bookies = sorted(bookies_of(metadata))
        answers = await asyncio.gather(*(self._held(bookie, ledger_id) for bookie in bookies))
        held = {bookie: answer for bookie, answer in zip(bookies, answers, strict=True) if answer is not None}
        missing = max((missing_replicas(segment, held) for segment in segments_of(metadata)), default=0)
        if not missing:
            return
        left = metadata.write_quorum - missing
        logger.error("ledger %d has an entry with %d of %d replicas", ledger_id, left, metadata.write_quorum)
        if left <= 0:
            self.without_replica += 1
        elif left < metadata.ack_quorum:
            self.below_ack_quorum += 1
        else:
            self.below_write_quorum += 1

    async def _held(self, bookie_id: str, ledger_id: int) -> AbstractSet[int] | None:
        """The entries that the bookie has; None if it does not tell."""
        if bookie_id in self._silent:
            return None
        try:
            return frozenset(decode_availability(await self._lists.list_entries(bookie_id, ledger_id)))
        except BookieError as error:
            if error.code in (BookieCode.ENOLEDGER, BookieCode.ENOENTRY):
                return frozenset()
            if error.code is BookieCode.UNREACHABLE:
                self._silent.add(bookie_id)
            logger.warning("the entries of ledger %d on %s are not known: %s", ledger_id, bookie_id, error)
        except (ValueError, PeerError) as error:
            logger.warning("%s told the entries of ledger %d in an unknown form: %s", bookie_id, ledger_id, error)
        return None


def missing_replicas(segment: Segment, held: Mapping[str, AbstractSet[int]]) -> int:
    """How many replicas the entry of a segment lacks that lacks the most. Bookies that are not in `held` are taken to
    have theirs."""
    lacking: dict[int, int] = {}
    for index, bookie in enumerate(segment.bookies):
        if bookie not in held:
            continue
        for entry_id in _lacking(segment, index, held[bookie]):
            lacking[entry_id] = lacking.get(entry_id, 0) + 1
    return max(lacking.values(), default=0)


def _lacking(segment: Segment, index: int, held: AbstractSet[int]) -> Sequence[int]:
    expected = kept_entries(
        index, segment.first_entry_id, segment.last_entry_id, len(segment.bookies), segment.write_quorum
    )
    return [entry_id for entry_id in expected if entry_id not in held]
