"""One stored entry, shared through the cache by every cursor that reads it.

Hot: compiled by mypyc (see CONTRIBUTING).
"""

from __future__ import annotations

from magnetar.core.ids import Position
from magnetar.wire.pulsar.metadata import MessageMetadataView, skim
from mypy_extensions import mypyc_attr


@mypyc_attr(acyclic=True)
class Entry:
    """An entry as it is stored: `data` is never changed, and its metadata is parsed at most once for all readers."""

    __slots__ = ("_metadata", "data", "entry_id", "ledger_id")

    def __init__(self, ledger_id: int, entry_id: int, data: bytes) -> None:
        self.ledger_id: int = ledger_id
        self.entry_id: int = entry_id
        self.data: bytes = data
        self._metadata: MessageMetadataView | None = None

    @property
    def position(self) -> Position:
        """(ledger id, entry id)."""
        return (self.ledger_id, self.entry_id)

    def metadata(self) -> MessageMetadataView:
        """The fields of the message's metadata that the broker needs; raises `BadMetadata`."""
        view = self._metadata
        if view is None:
            view = self._metadata = skim(self.data)
        return view

    @property
    def known_due_ms(self) -> int:
        """When it is to be delivered, if its metadata was looked at and says so; else below 0."""
        view = self._metadata
        return view.deliver_at_ms if view is not None else -1

    def __repr__(self) -> str:
        return f"Entry({self.ledger_id}:{self.entry_id}, {len(self.data)} bytes)"
