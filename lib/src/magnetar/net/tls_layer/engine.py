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
from magnetar.net.tls_layer.records import RECORDS_AT_ONCE_MAX, RecordBounds, RecordWalk

RECORD_BYTES_MAX: Final = 16 * KIB
"""What one record says, at most, as TLS has it: one read of OpenSSL gives so much."""

SEALED_AT_ONCE_BYTES: Final = 256 * KIB
"""Bytes that one call encrypts: the shared buffer grows no further, whatever is written."""


READ_BYTES_MAX: Final = 128 * KIB
"""Bytes of one read from a socket. They are decrypted before anybody else's turn, unless they are very many records."""


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

    __slots__ = (
        *("_bounds", "_incoming", "_outgoing", "_walk"),
        *("left", "peer_has_ended", "records", "stands", "tls", "to_send"),
    )

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
        self.left = b""
        """What came, and is more than one turn's records: `receive` goes on with it."""
        self.records = 0
        """Records that began in what `receive` took last."""
        self._walk = RecordWalk()
        self._bounds = RecordBounds()

    def take(self) -> bytes:
        """What is to be sent; it is kept here no longer."""
        data, self.to_send = self.to_send, b""
        return data

    def receive(self, data: bytes | memoryview) -> bytes:
        """Take what came, and return what it says; what is too much for one turn is `left`. A handshake begins and goes
        on here, too: first with nothing. `ssl.SSLError` when the peer, or what came, is not to be trusted, or it is too
        much that says nothing; nothing is to be done after that."""
        self._begin()
        if self.left:
            data, self.left = b"".join((self.left, data)), b""
        size_bytes, self.records = self._walk.step(data, RECORDS_AT_ONCE_MAX)
        if size_bytes < len(data):
            self.left = bytes(data[size_bytes:])
            data = data[:size_bytes]
        said: list[bytes] = []
        try:
            self._incoming.write(data)
            self._open(said)
        finally:
            self._leave_nothing()
        words = said[0] if len(said) == 1 else b"".join(said)
        if self.stands:
            self._bounds.came(self.records, len(said), len(words))
        else:
            self._bounds.in_handshake(self.records, size_bytes)
        if self.peer_has_ended:
            self.left = b""
        return words

    def _open(self, said: list[bytes]) -> None:
        """Each of OpenSSL's reads gives what one record says."""
        tls, incoming = self.tls, self._incoming
        try:
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
            return  # A part of a record, or of the handshake: OpenSSL has it.
        except ssl.SSLZeroReturnError:
            if not self.stands:
                raise
            self.peer_has_ended = True  # OpenSSL tells it so when this side has ended, too.

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
            self._bounds.went(size_bytes - left_bytes)
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
