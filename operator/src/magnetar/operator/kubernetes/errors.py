"""What the API server may say instead of an answer. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec
from magnetar.core.errors import MagnetarError, Misuse, PeerError, Unavailable


class NotFound(PeerError):
    """The object that was to be changed is not there."""


class AlreadyExists(PeerError):
    """An object of that name is there."""


class Conflict(PeerError):
    """The object is not the one that was meant (another uid), or has changed since it was read (another
    resourceVersion): look again."""


class Refused(Misuse):
    """The server does not take it: invalid (400, 422, and 500 for what its kind has no field for) or not allowed (403).
    The text is the server's own."""


class NamespaceTerminating(Refused):
    """Nothing can be made in a namespace that is being deleted; what is there can still be changed."""


class NotPermitted(Refused):
    """The right is missing (403)."""


class KindMissing(Refused):
    """The API server does not know the kind: the operator is not installed."""


class ServerUnavailable(Unavailable):
    """No answer in time, no connection, too many requests, or the server failed. It may have been carried out."""

    def __init__(self, text: str, *, retry_after_seconds: float = 0.0) -> None:
        """`retry_after_seconds`: how long the server wants to be left alone; 0: it did not say."""
        super().__init__(text)
        self.retry_after_seconds = retry_after_seconds


class PodPortRefused(Unavailable):
    """Nothing listens at the pod's port, or the pod is gone: no byte has reached it."""


API_ERRORS: Final[tuple[type[MagnetarError], ...]] = (NotFound, AlreadyExists, Conflict, Refused, ServerUnavailable)
"""What every call may raise."""

_TRY_AGAIN: Final = frozenset({401, 410, 429})
"""Beside 5xx: a token that is being renewed, a list's page that is too old, too many requests."""

_NOT_OF_THE_SCHEMA: Final = ("failed to create typed ", "failed to convert new object ")
"""How the message begins if an applied object has a field that its kind does not have, or a value of another type.
Servers answer that with 500 and without a reason (kubernetes/kubernetes#139253), as they do when etcd changes its
leader."""

_TEXT_LENGTH_MAX: Final = 300
"""Characters told of an answer that is not the API server's: a proxy's page."""


class Answer(NamedTuple):
    """An answer of the API server, or of something between it and us."""

    status: int
    content: bytes
    retry_after: str = ""


def failure(call: str, answer: Answer) -> MagnetarError:
    """An answer that is an error, as one of ours. The text is the server's."""
    code = answer.status
    status = _status(answer.content)
    message = str(status.get("message") or "")
    text = f"{call}: {message or answer.content[:_TEXT_LENGTH_MAX].decode(errors='replace')} ({code})"
    if code == 500 and message.startswith(_NOT_OF_THE_SCHEMA):
        return Refused(text)
    if code in _TRY_AGAIN or code >= 500:
        return ServerUnavailable(text, retry_after_seconds=_retry_after(answer.retry_after))
    if code == 404:
        return NotFound(text)
    if code == 409:
        return AlreadyExists(text) if status.get("reason") == "AlreadyExists" else Conflict(text)
    causes = _causes(status)
    if code == 422 and any(cause.get("field") == "metadata.uid" for cause in causes):
        # How patches of an object that was made anew fail: its uid cannot be changed.
        return Conflict(text)
    if code == 403:
        going = any(cause.get("reason") == "NamespaceTerminating" for cause in causes)
        return NamespaceTerminating(text) if going else NotPermitted(text)
    return Refused(text)


def users_failure(call: str, answer: Answer) -> MagnetarError:
    """The error to tell a person at a terminal, whose credentials get no better by themselves."""
    error = failure(call, answer)
    return NotPermitted(str(error)) if answer.status == 401 else error


def _status(content: bytes) -> Mapping[str, Any]:
    """Kubernetes' `Status`, if the content is one."""
    try:
        found: dict[str, Any] = msgspec.json.decode(content, type=dict[str, Any])
    except msgspec.DecodeError:
        return {}
    return found


def _causes(status: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    """None of an answer that has the member by chance: a proxy's."""
    details = status.get("details")
    causes = details.get("causes") if isinstance(details, dict) else None
    return [cause for cause in causes if isinstance(cause, dict)] if isinstance(causes, list) else []


def _retry_after(text: str) -> float:
    """The API server says seconds, never a date."""
    return float(text) if text.isascii() and text.isdigit() else 0.0
