"""The content of one simulated file: what programs see, and what a power failure would leave of it."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Final

SECTOR_BYTES: Final = 512
"""What a disk writes whole or not at all."""

_Change = tuple[str, int, bytes]
"""("write", position, bytes) or ("size", new size, b"")."""


class _SparseContent:
    """Bytes with a size; what was never written reads as zeros and costs nothing."""

    __slots__ = ("data", "size_bytes")

    def __init__(self) -> None:
        self.data = bytearray()
        self.size_bytes = 0

    def read(self, size_bytes: int, position: int) -> bytes:
        end = min(position + size_bytes, self.size_bytes)
        if end <= position:
            return b""
        return bytes(self.data[position:end]).ljust(end - position, b"\0")

    def write(self, position: int, content: bytes) -> None:
        if position > len(self.data):
            self.data.extend(bytes(position - len(self.data)))
        self.data[position : position + len(content)] = content
        self.size_bytes = max(self.size_bytes, position + len(content))

    def resize(self, size_bytes: int) -> None:
        del self.data[size_bytes:]
        self.size_bytes = size_bytes

    def apply(self, change: _Change) -> None:
        kind, number, content = change
        if kind == "write":
            self.write(number, content)
        else:
            self.resize(number)


class Inode:
    """One file, whatever its names are."""

    def __init__(self) -> None:
        self._seen = _SparseContent()
        self._durable = _SparseContent()
        self._unsynced: list[_Change] = []

    @property
    def size_bytes(self) -> int:
        """How long the file is."""
        return self._seen.size_bytes

    def read(self, size_bytes: int, position: int) -> bytes:
        """Up to that many bytes."""
        return self._seen.read(size_bytes, position)

    def read_durable(self, size_bytes: int, position: int) -> bytes:
        """Up to that many of the bytes that a power failure now would leave for certain; ends where nothing but zeros
        follow that were never written."""
        return bytes(self._durable.data[position : position + size_bytes])

    def write(self, parts: Sequence[bytes], position: int, *, durable: bool) -> None:
        """Write the parts in a row."""
        content = b"".join(parts)
        self._seen.write(position, content)
        if not durable:
            self._unsynced.append(("write", position, content))
            return
        if self._unsynced:
            self._settle_before(position, position + len(content))
        self._durable.write(position, content)

    def _settle_before(self, begin: int, end: int) -> None:
        """A durable write makes the file's size durable too, and what was written to the same place before."""
        left: list[_Change] = []
        for change in self._unsynced:
            if change[0] == "size" or (change[1] < end and begin < change[1] + len(change[2])):
                self._durable.apply(change)
            else:
                left.append(change)
        self._unsynced = left

    def resize(self, size_bytes: int) -> None:
        """Cut off, or grow by zeros."""
        if size_bytes != self._seen.size_bytes:
            self._seen.resize(size_bytes)
            self._unsynced.append(("size", size_bytes, b""))

    def sync(self) -> None:
        """All that was written is durable."""
        for change in self._unsynced:
            self._durable.apply(change)
        self._unsynced.clear()

    def lose_power(self, rng: random.Random) -> None:
        """Keep what was synced; of the rest each write is lost, kept, or kept in part, sector by sector."""
        for change in self._unsynced:
            fate = rng.random()
            if fate < 0.4:
                self._durable.apply(change)
            elif fate < 0.7 and change[0] == "write":
                self._tear(change[1], change[2], rng)
        self._unsynced.clear()
        self._seen = _SparseContent()
        self._seen.data[:] = self._durable.data
        self._seen.size_bytes = self._durable.size_bytes

    def tear(self, parts: Sequence[bytes], position: int, rng: random.Random) -> None:
        """A durable write that the power failure meets half way: some sectors of it reach the disk."""
        self._tear(position, b"".join(parts), rng)

    def _tear(self, position: int, content: bytes, rng: random.Random) -> None:
        begin = 0
        while begin < len(content):
            end = min(len(content), begin + SECTOR_BYTES - (position + begin) % SECTOR_BYTES)
            if rng.random() < 0.5:
                self._durable.write(position + begin, content[begin:end])
            begin = end

    def flip_bit(self, position: int, bit: int) -> None:
        """Change what is durable, as an old disk does."""
        for content in (self._seen, self._durable):
            if position < len(content.data):
                content.data[position] ^= 1 << bit
