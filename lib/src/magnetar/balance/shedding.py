"""Which bundles leave their brokers: three of Pulsar's strategies of `LoadSheddingStrategy`, to be chosen by name.

They look at rates and usages alone and move nothing that carries less than their minimum. Where bundles go is left to
placement, as Pulsar does. Rates are the last reported ones where Pulsar takes its short-term average.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

from magnetar.balance.model import Split
from magnetar.balance.rounds import Round
from magnetar.balance.settings import ResourceWeights
from magnetar.balance.view import BrokerView, BundleView, usage_of
from magnetar.core.limits import MIB

MARGIN_PERCENT: Final = 5
"""How far below its threshold a broker is brought (Pulsar `ADDITIONAL_THRESHOLD_PERCENT_MARGIN`)."""

_OVERLOAD_WEIGHTS: Final = ResourceWeights(cpu=1, memory=0, direct_memory=1, bandwidth_in=1, bandwidth_out=1)
"""`OverloadShedder` takes resources as they are (Pulsar `LocalBrokerData.getMaxResourceUsage`)."""

_LOWER_BOUNDARY_SHARE: Final = 0.5
"""What part of the threshold is moved towards a broker that is far below the average."""

_UNIFORM_SLACK: Final = 1_000
"""A bundle may exceed what is to be moved by so many messages or bytes per second."""


class Shedder(Protocol):
    """A strategy; it may remember things from one round to the next."""

    def shed(self, deciding: Round) -> list[Split]:
        """Decide moves by the round's methods, and answer bundles that would have to be split first."""
        ...


class ThresholdShedder:
    """Brokers whose smoothed usage is above the average by a threshold give their busiest bundles."""

    def shed(self, deciding: Round) -> list[Split]:
        """Decide moves by the round's methods, and answer bundles that would have to be split first."""
        settings = deciding.settings.threshold
        brokers = list(deciding.view)
        if not brokers:
            return []
        average = sum(broker.usage for broker in brokers) / len(brokers)
        if average <= 0:
            deciding.notes.append("no broker's usage is known or above 0")
            return []
        limit = average + settings.usage_difference_percent
        for broker, usage in [(broker, broker.usage) for broker in brokers]:
            if usage >= limit:
                why = f"usage {usage:.1f} % is above the average of {average:.1f} % by more than {limit - average:.0f}"
                _unload_busiest(deciding, broker, (usage - limit + MARGIN_PERCENT) / 100, why)
        if not deciding.unloads and settings.lower_boundary:
            self._towards_idle(deciding, average)
        return []

    def _towards_idle(self, deciding: Round, average: float) -> None:
        difference = deciding.settings.threshold.usage_difference_percent
        least = min(broker.usage for broker in deciding.view)
        if least >= average - difference:
            return
        fullest = max(deciding.view, key=lambda broker: (broker.usage, broker.broker_id))
        why = f"a broker's usage of {least:.1f} % is below the average of {average:.1f} % by more than {difference:.0f}"
        _unload_busiest(deciding, fullest, difference / 100 * _LOWER_BOUNDARY_SHARE, why)


class OverloadShedder:
    """Brokers above a fixed usage give their busiest bundles; others are not looked at."""

    def shed(self, deciding: Round) -> list[Split]:
        """Decide moves by the round's methods, and answer bundles that would have to be split first."""
        limit = deciding.settings.overloaded_percent
        for broker in list(deciding.view):
            usage = usage_of(broker.load.usages, _OVERLOAD_WEIGHTS)
            if usage >= limit:
                why = f"usage {usage:.1f} % is above {limit:.0f} %"
                _unload_busiest(deciding, broker, (usage - limit + MARGIN_PERCENT) / 100, why, throughput_min=0.0)
        return []


class UniformLoadShedder:
    """The busiest broker gives part of what it has more than the idlest, by message rate or else by throughput."""

    def shed(self, deciding: Round) -> list[Split]:
        """Decide moves by the round's methods, and answer bundles that would have to be split first."""
        settings = deciding.settings.uniform
        brokers = list(deciding.view)
        if len(brokers) < 2:
            return []
        rates = [broker.msg_rate for broker in brokers]
        throughputs = [broker.throughput for broker in brokers]
        rate_excess = (max(rates) - min(rates)) * 100 / (min(rates) or 1.0)
        ratio = max(throughputs) / (min(throughputs) or 1.0)
        if 0 < settings.msg_rate_difference_percent < rate_excess:
            busiest = max(brokers, key=lambda broker: (broker.msg_rate, broker.broker_id))
            wanted = (max(rates) - min(rates)) * settings.unload_share_max
            why = f"{max(rates):.0f} messages/s is {rate_excess:.0f} % more than the least, {min(rates):.0f}"
            if wanted >= settings.unload_msg_rate_min:
                self._unload(deciding, busiest, wanted, why, lambda bundle: bundle.load.msg_rate)
        elif 0 < settings.throughput_ratio < ratio:
            busiest = max(brokers, key=lambda broker: (broker.throughput, broker.broker_id))
            wanted = (max(throughputs) - min(throughputs)) * settings.unload_share_max
            why = f"{max(throughputs) / MIB:.1f} MiB/s is {ratio:.1f} times the least, {min(throughputs) / MIB:.1f}"
            if wanted >= settings.unload_throughput_bytes_min:
                self._unload(deciding, busiest, wanted, why, lambda bundle: bundle.load.msg_throughput)
        return []

    def _unload(
        self, deciding: Round, broker: BrokerView, wanted: float, why: str, measure: Callable[[BundleView], float]
    ) -> None:
        if len(broker.bundles) < 2:
            deciding.notes.append(f"{broker.broker_id} has one bundle and keeps it; {why}")
            return
        unloads_max = deciding.settings.uniform.unloads_per_round_max
        for bundle in sorted(deciding.movable(broker), key=measure, reverse=True):
            if 0 <= unloads_max <= len(deciding.unloads):
                return
            load = measure(bundle)
            if 0 < load <= wanted + _UNIFORM_SLACK and deciding.send_away(bundle, broker, f"{broker.broker_id}: {why}"):
                wanted -= load


def _unload_busiest(
    deciding: Round, broker: BrokerView, share: float, why: str, *, throughput_min: float | None = None
) -> None:
    """Move bundles, those with the highest throughput first, until that share of the broker's throughput has gone."""
    if throughput_min is None:
        throughput_min = deciding.settings.threshold.unload_throughput_bytes_min
    wanted = broker.throughput * share
    explained = f"{broker.broker_id}: {why}, {wanted / MIB:.1f} MiB/s are to leave"
    if wanted < throughput_min:
        deciding.notes.append(f"{explained}, less than the minimum of {throughput_min / MIB:.1f}")
        return
    if len(broker.bundles) < 2:
        deciding.notes.append(f"{explained}, but it has {len(broker.bundles)} bundle")
        return
    gone, moved = 0.0, 0
    busiest = sorted(deciding.movable(broker), key=lambda bundle: bundle.load.msg_throughput, reverse=True)
    for bundle in busiest:
        if moved and gone >= wanted:
            return
        throughput = bundle.load.msg_throughput
        if deciding.send_away(bundle, broker, explained):
            gone += throughput
            moved += 1
