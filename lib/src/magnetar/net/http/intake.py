"""What of the bytes that a client sends an HTTP server is given: one request at a time, the rest waits; no IO.

A server would parse, and keep, whatever it is given behind the request that it serves.
"""

from __future__ import annotations

from typing import Final

from magnetar.core.limits import KIB
from magnetar.net.http.head import END_OF_HEAD, END_OF_LINE, HeadBounds
from magnetar.net.http.pace import HttpLimits

PIECE_BYTES: Final = 16 * KIB
"""Of a head, or of a body whose length is not known, at a time. Such a body may come in chunks of one byte, each of
which takes as long as kilobytes of others."""

HTTP_2: Final = b"PRI "
"""What a client begins with that speaks HTTP/2 without being asked to. Parsers wait for the rest of what it says."""

NO_HTTP_2: Final = "HTTP/2 is not spoken here"


class Intake:
    """One connection's: heads, and the body of each request that has begun."""

    __slots__ = ("_at", "_data", "_end", "_first", "_head", "_in_head", "_length_known", "body_left_bytes")

    def __init__(self, limits: HttpLimits) -> None:
        self._head = HeadBounds(limits)
        self._in_head = True
        """Whether a request's head is to come, or to go on."""
        self._data = b""
        self._at = 0
        """So much of it was given."""
        self._first = b""
        """The first bytes of the head."""
        self._length_known = False
        self.body_left_bytes = 0
        """Of a body whose length is known, so much is to come."""
        self._end = b""
        """The last bytes that were given of a body whose length is not known."""

    @property
    def kept_bytes(self) -> int:
        """Bytes in memory that wait here, with those that came in one piece with them."""
        return len(self._data)

    @property
    def head_given(self) -> bool:
        """Whether a head was given to its end, and its request has not ended."""
        return not self._in_head

    @property
    def body_given(self) -> bool:
        """Whether a body whose length is known was given to its end."""
        return self._length_known and not self.body_left_bytes

    def came(self, data: bytes) -> None:
        """The client has sent it."""
        self._data = self._data[self._at :] + data if self._data else data
        self._at = 0

    def began(self, body_bytes: int | None) -> None:
        """The head that was given is complete, for the server too; its body has so many bytes (None: nobody knows)."""
        self._in_head = False
        self._length_known = body_bytes is not None
        self.body_left_bytes = body_bytes or 0
        self._end = b""

    def ended(self) -> None:
        """The request is answered: another may come."""
        self._in_head = True
        self._first = b""
        self._length_known = False

    def drop(self) -> None:
        """Nothing more will be given."""
        self._data, self._at = b"", 0

    def next_of_head(self) -> tuple[bytes, str]:
        """Some of a head (empty: it is complete, or nothing is here), and what is wrong with it (empty: nothing)."""
        if not self._in_head or not self._data:
            return b"", ""
        piece = self._data[self._at : self._at + PIECE_BYTES]
        if len(self._first) < len(HTTP_2):
            self._first = (self._first + piece).lstrip(END_OF_LINE)[: len(HTTP_2)]
            if self._first == HTTP_2:
                return b"", NO_HTTP_2
        size_bytes, problem = self._head.received(piece)
        if size_bytes is not None:
            self._in_head = False
            piece = piece[:size_bytes]
        self._at += len(piece)
        return self._given(piece), problem

    def next_of_body(self) -> bytes:
        """Some of a body that is not complete (empty: nothing is here)."""
        if self.body_left_bytes:
            piece = self._data[self._at : self._at + self.body_left_bytes]
            self.body_left_bytes -= len(piece)
        else:
            piece = self._up_to_a_blank_line()
        self._at += len(piece)
        return self._given(piece)

    def rest(self) -> bytes:
        """All that is here: the client speaks another protocol from now on."""
        piece = self._data[self._at :]
        self.drop()
        return piece

    def _up_to_a_blank_line(self) -> bytes:
        """A body in chunks ends with one, and so may what is in a chunk: whoever reads the body knows."""
        piece = self._data[self._at : self._at + PIECE_BYTES]
        # The blank line may have begun before.
        before = (self._end + piece[:3]).find(END_OF_HEAD)
        end = piece.find(END_OF_HEAD) if before < 0 else before - len(self._end)
        if before >= 0 or end >= 0:
            self._end = b""
            return piece[: end + len(END_OF_HEAD)]
        self._end = (self._end + piece[-3:])[-3:]
        return piece

    def _given(self, piece: bytes) -> bytes:
        if self._at >= len(self._data):
            self.drop()
        return piece
