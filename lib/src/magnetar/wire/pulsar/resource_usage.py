"""What brokers tell each other of resource groups: the payload of a message in `resource-usage` (Pulsar:
`ResourceUsage.proto`, `ResourceUsageTopicTransportManager`)."""

from __future__ import annotations

from google.protobuf.message import DecodeError
from magnetar.core.errors import PeerError
from magnetar.wire.pulsar.generated.resource_usage_pb2 import ResourceUsageInfo


class BadResourceUsage(PeerError):
    """A message that is none of these."""


def encode(info: ResourceUsageInfo) -> bytes:
    """The payload of one message."""
    return info.SerializeToString(deterministic=True)


def decode(payload: bytes) -> ResourceUsageInfo:
    """What one message tells. `BadResourceUsage`."""
    try:
        info = ResourceUsageInfo.FromString(payload)
    except DecodeError as error:
        raise BadResourceUsage(f"a report of resource usage that cannot be read: {error}") from None
    if not info.IsInitialized():
        raise BadResourceUsage("a report of resource usage that lacks what it must have")
    return info
