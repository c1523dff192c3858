"""Entries as they are sent and stored: header, digest, payload.

Layout (BookKeeper: proto/checksum/DigestManager): ledger id 8, entry id 8, last add confirmed 8, length 8, digest,
payload. The digest covers the header and the payload, not itself. `length` counts the payload bytes of the ledger
up to and including this entry.

Hot: compiled by mypyc (see CONTRIBUTING).
"""

from __future__ import annotations

import functools
import hashlib
import hmac
import struct
import zlib
from collections.abc import Sequence
from typing import Final

import google_crc32c
from magnetar.core.errors import Misuse, PeerError

HEADER: Final = struct.Struct(">qqqq")
HEADER_BYTES: Final = 32
MASTER_KEY_BYTES: Final = 20

CRC32C: Final = "CRC32C"
CRC32: Final = "CRC32"
HMAC: Final = "HMAC"
DUMMY: Final = "DUMMY"

DIGEST_BYTES: Final[dict[str, int]] = {CRC32C: 4, CRC32: 8, HMAC: 20, DUMMY: 0}

_CRC32C_WORD: Final = struct.Struct(">I")
_CRC32C_HEADER: Final = struct.Struct(">qqqqI")
_CRC32_WORD: Final = struct.Struct(">q")
_TWO_LONGS: Final = struct.Struct(">qq")
_crc32c_extend: Final = google_crc32c.extend


class DigestMismatch(PeerError):
    """An entry is not what its digest says, or not the one that was asked for."""


@functools.lru_cache(maxsize=64)  # The ledgers of one process have one password, or a few.
def _key(purpose: bytes, password: bytes) -> bytes:
    return hashlib.sha1(purpose + password, usedforsecurity=False).digest()


def master_key(password: bytes) -> bytes:
    """The 20 bytes by which a bookie knows a ledger's owner: SHA-1 of "ledger" and the password."""
    return _key(b"ledger", password)


def header(entry: bytes) -> tuple[int, int, int, int]:
    """(ledger id, entry id, last add confirmed, length) of a whole entry, unchecked. `PeerError` if it is too short."""
    if len(entry) < HEADER_BYTES:
        raise PeerError(f"an entry of {len(entry)} bytes has no room for its header")
    fields: tuple[int, int, int, int] = HEADER.unpack_from(entry)
    return fields


class EntryRun:
    """Consecutive whole entries as they came, in one buffer: what is wanted of them is copied out of it once."""

    __slots__ = ("bounds", "buffer")

    def __init__(self, buffer: bytes, bounds: list[int]) -> None:
        self.buffer = buffer
        self.bounds = bounds
        """Where they are: [start, end, start, end, …]."""

    def __len__(self) -> int:
        return len(self.bounds) // 2

    def entries(self) -> list[bytes]:
        """Each as bytes of its own."""
        buffer, bounds = self.buffer, self.bounds
        return [buffer[bounds[index] : bounds[index + 1]] for index in range(0, len(bounds), 2)]


def run_of(entries: Sequence[bytes]) -> EntryRun:
    """Entries that came one by one."""
    bounds: list[int] = []
    end = 0
    for entry in entries:
        bounds.append(end)
        end += len(entry)
        bounds.append(end)
    return EntryRun(b"".join(entries), bounds)


