"""Turns of the event loop, shared by what producers send: so much of it is stored in each, and others come in between.

A loop serves all sockets that are ready before it begins anew, and reads a full socket many times over. A FLOW behind
a hundred sockets full of SENDs would wait for the storing of all of them, and its consumer with it. So a turn stores
`TURN_BYTES` of SENDs. The connections that brought more are read no further. They go on in the next turns, one after
the other, in the order in which they came.

Hot: compiled by mypyc (see CONTRIBUTING).
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from magnetar.core.limits import KIB, MIB

if TYPE_CHECKING:
    from magnetar.broker.policies.limiter import Pausable

TURN_BYTES: Final = 2 * MIB
"""What is stored of SENDs in one turn: 256 messages of 1 KiB, or eight full reads of large batches. It is some
milliseconds of work, and the journal writes groups of that size at the disk's full rate."""

SEND_BYTES: Final = 7 * KIB
"""What each SEND counts for beside its size: storing it costs as much as copying so many bytes."""

HELD_BYTES_MAX: Final = 16 * MIB
"""SENDs of all connections that wait for their turn. With more, nobody who has producers is read any further: a full
read is a quarter of a megabyte, and a broker has thousands of connections."""

READ_AGAIN_IN_TURN: Final = 16
"""Connections that are read again in one turn: 4 MiB of reads."""

PAUSED_FOR_TURN: Final = "SENDs wait for a turn"

PAUSED_FOR_OTHERS: Final = "SENDs of others wait for a turn"


class SendTurns:
    """Shared by all connections of a broker."""

    def __init__(self) -> None:
        self.left_bytes: int = TURN_BYTES
        """What may still be stored in this turn; below 0 after a SEND that was larger than what was left."""
        self.held_bytes: int = 0
        """Of the SENDs that wait."""
        self._begun: bool = False
        self._waiting: dict[Pausable, int] = {}
        """Who waits for a turn, in order, and the bytes that each holds."""
        self._senders: dict[Pausable, None] = {}
        self._unread: dict[Pausable, None] = {}
        """Who is not read because others hold so much, in order."""

    def joined(self, connection: Pausable) -> None:
        """The connection has a producer. Told again for each one."""
        self._senders[connection] = None

    def left(self, connection: Pausable) -> None:
        """It has no producer any more, and so nothing that waits."""
        self._senders.pop(connection, None)
        if connection in self._waiting:
            self.held_bytes -= self._waiting.pop(connection)
            connection.resume_reading(PAUSED_FOR_TURN)
        if connection in self._unread:
            del self._unread[connection]
            connection.resume_reading(PAUSED_FOR_OTHERS)

    def take(self, size_bytes: int, sends: int) -> None:
        """A batch is being stored."""
        self.left_bytes -= size_bytes + sends * SEND_BYTES
        if not self._begun:
            self._begin()

    def hold(self, connection: Pausable, size_bytes: int) -> None:
        """The turn's share is used up: the connection waits, with SENDs of so many bytes."""
        self.held_bytes += size_bytes - self._waiting.get(connection, 0)
        self._waiting[connection] = size_bytes
        connection.pause_reading(PAUSED_FOR_TURN)
        if not self._begun:
            self._begin()
        if self.held_bytes > HELD_BYTES_MAX and not self._unread:
            for sender in self._senders:
                if sender not in self._waiting:
                    self._leave_unread(sender)

    def _begin(self) -> None:
        self._begun = True
        asyncio.get_running_loop().call_soon(self._next_turn)

    def _leave_unread(self, sender: Pausable) -> None:
        self._unread[sender] = None
        sender.pause_reading(PAUSED_FOR_OTHERS)

    def _next_turn(self) -> None:
        self._begun = False
        self.left_bytes = TURN_BYTES
        try:
            self._go_on()
            self._read_again()
        finally:
            # Also when the storing of one fails: the others would wait for ever.
            if (self._waiting or self._unread) and not self._begun:
                self._begin()

    def _go_on(self) -> None:
        # Whoever still has more to store stands at the end again, and is not served twice.
        for connection in list(self._waiting):
            if self.left_bytes <= 0:
                return
            if connection not in self._waiting:
                continue  # It ended while others were served.
            self.held_bytes -= self._waiting.pop(connection)
            if self._unread:
                self._leave_unread(connection)  # It is read again behind those that wait for that.
            connection.resume_reading(PAUSED_FOR_TURN)

    def _read_again(self) -> None:
        for connection in list(self._unread)[:READ_AGAIN_IN_TURN]:
            if self.held_bytes > HELD_BYTES_MAX // 2:
                return
            if connection in self._unread:  # It may have ended while another one was served.
                del self._unread[connection]
                connection.resume_reading(PAUSED_FOR_OTHERS)
