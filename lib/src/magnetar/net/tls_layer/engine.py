"""What TLS makes of bytes that came, and of bytes that are to leave: no connection, no clock.

OpenSSL reads from one buffer and writes into another. Each keeps the memory of the most that was ever in it, so buffers
of each connection's own would hold hundreds of kilobytes for ever after one large read. Here all connections of a
thread share two: both are empty before and after each call of an engine, whatever happens in it. Nothing of anybody
else's runs in between, with one exception: the collector of cycles may end a coroutine that closes its connection. Such
a call is refused. Nothing decrypted is ever in the buffers. OpenSSL itself holds what there is of a record
that is not complete, 17 KB at most, and lets go of it once it is.
"""

from __future__ import annotations

import ssl
import threading
from typing import Final

from magnetar.core.limits import KIB

RECORD_BYTES_MAX: Final = 16 * KIB
"""What one record says, at most, as TLS has it: one read of OpenSSL gives so much."""

SEALED_AT_ONCE_BYTES: Final = 256 * KIB
"""Bytes that one call encrypts: the shared buffer grows no further, whatever is written."""


READ_BYTES_MAX: Final = 128 * KIB
"""Bytes of one read from a socket, which are decrypted before anybody else's turn."""


BUSY: Final = "another connection of this thread is at work"


class SharedBuffers(threading.local):
    """Between OpenSSL and the connections of a thread."""

    def __init__(self) -> None:
        self.incoming = ssl.MemoryBIO()
        self.outgoing = ssl.MemoryBIO()
        self.read = memoryview(bytearray(READ_BYTES_MAX))
        """What a read from a socket is put into, until OpenSSL has it."""


BUFFERS: Final = SharedBuffers()


class TlsEngine:
    """One connection's TLS. Belongs to the thread that made it."""

    __slots__ = ("_incoming", "_outgoing", "peer_has_ended", "stands", "tls", "to_send")

    def __init__(self, context: ssl.SSLContext, *, server_side: bool, server_name: str | None) -> None:
        """ValueError for what cannot be a server's name."""
        self._incoming, self._outgoing = BUFFERS.incoming, BUFFERS.outgoing
        self.tls = context.wrap_bio(
            self._incoming,
            self._outgoing,
            server_side=server_side,
            server_hostname=None if server_side else server_name,
        )
        self.stands = False
        """Whether the handshake is finished."""
        self.peer_has_ended = False
        """Whether the peer has said that nothing more comes."""
        self.to_send = b""
        """What the peer is to be sent, before anything that is sealed later: see `take`."""

    def take(self) -> bytes:
        """What is to be sent; it is kept here no longer."""
        data, self.to_send = self.to_send, b""
        return data

    def receive(self, data: bytes | memoryview) -> bytes:
        """Take what came, and return what it says. A handshake begins and goes on here, too: first with nothing.
        `ssl.SSLError` when the peer, or what came, is not to be trusted; nothing is to be done after that."""
        self._begin()
        tls, incoming = self.tls, self._incoming
        said: list[bytes] = []
        try:
            incoming.write(data)
            if not self.stands:
                tls.do_handshake()
                self.stands = True
            # What OpenSSL raises when nothing is left costs more than these looks do.
            while incoming.pending or tls.pending():
                record = tls.read(RECORD_BYTES_MAX)
                if not record:
                    self.peer_has_ended = True
                    break
                said.append(record)
        except ssl.SSLWantReadError:
            return b"".join(said)  # A part of a record, or of the handshake: OpenSSL has it.
        except ssl.SSLZeroReturnError:
            if not self.stands:
                raise
            self.peer_has_ended = True  # OpenSSL tells it so when this side has ended, too.
        finally:
            self._leave_nothing()
        return said[0] if len(said) == 1 else b"".join(said)

    def seal(self, data: bytes | bytearray | memoryview) -> int:
        """Encrypt the beginning, to be sent, and return how much that is. 0: TLS has to receive something first, so all
        of it has to wait. `ssl.SSLError` as above."""
        self._begin()
        write = self.tls.write
        rest = data if len(data) <= SEALED_AT_ONCE_BYTES else memoryview(data)[:SEALED_AT_ONCE_BYTES]
        size_bytes = left_bytes = len(rest)
        try:
            while left_bytes:
                taken_bytes = write(rest)  # One record.
                left_bytes -= taken_bytes
                if left_bytes:
                    rest = memoryview(rest)[taken_bytes:]
        except ssl.SSLWantReadError:
            return size_bytes - left_bytes
        finally:
            self._leave_nothing()
        return size_bytes

    def end(self) -> None:
        """Have the peer told that nothing more comes. `ssl.SSLError` as above."""
        self._begin()
        try:
            self.tls.unwrap()
        except ssl.SSLWantReadError:
            return  # The peer has not said the same yet.
        finally:
            self._leave_nothing()

    def _begin(self) -> None:
        if self._incoming.pending or self._outgoing.pending:
            raise ssl.SSLError(BUSY)

    def _leave_nothing(self) -> None:
        outgoing, incoming = self._outgoing, self._incoming
        self.to_send = outgoing.read() if outgoing.pending else b""
        if incoming.pending:
            incoming.read()  # After an error or the peer's end: it means nothing, and least of all to others.
