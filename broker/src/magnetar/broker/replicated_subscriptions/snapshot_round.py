"""One attempt at a snapshot: who has answered, and what is to be done next. Pure.

Facts: geo-replication section 6; Pulsar `ReplicatedSubscriptionsSnapshotBuilder`.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum, auto

from magnetar.core.ids import Position
from magnetar.wire.pulsar.subscription_markers import ClusterSnapshot, SnapshotResponse


class NextStep(Enum):
    """What follows an answer."""

    WAIT = auto()
    """Others have not answered yet, or the snapshot is being stored."""
    ASK_AGAIN = auto()
    """All have answered the first question. With two remote clusters or more a second one has to follow it: what those
    exchanged with each other before their first answers is here before their second ones."""
    STORE = auto()
    """All have answered."""


class SnapshotRound:
    """`responded` takes the answers. The same id goes with both questions."""

    __slots__ = (
        "_asked_twice",
        "_missing",
        "_remotes",
        "_responses",
        "_storing",
        "covers_until",
        "snapshot_id",
        "started_ms",
    )

    def __init__(self, snapshot_id: str, remotes: Iterable[str], started_ms: int) -> None:
        """`remotes` are the clusters that the topic is replicated to; `started_ms` is of the monotonic clock."""
        self.snapshot_id = snapshot_id
        self.started_ms = started_ms
        self.covers_until: Position | None = None
        """Up to here messages of the local topic need no further snapshot once this one is stored: where the first
        question stands, or earlier. What stands behind it may stand behind the others' answers, too. None: nothing."""
        self._remotes = frozenset(remotes)
        self._missing = set(self._remotes)
        self._responses: dict[str, Position] = {}
        self._asked_twice = len(self._remotes) < 2
        self._storing = False

    def responded(self, response: SnapshotResponse) -> NextStep:
        """A cluster has answered. Its first answer counts: what it has after that may not be here yet."""
        if response.cluster not in self._remotes or self._storing:
            return NextStep.WAIT
        self._responses.setdefault(response.cluster, response.position)
        self._missing.discard(response.cluster)
        if self._missing:
            return NextStep.WAIT
        if not self._asked_twice:
            self._asked_twice = True
            self._missing = set(self._remotes)
            return NextStep.ASK_AGAIN
        self._storing = True
        return NextStep.STORE

    def snapshot(self, last_response: Position) -> ClusterSnapshot:
        """What is to be stored; `last_response` is where the last answer stands in the local topic."""
        return ClusterSnapshot(self.snapshot_id, last_response, dict(self._responses))

    def not_stored(self) -> None:
        """It could not be: an answer that comes again has it tried again."""
        self._storing = False
