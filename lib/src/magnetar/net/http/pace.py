"""How slow a client of an HTTP server may be, decided for one connection; no IO, times are given."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from magnetar.core.limits import KIB, MIB

LINE_BYTES_MAX: Final = 8 * KIB
"""Bytes of a request's first line, and of each header: Pulsar's default for the whole head
(`httpMaxRequestHeaderSize`)."""

HEAD_BYTES_MAX: Final = 64 * KIB
"""Bytes of a request's first line and all its headers; tokens take some kilobytes."""


def head_bytes_max(field_bytes_max: int) -> int:
    """For a head whose first line and headers may be as long as this: one of each is, at least."""
    return max(HEAD_BYTES_MAX, 2 * field_bytes_max)


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpLimits:
    """What clients of an HTTP server may take of it."""

    head_seconds_max: float = 30.0
    """From a connection's beginning, or a request's first byte, to the end of its headers. As for Pulsar's protocol,
    where CONNECT must have come by then; also Jetty's time for a connection on which nothing comes."""
    idle_seconds_max: float = 75.0
    """Between two requests: longer than tools and proxies keep a connection that they do not use, which saves them
    the race between a close and a request."""
    window_seconds: float = 30.0
    """Over how long a body's, or an answer's, pace is looked at."""
    pace_bytes_min: int = KIB
    """Bytes a second of a body that is sent, or an answer that is read: less than any network that tools work over."""
    head_bytes_max: int = HEAD_BYTES_MAX
    """First line and all headers of a request. The servers bound each, and their number, which leaves a mebibyte for
    every connection."""
    line_bytes_max: int = LINE_BYTES_MAX
    """The first line of a request, and each header."""
    head_setting: str = ""
    """The setting that gives `head_bytes_max` and `line_bytes_max`; empty: none."""
    connections_max: int = 2_048
    """Connections at a time (Pulsar: `maxHttpServerConnections`)."""
    connections_setting: str = ""
    """The setting that gives `connections_max`; empty: none."""
    body_bytes_max: int = 8 * MIB
    """Bytes of one request's body in memory; whatever else comes is passed on or refused."""
    answers_bytes_max: int = 256 * MIB
    """Bytes of all answers that clients have not taken yet; whoever has most of it is cut."""
    bodies_bytes_max: int = 64 * MIB
    """Bytes of all bodies in memory: several of the largest at a time."""


@dataclass(frozen=True, slots=True)
class Traffic:
    """What a connection looks like now."""

    received_bytes: int
    """Bytes that have come from the client since the connection's beginning."""
    sent_bytes: int
    """Bytes that the client has taken of what the server has written, since any moment that stays the same."""
    unsent_bytes: int
    """Bytes that are written and wait for the client to read."""
    receiving: bool
    """The server reads. Where it does not, the client is not to blame for how slowly the body comes, as long as
    anything moves."""
    held_back: bool
    """The server's own bounds keep the body waiting, for its turn."""
    taken_bytes: int
    """Bytes of the body that the request's handler has taken."""
    body_complete: bool
    """Whether the body of the request under way is complete."""


class Pace:
    """One connection's times: wait for a request's head, serve it, wait for the next one."""

    def __init__(self, limits: HttpLimits, now_seconds: float) -> None:
        self._limits = limits
        self._head_since: float | None = now_seconds
        self._idle_since = now_seconds
        self.serving = False
        """Whether a request is under way."""
        self._received_mark: tuple[float, int] | None = None
        self._sent_mark: tuple[float, int] | None = None
        self._moved_mark: tuple[float, int] | None = None

    @property
    def waiting_since_seconds(self) -> float:
        """Since when it takes a place and asks for nothing."""
        return self._idle_since

    def received(self, now_seconds: float) -> None:
        """Bytes have come."""
        if not self.serving and self._head_since is None:
            self._head_since = now_seconds

    def began(self) -> None:
        """A request's head is complete."""
        self.serving = True
        self._head_since = None
        self._received_mark = self._sent_mark = self._moved_mark = None

    def ended(self, now_seconds: float) -> None:
        """The answer has been written."""
        self.serving = False
        self._idle_since = now_seconds
        self._sent_mark = None

    def too_slow(self, now_seconds: float, traffic: Traffic) -> str | None:
        """What the client has not done in time; None while it may go on."""
        limits = self._limits
        if self._unread(now_seconds, traffic):
            return "the answer is not read"
        if traffic.unsent_bytes:
            # It is on its way; what the client says next is not waited for yet.
            self._idle_since = now_seconds
            self._head_since = None if self._head_since is None else now_seconds
        if self.serving:
            return "the body does not come" if self._body_stalls(now_seconds, traffic) else None
        if self._head_since is not None:
            return "no request in time" if now_seconds - self._head_since >= limits.head_seconds_max else None
        return "idle" if now_seconds - self._idle_since >= limits.idle_seconds_max else None

    def _unread(self, now_seconds: float, traffic: Traffic) -> bool:
        if not traffic.unsent_bytes:
            self._sent_mark = None
            return False
        self._sent_mark, slow = self._measured(self._sent_mark, now_seconds, traffic.sent_bytes)
        return slow

    def _body_stalls(self, now_seconds: float, traffic: Traffic) -> bool:
        if traffic.body_complete or not traffic.receiving:
            self._received_mark = None
            return not traffic.body_complete and self._stands_still(now_seconds, traffic)
        self._moved_mark = None
        self._received_mark, slow = self._measured(self._received_mark, now_seconds, traffic.received_bytes)
        return slow

    def _stands_still(self, now_seconds: float, traffic: Traffic) -> bool:
        """The server reads nothing, so it would not hear that the client is gone. A handler may be as slow as it
        likes, but one that takes nothing of a body, nor says anything, does not have it wait for ever."""
        moved = traffic.taken_bytes + traffic.sent_bytes
        if traffic.held_back or self._moved_mark is None or self._moved_mark[1] != moved:
            self._moved_mark = (now_seconds, moved)
            return False
        return now_seconds - self._moved_mark[0] >= self._limits.window_seconds

    def _measured(
        self, mark: tuple[float, int] | None, now_seconds: float, count: int
    ) -> tuple[tuple[float, int], bool]:
        """Where the next window begins, and whether this one is over with too little."""
        if mark is None or count < mark[1]:
            return (now_seconds, count), False
        seconds = now_seconds - mark[0]
        if seconds < self._limits.window_seconds:
            return mark, False
        return (now_seconds, count), count - mark[1] < self._limits.pace_bytes_min * seconds


DEFAULT: Final = HttpLimits()
