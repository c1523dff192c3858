"""A transport over TLS, over a transport without.

It is the protocol of the one below, and has a protocol above. What came in is decrypted and told in the same turn; what
is written is encrypted and given to the transport below at once. So nothing waits here, with three exceptions: what was
decrypted while the protocol above stopped to read in the middle of it, what is written while TLS has to receive
something first, and the rest of a read that brought more records than one turn is for. How much the peer has not
taken, and when that is too much, is the matter of the transport below.
"""

from __future__ import annotations

import asyncio
import enum
import ssl
from collections.abc import Iterable
from typing import Any, Final, cast

from magnetar.core.transitions import Transitions
from magnetar.net.tls_layer.engine import BUFFERS, TlsEngine

CLOSE_SECONDS_MAX: Final = 30.0
"""How long a peer may take, once either side has ended, for what it was sent, and to say that it has ended, too. As
event loops have it."""

MANY_RECORDS: Final = 32
"""After a read with more than these the other connections have their turn. Without that, libuv reads up to 32 times in
one turn while all that is asked for comes, so up to 1 000 records; full ones are eight a read."""


class SecuredState(enum.Enum):
    """How a connection with TLS stands."""

    NEW = enum.auto()
    HANDSHAKE = enum.auto()
    OPEN = enum.auto()
    CLOSING = enum.auto()
    """This side has ended, or the peer has. What still comes is not told."""
    CLOSED = enum.auto()
    """The transport below is over, or cut."""


_OPEN: Final = SecuredState.OPEN

TRANSITIONS: Final = Transitions(
    "a connection with TLS",
    {
        SecuredState.NEW: {SecuredState.HANDSHAKE, SecuredState.CLOSED},
        SecuredState.HANDSHAKE: {_OPEN, SecuredState.CLOSED},
        _OPEN: {SecuredState.CLOSING, SecuredState.CLOSED},
        SecuredState.CLOSING: {SecuredState.CLOSED},
        SecuredState.CLOSED: (),
    },
)

NOBODY: Final = asyncio.Protocol()
"""Hears what comes after the end."""


