"""Where transaction buffers are kept while no broker has them, as a buffer sees it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from magnetar.broker.transactions.buffers.snapshot_codec import Aborted, Snapshot
from magnetar.core.topic_name import TopicName


class SnapshotStore(Protocol):
    """The snapshots from which transaction buffers are restored. Each call raises a `MagnetarError` when it cannot."""

    @property
    def kind(self) -> str:
        """The kind of snapshot, as statistics name it."""
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
