"""What can be wrong with bytes of any protocol."""

from __future__ import annotations

from magnetar.core.errors import PeerError


class BadProtobuf(PeerError):
    """Bytes that are no protobuf: a number or a field reaches over its end, or a tag is none."""


class BadFrame(PeerError):
    """The byte stream cannot be cut into frames; nothing after it can be understood."""


class FrameTooLarge(BadFrame):
    """A frame announces more bytes than the connection takes."""