class SecuredTransport(asyncio.Transport, asyncio.BufferedProtocol):
    """TLS of one connection."""

    __slots__ = (
        *("_bare", "_buffered", "_engine", "_error", "_handshake", "_loop", "_peer_certificate", "_protocol"),
        *("_reading", "_state", "_timer", "_turn", "_unheard", "_unsealed"),
    )

    def __init__(self, bare: asyncio.Transport, protocol: asyncio.Protocol, engine: TlsEngine) -> None:
        """`begin_handshake` takes the transport below over. The protocol's `connection_made` is not called."""
        super().__init__()
        self._loop = asyncio.get_running_loop()
        self._bare = bare
        self._engine = engine
        self._protocol: asyncio.BaseProtocol = protocol
        self._buffered = False
        """Whether the protocol gives the memory for what comes in."""
        self._state = SecuredState.NEW
        self._handshake: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        """Of the handshake; later of the end."""
        self._reading = True
        """Whether the protocol wants what comes. The transport below reads when it does and no turn is waited for."""
        self._turn: asyncio.Handle | None = None
        """In which reading goes on."""
        self._unheard = b""
        """Decrypted; the protocol stopped to read before it."""
        self._unsealed: list[bytes] = []
        """Written; TLS has to receive something before it can be encrypted."""
        self._error: Exception | None = None
        self._peer_certificate: dict[str, Any] | None = None

    def _become(self, state: SecuredState) -> None:
        self._state = TRANSITIONS.step(self._state, state)

    # --- the handshake

    def begin_handshake(self, timeout_seconds: float) -> asyncio.Future[None]:
        """Become the protocol of the transport below. Done when TLS stands; OSError when it does not: whoever waits
        aborts the transport below then, in the next turn."""
        self._become(SecuredState.HANDSHAKE)
        handshake = self._handshake = self._loop.create_future()
        self._bare.set_protocol(self)
        self._timer = self._loop.call_later(timeout_seconds, self._handshake_takes_too_long, timeout_seconds)
        self._bare.resume_reading()
        self._received(b"")  # Who calls begins to speak.
        return handshake

    def _handshake_takes_too_long(self, timeout_seconds: float) -> None:
        self._fail(
            ConnectionAbortedError(
                f"SSL handshake is taking longer than {timeout_seconds} seconds: aborting the connection"
            )
        )

    def _stands(self) -> None:
        self._become(_OPEN)
        self._stop_timer()
        self._peer_certificate = self._engine.tls.getpeercert()
        handshake, self._handshake = self._handshake, None
        if handshake is not None and not handshake.done():
            handshake.set_result(None)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # --- for the transport below

    def get_buffer(self, sizehint: int) -> memoryview:
        """asyncio: where the next bytes go; those of all connections, as they stay for no turn."""
        return BUFFERS.read

    def buffer_updated(self, nbytes: int) -> None:
        """asyncio: so many came."""
        self._received(BUFFERS.read[:nbytes])

    def _received(self, data: bytes | memoryview) -> None:
        if self._state is SecuredState.CLOSED:
            return
        engine = self._engine
        try:
            said = engine.receive(data)
        except ssl.SSLError as error:
            self._fail(error)
            return
        if engine.to_send:
            self._bare.write(engine.take())
        if engine.left or engine.records > MANY_RECORDS:
            self._read_in_next_turn()
        if engine.stands and self._state is SecuredState.HANDSHAKE:
            self._stands()
        if self._unsealed:
            self._seal_what_waits()
        if said and self._state is _OPEN:
            self._tell(said)
        if engine.peer_has_ended and not self._unheard:
            self._peer_ended()

    def eof_received(self) -> bool | None:
        """asyncio: the peer has ended the connection, with TLS or without. The one below closes itself then, once what
        was written is sent. It hears of no end while it does not read, so before that all that came was taken."""
        if self._state is SecuredState.HANDSHAKE:
            self._fail(ConnectionResetError())
        elif self._state is _OPEN:
            self._ending()
        return None

    def connection_lost(self, exc: Exception | None) -> None:
        """asyncio: it is over."""
        if self._handshake is not None:
            self._fail(exc or ConnectionResetError())
        if self._state is not SecuredState.CLOSED:
            self._become(SecuredState.CLOSED)
        self._stop_timer()
        if self._turn is not None:
            self._turn.cancel()
            self._turn = None
        self._unheard = self._engine.left = b""
        self._unsealed.clear()
        protocol, error = self._protocol, self._error or exc
        self._protocol, self._error = NOBODY, None
        protocol.connection_lost(error)

    def pause_writing(self) -> None:
        """asyncio: the peer has fallen behind."""
        self._protocol.pause_writing()

    def resume_writing(self) -> None:
        """asyncio: it has caught up."""
        self._protocol.resume_writing()

    # --- what comes in

    def _tell(self, said: bytes) -> None:
        if self._buffered or self._unheard:
            self._unheard += said
            self._tell_unheard()
        else:
            cast(asyncio.Protocol, self._protocol).data_received(said)

    def _tell_unheard(self) -> None:
        """As much as the protocol takes: it may stop to read, and another one may follow it."""
        rest, self._unheard = memoryview(self._unheard), b""
        while rest and self._reading and self._state is _OPEN:
            protocol = self._protocol
            if isinstance(protocol, asyncio.BufferedProtocol):
                room = memoryview(protocol.get_buffer(len(rest)))
                size_bytes = min(len(room), len(rest))
                room[:size_bytes] = rest[:size_bytes]
                rest = rest[size_bytes:]
                protocol.buffer_updated(size_bytes)
            else:
                data, rest = bytes(rest), rest[:0]
                cast(asyncio.Protocol, protocol).data_received(data)
        self._unheard = bytes(rest) if self._state is _OPEN else b""

    def _read_in_next_turn(self) -> None:
        self._bare.pause_reading()
        if self._turn is None:
            self._turn = self._loop.call_soon(self._go_on_reading)

    def _go_on_reading(self) -> None:
        self._turn = None
        if self._unheard and self._state is _OPEN:
            self._tell_unheard()
        if self._unheard or self._state is SecuredState.CLOSED or self._turn is not None:
            return
        if self._engine.peer_has_ended:
            self._peer_ended()
            return
        if self._engine.left and self._wants_more:
            self._received(b"")
        self._read_on()

    @property
    def _wants_more(self) -> bool:
        """What comes before and after it is open is for TLS alone."""
        return self._state is not SecuredState.CLOSED and (self._reading or self._state is not _OPEN)

    def _read_on(self) -> None:
        if self._turn is not None or not self._wants_more:
            return
        if self._engine.left:
            self._read_in_next_turn()
        else:
            self._bare.resume_reading()

    def _peer_ended(self) -> None:
        """It has said so."""
        if self._state is _OPEN:
            cast(asyncio.Protocol, self._protocol).eof_received()
            self.close()  # The TLS of event loops knows no connection that is open on one side, either.
        self._bare.close()

    # --- what goes out

    def _seal(self, data: bytes | bytearray | memoryview, sealed: list[bytes]) -> None:
        """What has to wait goes where it waits."""
        engine = self._engine
        rest = data
        while rest:
            taken = engine.seal(rest)
            if engine.to_send:
                sealed.append(engine.take())
            if taken == len(rest):
                return
            if not taken:
                self._unsealed.append(bytes(rest))
                return
            rest = memoryview(rest)[taken:]

    def _send(self, parts: Iterable[bytes | bytearray | memoryview]) -> None:
        sealed: list[bytes] = []
        try:
            for part in parts:
                if self._unsealed:
                    self._unsealed.append(bytes(part))
                else:
                    self._seal(part, sealed)
        except ssl.SSLError as error:
            self._fail(error)
            return
        # In one call: the transport below may tell the protocol that its peer is behind, who may write something.
        if len(sealed) == 1:
            self._bare.write(sealed[0])
        elif sealed:
            self._bare.writelines(sealed)

    def _seal_what_waits(self) -> None:
        waiting, self._unsealed = self._unsealed, []
        self._send(waiting)
        if self._state is SecuredState.CLOSING and not self._unsealed:
            self._say_the_end()

    def _say_the_end(self) -> None:
        try:
            self._engine.end()
        except ssl.SSLError as error:
            self._fail(error)
            return
        if self._engine.to_send:
            self._bare.write(self._engine.take())

    # --- the end

    def _ending(self) -> None:
        self._become(SecuredState.CLOSING)
        self._unheard = b""
        self._timer = self._loop.call_later(CLOSE_SECONDS_MAX, self._end_takes_too_long)

    def _end_takes_too_long(self) -> None:
        self._fail(TimeoutError("SSL shutdown timed out"))

    def _fail(self, error: Exception) -> None:
        """At once; whoever waits for the handshake hears of it, or else the protocol."""
        if self._state is not SecuredState.CLOSED:
            self._become(SecuredState.CLOSED)
        self._stop_timer()
        handshake, self._handshake = self._handshake, None
        self._error = error.with_traceback(None)  # What it refers to would refer back here.
        if handshake is None or handshake.done():
            self._bare.abort()
            return
        handshake.set_exception(error)
        if self._engine.to_send:
            self._bare.write(self._engine.take())  # It tells the peer why.
            self._bare.close()  # Not for long: see `begin_handshake`. What is aborted in this turn sends nothing.
        else:
            self._bare.abort()

    def abort(self) -> None:
        """Close at once."""
        if self._state is _OPEN or self._state is SecuredState.CLOSING:
            self._become(SecuredState.CLOSED)
        self._bare.abort()

    def close(self) -> None:
        """Send what waits and say that nothing more comes, then close once the peer has said so, too."""
        if self._state is _OPEN:
            self._ending()
            if not self._unsealed:
                self._say_the_end()
            self._read_on()  # For what the peer says to that.
        elif self._state is not SecuredState.CLOSING:
            self.abort()

    @property
    def stands(self) -> bool:
        """Whether the protocol may be told what came: the connection is open, or its peer has ended it."""
        return self._state is SecuredState.CLOSING or (self._state is _OPEN and not self._bare.is_closing())

    def is_closing(self) -> bool:
        """Whether it is closing, or closed."""
        return self._state is SecuredState.CLOSING or self._state is SecuredState.CLOSED or self._bare.is_closing()

    # --- the rest of a transport

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Send it. After the end: dropped."""
        if self._state is _OPEN:
            self._send((data,))

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview]) -> None:
        """Send them."""
        if self._state is _OPEN:
            self._send(list_of_data)

    def write_eof(self) -> None:
        """TLS cannot."""
        raise NotImplementedError

    def can_write_eof(self) -> bool:
        """Whether one direction alone may end: not over TLS."""
        return False

    def get_write_buffer_size(self) -> int:
        """Bytes that wait; those that are encrypted already with what TLS adds."""
        return self._bare.get_write_buffer_size() + sum(map(len, self._unsealed))

    def get_write_buffer_limits(self) -> tuple[int, int]:
        """Low and high, in bytes."""
        return self._bare.get_write_buffer_limits()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """When the protocol is told that its peer is behind, and has caught up."""
        self._bare.set_write_buffer_limits(high, low)

    def is_reading(self) -> bool:
        """Whether the protocol is given what comes."""
        return self._reading

    def pause_reading(self) -> None:
        """Give the protocol nothing."""
        self._reading = False
        if self._state is _OPEN:
            self._bare.pause_reading()

    def resume_reading(self) -> None:
        """Go on."""
        if self._reading:
            return
        self._reading = True
        if self._unheard:
            self._read_in_next_turn()  # Nobody is told anything while he calls.
        elif self._state is _OPEN:
            self._read_on()

    def get_protocol(self) -> asyncio.BaseProtocol:
        """Whoever is told of what comes."""
        return self._protocol

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        """Tell this one from now on."""
        self._protocol = protocol
        self._buffered = isinstance(protocol, asyncio.BufferedProtocol)

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """What TLS and the loop know of the connection."""
        tls = self._engine.tls
        if name == "peercert":
            return self._peer_certificate
        if name == "ssl_object":
            return tls
        if name == "sslcontext":
            return tls.context
        if name == "cipher":
            return tls.cipher()
        if name == "compression":
            return tls.compression()
        return self._bare.get_extra_info(name, default)
