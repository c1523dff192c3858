"""How many read-only brokers there should be, by what their metrics say. Pure.

By connections: as many as have `connectionsPerBrokerMax` each, at once, at most twice as many; one less when the rest
would have well fewer. By lag: one more while the worst topic is more than `lagSecondsMax` behind its writer. Clients
that are connected stay where they are, so that another broker helps only by and by, and nothing at all if the writer's
bookies are what is slow: between two that are added for their lag lies `stabilizationSeconds`.

Whatever calls for a change must do so in every look of a while, which begins anew after each change. It does not flap:
one less would leave `CONNECTIONS_SHARE` of the maximum to each of the rest, while more come only above the maximum; and
the lag must be half of what calls for one more.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

import msgspec
from magnetar.operator.plan.broker_scale import GROW_SECONDS, SILENT_SECONDS
from magnetar.operator.plan.conditions import seconds, timestamp
from magnetar.operator.plan.facts import ReadOnlyBrokerFacts
from magnetar.operator.resources.read_only import ReadOnlyAutoscaling, ReadOnlyLoadStatus

CONNECTIONS_SHARE: Final = 0.8
"""The share of `connectionsPerBrokerMax` that each of the rest may have at most where one is taken away."""

LAG_SHARE: Final = 0.5
"""The share of `lagSecondsMax` that the lag may be at most where one is taken away."""


@dataclass(frozen=True, slots=True)
class _ReadOnlyWish:
    advice: Literal["Keep", "Grow", "Shrink"]
    replicas: int
    reason: str
    by_lag: bool = False


def wanted_read_only_brokers(
    limits: ReadOnlyAutoscaling,
    current: int,
    brokers: Sequence[ReadOnlyBrokerFacts],
    load: ReadOnlyLoadStatus | None,
    now_seconds: float,
) -> tuple[int, ReadOnlyLoadStatus]:
    """How many there should be, and what is to be remembered for the next look, with the reason in a sentence with
    numbers.

    `current`: how many there are, at least 1. `brokers`: those that answer. `load`: what the last look remembered."""
    now = timestamp(now_seconds)
    wish = _wish(limits, current, brokers)
    scaled_at = load.scaled_at if load is not None else None
    connections = sum(broker.connections for broker in brokers)
    lag_seconds = round(_lag_seconds(brokers))
    bounded = min(max(current, limits.min_replicas), limits.max_replicas)
    if bounded != current:
        bound = "minReplicas" if bounded > current else "maxReplicas"
        reason = f"autoscaling.{bound} is {bounded}; there were {current}"
        return bounded, ReadOnlyLoadStatus(
            connections=connections, lag_seconds=lag_seconds, since=now, scaled_at=now, reason=reason
        )
    since = load.since if load is not None and load.advice == wish.advice else now
    remembered = ReadOnlyLoadStatus(
        connections=connections,
        lag_seconds=lag_seconds,
        advice=wish.advice,
        since=since,
        scaled_at=scaled_at,
        reason=wish.reason,
    )
    if wish.replicas == current:
        return current, remembered
    due = _due_seconds(limits, wish, since, scaled_at, silent=len(brokers) < current)
    if due > now_seconds:
        # The time when, not how long: the status is not to change with each look.
        words = f"{wish.reason}; {wish.replicas} read-only brokers if it stays so until {timestamp(math.ceil(due))}"
        return current, msgspec.structs.replace(remembered, reason=words)
    return wish.replicas, ReadOnlyLoadStatus(
        connections=connections, lag_seconds=lag_seconds, since=now, scaled_at=now, reason=wish.reason
    )


def _wish(limits: ReadOnlyAutoscaling, current: int, brokers: Sequence[ReadOnlyBrokerFacts]) -> _ReadOnlyWish:
    """What their metrics call for now."""
    if not brokers:
        return _ReadOnlyWish("Keep", current, "no read-only broker's metrics are to be had")
    # Of those that do not answer the same is taken to be true.
    connections = sum(broker.connections for broker in brokers) * current / len(brokers)
    lag_seconds = _lag_seconds(brokers)
    needed = math.ceil(connections / limits.connections_per_broker_max - 1e-9)
    what = f"{current} read-only brokers have {connections:.0f} connections, and the worst topic is {lag_seconds:.0f} s"
    what += " behind"
    if needed > current:
        reason = f"{what}: more than {limits.connections_per_broker_max} connections each"
        return _grow(limits, current, min(needed, 2 * current), reason)
    if lag_seconds > limits.lag_seconds_max:
        return _grow(limits, current, current + 1, f"{what}, more than {limits.lag_seconds_max} s", by_lag=True)
    if current > limits.min_replicas and len(brokers) == current:
        rest = connections / (current - 1)
        few = rest <= CONNECTIONS_SHARE * limits.connections_per_broker_max
        if few and lag_seconds <= LAG_SHARE * limits.lag_seconds_max:
            reason = f"{what}: with {current - 1} it would be {rest:.0f} connections each, of "
            return _ReadOnlyWish("Shrink", current - 1, f"{reason}{limits.connections_per_broker_max}")
    return _ReadOnlyWish("Keep", current, what)


def _grow(
    limits: ReadOnlyAutoscaling, current: int, wanted: int, reason: str, *, by_lag: bool = False
) -> _ReadOnlyWish:
    wanted = min(wanted, limits.max_replicas)
    if wanted == current:
        return _ReadOnlyWish("Keep", current, f"{reason}, but autoscaling.maxReplicas is {limits.max_replicas}")
    return _ReadOnlyWish("Grow", wanted, reason, by_lag)


def _due_seconds(
    limits: ReadOnlyAutoscaling, wish: _ReadOnlyWish, since: str, scaled_at: str | None, *, silent: bool
) -> float:
    """When the wish will have held on for long enough, in seconds since 1970."""
    began = seconds(since)
    after_change = max(began, seconds(scaled_at) if scaled_at is not None else began)
    if wish.advice == "Shrink":
        return after_change + limits.stabilization_seconds
    # Brokers that were added do not answer at once.
    due = began + (SILENT_SECONDS if silent else min(GROW_SECONDS, limits.stabilization_seconds))
    if wish.by_lag and scaled_at is not None:
        due = max(due, seconds(scaled_at) + limits.stabilization_seconds)
    return due


def _lag_seconds(brokers: Sequence[ReadOnlyBrokerFacts]) -> float:
    return max((broker.lag_seconds for broker in brokers), default=0.0)
