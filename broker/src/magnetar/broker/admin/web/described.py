"""What handlers say about themselves for the API's description: which query parameters they take, and what body."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeAlias, TypeVar

from aiohttp import web

RequestHandler: TypeAlias = Callable[[web.Request], Awaitable[web.StreamResponse]]
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


def under(summary: str, handler: RequestHandler, *query: str, body: str | None = None) -> RequestHandler:
    """A handler that many routes share, with what this route says of itself."""

    async def described(request: web.Request) -> web.StreamResponse:
        return await handler(request)

    described.__doc__ = summary
    return takes(*query, body=body)(described)


def query_of(handler: object) -> tuple[str, ...]:
    """The query parameters that a handler takes."""
    found: tuple[str, ...] = getattr(handler, QUERY_ATTRIBUTE, ())
    return found


def body_of(handler: object) -> str | None:
    """What a handler's body is, None when it takes none."""
    found: str | None = getattr(handler, BODY_ATTRIBUTE, None)
    return found
