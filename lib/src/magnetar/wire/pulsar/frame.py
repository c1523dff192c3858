"""Pulsar's frames: the size of the command, the command, and of messages what follows."""

from __future__ import annotations

from typing import Final

from magnetar.core.limits import PULSAR_FRAME_BYTES_MAX
from magnetar.wire.framing import FRAMES_AT_ONCE, FrameSplitter

FRAME_BYTES_MIN: Final = 4
"""A frame holds at least the size of its command."""


def command_splitter(frame_bytes_max: int = PULSAR_FRAME_BYTES_MAX) -> FrameSplitter:
    """Cuts what one side of a connection says into frames."""
    return FrameSplitter(frame_bytes_max, FRAME_BYTES_MIN)


def client_splitter(frame_bytes_max: int) -> FrameSplitter:
    """Cuts what a client says into frames, and tells `FRAMES_AT_ONCE` at a time."""
    return FrameSplitter(frame_bytes_max, FRAME_BYTES_MIN, FRAMES_AT_ONCE)
