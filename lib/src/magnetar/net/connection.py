"""One TCP connection: bytes in to a handler, bytes out in one write per turn of the event loop.

The rest of the program meets asyncio's transports only here. Incoming bytes go to the handler as they come;
outgoing ones collect in an outbox that is flushed once per loop turn, because each transport write is a system call.
A handler that is sent megabytes may have them read into memory of its own (`ReceivingHandler`): new bytes objects for
each read, and their joining, are most of what receiving costs then.
Both directions push back: a slow peer stops `writable`, and anybody who holds too much of this peer's data pauses
reading, each under a reason of its own. The connections of a server are also bounded by what they are answered: a peer
that does not read is not read either, and `HeldBytes` bounds all of them together.

Hot: compiled by mypyc (see CONTRIBUTING).
"""

from __future__ import annotations

import asyncio
import enum
import socket
from collections.abc import Callable
from typing import Any, Final, Protocol, TypeAlias, cast

from magnetar.core.errors import Misuse
from magnetar.core.limits import KIB, MIB
from magnetar.core.transitions import Transitions
from magnetar.net.handlers import Handler, ReceivingHandler, ReceivingSide, receives
from magnetar.net.held_bytes import NOTED_BYTES, PAUSED_FOR_ALL, HeldBytes
from magnetar.net.outboxes import Outboxes

JOIN_PARTS_BYTES_MAX: Final = 64 * 1024
"""Below this a copy into one buffer is cheaper than a vector of parts (measured: parts of up to 8 KiB)."""

OUTBOX_HIGH_WATER_BYTES: Final = 4 * MIB
"""Unsent bytes after which `writable` turns false; one maximum message may come on top."""

OUTBOX_LOW_WATER_BYTES: Final = 1 * MIB
"""Unsent bytes at which `writable` turns true again; far enough below not to flap."""

BEHIND_BYTES: Final = 256 * KIB
"""Unsent bytes after which a server's peer counts as one that does not read what it is answered: a whole read's worth
of small requests is answered in that."""

ANSWERS_BEHIND_BYTES_MAX: Final = 256 * KIB
"""Bytes of answers to a peer that is behind; then it is read no further until `CAUGHT_UP_BYTES` are left. What
consumers are sent does not count, as it stops by itself: a client on a slow line may publish and acknowledge all the
while."""

CAUGHT_UP_BYTES: Final = 64 * KIB
"""Unsent bytes at which a peer that was behind is read again."""

PAUSED_FOR_ANSWERS: Final = "answers not taken"

CLOSE_SECONDS_MAX: Final = 30.0
"""How long a peer may take for what was sent to it before the end."""


class ConnectionState(enum.Enum):
    """How a connection stands."""

    CONNECTING = enum.auto()
    """The connection is being made: there is no transport yet."""
    UNWANTED = enum.auto()
    """The connection was closed before it stood; no handler hears of it."""
    OPEN = enum.auto()
    UPGRADING = enum.auto()
    """TLS is being put over the connection that stands: what is written waits, and nothing is received."""
    CLOSING = enum.auto()
    """The connection ends once what was written before is sent."""
    CLOSED = enum.auto()


_CLOSED: Final = ConnectionState.CLOSED

TRANSITIONS: Final = Transitions(
    "a connection",
    {
        ConnectionState.CONNECTING: {ConnectionState.UNWANTED, ConnectionState.OPEN},
        ConnectionState.UNWANTED: {_CLOSED},
        ConnectionState.OPEN: {ConnectionState.UPGRADING, ConnectionState.CLOSING, _CLOSED},
        ConnectionState.UPGRADING: {ConnectionState.OPEN, _CLOSED},
        ConnectionState.CLOSING: {_CLOSED},
        _CLOSED: (),
    },
)


class HandlerFactory(Protocol):
    """Makes the handler of a new connection."""

    def __call__(self, connection: Connection) -> Handler:
        """Called once, before `connection_made`."""
        ...


AnyHandlerFactory: TypeAlias = "Callable[[Connection], Handler | ReceivingHandler]"
"""Makes the handler of a connection that somebody opens; it may receive into memory of its own."""


