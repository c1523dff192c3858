"""LOOKUP and PARTITIONED_METADATA read by hand, and the answer that most lookups get; the rest is in `messages`.

After a broker is gone, its clients ask about all of their topics at once. The reader knows the form in which clients
write these commands, and leaves every other one to `messages.decode_command`: a proxy that speaks for a client,
unknown fields, and whatever is broken.

Hot: compiled by mypyc (see CONTRIBUTING).
"""

from __future__ import annotations

from struct import Struct
from typing import Final

from magnetar.wire.errors import BadProtobuf
from magnetar.wire.pulsar.varint import read_length, read_varint, varint

TYPE_PARTITIONED_METADATA: Final = 21
TYPE_LOOKUP: Final = 23

_U32: Final = Struct(">I")
_SIZES: Final = Struct(">II")

_REQUEST_ID_BYTES_MAX: Final = 10
_AFTER_REQUEST_ID: Final = b"\x28\x01"
"""Authoritative: who serves a topic is no guess."""


class TopicRequest:
    """What a client asks about a topic: the fields of both commands, with the defaults of the protocol."""

    __slots__ = ("authoritative", "create", "listener_name", "request_id", "topic")

    def __init__(self, topic: str, request_id: int) -> None:
        self.topic: str = topic
        self.request_id: int = request_id
        self.authoritative: bool = False
        """LOOKUP: a broker sent the client here, having decided."""
        self.listener_name: str = ""
        """LOOKUP: by which of the broker's names the client reaches it."""
        self.create: bool = True
        """PARTITIONED_METADATA: a topic that does not exist may be made."""


def read_topic_request(buffer: bytes, start: int, end: int, kind: int) -> TopicRequest | None:
    """Read the command of type `kind` in the frame at these bounds (see `command`); None where `messages` has to."""
    try:
        at = body_start(buffer, start, end, kind)
        return _read_fields(buffer, at, end, kind) if at else None
    except (BadProtobuf, UnicodeDecodeError):
        return None


def body_start(buffer: bytes, start: int, end: int, kind: int) -> int:
    """Where the body of the command of type `kind` begins in the frame at these bounds, which it fills to the end; 0
    for a frame of another form. Raises `BadProtobuf`. A type has two bytes of tag: from 16 to 2047."""
    body = start + 8
    tag = kind << 3 | 2
    if end - body < 1 or buffer[start + 6] != tag & 0x7F | 0x80 or buffer[start + 7] != tag >> 7:
        return 0
    size: int = _U32.unpack_from(buffer, start)[0]
    if size != end - start - 4:
        return 0
    at, stop = read_length(buffer, body, end)
    return at if stop == end else 0


def _read_fields(buffer: bytes, at: int, end: int, kind: int) -> TopicRequest | None:
    request = TopicRequest("", 0)
    seen = 0
    while at < end:
        tag = buffer[at]
        at += 1
        if tag == 0x0A:
            at, text_end = read_length(buffer, at, end)
            request.topic = buffer[at:text_end].decode()
            at = text_end
            seen |= 1
        elif tag == 0x10:
            request.request_id, at = read_varint(buffer, at, end)
            seen |= 2
        elif kind == TYPE_LOOKUP and tag == 0x18:
            flag, at = read_varint(buffer, at, end)
            request.authoritative = flag != 0
        elif kind == TYPE_LOOKUP and tag == 0x3A:
            at, text_end = read_length(buffer, at, end)
            request.listener_name = buffer[at:text_end].decode()
            at = text_end
        elif kind == TYPE_PARTITIONED_METADATA and tag == 0x30:
            flag, at = read_varint(buffer, at, end)
            request.create = flag != 0
        else:
            return None
    return request if seen == 3 else None


class ConnectEncoder:
    """Writes the LOOKUP_RESPONSE frames that name one broker: all that varies is the request id."""

    def __init__(self, service_url: str, service_url_tls: str) -> None:
        """An empty URL for TLS is left out."""
        fields = b"\x0a" + _text(service_url)
        if service_url_tls:
            fields += b"\x12" + _text(service_url_tls)
        fields += b"\x18\x01\x20"
        self._heads: list[bytes] = [
            _head(len(fields) + id_bytes + len(_AFTER_REQUEST_ID)) + fields
            for id_bytes in range(_REQUEST_ID_BYTES_MAX + 1)
        ]

    def encode(self, request_id: int) -> bytes:
        """The frame that answers this request."""
        encoded = varint(request_id)
        return self._heads[len(encoded)] + encoded + _AFTER_REQUEST_ID


def _head(body_bytes: int) -> bytes:
    command = b"\x08\x18\xc2\x01" + varint(body_bytes)
    size = len(command) + body_bytes
    sizes: bytes = _SIZES.pack(size + 4, size)
    return sizes + command


def _text(text: str) -> bytes:
    encoded = text.encode()
    return varint(len(encoded)) + encoded
