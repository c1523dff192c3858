"""Pulsar's `AvgShedder`: the fullest broker gives to the idlest, the second fullest to the second idlest, and so on.

A pair is looked at when its usages differ by a low or a high threshold, and acted upon when they have for some rounds:
a large difference soon, a small one later. Unlike the other strategies of Pulsar's this one says where bundles go.
"""

from __future__ import annotations

from collections.abc import Callable

from magnetar.balance.model import Split
from magnetar.balance.rounds import Round
from magnetar.balance.settings import AvgSettings
from magnetar.balance.view import BrokerView, BundleView, usage_of
from magnetar.core.limits import MIB


class AvgShedder:
    """Remembers of each broker how many rounds in a row its pair differed by either threshold."""

    def __init__(self) -> None:
        self._low_hits: dict[str, int] = {}
        self._high_hits: dict[str, int] = {}

    def shed(self, deciding: Round) -> list[Split]:
        """Decide moves by the round's methods, and answer bundles that would have to be split first."""
        settings, weights = deciding.settings.avg, deciding.settings.resource_weights
        usages = {broker.broker_id: usage_of(broker.load.usages, weights) for broker in deciding.view}
        order = sorted(deciding.view, key=lambda broker: (usages[broker.broker_id], broker.broker_id))
        self._forget(set(usages))
        while order:
            fullest, idlest = order.pop(), order.pop(0) if order else None
            if idlest is None:
                self._calm(fullest)
                break
            difference = usages[fullest.broker_id] - usages[idlest.broker_id]
            if self._is_time(fullest, idlest, difference, settings):
                self._calm(fullest, idlest)
                why = (
                    f"usage {usages[fullest.broker_id]:.1f} % of {fullest.broker_id} is {difference:.1f} above "
                    f"that of {idlest.broker_id}"
                )
                _level(deciding, fullest, idlest, why)
        return []

    def _is_time(self, fullest: BrokerView, idlest: BrokerView, difference: float, settings: AvgSettings) -> bool:
        """Count the round for both; whether their load has differed for long enough."""
        if difference < settings.low_percent:
            self._calm(fullest, idlest)
            return False
        hit = False
        for broker_id in (fullest.broker_id, idlest.broker_id):
            self._low_hits[broker_id] = self._low_hits.get(broker_id, 0) + 1
            if difference < settings.high_percent:
                self._high_hits.pop(broker_id, None)
            else:
                self._high_hits[broker_id] = self._high_hits.get(broker_id, 0) + 1
            # A broker brings its rounds along when it is paired with another one.
            hit = hit or self._low_hits[broker_id] >= settings.low_hits
            hit = hit or self._high_hits.get(broker_id, 0) >= settings.high_hits
        return hit

    def _calm(self, *brokers: BrokerView) -> None:
        for broker in brokers:
            self._low_hits.pop(broker.broker_id, None)
            self._high_hits.pop(broker.broker_id, None)

    def _forget(self, alive: set[str]) -> None:
        """Brokers that are gone are no pairs any more."""
        for hits in (self._low_hits, self._high_hits):
            for broker_id in [broker_id for broker_id in hits if broker_id not in alive]:
                del hits[broker_id]


def _level(deciding: Round, fullest: BrokerView, idlest: BrokerView, why: str) -> None:
    """Move a share of the difference in message rates, or else in throughput."""
    settings = deciding.settings.uniform
    messages = (fullest.msg_rate - idlest.msg_rate) * settings.unload_share_max
    throughput = (fullest.throughput - idlest.throughput) * settings.unload_share_max
    why = f"{why}; {messages:.0f} messages/s or {throughput / MIB:.1f} MiB/s are to leave"
    wanted, measure = messages, _msg_rate
    if messages <= settings.unload_msg_rate_min:
        if throughput <= settings.unload_throughput_bytes_min:
            deciding.notes.append(f"{why}, less than the minimum of either")
            return
        wanted, measure = throughput, _throughput
    _move(deciding, fullest, idlest, wanted, measure, why)


def _move(
    deciding: Round,
    fullest: BrokerView,
    idlest: BrokerView,
    wanted: float,
    measure: Callable[[BundleView], float],
    why: str,
) -> None:
    for bundle in sorted(deciding.movable(fullest), key=measure, reverse=True):
        load = measure(bundle)
        if not 0 < load <= wanted:
            continue
        if not deciding.candidates.may_move(bundle.name, fullest, idlest):
            deciding.notes.append(f"{bundle.name} stays at {fullest.broker_id}, the other may not take it; {why}")
            continue
        deciding.move(bundle, fullest, idlest, why)
        wanted -= load


def _msg_rate(bundle: BundleView) -> float:
    return bundle.load.msg_rate


def _throughput(bundle: BundleView) -> float:
    return bundle.load.msg_throughput
