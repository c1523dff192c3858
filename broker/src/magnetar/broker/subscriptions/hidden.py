"""Entries that open transactions have acknowledged: they are neither sent nor acknowledged before these are over.

Only subscriptions of which something is held come here, once per list of entries.

Hot: compiled by mypyc (see CONTRIBUTING).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from magnetar.broker.subscriptions.filtering import within_batch
from magnetar.managed.entry_bitmap import value_of, words_of
from magnetar.wire.pulsar.errors import BadMetadata

if TYPE_CHECKING:
    from magnetar.broker.subscriptions.cursor import SubscriptionCursor
    from magnetar.core.ids import Position
    from magnetar.managed.entry import Entry


class PartlyHeld:
    """What a cursor and open transactions leave of batches."""

    __slots__ = ("_cursor", "left")

    def __init__(self, cursor: SubscriptionCursor) -> None:
        self._cursor = cursor
        self.left: dict[Position, list[int]] = {}

    def remaining_ack_set(self, position: Position) -> list[int] | None:
        """What is left of a batch as words, with a 1 for each message; None: all of it."""
        left = self.left.get(position)
        return left if left is not None else self._cursor.remaining_ack_set(position)


def without_held(
    entries: list[Entry], cursor: SubscriptionCursor, held: dict[Position, int]
) -> tuple[list[Entry], PartlyHeld]:
    """The entries of which something is left to be sent, and what that is. `held` has the bits of the messages that
    transactions have acknowledged, -1 for an entry as a whole."""
    view = PartlyHeld(cursor)
    shown: list[Entry] = []
    for entry in entries:
        bits = held.get((entry.ledger_id, entry.entry_id), 0)
        if not bits or (bits > 0 and _is_left(entry, bits, cursor, view)):
            shown.append(entry)
    return shown, view


def _is_left(entry: Entry, bits: int, cursor: SubscriptionCursor, view: PartlyHeld) -> bool:
    try:
        count = entry.metadata().num_messages
    except BadMetadata:
        return True  # Whoever looks at it next says so.
    if count <= 1:
        return False
    position = (entry.ledger_id, entry.entry_id)
    ack_set = cursor.remaining_ack_set(position)
    left = (1 << count) - 1 if ack_set is None else value_of(within_batch(ack_set, count))
    if not left:
        return True  # Acknowledged without them.
    left &= ~bits
    view.left[position] = words_of(left)
    return left != 0
