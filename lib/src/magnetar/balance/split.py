"""Which bundles are too large and should be split (Pulsar `BundleSplitterTask`).

A bundle is too large when its topics, sessions, message rate or bandwidth pass a limit, rates as long-term averages,
for some rounds in a row. Splits come to an end: a bundle with fewer than two topics is never split, a namespace never
gets more than its maximum of bundles, the parts of a bundle are left alone for a while, and a bundle that is still
there after several attempts is given up until it has grown.
"""

from __future__ import annotations

from typing import Final

from magnetar.balance.memory import SETTLE_TIMEOUTS, RecentMoves
from magnetar.balance.model import Split
from magnetar.balance.settings import BalanceSettings
from magnetar.balance.view import BundleView, ClusterView
from magnetar.core.bundle import BundleName
from magnetar.core.limits import MIB

ATTEMPTS_MAX: Final = 3
"""How often a bundle is to be split that is still there afterwards: its owner may have found no place to cut."""

_GROWTH: Final = 1.5
"""By how much the topics of a bundle that was given up must have grown for another attempt."""

_SYSTEM_NAMESPACE: Final = "pulsar/system"


class _Attempt:
    __slots__ = ("bundle", "count", "last_ms", "topics")

    def __init__(self, bundle: BundleName) -> None:
        self.bundle = bundle
        self.count = 0
        self.last_ms = 0
        self.topics = 0


