"""Numbers of Pulsar's protocol that more than one part of Magnetar names."""

from __future__ import annotations

import enum


class Compression(enum.IntEnum):
    """How payloads are compressed: the wire's numbers (`CompressionType`)."""

    NONE = 0
    LZ4 = 1
    ZLIB = 2
    ZSTD = 3
    SNAPPY = 4
