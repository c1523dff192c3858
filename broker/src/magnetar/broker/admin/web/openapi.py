"""The API described by itself: `/openapi.json`, made of the routes and their handlers' own words, and `/docs`."""

from __future__ import annotations

import html
import inspect
import re
from collections.abc import Iterable
from typing import Any, Final

from aiohttp import web
from magnetar.broker.admin.web.described import body_of, query_of
from magnetar.broker.admin.web.responses import json
from magnetar.broker.context import BrokerContext
from magnetar.broker.settings.broker import SERVER_VERSION

OPENAPI: Final = "3.0.3"

_PARAMETER: Final = re.compile(r"\{(\w+)\}")

PAGE: Final = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Admin API</title><style>
body{{font:15px/1.5 system-ui,sans-serif;margin:2em auto;max-width:70em;padding:0 1em}}
h2{{margin:1.5em 0 .3em;font-size:1.1em}} table{{border-collapse:collapse;width:100%}}
td{{border-top:1px solid #ddd;padding:.25em .5em;vertical-align:top}} code{{font-size:13px}}
.verb{{font-weight:600;width:5em}} .path{{width:45%;word-break:break-all}}
</style></head><body><h1>Admin API</h1>
<p>What this broker answers. The same for programs: <a href="/openapi.json">openapi.json</a>.</p>
{sections}</body></html>
"""


def routes(context: BrokerContext) -> list[web.RouteDef]:
    """What this file serves."""
    del context
    return [web.get("/openapi.json", description), web.get("/docs", page)]


async def description(request: web.Request) -> web.Response:
    """The description of the API in the form of OpenAPI 3."""
    return json(document_of(request.app))


async def page(request: web.Request) -> web.Response:
    """The description of the API to be read."""
    return web.Response(text=page_of(document_of(request.app)), content_type="text/html")


def document_of(application: web.Application) -> dict[str, Any]:
    """OpenAPI 3 of what an application serves."""
    paths: dict[str, dict[str, Any]] = {}
    for route in application.router.routes():
        if route.method == "HEAD" or route.resource is None:
            continue
        for path in expanded(route.resource):
            paths.setdefault(path, {})[route.method.lower()] = operation(path, route)
    return {
        "openapi": OPENAPI,
        "info": {"title": "Magnetar admin API", "version": SERVER_VERSION},
        "paths": dict(sorted(paths.items())),
    }


def expanded(resource: web.AbstractResource) -> Iterable[str]:
    """The paths of a route; one that has a choice of words in it is as many paths."""
    formatter = resource.canonical
    info = resource.get_info()
    pattern = info.get("pattern")
    choices = re.findall(r"\(\?P<(\w+)>([a-z|-]+)\)", pattern.pattern) if pattern is not None else []
    paths = [formatter]
    for name, words in choices:
        paths = [path.replace("{" + name + "}", word) for path in paths for word in words.split("|")]
    return paths


def operation(path: str, route: web.AbstractRoute) -> dict[str, Any]:
    """What one verb does at one path."""
    text = inspect.getdoc(route.handler) or ""
    summary, _, rest = text.partition("\n\n")
    parameters = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
        for name in _PARAMETER.findall(path)
    ]
    parameters += [{"name": name, "in": "query", "schema": {"type": "string"}} for name in query_of(route.handler)]
    described: dict[str, Any] = {
        "summary": " ".join(summary.split()),
        "tags": [tag_of(path)],
        "parameters": parameters,
        "responses": {"default": {"description": "An error has a status from 400 on and a body {reason}."}},
    }
    if rest:
        described["description"] = " ".join(rest.split())
    body = body_of(route.handler)
    if body is not None:
        described["requestBody"] = {"description": body, "content": {"application/json": {"schema": {}}}}
    return described


def tag_of(path: str) -> str:
    """The group that a path belongs to: its first word after `/admin/v2`."""
    parts = [part for part in path.split("/") if part]
    if parts and parts[0] == "admin":
        parts = parts[2:]
    return parts[0] if parts else "broker"


def page_of(document: dict[str, Any]) -> str:
    """The description as a page without scripts."""
    groups: dict[str, list[str]] = {}
    for path, operations in document["paths"].items():
        for verb, described in operations.items():
            query = ", ".join(one["name"] for one in described["parameters"] if one["in"] == "query")
            hint = f" <code>?{html.escape(query)}</code>" if query else ""
            groups.setdefault(described["tags"][0], []).append(
                f'<tr><td class="verb">{verb.upper()}</td><td class="path"><code>{html.escape(path)}</code></td>'
                f"<td>{html.escape(described['summary'])}{hint}</td></tr>"
            )
    sections = "\n".join(
        f"<h2>{html.escape(name)}</h2><table>{''.join(rows)}</table>" for name, rows in sorted(groups.items())
    )
    return PAGE.format(sections=sections)
