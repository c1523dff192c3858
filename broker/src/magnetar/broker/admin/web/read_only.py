"""What the admin API of a broker that only reads refuses: whatever changes something."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

from aiohttp import web
from magnetar.broker.admin.web.responses import AdminError

METHOD_NOT_ALLOWED: Final = 405

READING_METHODS: Final = frozenset({"GET", "HEAD", "OPTIONS"})

READING_ENDS: Final = ("/compatibility", "/examinemessage", "/messageid")
"""How paths end that are asked by POST and change nothing."""

OWN_ENDS: Final = ("/brokers/shutdown", "/drain")
"""How paths end that tell a broker something which concerns only itself."""

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@web.middleware
async def refuse_changes(request: web.Request, handler: Handler) -> web.StreamResponse:
    """405 for a request that would change something, with where to send it."""
    path = request.path.rstrip("/")
    if request.method in READING_METHODS or path.endswith(READING_ENDS + OWN_ENDS):
        return await handler(request)
    raise AdminError(
        METHOD_NOT_ALLOWED,
        f"This broker is read-only and does not serve {request.method} {path}: send it to a broker that writes",
    )
