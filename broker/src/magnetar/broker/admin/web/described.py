"""What handlers say about themselves for the API's description: which query parameters they take, and what body."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar

Handler = TypeVar("Handler", bound=Callable[..., Any])

QUERY_ATTRIBUTE: Final = "described_query"
BODY_ATTRIBUTE: Final = "described_body"


def takes(*query: str, body: str | None = None) -> Callable[[Handler], Handler]:
    """A handler takes these query parameters, and a body of this kind."""

    def mark(handler: Handler) -> Handler:
        setattr(handler, QUERY_ATTRIBUTE, query)
        setattr(handler, BODY_ATTRIBUTE, body)
        return handler

    return mark


def query_of(handler: object) -> tuple[str, ...]:
    """The query parameters that a handler takes."""
    found: tuple[str, ...] = getattr(handler, QUERY_ATTRIBUTE, ())
    return found


def body_of(handler: object) -> str | None:
    """What a handler's body is, None when it takes none."""
    found: str | None = getattr(handler, BODY_ATTRIBUTE, None)
    return found
