"""One round of decisions: what strategies may look at, and moves made on paper as they are decided."""

from __future__ import annotations

from magnetar.balance.filters import Candidates
from magnetar.balance.memory import RecentMoves
from magnetar.balance.model import Unload
from magnetar.balance.placement import Placer
from magnetar.balance.settings import BalanceSettings
from magnetar.balance.split import SplitWatch
from magnetar.balance.view import BrokerView, BundleView, ClusterView


class Round:
    """A view of the cluster that changes with each decision, so that the next one reckons with it."""

    def __init__(
        self, view: ClusterView, settings: BalanceSettings, moves: RecentMoves, splits: SplitWatch, placer: Placer
    ) -> None:
        self.view = view
        self.settings = settings
        self.splits = splits
        self.candidates = Candidates(view, settings)
        self.unloads: list[Unload] = []
        self.notes: list[str] = []
        """What was seen and why nothing was done about it, for people."""
        self._moves = moves
        self._placer = placer

    @property
    def now_ms(self) -> int:
        """The snapshot's time."""
        return self.view.snapshot.now_ms

    def movable(self, broker: BrokerView) -> list[BundleView]:
        """The bundles of a broker that were not moved within the window and are not being split, heaviest first."""
        found = [
            bundle
            for bundle in broker.bundles.values()
            if not self._moves.moved(bundle.name, self.now_ms) and not self.splits.being_split(bundle.name, self.now_ms)
        ]
        return sorted(found, key=lambda bundle: (-bundle.weight, bundle.name.range, bundle.namespace))

    def move(self, bundle: BundleView, source: BrokerView, destination: BrokerView, reason: str) -> None:
        """Decide a move."""
        self._decide(
            Unload(bundle=bundle.name, source=source.broker_id, destination=destination.broker_id, reason=reason)
        )

    def send_away(self, bundle: BundleView, source: BrokerView, reason: str) -> bool:
        """Decide a move to wherever placement would put the bundle; not if that is where it is."""
        others = self.candidates.for_move(bundle.name, source)
        if not others:
            self.notes.append(f"{bundle.name} stays at {source.broker_id}, no other broker may take it; {reason}")
            return False
        brokers = sorted([*others, source], key=lambda broker: broker.broker_id)
        chosen, why = self._placer.choose(bundle.name, brokers)
        if chosen is source:
            self.notes.append(f"{bundle.name} stays at {source.broker_id}, the best place for it ({why}); {reason}")
            return False
        self.move(bundle, source, chosen, f"{reason}; to {chosen.broker_id}, {why}")
        return True

    def drain(self, source: BrokerView, moves_max: int) -> None:
        """Decide moves of everything that a stopping broker serves, heaviest first, up to a number of moves."""
        ordered = sorted(
            source.bundles.values(), key=lambda bundle: (-bundle.weight, bundle.name.range, bundle.namespace)
        )
        for done, bundle in enumerate(ordered[:moves_max]):
            found, notes = self.candidates.for_drain(bundle.name, source)
            if not found:
                self.notes.append(f"{bundle.name} cannot leave {source.broker_id}, no other broker may take it")
                continue
            chosen, why = self._placer.choose(bundle.name, found)
            reason = f"{source.broker_id} is draining, {len(ordered) - done} bundles left; {', '.join([*notes, why])}"
            self.move(bundle, source, chosen, reason)

    def _decide(self, unload: Unload) -> None:
        assert unload.destination is not None
        self.view.move(unload.bundle, unload.source, unload.destination)
        self._moves.add(unload, self.now_ms)
        self.unloads.append(unload)
