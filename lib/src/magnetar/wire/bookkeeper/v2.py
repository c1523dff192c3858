"""BookKeeper's protocol version 2, both sides, a whole read at a time.

A frame's body starts with the header word `version << 24 | opcode << 16 | flags`. Adds carry no request id; replies
are matched by operation, ledger and entry. Decoders take a buffer and the bounds of the frames in it, as
`FrameSplitter.feed` gives them; adds (and their replies) of one ledger that stand together come out as one group.

Hot: compiled by mypyc (see CONTRIBUTING).
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final, TypeAlias

from google.protobuf.message import DecodeError
from magnetar.core.errors import PeerError
from magnetar.wire.bookkeeper.codes import BookieCode, known_code
from magnetar.wire.bookkeeper.entry import HEADER_BYTES, MASTER_KEY_BYTES, EntryRun
from magnetar.wire.bookkeeper.generated.bookkeeper_protocol_pb2 import AuthMessage

VERSION: Final = 2
ADD: Final = 1
READ: Final = 2
AUTH: Final = 3
BATCH_READ: Final = 7

FLAG_FENCE: Final = 0x1
_FLAGS_MAX: Final = 0xFFFF

_HEADER_WORD: Final = struct.Struct(">I")
_FRAMED_HEADER: Final = struct.Struct(">II")
_LEDGER_ENTRY: Final = struct.Struct(">qq")
_ENTRY: Final = struct.Struct(">q")
_SIZE: Final = struct.Struct(">I")
_READ_REQUEST: Final = struct.Struct(">IIqq")
_BATCH_READ_REQUEST: Final = struct.Struct(">IIqqqiq")
_BATCH_READ_FIELDS: Final = struct.Struct(">qqqiq")
_RESPONSE: Final = struct.Struct(">IIiqq")
_RESPONSE_PREFIX: Final = struct.Struct(">IIiq")
_RESPONSE_FIELDS: Final = struct.Struct(">iqq")
_BATCH_READ_RESPONSE: Final = struct.Struct(">IIiqqq")

_ADD_ENTRY_AT: Final = 4 + MASTER_KEY_BYTES
_READ_BYTES: Final = 20
_RESPONSE_BYTES: Final = 24
_BATCH_READ_BYTES: Final = 40
_BATCH_READ_RESPONSE_BYTES: Final = 32


class AddGroup:
    """Adds of one ledger with the same key and flags, in the order of their coming."""

    __slots__ = ("entries", "entry_ids", "flags", "ledger_id", "master_key")

    def __init__(self, ledger_id: int, master_key: bytes, flags: int) -> None:
        self.ledger_id = ledger_id
        self.master_key = master_key
        self.flags = flags
        self.entry_ids: list[int] = []
        self.entries: list[bytes] = []


class Read:
    """One entry is wanted; `master_key` is empty unless the read fences."""

    __slots__ = ("entry_id", "flags", "ledger_id", "master_key")

    def __init__(self, ledger_id: int, entry_id: int, flags: int, master_key: bytes) -> None:
        self.ledger_id = ledger_id
        self.entry_id = entry_id
        self.flags = flags
        self.master_key = master_key


class BatchRead:
    """Consecutive entries are wanted, up to a count and a size in bytes."""

    __slots__ = ("count_max", "first_entry_id", "flags", "ledger_id", "master_key", "request_id", "size_bytes_max")

    def __init__(self, fields: tuple[int, int, int, int, int], flags: int, master_key: bytes) -> None:
        self.ledger_id, self.first_entry_id, self.request_id, self.count_max, self.size_bytes_max = fields
        self.flags = flags
        self.master_key = master_key


class Auth:
    """A step of the authentication exchange; the same in both directions."""

    __slots__ = ("payload", "plugin_name")

    def __init__(self, plugin_name: str, payload: bytes) -> None:
        self.plugin_name = plugin_name
        self.payload = payload


class AddResponses:
    """Replies to adds of one ledger with the same code."""

    __slots__ = ("code", "entry_ids", "ledger_id")

    def __init__(self, code: int, ledger_id: int) -> None:
        self.code = code
        self.ledger_id = ledger_id
        self.entry_ids: list[int] = []


class ReadResponse:
    """A whole entry, or why there is none. `entry_id` is as it was requested (so it may be -1)."""

    __slots__ = ("code", "entry", "entry_id", "ledger_id")

    def __init__(self, code: BookieCode, ledger_id: int, entry_id: int, entry: bytes) -> None:
        self.code = code
        self.ledger_id = ledger_id
        self.entry_id = entry_id
        self.entry = entry


class BatchReadResponse:
    """Whole entries from `first_entry_id` on, or why there are none."""

    __slots__ = ("code", "first_entry_id", "ledger_id", "request_id", "run")

    def __init__(self, code: BookieCode, fields: tuple[int, int, int], run: EntryRun) -> None:
        self.code = code
        self.ledger_id, self.first_entry_id, self.request_id = fields
        self.run = run


Request: TypeAlias = AddGroup | Read | BatchRead | Auth
Response: TypeAlias = AddResponses | ReadResponse | BatchReadResponse | Auth


def is_version_2(buffer: bytes, start: int, end: int) -> bool:
    """Whether a frame starts as version 2 does; the first byte of a version 3 request differs."""
    return end - start >= 4 and buffer[start] == VERSION


def decode_requests(buffer: bytes, bounds: Sequence[int]) -> list[Request]:
    """The requests of a read, in order; a bookie's side.

    Neighbouring adds are grouped by ledger: the order within a ledger is kept, and no add passes a read. Raises
    `PeerError` for what version 2 does not know."""
    requests: list[Request] = []
    groups: dict[int, AddGroup] = {}
    for index in range(0, len(bounds), 2):
        start = bounds[index]
        end = bounds[index + 1]
        opcode, flags = _header(buffer, start, end)
        if opcode != ADD:
            groups.clear()
            requests.append(_decode_request(buffer, start, end, opcode, flags))
            continue
        entry_at = start + _ADD_ENTRY_AT
        if end - entry_at < HEADER_BYTES:
            raise PeerError(f"an add of {end - start} bytes")
        ledger_id, entry_id = _LEDGER_ENTRY.unpack_from(buffer, entry_at)
        if (ledger_id | entry_id) < 0:
            # A journal knows its own records, a log its map, by such ids.
            raise PeerError(f"an add of entry {ledger_id}:{entry_id}")
        key = buffer[start + 4 : entry_at]
        group = groups.get(ledger_id)
        if group is None or group.flags != flags or group.master_key != key:
            group = AddGroup(ledger_id, key, flags)
            groups[ledger_id] = group
            requests.append(group)
        group.entry_ids.append(entry_id)
        group.entries.append(buffer[entry_at:end])
    return requests


def _header(buffer: bytes, start: int, end: int) -> tuple[int, int]:
    if end - start < 4:
        raise PeerError(f"a frame of {end - start} bytes")
    word: int = _HEADER_WORD.unpack_from(buffer, start)[0]
    if word >> 24 != VERSION:
        raise PeerError(f"protocol version {word >> 24}")
    return (word >> 16) & 0xFF, word & _FLAGS_MAX


def _decode_request(buffer: bytes, start: int, end: int, opcode: int, flags: int) -> Request:
    if opcode == ADD:
        raise PeerError(f"an add of {end - start} bytes")
    if opcode == READ:
        key = _fencing_key(buffer, start + _READ_BYTES, end, flags)
        ledger_id, entry_id = _LEDGER_ENTRY.unpack_from(buffer, start + 4)
        return Read(ledger_id, entry_id, flags, key)
    if opcode == BATCH_READ:
        key = _fencing_key(buffer, start + _BATCH_READ_BYTES, end, flags)
        return BatchRead(_BATCH_READ_FIELDS.unpack_from(buffer, start + 4), flags, key)
    if opcode == AUTH:
        return _decode_auth(buffer[start + 4 : end])
    raise PeerError(f"operation {opcode} is not part of version 2")


def _fencing_key(buffer: bytes, at: int, end: int, flags: int) -> bytes:
    key_bytes = MASTER_KEY_BYTES if flags & FLAG_FENCE else 0
    if end - at < key_bytes or end < at:
        raise PeerError("a read request that is cut short")
    return buffer[at : at + key_bytes]


def _decode_auth(body: bytes) -> Auth:
    try:
        message = AuthMessage.FromString(body)
    except DecodeError as error:
        raise PeerError(f"a damaged authentication message: {error}") from None
    return Auth(message.authPluginName, message.payload)


def decode_responses(buffer: bytes, bounds: Sequence[int]) -> list[Response]:
    """The responses of a read, in order; a client's side.

    Neighbouring replies to adds are grouped by ledger and code. Raises `PeerError`."""
    responses: list[Response] = []
    groups: dict[int, AddResponses] = {}
    for index in range(0, len(bounds), 2):
        start = bounds[index]
        end = bounds[index + 1]
        opcode, _ = _header(buffer, start, end)
        if opcode != ADD:
            groups.clear()
            responses.append(_decode_response(buffer, start, end, opcode))
            continue
        if end - start < _RESPONSE_BYTES:
            raise PeerError(f"a reply to an add of {end - start} bytes")
        code, ledger_id, entry_id = _RESPONSE_FIELDS.unpack_from(buffer, start + 4)
        group = groups.get(ledger_id)
        if group is None or group.code != code:
            group = AddResponses(code, ledger_id)
            groups[ledger_id] = group
            responses.append(group)
        group.entry_ids.append(entry_id)
    return responses


def _decode_response(buffer: bytes, start: int, end: int, opcode: int) -> Response:
    if opcode == AUTH:
        return _decode_auth(buffer[start + 4 : end])
    if opcode != READ and opcode != BATCH_READ:
        raise PeerError(f"operation {opcode} is not part of version 2")
    if end - start < _RESPONSE_BYTES:
        raise PeerError(f"a reply to a read of {end - start} bytes")
    number, ledger_id, entry_id = _RESPONSE_FIELDS.unpack_from(buffer, start + 4)
    code = known_code(number)
    if opcode == READ:
        entry = buffer[start + _RESPONSE_BYTES : end] if code == BookieCode.EOK else b""
        return ReadResponse(code, ledger_id, entry_id, entry)
    if end - start < _BATCH_READ_RESPONSE_BYTES:
        raise PeerError(f"a reply to a batch read of {end - start} bytes")
    request_id: int = _ENTRY.unpack_from(buffer, start + _RESPONSE_BYTES)[0]
    bounds = _entry_bounds(buffer, start + _BATCH_READ_RESPONSE_BYTES, end) if code == BookieCode.EOK else []
    return BatchReadResponse(code, (ledger_id, entry_id, request_id), EntryRun(buffer, bounds))


def _entry_bounds(buffer: bytes, at: int, end: int) -> list[int]:
    bounds: list[int] = []
    while at < end:
        if end - at < 4:
            raise PeerError("a batch of entries that is cut short")
        size: int = _SIZE.unpack_from(buffer, at)[0]
        at += 4
        if end - at < size:
            raise PeerError("a batch of entries that is cut short")
        bounds.append(at)
        at += size
        bounds.append(at)
    return bounds


def encode_add_requests(master_key: bytes, entries: Sequence[bytes], flags: int) -> list[bytes]:
    """Frames of adds, as parts to be written one after the other; the entries are passed on as they are."""
    word = _word(ADD, flags)
    parts: list[bytes] = []
    prefix = b""
    prefix_size = -1
    for entry in entries:
        size = len(entry)
        if size != prefix_size:
            prefix = _FRAMED_HEADER.pack(_ADD_ENTRY_AT + size, word) + master_key
            prefix_size = size
        parts.append(prefix)
        parts.append(entry)
    return parts


def encode_read_request(ledger_id: int, entry_id: int, flags: int = 0, master_key: bytes = b"") -> bytes:
    """The frame of a read; the master key travels only with FLAG_FENCE."""
    key = master_key if flags & FLAG_FENCE else b""
    return _READ_REQUEST.pack(_READ_BYTES + len(key), _word(READ, flags), ledger_id, entry_id) + key


def encode_batch_read_request(
    ledger_id: int, first_entry_id: int, request_id: int, count_max: int, size_bytes_max: int
) -> bytes:
    """The frame of a batch read without fencing."""
    word = _word(BATCH_READ, 0)
    fields = (ledger_id, first_entry_id, request_id, count_max, size_bytes_max)
    return _BATCH_READ_REQUEST.pack(_BATCH_READ_BYTES, word, *fields)


def encode_auth(plugin_name: str, payload: bytes) -> bytes:
    """The frame of an authentication step; the same in both directions."""
    body = AuthMessage(authPluginName=plugin_name, payload=payload).SerializeToString()
    return _FRAMED_HEADER.pack(4 + len(body), _word(AUTH, 0)) + body


def encode_add_responses(code: int, ledger_id: int, entry_ids: Sequence[int]) -> bytes:
    """The frames of all replies to a group of adds."""
    prefix = _RESPONSE_PREFIX.pack(_RESPONSE_BYTES, _word(ADD, 0), code, ledger_id)
    return prefix.join([b"", *map(_ENTRY.pack, entry_ids)])


def encode_read_response(code: int, ledger_id: int, entry_id: int, entry: bytes = b"") -> bytes:
    """The frame of a reply to a read; no entry with an error."""
    return _RESPONSE.pack(_RESPONSE_BYTES + len(entry), _word(READ, 0), code, ledger_id, entry_id) + entry


def encode_batch_read_response(
    code: int, ledger_id: int, first_entry_id: int, request_id: int, entries: Sequence[bytes]
) -> list[bytes]:
    """The frame of a reply to a batch read, as parts to be written one after the other; the entries are passed on as
    they are. No entries with an error."""
    parts: list[bytes] = [b""]
    body_bytes = _BATCH_READ_RESPONSE_BYTES
    for entry in entries:
        parts.append(_SIZE.pack(len(entry)))
        parts.append(entry)
        body_bytes += 4 + len(entry)
    parts[0] = _BATCH_READ_RESPONSE.pack(body_bytes, _word(BATCH_READ, 0), code, ledger_id, first_entry_id, request_id)
    return parts


def _word(opcode: int, flags: int) -> int:
    return VERSION << 24 | opcode << 16 | flags
