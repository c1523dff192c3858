"""Where AutoRecovery's nodes stand below the ledgers' root (BookKeeper: meta/ZkLedgerUnderreplicationManager).

A ledger's mark stands at `ledgers/<h>/<h>/<h>/<h>/urL<id>`: four parts of 16 bits of the id in hexadecimal, the high
one first, and the id in at least ten decimal digits.
"""

from __future__ import annotations

from typing import Final

from magnetar.wire.bookkeeper.under_replication import CheckKind

BASE: Final = "/ledgers/underreplication"
LAYOUT: Final = f"{BASE}/LAYOUT"
MARKS: Final = f"{BASE}/ledgers"
LOCKS: Final = f"{BASE}/locks"
PROBLEMS: Final = f"{BASE}/problems"
"""Ours alone: why a ledger could not be replicated, in words. Ephemeral, so that they go with whoever told them."""
DISABLED: Final = f"{BASE}/disable"
LOST_BOOKIE_RECOVERY_DELAY: Final = f"{BASE}/lostBookieRecoveryDelay"
VOTES: Final = f"{BASE}/auditorelection"
"""The election of BookKeeper's own ZooKeeper driver: sequential children; its value names the last winner."""
VOTE_PREFIX: Final = f"{VOTES}/V_"
LEADER: Final = f"{BASE}/leader"
"""The node of the auditor that Pulsar's metadata-store driver elects."""
LAST_CHECKS: Final = {
    CheckKind.ALL_LEDGERS: f"{BASE}/checkallledgersctime",
    CheckKind.PLACEMENT: f"{BASE}/placementpolicycheckctime",
    CheckKind.REPLICAS: f"{BASE}/replicascheckctime",
}

LEVELS: Final = 4
"""How many folders lie between MARKS and a ledger's mark."""


def mark_folder(ledger_id: int) -> str:
    """The folder of a ledger's mark."""
    assert 0 <= ledger_id < 2**63
    parts = "/".join(f"{ledger_id >> shift & 0xFFFF:04x}" for shift in (48, 32, 16, 0))
    return f"{MARKS}/{parts}"


def mark_path(ledger_id: int) -> str:
    """The mark of an underreplicated ledger."""
    return f"{mark_folder(ledger_id)}/{_name(ledger_id)}"


def lock_path(ledger_id: int) -> str:
    """The lock of whoever replicates a ledger."""
    return f"{LOCKS}/{_name(ledger_id)}"


def problem_path(ledger_id: int) -> str:
    """Why the last attempt to replicate a ledger has failed."""
    return f"{PROBLEMS}/{_name(ledger_id)}"


def ledger_id_of_folder(path: str) -> int | None:
    """The ledger whose mark may stand in a folder; None if no mark's folder has this path."""
    digits = path[len(MARKS) + 1 :].replace("/", "")
    try:
        ledger_id = int(digits, 16)
    except ValueError:
        return None
    return ledger_id if ledger_id < 2**63 and mark_folder(ledger_id) == path else None


def _name(ledger_id: int) -> str:
    return f"urL{ledger_id:010d}"
