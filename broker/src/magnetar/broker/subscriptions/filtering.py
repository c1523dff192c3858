"""The one look at each entry before it is dispatched: markers, entries for later, and what choosers need to know
(Pulsar `AbstractBaseDispatcher.filterEntriesForConsumer`).

Hot: compiled by mypyc (see CONTRIBUTING).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from magnetar.broker.dispatch.entry_batch import EntryBatch
from magnetar.core.hashing import murmur3_32
from magnetar.wire.pulsar.enums import SNAPSHOT_MARKER
from magnetar.wire.pulsar.errors import BadMetadata
from magnetar.wire.pulsar.metadata import MessageMetadataView, sticky_key

if TYPE_CHECKING:
    from collections.abc import Collection

    from magnetar.core.ids import Position
    from magnetar.managed.entry import Entry

WORD_MASK: Final = 0xFFFF_FFFF_FFFF_FFFF


class Slots(Protocol):
    """How Key_Shared cuts keys into slots."""

    def slot(self, key: bytes) -> int:
        """The slot of a key."""
        ...


class BatchesLeft(Protocol):
    """What is left of batches of which a part is not to be delivered: a cursor says so, or `PartlyHeld`."""

    def remaining_ack_set(self, position: Position) -> list[int] | None:
        """Words with a 1 for each message that is left; None: all of them."""
        ...


class FilteredEntries:
    """`batch` can go out now. `markers` are of no concern to clients. `delayed` are (time in ms, position, Murmur3
    hash of the key).
    `ack_sets` has what is left of those batches of which a part is acknowledged. `snapshots` and `unreadable` are among
    the markers."""

    __slots__ = ("ack_sets", "batch", "delayed", "markers", "size_bytes", "snapshots", "unreadable")

    def __init__(self) -> None:
        self.batch = EntryBatch()
        self.markers: list[Position] = []
        self.delayed: list[tuple[int, Position, int]] = []
        self.ack_sets: dict[Position, list[int]] = {}
        self.snapshots: list[Entry] | None = None
        """The markers that keep snapshots; None: there are none, as mostly."""
        self.unreadable: list[tuple[Position, BadMetadata]] = []
        self.size_bytes = 0

    def add_marker(self, entry: Entry, marker_type: int) -> None:
        """An entry that is of no concern to clients; the type is below 0 for what is no marker."""
        self.markers.append((entry.ledger_id, entry.entry_id))
        if marker_type == SNAPSHOT_MARKER:
            self.snapshots = [*(self.snapshots or ()), entry]


def filter_entries(
    entries: list[Entry],
    cursor: BatchesLeft,
    now_ms: int,
    slots: Slots | None,
    delay_ms_max: int = 0,
    aborted: Collection[tuple[int, int]] | None = None,
) -> FilteredEntries:
    """Sort out which entries go out now; those of which nothing is left count as markers. `slots` is for Key_Shared.

    `now_ms` below 0 means that nothing is delayed on this subscription. Longer delays than `delay_ms_max`, if it is
    not 0, are cut to it. Messages of `aborted` transactions (most bits, least bits) count as markers."""
    filtered = FilteredEntries()
    batch = filtered.batch
    for entry in entries:
        try:
            metadata = entry.metadata()
        except BadMetadata as error:
            # No client could read it either. Pulsar skips such entries as it skips markers.
            filtered.unreadable.append(((entry.ledger_id, entry.entry_id), error))
            filtered.markers.append((entry.ledger_id, entry.entry_id))
            continue
        if metadata.marker_type >= 0 or (metadata.txnid_most_bits >= 0 and _is_aborted(metadata, aborted)):
            filtered.add_marker(entry, metadata.marker_type)
            continue
        if metadata.deliver_at_ms > now_ms >= 0:
            deliver_at_ms = metadata.deliver_at_ms
            if delay_ms_max > 0:
                deliver_at_ms = min(deliver_at_ms, metadata.publish_time_ms + delay_ms_max)
            if deliver_at_ms > now_ms:
                key_hash = murmur3_32(sticky_key(metadata))
                filtered.delayed.append((deliver_at_ms, (entry.ledger_id, entry.entry_id), key_hash))
                continue
        count = metadata.num_messages
        if count > 1:
            ack_set = cursor.remaining_ack_set((entry.ledger_id, entry.entry_id))
            if ack_set is not None:
                ack_set = within_batch(ack_set, count)
                count = unacknowledged(ack_set)
                if not count:
                    filtered.markers.append((entry.ledger_id, entry.entry_id))
                    continue
                filtered.ack_sets[entry.ledger_id, entry.entry_id] = ack_set
        else:
            count = 1
            if metadata.num_chunks > 1:
                batch.has_chunks = True
        batch.entries.append(entry)
        batch.message_counts.append(count)
        if slots is not None:
            batch.key_hashes.append(slots.slot(sticky_key(metadata)))
        filtered.size_bytes += len(entry.data)
    return filtered


def _is_aborted(metadata: MessageMetadataView, aborted: Collection[tuple[int, int]] | None) -> bool:
    return aborted is not None and (metadata.txnid_most_bits, metadata.txnid_least_bits) in aborted


def within_batch(ack_set: list[int], message_count: int) -> list[int]:
    """An ack set without the messages that its batch does not have: who acknowledges may name any."""
    words = (message_count + 63) >> 6
    if len(ack_set) < words:
        return ack_set
    last = ack_set[words - 1]
    within = last & (WORD_MASK >> (-message_count & 63))
    if within == last & WORD_MASK:
        return ack_set if len(ack_set) == words else ack_set[:words]
    return [*ack_set[: words - 1], within]


def unacknowledged(ack_set: list[int]) -> int:
    """Messages of a batch that an ack set leaves."""
    return sum([(word & WORD_MASK).bit_count() for word in ack_set])
