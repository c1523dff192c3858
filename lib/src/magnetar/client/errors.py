"""What can go wrong in a client. What a broker refuses is a `PulsarError` with the protocol's code."""

from __future__ import annotations

from typing import Final

from magnetar.core.errors import MagnetarError, Misuse, Unavailable
from magnetar.wire.pulsar.errors import PulsarError, ServerError


class ClientClosed(Misuse):
    """The client, producer or consumer was closed by its user."""


class MessageTooLarge(Misuse):
    """A message, or a batch, that is larger than the broker takes. Nothing was sent."""


class ConnectionFailed(Unavailable):
    """A broker cannot be reached, or the connection to it is gone."""


class TimedOut(Unavailable):
    """No answer in time. What was asked for may have happened or not."""


class TooManyRequests(Unavailable):
    """A bound of the client is reached: the other side does not keep up."""


FINAL_CODES: Final = frozenset(
    {
        ServerError.AUTHENTICATION_ERROR,
        ServerError.AUTHORIZATION_ERROR,
        ServerError.TOPIC_NOT_FOUND,
        ServerError.SUBSCRIPTION_NOT_FOUND,
        ServerError.TOPIC_TERMINATED_ERROR,
        ServerError.INVALID_TOPIC_NAME,
        ServerError.INCOMPATIBLE_SCHEMA,
        ServerError.UNSUPPORTED_VERSION_ERROR,
        ServerError.NOT_ALLOWED_ERROR,
        ServerError.PRODUCER_FENCED,
        ServerError.PRODUCER_BUSY,
        ServerError.CONSUMER_BUSY,
        ServerError.CONSUMER_ASSIGN_ERROR,
        ServerError.PRODUCER_BLOCKED_QUOTA_EXCEEDED_EXCEPTION,
    }
)
"""What opening a producer or consumer does not get over by trying again."""

ENDING_CODES: Final = frozenset(
    {
        ServerError.TOPIC_NOT_FOUND,
        ServerError.SUBSCRIPTION_NOT_FOUND,
        ServerError.TOPIC_TERMINATED_ERROR,
        ServerError.INVALID_TOPIC_NAME,
        ServerError.INCOMPATIBLE_SCHEMA,
        ServerError.PRODUCER_FENCED,
    }
)
"""What ends a producer or consumer that was open before. The rest may pass: credentials are renewed, a former
connection's producer is noticed to be gone."""


def is_final(error: MagnetarError, *, was_open: bool) -> bool:
    """Whether trying again is of no use."""
    if isinstance(error, PulsarError):
        return error.code in (ENDING_CODES if was_open else FINAL_CODES)
    return isinstance(error, Misuse)
