"""A cluster on paper: brokers, bundles and topics that do what a balancer decides, for tests and experiments.

One round is a minute. Reports show what was true at the end of the round before, so a decision is always made on loads
that are a minute old, and its effect is seen a round later.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from magnetar.balance.balancer import Balancer
from magnetar.balance.model import BrokerLoad, BundleLoad, LoadSnapshot, ResourceUsages, Split, Unload
from magnetar.balance.settings import MINUTE_MS, BalanceSettings
from magnetar.balance.split_algorithms import SplitRequest, TopicLoad, split_boundaries
from magnetar.balance.view import weigh
from magnetar.core.bundle import BundleName, BundleRange
from magnetar.core.topic_name import FULL_RANGE, NamespaceName


def even_bundles(count: int, namespace: str = "public/default") -> list[BundleName]:
    """A namespace's bundles, as it is cut when it is made."""
    step = 2**32 // count
    edges = [*(step * index for index in range(count)), FULL_RANGE]
    name = NamespaceName.parse(namespace)
    return [BundleName(name, BundleRange(low, high)) for low, high in itertools.pairwise(edges)]


class SimulatedTopic(NamedTuple):
    """A topic and its load without noise."""

    position: int
    msg_rate: float = 0.0
    msg_throughput: float = 0.0
    sessions: int = 0


@dataclass(slots=True)
class SimulatedBroker:
    """A broker; `msg_rate_max` is what makes its CPU full."""

    broker_id: str
    started_ms: int = 0
    draining: bool = False
    msg_rate_max: float = 1_000_000.0
    bundles: dict[BundleName, list[SimulatedTopic]] = field(default_factory=dict)


class DoneMove(NamedTuple):
    """A move that was carried out."""

    at_ms: int
    unload: Unload
    for_drain: bool


def no_noise(bundle: BundleName) -> float:
    """Every report says exactly what is."""
    return 1.0


