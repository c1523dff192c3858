"""Both sides of a connection with TLS in memory: a transport that sends nothing, and a peer at the other end of it."""

from __future__ import annotations

import asyncio
import functools
import ssl
import tempfile
from pathlib import Path

from magnetar.net.testing import TestAuthority
from magnetar.net.tls_layer.engine import TlsEngine
from magnetar.net.tls_layer.transport import SecuredTransport


@functools.cache
def server_context() -> ssl.SSLContext:
    """Made once: a key takes a while."""
    with tempfile.TemporaryDirectory() as folder:
        own = TestAuthority(Path(folder)).issue("here", "DNS:localhost")
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(own.certificate_file, own.key_file)
    return context


@functools.cache
def client_context() -> ssl.SSLContext:
    """Takes any certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


def server() -> TlsEngine:
    """The engine of a side that is called."""
    return TlsEngine(server_context(), server_side=True, server_name=None)


def client() -> TlsEngine:
    """The engine of a side that calls."""
    return TlsEngine(client_context(), server_side=False, server_name="localhost")


def shake_hands(here: TlsEngine, there: TlsEngine) -> None:
    """Until both stand."""
    there.receive(b"")
    while not (here.stands and there.stands):
        here.receive(there.take())
        there.receive(here.take())


def sealed(engine: TlsEngine, data: bytes) -> bytes:
    """All of it, encrypted."""
    pieces = []
    while data:
        data = data[engine.seal(data) :]
        pieces.append(engine.take())
    return b"".join(pieces)


class Bare(asyncio.Transport):
    """Keeps what is written; tests say what comes. It closes in the turn after that, as those of event loops do."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.get_running_loop()
        self.protocol: asyncio.BaseProtocol = asyncio.Protocol()
        self.written = bytearray()
        self.reading = True
        self.closing = False
        self.aborted = False

    def get_protocol(self) -> asyncio.BaseProtocol:
        return self.protocol

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self.protocol = protocol

    def is_closing(self) -> bool:
        return self.closing

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written += data

    def get_write_buffer_size(self) -> int:
        return len(self.written)

    def close(self) -> None:
        if not self.closing:
            self.closing = True
            self.loop.call_soon(self._lose)

    def abort(self) -> None:
        self.aborted = True
        self.written.clear()
        self.close()

    def _lose(self) -> None:
        protocol, self.protocol = self.protocol, asyncio.Protocol()
        protocol.connection_lost(None)

    def take(self) -> bytes:
        """What was written, sent."""
        data = bytes(self.written)
        self.written.clear()
        return data

    def comes(self, data: bytes) -> None:
        """As a loop gives it to a protocol that has memory."""
        while data and not self.closing:
            protocol = self.protocol
            assert isinstance(protocol, asyncio.BufferedProtocol)
            assert self.reading
            room = memoryview(protocol.get_buffer(-1))
            piece, data = data[: len(room)], data[len(room) :]
            room[: len(piece)] = piece
            protocol.buffer_updated(len(piece))


class Hears(asyncio.Protocol):
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.heard = b""
        self.ended = 0
        self.lost: list[Exception | None] = []

    def data_received(self, data: bytes) -> None:
        self.heard += data

    def eof_received(self) -> bool | None:
        self.ended += 1
        return None

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost.append(exc)


def secured(protocol: asyncio.Protocol, engine: TlsEngine | None = None) -> tuple[SecuredTransport, Bare, TlsEngine]:
    """A server's side whose handshake is finished, what is below it, and its client."""
    bare, there = Bare(), client()
    transport = SecuredTransport(bare, protocol, server() if engine is None else engine)
    handshake = transport.begin_handshake(60)
    there.receive(b"")
    while not handshake.done():
        bare.comes(there.take())
        there.receive(bare.take())
    return transport, bare, there
