"""What `/metrics` has of transaction coordinators, by the names of Pulsar's brokers (`TransactionAggregator`).

Counters have two names each: with `_total`, as Apache's brokers have them since 2.11, and with `_count`, as before and
as dashboards ask for them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from magnetar.broker.admin.brokers.metric_text import labelled, metric
from magnetar.broker.context import BrokerContext
from magnetar.broker.transactions.api import CoordinatorCounts
from magnetar.broker.transactions.coordinator_counters import LATENCY_BOUNDS_MS

LATENCY_NAME: Final = "pulsar_txn_execution_latency_le_"

BOTH: Final = ("total", "count")


def transaction_metrics(context: BrokerContext) -> Iterator[str]:
    """Lines of the coordinators that this broker runs; none where transactions are not enabled."""
    if context.coordinators is None:
        return
    of_each = [
        (labelled(cluster=context.settings.cluster_name, coordinator_id=str(one.coordinator)), one)
        for one in context.coordinators.counts()
    ]
    active = [(labels, one.active) for labels, one in of_each]
    yield from metric("pulsar_txn_active_count", "gauge", "Transactions that are not over.", active)
    for name, text in (
        ("created", "Transactions that were begun."),
        ("committed", "Transactions that were committed."),
        ("aborted", "Transactions that were aborted."),
        ("timeout", "Transactions that were aborted as they took too long."),
        ("append_log", "Records that were written to the coordinator's log."),
    ):
        counts = [(labels, _count(one, name)) for labels, one in of_each]
        for word in BOTH:
            yield from metric(f"pulsar_txn_{name}_{word}", "counter", text, counts)
    for index, upper_ms in enumerate((*LATENCY_BOUNDS_MS, None)):
        of_bucket = [(labels, one.latencies[index]) for labels, one in of_each]
        word = "overflow" if upper_ms is None else str(upper_ms)
        text = "Commits of a minute that took longer." if upper_ms is None else f"Commits within {upper_ms} ms."
        yield from metric(LATENCY_NAME + word, "gauge", text, of_bucket)


def _count(one: CoordinatorCounts, name: str) -> int:
    return {
        "created": one.created,
        "committed": one.committed,
        "aborted": one.aborted,
        "timeout": one.timed_out,
        "append_log": one.appended,
    }[name]
