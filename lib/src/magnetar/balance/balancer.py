"""Load management as its driver sees it: a snapshot of the cluster goes in, decisions come out."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from magnetar.balance.avg_shedding import AvgShedder
from magnetar.balance.balanced import BalancedShedder
from magnetar.balance.filters import Candidates
from magnetar.balance.memory import Memory
from magnetar.balance.model import Decision, DecisionRecord, LoadSnapshot, Placement, Split, Unload
from magnetar.balance.placement import placer_of
from magnetar.balance.rounds import Round
from magnetar.balance.settings import BalanceSettings, SheddingStrategy
from magnetar.balance.shedding import OverloadShedder, Shedder, ThresholdShedder, UniformLoadShedder
from magnetar.balance.split import SplitWatch
from magnetar.balance.view import ClusterView, pinned_broker
from magnetar.core.bundle import BundleName


def shedder_of(settings: BalanceSettings) -> Shedder:
    """The strategy that the settings name."""
    if settings.shedding_strategy is SheddingStrategy.THRESHOLD:
        return ThresholdShedder()
    if settings.shedding_strategy is SheddingStrategy.OVERLOAD:
        return OverloadShedder()
    if settings.shedding_strategy is SheddingStrategy.UNIFORM:
        return UniformLoadShedder()
    if settings.shedding_strategy is SheddingStrategy.AVG:
        return AvgShedder()
    return BalancedShedder(settings.balanced)


class Balancer:
    """Decides for one cluster; lives as long as its owner is the leader.

    It remembers what it decided and when, smoothed loads, and how many rounds in a row something was too large. A new
    leader starts without that memory, so conditions must hold for some rounds before it acts on them.

    It takes part of the load of a bundle that it placed or moved as being there already, until a report says so or a
    move's time is up. Pass the same snapshot object until there is a newer report: what was summed up for it is kept.
    """

    def __init__(self, settings: BalanceSettings) -> None:
        self._settings = settings
        self._memory = Memory(settings)
        self._splits = SplitWatch(settings, self._memory.moves)
        self._shedder = shedder_of(settings)
        self._placer = placer_of(settings)
        self._history: deque[DecisionRecord] = deque(maxlen=settings.history_length_max)
        self._placements: deque[DecisionRecord] = deque(maxlen=settings.history_length_max)
        self._outlook: tuple[str, ...] = ()
        self._view: ClusterView | None = None
        self._candidates: Candidates | None = None

    @property
    def settings(self) -> BalanceSettings:
        """What it goes by. New ones that are set here count at once; what is remembered stays, but for what another
        strategy of shedding would have to know."""
        return self._settings

    @settings.setter
    def settings(self, settings: BalanceSettings) -> None:
        before, self._settings = self._settings, settings
        if settings == before:
            return
        self._splits.adopt(settings)
        self._memory.adopt(settings)
        if settings.shedding_strategy is not before.shedding_strategy:
            self._shedder = shedder_of(settings)
        elif isinstance(self._shedder, BalancedShedder):
            self._shedder.adopt(settings.balanced)
        self._placer = placer_of(settings)
        self._view = None

    def decide(self, snapshot: LoadSnapshot) -> list[Decision]:
        """One round, once a minute or so (`loadBalancerSheddingIntervalMinutes`): first what leaves draining brokers,
        then splits, then moves. Have them done in this order; one that fails is to be told by `failed`. While a
        draining broker is being emptied nothing moves for balance."""
        view = self._memory.round(snapshot)
        deciding = Round(view, self.settings, self._memory.moves, self._splits, self._placer)
        summary = _summary(view)
        self._splits.begin(view)
        self._drain(deciding)
        splits: list[Split] = self._splits.too_large(view)
        if self.settings.shedding_enabled and not deciding.unloads and len(view.brokers) > 1:
            splits += self._shedder.shed(deciding)
        drains = [unload for unload in deciding.unloads if snapshot.brokers[unload.source].draining]
        moves = [unload for unload in deciding.unloads if not snapshot.brokers[unload.source].draining]
        decisions: list[Decision] = [*drains, *splits, *moves]
        self._memory.keep_usages(view)
        self._record(snapshot, decisions)
        counts = (
            f"decided {len(drains)} moves off draining brokers, {len(splits)} splits, {len(moves)} moves for balance"
        )
        self._outlook = (summary, counts, *deciding.notes, *self._splits.refusals)
        self._keep(view)
        return decisions

    def drain(self, snapshot: LoadSnapshot) -> list[Unload]:
        """Only what leaves draining brokers, a bounded number at a time, bundles on their way left out; may be called
        as often as there is a newer snapshot, and counts as no round."""
        if not any(broker.draining for broker in snapshot.brokers.values()):
            return []
        deciding = Round(self._memory.view(snapshot), self.settings, self._memory.moves, self._splits, self._placer)
        self._drain(deciding)
        self._record(snapshot, deciding.unloads)
        self._keep(deciding.view)
        return deciding.unloads

    def place(self, bundle: BundleName, snapshot: LoadSnapshot, *, non_persistent: bool = False) -> Placement:
        """Where a bundle that nobody owns should go. Asked again before a report shows the bundle, it answers the same
        broker, as long as that is alive and not draining. `non_persistent`: it is wanted for a topic of that kind."""
        if self._view is None or self._view.snapshot is not snapshot:
            self._keep(self._memory.view(snapshot))
        view, candidates = self._view, self._candidates
        assert view is not None
        assert candidates is not None
        expected = self._expected(bundle, snapshot)
        if expected is not None:
            return expected
        found, notes = candidates.for_new(bundle, non_persistent=non_persistent)
        if not found:
            reason = f"none of {len(snapshot.brokers)} brokers may take it"
            return self._placed(snapshot, Placement(bundle=bundle, broker_id=None, reason=reason))
        chosen, why = self._placer.choose(bundle, found)
        if chosen.usage > self.settings.overloaded_percent and pinned_broker(bundle) is None:
            # Preferences have left overloaded brokers alone: there may be better ones among all that may take it.
            allowed = candidates.allowed(
                str(bundle.namespace), persistent=not non_persistent, non_persistent=non_persistent
            )
            chosen, why = self._placer.choose(bundle, [view.brokers[broker_id] for broker_id in allowed])
            notes = []
        if pinned_broker(bundle) is None:
            self._memory.place(bundle, chosen.broker_id, snapshot.now_ms)
            if view.owner(bundle) is None:
                chosen.add(self._memory.bundle_view(bundle, snapshot))
        reason = ", ".join([*notes, why])
        return self._placed(snapshot, Placement(bundle=bundle, broker_id=chosen.broker_id, reason=reason))

    def failed(self, decision: Decision) -> None:
        """The decision could not be carried out: it has no effect on loads, and may be taken again after a while."""
        if isinstance(decision, Unload):
            self._memory.moves.failed(decision.bundle)
        else:
            self._splits.failed(decision.bundle)
        self._view = None

    def history(self) -> Sequence[DecisionRecord]:
        """Splits and moves decided, oldest first; at most `history_length_max`."""
        return tuple(self._history)

    def placements(self) -> Sequence[DecisionRecord]:
        """Placements, oldest first; at most `history_length_max`, apart from `history` because there may be many."""
        return tuple(self._placements)

    def outlook(self) -> Sequence[str]:
        """What the last round saw and why it did or did not act, in sentences for people."""
        return self._outlook

    def _drain(self, deciding: Round) -> None:
        for broker in deciding.view:
            room = self.settings.drain_moves_per_round_max - len(deciding.unloads)
            if broker.load.draining and room > 0:
                deciding.drain(broker, room)

    def _expected(self, bundle: BundleName, snapshot: LoadSnapshot) -> Placement | None:
        """Where the bundle is already meant to go."""
        move = self._memory.moves.on_its_way(bundle, snapshot)
        for broker_id, reason in (
            (move.destination if move is not None else None, "it is being moved there"),
            (self._memory.placed(bundle, snapshot), "it was placed there a moment ago"),
        ):
            broker = snapshot.brokers.get(broker_id) if broker_id is not None else None
            if broker is not None and not broker.draining:
                return Placement(bundle=bundle, broker_id=broker_id, reason=reason)
        return None

    def _keep(self, view: ClusterView) -> None:
        self._view = view
        self._candidates = Candidates(view, self.settings)

    def _record(self, snapshot: LoadSnapshot, decisions: Sequence[Decision]) -> None:
        for decision in decisions:
            self._history.append(DecisionRecord(decided_ms=snapshot.now_ms, decision=decision))

    def _placed(self, snapshot: LoadSnapshot, placement: Placement) -> Placement:
        self._placements.append(DecisionRecord(decided_ms=snapshot.now_ms, decision=placement))
        return placement


def _summary(view: ClusterView) -> str:
    weights = [broker.weight for broker in view]
    if not weights:
        return "no broker is alive"
    average = sum(weights) / len(weights)
    bundles = sum(len(broker.bundles) for broker in view)
    spread = f"{min(weights):.0f} to {max(weights):.0f}, average {average:.0f}"
    usages = f"{min(broker.usage for broker in view):.0f} to {max(broker.usage for broker in view):.0f} %"
    return f"{len(weights)} brokers, {bundles} bundles; loads {spread}; usages {usages}"
