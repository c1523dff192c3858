"""Where TLS records begin in what a peer sends, and how many of them may say nothing.

Headers are never encrypted, so records can be counted before OpenSSL has them. It works off all that it is given in one
call, and a record of 22 bytes may cost it 19 µs: new keys, for each of 6 000 in one read.
"""

from __future__ import annotations

import ssl
from typing import Final

from magnetar.core.limits import KIB

HEADER_BYTES: Final = 5
"""Type, version, length."""

RECORDS_AT_ONCE_MAX: Final = 128
"""Records that OpenSSL is given in one turn: 2.5 ms where each changes keys, 0.4 ms where each says a little. The 91
records of 1 400 bytes in one read, with which some peers begin, are no more."""

SILENT_RECORDS_MAX: Final = 1_000
"""Records that say nothing, of one connection: 19 ms where each changes keys. Honest peers send a few at the beginning
and one at the end; OpenSSL's answers to so many are 31 KB."""

BYTES_PER_SILENT_RECORD: Final = 64 * KIB
"""What is said, either way, that permits another record that says nothing: honest peers change keys after gigabytes."""

HANDSHAKE_RECORDS_MAX: Final = 256
"""An honest handshake has ten; one with 100 KB of certificates, OpenSSL's most, has 200 in the smallest records."""

HANDSHAKE_BYTES_MAX: Final = 512 * KIB
"""Twice what OpenSSL takes as the two greatest messages of a handshake."""


def refused(why: str) -> ssl.SSLError:
    """With a text of its own: one argument alone would read like a tuple."""
    return ssl.SSLError(ssl.SSL_ERROR_SSL, why)


class RecordWalk:
    """How far one peer's records are known. They may be cut anywhere."""

    __slots__ = ("_header", "_to_next_bytes")

    def __init__(self) -> None:
        self._header = b""
        """The beginning of one whose rest has not come."""
        self._to_next_bytes = 0
        """What is still to come before the next header."""

    def step(self, data: bytes | memoryview, records_max: int) -> tuple[int, int]:
        """How many bytes to take, and how many records begin there: all bytes, or those before one record too many.
        `ssl.SSLError` for the greeting of SSL 2, whose length stands elsewhere: it would hide what follows."""
        size_bytes = len(data)
        records, at = 0, self._to_next_bytes
        if self._header:
            at = HEADER_BYTES - len(self._header)
            self._header += bytes(data[:at])
            if len(self._header) < HEADER_BYTES:
                return size_bytes, 0
            at += self._header[3] << 8 | self._header[4]
            records, self._header = 1, b""
        last = size_bytes - HEADER_BYTES
        while at <= last and records < records_max:
            if data[at] & 0x80:
                raise refused("a greeting of SSL 2")
            at += HEADER_BYTES + (data[at + 3] << 8 | data[at + 4])
            records += 1
        if at >= size_bytes:
            self._to_next_bytes = at - size_bytes
            return size_bytes, records
        self._to_next_bytes = 0
        if records >= records_max:
            return at, records
        self._header = bytes(data[at:])
        return size_bytes, records


class RecordBounds:
    """Counts one connection's records; `ssl.SSLError` when there are too many."""

    __slots__ = ("_handshake_bytes", "_handshake_records", "_said_bytes", "_silent")

    def __init__(self) -> None:
        self._handshake_records = self._handshake_bytes = 0
        self._silent = self._said_bytes = 0

    def in_handshake(self, records: int, size_bytes: int) -> None:
        """So much came, and the handshake is not finished."""
        self._handshake_records += records
        self._handshake_bytes += size_bytes
        if self._handshake_records > HANDSHAKE_RECORDS_MAX or self._handshake_bytes > HANDSHAKE_BYTES_MAX:
            raise refused(
                f"a TLS handshake of more than {HANDSHAKE_RECORDS_MAX} records or {HANDSHAKE_BYTES_MAX} bytes"
            )

    def came(self, records: int, that_say: int, said_bytes: int) -> None:
        """So many began after the handshake, and so many said something. One that is not complete counts as silent
        until it is."""
        self._said_bytes += said_bytes
        self._silent += records - that_say
        if self._silent > SILENT_RECORDS_MAX + self._said_bytes // BYTES_PER_SILENT_RECORD:
            raise refused(f"more than {SILENT_RECORDS_MAX} TLS records that say nothing")

    def went(self, said_bytes: int) -> None:
        """So much was said to the peer."""
        self._said_bytes += said_bytes