class EntryCodec:
    """Makes and checks the entries of one ledger."""

    __slots__ = (
        "_mac_key",
        "digest_type",
        "ledger_id",
        "master_key",
        "overhead_bytes",
    )

    def __init__(self, ledger_id: int, digest_type: str, password: bytes = b"") -> None:
        if digest_type not in DIGEST_BYTES:
            raise Misuse(f"unknown digest type {digest_type!r}")
        self.ledger_id = ledger_id
        self.digest_type = digest_type
        self.overhead_bytes = HEADER_BYTES + DIGEST_BYTES[digest_type]
        """What an entry has beside its payload."""
        self.master_key = master_key(password)
        self._mac_key = _key(b"mac", password)

    def encode_many(
        self, first_entry_id: int, last_add_confirmed: int, length_before: int, payloads: Sequence[bytes]
    ) -> list[bytes]:
        """Whole entries of consecutive ids; `length_before` is the ledger's length without them."""
        if self.digest_type == CRC32C:
            return self._encode_crc32c(first_entry_id, last_add_confirmed, length_before, payloads)
        entries: list[bytes] = []
        length = length_before
        entry_id = first_entry_id
        for payload in payloads:
            length += len(payload)
            head = HEADER.pack(self.ledger_id, entry_id, last_add_confirmed, length)
            entries.append(head + self._digest(head, payload) + payload)
            entry_id += 1
        return entries

    def _encode_crc32c(
        self, first_entry_id: int, last_add_confirmed: int, length_before: int, payloads: Sequence[bytes]
    ) -> list[bytes]:
        entries: list[bytes] = []
        ledger_id = self.ledger_id
        length = length_before
        entry_id = first_entry_id
        for payload in payloads:
            length += len(payload)
            head = HEADER.pack(ledger_id, entry_id, last_add_confirmed, length)
            checksum = _crc32c_extend(_crc32c_extend(0, head), payload)
            entries.append(head + _CRC32C_WORD.pack(checksum) + payload)
            entry_id += 1
        return entries

    def decode(self, entry: bytes, entry_id: int) -> bytes:
        """The payload, once ledger id, entry id and digest have been found right. Raises `DigestMismatch`."""
        start = self.overhead_bytes
        if len(entry) < start:
            raise DigestMismatch(f"an entry of {len(entry)} bytes has no room for header and digest")
        found_ledger, found_entry = _TWO_LONGS.unpack_from(entry)
        if found_ledger != self.ledger_id or found_entry != entry_id:
            raise DigestMismatch(f"asked for {self.ledger_id}:{entry_id}, got {found_ledger}:{found_entry}")
        payload = entry[start:]
        if self.digest_type != CRC32C:
            self._check(entry)
        elif (
            _crc32c_extend(_crc32c_extend(0, entry[:HEADER_BYTES]), payload)
            != _CRC32C_WORD.unpack_from(entry, HEADER_BYTES)[0]
        ):
            raise self._wrong(entry)
        return payload

    def decode_run(
        self, run: EntryRun, first_entry_id: int, count_max: int
    ) -> tuple[list[bytes], DigestMismatch | None]:
        """The payloads of the first `count_max` entries, up to the first that is wrong, and what is wrong with it."""
        payloads: list[bytes] = []
        entry_id = first_entry_id
        ledger_id = self.ledger_id
        overhead_bytes = self.overhead_bytes
        in_a_row = self.digest_type == CRC32C
        buffer, bounds = run.buffer, run.bounds
        for index in range(0, min(len(bounds), 2 * count_max), 2):
            start = bounds[index]
            end = bounds[index + 1]
            if in_a_row and end - start >= overhead_bytes:
                payload = buffer[start + overhead_bytes : end]
                found_ledger, found_entry, _, _, digest = _CRC32C_HEADER.unpack_from(buffer, start)
                if (
                    found_entry == entry_id
                    and found_ledger == ledger_id
                    and _crc32c_extend(_crc32c_extend(0, buffer[start : start + HEADER_BYTES]), payload) == digest
                ):
                    payloads.append(payload)
                    entry_id += 1
                    continue
            try:
                payloads.append(self.decode(buffer[start:end], entry_id))
            except DigestMismatch as error:
                return payloads, error
            entry_id += 1
        return payloads, None

    def check(self, entry: bytes) -> tuple[int, int, int, int]:
        """The header of whichever entry of this ledger it is, digest checked. Raises `DigestMismatch`."""
        if len(entry) < self.overhead_bytes:
            raise DigestMismatch(f"an entry of {len(entry)} bytes has no room for header and digest")
        fields = header(entry)
        if fields[0] != self.ledger_id:
            raise DigestMismatch(f"asked for ledger {self.ledger_id}, got {fields[0]}")
        self._check(entry)
        return fields

    def _check(self, entry: bytes) -> None:
        start = self.overhead_bytes
        if self.digest_type == CRC32C:
            expected: int = _CRC32C_WORD.unpack_from(entry, HEADER_BYTES)[0]
            good = _crc32c_extend(_crc32c_extend(0, entry[:HEADER_BYTES]), entry[start:]) == expected
        else:
            good = self._digest(entry[:HEADER_BYTES], entry[start:]) == entry[HEADER_BYTES:start]
        if not good:
            raise self._wrong(entry)

    def _wrong(self, entry: bytes) -> DigestMismatch:
        ledger_id, entry_id = _TWO_LONGS.unpack_from(entry)
        return DigestMismatch(f"the {self.digest_type} digest of entry {ledger_id}:{entry_id} is wrong")

    def encode_explicit_lac(self, last_add_confirmed: int) -> bytes:
        """The packet of a v3 explicit LAC write: ledger id, LAC, digest over the two."""
        head = _TWO_LONGS.pack(self.ledger_id, last_add_confirmed)
        return head + self._digest(head, b"")

    def decode_explicit_lac(self, packet: bytes) -> int:
        """The LAC of such a packet. Raises `DigestMismatch`."""
        if len(packet) < _TWO_LONGS.size:
            raise DigestMismatch(f"an explicit LAC of {len(packet)} bytes")
        ledger_id, last_add_confirmed = _TWO_LONGS.unpack_from(packet)
        if ledger_id != self.ledger_id or self._digest(packet[:16], b"") != packet[16:]:
            raise DigestMismatch(f"the explicit LAC of ledger {self.ledger_id} is damaged")
        lac: int = last_add_confirmed
        return lac

    def _digest(self, head: bytes, payload: bytes) -> bytes:
        if self.digest_type == CRC32C:
            return _CRC32C_WORD.pack(_crc32c_extend(_crc32c_extend(0, head), payload))
        if self.digest_type == CRC32:
            return _CRC32_WORD.pack(zlib.crc32(payload, zlib.crc32(head)))
        if self.digest_type == HMAC:
            return hmac.digest(self._mac_key, head + payload, "sha1")
        return b""
