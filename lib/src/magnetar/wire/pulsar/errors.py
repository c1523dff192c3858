"""What the other side can do wrong, and the errors that the protocol can name."""

from __future__ import annotations

from enum import IntEnum

from magnetar.core.errors import PeerError


class ServerError(IntEnum):
    """The error codes of answers (Pulsar: PulsarApi.proto, ServerError); the numbers travel."""

    UNKNOWN_ERROR = 0
    METADATA_ERROR = 1
    PERSISTENCE_ERROR = 2
    AUTHENTICATION_ERROR = 3
    AUTHORIZATION_ERROR = 4
    CONSUMER_BUSY = 5
    SERVICE_NOT_READY = 6
    PRODUCER_BLOCKED_QUOTA_EXCEEDED_ERROR = 7
    PRODUCER_BLOCKED_QUOTA_EXCEEDED_EXCEPTION = 8
    CHECKSUM_ERROR = 9
    UNSUPPORTED_VERSION_ERROR = 10
    TOPIC_NOT_FOUND = 11
    SUBSCRIPTION_NOT_FOUND = 12
    CONSUMER_NOT_FOUND = 13
    TOO_MANY_REQUESTS = 14
    TOPIC_TERMINATED_ERROR = 15
    PRODUCER_BUSY = 16
    INVALID_TOPIC_NAME = 17
    INCOMPATIBLE_SCHEMA = 18
    CONSUMER_ASSIGN_ERROR = 19
    TRANSACTION_COORDINATOR_NOT_FOUND = 20
    INVALID_TXN_STATUS = 21
    NOT_ALLOWED_ERROR = 22
    TRANSACTION_CONFLICT = 23
    TRANSACTION_NOT_FOUND = 24
    PRODUCER_FENCED = 25


class PulsarError(PeerError):
    """A request that is refused with a code of the protocol; whoever serves the connection turns it into an answer."""

    def __init__(self, code: ServerError, message: str) -> None:
        super().__init__(f"{code.name}: {message}")
        self.code = code
        self.message = message


class BadCommand(PeerError):
    """A frame whose command cannot be read or lacks a required field."""


class BadMetadata(PeerError):
    """A message whose metadata, batch or compressed payload cannot be read."""
