"""Pieces of memory that together are one space of positions, and the columns that are copied out of them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from io import BytesIO
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from magnetar.core.limits import MIB

Numbers: TypeAlias = npt.NDArray[np.int64]
Flags: TypeAlias = npt.NDArray[np.bool_]

_REUSED_BYTES_MAX: Final = 16 * MIB
"""What is longer, which is one batch packed well, is not kept. Most groups have a quarter of it."""

_LARGE_BYTES: Final = 16 * 1024
"""Pieces of this size on average are not joined to copy long values from them: the copy saved is worth more than what
each of them costs to name (measured)."""

_INLINE_BYTES_MAX: Final = 12
"""Arrow's binary views have shorter values in themselves (columnar format, "Variable-size Binary View Layout")."""

_MASK32: Final = 0xFFFF_FFFF


def numbers(values: Sequence[int]) -> Numbers:
    """The integers as an array of int64."""
    return np.fromiter(values, np.int64, len(values))


class Joiner:
    """Joins pieces in memory that is used again: fresh memory costs more than the copying."""

    def __init__(self) -> None:
        self._stream = BytesIO()

    def joined(self, pieces: list[bytes], size_bytes: int) -> pa.Buffer:
        """All in one, until `joined` is called again; as long as anything holds the buffer, it stays as it is."""
        if len(pieces) == 1 or size_bytes > _REUSED_BYTES_MAX:
            return pa.py_buffer(b"".join(pieces))
        try:
            self._stream.seek(0)
            self._stream.writelines(pieces)
        except BufferError:
            self._stream = BytesIO()
            self._stream.writelines(pieces)
        return pa.py_buffer(self._stream.getbuffer())


class Pieces:
    """The memory of a group of rows. Position 0 is the first byte of the first piece."""

    def __init__(self, pieces: list[bytes], size_bytes: int, joiner: Joiner) -> None:
        self._pieces = pieces
        self._size_bytes = size_bytes
        self._joiner = joiner
        self._are_large = len(pieces) * _LARGE_BYTES <= size_bytes

    @cached_property
    def joined(self) -> pa.Buffer:
        """All pieces in one buffer."""
        return self._joiner.joined(self._pieces, self._size_bytes)

    @cached_property
    def buffers(self) -> list[pa.Buffer]:
        """What `places` counts: the pieces, or all of them joined."""
        return [pa.py_buffer(piece) for piece in self._pieces] if self._are_large else [self.joined]

    def places(self, positions: Numbers) -> tuple[Numbers, Numbers]:
        """In which of the buffers positions are, and where there."""
        ends = self._ends
        index = np.minimum(np.searchsorted(ends, positions, "right"), len(ends) - 1)
        return index, positions - (ends[index] - self._sizes[index])

    @cached_property
    def _sizes(self) -> Numbers:
        return numbers([buffer.size for buffer in self.buffers])

    @cached_property
    def _ends(self) -> Numbers:
        return np.cumsum(self._sizes)


class Ranges:
    """Parts of pieces as `MessagePositions` notes them, to be copied out as binary columns. None crosses pieces."""

    def __init__(self, pieces: Pieces, noted: Sequence[int]) -> None:
        found = numbers(noted)
        absent = found < 0
        self.absent: Flags | None = absent if absent.any() else None
        """Per range whether it was complemented."""
        self._pieces = pieces
        self._pairs = np.where(absent, ~found, found) if self.absent is not None else found

    @cached_property
    def sizes(self) -> Numbers:
        """The sizes of the ranges, in bytes."""
        return (self._pairs >> 32) - (self._pairs & _MASK32)

    def take(self, rows: Numbers) -> pa.Array:
        """Binary; null where the range was complemented."""
        return self.take_but(rows, None if self.absent is None else self.absent[rows])

    def take_but(self, rows: Numbers, absent: Flags | None) -> pa.Array:
        """Binary; null where `absent` says so, which is as long as `rows`."""
        if self._are_long:
            return self._viewed(rows, absent).cast(pa.binary())
        places = 2 * rows
        return self._elements.take(places if absent is None else pa.array(places, mask=absent))

    @cached_property
    def _are_long(self) -> bool:
        """Too long for the inside of a view, all that are not empty."""
        return not ((self.sizes > 0) & (self.sizes <= _INLINE_BYTES_MAX)).any()

    def _viewed(self, rows: Numbers, absent: Flags | None) -> pa.Array:
        """Views of the pieces where they are. Without the prefixes, by which views are compared: these are copied."""
        sizes = self.sizes[rows]
        views = np.zeros((len(rows), 4), np.int32)
        views[:, 0] = sizes
        views[:, 2], views[:, 3] = self._pieces.places(self._pairs[rows] & _MASK32)
        views[sizes == 0] = 0
        validity = None
        if absent is not None:
            views[absent] = 0
            validity = pa.py_buffer(np.packbits(~absent, bitorder="little"))
        buffers = [validity, pa.py_buffer(views), *self._pieces.buffers]
        return pa.Array.from_buffers(pa.binary_view(), len(rows), buffers)

    @cached_property
    def _elements(self) -> pa.Array:
        # [start, end, start, end, …] read as offsets: element 2i is range i, the others are what lies between.
        count = max(0, 2 * len(self._pairs) - 1)
        offsets = self._pairs if count else np.zeros(1, np.int64)
        return pa.Array.from_buffers(pa.binary(), count, [None, pa.py_buffer(offsets), self._pieces.joined])
