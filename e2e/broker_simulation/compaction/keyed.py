"""What producers of compacted topics send: who sends a message, and its number, say its key and whether it has a value.

So each judge knows of any entry what is in it, wherever it was read. Pure."""

from __future__ import annotations

from typing import Final, NamedTuple
from zlib import crc32

KEYED: Final = "keyed"
"""How the names of these producers begin; the seed follows, so that each run has other keys."""
KEYS: Final = 4
WITHOUT_KEY_OF_16: Final = 2
TOMBSTONES_OF_16: Final = 3


class Message(NamedTuple):
    """One message."""

    key: str | None
    has_value: bool
    """Without one it deletes its key: a tombstone."""


def is_keyed(producer: str) -> bool:
    """Whether each of its messages has a key of its own, or none."""
    return producer.startswith(KEYED)


def message_of(producer: str, sequence_id: int) -> Message:
    """What a producer sends under a sequence id."""
    if not is_keyed(producer):
        return Message(None, True)
    drawn = crc32(b"%s %d" % (producer.encode(), sequence_id))
    kind, number = drawn % 16, drawn // 16 % KEYS
    if kind < WITHOUT_KEY_OF_16:
        return Message(None, True)
    return Message(f"key{number}", kind >= WITHOUT_KEY_OF_16 + TOMBSTONES_OF_16)
