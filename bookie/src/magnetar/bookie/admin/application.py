"""The bookie's HTTP application: every route of BookKeeper's, and its errors as statuses.

Importing this module loads aiohttp; `server` does so when it starts.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Final

from aiohttp import web
from magnetar.bookie.admin import bookie_routes, collection_routes, json_text, ledger_routes, recovery_routes
from magnetar.bookie.admin.calls import (
    BAD_REQUEST,
    FORBIDDEN,
    INTERNAL_ERROR,
    METHOD_NOT_ALLOWED,
    NOT_FOUND,
    Call,
    Failed,
    Handler,
    Refusal,
    json_answer,
    refuse,
    text_answer,
)
from magnetar.bookie.operations import BookieOperations, OperationRefused
from magnetar.core.errors import MagnetarError
from magnetar.net.http.connections import HttpConnections

logger: Final = logging.getLogger(__name__)

BODY_BYTES_MAX: Final = 256 * 1024
"""The largest body has some settings or bookie ids in it; a longer one is answered 413."""

METHODS: Final = ("GET", "PUT", "POST", "DELETE")
METRICS_CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
NOT_FOUND_PAGE: Final = "<html><body><h1>Resource not found</h1></body></html>"

WebHandler = Callable[[web.Request], Awaitable[web.StreamResponse]]


async def heartbeat(call: Call) -> web.StreamResponse:
    """Any method: this process answers."""
    del call
    return text_answer("OK\n")


async def server_config(call: Call) -> web.StreamResponse:
    """GET the settings; PUT an object of settings to change."""
    if call.method == "GET":
        return json_answer(dict(call.operations.bookie.settings()))
    if call.method != "PUT" or call.body is None:
        refuse(NOT_FOUND, "Request body not found. should contains k-v pairs")
    call.operations.bookie.change_settings(
        {name: json_text.as_setting(value) for name, value in call.body_object().items()}
    )
    return text_answer("Success set server config.")


def metrics_handler(render: Callable[[], str]) -> Handler:
    """`/metrics` with what `render` gives: the whole text in Prometheus' format."""

    async def metrics(call: Call) -> web.StreamResponse:
        call.only("GET", f"{call.method} is forbidden. Should be GET method", FORBIDDEN)
        return web.Response(body=render().encode(), headers={"Content-Type": METRICS_CONTENT_TYPE})

    return metrics


def make_application(
    operations: BookieOperations,
    render_metrics: Callable[[], str],
    connections: HttpConnections,
    *,
    metrics_only: bool = False,
) -> web.Application:
    """Everything that answers, or `/metrics` alone; `connections` are those that it will be asked through."""

    @web.middleware
    async def paced(request: web.Request, handler: WebHandler) -> web.StreamResponse:
        return await connections.serve(request, handler)

    application = web.Application(middlewares=[paced, _answer_unrouted], client_max_size=BODY_BYTES_MAX)
    routes: list[tuple[str, Handler]] = [("/metrics", metrics_handler(render_metrics))]
    if not metrics_only:
        routes += [
            ("/heartbeat", heartbeat),
            ("/api/v1/config/server_config", server_config),
            *ledger_routes.ROUTES,
            *bookie_routes.routes(),
            *collection_routes.ROUTES,
            *recovery_routes.ROUTES,
        ]
    for path, handler in routes:
        answer = _answering(handler, operations)
        for method in METHODS:
            application.router.add_route(method, path, answer)
            application.router.add_route(method, path + "/", answer)
    return application


def _answering(handler: Handler, operations: BookieOperations) -> WebHandler:
    async def answer(request: web.Request) -> web.StreamResponse:
        raw = await request.read()
        call = Call(request, operations, raw.decode("utf-8", "replace") if raw else None)
        try:
            return await handler(call)
        except Refusal as refusal:
            return text_answer(refusal.text, refusal.status)
        except OperationRefused as refusal:
            return text_answer(str(refusal), BAD_REQUEST)
        except (Failed, MagnetarError, OSError) as problem:
            logger.warning("%s %s failed: %s", request.method, request.path_qs, problem)
        except Exception:
            logger.exception("%s %s failed", request.method, request.path_qs)
        # As BookKeeper: whoever asked hears nothing of why.
        return text_answer("Internal Server Error", INTERNAL_ERROR)

    return answer


@web.middleware
async def _answer_unrouted(request: web.Request, handler: WebHandler) -> web.StreamResponse:
    """What no handler is for."""
    try:
        return await handler(request)
    except web.HTTPNotFound:
        return web.Response(text=NOT_FOUND_PAGE, status=NOT_FOUND, content_type="text/html")
    except web.HTTPMethodNotAllowed:
        return web.Response(status=METHOD_NOT_ALLOWED)
