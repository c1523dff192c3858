"""What the statistics of a topic tell of its replicators."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from magnetar.broker.subscriptions.statistics import iso_time

if TYPE_CHECKING:
    from magnetar.broker.replication.remote_link import RemoteLink


def replicator_statistics(replicator: RemoteLink) -> dict[str, Any]:
    """Pulsar `ReplicatorStats`, or `NonPersistentReplicatorStats`, with `state`, `reason` and `reasonDetail` of our
    own."""
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
        **({} if replicator.keeps else {"msgDropRate": counters.drop_rate, "msgDropCount": counters.dropped}),
        "state": replicator.state.value,
        "reason": replicator.reason.value,
        "reasonDetail": replicator.detail,
        "watchdogRestarts": counters.watchdog_restarts,
    }


def _outbound(replicator: RemoteLink) -> dict[str, Any]:
    since = iso_time(replicator.connected_since_ms)
    return {"outboundConnection": replicator.address, "outboundConnectedSince": since}
