"""Which of the brokers that may take a bundle should (Pulsar `ModularLoadManagerStrategy`).

Where Pulsar throws dice among equals, a hash of bundle and broker decides: two who ask about one bundle at the same
time hear the same, and bundles still spread.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from hashlib import blake2b
from typing import Protocol

from magnetar.balance.settings import BalanceSettings, PlacementStrategy
from magnetar.balance.view import BrokerView
from magnetar.core.bundle import BundleName


class Placer(Protocol):
    """A strategy; it may remember things from one choice to the next."""

    def choose(self, bundle: BundleName, candidates: Sequence[BrokerView]) -> tuple[BrokerView, str]:
        """Choose one of the candidates, of which there is at least one; and why, with the numbers."""
        ...


def placer_of(settings: BalanceSettings) -> Placer:
    """The strategy that the settings name."""
    if settings.placement_strategy is PlacementStrategy.LEAST_MESSAGE_RATE:
        return LeastLongTermMessageRate(settings)
    if settings.placement_strategy is PlacementStrategy.LEAST_RESOURCE_USAGE:
        return LeastResourceUsageWithWeight(settings)
    if settings.placement_strategy is PlacementStrategy.ROUND_ROBIN:
        return RoundRobin()
    if settings.placement_strategy is PlacementStrategy.AVG:
        return AnyBroker()
    return LeastLoad(settings)


class LeastLoad:
    """Ours: the least weighted load, in which each bundle, topic and session counts besides traffic. Brokers that are
    overloaded by usage come last. Among those that are about as little loaded as the least it takes one with the fewest
    bundles of the namespace. Goes with `BalancedShedder`, which has nothing to mend after it."""

    def __init__(self, settings: BalanceSettings) -> None:
        self._overloaded_percent = settings.overloaded_percent
        self._ratio = settings.balanced.settle_ratio
        self._evenly = settings.distribute_bundles_evenly

    def choose(self, bundle: BundleName, candidates: Sequence[BrokerView]) -> tuple[BrokerView, str]:
        """Choose one of the candidates, of which there is at least one; and why, with the numbers."""
        calm = [broker for broker in candidates if broker.usage <= self._overloaded_percent] or list(candidates)
        least = min(broker.weight for broker in calm)
        most = max(broker.weight for broker in calm)
        near = [broker for broker in calm if broker.weight <= least * self._ratio]
        if self._evenly:
            namespace = str(bundle.namespace)
            fewest = min(broker.namespaces.get(namespace, 0) for broker in near)
            near = [broker for broker in near if broker.namespaces.get(namespace, 0) == fewest]
        lightest = min(broker.weight for broker in near)
        chosen = spread(bundle, [broker for broker in near if broker.weight == lightest])
        return chosen, f"load {chosen.weight:.0f}, of {least:.0f} to {most:.0f} at {len(calm)} brokers"


class LeastLongTermMessageRate:
    """Pulsar's default: the least long-term message rate, brokers that are overloaded by usage last. Idle bundles count
    nothing in it."""

    def __init__(self, settings: BalanceSettings) -> None:
        self._overloaded_percent = settings.overloaded_percent

    def choose(self, bundle: BundleName, candidates: Sequence[BrokerView]) -> tuple[BrokerView, str]:
        """Choose one of the candidates, of which there is at least one; and why, with the numbers."""
        rates = {broker.broker_id: self._score(broker) for broker in candidates}
        least = min(rates.values())
        chosen = spread(bundle, [broker for broker in candidates if rates[broker.broker_id] == least])
        if math.isinf(least):
            return chosen, f"all {len(candidates)} brokers are fuller than {self._overloaded_percent:.0f} %"
        return chosen, f"least long-term rate: {least:.0f} messages/s, among {len(candidates)} brokers"

    def _score(self, broker: BrokerView) -> float:
        # Sums drift by rounding as bundles come and go; equals must stay equals.
        return math.inf if broker.usage > self._overloaded_percent else round(broker.msg_rate_average, 3)


class LeastResourceUsageWithWeight:
    """One of the brokers whose smoothed usage is a good deal below the average, or of all if there is none."""

    def __init__(self, settings: BalanceSettings) -> None:
        self._difference_percent = settings.usage_difference_percent

    def choose(self, bundle: BundleName, candidates: Sequence[BrokerView]) -> tuple[BrokerView, str]:
        """Choose one of the candidates, of which there is at least one; and why, with the numbers."""
        average = sum(broker.usage for broker in candidates) / len(candidates)
        best = [broker for broker in candidates if broker.usage + self._difference_percent <= average]
        chosen = spread(bundle, best or list(candidates))
        return chosen, (
            f"usage {chosen.usage:.0f} %, average {average:.0f} %; one of {len(best)} brokers at least "
            f"{self._difference_percent:.0f} % below it, of {len(candidates)}"
        )


class RoundRobin:
    """One after the other, in the order of ids."""

    def __init__(self) -> None:
        self._count = 0

    def choose(self, bundle: BundleName, candidates: Sequence[BrokerView]) -> tuple[BrokerView, str]:
        """Choose one of the candidates, of which there is at least one; and why, with the numbers."""
        chosen = candidates[self._count % len(candidates)]
        self._count += 1
        return chosen, f"next in turn of {len(candidates)} brokers"


class AnyBroker:
    """`AvgShedder` as a placement: one of them, whatever they bear."""

    def choose(self, bundle: BundleName, candidates: Sequence[BrokerView]) -> tuple[BrokerView, str]:
        """Choose one of the candidates, of which there is at least one; and why, with the numbers."""
        return spread(bundle, candidates), f"one of {len(candidates)} brokers"


def spread(bundle: BundleName, candidates: Sequence[BrokerView]) -> BrokerView:
    """Choose one of equals, always the same for the same bundle as long as that one is among them."""
    if len(candidates) == 1:
        return candidates[0]
    text = str(bundle)
    return max(candidates, key=lambda broker: blake2b(f"{text}|{broker.broker_id}".encode(), digest_size=8).digest())
