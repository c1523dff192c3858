"""Which message of each key is the last one: what a compaction remembers between its two passes. Pure.

Facts: transactions-dedup-compaction section 3.1 (Pulsar: `PublishingOrderCompactor`, `EventTimeOrderCompactor`).
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b
from typing import Final

from magnetar.core.errors import MagnetarError
from magnetar.core.ids import Position

DIGEST_BYTES: Final = 32
"""Longer keys are remembered by a digest of so many bytes: a key may be as long as a message. Two keys with one digest
are not to be found by anybody."""

INDEX_BITS: Final = 32
ENTRY_BITS: Final = 64
"""How a place is packed into one number, which takes a third of the memory of a tuple."""

WHOLE: Final = -1
"""The index of a message that is an entry by itself."""


class TooManyKeys(MagnetarError):
    """The keys of a topic would take more memory than a broker has for them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyRules:
    """How a compaction decides, as the broker's settings say."""

    keep_without_key: bool = False
    """Whether messages without a key are kept, all of them, or dropped."""
    by_event_time: bool = False
    """Whether the last message is the one with the highest event time, not the one that was published last."""
    keys_max: int = 1 << 62


class LatestKeys:
    """The place of the last message of each key, and which messages have none that is newer."""

    __slots__ = ("_places", "_rules", "_times", "removed")

    def __init__(self, rules: KeyRules) -> None:
        self._rules = rules
        self._places: dict[bytes, int] = {}
        self._times: dict[bytes, int] = {}
        self.removed = 0
        """Messages that were found to be of no use any more."""

    def __len__(self) -> int:
        return len(self._places)

    def note(self, position: Position, index: int, key: str | None, event_time_ms: int, *, has_value: bool) -> bool:
        """Take the next message, in the order of the topic; whether it is left for now. `TooManyKeys`."""
        if key is None:
            if not self._rules.keep_without_key:
                self.removed += 1
            return self._rules.keep_without_key
        known = _remembered(key)
        if self._rules.by_event_time and not self._is_newer(known, index, event_time_ms):
            return True
        if not has_value:
            self.removed += 1
            self._places.pop(known, None)
            self._times.pop(known, None)
            return False
        if known in self._places:
            self.removed += 1
        elif len(self._places) >= self._rules.keys_max:
            raise TooManyKeys(f"a topic of more than {self._rules.keys_max} keys")
        self._places[known] = _packed(position, index)
        if self._rules.by_event_time:
            self._times[known] = event_time_ms
        return True

    def is_latest(self, position: Position, index: int, key: str | None) -> bool:
        """Whether a message that was noted before is to be kept."""
        if key is None:
            return self._rules.keep_without_key
        return self._places.get(_remembered(key)) == _packed(position, index)

    def _is_newer(self, known: bytes, index: int, event_time_ms: int) -> bool:
        # With equal times the later entry wins, and of one batch the earlier message: as in Pulsar.
        latest = self._times.get(known)
        return latest is None or event_time_ms > latest or (event_time_ms == latest and index == WHOLE)


def _remembered(key: str) -> bytes:
    encoded = key.encode("utf-8", "surrogatepass")
    return encoded if len(encoded) < DIGEST_BYTES else blake2b(encoded, digest_size=DIGEST_BYTES).digest()


def _packed(position: Position, index: int) -> int:
    return (position[0] << ENTRY_BITS | position[1]) << INDEX_BITS | (index + 1)
