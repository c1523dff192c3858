"""What is used of aiohttp: its requests, and what its protocol has no public word for."""

from __future__ import annotations

import asyncio
from typing import Protocol


class Content(Protocol):
    """A request's body, as a stream."""

    total_bytes: int
    """Bytes of it that came."""

    def is_eof(self) -> bool:
        """Whether all of it was given."""
        ...

    def exception(self) -> BaseException | None:
        """Why it cannot be read."""
        ...

    def feed_eof(self) -> None:
        """Nothing more of it comes."""
        ...

    def read_nowait(self, n: int = -1) -> bytes:
        """All that was given."""
        ...


class AnswerWriter(Protocol):
    """Where an answer is written."""

    @property
    def output_size(self) -> int:
        """Bytes that were written."""
        ...


class _Match(Protocol):
    @property
    def http_exception(self) -> BaseException | None: ...


class HttpRequest(Protocol):
    """What is used of aiohttp's."""

    _read_bytes: bytes | None

    @property
    def match_info(self) -> _Match:
        """Its route, or why it has none."""
        ...

    @property
    def transport(self) -> asyncio.Transport | None:
        """The transport of its connection; None when that is gone."""
        ...

    @property
    def content(self) -> Content:
        """The body, as a stream."""
        ...

    @property
    def content_length(self) -> int | None:
        """Bytes of the body, as its head tells; None where it does not."""
        ...

    @property
    def writer(self) -> AnswerWriter:
        """Where its answer is written."""
        ...


def taken_bytes(content: Content) -> int:
    """Bytes of a body that the handler has taken."""
    size_bytes: int = getattr(content, "_size", 0)
    return content.total_bytes - size_bytes


def has_queued(protocol: asyncio.Protocol | None) -> bool:
    """Whether something that was parsed waits for the request under way to end: a request, or an error."""
    return bool(getattr(protocol, "_messages", ()))


def waits_for_a_request(protocol: asyncio.Protocol | None) -> bool:
    """Whether it has answered all that it was given."""
    waiter = getattr(protocol, "_waiter", None)
    return waiter is not None and not waiter.done()


def speaks_another(protocol: asyncio.Protocol | None) -> bool:
    """Whether it is given the bytes of another protocol, such as a WebSocket's."""
    return getattr(protocol, "_payload_parser", None) is not None


def task_of(protocol: asyncio.Protocol) -> asyncio.Task[None] | None:
    """What works on its requests, and between them waits for the next one; None once its connection is lost."""
    task: asyncio.Task[None] | None = getattr(protocol, "_task_handler", None)
    return task
