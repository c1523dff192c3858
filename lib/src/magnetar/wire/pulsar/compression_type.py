"""The five compressions of Pulsar's payloads."""

from __future__ import annotations

import enum


class Compression(enum.IntEnum):
    """The wire's numbers (`CompressionType`)."""

    NONE = 0
    LZ4 = 1
    ZLIB = 2
    ZSTD = 3
    SNAPPY = 4
