"""Errors that cross the control port, on both sides. Imports nothing of gRPC."""

from __future__ import annotations

from enum import Enum

from magnetar.core.errors import PeerError, Unavailable


class RefusalReason(Enum):
    """Why a call was refused; gRPC's own names."""

    INVALID_ARGUMENT = "INVALID_ARGUMENT"
    NOT_FOUND = "NOT_FOUND"
    FAILED_PRECONDITION = "FAILED_PRECONDITION"
    UNAUTHENTICATED = "UNAUTHENTICATED"
    INTERNAL = "INTERNAL"


class ControlRefused(PeerError):
    """The call cannot be done; the text says what to do instead.

    A servicer raises it; a client raises it when the server has answered so."""

    def __init__(self, reason: RefusalReason, text: str) -> None:
        super().__init__(text)
        self.reason = reason


class ControlUnserved(ControlRefused):
    """The port does not serve the call: it is another kind of component, or the supervisor of several processes."""


class ControlUnavailable(Unavailable):
    """The component did not answer in time, cannot be reached or is stopping: try again."""
