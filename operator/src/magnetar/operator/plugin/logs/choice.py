"""Whose log to read when something hurts. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from magnetar.operator.plugin.drawing import age
from magnetar.operator.plugin.status_view import FRESH_SECONDS, matters, pod_state
from magnetar.operator.plugin.views import ClusterSummary, PodView

_FINE = frozenset({"", "Writable", "Ready"})


def hurting(view: ClusterSummary, now_seconds: float) -> list[tuple[PodView, str]]:
    """Pods that are not as they should be, and why that is said; the worst first."""
    found = []
    for pod in view.pods:
        severity, why = _trouble(view, pod, now_seconds)
        if severity:
            found.append((severity, pod, why))
    found.sort(key=lambda one: (-one[0], one[1].ordinal))
    return [(pod, why) for _, pod, why in found]


def _trouble(view: ClusterSummary, pod: PodView, now_seconds: float) -> tuple[int, str]:
    """How bad (0: not at all), and why."""
    if pod.component == "init" and pod.phase == "Succeeded":
        return 0, ""
    if not pod.ready and not pod.deleting:
        return (3 if pod.reason else 2), pod_state(pod)
    state = _state(view, pod.name)
    if state not in _FINE:
        return 2, state
    if pod.restarts and pod.restarted_seconds is not None and now_seconds - pod.restarted_seconds < FRESH_SECONDS:
        return 2, f"restarted {age(now_seconds - pod.restarted_seconds)} ago"
    if any(_names(message, pod.name) for message in _messages(view)):
        return 1, "named in a condition"
    return 0, ""


def _state(view: ClusterSummary, pod: str) -> str:
    broker = view.broker(pod) or view.read_only_broker(pod)
    if broker is not None:
        return broker.state
    return next((member.state for pool in view.pools if (member := pool.member(pod)) is not None), "")


def _messages(view: ClusterSummary) -> Iterable[str]:
    status = view.status
    for conditions in (status.conditions, *(pool.status.conditions for pool in view.pools)):
        yield from (condition.message for condition in conditions if matters(condition))
    parts = (status.zookeeper, status.bookies, status.brokers, status.proxies, status.read_only_brokers)
    yield from (part.message for part in parts if part is not None)


def _names(message: str, pod: str) -> bool:
    """Whole: demo-bookie-1 is not meant by demo-bookie-10."""
    return any(word.strip(".,:;()'\"`") == pod for word in message.split())
