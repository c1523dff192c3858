"""Requests to the admin API that follow redirects whatever their method is, as Apache's tools do."""

from __future__ import annotations

import json
import urllib.request
from http.client import HTTPMessage
from typing import IO, Any

SECONDS_MAX = 60.0


class _KeepMethod(urllib.request.HTTPRedirectHandler):
    """urllib follows a 307 of GET and HEAD only."""

    def redirect_request(
        self,
        req: urllib.request.Request,
        fp: IO[bytes],
        code: int,
        msg: str,
        headers: HTTPMessage,
        newurl: str,
    ) -> urllib.request.Request | None:
        del fp, code, msg, headers
        return urllib.request.Request(newurl, method=req.get_method(), data=req.data, headers=dict(req.headers))


_OPENER = urllib.request.build_opener(_KeepMethod)


def call(method: str, url: str, body: object = None) -> bytes:
    """The answer's body. Raises urllib's HTTPError from status 400 on."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, method=method, data=data, headers={"Content-Type": "application/json"})
    with _OPENER.open(request, timeout=SECONDS_MAX) as answer:
        content: bytes = answer.read()
        return content


def get_json(url: str) -> Any:
    """The decoded answer to a GET."""
    return json.loads(call("GET", url))
