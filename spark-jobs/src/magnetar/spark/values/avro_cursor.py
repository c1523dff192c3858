"""Many Avro payloads read in step: one field of all rows at a time, by numpy instead of Python for each value."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Rows = npt.NDArray[np.int64]

_PADDING_BYTES: Final = 16
"""So that whatever stands at a payload's end can be read as a number of 8 bytes."""
_VARINT_BYTES_MAX: Final = 10
_STOP_BITS: Final = np.uint64(0x8080_8080_8080_8080)


class AvroCursor:
    """Where each row's payload is read at. A row that cannot be right is marked and goes on with zeros; what is read
    for it then means nothing. Rows are always given in ascending order."""

    __slots__ = ("_data", "_doubles", "_floats", "_words", "bad", "buffer", "ends", "places")

    def __init__(self, values: pa.Array) -> None:
        """Binary values. Null ones and empty ones are rows without bytes."""
        _, offset_buffer, data_buffer = values.buffers()
        offsets = np.frombuffer(offset_buffer, np.int32, count=values.offset + len(values) + 1)[values.offset :]
        first, last = int(offsets[0]), int(offsets[-1])
        self._data = np.zeros(last - first + _PADDING_BYTES, np.uint8)
        if last > first:
            self._data[: last - first] = np.frombuffer(data_buffer, np.uint8, count=last - first, offset=first)
        self.buffer = pa.py_buffer(self._data)
        self._words = _unaligned(self._data, np.dtype("<u8"))
        self._floats = _unaligned(self._data, np.dtype("<f4"))
        self._doubles = _unaligned(self._data, np.dtype("<f8"))
        self.places = offsets[:-1].astype(np.int64) - first
        self.ends = offsets[1:].astype(np.int64) - first
        self.bad = np.zeros(len(values), np.bool_)

    def longs(self, rows: Rows) -> Rows:
        """A variable-length number of each row."""
        places = self.places[rows]
        words = self._words[places]
        stops = ~words & _STOP_BITS
        stop = stops & (~stops + np.uint64(1))
        kept = words & (stop | (stop - np.uint64(1)))
        raw = kept & np.uint64(0x7F)
        lengths = np.ones(len(rows), np.int64)
        widest = int(stop.max(initial=np.uint64(0)))
        for index in range(1, 8):
            if widest >> (8 * index) == 0:
                break
            raw |= (kept >> np.uint64(index)) & np.uint64(0x7F << (7 * index))
            lengths += stop > np.uint64(0x80 << (8 * index - 8))
        long_ones = np.flatnonzero(stop == 0)
        if len(long_ones):
            self._read_long(places, long_ones, raw, lengths)
        self._advance(rows, places, lengths)
        numbers: Rows = (raw >> np.uint64(1)).astype(np.int64) ^ -((raw & np.uint64(1)).astype(np.int64))
        return numbers

    def floats(self, rows: Rows) -> npt.NDArray[np.float32]:
        """4 bytes of each row."""
        numbers: npt.NDArray[np.float32] = self._floats[self._fixed(rows, 4)]
        return numbers

    def doubles(self, rows: Rows) -> npt.NDArray[np.float64]:
        """8 bytes of each row."""
        numbers: npt.NDArray[np.float64] = self._doubles[self._fixed(rows, 8)]
        return numbers

    def booleans(self, rows: Rows) -> npt.NDArray[np.bool_]:
        """A byte of each row."""
        numbers: npt.NDArray[np.bool_] = self._data[self._fixed(rows, 1)] != 0
        return numbers

    def sized(self, rows: Rows, lengths: Rows) -> pa.Array:
        """So many bytes of each row, as binary: copied once, by Arrow."""
        starts = self.places[rows]
        outside = (lengths < 0) | (lengths > self.ends[rows] - starts)
        if outside.any():
            self.bad[rows[outside]] = True
            lengths = np.where(outside, 0, lengths)
        ends = starts + lengths
        self.places[rows] = ends
        if not len(rows):
            return pa.array([], pa.binary())
        bounds = np.empty(2 * len(rows), np.int32)
        bounds[0::2] = starts
        bounds[1::2] = ends
        # Even elements are what is wanted, odd ones what stands between two of them.
        parts = pa.Array.from_buffers(pa.binary(), 2 * len(rows) - 1, [None, pa.py_buffer(bounds), self.buffer])
        return parts.take(pa.array(np.arange(0, 2 * len(rows), 2, dtype=np.int64)))

    def remaining(self, rows: Rows) -> Rows:
        """Bytes left of each row."""
        return self.ends[rows] - self.places[rows]

    def mark(self, rows: Rows) -> None:
        """Mark rows whose bytes cannot be right."""
        self.bad[rows] = True

    def _fixed(self, rows: Rows, size: int) -> Rows:
        places = self.places[rows]
        self._advance(rows, places, size)
        return places

    def _advance(self, rows: Rows, places: Rows, lengths: Any) -> None:
        after = places + lengths
        ends = self.ends[rows]
        beyond = after > ends
        if beyond.any():
            self.bad[rows[beyond]] = True
            after = np.minimum(after, ends)
        self.places[rows] = after

    def _read_long(self, places: Rows, rows: Rows, raw: npt.NDArray[np.uint64], lengths: Rows) -> None:
        """Numbers of more than 8 bytes, of which there are few."""
        for row in rows.tolist():
            place, number, shift = int(places[row]), 0, 0
            window = self._data[place : place + _VARINT_BYTES_MAX].tolist()
            length = next((at + 1 for at, byte in enumerate(window) if byte < 0x80), len(self._data))
            for byte in window[:length]:
                number |= (byte & 0x7F) << shift
                shift += 7
            raw[row] = number & (2**64 - 1)
            # Without an end within ten bytes it is no number: a length beyond everything marks the row.
            lengths[row] = length


def _unaligned(data: npt.NDArray[np.uint8], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """A number of that type at every byte."""
    return np.ndarray(len(data) - dtype.itemsize + 1, dtype, buffer=data, strides=(1,))
