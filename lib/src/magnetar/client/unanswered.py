"""What a producer has relayed to another cluster and has no receipt for, and which entries a receipt is for. Pure.

Facts: Pulsar `GeoReplicationProducerImpl`.

Hot: compiled by mypyc (see CONTRIBUTING).
"""

from __future__ import annotations

from typing import Final

from magnetar.core.ids import Position
from magnetar.wire.pulsar.command import encode_relayed_send
from magnetar.wire.pulsar.send_receipts import Receipt

MARKER_RECEIPT: Final = -(2**63)
"""`highest_sequence_id` of the receipt of a marker, where others name the source position."""


class RelayedEntry:
    """An entry that is sent: its position in its own cluster, and what its SEND says."""

    __slots__ = (
        "chunked",
        "headers",
        "marker",
        "num_messages",
        "payload",
        "position",
        "publish_time_ms",
        "sequence_id",
        "shadowed",
        "size_bytes",
    )

    def __init__(
        self,
        position: Position,
        headers: bytes,
        payload: bytes,
        sequence_id: int,
        *,
        num_messages: int = 1,
        publish_time_ms: int = 0,
        chunked: bool = False,
        marker: bool = False,
        shadowed: bool = False,
    ) -> None:
        self.position: Position = position
        self.headers: bytes = headers
        """Checksum and metadata."""
        self.payload: bytes = payload
        self.size_bytes: int = len(headers) + len(payload)
        self.sequence_id: int = sequence_id
        self.num_messages: int = num_messages
        self.publish_time_ms: int = publish_time_ms
        self.chunked: bool = chunked
        self.marker: bool = marker
        self.shadowed: bool = shadowed
        """Whether it goes to a shadow topic, which reads it where it stands: its SEND names the position."""

    @property
    def message(self) -> bytes:
        """Headers and payload."""
        return self.headers + self.payload


class Unanswered:
    """Entries without a receipt, in the order that they were sent in. Whoever sends bounds them."""

    def __init__(self) -> None:
        self.by_position: bool = False
        """Whether receipts name the source position; else they name the sequence id only, as those of topics that store
        nothing always do."""
        self.size_bytes: int = 0
        self._entries: dict[Position, RelayedEntry] = {}
        self._by_id: dict[int, list[RelayedEntry]] = {}
        """Entries that a receipt does not name by position, by sequence id: all of them, or only markers."""
        self._answered: dict[int, int] = {}
        """How many of a sequence id have a receipt, while others of it have none."""

    @property
    def count(self) -> int:
        """How many there are."""
        return len(self._entries)

    @property
    def oldest(self) -> RelayedEntry | None:
        """The first of them."""
        for entry in self._entries.values():
            return entry
        return None

    def clear(self) -> None:
        """No receipt comes for any of them."""
        self._entries.clear()
        self._by_id.clear()
        self._answered.clear()
        self.size_bytes = 0

    def frames(self, producer_id: int, entries: list[RelayedEntry]) -> list[bytes]:
        """The SENDs of these entries, in parts; they have no receipt from now on."""
        frames: list[bytes] = []
        for entry in entries:
            self._entries[entry.position] = entry
            self.size_bytes += entry.size_bytes
            if entry.marker or not self.by_position:
                self._by_id.setdefault(entry.sequence_id, []).append(entry)
            frames.append(
                encode_relayed_send(
                    producer_id,
                    entry.sequence_id,
                    entry.size_bytes,
                    entry.num_messages,
                    chunked=entry.chunked,
                    marker=entry.marker,
                    message_id=entry.position if entry.shadowed else None,
                )
            )
            # Payloads are not copied for each frame: they are copied once more when all is written.
            frames += (entry.headers, entry.payload)
        return frames

    def answered(self, receipts: list[Receipt]) -> list[Position]:
        """Where the entries stand of which these receipts say that they are stored."""
        stored: list[Position] = []
        for receipt in receipts:
            if self.by_position and receipt.highest_sequence_id != MARKER_RECEIPT:
                position = (receipt.sequence_id, receipt.highest_sequence_id)
                named = self._entries.get(position)
                if named is not None:
                    self._take(named, stored)
                    if self._by_id:
                        self._take_all(self._without(named), stored)
            else:
                self._take_all(self._all_of(receipt.sequence_id), stored)
        return stored

    def _take_all(self, entries: list[RelayedEntry], stored: list[Position]) -> None:
        for entry in entries:
            self._take(entry, stored)

    def _take(self, entry: RelayedEntry, stored: list[Position]) -> None:
        if self._entries.pop(entry.position, None) is not None:
            self.size_bytes -= entry.size_bytes
            stored.append(entry.position)

    def _all_of(self, sequence_id: int) -> list[RelayedEntry]:
        """What is stored for sure. Producers count alike, and one that is answered as a duplicate overtakes another: of
        several entries with one sequence id nobody knows whose receipt this is, until all have theirs."""
        entries = self._by_id.get(sequence_id, [])
        answered = self._answered.get(sequence_id, 0) + 1
        if answered < len(entries):
            self._answered[sequence_id] = answered
            return []
        self._by_id.pop(sequence_id, None)
        self._answered.pop(sequence_id, None)
        return entries

    def _without(self, entry: RelayedEntry) -> list[RelayedEntry]:
        """An entry is named by its position: it must not wait among those of its sequence id, nor they for it. Who is
        stored for sure without it. Which types of markers have receipts of their own is the other side's to say."""
        entries = self._by_id.get(entry.sequence_id, [])
        if entry not in entries:
            return []
        entries.remove(entry)
        answered = self._answered.get(entry.sequence_id, 0)
        if answered < len(entries):
            return []
        self._by_id.pop(entry.sequence_id, None)
        self._answered.pop(entry.sequence_id, None)
        return entries
