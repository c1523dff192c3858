"""Compressed blocks by the libraries that know them; `magnetar.wire.pulsar.compression` loads this when one comes."""

from __future__ import annotations

import zlib
from typing import Final

import lz4.block
import snappy
import zstandard
from magnetar.wire.errors import BadProtobuf
from magnetar.wire.pulsar.compression_type import Compression
from magnetar.wire.pulsar.errors import BadMetadata
from magnetar.wire.pulsar.varint import read_varint

_NO_BLOCK: Final = (
    zlib.error,
    zstandard.ZstdError,
    lz4.block.LZ4BlockError,
    snappy.UncompressError,
    BadProtobuf,
    RuntimeError,
    ValueError,
)


def compress_block(kind: Compression, data: bytes) -> bytes:
    """The compressed form; LZ4 and Snappy are raw blocks without a header of their own."""
    match kind:
        case Compression.NONE:
            return data
        case Compression.LZ4:
            block: bytes = lz4.block.compress(data, store_size=False)
            return block
        case Compression.ZLIB:
            return zlib.compress(data)
        case Compression.ZSTD:
            return zstandard.ZstdCompressor().compress(data)
        case Compression.SNAPPY:
            raw: bytes = snappy.compress(data)
            return raw


def decompress_block(kind: int, data: bytes, uncompressed_size: int) -> bytes:
    """What the block holds: at most a byte more than the size. Raises `BadMetadata`."""
    try:
        return _decompress(Compression(kind), data, uncompressed_size)
    except _NO_BLOCK as error:
        raise BadMetadata(f"a payload that cannot be unpacked: {error}") from None


def _decompress(kind: Compression, data: bytes, uncompressed_size: int) -> bytes:
    match kind:
        case Compression.NONE:
            return data
        case Compression.LZ4:
            block: bytes = lz4.block.decompress(data, uncompressed_size=uncompressed_size)
            return block
        case Compression.ZLIB:
            # Pulsar's streams are flushed but not always ended, which plain `zlib.decompress` refuses.
            return zlib.decompressobj().decompress(data, uncompressed_size + 1)
        case Compression.ZSTD:
            # A size in the frame would be believed, and allocated, whatever the bound.
            _check_announced(zstandard.frame_content_size(data), uncompressed_size)
            return zstandard.ZstdDecompressor().decompress(data, max_output_size=uncompressed_size)
        case Compression.SNAPPY:
            _check_announced(read_varint(data, 0, len(data))[0], uncompressed_size)
            raw: bytes = snappy.uncompress(data)
            return raw


def _check_announced(block_size: int, uncompressed_size: int) -> None:
    """The size that a block announces itself (-1: none) has to be the one that was checked against the bound."""
    if block_size not in (-1, uncompressed_size):
        raise ValueError(f"the block announces {block_size} bytes, its message {uncompressed_size}")
