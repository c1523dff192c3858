"""The connections of one server that will send what was written to them: in the next turn, or as soon as somebody says.

An event loop runs what is due, then reads from everybody, and so on. What is written while it reads leaves right after
it. What is written by what is due, such as by a journal that has made entries durable, would leave only after everybody
was read: a millisecond or two while thousands of clients ask. So whoever has told many of something calls `send` then.

Hot: compiled by mypyc (see CONTRIBUTING).
"""

from __future__ import annotations

from typing import Protocol


class WaitingOutbox(Protocol):
    """A connection with something to send."""

    def flush(self) -> None:
        """Send it."""
        ...


class Outboxes:
    """Shared by all connections of one server. As many wait as were written to in one turn of the loop."""

    __slots__ = ("_waiting",)

    def __init__(self) -> None:
        self._waiting: dict[WaitingOutbox, None] = {}

    def __len__(self) -> int:
        """How many connections wait."""
        return len(self._waiting)

    def wait(self, outbox: WaitingOutbox) -> None:
        """A connection was written to, and sends that in the next turn."""
        self._waiting[outbox] = None

    def forget(self, outbox: WaitingOutbox) -> None:
        """A connection has sent what was written to it. Twice is no error."""
        self._waiting.pop(outbox, None)

    def send(self) -> None:
        """Send all that waits, instead of in the next turn. A connection that fails is aborted, its error raised; those
        behind it are sent in the next turn."""
        for outbox in list(self._waiting):
            outbox.flush()
