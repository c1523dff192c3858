"""What the choosers work on: entries with what dispatch has to know of each, as parallel lists.

Hot: compiled by mypyc (see CONTRIBUTING).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeAlias

if TYPE_CHECKING:
    from magnetar.broker.dispatch.consumer import Consumer
    from magnetar.core.ids import Position
    from magnetar.managed.entry import Entry
    from magnetar.wire.pulsar.enums import SubscriptionType


class EntryBatch:
    """Entries in order. `message_counts` are the messages of each that are not acknowledged yet; `key_hashes` is empty
    unless the subscription is Key_Shared; `has_chunks` tells that some entry is a part of a chunked message."""

    __slots__ = ("entries", "has_chunks", "key_hashes", "message_counts")

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.message_counts: list[int] = []
        self.key_hashes: list[int] = []
        self.has_chunks = False

    def __len__(self) -> int:
        return len(self.entries)

    def copy_one(self, source: EntryBatch, index: int) -> None:
        """Append one entry of another batch."""
        self.entries.append(source.entries[index])
        self.message_counts.append(source.message_counts[index])
        if source.key_hashes:
            self.key_hashes.append(source.key_hashes[index])

    def copy_range(self, source: EntryBatch, start: int, end: int) -> None:
        """Append the entries `start` (inclusive) to `end` (exclusive) of another batch."""
        self.entries += source.entries[start:end]
        self.message_counts += source.message_counts[start:end]
        self.key_hashes += source.key_hashes[start:end]

    def slice(self, start: int, end: int) -> EntryBatch:
        """A batch of the entries `start` (inclusive) to `end` (exclusive)."""
        part = EntryBatch()
        part.copy_range(self, start, end)
        part.has_chunks = self.has_chunks
        return part


Assignment: TypeAlias = "tuple[Consumer, EntryBatch]"


class Dispatcher(Protocol):
    """A chooser: who is connected, what waits for another try, and who gets what."""

    type: SubscriptionType
    consumers: dict[Consumer, int]
    """Each with its number in the order in which they came: thousands are found and taken out one by one."""

    @property
    def unsettled(self) -> bool:
        """Whether consumers came or went since it was last seen who owns what: that is a look at all."""
        ...

    @property
    def active(self) -> Consumer | None:
        """The consumer that alone receives; None where several do, or nobody is connected."""
        ...

    @property
    def waiting(self) -> int:
        """Entries that were read before and wait to be sent (again)."""
        ...

    def add(self, consumer: Consumer) -> None:
        """Let a consumer in. Raises PulsarError when it may not."""
        ...

    def remove(self, consumer: Consumer) -> None:
        """Take a consumer out; what it held is the caller's to hand back with `redeliver`."""
        ...

    def room(self) -> int:
        """Messages for which reading on makes sense now; 0 = wait for permits, acks or a writable connection."""
        ...

    def assign(self, batch: EntryBatch, *, replayed: bool) -> tuple[list[Assignment], EntryBatch]:
        """Choose a consumer for each entry; those without one come back in the second value, in order."""
        ...

    def keep(self, batch: EntryBatch) -> None:
        """Put entries aside that found no consumer, so that `take_replay` names them again when that makes sense."""
        ...

    def redeliver(self, items: list[tuple[Position, int]]) -> None:
        """Positions, each with its key hash (0 = not known), have to be sent again."""
        ...

    def take_replay(self, count_max: int) -> list[Position]:
        """Waiting positions that can be sent now, in order; they are in flight until `replay_finished`."""
        ...

    def replay_finished(self, *, failed: bool) -> None:
        """What `take_replay` gave was read, and `assign` follows for what is still to be sent; or it waits again."""
        ...

    def acknowledged(self, consumer: Consumer | None, position: Position, key_hash: int) -> bool:
        """An entry needs no sending any more; `consumer` held it (None = nobody). True when this frees others."""
        ...

    def wake(self) -> None:
        """Consumers may have got room: what was put aside for lack of it may be tried again."""
        ...

    def clear_waiting(self) -> None:
        """Forget what waits: the cursor is about to be read from its first unacknowledged entry."""
        ...
