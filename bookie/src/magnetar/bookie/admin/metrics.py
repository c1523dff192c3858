"""A bookie's metrics under the names that BookKeeper's Prometheus provider gives them in a Pulsar cluster.

Everything is read when scraped; nothing is kept for it elsewhere than in `magnetar.bookie.counters`, which says what is
exact. Where BookKeeper has labels for its threads, ours have none: there are no such threads, and dashboards sum over
them. `bookkeeper_server_ADD_ENTRY` and `…_ADD_ENTRY_REQUEST` (and those of reads) show the same measurement, from
arrival to answer; BookKeeper's own leave the second one at 0 for version 2 of the protocol.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from magnetar.bookie.admin import exposition
from magnetar.bookie.admin.families import Families, word_of
from magnetar.bookie.admin.recovery_metrics import add_recovery
from magnetar.bookie.counters import BookieCounters
from magnetar.bookie.operations import BookieOperations, DirectoryUsage, StorageMeasures
from magnetar.core.crashes import CRASHES, METRIC_NAME, METRIC_TEXT
from magnetar.core.histogram import Windows
from magnetar.core.slow_turns import SLOW_TURNS
from magnetar.net.refused_connections import METRIC_TEXT as REFUSED_TEXT
from prometheus_client import GCCollector, PlatformCollector, ProcessCollector
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector, CollectorRegistry

REFUSED_NAME: Final = "magnetar_bookie_rejected_connections_total"
JOURNAL: Final = "bookie_journal_JOURNAL_"
EMBEDDED_RECOVERY_PREFIX: Final = "replication_"
"""AutoRecovery inside a bookie's process; in one of its own BookKeeper's names have no prefix."""


class BookieCollector(Collector):
    """prometheus_client's view of one bookie. `collect` runs on the event loop, like all that it reads."""

    def __init__(
        self,
        operations: BookieOperations,
        recovery_prefix: str = EMBEDDED_RECOVERY_PREFIX,
    ) -> None:
        self._operations = operations
        self._recovery_prefix = recovery_prefix
        self._windows = Windows()

    def describe(self) -> Iterable[Metric]:
        """None: names depend on the directories, and a scrape is only made when asked for."""
        return []

    def collect(self) -> Iterable[Metric]:
        """All families of the bookie's metrics."""
        operations = self._operations
        self._windows.begin(operations.measures.counters.clock.monotonic_seconds())
        families = Families(self._windows)
        _add_state(families, operations)
        _add_limbo(families, operations)
        _add_requests(families, operations.measures.counters)
        _add_caches(families, operations)
        _add_journals(families, operations)
        _add_collections(families, operations)
        recovery = operations.measures.recovery_counters
        if recovery is not None:
            add_recovery(families, recovery, self._recovery_prefix)
        return families.all()


class BookieMetrics:
    """`/metrics`: the bookie's collector and the process's (CPU, memory, files, Python's collector of garbage)."""

    def __init__(self, operations: BookieOperations) -> None:
        self.registry = CollectorRegistry()
        self.registry.register(BookieCollector(operations))
        ProcessCollector(registry=self.registry)
        PlatformCollector(registry=self.registry)
        GCCollector(registry=self.registry)

    def render(self) -> str:
        """The whole text."""
        return exposition.write(self.registry.collect())


def _add_state(families: Families, operations: BookieOperations) -> None:
    state = operations.bookie.state()
    writable = 1 if state.running and not state.read_only else 0
    families.gauge("bookie_SERVER_STATUS", writable, "1 while the bookie takes writes, 0 while it is read-only.")
    usages = [usage for usage in operations.storage.directories() if usage.kind == "ledgers"]
    families.gauge("bookie_ledger_num_dirs", len(usages), "Ledger directories.")
    families.gauge(
        "bookie_ledger_writable_dirs", sum(usage.writable for usage in usages), "Ledger directories that are not full."
    )
    for usage in usages:
        name = f"bookie_ledger_dir_{word_of(_parent(usage))}_usage"
        families.gauge(name, round(100 * usage.used_share, 5), "Used part of the directory's file system in percent.")
    families.counter(METRIC_NAME, CRASHES.count, METRIC_TEXT)
    for name, family, text, value in SLOW_TURNS.metrics():
        (families.counter if family == "counter" else families.gauge)(name, value, text)
    for kind, count in operations.measures.counters.refused_connections.counts.items():
        families.counter(REFUSED_NAME, count, REFUSED_TEXT, {"reason": str(kind)})
    _add_clients(families, operations.measures.counters)
    families.gauge("bookie_JOURNAL_DIRS", len(operations.measures.counters.journals), "Journals.")


def _add_clients(families: Families, counters: BookieCounters) -> None:
    """Ours alone: BookKeeper's bookies count neither."""
    for result, count in (("success", counters.tls_handshakes), ("failure", counters.tls_handshakes_failed)):
        text = "TLS handshakes of clients, begun by START_TLS."
        families.counter("magnetar_bookie_tls_handshakes_total", count, text, {"result": result})
    text = "Connections whose requests were refused (EUA): no TLS where it is a must, or a certificate of another role."
    families.counter("magnetar_bookie_unauthorized_clients_total", counters.unauthorized_clients, text)


