"""Where the metadata of ledgers stands in the store: BookKeeper's hierarchical layout.

Ids below 2^31 - 1: ten digits cut 2/4/4, the last part after an L. Larger ones: nineteen digits cut 3/4/4/4/4
(BookKeeper: meta/HierarchicalLedgerManager, util/StringUtils).
"""

from __future__ import annotations

from typing import Final

LEDGERS_ROOT: Final = "/ledgers"
AVAILABLE_PATH: Final = "/ledgers/available"
READ_ONLY_NAME: Final = "readonly"
READ_ONLY_PATH: Final = "/ledgers/available/readonly"
ID_PREFIX: Final = "/ledgers/idgen/ID-"
LONG_ID_PATH: Final = "/ledgers/idgen-long"

SHORT_ID_LIMIT: Final = 2**31 - 1
"""Ledger ids from this one on are written as long ones, in five parts of a path."""

_SHORT_DIGITS: Final = 10
_LONG_DIGITS: Final = 19


def ledger_path(ledger_id: int) -> str:
    """The node of a ledger's metadata."""
    assert ledger_id >= 0
    if ledger_id < SHORT_ID_LIMIT:
        digits = f"{ledger_id:0{_SHORT_DIGITS}d}"
        return f"{LEDGERS_ROOT}/{digits[:2]}/{digits[2:6]}/L{digits[6:]}"
    digits = f"{ledger_id:0{_LONG_DIGITS}d}"
    return f"{LEDGERS_ROOT}/{digits[:3]}/{digits[3:7]}/{digits[7:11]}/{digits[11:15]}/L{digits[15:]}"


def ledger_id_of(path: str) -> int | None:
    """The ledger whose metadata stands at a path; None for every other path."""
    if not path.startswith(f"{LEDGERS_ROOT}/"):
        return None
    *parts, last = path[len(LEDGERS_ROOT) + 1 :].split("/")
    if not last.startswith("L"):
        return None
    digits = "".join(parts) + last[1:]
    if not (digits.isascii() and digits.isdigit()):
        return None
    ledger_id = int(digits)
    return ledger_id if ledger_path(ledger_id) == path else None


def is_ledger_folder(name: str) -> bool:
    """Whether a name directly below the root is the first part of ledgers' paths (two or three digits)."""
    return len(name) in (2, 3) and name.isascii() and name.isdigit()
