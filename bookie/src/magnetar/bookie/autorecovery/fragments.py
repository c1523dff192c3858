"""Which bookies must hold which entries of a ledger, and how its metadata reads once others hold them. Pure.

A segment is a stretch of entries with one ensemble; a fragment is the part of it at one place of the ensemble. A
segment is closed when no writer and no recovery will ever change it: all segments of a closed ledger, and all but the
last of an open one, whose last segment's begin proves that everything before is confirmed (BookKeeper:
client/LedgerFragment, LedgerChecker, LedgerFragmentReplicator).
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from magnetar.core.ids import NO_ENTRY
from magnetar.ledger.striping import keeps
from magnetar.wire.bookkeeper.ledger_metadata import LedgerMetadata, LedgerState


class FragmentState(enum.Enum):
    """What is known of a fragment."""

    PRESENT = enum.auto()
    """Every entry that was asked for is there and undamaged."""
    LOST = enum.auto()
    """The bookie is not registered, or is to be avoided."""
    MISSING = enum.auto()
    """The bookie answers, and lacks an entry."""
    DAMAGED = enum.auto()
    """The bookie answers, and an entry is not what was written."""
    MISPLACED = enum.auto()
    """All is there, but the placement policy wants it elsewhere."""
    SILENT = enum.auto()
    """The bookie is registered and gives no answer that counts: perhaps busy, perhaps on its way down."""


BAD: Final = (FragmentState.LOST, FragmentState.MISSING, FragmentState.DAMAGED, FragmentState.MISPLACED)
"""Verdicts that call for another replica."""


@dataclass(frozen=True, slots=True)
class Segment:
    """A stretch of a ledger with one ensemble."""

    first_entry_id: int
    last_entry_id: int
    """Below the first one when it is empty, or open (where it ends is not known then)."""
    bookies: tuple[str, ...]
    write_quorum: int
    closed: bool

    @property
    def striped(self) -> bool:
        """Whether a bookie holds some of the entries only."""
        return self.write_quorum < len(self.bookies)

    def holds(self, index: int, entry_id: int) -> bool:
        """Whether the bookie at this place must hold the entry."""
        return keeps(index, entry_id, len(self.bookies), self.write_quorum)

    def first_held(self, index: int) -> int:
        """The first entry that the place must hold; `NO_ENTRY` for none."""
        last = min(self.last_entry_id, self.first_entry_id + len(self.bookies) - 1)
        for entry_id in range(self.first_entry_id, last + 1):
            if self.holds(index, entry_id):
                return entry_id
        return NO_ENTRY

    def last_held(self, index: int) -> int:
        """The last entry that the place must hold; `NO_ENTRY` for none."""
        first = max(self.first_entry_id, self.last_entry_id - len(self.bookies) + 1)
        for entry_id in range(self.last_entry_id, first - 1, -1):
            if self.holds(index, entry_id):
                return entry_id
        return NO_ENTRY


@dataclass(frozen=True, slots=True)
class BadFragments:
    """The places of one segment that need another bookie."""

    segment: Segment
    verdicts: Mapping[int, FragmentState]
    """What is wrong with each bad fragment, by its place's index in the ensemble."""


@dataclass(frozen=True, slots=True)
class EnsembleRepair:
    """What makes a segment whole: these places get these bookies, once those hold the entries."""

    segment: Segment
    replacements: Mapping[int, str]
    """Index → the bookie that takes the place; the one that is there already, if it only lacks entries."""

    def targets(self, entry_id: int) -> tuple[str, ...]:
        """The bookies that the entry must be copied to."""
        segment = self.segment
        return tuple(bookie for index, bookie in sorted(self.replacements.items()) if segment.holds(index, entry_id))

    def entry_ids(self, batch_size: int) -> Iterator[Sequence[int]]:
        """The entries to be copied, ascending, in batches of at most so many."""
        segment = self.segment
        for first in range(segment.first_entry_id, segment.last_entry_id + 1, batch_size):
            window = range(first, min(first + batch_size, segment.last_entry_id + 1))
            wanted: Sequence[int] = window
            if segment.striped:
                wanted = [
                    entry_id
                    for entry_id in window
                    if any(segment.holds(index, entry_id) for index in self.replacements)
                ]
            if wanted:
                yield wanted


