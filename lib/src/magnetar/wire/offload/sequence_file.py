"""Hadoop's SequenceFile, as the file system offloader has it: keys are longs, values bytes or longs (Hadoop:
io/SequenceFile, io/MapFile; Pulsar: FileSystemManagedLedgerOffloader).

Read are files without compression, and with zlib (DefaultCodec) by record or by block. Written are files without.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from typing import Final, NamedTuple, Protocol

from magnetar.wire.offload.errors import BadOffload

LONG_CLASS: Final = "org.apache.hadoop.io.LongWritable"
BYTES_CLASS: Final = "org.apache.hadoop.io.BytesWritable"
SYNC_BYTES: Final = 16
SYNC_INTERVAL_BYTES: Final = 5 * 1024 * (4 + SYNC_BYTES)
"""At least so many bytes are between two marks by which a reader that is lost finds a record again."""
PART_BYTES_MAX: Final = 256 << 20
"""Of a record, or of one buffer of a block, before and after it was unpacked."""

_MAGIC: Final = b"SEQ\x06"
_CODEC: Final = "org.apache.hadoop.io.compress.DefaultCodec"
_INT: Final = struct.Struct(">i")
_LONG: Final = struct.Struct(">q")
_RECORD: Final = struct.Struct(">ii")
_SYNC_ESCAPE: Final = -1
_TEXT_BYTES_MAX: Final = 1 << 16
_METADATA_MAX: Final = 1000


class Readable(Protocol):
    """A file, or bytes that behave like one."""

    def read(self, size: int, /) -> bytes:
        """So many bytes, fewer at the end."""
        ...


class SequenceHeader(NamedTuple):
    """How the records of a file are written."""

    by_record: bool
    """Each value is compressed."""
    by_block: bool
    """Many keys and values are compressed together."""
    sync: bytes


def encode_sequence_header(value_class: str, sync: bytes) -> bytes:
    """The beginning of a file that is not compressed."""
    names = b"".join(encode_vint(len(name)) + name.encode() for name in (LONG_CLASS, value_class))
    return _MAGIC + names + b"\0\0" + _INT.pack(0) + sync


def encode_record(key: int, value: bytes) -> bytes:
    """One record of a file that is not compressed; the value is as its class writes it."""
    return _RECORD.pack(_LONG.size + len(value), _LONG.size) + _LONG.pack(key) + value


def encode_sync(sync: bytes) -> bytes:
    """A mark between two records."""
    return _INT.pack(_SYNC_ESCAPE) + sync


def bytes_value(data: bytes) -> bytes:
    """Bytes as the value of a record: their length stands before them."""
    return _INT.pack(len(data)) + data


def long_value(number: int) -> bytes:
    """A number as the value of a record."""
    return _LONG.pack(number)


def decode_sequence_header(source: Readable, value_class: str) -> SequenceHeader:
    """The beginning of a file with such values. Raises `BadOffload`."""
    if (magic := _exactly(source, len(_MAGIC))) != _MAGIC:
        raise BadOffload(f"no SequenceFile of version 6: it begins with {magic!r}")
    for expected in (LONG_CLASS, value_class):
        if (found := _text(source)) != expected:
            raise BadOffload(f"a SequenceFile of {found!r}, where {expected} is read")
    compressed, by_block = _exactly(source, 2)
    if compressed and (codec := _text(source)) != _CODEC:
        raise BadOffload(f"a SequenceFile that is compressed by {codec!r}, where {_CODEC} is read")
    count = _integer(source)
    if not 0 <= count <= _METADATA_MAX:
        raise BadOffload(f"a SequenceFile with {count} properties")
    for _ in range(2 * count):
        _text(source)
    return SequenceHeader(bool(compressed) and not by_block, bool(by_block), _exactly(source, SYNC_BYTES))


def records(source: Readable, header: SequenceHeader) -> Iterator[tuple[int, bytes]]:
    """Keys and values from a record, a block or a mark on, up to the end of the file. Raises `BadOffload`.

    Values are as their class writes them."""
    while first := source.read(_INT.size):
        if len(first) < _INT.size:
            raise BadOffload("a SequenceFile that is cut short")
        length: int = _INT.unpack(first)[0]
        if length == _SYNC_ESCAPE:
            if _exactly(source, SYNC_BYTES) != header.sync:
                raise BadOffload("a SequenceFile whose marks differ")
            if header.by_block:
                yield from _block(source)
            continue
        if header.by_block:
            raise BadOffload("a SequenceFile without the mark that begins a block")
        key_bytes = _integer(source)
        if key_bytes != _LONG.size or not key_bytes <= length <= PART_BYTES_MAX:
            raise BadOffload(f"a record of {length} bytes with a key of {key_bytes}")
        key: int = _LONG.unpack(_exactly(source, key_bytes))[0]
        value = _exactly(source, length - key_bytes)
        yield key, _unpacked(value) if header.by_record else value


def decode_bytes_value(value: bytes) -> bytes:
    """The bytes in a value of Hadoop's BytesWritable. Raises `BadOffload`."""
    if len(value) < _INT.size or _INT.unpack_from(value)[0] != len(value) - _INT.size:
        raise BadOffload(f"a value of {len(value)} bytes that tells another length")
    return value[_INT.size :]


