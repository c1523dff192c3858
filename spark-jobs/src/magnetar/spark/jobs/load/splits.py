"""Which bundles should be split, where, and in how many parts: by the limits and weights that brokers split by
themselves (`magnetar.balance`), for the load of the coming week instead of that of the moment. Pure.

Two reasons. A bundle will pass a limit: of topics, sessions, messages or bytes per second. Or bundles are so heavy that
however they are shared out, brokers differ (`magnetar.balance.balanced`): then the heaviest is split."""

from __future__ import annotations

import heapq
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from magnetar.balance.balanced import HEAVY_SHARE, SPLIT_LOAD_MIN, SPLIT_RATIO
from magnetar.balance.model import BundleLoad
from magnetar.balance.settings import (
    RANGE_EQUALLY,
    SPECIFIED_POSITIONS,
    TOPIC_COUNT_EQUALLY,
    LoadWeights,
    SplitSettings,
)
from magnetar.balance.split_algorithms import SplitRequest, TopicLoad, split_boundaries
from magnetar.balance.view import pinned_broker, weigh
from magnetar.core.bundle import BundleName
from magnetar.core.limits import MIB
from magnetar.spark.jobs.load.forecast import PeakForecast
from magnetar.spark.jobs.load.model import BundleDay, LoadHistory

SYSTEM_NAMESPACE: Final = "pulsar/system"
"""Brokers do not split its bundles."""

GONE_HOURS: Final = 24
"""A bundle that was not seen for so long is there no more: it was split, or its topics are gone."""

PARTS_MAX: Final = 16
"""At once. What needs more should be looked at again after the first split has shown what its parts do."""

BALANCE_STEPS_MAX: Final = 64
"""Cuts on paper, each of which shares all bundles out anew; after so many, look again in a week."""

