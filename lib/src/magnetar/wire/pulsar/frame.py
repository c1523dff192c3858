"""Cuts a byte stream into frames: `totalSize` (u32, big-endian) and that many bytes."""

from __future__ import annotations

from struct import Struct
from typing import Final

from magnetar.core.limits import PULSAR_FRAME_BYTES_MAX
from magnetar.wire.parts import PARTS_MAX, join_newest
from magnetar.wire.pulsar.errors import BadFrame, FrameTooLarge

SIZE_BYTES: Final = 4

FRAME_BYTES_MIN: Final = 4
"""A frame holds at least the size of its command."""

_U32: Final = Struct(">I")

_HTTP: Final = ". The other side speaks HTTP: is it the port of the admin API?"
_TLS: Final = ". The other side speaks TLS: pulsar+ssl://"
_OTHER_PROTOCOLS: Final = {b"HT": _HTTP, b"GE": _HTTP, b"PO": _HTTP, b"PU": _HTTP, b"\x15\x03": _TLS, b"\x16\x03": _TLS}
"""What may be said of a stream that begins like this: HTTP's answers and requests, TLS's alerts and handshakes."""


class FrameSplitter:
    """Holds what has not become a frame yet: less than one frame, so at most `frame_bytes_max` and one chunk."""

    def __init__(self, frame_bytes_max: int = PULSAR_FRAME_BYTES_MAX) -> None:
        self._frame_bytes_max: int = frame_bytes_max
        self._pending: list[bytes] = []
        self._pending_bytes: int = 0
        self._wanted_bytes: int = SIZE_BYTES

    @property
    def pending_bytes(self) -> int:
        """What it holds."""
        return self._pending_bytes

    def allow(self, frame_bytes_max: int) -> None:
        """From now on frames may be so long."""
        self._frame_bytes_max = frame_bytes_max

    def feed(self, chunk: bytes) -> tuple[bytes, list[int]]:
        """A buffer and the bounds [start0, end0, start1, end1, …] of the complete frames in it, without their sizes.

        The buffer is `chunk` itself when nothing was left over from before. A frame that comes in many chunks is
        joined once. Raises `FrameTooLarge` or `BadFrame`; frames before the bad one in the same chunk are lost with
        it, as the connection has to be closed anyway.
        """
        if not self._pending:
            buffer = chunk
        else:
            self._pending.append(chunk)
            self._pending_bytes += len(chunk)
            if self._pending_bytes < self._wanted_bytes:
                if len(self._pending) >= PARTS_MAX:
                    self._pending = join_newest(self._pending)
                return b"", []
            buffer = b"".join(self._pending)
            self._pending = []
            self._pending_bytes = 0
        return buffer, self._cut(buffer)

    def _cut(self, buffer: bytes) -> list[int]:
        bounds: list[int] = []
        unpack_from = _U32.unpack_from
        frame_bytes_max = self._frame_bytes_max
        length = len(buffer)
        at = 0
        wanted = SIZE_BYTES
        while length - at >= SIZE_BYTES:
            size: int = unpack_from(buffer, at)[0]
            if size > frame_bytes_max:
                seems = _OTHER_PROTOCOLS.get(buffer[at : at + 2], "")
                raise FrameTooLarge(f"a frame of {size} bytes; the limit is {frame_bytes_max}{seems}")
            if size < FRAME_BYTES_MIN:
                raise BadFrame(f"a frame of {size} bytes cannot hold a command")
            start = at + SIZE_BYTES
            if length - start < size:
                wanted = SIZE_BYTES + size
                break
            at = start + size
            bounds.append(start)
            bounds.append(at)
        if at < length:
            self._pending.append(buffer[at:] if at else buffer)
            self._pending_bytes = length - at
        self._wanted_bytes = wanted
        return bounds
