"""The entries of a topic that a compaction may see: the seam to all that hides entries from readers."""

from __future__ import annotations

from typing import Protocol

from magnetar.core.ids import Position
from magnetar.managed.managed_ledger import ManagedLedger
from magnetar.wire.pulsar.metadata import MessageMetadataView


class TopicEntries(Protocol):
    """How far a topic may be read, and what of it nobody sees."""

    def end(self) -> Position:
        """The last entry that readers may have now; its id is -1 when there is none."""
        ...

    def hides(self, metadata: MessageMetadataView) -> bool:
        """Whether an entry up to that end is never given to a client: a marker, for instance."""
        ...


class StoredEntries:
    """The `TopicEntries` of a topic that hides nothing but the brokers' own markers."""

    def __init__(self, ledger: ManagedLedger) -> None:
        self._ledger = ledger

    def end(self) -> Position:
        """The last confirmed entry."""
        return self._ledger.ledgers.last_position()

    def hides(self, metadata: MessageMetadataView) -> bool:
        """Whether it is a marker."""
        return metadata.marker_type >= 0
