"""What other clusters replicate to a topic, for its statistics. (Pulsar: `PersistentTopic.asyncGetStats`)"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from magnetar.broker.replicator_names import source_cluster

if TYPE_CHECKING:
    from magnetar.broker.topics.producer import Producer


NOT_REPLICATED: Final = {
    "msgRateIn": 0.0,
    "msgInCount": 0,
    "msgThroughputIn": 0.0,
    "bytesInCount": 0,
    "msgRateOut": 0.0,
    "msgOutCount": 0,
    "msgThroughputOut": 0.0,
    "bytesOutCount": 0,
    "msgRateExpired": 0.0,
    "msgExpiredCount": 0,
    "replicationBacklog": 0,
    "connected": False,
    "replicationDelayInSeconds": 0,
}
"""What a topic's statistics say of a cluster that it is not replicated to (Pulsar `ReplicatorStats`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InboundFigures:
    """What one cluster replicates to one topic. Rates are per second."""

    message_rate: float
    byte_rate: float
    message_count: int
    """Since its replicator connected."""
    size_bytes: int
    address: str
    connected_since_ms: int


def inbound_figures(producers: Iterable[Producer]) -> dict[str, InboundFigures]:
    """By source cluster: the figures of its replicator, which is one of a topic's producers."""
    return {
        source: InboundFigures(
            message_rate=producer.message_rate_in,
            byte_rate=producer.byte_rate_in,
            message_count=producer.messages_in,
            size_bytes=producer.bytes_in,
            address=producer.identity.address,
            connected_since_ms=producer.connected_since_ms,
        )
        for producer in producers
        if (source := source_cluster(producer.name)) is not None
    }
