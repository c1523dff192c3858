"""GET_TOPICS_OF_NAMESPACE read by hand, and its answer from names that are encoded once for all who ask.

Clients that subscribe by a pattern ask for the same list, all of them together after a broker is gone. The reader knows
the form in which clients write the command, and leaves every other one to `messages.decode_command`. protobuf would
also give memory back to the system at each ten thousandth message that it forgets, which takes tens of milliseconds.
"""

from __future__ import annotations

from struct import Struct
from typing import Final

from magnetar.wire.errors import BadProtobuf
from magnetar.wire.pulsar.generated.pulsar_api_pb2 import (
    CommandGetTopicsOfNamespace,
    CommandGetTopicsOfNamespaceResponse,
)
from magnetar.wire.pulsar.topic_requests import body_start
from magnetar.wire.pulsar.varint import read_length, read_varint, varint

TYPE_TOPICS_OF_NAMESPACE: Final = 32

_MODES: Final = 3
_SIZES: Final = Struct(">II")


class TopicListRequest:
    """Which topics a client asks for: the command's fields, with the defaults of the protocol."""

    __slots__ = ("mode", "namespace", "pattern", "request_id", "topics_hash")

    def __init__(
        self, request_id: int, namespace: str, mode: int = 0, pattern: str | None = None, topics_hash: str | None = None
    ) -> None:
        self.request_id = request_id
        self.namespace = namespace
        self.mode = mode
        """A number of `CommandGetTopicsOfNamespace.Mode`."""
        self.pattern = pattern
        self.topics_hash = topics_hash
        """Of the list that the client has."""

    @classmethod
    def of_command(cls, command: CommandGetTopicsOfNamespace) -> TopicListRequest:
        """The request that protobuf has read."""
        return cls(
            command.request_id,
            command.namespace,
            command.mode,
            command.topics_pattern if command.HasField("topics_pattern") else None,
            command.topics_hash if command.HasField("topics_hash") else None,
        )


def read_topic_list_request(buffer: bytes, start: int, end: int) -> TopicListRequest | None:
    """Read the command in the frame at these bounds (see `command`), whose type is known; None where `messages` has
    to."""
    try:
        at = body_start(buffer, start, end, TYPE_TOPICS_OF_NAMESPACE)
        return _read_fields(buffer, at, end) if at else None
    except (BadProtobuf, UnicodeDecodeError):
        return None


def _read_fields(buffer: bytes, at: int, end: int) -> TopicListRequest | None:
    numbers: dict[int, int] = {}
    texts: dict[int, str] = {}
    while at < end:
        tag = buffer[at]
        at += 1
        if tag in (0x08, 0x18):
            numbers[tag], at = read_varint(buffer, at, end)
        elif tag in (0x12, 0x22, 0x2A):
            at, text_end = read_length(buffer, at, end)
            texts[tag] = buffer[at:text_end].decode()
            at = text_end
        else:
            return None
    mode = numbers.get(0x18, 0)
    if 0x08 not in numbers or 0x12 not in texts or mode >= _MODES:
        return None
    return TopicListRequest(numbers[0x08], texts[0x12], mode, texts.get(0x22), texts.get(0x2A))


def encode_topics(names: list[str]) -> bytes:
    """The answer's field with the topics; answers share it."""
    return CommandGetTopicsOfNamespaceResponse(topics=names).SerializePartialToString()


def topic_list_response(
    request_id: int, topics: bytes, topics_hash: str, *, filtered: bool, changed: bool
) -> tuple[bytes, bytes, bytes]:
    """The frame of GET_TOPICS_OF_NAMESPACE_RESPONSE, in parts that are sent one after the other.

    `topics`: from `encode_topics`; empty when the client's hash says that it has them."""
    before = b"\x08" + varint(request_id)
    hash_text = topics_hash.encode()
    after = (
        (b"\x18\x01" if filtered else b"\x18\x00")
        + (b"\x22" + varint(len(hash_text)) + hash_text)
        + (b"\x28\x01" if changed else b"\x28\x00")
    )
    body_bytes = len(before) + len(topics) + len(after)
    command = b"\x08\x21\x8a\x02" + varint(body_bytes)
    size = len(command) + body_bytes
    return _SIZES.pack(size + 4, size) + command + before, topics, after
