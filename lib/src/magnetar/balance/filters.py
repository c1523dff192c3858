"""Which brokers may take a bundle (Pulsar: `LoadManagerShared`, `BrokerVersionFilter`).

Hard rules are never broken: a broker that is stopping, one that lacks the kind of topic, isolation policies.
Preferences (topic counts, anti-affinity, spreading one namespace, versions) give way when they would leave nobody.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Final

from magnetar.balance.isolation import USAGE_THRESHOLD_MAX, host_of, is_shared, policy_of
from magnetar.balance.settings import BalanceSettings, PlacementStrategy
from magnetar.balance.view import BrokerView, ClusterView, pinned_broker
from magnetar.core.bundle import BundleName

_DEFAULT_DOMAIN: Final = "default"
"""Where brokers without a failure domain are counted, as Pulsar does."""

_VERSION: Final = re.compile(r"(\d+)\.(\d+)\.(\d+)(-[0-9A-Za-z.-]+)?")


class Candidates:
    """Finds the brokers that may take a bundle, for one view of the cluster."""

    def __init__(self, view: ClusterView, settings: BalanceSettings) -> None:
        self._view = view
        self._settings = settings
        self._allowed: dict[tuple[str, bool, bool], tuple[str, ...]] = {}
        """By namespace and kinds of topics: hard rules do not change within a view."""

    def allowed(self, namespace: str, *, persistent: bool, non_persistent: bool) -> tuple[str, ...]:
        """Brokers that no hard rule keeps from a namespace's topics of these kinds, in the order of ids."""
        key = (namespace, persistent, non_persistent)
        found = self._allowed.get(key)
        if found is None:
            suitable = [
                broker
                for broker in self._view
                if not broker.load.draining
                and (broker.load.persistent_topics or not persistent)
                and (broker.load.non_persistent_topics or not non_persistent)
            ]
            found = self._allowed[key] = self._isolated(namespace, suitable)
        return found

    def for_new(self, bundle: BundleName, *, non_persistent: bool) -> tuple[list[BrokerView], list[str]]:
        """Brokers for a bundle that nobody owns, and which preferences narrowed them down, for people."""
        pinned = pinned_broker(bundle)
        if pinned is not None:
            owner = self._view.brokers.get(pinned)
            return [owner] if owner is not None else [], ["only this broker serves the namespace"]
        namespace = str(bundle.namespace)
        allowed = self.allowed(namespace, persistent=not non_persistent, non_persistent=non_persistent)
        return self._preferred(bundle, [self._view.brokers[broker_id] for broker_id in allowed])

    def for_move(self, bundle: BundleName, source: BrokerView) -> list[BrokerView]:
        """Brokers that a bundle may be moved to; none is worse than its present one by anti-affinity."""
        namespace = str(bundle.namespace)
        kinds = source.load
        allowed = self.allowed(
            namespace, persistent=kinds.persistent_topics, non_persistent=kinds.non_persistent_topics
        )
        found = [self._view.brokers[broker_id] for broker_id in allowed if broker_id != source.broker_id]
        room = [broker for broker in found if broker.topics <= self._settings.broker_topics_max]
        if namespace in self._view.snapshot.anti_affinity_groups:
            kept = _keep_least([*room, source], self._anti_affinity(bundle))
            room = [broker for broker in kept if broker is not source]
        return room

    def may_move(self, bundle: BundleName, source: BrokerView, destination: BrokerView) -> bool:
        """Whether `for_move` has this destination; quicker, for whoever asks about many."""
        namespace = str(bundle.namespace)
        if namespace in self._view.snapshot.anti_affinity_groups:
            return any(broker is destination for broker in self.for_move(bundle, source))
        kinds = source.load
        allowed = self.allowed(
            namespace, persistent=kinds.persistent_topics, non_persistent=kinds.non_persistent_topics
        )
        return destination.broker_id in allowed and destination.topics <= self._settings.broker_topics_max

    def for_drain(self, bundle: BundleName, source: BrokerView) -> tuple[list[BrokerView], list[str]]:
        """Brokers for a bundle whose broker is about to stop."""
        kinds = source.load
        allowed = self.allowed(
            str(bundle.namespace), persistent=kinds.persistent_topics, non_persistent=kinds.non_persistent_topics
        )
        return self._preferred(bundle, [self._view.brokers[broker_id] for broker_id in allowed])

    def _isolated(self, namespace: str, brokers: list[BrokerView]) -> tuple[str, ...]:
        """By isolation policies: primaries, with secondaries when there are too few; without a policy, brokers that
        are no policy's primaries. A primary that is too full to count is still taken if nobody else is there."""
        policies = self._view.snapshot.isolation_policies
        policy = policy_of(policies, namespace)
        if policy is None:
            return tuple(broker.broker_id for broker in brokers if is_shared(policies, host_of(broker.broker_id)))
        primaries = [broker for broker in brokers if policy.is_primary(host_of(broker.broker_id))]
        threshold = policy.usage_threshold
        available = [broker for broker in primaries if threshold >= USAGE_THRESHOLD_MAX or broker.usage < threshold]
        chosen = list(available)
        if len(available) < policy.primaries_min:
            chosen += [
                broker
                for broker in brokers
                if policy.is_secondary(host_of(broker.broker_id)) and not policy.is_primary(host_of(broker.broker_id))
            ]
        return tuple(broker.broker_id for broker in chosen or primaries)

    def _preferred(self, bundle: BundleName, brokers: list[BrokerView]) -> tuple[list[BrokerView], list[str]]:
        namespace = str(bundle.namespace)
        settings = self._settings
        steps: list[tuple[str, Callable[[list[BrokerView]], list[BrokerView]]]] = [
            (f"at most {settings.broker_topics_max} topics", self._with_room)
        ]
        if namespace in self._view.snapshot.anti_affinity_groups:
            group = self._view.snapshot.anti_affinity_groups[namespace]
            scores = self._anti_affinity(bundle)
            steps.append((f"fewest namespaces of anti-affinity group {group}", lambda kept: _keep_least(kept, scores)))
        # `LeastLoad` sees to it by itself, among brokers that are about equally loaded.
        if settings.distribute_bundles_evenly and settings.placement_strategy is not PlacementStrategy.LEAST_LOAD:
            counts = {broker.broker_id: (broker.namespaces.get(namespace, 0),) for broker in brokers}
            steps.append((f"fewest bundles of {namespace}", lambda kept: _keep_least(kept, counts)))
        if settings.prefer_later_versions:
            steps.append(("latest version", _of_latest_version))
        notes: list[str] = []
        for note, step in steps:
            kept = step(brokers)
            if kept and len(kept) < len(brokers):
                brokers = kept
                notes.append(note)
        return brokers, notes

    def _with_room(self, brokers: list[BrokerView]) -> list[BrokerView]:
        return [broker for broker in brokers if broker.topics <= self._settings.broker_topics_max]

    def _anti_affinity(self, bundle: BundleName) -> dict[str, tuple[int, ...]]:
        """How many namespaces of the group each broker serves, the bundle itself left out; before it, if failure
        domains count, how many its domain does."""
        snapshot = self._view.snapshot
        groups = snapshot.anti_affinity_groups
        group = groups[str(bundle.namespace)].lower()
        counts: dict[str, int] = {}
        domains: dict[str, int] = {}
        for broker in self._view:
            count = 0
            for namespace, bundles in broker.namespaces.items():
                if groups.get(namespace, "").lower() == group:
                    own = namespace == str(bundle.namespace) and bundle in broker.bundles
                    count += bundles > own
            counts[broker.broker_id] = count
            domain = snapshot.failure_domains.get(broker.broker_id, _DEFAULT_DOMAIN)
            domains[domain] = domains.get(domain, 0) + count
        if not self._settings.failure_domains_enabled or not snapshot.failure_domains:
            return {broker_id: (count,) for broker_id, count in counts.items()}
        domain_of = snapshot.failure_domains
        return {
            broker_id: (domains[domain_of.get(broker_id, _DEFAULT_DOMAIN)], count)
            for broker_id, count in counts.items()
        }


def _keep_least(brokers: list[BrokerView], scores: Mapping[str, tuple[int, ...]]) -> list[BrokerView]:
    least = min((scores[broker.broker_id] for broker in brokers), default=None)
    return [broker for broker in brokers if scores[broker.broker_id] == least]


def _of_latest_version(brokers: list[BrokerView]) -> list[BrokerView]:
    """All of them if one's version cannot be read, as Pulsar does."""
    versions = {broker.broker_id: _version(broker.load.version) for broker in brokers}
    known = [version for version in versions.values() if version is not None]
    if len(known) < len(brokers):
        return brokers
    latest = max(known, default=None)
    return [broker for broker in brokers if versions[broker.broker_id] == latest]


def _version(text: str) -> tuple[int, int, int, bool, str] | None:
    """Semantic version, in which a pre-release comes before the release."""
    match = _VERSION.match(text)
    if match is None:
        return None
    return int(match[1]), int(match[2]), int(match[3]), match[4] is None, match[4] or ""
