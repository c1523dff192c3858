"""`/metrics`: names, types and labels beside those that a real BookKeeper 4.17 bookie in Pulsar's packaging serves."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Final

import pytest
from magnetar.bookie.admin.families import word_of
from magnetar.bookie.admin.metrics import BookieCollector, BookieMetrics
from magnetar.bookie.admin.testing import DAMAGED, FakeOperations
from magnetar.core.histogram import WINDOW_SECONDS
from magnetar.core.slow_turns import SLOW_TURNS
from magnetar.net.refused_connections import LimitKind
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

RECORDED: Final = Path(__file__).parent / "recorded" / "bookkeeper_metrics.txt"
"""`name type label,label` of each family."""

OURS_IS_A_GAUGE: Final = {"bookie_journal_JOURNAL_QUEUE_SIZE", "bookie_journal_JOURNAL_FORCE_WRITE_QUEUE_SIZE"}
"""Lengths of queues, which BookKeeper declares as counters."""

THREAD_LABELS: Final = {"thread", "threadPool"}

DASHBOARD: Final = Path(__file__).parent / "recorded" / "dashboard_metrics.txt"
"""Metrics that the queries of public Grafana dashboards for Pulsar name: lhotari/pulsar-grafana-dashboards (75a9067),
streamnative/apache-pulsar-grafana-dashboard (9a61a26), datastax/kaap (f0cf87f)."""

FORMER: Final = {
    "bookie_ACTIVE_ENTRY_LOG_COUNT",
    "bookie_ACTIVE_LEDGER_COUNT",
    "bookie_DELETED_LEDGER_COUNT",
    "bookie_ENTRY_LOCATION_COMPACTION_COUNT",
    "bookie_MAJOR_COMPACTION_COUNT",
    "bookie_MINOR_COMPACTION_COUNT",
    "bookie_read_cache_hits_count",
    "bookie_read_cache_misses_count",
}
"""Names of before, which BookKeeper 4.17 has no more and dashboards ask for."""

ELSEWHERE: Final = {
    r"bookie_journal_JOURNAL_CB_QUEUE_SIZE": "BookKeeper 4.17 has no such queue either",
    r"bookie_ledger_dir__pulsar_data_bookkeeper_ledgers_0_usage": "of a directory of that name",
    r"bookkeeper_server_(BookieReadThreadPool_|thread_executor_queue)": "queues of thread pools that there are not",
}
"""What dashboards ask for and a bookie has not, with the reason."""


class HandClock:
    """Stands still until it is told."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def now_ms(self) -> int:
        return 0

    def monotonic_seconds(self) -> float:
        return self.seconds


