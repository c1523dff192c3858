"""Lists of topics that many ask for at the same time: read and matched once for all who asked before."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from sys import getsizeof
from typing import Any, Final, TypeAlias

from magnetar.broker.policies.system_topics import is_system_topic
from magnetar.broker.slices import TimeSlice
from magnetar.broker.topics.patterns import TopicPattern
from magnetar.core.hashing import topics_hash
from magnetar.core.limits import MIB
from magnetar.core.topic_name import NamespaceName
from magnetar.net.requests import Place, Readings
from magnetar.wire.pulsar.topic_lists import encode_topics

KEPT_BYTES_MAX: Final = 32 * MIB
"""Of one broker: lists as they were read last, with what patterns found in them."""

NAME_BYTES: Final = 24
"""Bytes that a name costs beside itself and its encoded letters: its places in the lists, and its head in an answer."""

LIST_BYTES: Final = 1024
"""Bytes that a list costs beside its names and its namespace's: anybody may ask for namespaces that are not there."""

FOUND_BYTES: Final = 256
"""Bytes that what a pattern has found costs beside the pattern and the names."""

ENCODED_AT_ONCE: Final = 1_000
"""Names, between two looks at the time: half a millisecond."""

Key: TypeAlias = tuple[NamespaceName, str]
"""A namespace, and the domain of its topics."""


class Listing:
    """Names, shared by all who asked for them: nobody changes the list."""

    __slots__ = ("_encoded", "names", "names_hash")

    def __init__(self, names: list[str]) -> None:
        self.names = names
        self.names_hash = topics_hash(names)
        self._encoded: bytes | None = None

    async def encode(self) -> bytes:
        """The names as answers carry them: encoded once, and in memory once, however many clients take their time. Of
        long lists a part in each turn of the loop."""
        if self._encoded is None:
            turn = TimeSlice()
            parts: list[bytes] = []
            for first in range(0, len(self.names), ENCODED_AT_ONCE):
                if turn.over:
                    await turn.pause()
                parts.append(encode_topics(self.names[first : first + ENCODED_AT_ONCE]))
            if self._encoded is None:  # Still: two may be at it.
                self._encoded = b"".join(parts)
        return self._encoded


class _Kept:
    """What one namespace had, of one domain or both, when it was read last."""

    __slots__ = ("found", "listed", "number", "size_bytes", "whole")

    def __init__(self, number: int, listed: list[str], names: list[str], size_bytes: int) -> None:
        self.number = number
        """Which reading of the store it comes from; they are counted."""
        self.listed = listed
        self.whole = Listing(names)
        self.found: dict[str, Listing] = {}
        """The part of the list that each pattern has found."""
        self.size_bytes = size_bytes


class Listings:
    """Whoever asks gets what was read after he asked, so that he misses nothing that was there before."""

    def __init__(self, list_topics: Callable[[NamespaceName, str], Coroutine[Any, Any, list[str]]]) -> None:
        self._list_topics = list_topics
        self._kept: dict[Key, _Kept] = {}
        self._places = Readings()
        self._readings = 0
        self.kept_bytes = 0

    def ticket(self) -> int:
        """When somebody asks: the readings that were begun before."""
        return self._readings

    async def find(
        self, namespace: NamespaceName, domain: str, pattern: TopicPattern | None, ticket: int, place: Place | None
    ) -> Listing:
        """The topics that clients may see, all or those that a pattern means. `place`: of the answer that they are
        for, if any; others have it while a list is read."""
        turn = TimeSlice()
        kept = await self._whole((namespace, domain), ticket, turn, place)
        if pattern is None:
            return kept.whole
        found = kept.found.get(pattern.text)
        if found is None:
            found = Listing(await pattern.filter(kept.whole.names, turn))
            self._keep_found((namespace, domain), kept, pattern.text, found)
        return found

    async def _whole(self, key: Key, ticket: int, turn: TimeSlice, place: Place | None) -> _Kept:
        kept = self._since(key, ticket)
        if kept is not None:
            return kept
        if place is None:
            number, listed = await self._read(key, ticket)
        else:
            number, listed = await place.read(self._places, key, lambda: self._read(key, ticket))
        kept = self._kept.get(key)
        if kept is not None and (kept.number >= number or kept.listed == listed):
            # Others have read it meanwhile, or nothing has changed.
            kept.number = max(kept.number, number)
            return kept
        names: list[str] = []
        size_bytes = LIST_BYTES + 2 * getsizeof(str(key[0]))  # The namespace has its name whole and in two parts.
        for name in listed:
            if turn.over:
                await turn.pause()
            size_bytes += getsizeof(name) + _encoded_bytes(name) + NAME_BYTES
            if not name.isascii():
                size_bytes += _encoded_bytes(name)  # Such a name keeps how it was encoded.
            if not is_system_topic(name):
                names.append(name)
        kept = _Kept(number, listed, names, size_bytes)
        self._keep(key, kept)
        return kept

    def _since(self, key: Key, ticket: int) -> _Kept | None:
        kept = self._kept.get(key)
        return kept if kept is not None and kept.number > ticket else None

    async def _read(self, key: Key, ticket: int) -> tuple[int, list[str]]:
        """The number of the reading, and what it brought; or of one that was made while this one waited."""
        kept = self._since(key, ticket)
        if kept is not None:
            return kept.number, kept.listed
        self._readings += 1
        number = self._readings
        return number, await self._list_topics(*key)

    def _keep(self, key: Key, kept: _Kept) -> None:
        self._forget(key)
        self._kept[key] = kept
        self.kept_bytes += kept.size_bytes
        self._make_room()

    def _keep_found(self, key: Key, kept: _Kept, pattern: str, found: Listing) -> None:
        if self._kept.get(key) is not kept:
            return  # Another list is in its place.
        size_bytes = FOUND_BYTES + getsizeof(pattern) + sum(map(_encoded_bytes, found.names))
        size_bytes += NAME_BYTES * len(found.names)
        kept.found[pattern] = found
        kept.size_bytes += size_bytes
        self.kept_bytes += size_bytes
        # The newest go last.
        self._kept[key] = self._kept.pop(key)
        self._make_room()

    def _make_room(self) -> None:
        while self.kept_bytes > KEPT_BYTES_MAX:
            self._forget(next(iter(self._kept)))

    def _forget(self, key: Key) -> None:
        kept = self._kept.pop(key, None)
        if kept is not None:
            self.kept_bytes -= kept.size_bytes


def _encoded_bytes(name: str) -> int:
    return len(name) if name.isascii() else len(name.encode())
