"""The five compressions of Pulsar's payloads (`CompressionType`), with a bound on what they may grow to."""

from __future__ import annotations

from magnetar.wire.pulsar.compression_type import Compression
from magnetar.wire.pulsar.errors import BadMetadata


def compress(kind: Compression, data: bytes) -> bytes:
    """The compressed form; LZ4 and Snappy are raw blocks without a header of their own."""
    if kind == Compression.NONE:
        return data
    from magnetar.wire.pulsar.block_codecs import compress_block  # 2 MB of libraries that many a process never needs.

    return compress_block(kind, data)


def decompress(kind: int, data: bytes, uncompressed_size: int, size_bytes_max: int) -> bytes:
    """The original bytes. Raises `BadMetadata` when they are not what was announced, or too large to be unpacked."""
    if kind == Compression.NONE:
        return data
    if not 0 <= uncompressed_size <= size_bytes_max:
        raise BadMetadata(f"a payload that would unpack to {uncompressed_size} bytes, more than {size_bytes_max}")
    from magnetar.wire.pulsar.block_codecs import decompress_block

    unpacked = decompress_block(kind, data, uncompressed_size)
    if len(unpacked) != uncompressed_size:
        raise BadMetadata(f"a payload of {len(unpacked)} bytes where {uncompressed_size} were announced")
    return unpacked