class SimulatedCluster:
    """Brokers under one balancer. `noise` is what a bundle's reported rates are multiplied by, asked in each round."""

    def __init__(self, settings: BalanceSettings, noise: Callable[[BundleName], float] = no_noise) -> None:
        self.settings = settings
        self.balancer = Balancer(settings)
        self.brokers: dict[str, SimulatedBroker] = {}
        self.now_ms = 1_000_000_000
        self.moves: list[DoneMove] = []
        self.splits: list[Split] = []
        self._noise = noise

    def add_broker(self, number: int, bundles: Iterable[BundleName] = (), **facts: float) -> SimulatedBroker:
        """A broker `broker-<number>`, started now, with empty bundles."""
        broker = SimulatedBroker(f"broker-{number}:8080", self.now_ms, bundles={name: [] for name in bundles})
        for name, value in facts.items():
            setattr(broker, name, value)
        self.brokers[broker.broker_id] = broker
        return broker

    def kill(self, broker_id: str) -> None:
        """A broker dies; clients look its bundles up at once."""
        orphans = self.brokers.pop(broker_id).bundles
        snapshot = self.snapshot()
        for name, topics in orphans.items():
            placement = self.balancer.place(name, snapshot)
            assert placement.broker_id is not None, placement.reason
            self.brokers[placement.broker_id].bundles[name] = topics

    def snapshot(self) -> LoadSnapshot:
        """What reports say now."""
        counts: dict[str, int] = {}
        brokers: dict[str, BrokerLoad] = {}
        for broker in self.brokers.values():
            loads: dict[BundleName, BundleLoad] = {}
            for name, topics in broker.bundles.items():
                loads[name] = _load(topics, self._noise(name))
                counts[str(name.namespace)] = counts.get(str(name.namespace), 0) + 1
            rate = sum(load.msg_rate for load in loads.values())
            brokers[broker.broker_id] = BrokerLoad(
                broker_id=broker.broker_id,
                started_ms=broker.started_ms,
                usages=ResourceUsages(cpu=min(100.0, 100 * rate / broker.msg_rate_max)),
                bundles=loads,
                draining=broker.draining,
            )
        return LoadSnapshot(now_ms=self.now_ms, brokers=brokers, bundle_counts=counts)

    def round(self) -> int:
        """A minute passes and the balancer decides; answers how many moves and splits were carried out."""
        snapshot = self.snapshot()
        self.now_ms += MINUTE_MS
        decisions = self.balancer.decide(snapshot)
        for decision in decisions:
            if isinstance(decision, Split):
                self._split(decision, snapshot)
            else:
                self._move(decision)
        return len(decisions)

    def run(self, rounds: int) -> list[int]:
        """Several rounds; how much each of them did."""
        return [self.round() for _ in range(rounds)]

    def weights(self) -> dict[str, float]:
        """What each broker truly bears."""
        scale = self.settings.balanced.weights
        return {
            broker.broker_id: sum(weigh(_load(topics, 1.0), scale) for topics in broker.bundles.values())
            for broker in self.brokers.values()
        }

    def counts(self) -> list[int]:
        """How many bundles each broker has, most first."""
        return sorted((len(broker.bundles) for broker in self.brokers.values()), reverse=True)

    def imbalance(self) -> float:
        """The heaviest broker's load over the average."""
        weights = self.weights().values()
        return max(weights) * len(weights) / sum(weights)

    def excess_in_bundles(self) -> float:
        """How many of its lightest bundle the heaviest broker has more than the average."""
        weights = self.weights()
        heaviest = max(self.brokers.values(), key=lambda broker: weights[broker.broker_id])
        scale = self.settings.balanced.weights
        lightest = min(weigh(_load(topics, 1.0), scale) for topics in heaviest.bundles.values())
        return (weights[heaviest.broker_id] - sum(weights.values()) / len(weights)) / lightest

    def at_rest(self) -> bool:
        """Whether `BalancedShedder`'s promise holds for every two brokers: within the trigger ratio, or closer than
        1.5 times the fuller one's lightest bundle."""
        scale = self.settings.balanced.weights
        weights = self.weights()
        for fuller in self.brokers.values():
            lightest = min((weigh(_load(topics, 1.0), scale) for topics in fuller.bundles.values()), default=0.0)
            for other in self.brokers.values():
                high, low = weights[fuller.broker_id], weights[other.broker_id]
                if high > self.settings.balanced.trigger_ratio * low and high - low >= 1.5 * lightest:
                    return False
        return True

    def moved_twice(self) -> list[tuple[DoneMove, DoneMove]]:
        """Moves for balance that came sooner after another move of the same bundle than they may."""
        pairs: list[tuple[DoneMove, DoneMove]] = []
        last: dict[BundleName, DoneMove] = {}
        for move in self.moves:
            first = last.get(move.unload.bundle)
            if first is not None and not move.for_drain and move.at_ms - first.at_ms < self.settings.shedding_grace_ms:
                pairs.append((first, move))
            last[move.unload.bundle] = move
        return pairs

    def _move(self, unload: Unload) -> None:
        assert unload.destination is not None
        assert unload.reason
        source = self.brokers[unload.source]
        self.brokers[unload.destination].bundles[unload.bundle] = source.bundles.pop(unload.bundle)
        self.moves.append(DoneMove(self.now_ms, unload, source.draining))

    def _split(self, split: Split, snapshot: LoadSnapshot) -> None:
        assert split.reason
        self.splits.append(split)
        broker = self.brokers[split.broker_id]
        topics = broker.bundles[split.bundle]
        request = SplitRequest(
            bundle=split.bundle.range,
            topics=[TopicLoad(topic.position, topic.msg_rate, topic.msg_throughput) for topic in topics],
        )
        cuts = split_boundaries(split.algorithm, request, self.settings.split)
        if not cuts:
            return
        del broker.bundles[split.bundle]
        for low, high in itertools.pairwise([split.bundle.range.low, *cuts, split.bundle.range.high]):
            part = BundleName(split.bundle.namespace, BundleRange(low, high))
            owner = broker
            if self.settings.split.unload_parts:
                placement = self.balancer.place(part, snapshot)
                assert placement.broker_id is not None
                owner = self.brokers[placement.broker_id]
            owner.bundles[part] = [topic for topic in topics if topic.position in part.range]


def spread_topics(
    bundle: BundleName, rates: Iterable[float], *, bytes_per_message: float = 1_024.0, sessions: int = 2
) -> list[SimulatedTopic]:
    """Topics of these message rates, at equal distances within a bundle."""
    found = list(rates)
    step = (bundle.range.high - bundle.range.low) // (len(found) + 1)
    return [
        SimulatedTopic(bundle.range.low + step * index, rate, rate * bytes_per_message, sessions)
        for index, rate in enumerate(found, start=1)
    ]


def _load(topics: list[SimulatedTopic], noise: float) -> BundleLoad:
    rate = sum(topic.msg_rate for topic in topics) * noise
    throughput = sum(topic.msg_throughput for topic in topics) * noise
    sessions = sum(topic.sessions for topic in topics)
    return BundleLoad(
        msg_rate_in=rate / 2,
        msg_rate_out=rate / 2,
        msg_throughput_in=throughput / 2,
        msg_throughput_out=throughput / 2,
        topics=len(topics),
        producers=sessions // 2,
        consumers=sessions - sessions // 2,
    )
