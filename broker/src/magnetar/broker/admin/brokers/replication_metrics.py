"""Metrics of replicators and of snapshots across clusters, by Apache's names (`ReplicatorStats`,
`NamespaceStatsAggregator`, `ReplicatedSubscriptionsController`)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from magnetar.broker.admin.brokers.metric_text import labelled, metric
from magnetar.broker.replicated_subscriptions.figures import SnapshotFigures
from magnetar.broker.topics.topic import Topic

REPLICATION_METRICS: Final[tuple[tuple[str, str, str], ...]] = (
    ("pulsar_replication_rate_in", "gauge", "Messages per second that came from the cluster."),
    ("pulsar_replication_rate_out", "gauge", "Messages per second that were sent to the cluster."),
    ("pulsar_replication_throughput_in", "gauge", "Bytes per second that came from the cluster."),
    ("pulsar_replication_throughput_out", "gauge", "Bytes per second that were sent to the cluster."),
    ("pulsar_replication_backlog", "gauge", "Entries that the cluster has not confirmed."),
    ("pulsar_replication_rate_expired", "gauge", "Messages per second that were too old to be sent."),
    ("pulsar_replication_connected_count", "gauge", "Replicators that have a producer at the cluster."),
    ("pulsar_replication_disconnected_count", "gauge", "Replicators that have no producer at the cluster."),
    ("pulsar_replication_delay_in_seconds", "gauge", "Age of the oldest message on its way to the cluster."),
)

DROPPED_METRICS: Final[tuple[tuple[str, str, str], ...]] = (
    ("magnetar_replication_dropped_total", "counter", "Messages that are stored nowhere and could not be sent."),
)
"""Of topics that store nothing. Apache's broker tells it by OpenTelemetry alone
(`pulsar.broker.replication.dropped.count`)."""


def replication_values(topic: Topic) -> Iterator[tuple[str, list[float]]]:
    """For each cluster that the topic is replicated to, and each of its shadow topics, values in the order of
    REPLICATION_METRICS."""
    for remote, one in topic.all_replicators.items():
        messages, size_bytes, expired = one.counters.rates
        yield (
            remote,
            [
                0.0,
                messages,
                0.0,
                size_bytes,
                one.backlog,
                expired,
                float(one.connected),
                float(not one.connected),
                one.delay_seconds(),
            ],
        )


def dropped_values(topic: Topic) -> Iterator[tuple[str, list[float]]]:
    """For each cluster that a topic which stores nothing is replicated to, values in the order of DROPPED_METRICS."""
    for remote, one in topic.all_replicators.items():
        if not one.keeps:
            yield remote, [one.counters.dropped]


def snapshot_metrics(cluster: str, figures: SnapshotFigures | None) -> list[str]:
    """Lines of the snapshots for replicated subscriptions; none before a topic of this broker has to do with them."""
    if figures is None:
        return []
    labels, name = labelled(cluster=cluster), "pulsar_replicated_subscriptions"
    lines: list[str] = []
    for word, text, value in (
        ("pending", "Snapshots that are not complete.", figures.pending),
        ("timedout", "Snapshots that were given up.", figures.timed_out),
    ):
        lines += metric(f"{name}_{word}_snapshots", "gauge", text, [(labels, value)])
    lines += metric(f"{name}_snapshot_ms", "summary", "How long snapshots took, in ms.", [])
    lines.append(f"{name}_snapshot_ms_count{labels} {figures.finished}")
    lines.append(f"{name}_snapshot_ms_sum{labels} {figures.finished_ms}")
    return lines
