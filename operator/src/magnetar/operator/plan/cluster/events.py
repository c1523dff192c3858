"""Events of a cluster: what is different from what was written last. One that lasts is told once."""

from __future__ import annotations

from typing import Final

from magnetar.operator.plan.actions import EmitEvent
from magnetar.operator.plan.cluster.parts import (
    ALL_READY,
    BOOKIES_READY,
    BROKERS_READY,
    HIBERNATED,
    METADATA_READY,
    PODS_NOT_READY,
    PROXIES_READY,
    READ_ONLY_BROKERS_READY,
    SCALING,
    STARTING,
    STOPPING,
    UPDATE_WAITS,
    UPDATING,
    WAITING,
    ZOOKEEPER_READY,
)
from magnetar.operator.plan.cluster.start import TOO_FEW_BOOKIES, TOO_FEW_WRITABLE
from magnetar.operator.plan.cluster.status import PAUSED
from magnetar.operator.plan.conditions import READY, condition, stall_events
from magnetar.operator.resources.cluster import PulsarClusterStatus
from magnetar.operator.resources.common import Condition

_COMPONENTS: Final = (
    METADATA_READY,
    ZOOKEEPER_READY,
    BOOKIES_READY,
    BROKERS_READY,
    PROXIES_READY,
    READ_ONLY_BROKERS_READY,
)
_OF_ALL_POOLS: Final = frozenset({TOO_FEW_BOOKIES, TOO_FEW_WRITABLE})
"""What is told of the cluster's bookies: the rest each pool tells of itself."""

_PASSING: Final = frozenset({HIBERNATED, PODS_NOT_READY, SCALING, STARTING, STOPPING, UPDATE_WAITS, WAITING})
"""Reasons of components that are not ready, and will be without anybody's help."""


def transitions(before: PulsarClusterStatus, now: PulsarClusterStatus) -> list[EmitEvent]:
    """What has happened since. Nothing of a cluster that is seen for the first time."""
    found = []
    for type_ in _COMPONENTS:
        old, new = condition(before.conditions, type_), condition(now.conditions, type_)
        if old is not None and new is not None and (told := _component(old, new)) is not None:
            found.append(told)
    found += stall_events(before.conditions, now.conditions, found)
    for type_, on, off in ((PAUSED, "Paused", "Resumed"), (HIBERNATED, "Hibernated", "Woken")):
        found += _switched(before, now, type_, on, off)
    ready = condition(now.conditions, READY)
    if ready is not None and ready.reason == ALL_READY and _became(before, now, READY, "True"):
        found.append(EmitEvent("Normal", "Ready", f"version {now.version} runs at {now.service_url}"))
    return found


def _component(old: Condition, new: Condition) -> EmitEvent | None:
    if old.status == new.status and (new.status == "True" or old.reason == new.reason):
        return None
    if new.type == BOOKIES_READY and (new.reason not in _OF_ALL_POOLS or old.status != "True"):
        return None
    words = f"{new.type}: {new.message}"
    if new.status == "True":
        return EmitEvent("Normal", new.type, words)
    if new.reason == UPDATING:
        return EmitEvent("Normal", "RolloutStarted", words)
    if new.reason in _PASSING:
        # On the way from one of them to another nothing has happened that people wait for.
        return EmitEvent("Normal", new.reason, words) if old.status == "True" else None
    return EmitEvent("Warning", new.reason, words)


def _became(before: PulsarClusterStatus, now: PulsarClusterStatus, type_: str, status: str) -> bool:
    old, new = condition(before.conditions, type_), condition(now.conditions, type_)
    return new is not None and new.status == status and (old is None or old.status != status)


def _switched(before: PulsarClusterStatus, now: PulsarClusterStatus, type_: str, on: str, off: str) -> list[EmitEvent]:
    new = condition(now.conditions, type_)
    if new is not None and _became(before, now, type_, "True"):
        return [EmitEvent("Normal", on, new.message)]
    if new is not None and condition(before.conditions, type_) is not None and _became(before, now, type_, "False"):
        return [EmitEvent("Normal", off, new.message)]
    return []
