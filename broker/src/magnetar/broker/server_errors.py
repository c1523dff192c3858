"""The protocol's codes for errors that are not the protocol's own."""

from __future__ import annotations

from magnetar.core.errors import MagnetarError, Unavailable
from magnetar.managed.errors import ManagedLedgerClosed, ManagedLedgerError, ManagedLedgerFenced
from magnetar.metadata.store import NodeTooLarge, StoreUnavailable
from magnetar.wire.pulsar.errors import ServerError


def server_error_of(error: MagnetarError) -> ServerError:
    """The protocol's code for an error that is not the protocol's own."""
    if isinstance(error, NodeTooLarge):
        return ServerError.NOT_ALLOWED_ERROR
    if isinstance(error, StoreUnavailable):
        return ServerError.METADATA_ERROR
    if isinstance(error, ManagedLedgerFenced | ManagedLedgerClosed):
        return ServerError.SERVICE_NOT_READY
    if isinstance(error, ManagedLedgerError | Unavailable):
        return ServerError.PERSISTENCE_ERROR
    return ServerError.UNKNOWN_ERROR
