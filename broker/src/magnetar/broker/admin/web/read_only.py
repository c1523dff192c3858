"""What the admin API of a broker that only reads refuses: whatever changes something."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

from aiohttp import web
from magnetar.broker.admin.web.responses import AdminError

METHOD_NOT_ALLOWED: Final = 405

READING_METHODS: Final = frozenset({"GET", "HEAD", "OPTIONS"})

SERVED: Final = frozenset(
    {
        # Asked by POST, and changes nothing.
        ("POST", "/admin/v2/schemas/{tenant}/{namespace}/{topic}/compatibility"),
        ("POST", "/admin/v2/schemas/{tenant}/{namespace}/{topic}/version"),
        # Tells a broker something which concerns only itself.
        ("POST", "/admin/v2/brokers/shutdown"),
        ("POST", "/admin/v2/brokers/{broker}/drain"),
        ("DELETE", "/admin/v2/brokers/{broker}/drain"),
    }
)
"""By method and route: a path may end with whatever name its user has chosen."""

ACTING: Final = frozenset({"/admin/v2/brokers/backlog-quota-check"})
"""Asked by GET, and drops what is over a quota."""

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@web.middleware
async def refuse_changes(request: web.Request, handler: Handler) -> web.StreamResponse:
    """405 for a request that would change something, with where to send it."""
    resource = request.match_info.route.resource
    route = resource.canonical if resource is not None else ""
    asks = request.method in READING_METHODS and route not in ACTING
    if asks or (request.method, route) in SERVED:
        return await handler(request)
    raise AdminError(
        METHOD_NOT_ALLOWED,
        f"This broker is read-only and does not serve {request.method} {request.path}: send it to a broker that writes",
    )
