"""What the routes share: one request as BookKeeper's handlers see it, and the answers.

BookKeeper binds GET, PUT, POST and DELETE of every route to one handler, which looks at the method itself; any other
method is refused before (BookKeeper: http/vertx/VertxHttpServer). So do we.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Final, NoReturn, TypeAlias

from aiohttp import web
from magnetar.bookie.admin import json_text
from magnetar.bookie.operations import BookieOperations

OK: Final = 200
BAD_REQUEST: Final = 400
FORBIDDEN: Final = 403
NOT_FOUND: Final = 404
METHOD_NOT_ALLOWED: Final = 405
INTERNAL_ERROR: Final = 500
UNAVAILABLE: Final = 503

FLUSH_CHARACTERS: Final = 64 * 1024
"""A long answer is sent in pieces of about this size, so that it never stands in memory whole."""


class Refusal(Exception):
    """An answer other than 200, with its text."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status
        self.text = text


class Failed(Exception):
    """BookKeeper's handler would have failed on this request: 500 without a reason; ours goes to the log."""


class Call:
    """One request, as BookKeeper's handlers see it."""

    def __init__(self, request: web.Request, operations: BookieOperations, body: str | None) -> None:
        self.request = request
        self.operations = operations
        self.method = request.method
        self.parameters: dict[str, str] = dict(request.query)
        """The parameters of the query. When a name has several values, the last one counts."""
        self.body = body
        """The request's body; None without one."""

    def only(self, method: str, text: str, status: int = NOT_FOUND) -> None:
        """Refuse every other method."""
        if self.method != method:
            refuse(status, text)

    def whole_number(self, name: str, missing: int = 0) -> int:
        """A parameter as a number. `Failed` for what is none."""
        value = self.parameters.get(name)
        if value is None:
            return missing
        try:
            return int(value)
        except ValueError:
            raise Failed(f"{name}={value!r} is not a whole number") from None

    def body_object(self) -> dict[str, object]:
        """The body as a JSON object; `Failed` if it is none. Only when there is a body."""
        assert self.body is not None
        try:
            return json_text.read_object(self.body)
        except json_text.BadJson as problem:
            raise Failed(str(problem)) from None


Handler: TypeAlias = Callable[[Call], Awaitable[web.StreamResponse]]


def refuse(status: int, text: str) -> NoReturn:
    """Answer with another status than 200."""
    raise Refusal(status, text)


def json_answer(document: object) -> web.Response:
    """An answer with status 200 and JSON."""
    return web.Response(text=json_text.write(document), content_type="application/json")


def text_answer(text: str, status: int = OK) -> web.Response:
    """An answer in plain text."""
    return web.Response(text=text, status=status, content_type="text/plain")


async def stream_object(call: Call, fields: AsyncIterator[tuple[str, object]]) -> web.StreamResponse:
    """200 and one JSON object, field by field; what fails before the first piece is sent may still be refused."""
    response = web.StreamResponse(headers={"Content-Type": "application/json; charset=utf-8"})
    pieces: list[str] = []
    size = 0
    separator = "{\n"
    async for key, value in fields:
        piece = separator + json_text.field(key, value)
        separator = ",\n"
        pieces.append(piece)
        size += len(piece)
        if size >= FLUSH_CHARACTERS:
            await _send(call, response, pieces)
            pieces, size = [], 0
    pieces.append("{ }" if separator == "{\n" else "\n}")
    await _send(call, response, pieces)
    await response.write_eof()
    return response


async def _send(call: Call, response: web.StreamResponse, pieces: list[str]) -> None:
    if not response.prepared:
        await response.prepare(call.request)
    await response.write("".join(pieces).encode("utf-8", "replace"))