class SplitWatch:
    """Remembers how often a bundle was too large, and what was split lately."""

    def __init__(self, settings: BalanceSettings, moves: RecentMoves) -> None:
        self._settings = settings.split
        self._settle_ms = SETTLE_TIMEOUTS * settings.unloading_timeout_ms
        self._moves = moves
        self._hits: dict[BundleName, int] = {}
        self._attempts: dict[BundleName, _Attempt] = {}
        self._decided = 0
        self.refusals: list[str] = []
        """Why bundles that should have been split in this round were not, for people."""

    def adopt(self, settings: BalanceSettings) -> None:
        """Go on under other settings."""
        self._settings = settings.split
        self._settle_ms = SETTLE_TIMEOUTS * settings.unloading_timeout_ms

    def begin(self, view: ClusterView) -> None:
        """A round starts: forget attempts that are long past at bundles that are gone."""
        self._decided = 0
        self.refusals = []
        present = {name for broker in view for name in broker.bundles}
        kept_ms = max(self._settings.cool_down_ms, self._settle_ms)
        now_ms = view.snapshot.now_ms
        self._attempts = {
            name: attempt
            for name, attempt in self._attempts.items()
            if name in present or now_ms - attempt.last_ms < kept_ms
        }

    def too_large(self, view: ClusterView) -> list[Split]:
        """Splits of bundles that have passed a limit for long enough, those furthest beyond it first."""
        hits: dict[BundleName, int] = {}
        due: list[tuple[float, str, BundleView, str, str]] = []
        for broker in view:
            if broker.load.draining:
                continue
            for bundle in broker.bundles.values():
                excess, seen = self._excess(bundle)
                if seen and bundle.load.topics < 2:
                    self.refusals.append(
                        f"{bundle.name} at {broker.broker_id} is one topic and cannot be split; {seen}"
                    )
                elif seen:
                    hits[bundle.name] = self._hits.get(bundle.name, 0) + 1
                    if hits[bundle.name] >= self._settings.hits:
                        due.append((-excess, str(bundle.name), bundle, broker.broker_id, seen))
        self._hits = hits
        due.sort(key=lambda entry: entry[:2])
        splits: list[Split] = []
        for _, _, bundle, broker_id, seen in due:
            reason = f"{seen} in {hits[bundle.name]} rounds"
            split = self.request(view, bundle, broker_id, self._settings.algorithm, reason)
            if split is not None:
                splits.append(split)
                del hits[bundle.name]
        return splits

    def request(
        self, view: ClusterView, bundle: BundleView, broker_id: str, algorithm: str, reason: str
    ) -> Split | None:
        """A split, unless something forbids it; then that is noted in `refusals`."""
        refusal = self._refusal(view, bundle)
        if refusal is not None:
            self.refusals.append(f"{bundle.name} at {broker_id} is not split, {refusal}; {reason}")
            return None
        attempt = self._attempts.setdefault(bundle.name, _Attempt(bundle.name))
        if bundle.load.topics > _GROWTH * attempt.topics:
            attempt.count = 0
        attempt.count += 1
        attempt.last_ms = view.snapshot.now_ms
        attempt.topics = bundle.load.topics
        self._decided += 1
        if algorithm not in self._settings.algorithms:
            algorithm = self._settings.algorithm
        return Split(bundle=bundle.name, broker_id=broker_id, algorithm=algorithm, reason=reason)

    def lately(self, bundle: BundleName, now_ms: int) -> bool:
        """Whether the bundle, or one that it is a part of, was to be split a short while ago."""
        for attempt in self._attempts.values():
            outer, inner = attempt.bundle.range, bundle.range
            inside = outer.low <= inner.low and inner.high <= outer.high
            fresh = now_ms - attempt.last_ms < self._settings.cool_down_ms
            if inside and fresh and attempt.bundle.namespace == bundle.namespace:
                return True
        return False

    def being_split(self, bundle: BundleName, now_ms: int) -> bool:
        """Whether this very bundle is about to be split; it should not be moved."""
        attempt = self._attempts.get(bundle)
        return attempt is not None and now_ms - attempt.last_ms < self._settle_ms

    def failed(self, bundle: BundleName) -> None:
        """The split did not happen, by no fault of the bundle's: it does not count as an attempt."""
        attempt = self._attempts.get(bundle)
        if attempt is not None:
            attempt.count = max(0, attempt.count - 1)

    def _excess(self, bundle: BundleView) -> tuple[float, str]:
        """How many times a limit the bundle is at most, and which limits it passes; empty if none."""
        settings = self._settings
        average = bundle.average
        measures: list[tuple[float, float, str]] = [
            (bundle.load.topics, settings.bundle_topics_max, "{0:.0f} topics (limit {1:.0f})"),
            (bundle.load.sessions, settings.bundle_sessions_max, "{0:.0f} producers and consumers (limit {1:.0f})"),
            (average.msg_rate, settings.bundle_msg_rate_max, "{0:.0f} messages/s (limit {1:.0f})"),
            (
                average.msg_throughput / MIB,
                settings.bundle_bandwidth_bytes_max / MIB,
                "{0:.1f} MiB/s (limit {1:.1f})",
            ),
        ]
        passed = [(value / limit, text.format(value, limit)) for value, limit, text in measures if 0 < limit < value]
        return max((ratio for ratio, _ in passed), default=0.0), ", ".join(text for _, text in passed)

    def _refusal(self, view: ClusterView, bundle: BundleView) -> str | None:
        settings = self._settings
        now_ms = view.snapshot.now_ms
        if not settings.enabled:
            return "splits are turned off (loadBalancerAutoBundleSplitEnabled)"
        if bundle.namespace == _SYSTEM_NAMESPACE:
            return "it is the system's"
        if bundle.load.topics < 2:
            return f"it has {bundle.load.topics} topics and needs 2"
        if self._decided >= settings.splits_per_round_max:
            return f"{self._decided} others are split in this round"
        if self.lately(bundle.name, now_ms):
            return f"a split was decided there less than {settings.cool_down_ms // 1_000} s ago"
        if self._moves.on_its_way(bundle.name, view.snapshot) is not None:
            return "it is being moved"
        attempt = self._attempts.get(bundle.name)
        if attempt is not None and attempt.count >= ATTEMPTS_MAX and bundle.load.topics <= _GROWTH * attempt.topics:
            return f"{attempt.count} attempts did not change it"
        count = self._bundle_count(view, bundle.namespace)
        if count >= settings.namespace_bundles_max:
            return f"its namespace has {count} of at most {settings.namespace_bundles_max} bundles"
        return None

    def _bundle_count(self, view: ClusterView, namespace: str) -> int:
        """Bundles of a namespace, with those that splits are about to make."""
        known = view.snapshot.bundle_counts.get(namespace)
        if known is None:
            known = sum(broker.namespaces.get(namespace, 0) for broker in view)
        now_ms = view.snapshot.now_ms
        return known + sum(
            str(attempt.bundle.namespace) == namespace and now_ms - attempt.last_ms < self._settle_ms
            for attempt in self._attempts.values()
        )
