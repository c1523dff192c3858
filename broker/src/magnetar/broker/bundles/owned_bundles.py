"""The bundles that this broker owns, found by topic without waiting. Pure: who may own what is decided elsewhere.

Hot: compiled by mypyc (see CONTRIBUTING).
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right, insort
from collections.abc import Iterator
from types import MappingProxyType
from typing import TYPE_CHECKING

from magnetar.broker.states import BUNDLE_TRANSITIONS, BundleState
from magnetar.core.bundle import BundleName
from magnetar.core.topic_name import NamespaceName, TopicName

if TYPE_CHECKING:
    from collections.abc import Mapping

    from magnetar.broker.bundles.loaded_topic import LoadedTopic


class OwnedBundle:
    """One bundle of this broker, with its topics."""

    __slots__ = ("loading", "name", "since_ms", "state", "tenure", "topics")

    def __init__(
        self, name: BundleName, since_ms: int, tenure: object, state: BundleState = BundleState.ACTIVE
    ) -> None:
        """`state`: that of the bundle that this one is a part of."""
        self.name = name
        self.since_ms = since_ms
        self.state = state
        self.tenure = tenure
        """The same object for as long as nobody else can have owned these topics, also through splits."""
        self.topics: dict[str, LoadedTopic] = {}
        self.loading: dict[str, asyncio.Task[LoadedTopic]] = {}

    @property
    def active(self) -> bool:
        """Whether topics may be loaded and served."""
        return self.state is BundleState.ACTIVE

    def become(self, state: BundleState) -> None:
        """Change the state, as `states.py` allows it."""
        self.state = BUNDLE_TRANSITIONS.step(self.state, state)

    def __repr__(self) -> str:
        return f"OwnedBundle({self.name}, {self.state.name}, {len(self.topics)} topics)"


class _Row:
    """One namespace's owned bundles, which do not overlap, by where they begin."""

    __slots__ = ("bundles", "lows")

    def __init__(self) -> None:
        self.lows: list[int] = []
        self.bundles: dict[int, OwnedBundle] = {}


class OwnedBundles:
    """All of them. Lookups cost the logarithm of a namespace's bundles."""

    def __init__(self) -> None:
        self._by_name: dict[BundleName, OwnedBundle] = {}
        self._rows: dict[NamespaceName, _Row] = {}

    @property
    def by_name(self) -> Mapping[BundleName, OwnedBundle]:
        """A view of what there is."""
        return MappingProxyType(self._by_name)

    def __iter__(self) -> Iterator[OwnedBundle]:
        return iter(list(self._by_name.values()))

    def get(self, name: BundleName) -> OwnedBundle | None:
        """The bundle of exactly this name."""
        return self._by_name.get(name)

    def of_topic(self, topic: TopicName) -> OwnedBundle | None:
        """The bundle that a topic is in."""
        row = self._rows.get(topic.namespace_name)
        return None if row is None else self._at(row, topic.bundle_hash())

    def of_namespace(self, namespace: NamespaceName) -> list[OwnedBundle]:
        """The bundles of one namespace."""
        row = self._rows.get(namespace)
        return [] if row is None else list(row.bundles.values())

    def containing(self, name: BundleName) -> OwnedBundle | None:
        """The bundle that has all hashes of another one: the same, or the whole that it is a part of."""
        row = self._rows.get(name.namespace)
        owned = None if row is None else self._at(row, name.range.low)
        return owned if owned is not None and name.range.high <= owned.name.range.high else None

    def overlapping(self, name: BundleName) -> list[OwnedBundle]:
        """What shares hashes with a bundle, itself included."""
        row = self._rows.get(name.namespace)
        if row is None:
            return []
        reach = name.range
        return [
            owned
            for owned in row.bundles.values()
            if owned.name.range.low < reach.high and reach.low < owned.name.range.high
        ]

    def add(self, owned: OwnedBundle) -> None:
        """Own one more."""
        assert not self.overlapping(owned.name), f"{owned.name} overlaps with what is owned"
        self._by_name[owned.name] = owned
        row = self._rows.setdefault(owned.name.namespace, _Row())
        low = owned.name.range.low
        insort(row.lows, low)
        row.bundles[low] = owned

    def remove(self, owned: OwnedBundle) -> None:
        """Own it no more; one that is not there is no error."""
        if self._by_name.get(owned.name) is not owned:
            return
        del self._by_name[owned.name]
        row = self._rows[owned.name.namespace]
        row.lows.remove(owned.name.range.low)
        del row.bundles[owned.name.range.low]
        if not row.lows:
            del self._rows[owned.name.namespace]

    def replace(self, owned: OwnedBundle, parts: list[OwnedBundle]) -> None:
        """A bundle was split: its topics, also those that are being loaded, go on in the parts."""
        self.remove(owned)
        for part in parts:
            self.add(part)
        for key, topic in owned.topics.items():
            part = self._part(topic.name)
            part.topics[key] = topic
        for key, task in owned.loading.items():
            self._part(TopicName.parse(key)).loading[key] = task
        owned.topics = {}
        owned.loading = {}

    def _part(self, topic: TopicName) -> OwnedBundle:
        part = self.of_topic(topic)
        assert part is not None, f"the parts of a bundle leave out {topic}"
        return part

    def _at(self, row: _Row, position: int) -> OwnedBundle | None:
        index = bisect_right(row.lows, position) - 1
        if index < 0:
            return None
        owned = row.bundles[row.lows[index]]
        return owned if position in owned.name.range else None
