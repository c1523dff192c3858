"""Which message of each key is the last one: what a compaction remembers between its two passes. Pure.

Facts: transactions-dedup-compaction section 3.1 (Pulsar: `PublishingOrderCompactor`, `EventTimeOrderCompactor`).
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b
from typing import Final
from zlib import crc32

from magnetar.core.errors import MagnetarError
from magnetar.core.ids import Position

DIGEST_BYTES: Final = 32
"""Longer keys are remembered by a digest of so many bytes: a key may be as long as a message. Two keys with one digest
are not to be found by anybody."""

SHARDS: Final = 256
"""Of four million keys each has 16 000: it grows in a millisecond."""

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
    """The place of the last message of each key, and which messages have none that is newer.

    Cut into shards: a dictionary of millions takes a tenth of a second to grow, and as long to be let go of."""

    __slots__ = ("_count", "_places", "_rules", "_times", "removed")

    def __init__(self, rules: KeyRules) -> None:
        self._rules = rules
        self._places: list[dict[bytes, int]] = [{} for _ in range(SHARDS)]
        self._times: list[dict[bytes, int]] = [{} for _ in range(SHARDS if rules.by_event_time else 0)]
        self._count = 0
        self.removed = 0
        """Messages that were found to be of no use any more."""

    def __len__(self) -> int:
        return self._count

    def note(self, position: Position, index: int, key: str | None, event_time_ms: int, *, has_value: bool) -> bool:
        """Take the next message, in the order of the topic; whether it is left for now. `TooManyKeys`."""
        if key is None:
            if not self._rules.keep_without_key:
                self.removed += 1
            return self._rules.keep_without_key
        known = _remembered(key)
        shard = crc32(known) % SHARDS
        if self._times:
            if not _is_newer(self._times[shard].get(known), index, event_time_ms):
                return True
            self._times[shard][known] = event_time_ms
        places = self._places[shard]
        if not has_value:
            self.removed += 1
            if places.pop(known, None) is not None:
                self._count -= 1
            if self._times:
                del self._times[shard][known]
            return False
        if known in places:
            self.removed += 1
        else:
            if self._count >= self._rules.keys_max:
                raise TooManyKeys(f"a topic of more than {self._rules.keys_max} keys")
            self._count += 1
        places[known] = _packed(position, index)
        return True

    def is_latest(self, position: Position, index: int, key: str | None) -> bool:
        """Whether a message that was noted before is to be kept."""
        if key is None:
            return self._rules.keep_without_key
        known = _remembered(key)
        return self._places[crc32(known) % SHARDS].get(known) == _packed(position, index)

    def forget_some(self) -> bool:
        """Let go of a part of it, when nothing is asked any more; whether there is more."""
        if self._places:
            self._places.pop()
        elif self._times:
            self._times.pop()
        return bool(self._places or self._times)


def _is_newer(latest_ms: int | None, index: int, event_time_ms: int) -> bool:
    # With equal times the later entry wins, and of one batch the earlier message: as in Pulsar.
    return latest_ms is None or event_time_ms > latest_ms or (event_time_ms == latest_ms and index == WHOLE)


def _remembered(key: str) -> bytes:
    encoded = key.encode("utf-8", "surrogatepass")
    return encoded if len(encoded) < DIGEST_BYTES else blake2b(encoded, digest_size=DIGEST_BYTES).digest()


def _packed(position: Position, index: int) -> int:
    return (position[0] << ENTRY_BITS | position[1]) << INDEX_BITS | (index + 1)
