"""Load management as its driver sees it: a snapshot of the cluster goes in, decisions come out."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from magnetar.balance.model import Decision, DecisionRecord, LoadSnapshot, Placement, Unload
from magnetar.balance.settings import BalanceSettings
from magnetar.core.bundle import BundleName


class Balancer:
    """Decides for one cluster; lives as long as its owner is the leader.

    It remembers what it decided and when, smoothed loads, and how many rounds in a row something was too large. A new
    leader starts without that memory, so conditions must hold for some rounds before it acts on them.

    It takes part of the load of a bundle that it placed or moved as being there already, until a report says so or a
    move's time is up. Pass the same snapshot object until there is a newer report: what was summed up for it is kept.
    """

    def __init__(self, settings: BalanceSettings) -> None:
        self.settings = settings
        self._history: deque[DecisionRecord] = deque(maxlen=settings.history_length_max)
        self._placements: deque[DecisionRecord] = deque(maxlen=settings.history_length_max)

    def decide(self, snapshot: LoadSnapshot) -> list[Decision]:
        """One round, once a minute or so (`loadBalancerSheddingIntervalMinutes`): first what leaves draining brokers,
        then splits, then moves. Have them done in this order; one that fails is to be told by `failed`."""
        return list(self.drain(snapshot))

    def drain(self, snapshot: LoadSnapshot) -> list[Unload]:
        """Only what leaves draining brokers, a bounded number at a time, bundles on their way left out; may be called
        as often as there is a newer snapshot, and counts as no round."""
        return []

    def place(self, bundle: BundleName, snapshot: LoadSnapshot, *, non_persistent: bool = False) -> Placement:
        """Where a bundle that nobody owns should go. Asked again before a report shows the bundle, it answers the same
        broker, as long as that is alive. `non_persistent`: it is wanted for a topic of that kind."""
        for broker_id in sorted(snapshot.brokers):
            return Placement(bundle=bundle, broker_id=broker_id, reason="the first broker")
        return Placement(bundle=bundle, broker_id=None, reason="there is no broker")

    def failed(self, decision: Decision, now_ms: int) -> None:
        """The decision could not be carried out: it has no effect on loads, and may be taken again after a while."""

    def history(self) -> Sequence[DecisionRecord]:
        """Splits and moves decided, oldest first; at most `history_length_max`."""
        return tuple(self._history)

    def placements(self) -> Sequence[DecisionRecord]:
        """Placements, oldest first; at most `history_length_max`, apart from `history` because there may be many."""
        return tuple(self._placements)

    def outlook(self) -> Sequence[str]:
        """What the last round saw and why it did or did not act, in sentences for people."""
        return ()
