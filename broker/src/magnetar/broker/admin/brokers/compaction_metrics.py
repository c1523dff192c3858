"""Metrics of topics that are compacted, by the names that Pulsar's dashboards ask for (`TopicStats`)."""

from __future__ import annotations

from typing import Final

from magnetar.broker.compaction.record import LATENCY_MS
from magnetar.broker.topics.topic import PersistentTopic, Topic

LATENCY_NAME: Final = "pulsar_compaction_latency_le_"

COMPACTION_METRICS: Final[tuple[tuple[str, str, str], ...]] = (
    ("pulsar_compaction_removed_event_count", "gauge", "Messages that compactions found to be of no use."),
    ("pulsar_compaction_succeed_count", "gauge", "Compactions that went well."),
    ("pulsar_compaction_failed_count", "gauge", "Compactions that failed."),
    ("pulsar_compaction_duration_time_in_mills", "gauge", "Milliseconds that compactions took."),
    ("pulsar_compaction_read_throughput", "gauge", "Bytes per second that compactions read."),
    ("pulsar_compaction_write_throughput", "gauge", "Bytes per second that compactions wrote."),
    ("pulsar_compaction_compacted_entries_count", "gauge", "Entries that the last compaction left."),
    ("pulsar_compaction_compacted_entries_size", "gauge", "Bytes that the last compaction left."),
    *(
        (
            f"{LATENCY_NAME}{str(upper_ms).removesuffix('.0').replace('.', '_')}",
            "gauge",
            f"Entries within {upper_ms} ms.",
        )
        for upper_ms in LATENCY_MS
    ),
    (f"{LATENCY_NAME}overflow", "gauge", "Entries that took longer to be written."),
)


def compaction_values(topic: Topic) -> list[float] | None:
    """Values in the order of COMPACTION_METRICS; None for a topic that was not compacted since it was loaded."""
    if not isinstance(topic, PersistentTopic) or topic.compaction is None:
        return None
    record = topic.compaction.record
    return [
        record.removed,
        record.succeeded,
        record.failed,
        record.duration_ms,
        record.read_rate,
        record.write_rate,
        record.entries,
        record.size_bytes,
        *record.latencies,
    ]
