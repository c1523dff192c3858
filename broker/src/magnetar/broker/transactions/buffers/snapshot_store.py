"""Where transaction buffers are kept while no broker has them, as a buffer sees it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from magnetar.broker.transactions.buffers.snapshot_codec import Aborted, Snapshot
from magnetar.core.ids import Position
from magnetar.core.topic_name import TopicName


class TopicSegments(NamedTuple):
    """The segments in which a topic's aborted transactions are kept."""

    capacity: int
    """How many transactions each has."""
    last_markers: tuple[Position, ...]
    """Where the abort marker of the last transaction of each is, oldest first."""
    sealed_ms: int
    """When this broker wrote the last one, since 1970; 0: it wrote none."""


class SnapshotStore(Protocol):
    """The snapshots from which transaction buffers are restored. Each call raises a `MagnetarError` when it cannot."""

    @property
    def kind(self) -> str:
        """The kind of snapshot, as statistics name it."""
        ...

    def segments(self, topic: TopicName) -> TopicSegments | None:
        """The segments of a topic that this broker has; None where snapshots are of one message."""
        ...

    async def read(self, topic: TopicName, first_ledger_id: int = 0) -> tuple[Snapshot, list[Aborted]] | None:
        """The last snapshot of a topic, oldest marker first; None: there is none, or it was deleted.

        `first_ledger_id` is the topic's first ledger: what was aborted before need not be known any more."""
        ...

    async def write(self, snapshot: Snapshot, aborted: Sequence[Aborted]) -> None:
        """Durable on return. A topic's snapshots are written one after the other."""
        ...

    async def delete(self, topic: TopicName) -> None:
        """The topic is gone."""
        ...

    def release(self, topic: TopicName) -> None:
        """No buffer of this broker writes snapshots of this topic any more."""
        ...

    async def close(self) -> None:
        """Nothing is read or written any more."""
        ...