def samples(text: str) -> dict[str, list[Sample]]:
    """By their names in the text; the parser puts `_total` behind those of every counter."""
    written = {line.partition(" ")[0].partition("{")[0] for line in text.splitlines()}
    found: dict[str, list[Sample]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            name = sample.name if sample.name in written else sample.name.removesuffix("_total")
            found.setdefault(name, []).append(sample)
    return found


def quantiles(found: list[Sample]) -> dict[str, float]:
    """Of what worked."""
    return {sample.labels["quantile"]: sample.value for sample in found if sample.labels["success"] == "true"}


def families(text: str) -> dict[str, tuple[str, set[str]]]:
    """Name of each family → its type and labels, as written."""
    types = {line.split()[2]: line.split()[3] for line in text.splitlines() if line.startswith("# TYPE")}
    labels: dict[str, set[str]] = {}
    for name, found in samples(text).items():
        for suffix in ("", "_count", "_sum"):
            if name.removesuffix(suffix) in types:
                labels.setdefault(name.removesuffix(suffix), set()).update(*(sample.labels for sample in found))
    return {name: (kind, labels.get(name, set())) for name, kind in types.items()}


@pytest.fixture
def operations() -> FakeOperations:
    return FakeOperations(HandClock())


def test_families_have_bookkeepers_types_and_labels(operations: FakeOperations) -> None:
    recorded = {}
    for line in RECORDED.read_text().splitlines():
        name, kind, labels = line.split(" ")
        recorded[name] = (kind, set(labels.split(",")) - THREAD_LABELS - {""})
    ours = families(BookieMetrics(operations.all()).render())
    shared = [name for name in ours if name in recorded and name not in OURS_IS_A_GAUGE]
    assert len(shared) >= 83
    assert {name: ours[name] for name in shared} == {name: recorded[name] for name in shared}
    unknown = {name for name in ours if name.startswith(("bookie_", "bookkeeper_", "replication_"))} - set(recorded)
    assert unknown == {"bookie_ledger_dir__data_ledgers_usage", *FORMER}


def test_every_metric_of_the_dashboards_is_there(operations: FakeOperations) -> None:
    collected = BookieCollector(operations.all(), recovery_prefix="").collect()
    served = {sample.name for family in collected for sample in family.samples}
    asked = set(DASHBOARD.read_text().split())
    missing = asked - served
    assert {name for name in missing if not any(re.match(pattern, name) for pattern in ELSEWHERE)} == set()
    assert all(any(re.match(pattern, name) for name in missing) for pattern in ELSEWHERE)


def test_values(operations: FakeOperations) -> None:
    clock = operations.counters.clock
    assert isinstance(clock, HandClock)
    done = operations.counters.timed_add(lambda *_: None, 4, 4096, recovery=False)
    clock.seconds = 0.010
    done(0, 1, (1, 2, 3, 4))
    operations.counters.journals[0].group_written(0.002, 0.003, 4, 4096, success=True)
    found = samples(BookieMetrics(operations.all()).render())
    assert [sample.value for sample in found["bookie_WRITE_BYTES"]] == [4096]
    assert [sample.value for sample in found["bookie_SERVER_STATUS"]] == [1]
    assert [sample.value for sample in found["bookie_ledger_dir__data_ledgers_usage"]] == [75]
    counts = {sample.labels["success"]: sample.value for sample in found["bookkeeper_server_ADD_ENTRY_count"]}
    assert counts == {"true": 4, "false": 0}
    good = {
        s.labels["quantile"]: s.value for s in found["bookkeeper_server_ADD_ENTRY"] if s.labels["success"] == "true"
    }
    assert list(good) == ["0.5", "0.75", "0.95", "0.99", "0.999", "0.9999", "1.0"]
    assert good["1.0"] == pytest.approx(10)
    assert good["0.5"] == pytest.approx(10, rel=0.34)
    sync = [s.value for s in found["bookie_journal_JOURNAL_SYNC_sum"] if s.labels["success"] == "true"]
    assert sync == [pytest.approx(2.0)]
    assert found["bookie_journal_JOURNAL_QUEUE_SIZE"][0].labels == {"journalIndex": "0"}


def test_refused_connections_are_counted(operations: FakeOperations) -> None:
    operations.counters.refused_connections.counts[LimitKind.FILES] = 3
    text = BookieMetrics(operations.all()).render()
    found = dict(re.findall(r'^magnetar_bookie_rejected_connections_total{reason="(.+)"} (\S+)$', text, re.MULTILINE))
    assert {kind: float(count) for kind, count in found.items()} == {
        "files": 3,
        "http": 0,
        "handshakes": 0,
        "memory": 0,
    }


def test_tls_handshakes_and_refused_clients_are_counted(operations: FakeOperations) -> None:
    counters = operations.counters
    counters.tls_handshakes, counters.tls_handshakes_failed, counters.unauthorized_clients = 5, 2, 1
    lines = BookieMetrics(operations.all()).render().splitlines()
    assert 'magnetar_bookie_tls_handshakes_total{result="success"} 5' in lines
    assert 'magnetar_bookie_tls_handshakes_total{result="failure"} 2' in lines
    assert "magnetar_bookie_unauthorized_clients_total 1" in lines


def test_slow_turns_are_told(operations: FakeOperations, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SLOW_TURNS, "count", 4)
    monkeypatch.setattr(SLOW_TURNS, "longest_seconds", 1.5)
    found = samples(BookieMetrics(operations.all()).render())
    assert found["magnetar_event_loop_slow_turns_total"][0].value == 4
    assert found["magnetar_event_loop_longest_turn_seconds"][0].value == 1.5


def test_limbo_is_measured(operations: FakeOperations) -> None:
    operations.lacks = DAMAGED
    text = BookieMetrics(operations.all()).render()
    found = dict(re.findall(r"^magnetar_bookie_limbo_(\S+) (\S+)$", text, re.MULTILINE))
    assert {name: float(value) for name, value in found.items()} == {
        "ledgers": 3,
        "start_timestamp_seconds": DAMAGED.since_ms / 1000,
        "ledgers_initial": 12,
        "ledgers_unhealed": 1,
        "entries_lost": 40,
        "entries_fetched": 700,
        "damage": 1,
    }


def test_quantiles_forget_after_two_windows(operations: FakeOperations) -> None:
    clock = operations.counters.clock
    assert isinstance(clock, HandClock)
    metrics = BookieMetrics(operations.all())

    def median_and_count() -> tuple[float, float]:
        found = samples(metrics.render())
        median = quantiles(found["bookkeeper_server_READ_ENTRY"])["0.5"]
        return median, found["bookkeeper_server_READ_ENTRY_count"][1].value

    operations.counters.read.record(1.0, 10, success=True)
    assert median_and_count() == pytest.approx((1000, 10), rel=0.34)
    clock.seconds = WINDOW_SECONDS
    operations.counters.read.record(0.001, 1, success=True)
    assert median_and_count() == pytest.approx((1, 11), rel=0.34)
    clock.seconds = 3 * WINDOW_SECONDS
    median_and_count()
    clock.seconds = 4 * WINDOW_SECONDS
    median, count = median_and_count()
    assert math.isnan(median)
    assert count == 11


def test_read_only_and_no_recovery(operations: FakeOperations) -> None:
    operations.recovery_counters = None
    found = samples(BookieMetrics(operations.all()).render())
    assert not [name for name in found if "replication" in name]
    assert "process_cpu_seconds_total" in found


def test_words_of_paths() -> None:
    assert word_of("/pulsar/data/bookkeeper/ledgers-0") == "_pulsar_data_bookkeeper_ledgers_0"
