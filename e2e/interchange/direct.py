"""Single requests to single bookies, past every client: the protocol's version 2 on a socket of its own."""

from __future__ import annotations

import hashlib
import socket
import struct

VERSION_2 = 2 << 24
ADD, READ = 1 << 16, 2 << 16
OK, INPUT_OUTPUT_ERROR, UNAUTHORIZED, FENCED = 0, 101, 102, 104
TIMEOUT_SECONDS = 10


def add(bookie_id: str, ledger: int, entry: int, password: str) -> int:
    """One add with the ledger's key as the password makes it; the answer's code."""
    packet = struct.pack(">qqqq", ledger, entry, -1, 1) + bytes(4) + b"x"
    master_key = hashlib.sha1(b"ledger" + password.encode()).digest()
    with connected(bookie_id) as connection:
        connection.sendall(frame(struct.pack(">I", VERSION_2 | ADD) + master_key + packet))
        return code_of(receive(connection))


def entries_held(bookie_id: str, ledger: int, count: int) -> set[int]:
    """Which of a ledger's first entries the bookie gives out."""
    held = set()
    with connected(bookie_id) as connection:
        for entry in range(count):
            connection.sendall(frame(struct.pack(">Iqq", VERSION_2 | READ, ledger, entry)))
            if code_of(receive(connection)) == OK:
                held.add(entry)
    return held


def answers(bookie_id: str) -> bool:
    """Whether a request is answered at all: Apache's bookie resets connections that come before it has started."""
    try:
        entries_held(bookie_id, 2**62, 1)
    except OSError:
        return False
    return True


def connected(bookie_id: str) -> socket.socket:
    host, _, port = bookie_id.rpartition(":")
    return socket.create_connection((host, int(port)), timeout=TIMEOUT_SECONDS)


def frame(body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + body


def receive(connection: socket.socket) -> bytes:
    """The next frame's body. OSError when the bookie hangs up."""
    size: int = struct.unpack(">I", receive_exactly(connection, 4))[0]
    return receive_exactly(connection, size)


def receive_exactly(connection: socket.socket, size: int) -> bytes:
    received = b""
    while len(received) < size:
        part = connection.recv(size - len(received))
        if not part:
            raise ConnectionResetError("the bookie has closed the connection")
        received += part
    return received


def code_of(body: bytes) -> int:
    code: int = struct.unpack(">Ii", body[:8])[1]
    return code
