"""Cuts a byte stream into frames, as Pulsar and BookKeeper make them: a big-endian u32 length, then that many bytes.

Hot: compiled by mypyc (see CONTRIBUTING).
"""

from __future__ import annotations

from struct import Struct
from typing import Final

from magnetar.core.limits import MIB
from magnetar.wire.errors import BadFrame, FrameTooLarge
from magnetar.wire.parts import PARTS_MAX, join_newest

LENGTH_BYTES: Final = 4
_LENGTH: Final = Struct(">I")

_HTTP: Final = ". The other side speaks HTTP: is it a port for HTTP?"
_TLS: Final = ". The other side speaks TLS: is it a port with TLS?"
_OTHER_PROTOCOLS: Final = {b"HT": _HTTP, b"GE": _HTTP, b"PO": _HTTP, b"PU": _HTTP, b"\x15\x03": _TLS, b"\x16\x03": _TLS}
"""What may be said of a stream that begins like this: HTTP's answers and requests, TLS's alerts and handshakes."""

MEMORY_BYTES: Final = 64 * 1024
"""What a `FrameBuffer` begins with: many small frames."""

MEMORY_KEPT_BYTES_MAX: Final = 2 * MIB
"""What it keeps between large frames; it has one for each connection. Answers to batch reads have 1 MB at about."""


FRAMES_AT_ONCE: Final = 256
"""Frames that a splitter with this bound tells at a time. Bounds of small frames take six times their bytes, and
a read of them brings fifteen thousand."""

_ANY_NUMBER: Final = 1 << 60


def frame(body: bytes) -> bytes:
    """The body with its length in front."""
    return _LENGTH.pack(len(body)) + body


class FrameSplitter:
    """Any chunking in, whole frames out. Holds less than one frame: at most `frame_bytes_max` and one chunk. With
    `frames_max`, or after `put_back`, also frames that were not told yet."""

    def __init__(self, frame_bytes_max: int, frame_bytes_min: int = 0, frames_max: int = _ANY_NUMBER) -> None:
        """`frames_max`: frames that are told at a time."""
        self._frame_bytes_max: int = frame_bytes_max
        self._frame_bytes_min: int = frame_bytes_min
        self._frames_max: int = frames_max
        self._parts: list[bytes] = []
        self._start: int = 0
        """Where in the first part begins what was not told."""
        self._pending_bytes: int = 0
        self._wanted_bytes: int = LENGTH_BYTES
        self.has_more: bool = False
        """Whether it holds what may be whole frames: `feed(b"")` tells the next ones."""

    @property
    def pending_bytes(self) -> int:
        """What it holds."""
        return self._pending_bytes

    def allow(self, frame_bytes_max: int) -> None:
        """From now on frames may be so long."""
        self._frame_bytes_max = frame_bytes_max

    def feed(self, chunk: bytes) -> tuple[bytes, list[int]]:
        """A buffer and the bounds [start0, end0, start1, end1, …] of the complete frames in it, without their lengths.

        The buffer is `chunk` itself when nothing was left over from before. A frame that comes in many chunks is
        joined once. Raises `FrameTooLarge` or `BadFrame`; frames before the bad one in the same chunk are lost with
        it, as the connection has to be closed anyway.
        """
        start = 0
        if not self._parts:
            buffer = chunk
        else:
            if chunk:
                self.keep(chunk)
            if self._pending_bytes < self._wanted_bytes:
                self.has_more = False
                return b"", []
            buffer = b"".join(self._parts)
            start = self._start
            self._parts = []
            self._start = self._pending_bytes = 0
        bounds, self._wanted_bytes = _whole_frames(
            buffer, start, self._frame_bytes_max, self._frame_bytes_min, self._frames_max
        )
        at = bounds[-1] if bounds else start
        self.has_more = False
        if at < len(buffer):
            if self._wanted_bytes:
                # A copy of the tail only: keeping the whole buffer alive for it would hold all its frames in memory.
                self._parts.append(buffer[at:])
                self._pending_bytes = len(buffer) - at
            else:
                self.put_back(buffer, at)
        return buffer, bounds

    def keep(self, chunk: bytes) -> None:
        """Hold a chunk, and tell nothing of it: what it follows was not told either."""
        self._parts.append(chunk)
        self._pending_bytes += len(chunk)
        if len(self._parts) >= PARTS_MAX:
            self._parts = join_newest(self._parts)

    def put_back(self, buffer: bytes, at: int) -> None:
        """Hold what begins at `at` of the buffer that was told last: its frames were not served, and are told again.
        Nothing was fed since."""
        if 2 * at < len(buffer):
            self._parts, self._start = [buffer], at  # The smaller part is not worth a copy.
        else:
            self._parts, self._start = [buffer[at:]], 0
        self._pending_bytes = len(self._parts[0])
        self._wanted_bytes = LENGTH_BYTES
        self.has_more = True


