"""Namespace isolation policies: which brokers a namespace may be served by (Pulsar `NamespaceIsolationPolicies`)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

USAGE_THRESHOLD_MAX: Final = 100
"""At this `usage_threshold` a primary broker counts as available however loaded it is (Pulsar `MinAvailablePolicy`)."""

PATTERNS_KEPT_MAX: Final = 1_000
"""Expressions kept compiled: a few for each policy of a cluster."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IsolationPolicy:
    """One policy of `/admin/clusters/<cluster>/namespaceIsolationPolicies`; all names are regular expressions."""

    name: str
    namespaces: tuple[str, ...]
    """Match whole `tenant/namespace` names."""
    primary: tuple[str, ...]
    """Match whole host names of brokers. These brokers serve no namespace that has no policy."""
    secondary: tuple[str, ...] = ()
    primaries_min: int = 0
    """`min_limit` of the `min_available` failover policy: with fewer primaries, secondaries are taken as well."""
    usage_threshold: int = USAGE_THRESHOLD_MAX
    """`usage_threshold` in percent: a primary as full as this does not count as available."""

    def governs(self, namespace: str) -> bool:
        """Whether it is about this namespace."""
        return _matches(self.namespaces, namespace)

    def is_primary(self, host: str) -> bool:
        """Whether the broker at this host is one of the primaries."""
        return _matches(self.primary, host)

    def is_secondary(self, host: str) -> bool:
        """Whether the broker at this host may help out."""
        return _matches(self.secondary, host)


def policy_of(policies: Sequence[IsolationPolicy], namespace: str) -> IsolationPolicy | None:
    """The first policy about a namespace; there should be one at most."""
    return next((policy for policy in policies if policy.governs(namespace)), None)


def is_shared(policies: Iterable[IsolationPolicy], host: str) -> bool:
    """Whether a broker serves namespaces that have no policy: nobody's primary does."""
    return not any(policy.is_primary(host) for policy in policies)


def host_of(broker_id: str) -> str:
    """The host in a broker's id, which is `host:port`."""
    return broker_id.rpartition(":")[0] or broker_id


def _matches(patterns: tuple[str, ...], text: str) -> bool:
    return any(_compiled(pattern).fullmatch(text) is not None for pattern in patterns)


@lru_cache(maxsize=PATTERNS_KEPT_MAX)
def _compiled(pattern: str) -> re.Pattern[str]:
    """An expression that cannot be read stands for its own text, so that a policy never matches too much."""
    try:
        return re.compile(pattern)
    except re.error:
        return re.compile(re.escape(pattern))
