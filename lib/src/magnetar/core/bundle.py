"""Bundles: ranges of a namespace's hash space, in which topics are owned and moved (Pulsar `NamespaceBundle`).

Hot: compiled by mypyc (see CONTRIBUTING).
"""

from __future__ import annotations

import itertools
import re
from bisect import bisect_right
from collections.abc import Iterable
from typing import Final

from magnetar.core.topic_name import FULL_RANGE, InvalidTopicName, NamespaceName, TopicName

_RANGE: Final = re.compile(r"0x([0-9a-fA-F]{8})_0x([0-9a-fA-F]{8})")


class BundleRange:
    """Hashes from `low` up to `high`, which belongs to it only where the hash space ends. Immutable, in order."""

    __slots__ = ("high", "low")

    def __init__(self, low: int, high: int) -> None:
        if not 0 <= low < high <= FULL_RANGE:
            raise InvalidTopicName(f"Invalid bundle range 0x{low:08x}_0x{high:08x}")
        self.low = low
        self.high = high

    @staticmethod
    def parse(text: str) -> BundleRange:
        """From `0x40000000_0x80000000`. Raises `InvalidTopicName`."""
        match = _RANGE.fullmatch(text)
        if match is None:
            raise InvalidTopicName(f"Invalid bundle range {text!r}")
        return BundleRange(int(match[1], 16), int(match[2], 16))

    def __contains__(self, position: int) -> bool:
        return self.low <= position < self.high or position == self.high == FULL_RANGE

    def __str__(self) -> str:
        return f"0x{self.low:08x}_0x{self.high:08x}"

    def __repr__(self) -> str:
        return f"BundleRange({self})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, BundleRange) and (self.low, self.high) == (other.low, other.high)

    def __lt__(self, other: BundleRange) -> bool:
        return (self.low, self.high) < (other.low, other.high)

    def __hash__(self) -> int:
        return hash((self.low, self.high))


class BundleName:
    """One bundle: `tenant/namespace/0x40000000_0x80000000`. Immutable; owners and caches are found by it."""

    __slots__ = ("_text", "namespace", "range")

    def __init__(self, namespace: NamespaceName, bundle_range: BundleRange) -> None:
        self.namespace = namespace
        self.range = bundle_range
        self._text = f"{namespace}/{bundle_range}"

    @staticmethod
    def parse(text: str) -> BundleName:
        """From its full name. Raises `InvalidTopicName`."""
        namespace, _, range_text = text.rpartition("/")
        return BundleName(NamespaceName.parse(namespace), BundleRange.parse(range_text))

    def cut(self, boundaries: Iterable[int]) -> tuple[BundleName, ...]:
        """The parts between these hashes, as far as they lie inside."""
        inside = sorted({each for each in boundaries if self.range.low < each < self.range.high})
        edges = [self.range.low, *inside, self.range.high]
        return tuple([BundleName(self.namespace, BundleRange(low, high)) for low, high in itertools.pairwise(edges)])

    def __contains__(self, topic: TopicName) -> bool:
        return topic.namespace_name == self.namespace and topic.bundle_hash() in self.range

    def __str__(self) -> str:
        return self._text

    def __repr__(self) -> str:
        return f"BundleName({self._text})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, BundleName) and self._text == other._text

    def __hash__(self) -> int:
        return hash(self._text)


class NamespaceBundles:
    """How one namespace's hash space is cut at present; immutable."""

    __slots__ = ("_lows", "boundaries", "bundles", "namespace")

    def __init__(self, namespace: NamespaceName, boundaries: list[str]) -> None:
        self.namespace = namespace
        self.boundaries = tuple(boundaries)
        values = [int(boundary, 16) for boundary in boundaries]
        if len(values) < 2 or values[0] != 0 or values[-1] != FULL_RANGE:
            raise InvalidTopicName(f"The bundles of {namespace} do not reach from 0 to 0x{FULL_RANGE:08x}")
        ranges = [BundleRange(low, high) for low, high in itertools.pairwise(values)]
        self.bundles = tuple([BundleName(namespace, bundle) for bundle in ranges])
        self._lows = values[:-1]

    def bundle_at(self, position: int) -> BundleName:
        """The bundle that a hash falls into."""
        return self.bundles[bisect_right(self._lows, position) - 1]

    def bundle_of(self, topic: TopicName) -> BundleName:
        """The bundle that a topic of this namespace belongs to."""
        return self.bundle_at(topic.bundle_hash())

    def __contains__(self, bundle: BundleName) -> bool:
        return self.bundle_at(bundle.range.low) == bundle
