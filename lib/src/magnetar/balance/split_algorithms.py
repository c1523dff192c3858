"""Where to cut a bundle: Pulsar's four `NamespaceBundleSplitAlgorithm`s.

All answer boundaries in ascending order, each inside the bundle: above its lowest position and below its highest. No
boundary means that there is nothing to gain, for which Pulsar's broker answers success and does nothing.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from magnetar.balance.settings import (
    FLOW_OR_QPS_EQUALLY,
    RANGE_EQUALLY,
    SPECIFIED_POSITIONS,
    SPLIT_ALGORITHMS,
    TOPIC_COUNT_EQUALLY,
    SplitSettings,
)
from magnetar.core.bundle import BundleRange
from magnetar.core.errors import PeerError


class BadSplit(PeerError):
    """A split was asked for in a way that no bundle could be split."""


class TopicLoad(NamedTuple):
    """A topic of the bundle that is loaded at its owner."""

    position: int
    """The topic's place in its namespace's hash space (`TopicName.bundle_hash`)."""
    msg_rate: float = 0.0
    """Messages per second in both directions."""
    msg_throughput: float = 0.0
    """Bytes per second in both directions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitRequest:
    """What to cut, and what is known about it."""

    bundle: BundleRange
    topics: Sequence[TopicLoad] = ()
    """The loaded topics of the bundle, in any order. Cutting the range in halves needs none."""
    positions: Sequence[int] = ()
    """For `specified_positions_divide`; those outside the bundle are left out."""


def split_boundaries(algorithm: str, request: SplitRequest, settings: SplitSettings) -> tuple[int, ...]:
    """Where an algorithm of this name cuts. `BadSplit` for an unknown name, one that is not supported, or positions
    that are asked for and not given."""
    if algorithm not in settings.algorithms:
        raise BadSplit(f"Unsupported namespace bundle split algorithm, supported algorithms are {settings.algorithms}")
    if algorithm == RANGE_EQUALLY:
        found = _halves(request.bundle)
    elif algorithm == SPECIFIED_POSITIONS:
        found = _specified(request)
    elif len(request.topics) < 2:
        found = []
    elif algorithm == TOPIC_COUNT_EQUALLY:
        found = _topic_count_halves(request)
    else:
        assert algorithm == FLOW_OR_QPS_EQUALLY, SPLIT_ALGORITHMS
        found = _loads_below_maximum(request, settings)
    inside = sorted({position for position in found if request.bundle.low < position < request.bundle.high})
    return tuple(inside)


def _halves(bundle: BundleRange) -> list[int]:
    return [bundle.low + (bundle.high - bundle.low) // 2]


def _specified(request: SplitRequest) -> list[int]:
    """Pulsar cuts nothing where there are fewer than two topics, even if it is told where."""
    if not request.positions:
        raise BadSplit("SplitBoundaries can't be empty")
    return list(request.positions) if len(request.topics) >= 2 else []


def _topic_count_halves(request: SplitRequest) -> list[int]:
    """Between the two topics in the middle. A topic on the boundary belongs to the upper half, so that with neighbours
    as close as 1 the lower one's own position is the cut."""
    positions = sorted(topic.position for topic in request.topics)
    middle = len(positions) // 2
    below, above = positions[middle - 1], positions[middle]
    return [below + (above - below) // 2]


def _loads_below_maximum(request: SplitRequest, settings: SplitSettings) -> list[int]:
    """As many parts as it takes for none to exceed what one bundle may carry; idle topics do not count."""
    loads: defaultdict[int, tuple[float, float]] = defaultdict(lambda: (0.0, 0.0))
    for position, rate, throughput in request.topics:
        if rate > 0 or throughput > 0:
            known = loads[position]
            loads[position] = (known[0] + rate, known[1] + throughput)
    rate_max, throughput_max = float(settings.bundle_msg_rate_max), float(settings.bundle_bandwidth_bytes_max)
    margin = 1 + settings.difference_percent / 100
    rate = sum(load[0] for load in loads.values())
    throughput = sum(load[1] for load in loads.values())
    if len(loads) < 2 or (rate < rate_max * margin and throughput < throughput_max * margin):
        return []
    positions = sorted(loads)
    cuts: list[int] = []
    rate, throughput = loads[positions[0]]
    for before, position in itertools.pairwise(positions):
        more_rate, more_throughput = loads[position]
        if rate + more_rate > rate_max or throughput + more_throughput > throughput_max:
            cuts.append(before + (position - before) // 2 + 1)
            rate, throughput = 0.0, 0.0
        rate += more_rate
        throughput += more_throughput
    return cuts
