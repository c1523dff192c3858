"""How many brokers a cluster should have, by what they do.

A broker is stateless, so that the mean of the brokers' fullest resources decides: above `loadPercentMax` they become
more, at once as many as bring it below, at most twice as many; below `loadPercentMin`, by what it would be with one
less, they become one less. A single hot broker is no reason: its bundles are split and moved, which another broker
would not spare. Whatever calls for a change must do so in every look of a while, which begins anew after each change:
one minute for more, `stabilizationSeconds` for fewer.

It does not flap: with one broker less the mean would have to be `MARGIN_PERCENT` below the maximum, by an estimate that
is never too low, while more are added only until the mean is at the maximum.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from magnetar.operator.plan.conditions import seconds, timestamp
from magnetar.operator.plan.facts import BrokerFacts
from magnetar.operator.resources.cluster import BrokerAutoscaling, BrokerLoadStatus, BrokerSpec

GROW_SECONDS: Final = 60.0
"""How long the load must be too high: clients wait, so less than for fewer brokers."""

SILENT_SECONDS: Final = 600.0
"""How long brokers that do not answer are waited for before the others' load alone is a reason for more: longer than a
rollout's pods and a node that restarts take."""

MARGIN_PERCENT: Final = 10
"""How far the rest must stay below the maximum where one is taken away."""

BUNDLES_SHARE: Final = 0.8
"""The share of `bundlesPerBrokerMax` that each of the rest may have at most where one is taken away."""


@dataclass(frozen=True, slots=True)
class _BrokerWish:
    advice: Literal["Keep", "Grow", "Shrink"]
    replicas: int
    reason: str


def wanted_brokers(
    spec: BrokerSpec, current: int, brokers: Sequence[BrokerFacts], load: BrokerLoadStatus | None, now_seconds: float
) -> tuple[int, BrokerLoadStatus, str]:
    """How many there should be, what is to be remembered for the next look, and why, in a sentence with numbers.

    `current`: how many there are, without those that drain. `brokers`: those that answer; the load and the bundles of
    those that drain count, for the others are to have them. `load`: what the last look remembered."""
    now = timestamp(now_seconds)
    limits = spec.autoscaling
    if spec.replicas is not None or limits is None:
        kept = load or BrokerLoadStatus(since=now)
        return (current if spec.replicas is None else spec.replicas), kept, "the number is set by hand"
    wish = _wish(limits, current, brokers)
    percent = round(_mean(brokers)) if brokers else (load.percent if load is not None else 0)
    scaled_at = load.scaled_at if load is not None else None
    bounded = min(max(current, limits.min_replicas), limits.max_replicas)
    if bounded != current:
        bound = "minReplicas" if bounded > current else "maxReplicas"
        reason = f"autoscaling.{bound} is {bounded}; there were {current}"
        return bounded, BrokerLoadStatus(percent=percent, since=now, scaled_at=now), reason
    since = load.since if load is not None and load.advice == wish.advice else now
    remembered = BrokerLoadStatus(percent=percent, advice=wish.advice, since=since, scaled_at=scaled_at)
    if wish.replicas == current:
        return current, remembered, wish.reason
    silent = sum(not _drains(broker) for broker in brokers) < current
    wait = _wait_seconds(limits, wish, since, scaled_at, now_seconds, silent=silent)
    if wait > 0:
        return (
            current,
            remembered,
            f"{wish.reason}; {wish.replicas} brokers if it stays so for {math.ceil(wait)} s more",
        )
    return wish.replicas, BrokerLoadStatus(percent=percent, since=now, scaled_at=now), wish.reason


def _wish(limits: BrokerAutoscaling, current: int, brokers: Sequence[BrokerFacts]) -> _BrokerWish:
    """What the load calls for now."""
    staying = [broker for broker in brokers if not _drains(broker)]
    if not staying:
        return _BrokerWish("Keep", current, "no broker answers")
    mean = _mean(brokers)
    bundles = sum(broker.bundles for broker in brokers) * current / len(staying)
    by_load = math.ceil(current * mean / limits.load_percent_max - 1e-9)
    by_bundles = math.ceil(bundles / limits.bundles_per_broker_max - 1e-9)
    needed = max(by_load, by_bundles)
    if needed > current:
        wanted = min(needed, 2 * current, limits.max_replicas)
        return _BrokerWish(
            "Grow" if wanted > current else "Keep", wanted, _why_more(limits, current, mean, bundles, wanted)
        )
    what = f"the mean of {len(staying)} brokers' fullest resources is {mean:.0f} %"
    if current > limits.min_replicas and len(staying) == current == len(brokers):
        rest = mean * current / (current - 1)
        rest_bundles = bundles / (current - 1)
        load_max = min(limits.load_percent_min, limits.load_percent_max - MARGIN_PERCENT)
        if rest < load_max and rest_bundles <= BUNDLES_SHARE * limits.bundles_per_broker_max:
            reason = f"{what}, and with {current - 1} it would be {rest:.0f} %, below {load_max} %"
            return _BrokerWish("Shrink", current - 1, reason)
    hottest = max(staying, key=lambda broker: broker.load_percent)
    if hottest.load_percent > limits.load_percent_max:
        what += (
            f"; {hottest.broker_id} alone has {hottest.load_percent} %: its bundles are to be moved or split, which "
            "another broker would not spare"
        )
    return _BrokerWish("Keep", current, what)


def _why_more(limits: BrokerAutoscaling, current: int, mean: float, bundles: float, wanted: int) -> str:
    if mean > limits.load_percent_max:
        reason = f"the mean of {current} brokers' fullest resources is {mean:.0f} %, above {limits.load_percent_max} %"
    else:
        per_broker = bundles / current
        reason = (
            f"{current} brokers have {per_broker:.0f} bundles each, more than the {limits.bundles_per_broker_max} that "
            "bundlesPerBrokerMax allows"
        )
    return reason if wanted > current else f"{reason}, but autoscaling.maxReplicas is {limits.max_replicas}"


def _wait_seconds(
    limits: BrokerAutoscaling, wish: _BrokerWish, since: str, scaled_at: str | None, now_seconds: float, *, silent: bool
) -> float:
    """How long the wish must hold on; 0 or less: it has long enough."""
    began = seconds(since)
    if wish.advice == "Shrink":
        if scaled_at is not None:
            began = max(began, seconds(scaled_at))
        return began + limits.stabilization_seconds - now_seconds
    # Brokers that were added do not answer at once.
    wait = SILENT_SECONDS if silent else min(GROW_SECONDS, limits.stabilization_seconds)
    return began + wait - now_seconds


def _mean(brokers: Sequence[BrokerFacts]) -> float:
    """The mean of all load, over the brokers that stay."""
    staying = sum(not _drains(broker) for broker in brokers)
    return sum(broker.load_percent for broker in brokers) / max(1, staying)


def _drains(broker: BrokerFacts) -> bool:
    return broker.drain != "None"