class FrameBuffer:
    """What a `FrameSplitter` does, in memory that is used again: frames are copied once, when they are whole."""

    def __init__(self, frame_bytes_max: int) -> None:
        self._frame_bytes_max: int = frame_bytes_max
        self._memory: memoryview = memoryview(bytearray(MEMORY_BYTES))
        self._filled_bytes: int = 0
        self._wanted_bytes: int = LENGTH_BYTES

    def room(self) -> memoryview:
        """Where the next bytes go: there is room for more than the frame that is coming, or else for that."""
        return self._memory[self._filled_bytes :]

    def received(self, size_bytes: int) -> tuple[bytes, list[int]]:
        """So many bytes were put into the room. The frames that are complete now, as `FrameSplitter.feed` gives them.
        Raises `FrameTooLarge`, after which this is of no more use."""
        filled = self._filled_bytes + size_bytes
        if filled < self._wanted_bytes:
            self._filled_bytes = filled
            return b"", []
        memory = self._memory
        buffer = bytes(memory[:filled])
        bounds, wanted_bytes = _whole_frames(buffer, 0, self._frame_bytes_max, 0, _ANY_NUMBER)
        end = bounds[-1] if bounds else 0
        rest = filled - end
        if wanted_bytes > len(memory) or (not rest and len(memory) > MEMORY_KEPT_BYTES_MAX):
            self._memory = memoryview(bytearray(max(MEMORY_BYTES, 1 << (wanted_bytes - 1).bit_length())))
        if end or memory is not self._memory:
            self._memory[:rest] = memory[end:filled]
        self._filled_bytes = rest
        self._wanted_bytes = wanted_bytes
        return buffer, bounds


def _whole_frames(
    buffer: bytes, start_at: int, frame_bytes_max: int, frame_bytes_min: int, frames_max: int
) -> tuple[list[int], int]:
    """Bounds of the frames that are complete, and how many bytes the next one has as far as that is known, its length
    with them; 0: it was not looked at, as there are so many."""
    bounds: list[int] = []
    filled_bytes = len(buffer)
    at = start_at
    left = frames_max
    while filled_bytes - at >= LENGTH_BYTES:
        if not left:
            return bounds, 0
        left -= 1
        # Compiled, bytes take less than half the time of `struct`, and a read may bring thousands of small frames.
        size = buffer[at] << 24 | buffer[at + 1] << 16 | buffer[at + 2] << 8 | buffer[at + 3]
        if size > frame_bytes_max:
            seems = _OTHER_PROTOCOLS.get(buffer[at : at + 2], "")
            raise FrameTooLarge(f"a frame of {size} bytes; the limit is {frame_bytes_max}{seems}")
        if size < frame_bytes_min:
            raise BadFrame(f"a frame of {size} bytes; the least is {frame_bytes_min}")
        start = at + LENGTH_BYTES
        end = start + size
        if end > filled_bytes:
            return bounds, LENGTH_BYTES + size
        bounds.append(start)
        bounds.append(end)
        at = end
    return bounds, LENGTH_BYTES
