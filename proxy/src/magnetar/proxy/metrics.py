"""The proxy's metrics in Prometheus' text, by the names that Pulsar's proxy has, and our own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from magnetar.proxy.service import ProxyService
from prometheus_client import PlatformCollector, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector, CollectorRegistry

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"


def render(service: ProxyService) -> bytes:
    """All of them now."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_ProxyCollector(service))
    ProcessCollector(registry=registry)
    PlatformCollector(registry=registry)
    return generate_latest(registry)


class _ProxyCollector(Collector):
    def __init__(self, service: ProxyService) -> None:
        self._service = service

    def collect(self) -> Iterator[Metric]:
        """prometheus_client: a family after the other."""
        service = self._service
        counters = service.counters
        yield _gauge(
            "active_connections", "Number of connections currently active in the proxy", service.active_connections
        )
        yield _gauge("joined_connections", "Client connections that are joined with a broker", len(service.joined))
        yield _gauge("requests_under_way", "Requests of lookup connections not answered yet", service.lookups.under_way)
        for name, text, value in (
            ("new_connections", "Counter of connections being opened in the proxy", counters.new_connections),
            (
                "rejected_connections",
                "Counter for connections rejected due to throttling",
                counters.rejected_connections,
            ),
            ("binary_ops", "Counter of proxy operations", service.reads),
            ("binary_bytes", "Counter of proxy bytes", service.received_bytes),
            ("lookup_requests", "Counter of topic lookup requests", counters.lookup_requests),
            (
                "partitions_metadata_requests",
                "Counter of partitions metadata requests",
                counters.partitions_metadata_requests,
            ),
            (
                "get_topics_of_namespace_requests",
                "Counter of getTopicsOfNamespace requests",
                counters.get_topics_of_namespace_requests,
            ),
            ("get_schema_requests", "Counter of schema requests", counters.get_schema_requests),
            (
                "rejected_lookup_requests",
                "Counter of topic lookup requests rejected due to throttling",
                counters.rejected_lookup_requests,
            ),
            (
                "rejected_partitions_metadata_requests",
                "Counter of partitions metadata requests rejected due to throttling",
                counters.rejected_partitions_metadata_requests,
            ),
            (
                "rejected_get_topics_of_namespace_requests",
                "Counter of getTopicsOfNamespace requests rejected due to throttling",
                counters.rejected_get_topics_of_namespace_requests,
            ),
            ("denied_targets", "Connections to brokers that the settings do not allow", counters.denied_targets),
            (
                "broker_connection_failures",
                "Connections to brokers that did not come about",
                counters.broker_connection_failures,
            ),
            ("http_requests", "HTTP requests passed on", counters.http_requests),
            ("http_failures", "HTTP requests that no broker answered", counters.http_failures),
        ):
            yield CounterMetricFamily(f"pulsar_proxy_{name}", text, value)


def _gauge(name: str, text: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"pulsar_proxy_{name}", text, value)