def segments_of(metadata: LedgerMetadata) -> list[Segment]:
    """The segments, ascending."""
    closed = metadata.state is LedgerState.CLOSED
    ensembles = metadata.ensembles
    segments: list[Segment] = []
    for position, (first, bookies) in enumerate(ensembles):
        is_last = position == len(ensembles) - 1
        if not is_last:
            last = ensembles[position + 1][0] - 1
        else:
            last = max(metadata.last_entry_id, first - 1) if closed else first - 1
        segments.append(Segment(first, last, tuple(bookies), metadata.write_quorum, closed or not is_last))
    return segments


def names(metadata: LedgerMetadata, bookies: Collection[str]) -> bool:
    """Whether any segment has one of the bookies, with or without entries."""
    return any(bookie in bookies for _, ensemble in metadata.ensembles for bookie in ensemble)


def lost_fragments(segment: Segment, lost: Collection[str]) -> dict[int, FragmentState]:
    """The places of bookies that are lost."""
    return {index: FragmentState.LOST for index, bookie in enumerate(segment.bookies) if bookie in lost}


def bad_fragments(segment: Segment, verdicts: Mapping[int, FragmentState]) -> BadFragments | None:
    """Those of the verdicts that call for another replica; None if there are none."""
    bad = {index: verdict for index, verdict in sorted(verdicts.items()) if verdict in BAD}
    return BadFragments(segment, bad) if bad else None


INCOMPLETE: Final = (FragmentState.MISSING, FragmentState.DAMAGED)
"""Verdicts about bookies that live and could be given the entries again."""

_TRUST: Final = {FragmentState.PRESENT: 0, FragmentState.MISPLACED: 0}
_NO_TRUST: Final = 2


def source_order(
    segment: Segment,
    verdicts: Mapping[int, FragmentState],
    *,
    spared: Collection[str],
    unregistered: Collection[str],
    turn: int,
) -> list[int]:
    """The places in the order in which they are asked for entries.

    Whole ones first, beginning at a place that differs by `turn`, so that the sources share the work of many ledgers;
    then bookies that live but are to be spared; then those that are not trusted, for one that lacks an entry may have
    another; unregistered ones at the very end."""
    size = len(segment.bookies)

    def rank(index: int) -> tuple[int, int]:
        bookie = segment.bookies[index]
        if bookie in unregistered:
            trust = 3
        elif bookie in spared:
            trust = 1
        else:
            trust = _TRUST.get(verdicts.get(index, FragmentState.PRESENT), _NO_TRUST)
        return trust, (index - turn) % size

    return sorted(range(size), key=rank)


def with_move(metadata: LedgerMetadata, move: EnsembleRepair) -> LedgerMetadata | None:
    """The metadata after the move, or None when it must not be made: the segment is not what was copied, or a bookie
    that takes a place has one already."""
    segment = move.segment
    found = next((other for other in segments_of(metadata) if other.first_entry_id == segment.first_entry_id), None)
    if found is None or not found.closed or found.last_entry_id != segment.last_entry_id:
        return None
    bookies = list(found.bookies)
    if len(bookies) != len(segment.bookies):
        return None
    for index, bookie in move.replacements.items():
        if bookies[index] != segment.bookies[index]:
            return None
        bookies[index] = bookie
    if any(bookies.count(bookie) > 1 for bookie in move.replacements.values()):
        return None
    ensembles = [
        (first, bookies if first == segment.first_entry_id else list(ensemble))
        for first, ensemble in metadata.ensembles
    ]
    return dataclasses.replace(metadata, ensembles=ensembles)
