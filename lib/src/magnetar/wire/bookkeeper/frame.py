"""Cuts BookKeeper's byte stream into frames: a big-endian u32 length, then that many bytes."""

from __future__ import annotations

import struct
from typing import Final

from magnetar.core.errors import PeerError
from magnetar.core.limits import BOOKKEEPER_FRAME_BYTES_MAX, MIB
from magnetar.wire.parts import PARTS_MAX, join_newest

LENGTH: Final = struct.Struct(">I")
LENGTH_BYTES: Final = 4

MEMORY_BYTES: Final = 64 * 1024
"""What a `FrameBuffer` begins with: many small frames."""

MEMORY_KEPT_BYTES_MAX: Final = 2 * MIB
"""What it keeps between large frames; it has one for each connection. Answers to batch reads have 1 MB at about."""


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

    @property
    def pending_bytes(self) -> int:
        """What it holds."""
        return self._pending_bytes

    def feed(self, chunk: bytes) -> tuple[bytes, list[int]]:
        """The buffer that holds the frames that are complete now, and where they are: [start, end, start, end, …].

        Bounds leave the length words out. Without an unfinished frame from before, the buffer is the chunk itself;
        otherwise the parts are joined once, when the frame they began is complete. Raises `FrameTooLarge`, after
        which the splitter is of no more use."""
        if self._pending_bytes:
            self._parts.append(chunk)
            self._pending_bytes += len(chunk)
            if self._pending_bytes < self._needed_bytes:
                if len(self._parts) >= PARTS_MAX:
                    self._parts = join_newest(self._parts)
                return b"", []
            chunk = b"".join(self._parts)
            self._parts.clear()
            self._pending_bytes = 0
        return chunk, self._cut(chunk)

    def _cut(self, buffer: bytes) -> list[int]:
        end_of_buffer = len(buffer)
        bounds, self._needed_bytes = _whole_frames(buffer, end_of_buffer, self._frame_bytes_max)
        at = bounds[-1] if bounds else 0
        if at < end_of_buffer:
            # A copy of the tail only: keeping the whole buffer alive for it would hold all its frames in memory.
            self._parts.append(buffer[at:])
            self._pending_bytes = end_of_buffer - at
        return bounds


class FrameBuffer:
    """What a `FrameSplitter` does, in memory that is used again: frames are copied once, when they are whole."""

    def __init__(self, frame_bytes_max: int = BOOKKEEPER_FRAME_BYTES_MAX) -> None:
        self._frame_bytes_max = frame_bytes_max
        self._memory = memoryview(bytearray(MEMORY_BYTES))
        self._filled_bytes = 0

    def room(self) -> memoryview:
        """Where the next bytes go: there is room for more than the frame that is coming, or else for that."""
        return self._memory[self._filled_bytes :]

    def received(self, size_bytes: int) -> tuple[bytes, list[int]]:
        """So many bytes were put into the room. The frames that are complete now, as `FrameSplitter.feed` gives them.
        Raises `FrameTooLarge`, after which this is of no more use."""
        filled = self._filled_bytes + size_bytes
        memory = self._memory
        bounds, needed_bytes = _whole_frames(memory, filled, self._frame_bytes_max)
        end = bounds[-1] if bounds else 0
        frames = bytes(memory[:end])
        rest = filled - end
        if needed_bytes > len(memory) or (not rest and len(memory) > MEMORY_KEPT_BYTES_MAX):
            self._memory = memoryview(bytearray(max(MEMORY_BYTES, 1 << (needed_bytes - 1).bit_length())))
        if end or memory is not self._memory:
            self._memory[:rest] = memory[end:filled]
        self._filled_bytes = rest
        return frames, bounds


def _whole_frames(buffer: bytes | memoryview, filled_bytes: int, frame_bytes_max: int) -> tuple[list[int], int]:
    """Bounds of the frames that are complete, and how many bytes the next one has as far as that is known, its length
    word with them."""
    bounds: list[int] = []
    at = 0
    while filled_bytes - at >= LENGTH_BYTES:
        size: int = LENGTH.unpack_from(buffer, at)[0]
        if size > frame_bytes_max:
            raise FrameTooLarge(f"frame of {size} bytes; at most {frame_bytes_max} are taken")
        end = at + LENGTH_BYTES + size
        if end > filled_bytes:
            return bounds, LENGTH_BYTES + size
        bounds.append(at + LENGTH_BYTES)
        bounds.append(end)
        at = end
    return bounds, LENGTH_BYTES
