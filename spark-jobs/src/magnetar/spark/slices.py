"""What one Spark task reads: entries of a few ledgers of one topic. Pickled by Spark, so plain and small."""

from __future__ import annotations

from dataclasses import dataclass

from magnetar.spark.positions import MessagePosition


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerRange:
    """Consecutive entries of one ledger, both ends included."""

    ledger_id: int
    first_entry_id: int
    last_entry_id: int
    size_bytes: int
    """An estimate by the ledger's average entry."""
    metadata: bytes = b""
    """LedgerMetadata as stored; empty when this is read through a broker."""

    @property
    def entries(self) -> int:
        """The number of entries."""
        return self.last_entry_id - self.first_entry_id + 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice:
    """A part of one topic. Messages before `first` and from `end` on are not of it, though their entries may be in the
    ranges (a batch begins or ends in the middle)."""

    topic: str
    first: MessagePosition
    end: MessagePosition
    """The position where the slice ends; the message there is not of it."""
    ranges: tuple[LedgerRange, ...]
    compacted: bool = False
    """The ranges are of a compacted ledger, whose entries carry the ids that they have in the topic."""

    @property
    def size_bytes(self) -> int:
        """About how many stored bytes the slice has."""
        return sum(part.size_bytes for part in self.ranges)
