"""What `/metrics` has of managed ledgers and their cache, by the names of Pulsar's brokers (`TopicStats`,
`ManagedLedgerMetrics`, `ManagedLedgerCacheMetrics`).

Buckets are gauges: how many entries of the last period of statistics are in each, and in no other. Dashboards show them
as they are. The last bucket of either kind has two names, as dashboards and alert rules ask for both: Apache's brokers
have `…_write_latency_overflow` and `…_entry_size_le_overflow`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from magnetar.broker.admin.brokers.metric_text import Definition, labelled, metric
from magnetar.broker.context import BrokerContext
from magnetar.broker.topics.topic import PersistentTopic

LATENCIES: Final = ("0_5", "1", "5", "10", "20", "50", "100", "200", "1000")
"""Milliseconds, the ends of `period.LATENCY_BOUNDS_MICROSECONDS` as they stand in names."""

SIZES: Final = ("128", "512", "1_kb", "2_kb", "4_kb", "16_kb", "100_kb", "1_mb")
"""Bytes, the ends of `period.SIZE_BOUNDS_BYTES` as they stand in names."""

_LATENCY: Final = "pulsar_storage_write_latency_"
_SIZE: Final = "pulsar_entry_size_"

WRITE_METRICS: Final[tuple[Definition, ...]] = (
    *((f"{_LATENCY}le_{end}", "gauge", f"Entries of a period written in {end} ms or less.") for end in LATENCIES),
    (f"{_LATENCY}overflow", "gauge", "Entries of a period that took longer to write."),
    (f"{_LATENCY}le_overflow", "gauge", "Entries of a period that took longer to write."),
    (f"{_LATENCY}count", "gauge", "Entries of a period."),
    (f"{_LATENCY}sum", "gauge", "Microseconds that the writes of a period took together."),
    *((f"{_SIZE}le_{end}", "gauge", f"Entries of a period with {end} bytes or less.") for end in SIZES),
    (f"{_SIZE}le_overflow", "gauge", "Entries of a period that were larger."),
    (f"{_SIZE}overflow", "gauge", "Entries of a period that were larger."),
    (f"{_SIZE}count", "gauge", "Entries of a period."),
    (f"{_SIZE}sum", "gauge", "Bytes of all entries of a period."),
)

NAMESPACE_METRICS: Final[tuple[Definition, ...]] = (
    ("pulsar_ml_AddEntryBytesRate", "gauge", "Bytes per second written."),
    ("pulsar_ml_AddEntryWithReplicasBytesRate", "gauge", "Bytes per second written, all copies counted."),
    ("pulsar_ml_AddEntryMessagesRate", "gauge", "Entries per second written."),
    ("pulsar_ml_AddEntrySucceed", "gauge", "Entries written in the last period of statistics."),
    ("pulsar_ml_ReadEntriesBytesRate", "gauge", "Bytes per second read from bookies."),
    ("pulsar_ml_ReadEntriesRate", "gauge", "Entries per second read from bookies."),
    ("pulsar_ml_ReadEntriesOpsCacheMissesRate", "gauge", "Entries per second that the cache had not."),
    ("pulsar_ml_NumberOfMessagesInBacklog", "gauge", "Entries that cursors have not acknowledged."),
    ("pulsar_ml_StoredMessagesSize", "gauge", "Bytes stored, all copies counted."),
)
"""Of all managed ledgers of a namespace together."""


def write_values(topic: PersistentTopic) -> list[float] | None:
    """Values in the order of WRITE_METRICS; None for a topic that wrote nothing, and read nothing from bookies, since
    it was loaded: of a hundred thousand idle ones the page would else be zeros."""
    periods = topic.ledger.appends.periods
    if periods is None:
        return None
    written = periods.written
    latencies, sizes = written.latencies, written.sizes
    return [
        *latencies,
        latencies[-1],
        written.entries,
        round(written.latency_microseconds),
        *sizes,
        sizes[-1],
        written.entries,
        written.size_bytes,
    ]


def namespace_values(topic: PersistentTopic) -> list[float]:
    """What a topic adds to the values of its namespace, in the order of NAMESPACE_METRICS."""
    ledger = topic.ledger
    copies = ledger.settings.write_quorum
    of_writes: list[float] = [0.0, 0.0, 0.0, 0, 0.0, 0.0, 0.0]
    periods = ledger.appends.periods
    if periods is not None:
        written, read = periods.written, periods.read
        byte_rate = periods.per_second(written.size_bytes)
        read_rate = periods.per_second(read.entries)
        of_writes = [
            byte_rate,
            byte_rate * copies,
            periods.per_second(written.entries),
            written.entries,
            periods.per_second(read.size_bytes),
            read_rate,
            read_rate,
        ]
    backlog = sum(cursor.backlog_entries for cursor in ledger.cursors.values())
    return [*of_writes, backlog, ledger.ledgers.total_size_bytes() * copies]


def cache_metrics(context: BrokerContext, ledgers: int) -> Iterator[str]:
    """Lines about the cache of entries; so many managed ledgers are topics'."""
    labels = labelled(cluster=context.settings.cluster_name)
    cache, rates = context.service.ledgers.cache, context.service.ledgers.cache_rates
    for name, kind, text, value in (
        ("count", "gauge", "Managed ledgers of topics that are open.", ledgers),
        (
            "cache_used_size",
            "gauge",
            "Bytes of the entries in the cache, with what they cost beside.",
            cache.size_bytes,
        ),
        ("cache_entries", "gauge", "Entries in the cache.", cache.entries),
        ("cache_inserted_entries_total", "counter", "Entries that came into the cache.", cache.inserted_entries),
        ("cache_evicted_entries_total", "counter", "Entries that had to go for room or age.", cache.evicted_entries),
        ("cache_evictions", "gauge", "How often some had to, in the last period of statistics.", rates.evictions),
        ("cache_hits_rate", "gauge", "Entries per second from the cache.", rates.hits_per_second),
        ("cache_misses_rate", "gauge", "Entries per second from bookies.", rates.misses_per_second),
        ("cache_hits_throughput", "gauge", "Bytes per second from the cache.", rates.hit_bytes_per_second),
        ("cache_misses_throughput", "gauge", "Bytes per second from bookies.", rates.missed_bytes_per_second),
    ):
        yield from metric(f"pulsar_ml_{name}", kind, text, [(labels, value)])
