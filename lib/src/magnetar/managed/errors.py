"""The errors of managed ledgers and cursors."""

from __future__ import annotations

from magnetar.core.errors import MagnetarError, Unavailable


class ManagedLedgerError(MagnetarError):
    """Something about one managed ledger is wrong; subclasses say what."""


class ManagedLedgerNotFound(ManagedLedgerError):
    """There is no managed ledger of this name and none was to be created."""


class ManagedLedgerFenced(ManagedLedgerError):
    """Someone else changed this managed ledger's metadata: it has another owner, so this object must be dropped."""


class ManagedLedgerIsShadow(ManagedLedgerError):
    """Its ledgers are those of another managed ledger: it must neither be recovered nor written."""

    def __init__(self, name: str, source: str) -> None:
        """`source` is the topic whose ledgers they are, as the node names it."""
        super().__init__(f"{name} is a shadow of {source}")
        self.source: str = source


class ManagedLedgerTerminated(ManagedLedgerError):
    """The managed ledger takes no more entries, for ever."""


class ManagedLedgerClosed(ManagedLedgerError):
    """This object was closed; open the managed ledger again."""


class ManagedLedgerReadOnly(ManagedLedgerError):
    """Another process writes this managed ledger, and this one only reads it."""

    def __init__(self, name: str) -> None:
        super().__init__(f"{name} is only read here: use a broker of the cluster that writes it")


class ManagedLedgerWriteFailed(Unavailable):
    """No ledger could be made while entries waited; adds fail until `ready_to_create_ledger` is called."""


class CursorNotFound(ManagedLedgerError):
    """There is no durable cursor of this name."""


class CursorClosed(ManagedLedgerError):
    """The cursor was closed or deleted."""
