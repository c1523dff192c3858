"""AutoRecovery's metrics under BookKeeper's names (`…auditor_*`, `…replication_worker_*`)."""

from __future__ import annotations

from magnetar.bookie.admin.families import Families
from magnetar.bookie.counters import RecoveryCounters


def add_recovery(families: Families, counters: RecoveryCounters, prefix: str) -> None:
    """All of it; `prefix` is `replication_` inside a bookie's process, else empty."""
    _add_worker(families, counters, f"{prefix}replication_worker_")
    _add_auditor(families, counters, f"{prefix}auditor_")


def _add_worker(families: Families, counters: RecoveryCounters, prefix: str) -> None:
    families.summary(f"{prefix}rereplicate", counters.replication, "Ledgers that were worked on, in ms.")
    for name, value, text in (
        ("NUM_FULL_OR_PARTIAL_LEDGERS_REPLICATED", counters.ledgers_replicated, "Ledgers replicated."),
        ("NUM_NOT_ADHERING_PLACEMENT_LEDGERS_REPLICATED", counters.ledgers_misplaced_replicated, "For place alone."),
        ("NUM_DEFER_LEDGER_LOCK_RELEASE_OF_FAILED_LEDGER", counters.ledgers_deferred, "Ledgers left for later."),
        ("NUM_ENTRIES_READ", counters.entries_read, "Entries read to be copied."),
        ("NUM_ENTRIES_WRITTEN", counters.entries_written, "Entries copied."),
        ("NUM_ENTRIES_UNABLE_TO_READ_FOR_REPLICATION", counters.entries_unreadable, "Entries that nobody could give."),
    ):
        families.counter(f"{prefix}{name}", value, text)
    families.sizes(f"{prefix}NUM_BYTES_READ", counters.bytes_read, "Bytes read to be copied.")
    families.sizes(f"{prefix}NUM_BYTES_WRITTEN", counters.bytes_written, "Bytes copied.")
    families.summary(f"{prefix}READ_DATA_LATENCY", counters.read_latency, "Reads of the copier, in ms.")
    families.summary(f"{prefix}WRITE_DATA_LATENCY", counters.write_latency, "Writes of the copier, in ms.")


def _add_auditor(families: Families, counters: RecoveryCounters, prefix: str) -> None:
    for name, outcomes, text in (
        ("AUDIT_BOOKIES_TIME", counters.audit, "Looks for lost bookies, in ms."),
        ("CHECK_ALL_LEDGERS_TIME", counters.check_all_ledgers, "Checks of all ledgers, in ms."),
        ("PLACEMENT_POLICY_CHECK_TIME", counters.placement_check, "Checks of ledgers' places, in ms."),
        ("REPLICAS_CHECK_TIME", counters.replicas_check, "Checks of all replicas, in ms."),
    ):
        families.summary(f"{prefix}{name}", outcomes, text)
    families.sizes(f"{prefix}NUM_UNDER_REPLICATED_LEDGERS", counters.underreplicated_marked, "Ledgers marked at once.")
    families.sizes(f"{prefix}NUM_FRAGMENTS_PER_LEDGER", counters.fragments_per_ledger, "Fragments of checked ledgers.")
    families.sizes(f"{prefix}NUM_BOOKIES_PER_LEDGER", counters.bookies_per_ledger, "Bookies of checked ledgers.")
    for name, value, text in (
        ("NUM_LEDGERS_CHECKED", counters.ledgers_checked, "Ledgers checked."),
        ("NUM_BOOKIE_AUDITS_DELAYED", counters.audits_delayed, "Audits put off by lostBookieRecoveryDelay."),
        ("NUM_DELAYED_BOOKIE_AUDITS_CANCELLED", counters.delayed_audits_cancelled, "Of those, given up."),
    ):
        families.counter(f"{prefix}{name}", value, text)
    for name, value in (
        ("NUM_LEDGERS_NOT_ADHERING_TO_PLACEMENT_POLICY", counters.ledgers_not_adhering),
        ("NUM_LEDGERS_SOFTLY_ADHERING_TO_PLACEMENT_POLICY", counters.ledgers_softly_adhering),
        ("NUM_UNDERREPLICATED_LEDGERS_ELAPSED_RECOVERY_GRACE_PERIOD", counters.ledgers_overdue),
        ("NUM_LEDGERS_HAVING_NO_REPLICA_OF_AN_ENTRY", counters.ledgers_with_entry_without_replica),
        ("NUM_LEDGERS_HAVING_LESS_THAN_AQ_REPLICAS_OF_AN_ENTRY", counters.ledgers_with_entry_below_ack_quorum),
        ("NUM_LEDGERS_HAVING_LESS_THAN_WQ_REPLICAS_OF_AN_ENTRY", counters.ledgers_with_entry_below_write_quorum),
    ):
        families.gauge(f"{prefix}{name}", value, "As the last check has found.")
