"""How long the head of an HTTP request may be, decided while it comes; no IO."""

from __future__ import annotations

from typing import Final

from magnetar.net.http.pace import HttpLimits

END_OF_LINE: Final = b"\r\n"
END_OF_HEAD: Final = END_OF_LINE + END_OF_LINE


class HeadBounds:
    """The bounds on the heads of one connection's requests, one after the other."""

    __slots__ = ("_begun", "_end", "_head_bytes", "_limits", "_line_bytes")

    def __init__(self, limits: HttpLimits) -> None:
        self._limits = limits
        self._begun = False
        """Whether something other than empty lines has come: servers skip those before a request."""
        self._head_bytes = 0
        self._line_bytes = 0
        """Bytes of the line that goes on, its end not counted."""
        self._end = b""
        """The last bytes of what came: the head's end may come in two pieces."""

    def received(self, data: bytes) -> tuple[int | None, str]:
        """More of a head: how many bytes of it belong to the head (None: all, and it goes on), and what is wrong with
        it (empty: nothing).

        What follows its end is a body, or another request's head, and is not looked at."""
        skipped_bytes = 0 if self._begun else len(data) - len(data.lstrip(END_OF_LINE))
        self._begun = self._begun or skipped_bytes < len(data)
        joined = self._end + data
        end = joined.find(END_OF_HEAD, skipped_bytes) if self._begun else -1
        head = data if end < 0 else joined[len(self._end) : end]
        too_long = self._longest_line(head) > self._limits.line_bytes_max
        self._head_bytes += len(head)
        if too_long or self._head_bytes > self._limits.head_bytes_max:
            return None, self._problem(too_long=too_long)
        if end < 0:
            self._end = joined[1 - len(END_OF_HEAD) :] if self._begun else b""
            return None, ""
        size_bytes = end + len(END_OF_HEAD) - len(self._end)
        self._begun, self._head_bytes, self._line_bytes, self._end = False, 0, 0, b""
        return size_bytes, ""

    def _longest_line(self, head: bytes) -> int:
        lines = head.split(b"\n")
        lengths = [len(line) - line.endswith(b"\r") for line in lines]
        lengths[0] += self._line_bytes
        self._line_bytes = lengths[-1]
        return max(lengths)

    def _problem(self, *, too_long: bool) -> str:
        limits = self._limits
        setting = limits.head_setting
        if too_long:
            why = f"which {setting} sets" if setting else "which no setting changes"
            return f"a header, or the first line, has more than {limits.line_bytes_max} bytes, {why}"
        why = f"or twice {setting} where that is more" if setting else "which no setting changes"
        return f"the headers have more than {limits.head_bytes_max} bytes together, {why}"
