"""The states of a managed ledger, with the names that Pulsar's statistics show."""

from __future__ import annotations

import enum
from typing import Final

from magnetar.core.transitions import Transitions


class ManagedLedgerState(enum.Enum):
    """The state of a managed ledger's append path: each value says how the next append is treated."""

    LEDGER_OPENED = "LedgerOpened"
    """The append is sent at once: there is a ledger in use."""
    CLOSING_LEDGER = "ClosingLedger"
    """The append waits: the ledger in use is being closed."""
    CLOSED_LEDGER = "ClosedLedger"
    """The append starts the creation of a ledger and waits."""
    CREATING_LEDGER = "CreatingLedger"
    """The append waits for the ledger that is being created."""
    WRITE_FAILED = "WriteFailed"
    """The append fails, until the owner says that producers are gone."""
    FOLLOWED = "Followed"
    """The append fails: another process writes, and this one only reads (`following/`)."""
    CLOSED = "Closed"
    FENCED = "Fenced"
    TERMINATED = "Terminated"


_S = ManagedLedgerState

TRANSITIONS: Final = Transitions(
    "a managed ledger",
    {
        _S.LEDGER_OPENED: {_S.CLOSING_LEDGER, _S.CLOSED, _S.FENCED, _S.TERMINATED},
        _S.CLOSING_LEDGER: {_S.CREATING_LEDGER, _S.CLOSED, _S.FENCED, _S.TERMINATED},
        _S.CLOSED_LEDGER: {_S.CREATING_LEDGER, _S.CLOSED, _S.FENCED, _S.TERMINATED, _S.FOLLOWED},
        _S.CREATING_LEDGER: {_S.LEDGER_OPENED, _S.CLOSED_LEDGER, _S.WRITE_FAILED, _S.CLOSED, _S.FENCED},
        _S.WRITE_FAILED: {_S.CLOSED_LEDGER, _S.CLOSED, _S.FENCED, _S.TERMINATED},
        _S.FOLLOWED: {_S.CLOSED, _S.FENCED, _S.TERMINATED},
        _S.TERMINATED: {_S.CLOSED, _S.FENCED},
        _S.CLOSED: (),
        _S.FENCED: {_S.CLOSED},
    },
)
