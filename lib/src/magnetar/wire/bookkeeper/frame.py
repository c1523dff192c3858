"""Cuts BookKeeper's byte stream into frames: a big-endian u32 length, then that many bytes."""

from __future__ import annotations

import struct
from typing import Final

from magnetar.core.errors import PeerError
from magnetar.core.limits import BOOKKEEPER_FRAME_BYTES_MAX

LENGTH: Final = struct.Struct(">I")
LENGTH_BYTES: Final = 4


class FrameTooLarge(PeerError):
    """The peer announced a frame beyond the agreed maximum; the stream cannot be followed any more."""


def frame(body: bytes) -> bytes:
    """The body with its length in front."""
    return LENGTH.pack(len(body)) + body


class FrameSplitter:
    """Any chunking in, whole frames out. Holds at most one unfinished frame."""

    def __init__(self, frame_bytes_max: int = BOOKKEEPER_FRAME_BYTES_MAX) -> None:
        self._frame_bytes_max = frame_bytes_max
        self._parts: list[bytes] = []
        self._pending_bytes = 0
        self._needed_bytes = LENGTH_BYTES

    def feed(self, chunk: bytes) -> tuple[bytes, list[int]]:
        """The buffer that holds the frames that are complete now, and where they are: [start, end, start, end, …].

        Bounds leave the length words out. Without an unfinished frame from before, the buffer is the chunk itself;
        otherwise the parts are joined once, when the frame they began is complete. Raises `FrameTooLarge`, after
        which the splitter is of no more use."""
        if self._pending_bytes:
            self._parts.append(chunk)
            self._pending_bytes += len(chunk)
            if self._pending_bytes < self._needed_bytes:
                return b"", []
            chunk = b"".join(self._parts)
            self._parts.clear()
            self._pending_bytes = 0
        return chunk, self._cut(chunk)

    def _cut(self, buffer: bytes) -> list[int]:
        bounds: list[int] = []
        at = 0
        end_of_buffer = len(buffer)
        self._needed_bytes = LENGTH_BYTES
        while end_of_buffer - at >= LENGTH_BYTES:
            size: int = LENGTH.unpack_from(buffer, at)[0]
            if size > self._frame_bytes_max:
                raise FrameTooLarge(f"frame of {size} bytes; at most {self._frame_bytes_max} are taken")
            end = at + LENGTH_BYTES + size
            if end > end_of_buffer:
                self._needed_bytes = LENGTH_BYTES + size
                break
            bounds.append(at + LENGTH_BYTES)
            bounds.append(end)
            at = end
        if at < end_of_buffer:
            # A copy of the tail only: keeping the whole buffer alive for it would hold all its frames in memory.
            self._parts.append(buffer[at:])
            self._pending_bytes = end_of_buffer - at
        return bounds
