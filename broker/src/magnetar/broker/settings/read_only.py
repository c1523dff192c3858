"""Settings of brokers that only read (docs/read-only-brokers.md). Apache has no such brokers, and so no such names."""

from __future__ import annotations

from dataclasses import dataclass

from magnetar.core.setting import setting

INTERVAL_MS_MAX = 60_000
"""A minute: what is acknowledged and not stored comes again after a crash."""

LAG_MS_MAX = 86_400_000
"""A day."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOnlySettings:
    """How a broker reads what other brokers write."""

    enabled: bool = setting("readOnlyBrokerEnabled", False, ours=True)
    """Whether this broker serves consumers only, and writes nothing but their positions."""
    position_interval_ms: int = setting(
        "readOnlyBrokerPositionIntervalMillis", 1_000, ours=True, low=10, high=INTERVAL_MS_MAX
    )
    """How often a subscription's position is stored, unless a consumer asks for a receipt or leaves."""
    tail_interval_ms_min: int = setting("readOnlyBrokerTailIntervalMillis", 5, ours=True, low=1, high=INTERVAL_MS_MAX)
    """How soon a topic in which something was just published is looked at again."""
    tail_interval_ms_max: int = setting(
        "readOnlyBrokerTailIntervalMaxMillis", 50, ours=True, low=1, high=INTERVAL_MS_MAX
    )
    """How often a silent topic is looked at, at least, while the broker has up to two hundred topics. Where the owner
    tells of its end, looks are twenty times as rare."""
    lag_ms_max: int = setting("readOnlyBrokerLagMaxMillis", 10_000, ours=True, low=100, high=LAG_MS_MAX)
    """A broker that is further behind gets no more clients while there are others."""
