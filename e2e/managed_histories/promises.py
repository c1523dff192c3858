"""What clients were promised, and whether a view of the topic keeps it.

For each subscription two sets are kept: what must be acknowledged, as a receipt said so, and what may be, as somebody
asked for it. A write without an answer widens what is possible: it takes from the one and adds to the other.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Final

from magnetar.core.ids import Position

BATCH_SIZE: Final = 8
WHOLE_BATCH: Final = (1 << BATCH_SIZE) - 1
"""Every entry is taken for a batch of so many messages: bit 1 = not acknowledged."""

Message = tuple[str, int]
"""(producer, sequence id)."""


@dataclass(slots=True)
class CursorView:
    """A cursor as an owner has it."""

    acknowledged: frozenset[Position]
    partial: dict[Position, int]
    """What is left of batches."""
    properties: dict[str, str]


@dataclass(slots=True)
class TopicView:
    """A topic as a fresh owner finds it."""

    entries: dict[Position, Message]
    cursors: dict[str, CursorView]
    snapshot: dict[str, int] = field(default_factory=dict)
    """The sequence ids that deduplication begins with, by producer."""


@dataclass(slots=True)
class SubscriptionPromises:
    """Of one subscription."""

    exists: bool | None = False
    """None: nobody knows."""
    sure: frozenset[Position] = frozenset()
    possible: frozenset[Position] = frozenset()
    sure_parts: dict[Position, int] = field(default_factory=dict)
    """At most this is left of a batch."""
    possible_parts: dict[Position, int] = field(default_factory=dict)
    """At least this is left of a batch."""
    properties: list[dict[str, str]] = field(default_factory=list)
    """What the properties may be; empty: anything."""
    epoch: int = 0
    """Counts what makes receipts that were asked for before worthless: resets and deletions."""
    trusted_from: int = 0
    """The number of the first owner whose receipts count. After a reset, also one without an answer, all others of that
    moment take for stored what is not any more, and give receipts without writing when nothing changes in their memory,
    as in Pulsar."""
    busy: bool = False
    """Such a change is under way: nobody acknowledges meanwhile."""

    def copy(self) -> SubscriptionPromises:
        """As they are now."""
        return replace(
            self,
            sure_parts=dict(self.sure_parts),
            possible_parts=dict(self.possible_parts),
            properties=list(self.properties),
        )

    def requested(self, positions: list[Position]) -> None:
        """Somebody asked for these to be acknowledged."""
        self.possible = self.possible.union(positions)

    def part_requested(self, position: Position, remaining: int) -> None:
        """Somebody asked for a part of a batch to be acknowledged."""
        left = self.possible_parts.get(position, WHOLE_BATCH) & remaining
        self.possible_parts[position] = left
        if not left:
            self.requested([position])

    def receipt(self, view: CursorView) -> None:
        """All of this is durable, somebody was told."""
        self.sure |= view.acknowledged
        self.possible |= view.acknowledged
        for position, left in view.partial.items():
            self.sure_parts[position] = self.sure_parts.get(position, WHOLE_BATCH) & left

    def set_begun(self, acknowledged: frozenset[Position]) -> None:
        """A reset to this, of which nobody knows yet whether it happens."""
        self.epoch += 1
        self.sure &= acknowledged
        self.possible |= acknowledged
        self.sure_parts = {}

    def set_done(self, acknowledged: frozenset[Position]) -> None:
        """This and nothing else is acknowledged, somebody was told."""
        self.exists = True
        self.sure = self.possible = acknowledged
        self.sure_parts = {}
        self.possible_parts = {}


@dataclass(slots=True)
class Promises:
    """Of the whole topic."""

    trim: bool
    deduplication: bool
    published: dict[Position, Message] = field(default_factory=dict)
    stored: set[Message] = field(default_factory=set)
    """Of these a producer was told that they are stored, wherever that is."""
    subscriptions: dict[str, SubscriptionPromises] = field(default_factory=dict)
    released: set[Position] = field(default_factory=set)
    """Entries that nobody could want at some time: they may have been deleted then."""

    def release(self) -> None:
        """Call this before what may be acknowledged becomes less."""
        if self.trim:
            self.released.update(each for each in self.published if self._wanted_by_nobody(each))

    def copy(self) -> Promises:
        """As they are now."""
        return Promises(
            self.trim,
            self.deduplication,
            dict(self.published),
            set(self.stored),
            {name: one.copy() for name, one in self.subscriptions.items()},
            set(self.released),
        )

    def broken_by(self, view: TopicView) -> list[str]:
        """What is promised and not so."""
        broken = self._entries_broken_by(view)
        for name, promised in self.subscriptions.items():
            if not promised.busy:
                broken += [f"subscription {name}: {text}" for text in self._cursor_broken_by(promised, view, name)]
        return broken

    def _entries_broken_by(self, view: TopicView) -> list[str]:
        broken = []
        for position, message in self.published.items():
            found = view.entries.get(position)
            if found is None and not (self.trim and (position in self.released or self._wanted_by_nobody(position))):
                broken.append(f"the confirmed entry {position}, {message}, is gone")
            elif found is not None and found != message:
                broken.append(f"the confirmed entry {position} is {found} instead of {message}")
        if not self.deduplication:
            return broken
        counts = Counter(view.entries.values())
        broken += [f"{message} is stored {count} times" for message, count in counts.items() if count > 1]
        if not self.trim:
            broken += [f"{message} was dropped, and is not stored" for message in sorted(self.stored - set(counts))]
        if not self.trim:
            broken += [
                f"the deduplication snapshot holds {message}, which is not stored"
                for message in sorted(set(view.snapshot.items()) - self.stored - set(counts))
            ]
        last: dict[str, int] = {}
        for _, (producer, sequence_id) in sorted(view.entries.items()):
            if sequence_id < last.get(producer, -1):
                broken.append(f"{producer}:{sequence_id} comes after {last[producer]}")
            last[producer] = sequence_id
        return broken

    def _wanted_by_nobody(self, position: Position) -> bool:
        return all(
            one.exists is not True or one.busy or position in one.possible for one in self.subscriptions.values()
        )

    def _cursor_broken_by(self, promised: SubscriptionPromises, view: TopicView, name: str) -> list[str]:
        cursor = view.cursors.get(name)
        if cursor is None:
            return ["it is gone"] if promised.exists is True else []
        if promised.exists is False:
            return ["it was deleted, and is there"]
        if promised.exists is None:
            return []
        return promises_broken_by(promised, cursor, view.entries)


def promises_broken_by(
    promised: SubscriptionPromises, cursor: CursorView, entries: dict[Position, Message]
) -> list[str]:
    """What a cursor, over these entries, has forgotten, and what it takes for acknowledged that nobody acknowledged."""
    broken = []
    forgotten = sorted(each for each in promised.sure - cursor.acknowledged if each in entries)
    if forgotten:
        broken.append(f"forgets the acknowledgements of {forgotten}")
    invented = sorted(each for each in cursor.acknowledged - promised.possible if each in entries)
    if invented:
        broken.append(f"has acknowledged {invented}, which nobody did")
    for position, left in promised.sure_parts.items():
        if position in entries and position not in cursor.acknowledged:
            now = cursor.partial.get(position, WHOLE_BATCH)
            if now & ~left:
                broken.append(f"forgets acknowledgements in the batch {position}: {now:b} is left instead of {left:b}")
    for position, now in cursor.partial.items():
        if promised.possible_parts.get(position, WHOLE_BATCH) & ~now:
            broken.append(f"has acknowledged more of the batch {position} than anybody did: {now:b} is left")
    if promised.properties and cursor.properties not in promised.properties:
        broken.append(f"has the properties {cursor.properties} instead of one of {promised.properties}")
    return broken