def _add_limbo(families: Families, operations: BookieOperations) -> None:
    """Ours alone: BookKeeper has nothing of its limbo but a log."""
    limbo = operations.bookie.limbo()
    for name, value, text in (
        ("ledgers", limbo.ledgers, "Ledgers that may lack entries here, which are fetched from peers."),
        (
            "start_timestamp_seconds",
            limbo.since_ms / 1000,
            "When the damage was found, in seconds since 1970; 0: no limbo.",
        ),
        ("ledgers_initial", limbo.ledgers_total, "Ledgers that were put into limbo when it began; 0: no limbo."),
        ("ledgers_unhealed", limbo.ledgers_unhealed, "Ledgers whose entries could not be had at the last attempt."),
        ("entries_lost", limbo.entries_lost, "Entries that no bookie has any more, which ought to; at least so many."),
        ("entries_fetched", limbo.entries_fetched, "Entries that this process has fetched from peers."),
        ("damage", len(limbo.damage), "Files or places that this process found damaged, and went on without."),
    ):
        families.gauge(f"magnetar_bookie_limbo_{name}", value, text)


def _parent(usage: DirectoryUsage) -> str:
    return usage.directory.removesuffix("/current")


def _add_requests(families: Families, counters: BookieCounters) -> None:
    server = "bookkeeper_server_"
    for name in ("ADD_ENTRY", "ADD_ENTRY_REQUEST"):
        families.summary(server + name, counters.add, "Adds, from arrival to answer, in ms; timed by journal group.")
    for name in ("READ_ENTRY", "READ_ENTRY_REQUEST"):
        families.summary(server + name, counters.read, "Reads, from arrival to answer, in ms; timed by batch.")
    for name, outcomes in (
        ("READ_ENTRY_FENCE_REQUEST", counters.fence),
        ("READ_LAC_REQUEST", counters.read_lac),
        ("WRITE_LAC_REQUEST", counters.write_lac),
        ("GET_LIST_OF_ENTRIES_OF_LEDGER_REQUEST", counters.list_entries),
    ):
        families.summary(server + name, outcomes, "Requests of this kind, in ms.")
    families.gauge(server + "ADD_ENTRY_IN_PROGRESS", counters.adds_in_progress, "Entries whose add is not answered.")
    families.gauge(server + "READ_ENTRY_IN_PROGRESS", counters.reads_in_progress, "Entries that are being read.")
    families.gauge(server + "ADD_ENTRY_BLOCKED", counters.adds_held, "Entries that wait because the disk is behind.")
    families.gauge(server + "READ_ENTRY_BLOCKED", 0, "Always 0: reads wait in their connection's queue.")
    families.counter(server + "ADD_ENTRY_REJECTED", counters.adds_rejected, "Entries refused because too many wait.")
    families.counter(server + "READ_ENTRY_REJECTED", 0, "Always 0: see READ_ENTRY_BLOCKED.")
    families.summary("bookie_BOOKIE_ADD_ENTRY", counters.add, "Adds, in ms; timed by journal group.")
    families.summary("bookie_BOOKIE_RECOVERY_ADD_ENTRY", counters.recovery_add, "Adds of recoveries, in ms.")
    families.summary("bookie_BOOKIE_READ_ENTRY", counters.read, "Reads, in ms; timed by batch.")
    families.summary(
        "bookie_BOOKIE_GET_LIST_OF_ENTRIES_OF_LEDGER", counters.list_entries, "Lists of a ledger's entries, in ms."
    )
    families.counter("bookie_WRITE_BYTES", counters.added_bytes, "Bytes of added entries; exact.")
    families.counter("bookie_READ_BYTES", counters.read_bytes, "Bytes of read entries; exact.")


def _labels(storage: StorageMeasures) -> dict[str, str]:
    return {"indexDir": storage.index_directory, "ledgerDir": storage.ledger_directory}