FindPositions = Callable[[BundleName], Sequence[int]]
"""Where a bundle's topics lie; empty when that is not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure:
    """One quantity of a bundle against its limit."""

    name: str
    unit: str
    now: float
    """The highest of the last week."""
    expected: float
    high: float
    """It may become so much."""
    limit: float

    @property
    def passes(self) -> bool:
        """Whether the limit will be passed, as far as can be told."""
        return 0 < self.limit < self.expected

    @property
    def may_pass(self) -> bool:
        """Whether the limit may be passed."""
        return 0 < self.limit < self.high

    def __str__(self) -> str:
        text = f"{self.expected:,.{0 if self.expected >= 10 else 1}f} {self.unit} (limit {self.limit:,.0f}"
        return text + (f", {self.now:,.{0 if self.now >= 10 else 1}f} now)" if self.now <= self.limit else ")")


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitAdvice:
    """What to do about a bundle."""

    bundle: str
    parts: int
    """1: it stays whole, and `reason` says why."""
    boundaries: tuple[int, ...]
    algorithm: str
    by_topics: bool
    """Whether the boundaries go by where topics lie; else by halves of the range."""
    certain: bool
    """Whether it will be too large, or only may be."""
    reason: str
    topics: int

    @property
    def command(self) -> str:
        """The command line of `pulsar-admin` that splits the bundle; empty when there is nothing to do."""
        if self.parts < 2:
            return ""
        namespace, _, bundle_range = self.bundle.rpartition("/")
        command = (
            f"pulsar-admin namespaces split-bundle {namespace} --bundle {bundle_range} "
            f"--split-algorithm-name {self.algorithm}"
        )
        if self.algorithm == SPECIFIED_POSITIONS:
            command += " --split-boundaries " + ",".join(map(str, self.boundaries))
        return command + " --unload"


def split_advice(
    history: LoadHistory,
    settings: SplitSettings,
    *,
    brokers: int,
    share: float,
    find_positions: FindPositions | None = None,
) -> list[SplitAdvice]:
    """The bundles that are or may be too large, those furthest beyond first. `brokers`: how many will share the load;
    `share`: as for `forecast`."""
    if not history.broker_hours:
        return []
    last_hour = max(history.hours)
    candidates: list[_Candidate] = []
    for days in history.bundles().values():
        bundle = days[-1].name
        alive = last_hour - days[-1].last_hour < GONE_HOURS
        if alive and str(bundle.namespace) != SYSTEM_NAMESPACE and pinned_broker(bundle) is None:
            candidates.append(_Candidate(bundle, days, settings, share))
    needs = [need for one in candidates if (need := _need(one)) is not None]
    needs.sort(key=lambda need: (-need.parts, str(need.candidate.bundle)))
    will = [need for need in needs if need.certain]
    heavy = _heavy(candidates, {need.candidate.bundle: need.parts for need in will}, brokers)
    due = [*will, *heavy, *(need for need in needs if not need.certain)]
    counts = Counter(str(one.bundle.namespace) for one in candidates)
    advice: list[SplitAdvice] = []
    advised: set[BundleName] = set()
    for need in due:
        if need.candidate.bundle not in advised:
            namespace = str(need.candidate.bundle.namespace)
            room = settings.namespace_bundles_max - counts[namespace] + 1
            found = _advice(need, min(PARTS_MAX, math.ceil(need.parts), max(1, room)), find_positions)
            counts[namespace] += found.parts - 1
            advised.add(need.candidate.bundle)
            advice.append(found)
    return advice


class _Candidate:
    """A bundle that is there, with what it will do."""

    def __init__(self, bundle: BundleName, days: Sequence[BundleDay], settings: SplitSettings, share: float) -> None:
        self.bundle = bundle
        self.topics = days[-1].topics
        rate = PeakForecast({one.day: one.msg_rate_peak for one in days}, share)
        throughput = PeakForecast({one.day: one.throughput_peak for one in days}, share)
        topics = PeakForecast({one.day: float(one.topics) for one in days}, share)
        sessions = PeakForecast({one.day: float(one.sessions) for one in days}, share)
        self.measures = [
            _measure("topics", "topics", topics, settings.bundle_topics_max),
            _measure("sessions", "producers and consumers", sessions, settings.bundle_sessions_max),
            _measure("message rate", "messages/s", rate, settings.bundle_msg_rate_max),
            _measure("bandwidth", "MiB/s", throughput, settings.bundle_bandwidth_bytes_max / MIB, MIB),
        ]
        expected = BundleLoad(
            msg_rate_in=rate.expected,
            msg_throughput_in=throughput.expected,
            topics=round(topics.expected),
            producers=round(sessions.expected),
        )
        self.weight = weigh(expected, LoadWeights())


def _measure(name: str, unit: str, peak: PeakForecast, limit: float, divisor: float = 1.0) -> Measure:
    return Measure(
        name=name,
        unit=unit,
        now=peak.now / divisor,
        expected=peak.expected / divisor,
        high=peak.high / divisor,
        limit=limit,
    )


@dataclass(slots=True, eq=False)
class _Need:
    """Why a bundle should be split."""

    candidate: _Candidate
    parts: float
    certain: bool
    reason: str


def _need(candidate: _Candidate) -> _Need | None:
    """What the limits ask for."""
    will = [one for one in candidate.measures if one.passes]
    if will:
        parts = max(one.expected / one.limit for one in will)
        return _Need(candidate, max(2.0, parts), True, "will have " + ", ".join(map(str, will)))
    may = [one for one in candidate.measures if one.may_pass]
    if may:
        reason = ", ".join(f"{one.name} may reach {one.high:,.0f} {one.unit} (limit {one.limit:,.0f})" for one in may)
        return _Need(candidate, 2.0, False, reason)
    return None


def _heavy(candidates: Sequence[_Candidate], parts: Mapping[BundleName, float], brokers: int) -> list[_Need]:
    """What balance asks for beyond that: bundles are shared out on paper, the heaviest first, each to the broker with
    the least; while brokers differ too much for that, the fullest one's heaviest bundle is cut once more."""
    if brokers < 2 or not candidates:
        return []
    pieces = {one: min(PARTS_MAX, math.ceil(parts.get(one.bundle, 1.0))) for one in candidates}
    average = math.fsum(one.weight for one in candidates) / brokers
    heavy_min = max(SPLIT_LOAD_MIN, HEAVY_SHARE * average)
    cut: dict[_Candidate, str] = {}
    for _ in range(BALANCE_STEPS_MAX):
        weights, heaviest = _shared_out(pieces, brokers)
        most, least = max(weights), min(weights)
        one = heaviest[weights.index(most)]
        if most <= SPLIT_RATIO * least or one.weight / pieces[one] < heavy_min or pieces[one] >= PARTS_MAX:
            break
        if one not in cut:
            each, full, empty = (100 * value / average for value in (one.weight / pieces[one], most, least))
            cut[one] = (
                f"bears {each:.0f} % of what one of {brokers} brokers should: with it the fullest would bear "
                f"{full:.0f} %, the emptiest {empty:.0f} %"
            )
        if one.topics < 2:
            break
        pieces[one] += 1
    return [_Need(one, max(2.0, pieces[one]), True, reason) for one, reason in cut.items() if one.bundle not in parts]


