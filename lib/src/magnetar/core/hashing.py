"""The hashes that Pulsar's protocol and metadata rest on. Each has its own purpose: see `README` of the wire facts."""

from __future__ import annotations

import zlib
from collections.abc import Iterable

import google_crc32c
import mmh3


def murmur3_32(data: bytes) -> int:
    """MurmurHash3 x86 32 bit with seed 0, made non-negative as Pulsar's `Murmur3_32Hash` does."""
    value: int = mmh3.hash(data, 0, signed=False)
    return value & 0x7FFF_FFFF


def java_string_hash(text: str) -> int:
    """Java's `String.hashCode` over UTF-16 units, made non-negative (Pulsar `JavaStringHash`)."""
    value = 0
    units = text.encode("utf-16-be")
    for at in range(0, len(units), 2):
        value = (value * 31 + (units[at] << 8 | units[at + 1])) & 0xFFFF_FFFF
    return value & 0x7FFF_FFFF


def bundle_hash(topic: str) -> int:
    """Where a topic falls in its namespace's hash space: plain CRC32 of its full name."""
    return zlib.crc32(topic.encode())


def topics_hash(topics: Iterable[str]) -> str:
    """The hash of a list of topics: CRC32C of the sorted names joined by commas, as Guava prints it (low byte first).

    Pulsar `TopicList.calculateHash`."""
    value: int = google_crc32c.value(",".join(sorted(topics)).encode())
    return value.to_bytes(4, "little").hex()