def decode_long_value(value: bytes) -> int:
    """The number in a value of Hadoop's LongWritable. Raises `BadOffload`."""
    if len(value) != _LONG.size:
        raise BadOffload(f"a number of {len(value)} bytes")
    number: int = _LONG.unpack(value)[0]
    return number


# --- numbers of variable length (Hadoop: WritableUtils) ---


def encode_vint(number: int) -> bytes:
    """A number that is not negative, in one to nine bytes."""
    if number <= 127:
        return bytes((number,))
    data = number.to_bytes((number.bit_length() + 7) // 8, "big")
    return bytes((256 - 112 - len(data),)) + data


def read_vint(source: Readable) -> int:
    """A number that is not negative. Raises `BadOffload`."""
    first = _exactly(source, 1)[0]
    if first <= 127:
        return first
    size_bytes = 256 - 112 - first
    if not 1 <= size_bytes <= 8:
        raise BadOffload("a negative number where a length should be")
    return int.from_bytes(_exactly(source, size_bytes), "big")


class _HeldBytes:
    """Bytes that are read like a file."""

    __slots__ = ("_data", "position")

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.position = 0

    def read(self, size: int, /) -> bytes:
        found = self._data[self.position : self.position + size]
        self.position += len(found)
        return found


def _block(source: Readable) -> Iterator[tuple[int, bytes]]:
    count = read_vint(source)
    key_lengths, keys, value_lengths, values = (_HeldBytes(_buffer(source)) for _ in range(4))
    for _ in range(count):
        if read_vint(key_lengths) != _LONG.size:
            raise BadOffload("a block whose keys are no longs")
        key: int = _LONG.unpack(_exactly(keys, _LONG.size))[0]
        yield key, _exactly(values, read_vint(value_lengths))


def _buffer(source: Readable) -> bytes:
    return _unpacked(_exactly(source, read_vint(source)))


def _unpacked(data: bytes) -> bytes:
    unpacking = zlib.decompressobj()
    try:
        unpacked = unpacking.decompress(data, PART_BYTES_MAX)
    except zlib.error as error:
        raise BadOffload(f"bytes that cannot be unpacked: {error}") from None
    if not unpacking.eof:
        raise BadOffload("packed bytes that are cut short, or too many")
    return unpacked


def _exactly(source: Readable, size_bytes: int) -> bytes:
    if not 0 <= size_bytes <= PART_BYTES_MAX:
        raise BadOffload(f"a part of {size_bytes} bytes")
    data = source.read(size_bytes)
    if len(data) != size_bytes:
        raise BadOffload("a SequenceFile that is cut short")
    return data


def _integer(source: Readable) -> int:
    number: int = _INT.unpack(_exactly(source, _INT.size))[0]
    return number


def _text(source: Readable) -> str:
    size_bytes = read_vint(source)
    if size_bytes > _TEXT_BYTES_MAX:
        raise BadOffload(f"a name of {size_bytes} bytes")
    return _exactly(source, size_bytes).decode("utf-8", "replace")
