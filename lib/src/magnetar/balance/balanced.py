"""`BalancedShedder`, the default: brokers end up with about the same load, whether there is traffic or not.

Pulsar's `ThresholdShedder` moves throughput alone and nothing below 10 MB/s, so that with little traffic 12/2/1/1
bundles stay 12/2/1/1 and a new broker stays empty. Here a bundle's load is one number (`LoadWeights`) in which the
bundle itself, its topics and its sessions count beside messages and bytes: where traffic is negligible counts are
balanced, where it is not it dominates, and nothing switches between the two.

What is promised, for brokers that may take each other's bundles, loads that do not change, and no bundle in its window:

* It acts on a broker that for `hits` (3) rounds in a row had more than `trigger_ratio` (1.25) times the load of another
  and a bundle that helps. Then it moves up to `moves_per_round_max` bundles a round (10, or one in 50 of all) until no
  two brokers differ by more than `settle_ratio` (1.1).
* A bundle moves only where the gap between two brokers is 1.5 times its load or more. So each move lessens the sum of
  squares of the loads, there are finitely many, and no bundle can go back and forth: the only bundle of a broker never
  moves for balance. When it comes to rest, any two brokers differ by less than 1.5 times the fullest one's lightest
  bundle, or by less than `trigger_ratio`.
* Where bundles are too heavy for that and brokers differ by `SPLIT_RATIO`, the heaviest is to be split: one a round, if
  it has at least half of a broker's average load, carries `SPLIT_LOAD_MIN` or more, and nothing that `SplitWatch` looks
  at forbids it.
* A broker whose smoothed usage was above `overloaded_percent` for as many rounds gives bundles to those with the lowest
  usage, whatever its load. No bundle goes where it would bring the usage above that less `CALM_MARGIN_PERCENT`, unless
  the fuller of the two is relieved; so the two rules do not work against each other.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from magnetar.balance.model import Split
from magnetar.balance.rounds import Round
from magnetar.balance.settings import TOPIC_COUNT_EQUALLY, BalancedSettings
from magnetar.balance.shedding import MARGIN_PERCENT
from magnetar.balance.view import BrokerView, BundleView, arriving_usage

GAP_MIN: Final = 1.5
"""A bundle moves between brokers whose loads differ by so many times its own. With 1 or less a move would only swap
their roles; what is above 1 is distance from that for noise."""

MOVES_PER_ROUND: Final = 10
BUNDLES_PER_MOVE: Final = 50
"""Unless the settings say otherwise: few enough for clients not to notice, enough to be done within an hour."""

SPLIT_LOAD_MIN: Final = 1_000.0
"""Messages per second (or what weighs as much) below which a bundle is not worth two."""

SPLIT_RATIO: Final = 1.5
"""Between brokers that differ less a heavy bundle is left whole: nothing puts bundles together again, so that noise
must not split any."""

HEAVY_SHARE: Final = 0.5
"""A bundle with more than this share of a broker's average load is too heavy to be balanced."""

CALM_MARGIN_PERCENT: Final = 10
"""How far below the overload threshold a broker must stay that takes a bundle."""


