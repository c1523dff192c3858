"""What `/metrics` tells of resource groups: Pulsar's names and labels (`ResourceGroupService`).

Apache's broker adds up the quotas that it computes, as counters; here they are what is in force now.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from magnetar.broker.context import BrokerContext
from magnetar.broker.resource_groups.group import GroupSide

GROUP_METRICS: Final[tuple[tuple[str, str, str, Callable[[GroupSide], float]], ...]] = (
    (
        "pulsar_resource_group_messages_used_total",
        "counter",
        "Messages of the group that passed this broker.",
        lambda side: side.limiter.messages_total,
    ),
    (
        "pulsar_resource_group_bytes_used_total",
        "counter",
        "Bytes of the group that passed this broker.",
        lambda side: side.limiter.bytes_total,
    ),
    (
        "pulsar_resource_group_calculated_messages_quota",
        "gauge",
        "Messages per second that this broker may use of the group's limit; 0 is no limit.",
        lambda side: side.parts[0],
    ),
    (
        "pulsar_resource_group_calculated_bytes_quota",
        "gauge",
        "Bytes per second that this broker may use of the group's limit; 0 is no limit.",
        lambda side: side.parts[1],
    ),
)


def group_metrics(context: BrokerContext, metric: Callable[..., list[str]], escape: Callable[[str], str]) -> list[str]:
    """Each group that a topic of this broker is in, what comes in and what goes out."""
    cluster = escape(context.settings.cluster_name)
    sides = [
        (f'{{cluster="{cluster}",ResourceGroup="{escape(group.name)}",MonitoringClass="{direction}"}}', side)
        for group in context.service.groups.in_use()
        for direction, side in (("Publish", group.publish), ("Dispatch", group.dispatch))
    ]
    lines: list[str] = []
    for name, kind, about, value in GROUP_METRICS:
        lines += metric(name, kind, about, [(labels, value(side)) for labels, side in sides])
    return lines
