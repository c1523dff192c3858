"""The protocol's codes for errors that are not the protocol's own."""

from __future__ import annotations

from magnetar.core.errors import MagnetarError, Unavailable
from magnetar.ledger.api import LedgerError
from magnetar.managed.errors import ManagedLedgerClosed, ManagedLedgerError, ManagedLedgerFenced
from magnetar.metadata.store import NodeTooLarge, StoreUnavailable
from magnetar.wire.pulsar.errors import PulsarError, ServerError


def server_error_of(error: MagnetarError) -> ServerError:
    """The code that any command answers an error with, its own if it has one.

    PERSISTENCE_ERROR is what cannot be had of what is stored: a ledger that is gone, an entry that no bookie has, or
    that none can give now (Pulsar: `BrokerServiceException.PersistenceException`)."""
    if isinstance(error, PulsarError):
        return error.code
    if isinstance(error, NodeTooLarge):
        return ServerError.NOT_ALLOWED_ERROR
    if isinstance(error, StoreUnavailable):
        return ServerError.METADATA_ERROR
    if isinstance(error, ManagedLedgerFenced | ManagedLedgerClosed):
        return ServerError.SERVICE_NOT_READY
    if isinstance(error, ManagedLedgerError | LedgerError | Unavailable):
        return ServerError.PERSISTENCE_ERROR
    return ServerError.UNKNOWN_ERROR
