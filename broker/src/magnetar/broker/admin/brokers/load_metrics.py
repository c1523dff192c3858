"""Load balancing in `/metrics`, under the names that Pulsar's dashboards read (`pulsar_lb_…`), and some of our own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TypeAlias

from magnetar.broker.context import BrokerContext

Family: TypeAlias = Callable[[str, str, str, Iterable[tuple[str, float]]], list[str]]
"""`metrics.metric`: lines of one family."""

TEXTS: Mapping[str, str] = {
    "pulsar_lb_cpu_usage": "CPU in percent of what this broker may use.",
    "pulsar_lb_memory_usage": "Memory in percent of what this broker may use.",
    "pulsar_lb_directMemory_usage": "A notion of the Java machine, always 0.",
    "pulsar_lb_bandwidth_in_usage": "Network traffic in, in percent of what the interfaces can carry.",
    "pulsar_lb_bandwidth_out_usage": "Network traffic out, in percent of what the interfaces can carry.",
    "pulsar_lb_unload_broker_total": "Times that this leader moved bundles off a broker.",
    "pulsar_lb_unload_bundle_total": "Bundles that this leader moved.",
    "pulsar_lb_bundles_split_total": "Bundles that this leader split.",
    "pulsar_bundle_msg_rate_in": "Messages per second that a bundle takes.",
    "pulsar_bundle_msg_rate_out": "Messages per second that a bundle gives.",
    "pulsar_bundle_topics_count": "Topics of a bundle that are loaded.",
    "pulsar_bundle_consumer_count": "Consumers of a bundle.",
    "pulsar_bundle_producer_count": "Producers of a bundle.",
    "pulsar_bundle_msg_throughput_in": "Bytes per second that a bundle takes.",
    "pulsar_bundle_msg_throughput_out": "Bytes per second that a bundle gives.",
    "magnetar_lb_decisions_failed_total": "Moves and splits that owners refused or did not answer.",
    "magnetar_lb_placements_total": "Bundles that nobody owned and that this broker gave to one.",
    "magnetar_lb_brokers": "Brokers that are alive, as this one sees it.",
    "magnetar_lb_leading": "1 on the leader.",
}


OTHER_NAMES: Mapping[str, tuple[str, ...]] = {
    "pulsar_lb_unload_broker_total": ("pulsar_lb_unload_broker_count",),
    "pulsar_lb_unload_bundle_total": ("pulsar_lb_unload_bundle_count",),
    "pulsar_lb_bundles_split_total": ("pulsar_lb_bundles_split_count",),
}
"""Names of before Pulsar 2.11, which dashboards still ask for."""


def load_metrics(context: BrokerContext, family: Family, escape: Callable[[str], str]) -> Iterator[str]:
    """Lines of metrics on load management, for Prometheus."""
    load = context.load
    cluster = escape(context.settings.cluster_name)
    lines: dict[str, list[tuple[str, float]]] = {}
    for group in load.load_balancing_metrics():
        labels = {"cluster": cluster, **{name: escape(value) for name, value in group["dimensions"].items()}}
        text = "{" + ",".join(f'{name}="{value}"' for name, value in labels.items()) + "}"
        for name, value in group["metrics"].items():
            lines.setdefault(name.replace("brk_", "pulsar_", 1), []).append((text, value))
    for public, samples in lines.items():
        for name_asked in (public, *OTHER_NAMES.get(public, ())):
            yield from family(name_asked, _kind(public), TEXTS[public], samples)
    own = {"magnetar_lb_brokers": len(load.brokers()), "magnetar_lb_leading": int(load.leading)}
    # A broker that is alone decides nothing, and `balancing` would be made for it.
    log = load.balancing.log if load.several else None
    own["magnetar_lb_decisions_failed_total"] = log.failures if log else 0
    own["magnetar_lb_placements_total"] = log.placed if log else 0
    for name, number in own.items():
        yield from family(name, _kind(name), TEXTS[name], [(f'{{cluster="{cluster}"}}', number)])


def _kind(name: str) -> str:
    return "counter" if name.endswith("_total") else "gauge"
