"""The states of a managed ledger, with the names that Pulsar's statistics show."""

from __future__ import annotations

import enum
from typing import Final

from magnetar.core.errors import Misuse


class LedgerState(enum.Enum):
    """What happens to an append now."""

    LEDGER_OPENED = "LedgerOpened"
    """It is sent at once."""
    CLOSING_LEDGER = "ClosingLedger"
    """It waits: the ledger in use is being closed."""
    CLOSED_LEDGER = "ClosedLedger"
    """It starts the creation of a ledger and waits."""
    CREATING_LEDGER = "CreatingLedger"
    """It waits for the ledger in creation."""
    WRITE_FAILED = "WriteFailed"
    """It fails, until the owner says that producers are gone."""
    CLOSED = "Closed"
    FENCED = "Fenced"
    TERMINATED = "Terminated"


_S = LedgerState

_NEXT: Final[dict[LedgerState, frozenset[LedgerState]]] = {
    _S.LEDGER_OPENED: frozenset({_S.CLOSING_LEDGER, _S.CLOSED, _S.FENCED, _S.TERMINATED}),
    _S.CLOSING_LEDGER: frozenset({_S.CREATING_LEDGER, _S.CLOSED_LEDGER, _S.CLOSED, _S.FENCED, _S.TERMINATED}),
    _S.CLOSED_LEDGER: frozenset({_S.CREATING_LEDGER, _S.CLOSED, _S.FENCED, _S.TERMINATED}),
    _S.CREATING_LEDGER: frozenset({_S.LEDGER_OPENED, _S.CLOSED_LEDGER, _S.WRITE_FAILED, _S.CLOSED, _S.FENCED}),
    _S.WRITE_FAILED: frozenset({_S.CLOSED_LEDGER, _S.CLOSED, _S.FENCED, _S.TERMINATED}),
    _S.TERMINATED: frozenset({_S.CLOSED, _S.FENCED}),
    _S.CLOSED: frozenset(),
    _S.FENCED: frozenset({_S.CLOSED}),
}


def check_transition(before: LedgerState, after: LedgerState) -> LedgerState:
    """The new state; `Misuse` when the old one does not lead there."""
    if after not in _NEXT[before]:
        raise Misuse(f"a managed ledger does not go from {before.value} to {after.value}")
    return after