class BalancedShedder:
    """Remembers how many rounds in a row each broker was too loaded, and which it is relieving."""

    def __init__(self, settings: BalancedSettings) -> None:
        self._settings = settings
        self._skewed: dict[str, int] = {}
        self._overloaded: dict[str, int] = {}
        self._stuck: dict[str, int] = {}
        self._relieving: dict[str, None] = {}
        """Brokers that moves go on for until they have settled, in order."""

    def adopt(self, settings: BalancedSettings) -> None:
        """Go on under other settings with all that is remembered."""
        self._settings = settings

    def shed(self, deciding: Round) -> list[Split]:
        """Decide moves by the round's methods, and answer bundles that would have to be split first."""
        self._relieve_overloaded(deciding)
        self._find_skewed(deciding)
        self._settle(deciding)
        return self._split_heaviest(deciding)

    def _room(self, deciding: Round) -> int:
        moves_max = self._settings.moves_per_round_max
        if moves_max <= 0:
            bundles = sum(len(broker.bundles) for broker in deciding.view)
            moves_max = max(MOVES_PER_ROUND, bundles // BUNDLES_PER_MOVE)
        return moves_max - len(deciding.unloads)

    def _find_skewed(self, deciding: Round) -> None:
        skewed: dict[str, int] = {}
        for broker in deciding.view:
            if self._best_move(deciding, broker, self._settings.trigger_ratio) is not None:
                skewed[broker.broker_id] = self._skewed.get(broker.broker_id, 0) + 1
                if skewed[broker.broker_id] >= self._settings.hits:
                    self._relieving[broker.broker_id] = None
        self._skewed = skewed

    def _settle(self, deciding: Round) -> None:
        while self._relieving and self._room(deciding) > 0:
            brokers = [deciding.view.brokers[name] for name in self._relieving if name in deciding.view.brokers]
            brokers.sort(key=lambda broker: (-broker.weight, broker.broker_id))
            for source in brokers:
                found = self._best_move(deciding, source, self._settings.settle_ratio)
                if found is None:
                    continue
                bundle, destination = found
                reason = (
                    f"load {source.weight:.0f} is more than {self._settings.trigger_ratio:g} times another's in "
                    f"{self._settings.hits} rounds; {bundle.weight:.0f} of it to {destination.broker_id} with "
                    f"{destination.weight:.0f}"
                )
                deciding.move(bundle, source, destination, f"{source.broker_id}: {reason}")
                break
            else:
                self._relieving.clear()

    def _best_move(self, deciding: Round, source: BrokerView, ratio: float) -> tuple[BundleView, BrokerView] | None:
        """The bundle and destination that bring a broker closest to the least loaded one it can give to."""
        if source.load.draining:
            return None
        movable: list[BundleView] | None = None
        for destination in _by_weight(deciding):
            gap = source.weight - destination.weight
            if gap <= 0 or source.weight <= ratio * destination.weight:
                return None
            if movable is None:
                movable = deciding.movable(source)
            fitting = [bundle for bundle in movable if GAP_MIN * bundle.weight <= gap]
            fitting.sort(key=partial(_distance, gap / 2))
            for bundle in fitting:
                if deciding.candidates.may_move(bundle.name, source, destination) and self._calm_enough(
                    deciding, bundle, source, destination
                ):
                    return bundle, destination
        return None

    def _calm_enough(self, deciding: Round, bundle: BundleView, source: BrokerView, destination: BrokerView) -> bool:
        """Whether the bundle would not make its destination the next overloaded broker."""
        usage = destination.usage + arriving_usage(bundle, source, destination)
        return usage <= max(deciding.settings.overloaded_percent - CALM_MARGIN_PERCENT, source.usage)

    def _relieve_overloaded(self, deciding: Round) -> None:
        limit = deciding.settings.overloaded_percent
        overloaded: dict[str, int] = {}
        for broker in deciding.view:
            if broker.usage > limit and not broker.load.draining:
                overloaded[broker.broker_id] = self._overloaded.get(broker.broker_id, 0) + 1
        self._overloaded = overloaded
        for broker_id, hits in overloaded.items():
            source = deciding.view.brokers[broker_id]
            before = source.usage
            moved = 0
            while hits >= self._settings.hits and source.usage > limit - MARGIN_PERCENT and self._room(deciding) > 0:
                found = self._best_relief(deciding, source)
                if found is None:
                    break
                bundle, destination = found
                reason = (
                    f"{broker_id}: usage {before:.0f} % is above {limit:.0f} % in {hits} rounds; about "
                    f"{source.usage_share(bundle.weight):.0f} % of it to {destination.broker_id} with "
                    f"{destination.usage:.0f} %"
                )
                deciding.move(bundle, source, destination, reason)
                moved += 1
            if not moved:
                deciding.notes.append(f"{broker_id}: usage {before:.0f} % is above {limit:.0f} %, nothing moved yet")

    def _best_relief(self, deciding: Round, source: BrokerView) -> tuple[BundleView, BrokerView] | None:
        """What takes the most off an overloaded broker, up to what it has too much, and makes nobody else too full."""
        limit = deciding.settings.overloaded_percent
        wanted = source.usage - (limit - MARGIN_PERCENT)
        movable = deciding.movable(source)
        movable.sort(key=lambda bundle: abs(source.usage_share(bundle.weight) - wanted))
        for destination in sorted(deciding.view, key=lambda broker: (broker.usage, broker.broker_id)):
            for bundle in movable:
                after = destination.usage + arriving_usage(bundle, source, destination)
                if after <= limit - CALM_MARGIN_PERCENT and deciding.candidates.may_move(
                    bundle.name, source, destination
                ):
                    return bundle, destination
        return None

    def _split_heaviest(self, deciding: Round) -> list[Split]:
        """One split of a bundle that stands in the way of balance; the next round sees what came of it."""
        serving = [broker for broker in deciding.view if not broker.load.draining]
        average = sum(broker.weight for broker in serving) / len(serving) if serving else 0.0
        stuck: dict[str, int] = {}
        due: list[tuple[float, str, BundleView, str]] = []
        for source in serving:
            found = self._too_heavy(deciding, source, average)
            if found is not None:
                bundle, why = found
                hits = stuck[source.broker_id] = self._stuck.get(source.broker_id, 0) + 1
                if hits >= self._settings.hits:
                    due.append((-bundle.weight, source.broker_id, bundle, f"{why} in {hits} rounds"))
        self._stuck = stuck
        due.sort(key=lambda entry: entry[:2])
        for _, broker_id, bundle, reason in due:
            split = deciding.splits.request(deciding.view, bundle, broker_id, TOPIC_COUNT_EQUALLY, reason)
            if split is not None:
                del stuck[broker_id]
                return [split]
        return []

    def _too_heavy(self, deciding: Round, source: BrokerView, average: float) -> tuple[BundleView, str] | None:
        heaviest = max(source.bundles.values(), key=lambda bundle: bundle.weight, default=None)
        if heaviest is None or heaviest.weight < max(SPLIT_LOAD_MIN, HEAVY_SHARE * average):
            return None
        if self._best_move(deciding, source, self._settings.trigger_ratio) is not None:
            return None
        for destination in _by_weight(deciding):
            gap = source.weight - destination.weight
            if source.weight <= SPLIT_RATIO * destination.weight:
                return None
            if GAP_MIN * heaviest.weight > gap and deciding.candidates.may_move(heaviest.name, source, destination):
                return heaviest, (
                    f"{source.broker_id} has load {source.weight:.0f}, {destination.broker_id} has "
                    f"{destination.weight:.0f}, and nothing that may move evens that out; its heaviest bundle has "
                    f"{heaviest.weight:.0f}"
                )
        return None


def _distance(wanted: float, bundle: BundleView) -> float:
    return abs(bundle.weight - wanted)


def _by_weight(deciding: Round) -> list[BrokerView]:
    return sorted(deciding.view, key=lambda broker: (broker.weight, broker.broker_id))