def _shared_out(pieces: Mapping[_Candidate, int], brokers: int) -> tuple[list[float], list[_Candidate]]:
    """What each broker bears, and its heaviest bundle."""
    loads = [(0.0, index) for index in range(brokers)]
    heaviest: dict[int, _Candidate] = {}
    by_weight = sorted(pieces.items(), key=lambda item: (-item[0].weight / item[1], str(item[0].bundle)))
    for one, count in by_weight:
        for _ in range(count):
            load, index = heapq.heappop(loads)
            heaviest.setdefault(index, one)
            heapq.heappush(loads, (load + one.weight / count, index))
    weights = [load for load, _ in sorted(loads, key=lambda entry: entry[1])]
    return weights, [heaviest.get(index, by_weight[0][0]) for index in range(brokers)]


def _advice(need: _Need, parts: int, find_positions: FindPositions | None) -> SplitAdvice:
    candidate, reason = need.candidate, need.reason
    bundle = candidate.bundle
    positions = sorted(find_positions(bundle)) if find_positions is not None and parts > 1 else []
    topics = len(positions) or candidate.topics
    boundaries: tuple[int, ...] = ()
    if topics < 2:
        reason += "; it is one topic and cannot be split: give that topic (more) partitions"
    elif parts < 2:
        reason += "; its namespace has as many bundles as it may (loadBalancerNamespaceMaximumBundles)"
    else:
        parts = min(parts, topics)
        boundaries = _cuts(bundle, positions, parts)
        if not boundaries:
            reason += "; its topics all lie at one place of the range, which no boundary can part"
    if not boundaries:
        parts = 1
    algorithm = SPECIFIED_POSITIONS
    if len(boundaries) == 1:
        algorithm = TOPIC_COUNT_EQUALLY if positions else RANGE_EQUALLY
    return SplitAdvice(
        bundle=str(bundle),
        parts=len(boundaries) + 1 if parts > 1 else 1,
        boundaries=boundaries,
        algorithm=algorithm,
        by_topics=bool(positions),
        certain=need.certain,
        reason=reason,
        topics=topics,
    )


def _cuts(bundle: BundleName, positions: Sequence[int], parts: int) -> tuple[int, ...]:
    """With known topics so that each part has about as many, halving as brokers do; else equal ranges."""
    low, high = bundle.range.low, bundle.range.high
    if not positions:
        return tuple(sorted({low + (high - low) * index // parts for index in range(1, parts)} - {low}))
    pieces = [(bundle, list(positions))]
    whole: list[tuple[BundleName, list[int]]] = []
    settings = SplitSettings()
    while pieces and len(pieces) + len(whole) < parts:
        pieces.sort(key=lambda piece: len(piece[1]))
        widest, inside = pieces.pop()
        request = SplitRequest(bundle=widest.range, topics=[TopicLoad(position) for position in inside])
        halves = widest.cut(split_boundaries(TOPIC_COUNT_EQUALLY, request, settings))
        cut = [(half, [position for position in inside if position in half.range]) for half in halves]
        if len(cut) > 1 and all(found for _, found in cut):
            pieces += cut
        else:
            whole.append((widest, inside))
    return tuple(sorted(piece.range.low for piece, _ in (*pieces, *whole) if piece.range.low != low))
