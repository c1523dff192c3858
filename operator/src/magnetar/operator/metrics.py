"""What Prometheus reads of the operator."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from magnetar.core.crashes import CRASHES, METRIC_NAME, METRIC_TEXT
from magnetar.core.slow_turns import SLOW_TURNS
from magnetar.operator.plan.actions import (
    Action,
    CancelBookieDrain,
    CancelBrokerDrain,
    StartBookieDrain,
    StartBrokerDrain,
)
from magnetar.operator.reconcile import Key
from magnetar.operator.resources.bookie import BookieStatus
from magnetar.operator.resources.cluster import PulsarClusterStatus
from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

_SECONDS: Final = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)

_DRAINS: Final = {
    StartBookieDrain: ("bookie", "started"),
    CancelBookieDrain: ("bookie", "cancelled"),
    StartBrokerDrain: ("broker", "started"),
    CancelBrokerDrain: ("broker", "cancelled"),
}


class Metrics:
    """Counts, and what was found last of each resource. Everything is counted where it happens and rendered when
    somebody reads it."""

    def __init__(self) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]  # It has no types.
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)
        self._passes = Counter(
            "magnetar_operator_passes",
            "Passes over resources, by what ended them; `none`: nothing did.",
            ("kind", "failure"),
            registry=self._registry,
        )
        self._seconds = Histogram(
            "magnetar_operator_pass_seconds",
            "How long they took.",
            ("kind",),
            buckets=_SECONDS,
            registry=self._registry,
        )
        self._calls = Counter(
            "magnetar_operator_api_calls",
            "Calls to the Kubernetes API server.",
            ("verb", "kind"),
            registry=self._registry,
        )
        self._actions = Counter(
            "magnetar_operator_actions", "What was carried out.", ("kind", "action"), registry=self._registry
        )
        self._drains = Counter(
            "magnetar_operator_drains", "Drains of pods.", ("component", "step"), registry=self._registry
        )
        self._leads = Gauge("magnetar_operator_leads", "Whether this one works; others wait.", registry=self._registry)
        crashes = Counter(METRIC_NAME, METRIC_TEXT, registry=self._registry)
        crashes.inc(CRASHES.count)
        self._found = _StatusCollector()
        self._registry.register(self._found)
        self._registry.register(_SlowTurnsCollector())

    def api_call(self, verb: str, kind: str) -> None:
        """Count a call of the API server."""
        self._calls.labels(verb, kind).inc()

    def passed(self, key: Key, seconds: float, failure: str) -> None:
        """One is over; `failure`: the error's kind, empty for none."""
        self._passes.labels(key.kind, failure or "none").inc()
        self._seconds.labels(key.kind).observe(seconds)

    def carried_out(self, key: Key, action: Action) -> None:
        """An action was."""
        self._actions.labels(key.kind, type(action).__name__).inc()
        if (drain := _DRAINS.get(type(action))) is not None:
            self._drains.labels(*drain).inc()

    def found(self, key: Key, status: PulsarClusterStatus | BookieStatus | None) -> None:
        """What is so now; None: the resource is gone."""
        if status is None:
            self._found.statuses.pop(key, None)
        else:
            self._found.statuses[key] = status

    def leads(self, *, leading: bool) -> None:
        """Whether this one works."""
        self._leads.set(leading)

    def render(self) -> bytes:
        """All metrics in Prometheus' text format (`CONTENT_TYPE`)."""
        return generate_latest(self._registry)


class _SlowTurnsCollector(Collector):
    """The event loop's turns that took too long."""

    def collect(self) -> Iterator[Metric]:
        for name, kind, text, value in SLOW_TURNS.metrics():
            family = Metric(name.removesuffix("_total"), text, kind)
            family.add_sample(name, {}, value)
            yield family


class _StatusCollector(Collector):
    """What was found last, by resource: read from the statuses, so that a resource that is gone leaves nothing."""

    def __init__(self) -> None:
        self.statuses: dict[Key, PulsarClusterStatus | BookieStatus] = {}

    def collect(self) -> Iterator[GaugeMetricFamily]:
        names = ("kind", "namespace", "name")
        conditions = GaugeMetricFamily(
            "magnetar_operator_condition", "1: it holds; 0: it does not; -1: nobody can say.", labels=(*names, "type")
        )
        draining = GaugeMetricFamily("magnetar_operator_draining", "Pods that are being drained.", labels=names)
        left = GaugeMetricFamily(
            "magnetar_operator_drain_ledgers_left", "Ledgers that bookies' drains still have to move.", labels=names
        )
        for key, status in self.statuses.items():
            resource = (key.kind, key.namespace, key.name)
            for condition in status.conditions:
                value = {"True": 1, "False": 0, "Unknown": -1}[condition.status]
                conditions.add_metric((*resource, condition.type), value)
            if isinstance(status, BookieStatus):
                drains = [member.drain for member in status.members if member.drain is not None]
                draining.add_metric(resource, len(drains))
                left.add_metric(resource, sum(drain.ledgers_left for drain in drains))
            else:
                draining.add_metric(resource, sum(member.state == "Draining" for member in status.broker_members))
        yield from (conditions, draining, left)
