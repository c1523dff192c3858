"""What load management remembers between rounds: smoothed loads, what was moved when, what was placed where.

Everything is forgotten by time, so that nothing here grows beyond what a cluster has and one window's decisions.
"""

from __future__ import annotations

from typing import Final

from magnetar.balance.model import BrokerLoad, BundleLoad, LoadSnapshot, Unload
from magnetar.balance.settings import BalanceSettings
from magnetar.balance.view import (
    NO_LOAD,
    UNKNOWN_LOAD,
    BrokerView,
    BundleView,
    ClusterView,
    exact,
    pinned_broker,
    usage_of,
    weigh,
)
from magnetar.core.bundle import BundleName

SETTLE_TIMEOUTS: Final = 2
"""For so many unload timeouts a move or placement is taken to be on its way while reports do not show it yet: one for
the unload itself, one for reports to follow."""

_ONE_TOPIC: Final = BundleLoad(topics=1)
"""What makes somebody ask for a bundle that nobody knows."""


def seen_ms(broker: BrokerLoad, snapshot: LoadSnapshot) -> int:
    """How late the moment is that a snapshot shows of a broker."""
    return snapshot.now_ms if broker.reported_ms is None else min(broker.reported_ms, snapshot.now_ms)


class Move:
    """A bundle that was told to leave its broker."""

    __slots__ = ("bundle", "decided_ms", "destination", "done", "failed", "source")

    def __init__(self, unload: Unload, decided_ms: int) -> None:
        assert unload.destination is not None
        self.bundle = unload.bundle
        self.source = unload.source
        self.destination: str = unload.destination
        self.decided_ms = decided_ms
        self.done = False
        """A report has shown it at its destination."""
        self.failed = False


class RecentMoves:
    """The moves of one window: at most one for each bundle there was."""

    def __init__(self, window_ms: int, settle_ms: int) -> None:
        self._window_ms = window_ms
        self._settle_ms = settle_ms
        self._moves: dict[BundleName, Move] = {}

    def adopt(self, window_ms: int, settle_ms: int) -> None:
        """Other times hold, for what is remembered too."""
        self._window_ms, self._settle_ms = window_ms, settle_ms

    def add(self, unload: Unload, now_ms: int) -> None:
        """Remember a move from now on."""
        self._moves[unload.bundle] = Move(unload, now_ms)

    def failed(self, bundle: BundleName) -> None:
        """The last move of a bundle did not happen; it may be tried again once it would have been settled."""
        move = self._moves.get(bundle)
        if move is not None:
            move.failed = True

    def moved(self, bundle: BundleName, now_ms: int) -> bool:
        """Whether the bundle was moved within the window. The parts of one that was split since are new bundles: a
        split is to relieve somebody now, and there are few of them."""
        move = self._moves.get(bundle)
        if move is None:
            return False
        return now_ms - move.decided_ms < (self._settle_ms if move.failed else self._window_ms)

    def on_its_way(self, bundle: BundleName, snapshot: LoadSnapshot) -> Move | None:
        """The move of a bundle that has not been seen at its destination yet, but may still be: whoever would know has
        not reported since it should have been settled."""
        move = self._moves.get(bundle)
        if move is None or move.done or move.failed:
            return None
        witness = snapshot.brokers.get(move.source)
        if witness is None or bundle not in witness.bundles:
            witness = snapshot.brokers.get(move.destination)
        if witness is None or seen_ms(witness, snapshot) - move.decided_ms >= self._settle_ms:
            return None
        return move

    def all_on_their_way(self, snapshot: LoadSnapshot) -> list[Move]:
        """Every such move, in the order of first decisions."""
        return [move for move in self._moves.values() if self.on_its_way(move.bundle, snapshot) is not None]

    def forget(self, now_ms: int) -> None:
        """Drop what the window no longer covers."""
        self._moves = {name: move for name, move in self._moves.items() if now_ms - move.decided_ms < self._window_ms}


class _Placed:
    __slots__ = ("broker_id", "placed_ms")

    def __init__(self, broker_id: str, placed_ms: int) -> None:
        self.broker_id = broker_id
        self.placed_ms = placed_ms


