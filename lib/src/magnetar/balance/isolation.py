"""Namespace isolation policies: which brokers a namespace may be served by (Pulsar `NamespaceIsolationPolicies`)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from magnetar.core.expressions import Expression, ExpressionRefused, compile_expression

USAGE_THRESHOLD_MAX: Final = 100
"""At this `usage_threshold` a primary broker counts as available however loaded it is (Pulsar `MinAvailablePolicy`)."""

PATTERNS_KEPT_MAX: Final = 1_000
"""Expressions kept compiled: a few for each policy of a cluster."""

_QUOTED: Final = re.compile(r"\\Q.*?(?:\\E|\Z)|\\.", re.DOTALL)
"""What stands for its own text, or for a class of characters."""
_SETS: Final = re.compile(r"\[\^?\]?([^\]]*)")
_JAVA_SET: Final = re.compile(r"\[|&&")


@dataclass(frozen=True, slots=True, kw_only=True)
class IsolationPolicy:
    """One policy of `/admin/clusters/<cluster>/namespaceIsolationPolicies`; all names are regular expressions
    (`magnetar.core.expressions`). One that is refused there stands for its own text."""

    name: str
    namespaces: tuple[str, ...]
    """The namespaces that the policy governs: expressions that match whole `tenant/namespace` names."""
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


def refusal(pattern: str) -> str | None:
    """Why an expression is not matched, and so stands for its own text; None when it is."""
    if _has_java_set(pattern):
        return (
            "a set holds a bracket or &&, by which Java joins and cuts sets, and RE2 does not: write \\[ for a bracket"
        )
    try:
        compile_expression(pattern)
    except ExpressionRefused as refused:
        return str(refused)
    return None


def _matches(patterns: tuple[str, ...], text: str) -> bool:
    return any(_compiled(pattern).fullmatch(text) is not None for pattern in patterns)


@lru_cache(maxsize=PATTERNS_KEPT_MAX)
def _compiled(pattern: str) -> Expression:
    """An expression that is refused stands for its own text, so that a policy never matches too much."""
    return compile_expression(pattern) if refusal(pattern) is None else re.compile(re.escape(pattern))


def _has_java_set(pattern: str) -> bool:
    """Whether it has sets in sets, which RE2 would take for something else without a word."""
    return any(_JAVA_SET.search(members) for members in _SETS.findall(_QUOTED.sub("x", pattern)))
