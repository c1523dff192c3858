"""The snapshots that a subscription has read and not yet acknowledged. Pure.

Facts: geo-replication section 6; Pulsar `ReplicatedSubscriptionSnapshotCache`.
"""

from __future__ import annotations

from collections.abc import Callable

from magnetar.core.ids import Position
from magnetar.wire.pulsar.subscription_markers import ClusterSnapshot


class KeptSnapshots:
    """At most `kept_max` of them, spread evenly over the entries between the first and the last.

    A subscription far behind reads many snapshots before it acknowledges any. If the newest ones were kept alone, it
    would tell nobody of its progress before it reaches these; if the oldest ones, not after it has passed them."""

    __slots__ = ("_distances", "_entries_between", "_kept", "_kept_max")

    def __init__(self, kept_max: int, entries_between: Callable[[Position, Position], int]) -> None:
        """`kept_max` is 3 at least: the first, the last, and one that may go (Pulsar
        `replicatedSubscriptionsSnapshotMaxCachedPerSubscription`). `entries_between` counts entries of the topic."""
        self._kept: list[ClusterSnapshot] = []
        self._distances: list[int] = []
        """Entries between each and the one before it; 0 for the first."""
        self._kept_max = max(3, kept_max)
        self._entries_between = entries_between

    def __len__(self) -> int:
        return len(self._kept)

    def add(self, snapshot: ClusterSnapshot) -> None:
        """The subscription has read it. Where it stands before the last, the subscription was reset and begins anew."""
        if self._kept and snapshot.position <= self._kept[-1].position:
            self.clear()
        before = self._kept[-1].position if self._kept else snapshot.position
        self._distances.append(self._entries_between(before, snapshot.position) if self._kept else 0)
        self._kept.append(snapshot)
        if len(self._kept) > self._kept_max:
            self._thin_out()

    def _thin_out(self) -> None:
        """Let go of the one whose neighbours are nearest to each other; the first and the last stay."""
        distances = self._distances
        index = min(range(1, len(distances) - 1), key=lambda each: distances[each] + distances[each + 1])
        distances[index + 1] += distances[index]
        del self._kept[index], distances[index]

    def take(self, mark_delete: Position) -> ClusterSnapshot | None:
        """The newest one that is acknowledged, and with it all that stand before it are over; None when there is
        none."""
        count = 0
        while count < len(self._kept) and self._kept[count].position <= mark_delete:
            count += 1
        if not count:
            return None
        newest = self._kept[count - 1]
        del self._kept[:count], self._distances[:count]
        if self._distances:
            self._distances[0] = 0
        return newest

    def clear(self) -> None:
        """Nothing of what was read counts any more."""
        self._kept.clear()
        self._distances.clear()