def _add_caches(families: Families, operations: BookieOperations) -> None:
    counters = operations.measures.counters
    storages = operations.measures.storage_measures()
    for storage in storages:
        labels = _labels(storage)
        for name, value, text in (
            ("ledgers_count", storage.ledgers, "Ledgers of which there are entries."),
            ("entries_count", storage.entries, "Entries, as the index estimates them."),
            ("write_cache_size", storage.write_cache_bytes, "Bytes that only journal and memory have."),
            ("write_cache_count", storage.write_cache_entries, "Entries that only journal and memory have."),
            ("read_cache_size", storage.read_cache_bytes, "Bytes read ahead."),
            ("read_cache_count", storage.read_cache_entries, "Entries read ahead."),
        ):
            families.gauge(f"bookie_{name}", value, text, labels)
        for name, hits in (
            ("write_cache_hits", storage.write_cache_hits),
            ("write_cache_misses", storage.write_cache_misses),
            ("read_cache_hits", storage.read_cache_hits),
            ("read_cache_misses", storage.read_cache_misses),
        ):
            families.counter(f"bookie_{name}", hits, "Entries that a cache had, or had not.", labels)
            if name.startswith("read_"):
                families.counter(f"bookie_{name}_count", hits, "The same, by the name of before 4.16.", labels)
        families.sizes(
            "bookie_readahead_batch_count", storage.read_ahead_batches, "Entries that one read brought.", labels=labels
        )
    # Reads and checkpoints are of all directories together; the labels are the first one's.
    labels = _labels(storages[0]) if storages else {}
    families.summary("bookie_read_entry", counters.read, "Reads, in ms; timed by batch.", labels=labels)
    families.gauge(
        "bookie_write_cache_max_size",
        operations.storage.totals().write_cache_bytes_max,
        "Bytes that the write cache may have.",
    )
    families.summary("bookie_flush", counters.flush, "Checkpoints, in ms.", labels=labels)
    families.sizes("bookie_flush_size", counters.flush_bytes, "Bytes of a checkpoint.", labels=labels)


def _add_journals(families: Families, operations: BookieOperations) -> None:
    measures = operations.measures.journal_measures()
    for index, (journal, measure) in enumerate(zip(operations.measures.counters.journals, measures, strict=True)):
        labels = {"journalIndex": str(index)}
        families.summary(JOURNAL + "ADD_ENTRY", journal.add, "From hand-over to durable, in ms.", labels=labels)
        families.summary(JOURNAL + "SYNC", journal.sync, "Durable writes of a group, in ms; exact.", labels=labels)
        families.summary(JOURNAL + "FLUSH_LATENCY", journal.sync, "The same: one write does both.", labels=labels)
        for name in ("FORCE_WRITE_BATCH_ENTRIES", "FORCE_WRITE_GROUPING_TOTAL"):
            families.sizes(JOURNAL + name, journal.group_records, "Records of a group; exact.", labels=labels)
        families.sizes(
            JOURNAL + "FORCE_WRITE_BATCH_BYTES", journal.group_bytes, "Bytes of a group; exact.", labels=labels
        )
        families.counter(JOURNAL + "WRITE_BYTES", journal.written_bytes, "Bytes of entries written.", labels)
        # BookKeeper declares its queues' lengths as counters; a scraper that heeds types would misread them.
        families.gauge(JOURNAL + "QUEUE_SIZE", measure.queue_records, "Records that wait for their group.", labels)
        families.gauge(JOURNAL + "FORCE_WRITE_QUEUE_SIZE", 0, "Always 0: a group is written at once.", labels)
        families.gauge(JOURNAL + "MEMORY_USED", measure.queue_bytes, "Bytes that wait for their group.", labels)
        families.gauge(JOURNAL + "MEMORY_MAX", measure.queue_bytes_max, "Beyond these, adds wait.", labels)


def _add_collections(families: Families, operations: BookieOperations) -> None:
    counters = {status.directory: status.counters for status in operations.collection.collections()}
    for storage in operations.measures.storage_measures():
        labels = _labels(storage)
        done = counters.get(storage.ledger_directory)
        for name, value, text in (
            ("MINOR_COMPACTION_TOTAL", done.minor_compactions if done else 0, "Minor compactions."),
            ("MAJOR_COMPACTION_TOTAL", done.major_compactions if done else 0, "Major compactions."),
            ("ENTRY_LOCATION_COMPACTION_TOTAL", done.location_compactions if done else 0, "Compactions of the index."),
            ("DELETED_LEDGER_TOTAL", storage.deleted_ledgers, "Ledgers whose entries were given up."),
            ("RECLAIMED_COMPACTION_SPACE_BYTES", storage.compaction_reclaimed_bytes, "Bytes that compaction freed."),
            ("RECLAIMED_DELETION_SPACE_BYTES", storage.deletion_reclaimed_bytes, "Bytes freed with whole logs."),
            ("RECLAIM_FAILED_TO_DELETE", storage.deletions_failed, "Entry logs that could not be deleted."),
        ):
            for spelled in _spellings(name):
                families.counter(f"bookie_{spelled}", value, text, labels)
        for spelled in _spellings("ACTIVE_ENTRY_LOG_TOTAL"):
            families.gauge(f"bookie_{spelled}", storage.entry_logs, "Entry logs.", labels)
        families.gauge("bookie_ACTIVE_ENTRY_LOG_SPACE_BYTES", storage.entry_log_bytes, "Bytes of entry logs.", labels)
        for spelled in _spellings("ACTIVE_LEDGER_TOTAL"):
            families.gauge(f"bookie_{spelled}", storage.collected_ledgers, "Ledgers in the entry logs.", labels)


def _spellings(name: str) -> tuple[str, ...]:
    """What ends in `_TOTAL` had the end `_COUNT` in BookKeeper's metrics of before; dashboards ask for either."""
    return (name, name.removesuffix("_TOTAL") + "_COUNT") if name.endswith("_TOTAL") else (name,)
