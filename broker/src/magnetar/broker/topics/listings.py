"""Lists of topics that many ask for at the same time: read and matched once for all who asked before."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
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

NAME_BYTES: Final = 64
"""Bytes that a name in a list costs beside its letters, which are there twice: as a name, and in the encoded list."""

Key: TypeAlias = tuple[NamespaceName, str]
"""A namespace, and the domain of its topics."""


class Listing:
    """Names, shared by all who asked for them: nobody changes the list."""

    __slots__ = ("_encoded", "names", "names_hash")

    def __init__(self, names: list[str]) -> None:
        self.names = names
        self.names_hash = topics_hash(names)
        self._encoded: bytes | None = None

    @property
    def encoded(self) -> bytes:
        """The names as answers carry them: encoded once, and in memory once, however many clients take their time."""
        if self._encoded is None:
            self._encoded = encode_topics(self.names)
        return self._encoded


class _Kept:
    """What one namespace had, of one domain or both, when it was read last."""

    __slots__ = ("found", "listed", "number", "size_bytes", "whole")

    def __init__(self, number: int, listed: list[str], names: list[str]) -> None:
        self.number = number
        """Which reading of the store it comes from; they are counted."""
        self.listed = listed
        self.whole = Listing(names)
        self.found: dict[str, Listing] = {}
        """The part of the list that each pattern has found."""
        self.size_bytes = 2 * sum(map(len, listed)) + NAME_BYTES * (1 + len(listed))


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
        for name in listed:
            if turn.over:
                await turn.pause()
            if not is_system_topic(name):
                names.append(name)
        kept = _Kept(number, listed, names)
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
        size_bytes = sum(map(len, found.names)) + 11 * len(found.names) + len(pattern) + NAME_BYTES
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
