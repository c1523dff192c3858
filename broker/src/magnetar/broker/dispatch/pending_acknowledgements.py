"""What one consumer of a Shared or Key_Shared subscription was sent and has not acknowledged.

Bounded by the consumer's and the subscription's limits of unacknowledged messages, which stop dispatch.

Hot: compiled by mypyc (see CONTRIBUTING).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from magnetar.core.ids import Position
    from magnetar.managed.entry import Entry

Holder = TypeVar("Holder")


class PendingAcknowledgements:
    """Positions with their unacknowledged messages; with Key_Shared also each one's key hash and a count per hash."""

    __slots__ = ("hashes", "messages", "per_hash")

    def __init__(self) -> None:
        self.messages: dict[Position, int] = {}
        self.hashes: dict[Position, int] = {}
        self.per_hash: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self.messages)

    def __contains__(self, position: Position) -> bool:
        return position in self.messages

    def add(
        self,
        entries: list[Entry],
        message_counts: list[int],
        key_hashes: list[int] | None,
        holders: dict[Position, Holder] | None = None,
        holder: Holder | None = None,
    ) -> int:
        """Remember entries; returns by how many messages there are more (one entry may be sent twice). The consumer,
        whose these are, is written down in `holders` by the same positions: these weigh more than their places."""
        messages = self.messages
        added = 0
        for index, entry in enumerate(entries):
            position = (entry.ledger_id, entry.entry_id)
            count = message_counts[index]
            former = messages.get(position)
            messages[position] = count
            if holders is not None and holder is not None:
                holders[position] = holder
            if former is not None:
                added += count - former
                continue
            added += count
            if key_hashes is not None:
                key_hash = key_hashes[index]
                self.hashes[position] = key_hash
                self.per_hash[key_hash] = self.per_hash.get(key_hash, 0) + 1
        return added

    def remove(self, position: Position) -> int:
        """Forget an entry; returns its messages, 0 when it is not held."""
        messages = self.messages.pop(position, 0)
        if self.hashes:
            key_hash = self.hashes.pop(position, None)
            if key_hash is not None:
                left = self.per_hash[key_hash] - 1
                if left:
                    self.per_hash[key_hash] = left
                else:
                    del self.per_hash[key_hash]
        return messages

    def shrink(self, position: Position, remaining: int) -> int:
        """A batch is partly acknowledged; returns by how many messages it got smaller (0 when it is not held)."""
        former = self.messages.get(position)
        if former is None or remaining >= former:
            return 0
        self.messages[position] = remaining
        return former - remaining

    def hash_of(self, position: Position) -> int:
        """The key hash that an entry was sent under; 0 when it is not known."""
        return self.hashes.get(position, 0)

    def holds_hash(self, key_hash: int) -> bool:
        """Whether any entry of this hash is unacknowledged."""
        return key_hash in self.per_hash

    def take_all(self) -> list[tuple[Position, int]]:
        """Forget everything; returns positions in order, each with its key hash (0 = not known)."""
        hashes = self.hashes
        taken = [(position, hashes.get(position, 0)) for position in sorted(self.messages)]
        self.clear()
        return taken

    def clear(self) -> None:
        """Forget everything."""
        self.messages = {}
        self.hashes = {}
        self.per_hash = {}
