"""What `/metrics` has of tiered storage, of topics that had to do with it since they were loaded.

Names are those of Apache's brokers (`LedgerOffloaderStatsImpl`), and with another beginning those that the public
dashboards ask for, which come from an older version.
"""

from __future__ import annotations

from typing import Final

from magnetar.broker.admin.brokers.metric_text import Definition
from magnetar.broker.topics.topic import PersistentTopic
from magnetar.managed.offload.counters import NOTHING_OFFLOADED

_MICROSECONDS: Final = 1_000_000

_NEW: Final = "brk_ledgeroffloader_"
_OLD: Final = "pulsar_ledgeroffloader_"

OFFLOAD_METRICS: Final[tuple[Definition, ...]] = (
    (f"{_NEW}offload_error_total", "counter", "Offloads that failed."),
    (f"{_NEW}offload_rate", "gauge", "Bytes per second offloaded, in the last period of statistics."),
    (f"{_NEW}write_storage_error_total", "counter", "Offloads that failed because the store did."),
    (f"{_NEW}read_offload_error_total", "counter", "Offloaded copies that could not be opened, read or verified."),
    (f"{_NEW}read_offload_rate", "gauge", "Bytes per second read from the store, in that period."),
    (f"{_NEW}delete_offload_ops_total", "counter", "Offloads whose objects were deleted."),
    (f"{_NEW}delete_offload_errors_total", "counter", "Deletions of an offload's objects that failed."),
    (f"{_NEW}read_ledger_latency_count", "counter", "Reads from BookKeeper of ledgers while they were offloaded."),
    (
        f"{_NEW}read_ledger_latency_sum",
        "counter",
        "Microseconds that reads from BookKeeper took while ledgers were offloaded.",
    ),
    (f"{_OLD}offload_error", "counter", "Offloads that failed."),
    (f"{_OLD}offload_rate", "gauge", "Bytes per second offloaded, in the last period of statistics."),
    (f"{_OLD}writeRate", "gauge", "Bytes per second offloaded, by the former name."),
    (f"{_OLD}write_storage_error", "counter", "Offloads that failed because the store did."),
    (f"{_OLD}read_offload_error", "counter", "Offloaded copies that could not be opened, read or verified."),
    (f"{_OLD}read_ledger_latency", "gauge", "Microseconds of a read of a ledger that is offloaded, on average."),
)


def offload_values(topic: PersistentTopic) -> list[float] | None:
    """Values in the order of OFFLOAD_METRICS; None for a topic that nothing was offloaded or read of."""
    counters = topic.ledger.offloads.counters
    if counters is NOTHING_OFFLOADED:
        return None
    microseconds = counters.ledger_read_seconds * _MICROSECONDS
    rate = counters.offload_bytes_per_second
    return [
        counters.offload_errors,
        rate,
        counters.write_errors,
        counters.read_errors,
        counters.read_bytes_per_second,
        counters.deletions,
        counters.deletions_failed,
        counters.ledger_reads,
        round(microseconds),
        counters.offload_errors,
        rate,
        rate,
        counters.write_errors,
        counters.read_errors,
        microseconds / counters.ledger_reads if counters.ledger_reads else 0.0,
    ]
