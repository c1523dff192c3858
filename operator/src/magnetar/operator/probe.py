"""Probes and metrics over HTTP/1.1, with nothing but asyncio: a web framework would be the largest part of the operator
for three pages."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, TypeAlias

SECONDS_MAX: Final = 5.0
"""How long a connection may take, from its beginning to the last byte of its answer."""
HEAD_BYTES_MAX: Final = 16_384
CONNECTIONS_MAX: Final = 32
"""At a time: the kubelet and a Prometheus or two. When another one comes, the oldest is cut: who asks has an answer in
no time, and a kubelet that gets none restarts the operator."""

Page: TypeAlias = Callable[[], tuple[int, str, bytes]]
"""Gives status, content type and body."""

TEXT: Final = "text/plain; charset=utf-8"

_REASONS: Final = {
    200: "OK",
    400: "Bad Request",
    404: "Not Found",
    405: "Method Not Allowed",
    503: "Service Unavailable",
}


class Pages:
    """A server of a few pages, each made when it is read."""

    def __init__(self, pages: dict[str, Page]) -> None:
        self._pages = pages
        self._server: asyncio.Server | None = None
        # The oldest first.
        self._connections: dict[asyncio.StreamWriter, None] = {}

    async def start(self, host: str, port: int) -> int:
        """Listen; gives the port. OSError if it is taken."""
        self._server = await asyncio.start_server(self._serve, host, port, limit=HEAD_BYTES_MAX)
        found: int = self._server.sockets[0].getsockname()[1]
        return found

    async def close(self) -> None:
        """Stop listening on the port of probes and metrics."""
        if self._server is not None:
            self._server.close()
            await self._server.wait_closed()

    @property
    def open_count(self) -> int:
        """The number of open connections."""
        return len(self._connections)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._connections) >= CONNECTIONS_MAX:
            next(iter(self._connections)).transport.abort()
        self._connections[writer] = None
        try:
            async with asyncio.timeout(SECONDS_MAX):
                head = await reader.readuntil(b"\r\n\r\n")
                writer.write(self._answer(head))
                writer.close()
                await writer.wait_closed()
        except (TimeoutError, OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            # Who asks so gets no answer.
            return
        finally:
            self._connections.pop(writer, None)
            writer.transport.abort()

    def _answer(self, head: bytes) -> bytes:
        parts = head.split(b"\r\n", 1)[0].decode("latin-1").split(" ")
        if len(parts) != 3:
            return _response(400, TEXT, b"not HTTP\n")
        method, target, _ = parts
        if method not in ("GET", "HEAD"):
            return _response(405, TEXT, b"GET only\n")
        page = self._pages.get(target.partition("?")[0])
        if page is None:
            return _response(404, TEXT, " ".join(sorted(self._pages)).encode() + b"\n")
        status, content_type, body = page()
        return _response(status, content_type, body, with_body=method == "GET")


def _response(status: int, content_type: str, body: bytes, *, with_body: bool = True) -> bytes:
    head = (
        f"HTTP/1.1 {status} {_REASONS[status]}\r\n"
        f"Content-Type: {content_type}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + (body if with_body else b"")