class Memory:
    """Makes a view of the cluster out of a snapshot and what is remembered."""

    def __init__(self, settings: BalanceSettings) -> None:
        self._settings = settings
        self._settle_ms = SETTLE_TIMEOUTS * settings.unloading_timeout_ms
        self.moves = RecentMoves(settings.shedding_grace_ms, self._settle_ms)
        self._weights: dict[BundleName, float] = {}
        self._unseen_since: dict[BundleName, int] = {}
        self._usages: dict[str, tuple[int, float]] = {}
        """For each broker, when it was started and its smoothed usage."""
        self._placed: dict[BundleName, _Placed] = {}

    def adopt(self, settings: BalanceSettings) -> None:
        """Go on under other settings with all that is remembered."""
        self._settings = settings
        self._settle_ms = SETTLE_TIMEOUTS * settings.unloading_timeout_ms
        self.moves.adopt(settings.shedding_grace_ms, self._settle_ms)

    def round(self, snapshot: LoadSnapshot) -> ClusterView:
        """Take a snapshot into the smoothed loads, forget what is old, and see the cluster."""
        self.moves.forget(snapshot.now_ms)
        self._smooth_usages(snapshot)
        self._smooth_weights(snapshot)
        return self.view(snapshot)

    def keep_usages(self, view: ClusterView) -> None:
        """What a round's moves should have done to usages is what the next ones are smoothed with: else a broker would
        give again and again while its smoothed usage still remembers what it has given away."""
        for broker in view:
            self._usages[broker.broker_id] = (broker.load.started_ms, broker.usage)

    def place(self, bundle: BundleName, broker_id: str, now_ms: int) -> None:
        """Count a bundle at the broker that it was placed at."""
        self._placed[bundle] = _Placed(broker_id, now_ms)

    def placed(self, bundle: BundleName, snapshot: LoadSnapshot) -> str | None:
        """Where a bundle was placed lately, if that broker is alive and has not reported since it should have it."""
        placed = self._placed.get(bundle)
        broker = snapshot.brokers.get(placed.broker_id) if placed is not None else None
        if placed is None or broker is None or seen_ms(broker, snapshot) - placed.placed_ms >= self._settle_ms:
            return None
        return placed.broker_id if snapshot.now_ms - placed.placed_ms < self._settings.shedding_grace_ms else None

    def bundle_view(self, name: BundleName, snapshot: LoadSnapshot) -> BundleView:
        """A bundle that no broker reports on, at what it is known or taken to cost."""
        average = snapshot.bundle_averages.get(name)
        weights = self._settings.balanced.weights
        weight = self._weights.get(name)
        if weight is None:
            weight = weigh(average or _ONE_TOPIC, weights)
        return BundleView(name, average or NO_LOAD, average or UNKNOWN_LOAD, weight)

    def view(self, snapshot: LoadSnapshot) -> ClusterView:
        """The cluster as the balancer sees it: bundles that are moving count at their destinations."""
        brokers: dict[str, BrokerView] = {}
        places: dict[BundleName, str] = {}
        for broker_id in sorted(snapshot.brokers):
            load = snapshot.brokers[broker_id]
            known = self._usages.get(broker_id)
            raw = usage_of(load.usages, self._settings.resource_weights)
            brokers[broker_id] = BrokerView(load, known[1] if known and known[0] == load.started_ms else raw)
            for name in load.bundles:
                if pinned_broker(name) is None and self._believe(name, places, snapshot):
                    places[name] = broker_id
        self._add_travelling(snapshot, places)
        weights = self._settings.balanced.weights
        averages = snapshot.bundle_averages
        for name, broker_id in places.items():
            reported = self._reported(name, broker_id, snapshot)
            if reported is None:
                brokers[broker_id].add(self.bundle_view(name, snapshot))
                continue
            weight = self._weights.get(name)
            bundle = BundleView(
                name, reported, averages.get(name, reported), weigh(reported, weights) if weight is None else weight
            )
            brokers[broker_id].add(bundle)
        return ClusterView(snapshot, brokers)

    def _believe(self, name: BundleName, places: dict[BundleName, str], snapshot: LoadSnapshot) -> bool:
        """Two brokers may report one bundle while it moves: then it is where the move goes, else with the later id."""
        if name not in places:
            return True
        move = self.moves.on_its_way(name, snapshot)
        return move is None or places[name] != move.destination

    def _add_travelling(self, snapshot: LoadSnapshot, places: dict[BundleName, str]) -> None:
        for move in self.moves.all_on_their_way(snapshot):
            at = places.get(move.bundle)
            if at == move.destination:
                move.done = True
            elif move.destination in snapshot.brokers and at in (None, move.source):
                places[move.bundle] = move.destination
        for name in list(self._placed):
            broker_id = self.placed(name, snapshot)
            if broker_id is None or name in places:
                del self._placed[name]
            else:
                places[name] = broker_id

    def _reported(self, name: BundleName, broker_id: str, snapshot: LoadSnapshot) -> BundleLoad | None:
        load = snapshot.brokers[broker_id].bundles.get(name)
        if load is not None:
            return load
        move = self.moves.on_its_way(name, snapshot)
        source = snapshot.brokers.get(move.source) if move is not None else None
        return source.bundles.get(name) if source is not None else None

    def _smooth_usages(self, snapshot: LoadSnapshot) -> None:
        share = self._settings.usage_history_share
        usages: dict[str, tuple[int, float]] = {}
        for broker_id, load in snapshot.brokers.items():
            usage = usage_of(load.usages, self._settings.resource_weights)
            known = self._usages.get(broker_id)
            if known is not None and known[0] == load.started_ms:
                usage = share * known[1] + (1 - share) * usage
            usages[broker_id] = (load.started_ms, usage)
        self._usages = usages

    def _smooth_weights(self, snapshot: LoadSnapshot) -> None:
        share = self._settings.balanced.load_history_share
        weights = self._settings.balanced.weights
        seen: dict[BundleName, float] = {}
        for load in snapshot.brokers.values():
            for name, bundle in load.bundles.items():
                weight = weigh(bundle, weights)
                known = self._weights.get(name)
                seen[name] = weight if known is None else exact(share * known + (1 - share) * weight)
        for name, weight in self._weights.items():
            if name not in seen:
                since = self._unseen_since.setdefault(name, snapshot.now_ms)
                if snapshot.now_ms - since < self._settle_ms:
                    seen[name] = weight
        self._unseen_since = {name: since for name, since in self._unseen_since.items() if name in seen}
        for load in snapshot.brokers.values():
            for name in load.bundles:
                self._unseen_since.pop(name, None)
        self._weights = seen
