"""The one look at each entry before it is dispatched: markers, entries for later, and what choosers need to know
(Pulsar `AbstractBaseDispatcher.filterEntriesForConsumer`).

Hot: compiled by mypyc (see CONTRIBUTING).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from magnetar.broker.dispatch.entry_batch import EntryBatch
from magnetar.managed.entry_bitmap import value_of, words_of
from magnetar.wire.pulsar.errors import BadMetadata
from magnetar.wire.pulsar.metadata import sticky_key

if TYPE_CHECKING:
    from magnetar.broker.subscriptions.cursor import SubscriptionCursor
    from magnetar.core.ids import Position
    from magnetar.managed.entry import Entry

WORD_MASK: Final = 0xFFFF_FFFF_FFFF_FFFF


class Slots(Protocol):
    """How Key_Shared cuts keys into slots."""

    def slot(self, key: bytes) -> int:
        """The slot of a key."""
        ...


class FilteredEntries:
    """`batch` can go out now. `markers` are of no concern to clients. `delayed` are (time in ms, position, key hash).
    `ack_sets` has what is left of those batches of which a part is acknowledged. `unreadable` are among the markers."""

    __slots__ = ("ack_sets", "batch", "delayed", "markers", "size_bytes", "unreadable")

    def __init__(self) -> None:
        self.batch = EntryBatch()
        self.markers: list[Position] = []
        self.delayed: list[tuple[int, Position, int]] = []
        self.ack_sets: dict[Position, list[int]] = {}
        self.unreadable: list[tuple[Position, BadMetadata]] = []
        self.size_bytes = 0


def filter_entries(
    entries: list[Entry],
    cursor: SubscriptionCursor,
    now_ms: int,
    slots: Slots | None,
    delay_ms_max: int = 0,
    hidden: dict[Position, int] | None = None,
) -> FilteredEntries:
    """Sort out which entries go out now; those of which nothing is left count as markers. `slots` is for Key_Shared.

    `now_ms` below 0 means that nothing is delayed on this subscription. Longer delays than `delay_ms_max`, if it is
    not 0, are cut to it. What of batches is `hidden` (bits of messages by position) is taken off their ack sets; entries
    that are hidden as a whole do not come here."""
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
        if metadata.marker_type >= 0:
            filtered.markers.append((entry.ledger_id, entry.entry_id))
            continue
        key_hash = 0 if slots is None else slots.slot(sticky_key(metadata))
        if metadata.deliver_at_ms > now_ms >= 0:
            deliver_at_ms = metadata.deliver_at_ms
            if delay_ms_max > 0:
                deliver_at_ms = min(deliver_at_ms, metadata.publish_time_ms + delay_ms_max)
            if deliver_at_ms > now_ms:
                filtered.delayed.append((deliver_at_ms, (entry.ledger_id, entry.entry_id), key_hash))
                continue
        count = metadata.num_messages
        if count > 1:
            ack_set = cursor.remaining_ack_set((entry.ledger_id, entry.entry_id))
            if hidden:
                ack_set = without_held(ack_set, count, hidden.get((entry.ledger_id, entry.entry_id), 0))
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
            batch.key_hashes.append(key_hash)
        filtered.size_bytes += len(entry.data)
    return filtered


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


def not_held(entries: list[Entry], cursor: SubscriptionCursor, hidden: dict[Position, int]) -> list[Entry]:
    """The entries of which open transactions leave anything; what they hold is neither sent nor acknowledged."""
    return [entry for entry in entries if not _wholly_held(entry, cursor, hidden)]


def _wholly_held(entry: Entry, cursor: SubscriptionCursor, hidden: dict[Position, int]) -> bool:
    position = (entry.ledger_id, entry.entry_id)
    held = hidden.get(position, 0)
    if held <= 0:
        return held < 0
    try:
        count = entry.metadata().num_messages
    except BadMetadata:
        return False
    if count <= 1:
        return True
    ack_set = cursor.remaining_ack_set(position)
    left = (1 << count) - 1 if ack_set is None else value_of(within_batch(ack_set, count))
    return left != 0 and left & ~held == 0


def without_held(ack_set: list[int] | None, message_count: int, held: int) -> list[int] | None:
    """An ack set of a batch without the messages that transactions hold."""
    if not held:
        return ack_set
    left = (1 << message_count) - 1 if ack_set is None else value_of(ack_set)
    return words_of(left & ~held)


def unacknowledged(ack_set: list[int]) -> int:
    """Messages of a batch that an ack set leaves."""
    return sum([(word & WORD_MASK).bit_count() for word in ack_set])
