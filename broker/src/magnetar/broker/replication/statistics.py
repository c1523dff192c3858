"""What the statistics of a topic tell of its replicators."""

from __future__ import annotations

from typing import Any

from magnetar.broker.replication.replicator import Replicator
from magnetar.broker.subscriptions.statistics import iso_time


def replicator_statistics(replicator: Replicator) -> dict[str, Any]:
    """Pulsar `ReplicatorStats`, with `state`, `reason` and `reasonDetail` of our own."""
    counters = replicator.counters
    messages, size_bytes, expired = counters.rates
    return {
        "msgRateIn": 0.0,
        "msgInCount": 0,
        "msgThroughputIn": 0.0,
        "bytesInCount": 0,
        "msgRateOut": messages,
        "msgOutCount": counters.messages_out,
        "msgThroughputOut": size_bytes,
        "bytesOutCount": counters.bytes_out,
        "msgRateExpired": expired,
        "msgExpiredCount": counters.expired,
        "replicationBacklog": replicator.backlog,
        "connected": replicator.connected,
        "replicationDelayInSeconds": int(replicator.delay_seconds()),
        **(_outbound(replicator) if replicator.connected else {}),
        "state": replicator.state.value,
        "reason": replicator.reason.value,
        "reasonDetail": replicator.detail,
        "watchdogRestarts": counters.watchdog_restarts,
    }


def _outbound(replicator: Replicator) -> dict[str, Any]:
    since = iso_time(replicator.connected_since_ms)
    return {"outboundConnection": replicator.address, "outboundConnectedSince": since}
