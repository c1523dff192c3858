"""Families of `/metrics` beside what they are about: each number in its own family, under its own labels."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from magnetar.broker.admin.brokers.group_metrics import group_metrics
from magnetar.broker.admin.brokers.load_metrics import load_metrics
from magnetar.broker.admin.brokers.metric_text import escape, metric
from magnetar.broker.admin.brokers.offload_metrics import OFFLOAD_METRICS, offload_values
from magnetar.broker.admin.brokers.transaction_metrics import transaction_metrics
from magnetar.broker.resource_groups.group import GroupLimits, ResourceGroup
from magnetar.broker.transactions.api import CoordinatorCounts
from magnetar.broker.transactions.coordinator_counters import LATENCY_BOUNDS_MS
from magnetar.managed.offload.counters import OffloadCounters

from broker.tests.subscription_stage import Timers


def context(**parts: Any) -> Any:
    return SimpleNamespace(settings=SimpleNamespace(cluster_name="c"), **parts)


def test_both_directions_of_a_group_are_told_apart() -> None:
    timers = Timers()
    group = ResourceGroup("g", timers, timers.call_later)
    group.use_limits(GroupLimits(10, 20, 30, 40), 1)
    group.publish.limiter.take(1, 2)
    group.dispatch.limiter.take(3, 4)
    groups = SimpleNamespace(in_use=lambda: [group])
    lines = group_metrics(context(service=SimpleNamespace(groups=groups)), metric, escape)
    told = [line.rpartition(" ") for line in lines if not line.startswith("#")]
    found: dict[str, list[tuple[bool, float]]] = {}
    for labels, _, value in told:
        name = labels.partition("{")[0].removeprefix("pulsar_resource_group_")
        found.setdefault(name, []).append(("Publish" in labels, float(value)))
    assert found == {
        "messages_used_total": [(True, 1), (False, 3)],
        "bytes_used_total": [(True, 2), (False, 4)],
        "calculated_messages_quota": [(True, 10), (False, 30)],
        "calculated_bytes_quota": [(True, 20), (False, 40)],
    }


def test_who_leads_and_how_many_there_are() -> None:
    for leading in (True, False):
        load = SimpleNamespace(load_balancing_metrics=list, brokers=lambda: ["a", "b"], leading=leading, several=False)
        lines = list(load_metrics(context(load=load), metric, escape))
        assert f'magnetar_lb_leading{{cluster="c"}} {int(leading)}' in lines
        assert 'magnetar_lb_brokers{cluster="c"} 2' in lines


def test_how_transactions_ended_and_how_long_commits_took() -> None:
    latencies = tuple(range(20, 21 + len(LATENCY_BOUNDS_MS)))
    counts = CoordinatorCounts(
        coordinator=3, active=1, created=2, committed=4, aborted=5, timed_out=6, appended=7, latencies=latencies
    )
    lines = list(transaction_metrics(context(coordinators=SimpleNamespace(counts=lambda: [counts]))))
    told = dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    labels = '{cluster="c",coordinator_id="3"}'
    for name, value in (("created", 2), ("committed", 4), ("aborted", 5), ("timeout", 6), ("append_log", 7)):
        for word in ("total", "count"):
            assert told[f"pulsar_txn_{name}_{word}{labels}"] == str(value)
    assert told[f"pulsar_txn_active_count{labels}"] == "1"
    bounds = [*map(str, LATENCY_BOUNDS_MS), "overflow"]
    assert [told[f"pulsar_txn_execution_latency_le_{bound}{labels}"] for bound in bounds] == [*map(str, latencies)]


def test_what_tiered_storage_did_stands_in_the_family_of_its_name() -> None:
    counters = OffloadCounters()
    counters.offload_errors, counters.write_errors, counters.read_errors = 1, 2, 3
    counters.deletions, counters.deletions_failed, counters.ledger_reads = 4, 5, 6
    counters.ledger_read_seconds = 3.0
    counters.offload_bytes_per_second, counters.read_bytes_per_second = 7.0, 8.0
    topic: Any = SimpleNamespace(ledger=SimpleNamespace(offloads=SimpleNamespace(counters=counters)))
    values = offload_values(topic)
    assert values is not None
    told = {
        name.partition("ledgeroffloader_")[2]: value
        for (name, _, _), value in zip(OFFLOAD_METRICS, values, strict=True)
    }
    assert told == {
        "offload_error_total": 1,
        "offload_error": 1,
        "offload_rate": 7.0,
        "writeRate": 7.0,
        "write_storage_error_total": 2,
        "write_storage_error": 2,
        "read_offload_error_total": 3,
        "read_offload_error": 3,
        "read_offload_rate": 8.0,
        "delete_offload_ops_total": 4,
        "delete_offload_errors_total": 5,
        "read_ledger_latency_count": 6,
        "read_ledger_latency_sum": 3_000_000,
        "read_ledger_latency": 500_000.0,
    }
