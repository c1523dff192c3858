"""The proxy's metrics in Prometheus' text, by the names that Pulsar's proxy has, and our own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from magnetar.core.crashes import CRASHES, METRIC_NAME, METRIC_TEXT
from magnetar.core.slow_turns import SLOW_TURNS
from magnetar.net.refused_connections import METRIC_TEXT as REFUSED_TEXT
from magnetar.proxy.service import ProxyService
from magnetar.wire.pulsar.generated.pulsar_api_pb2 import BaseCommand
from prometheus_client import PlatformCollector, ProcessCollector, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector, CollectorRegistry

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

REFUSED_NAME: Final = "pulsar_proxy_rejected_connections"

FORMER: Final = frozenset(
    {
        "binary_ops",
        "get_topics_of_namespace_requests",
        "lookup_requests",
        "new_connections",
        "partitions_metadata_requests",
        "rejected_get_topics_of_namespace_requests",
        "rejected_lookup_requests",
        "rejected_partitions_metadata_requests",
    }
)
"""What dashboards ask for without `_total` behind the name, too."""

_REQUESTS: Final = (
    (BaseCommand.LOOKUP, "lookup", "topic lookup"),
    (BaseCommand.PARTITIONED_METADATA, "partitions_metadata", "partitions metadata"),
    (BaseCommand.GET_TOPICS_OF_NAMESPACE, "get_topics_of_namespace", "getTopicsOfNamespace"),
    (BaseCommand.GET_SCHEMA, "get_schema", "schema"),
)


def render(service: ProxyService) -> bytes:
    """All metrics now, as text."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_ProxyCollector(service))
    ProcessCollector(registry=registry)
    PlatformCollector(registry=registry)
    return generate_latest(registry)


def _former(name: str, text: str) -> Metric:
    """A counter by its name of before Pulsar 2.11; prometheus_client would write `_total` behind it if it said so."""
    return Metric(name, f"{text}, by the former name", "unknown")


class _ProxyCollector(Collector):
    def __init__(self, service: ProxyService) -> None:
        self._service = service

    def collect(self) -> Iterator[Metric]:
        """prometheus_client: a family after the other."""
        cluster = self._service.settings.cluster_name
        labels = {"cluster": cluster} if cluster else {}
        crashes = Metric(METRIC_NAME.removesuffix("_total"), METRIC_TEXT, "counter")
        crashes.add_sample(METRIC_NAME, {}, CRASHES.count)
        yield crashes
        for name, kind, text, value in SLOW_TURNS.metrics():
            turns = Metric(name.removesuffix("_total"), text, kind)
            turns.add_sample(name, labels, value)
            yield turns
        refused = Metric(REFUSED_NAME, REFUSED_TEXT, "counter")
        formerly_refused = _former(REFUSED_NAME, REFUSED_TEXT)
        for limit, count in self._service.refused.counts.items():
            of_limit = {**labels, "reason": str(limit)}
            refused.add_sample(REFUSED_NAME + "_total", of_limit, count)
            formerly_refused.add_sample(REFUSED_NAME, of_limit, count)
        yield refused
        yield formerly_refused
        for kind, name, text, value in self._values():
            full = f"pulsar_proxy_{name}"
            family = Metric(full, text, kind)
            family.add_sample(full if kind == "gauge" else full + "_total", labels, value)
            yield family
            if name in FORMER:
                former = _former(full, text)
                former.add_sample(full, labels, value)
                yield former

    def _values(self) -> Iterator[tuple[str, str, str, float]]:
        """(type, name, help text, value) of each."""
        service, counters = self._service, self._service.counters
        yield (
            "gauge",
            "active_connections",
            "Number of connections currently active in the proxy",
            service.active_connections,
        )
        yield "gauge", "joined_connections", "Client connections that are joined with a broker", len(service.joined)
        yield (
            "gauge",
            "requests_under_way",
            "Requests of lookup connections not answered yet",
            service.lookups.under_way,
        )
        for name, text, value in (
            ("new_connections", "Counter of connections being opened in the proxy", counters.new_connections),
            ("binary_ops", "Counter of proxy operations", service.reads),
            ("binary_bytes", "Counter of proxy bytes", service.received_bytes),
            ("denied_targets", "Connections to brokers that the settings do not allow", counters.denied_targets),
            (
                "authentication_failures",
                "Clients whose credentials were not good",
                counters.authentication_failures,
            ),
            (
                "broker_connection_failures",
                "Connections to brokers that did not come about",
                counters.broker_connection_failures,
            ),
            ("http_requests", "HTTP requests passed on", counters.http_requests),
            ("http_failures", "HTTP requests that no broker answered", counters.http_failures),
        ):
            yield "counter", name, text, value
        for command, name, what in _REQUESTS:
            yield "counter", f"{name}_requests", f"Counter of {what} requests", counters.requests[command]
            if name != "get_schema":
                text = f"Counter of {what} requests rejected due to throttling"
                yield "counter", f"rejected_{name}_requests", text, counters.rejected_requests[command]