class Connection(asyncio.Protocol):
    """A transport, an outbox, and the reasons why we are not reading."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        make_handler: AnyHandlerFactory,
        on_lost: Callable[[Connection], None] | None = None,
        held: HeldBytes | None = None,
        outboxes: Outboxes | None = None,
    ) -> None:
        """`held` and `outboxes` are those of a server's connections; without `held` only `writable` bounds anything."""
        self._loop = loop
        self._on_lost = on_lost
        self._make_handler = make_handler
        self._handler: Handler | ReceivingHandler | None = None
        self._transport: asyncio.Transport | None = None
        self._bare: asyncio.Transport | None = None
        """The transport below while the connection is upgraded."""
        self._outbox: list[bytes] = []
        self._flush_scheduled = False
        self._pause_reasons: set[str] = set()
        self._state: ConnectionState = ConnectionState.CONNECTING
        self._held = held
        self._outboxes = outboxes
        self._behind = False
        self._narrow = False
        self._answers_behind_bytes = 0
        self._handed_bytes = 0
        self._incoming_bytes = 0
        self._incoming_moved_bytes = 0
        self._close_timer: asyncio.TimerHandle | None = None
        self.peer_address = ""
        self.writable = True
        self.pauses = 0
        """How often somebody had reading paused for as long as he likes (`throttled`)."""

    def write(self, data: bytes) -> None:
        """Put bytes into the outbox; they leave at the end of this loop turn. After `close`, and the end: dropped."""
        if self._state is _CLOSED:
            return
        self._outbox.append(data)
        if self._behind:
            self._answer_while_behind(len(data))
        if not self._flush_scheduled:
            self._flush_soon()

    def write_parts(self, parts: list[bytes]) -> None:
        """Send many parts at once, in their order."""
        if self._state is _CLOSED or not parts:
            return
        self._outbox.extend(parts)
        if not self._flush_scheduled:
            self._flush_soon()

    @property
    def reading_paused(self) -> bool:
        """Whether what the peer sends has to wait."""
        return bool(self._pause_reasons)

    @property
    def throttled(self) -> bool:
        """Whether what the peer sends has to wait for as long as somebody likes. It has not, where all connections
        share the turns of the loop: it is read again after some of these."""
        return bool(self._pause_reasons - {PAUSED_FOR_ALL})

    def pause_reading(self, reason: str) -> None:
        """Stop reading until every reason is gone."""
        if reason != PAUSED_FOR_ALL:
            self.pauses += 1
        if not self._pause_reasons and self._transport is not None:
            self._transport.pause_reading()
        self._pause_reasons.add(reason)

    def resume_reading(self, reason: str) -> None:
        """Take one reason back; unknown ones are no error."""
        if reason not in self._pause_reasons:
            return
        self._pause_reasons.remove(reason)
        if not self._pause_reasons and self._transport is not None:
            self._transport.resume_reading()

    def replace_handler(self, handler: Handler) -> None:
        """From now on everything goes to this handler alone. Its `connection_made` is not called."""
        self._handler = handler

    def hand_over(self, protocol: asyncio.Protocol) -> asyncio.Transport:
        """Give the transport to another protocol, what is in the outbox sent and reading not paused. This object is
        closed then, and does not tell its handler. `Misuse` when it is closed already."""
        transport = self._transport
        if transport is None:
            raise Misuse("a connection that is closed cannot be handed over")
        self.flush()
        self._over()
        transport.set_protocol(protocol)
        if self._pause_reasons:
            self._pause_reasons.clear()
            transport.resume_reading()
        return transport

    def begin_upgrade(self) -> asyncio.Transport:
        """Give the transport to whoever puts TLS over it (`net/start_tls.py`), what is in the outbox sent. Until
        `upgraded` what is written waits. `Misuse` when the connection is not open."""
        self.flush()  # A handler that hears there that its peer falls behind may close it.
        transport = self._transport
        if transport is None or self._state is not ConnectionState.OPEN:
            raise Misuse(f"the connection with {self.peer_address} is not open and cannot be upgraded")
        self._become(ConnectionState.UPGRADING)
        self._transport, self._bare = None, transport
        return transport

    def upgraded(self, transport: asyncio.BaseTransport, make_handler: AnyHandlerFactory | None = None) -> None:
        """TLS stands: go on over this transport, with another handler if its factory is given. `connection_made` is
        not called."""
        self._become(ConnectionState.OPEN)
        self._bare = None
        self._transport = secured = cast(asyncio.Transport, transport)
        if make_handler is not None:
            self._handler = make_handler(self)
        secured.set_write_buffer_limits(OUTBOX_HIGH_WATER_BYTES, OUTBOX_LOW_WATER_BYTES)
        self._narrow = False
        secured.set_protocol(ReceivingSide(self, self._handler) if receives(self._handler) else self)
        if self._pause_reasons:
            secured.pause_reading()
        if not self.writable:
            self.resume_writing()  # The transport below would have told, and tells TLS now.
        self.flush()

    @property
    def socket_addresses(self) -> tuple[tuple[str, int], tuple[str, int]] | None:
        """(host, port) of the other end and of this one; None when it is closed or no TCP connection."""
        if self._transport is None:
            return None
        peer, own = self._transport.get_extra_info("peername"), self._transport.get_extra_info("sockname")
        if not isinstance(peer, tuple) or not isinstance(own, tuple):
            return None
        return (peer[0], peer[1]), (own[0], own[1])

    @property
    def peer_certificate(self) -> dict[str, Any]:
        """The certificate that the other end showed and TLS verified, as `ssl.SSLSocket.getpeercert` gives it; empty
        without one."""
        return {} if self._transport is None else self._transport.get_extra_info("peercert") or {}

    def close(self) -> None:
        """Send what is in the outbox, then close."""
        if self._state is ConnectionState.CONNECTING:
            self._become(ConnectionState.UNWANTED)
        elif self._state is ConnectionState.OPEN and self._transport is not None:
            self.flush()
            if self.closing:
                return  # A handler that heard there that its peer falls behind has closed it.
            self._become(ConnectionState.CLOSING)
            # Also with nothing unsent: over TLS the peer has to say that it has ended, too.
            self._close_timer = self._loop.call_later(CLOSE_SECONDS_MAX, self._transport.abort)
            self._transport.close()
        elif self._bare is not None:
            self._bare.abort()  # What waits for TLS must not leave without it.

    def abort(self) -> None:
        """Close at once; unsent bytes are lost."""
        if self._state is ConnectionState.CONNECTING:
            self._become(ConnectionState.UNWANTED)
        elif self._transport is not None:
            self._transport.abort()
        elif self._bare is not None:
            self._bare.abort()

    @property
    def closed(self) -> bool:
        """Whether it is over: nothing is sent any more."""
        return self._state is _CLOSED

    @property
    def closing(self) -> bool:
        """Whether it is over, or will be once what was sent before is taken."""
        return self._state is _CLOSED or self._state is ConnectionState.CLOSING

    def _become(self, state: ConnectionState) -> None:
        self._state = TRANSITIONS.step(self._state, state)

    # --- what is held

    @property
    def unsent_bytes(self) -> int:
        """What the peer has not taken of all that was written; 0 after the end."""
        if self._outbox:
            self.flush()
        if self._transport is None:
            return sum(map(len, self._outbox))
        return self._transport.get_write_buffer_size()

    @property
    def held_bytes(self) -> int:
        """What is unsent, and what the handler says that it holds (`hold_incoming`)."""
        return self.unsent_bytes + self._incoming_bytes

    @property
    def incoming_bytes(self) -> int:
        """What the handler says that it holds."""
        return self._incoming_bytes

    @property
    def handed_bytes(self) -> int:
        """What a server's peer was sent since the beginning, taken or not."""
        return self._handed_bytes

    @property
    def moved_bytes(self) -> int:
        """What the peer has taken, and what came to and went from what the handler holds, since the beginning."""
        transport = self._transport
        waiting_bytes = 0 if transport is None else transport.get_write_buffer_size()
        return self._handed_bytes - waiting_bytes + self._incoming_moved_bytes

    @property
    def noted_bytes(self) -> int:
        """What the handler may hold without saying so."""
        return NOTED_BYTES if self._held is None else self._held.noted_bytes

    def hold_incoming(self, size_bytes: int) -> None:
        """The handler: of what came in, so much has to wait, such as the beginning of a large frame. Needs not be said
        of less than `noted_bytes`, unless it was more before."""
        self._incoming_moved_bytes += abs(size_bytes - self._incoming_bytes)
        self._incoming_bytes = size_bytes
        if self._held is not None and size_bytes > self._held.noted_bytes and self._state is not _CLOSED:
            self._held.note(self, self.held_bytes)

    def narrow(self) -> bool:
        """Have the peer take all but `CAUGHT_UP_BYTES` before anything more is made for it: True when it has to, and
        `writable_changed` tells when it has."""
        transport = self._transport
        if transport is None or transport.is_closing() or self.unsent_bytes <= BEHIND_BYTES:
            return False
        if not self._narrow:
            self._narrow = True
            transport.set_write_buffer_limits(BEHIND_BYTES, CAUGHT_UP_BYTES)
        return not self.writable

    def paces_answer(self, go_on: Callable[[], None]) -> bool:
        """Whether a large answer has to wait until `go_on` is called (`HeldBytes.paces_answer`)."""
        return self._held is not None and self._state is not _CLOSED and self._held.paces_answer(self, go_on)

    def _answer_while_behind(self, size_bytes: int) -> None:
        self._answers_behind_bytes += size_bytes
        if self._answers_behind_bytes > ANSWERS_BEHIND_BYTES_MAX and PAUSED_FOR_ANSWERS not in self._pause_reasons:
            self.pause_reading(PAUSED_FOR_ANSWERS)
            if not self.narrow():
                self._caught_up()

    def _caught_up(self) -> None:
        self._behind = False
        self._answers_behind_bytes = 0
        self.resume_reading(PAUSED_FOR_ANSWERS)

    def _flush_soon(self) -> None:
        self._flush_scheduled = True
        self._loop.call_soon(self.flush)
        if self._outboxes is not None:
            self._outboxes.wait(self)

    def flush(self) -> None:
        """Send what is in the outbox now, not in the next turn."""
        self._flush_scheduled = False
        if self._outboxes is not None:
            self._outboxes.forget(self)
        parts, transport = self._outbox, self._transport
        if self._state is ConnectionState.CLOSING:
            parts.clear()  # Nothing is taken after the end, and loops log attempts.
        if not parts or transport is None:
            return
        self._outbox = []
        if self._held is None:
            self._send(parts, transport)
            return
        unsent_bytes = transport.get_write_buffer_size()
        if unsent_bytes > BEHIND_BYTES:
            self._behind = True
        elif self._behind:
            self._caught_up()
        size_bytes = self._send(parts, transport)
        self._handed_bytes += size_bytes
        if unsent_bytes + size_bytes > self._held.noted_bytes:
            self._held.note(self, unsent_bytes + size_bytes + self._incoming_bytes)

    def _send(self, parts: list[bytes], transport: asyncio.Transport) -> int:
        # Large parts go as they are: copying them costs more than the vector does.
        vector = 1 < len(parts) < 64 and max(map(len, parts)) > JOIN_PARTS_BYTES_MAX
        data = b"" if vector else b"".join(parts)
        try:
            if vector:
                transport.writelines(parts)
            else:
                transport.write(data)
        except BaseException:
            transport.abort()  # What is sent later would come after a gap.
            raise
        return sum(map(len, parts)) if vector else len(data)

    def _over(self) -> None:
        """No further bytes, either way. What refers to each other here would else wait for the collector of cycles."""
        stood = self._state is not ConnectionState.UNWANTED
        self._become(_CLOSED)
        self.writable = False  # Who let go of it has others to write to.
        self._outbox.clear()
        if self._close_timer is not None:
            self._close_timer.cancel()
            self._close_timer = None
        if self._held is not None:
            self._held.forget(self)
            if stood:
                self._held.closed(self)
        self._transport = self._bare = None
        self._handler = None
        if self._on_lost is not None:
            self._on_lost(self)

    # --- asyncio's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """asyncio: the connection stands."""
        # uvloop's transports have the interface without being subclasses.
        self._transport = transport = cast(asyncio.Transport, transport)
        if self._state is ConnectionState.UNWANTED:
            transport.abort()  # It was closed before it stood; no handler hears of it.
            return
        self._become(ConnectionState.OPEN)
        if self._held is not None:
            self._held.opened(self)
        transport.set_write_buffer_limits(OUTBOX_HIGH_WATER_BYTES, OUTBOX_LOW_WATER_BYTES)
        raw_socket = transport.get_extra_info("socket")
        if raw_socket is not None and raw_socket.family in (socket.AF_INET, socket.AF_INET6):
            raw_socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        peer = transport.get_extra_info("peername")
        self.peer_address = f"/{peer[0]}:{peer[1]}" if isinstance(peer, tuple) else str(peer or "")
        handler = self._handler = self._make_handler(self)
        self._make_handler = _made  # What makes it may know of this connection.
        if receives(handler):
            transport.set_protocol(ReceivingSide(self, handler))
        handler.connection_made()
        if self._pause_reasons:
            self._loop.call_soon(self._stay_paused)

    def _stay_paused(self) -> None:
        # uvloop begins to read after `connection_made`, whatever it was told in there; what has come already is read
        # once all the same, before this turn.
        if self._pause_reasons and self._transport is not None:
            self._transport.pause_reading()

    def data_received(self, data: bytes) -> None:
        """asyncio: some bytes."""
        cast(Handler, self._handler).data_received(data)

    def pause_writing(self) -> None:
        """asyncio: the transport's buffer is over its high water mark."""
        self.writable = False
        if self._handler is not None:
            self._handler.writable_changed(writable=False)

    def resume_writing(self) -> None:
        """asyncio: the transport's buffer is below its low water mark again."""
        self.writable = True
        if self._narrow and self._transport is not None and not self._transport.is_closing():
            self._narrow = False
            self._transport.set_write_buffer_limits(OUTBOX_HIGH_WATER_BYTES, OUTBOX_LOW_WATER_BYTES)
        if self._behind:
            self._caught_up()
        if self._handler is not None:
            self._handler.writable_changed(writable=True)

    def connection_lost(self, exc: Exception | None) -> None:
        """asyncio: it is over."""
        handler = self._handler
        self._over()
        if handler is not None:
            handler.connection_lost(exc)


def _made(connection: Connection) -> Handler:
    """A connection has one handler after the other, but makes one only."""
    raise Misuse(f"the connection with {connection.peer_address} was made already")
