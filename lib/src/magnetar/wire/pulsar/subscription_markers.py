"""The markers that clusters exchange about replicated subscriptions, as entries and back. Pure.

A marker is an ordinary entry of the topic that consumers never see. Facts: geo-replication section 6; Pulsar `Markers`,
`PulsarMarkers.proto`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from google.protobuf.message import DecodeError, Message
from magnetar.core.ids import Position, signed64, unsigned64
from magnetar.core.limits import KIB
from magnetar.wire.pulsar.batch import build_message
from magnetar.wire.pulsar.enums import SNAPSHOT_MARKER
from magnetar.wire.pulsar.errors import BadMetadata
from magnetar.wire.pulsar.generated.pulsar_api_pb2 import MessageMetadata
from magnetar.wire.pulsar.generated.replicated_subscriptions_pb2 import (
    ClusterMessageId,
    EntriesOfCluster,
    EntryStretch,
    MarkersMessageIdData,
    ReplicatedSubscriptionsSnapshot,
    ReplicatedSubscriptionsSnapshotRequest,
    ReplicatedSubscriptionsSnapshotResponse,
    ReplicatedSubscriptionsUpdate,
)

MARKER_PRODUCER: Final = "pulsar.marker"

SNAPSHOT_REQUEST_MARKER: Final = 10
SNAPSHOT_RESPONSE_MARKER: Final = 11
UPDATE_MARKER: Final = 13

Stretch: TypeAlias = tuple[int, int, int]

MARKER_BYTES_MAX: Final = 256 * KIB
"""What one marker may say, which is read in one turn of the event loop: some 20 ms. None of ours has half of it. Any
producer may write one, and millions of empty fields fit into an entry."""

STRETCHES_MAX: Final = 10_000
"""Of one marker: some 200 KB, and more than any of ours has."""

CLUSTERS_MAX: Final = 1_000
"""Clusters that one marker may name: far more than replicate to each other. A marker comes from another cluster."""


@dataclass(frozen=True, slots=True)
class SnapshotRequest:
    """`source_cluster` asks all others where they stand."""

    snapshot_id: str
    source_cluster: str


@dataclass(frozen=True, slots=True)
class SnapshotResponse:
    """`cluster` stands at `position` of its own topic."""

    snapshot_id: str
    cluster: str
    position: Position


@dataclass(frozen=True, slots=True)
class ClusterSnapshot:
    """Whoever has read the local topic up to `position` has read what stands up to `clusters` elsewhere."""

    snapshot_id: str
    position: Position
    clusters: Mapping[str, Position]


@dataclass(frozen=True, slots=True)
class SubscriptionUpdate:
    """A subscription has acknowledged everything up to these positions, each of the cluster's own topic.

    `acknowledged` are single entries beyond, by the cluster that stored them first, and where: stretches of one ledger
    each, ascending, as (ledger, first entry, last entry). Apache's brokers neither write nor read it."""

    subscription: str
    clusters: Mapping[str, Position]
    acknowledged: Mapping[str, Sequence[Stretch]] = field(default_factory=dict)


SubscriptionMarker: TypeAlias = SnapshotRequest | SnapshotResponse | ClusterSnapshot | SubscriptionUpdate


def snapshot_request(snapshot_id: str, local_cluster: str, publish_time_ms: int) -> bytes:
    """The entry by which this cluster asks all others where they stand."""
    request = ReplicatedSubscriptionsSnapshotRequest(snapshot_id=snapshot_id, source_cluster=local_cluster)
    return _marker(SNAPSHOT_REQUEST_MARKER, request.SerializeToString(), publish_time_ms)


def snapshot_response(request: SnapshotRequest, local_cluster: str, position: Position, publish_time_ms: int) -> bytes:
    """The entry that answers, for the cluster that asked alone: this cluster's topic ends at `position`."""
    response = ReplicatedSubscriptionsSnapshotResponse(
        snapshot_id=request.snapshot_id, cluster=_of_cluster(local_cluster, position)
    )
    payload = response.SerializeToString()
    return _marker(SNAPSHOT_RESPONSE_MARKER, payload, publish_time_ms, only_for=request.source_cluster)


def snapshot_entry(snapshot: ClusterSnapshot, local_cluster: str, publish_time_ms: int) -> bytes:
    """The entry that keeps a snapshot in the local topic; it is never replicated."""
    payload = ReplicatedSubscriptionsSnapshot(
        snapshot_id=snapshot.snapshot_id,
        local_message_id=_message_id(snapshot.position),
        clusters=[_of_cluster(*each) for each in sorted(snapshot.clusters.items())],
    ).SerializeToString()
    return _marker(SNAPSHOT_MARKER, payload, publish_time_ms, only_for=local_cluster)


def subscription_update(update: SubscriptionUpdate, publish_time_ms: int) -> bytes:
    """The entry by which all others hear how far a subscription is."""
    payload = ReplicatedSubscriptionsUpdate(
        subscription_name=update.subscription,
        clusters=[_of_cluster(*each) for each in sorted(update.clusters.items())],
        acknowledged=[_entries(*each) for each in sorted(update.acknowledged.items())],
    ).SerializeToString()
    return _marker(UPDATE_MARKER, payload, publish_time_ms)


def read_marker(marker_type: int, payload: bytes) -> SubscriptionMarker | None:
    """What a marker of this type says; None when it is of another kind. Raises `BadMetadata`."""
    if len(payload) > MARKER_BYTES_MAX:
        raise BadMetadata(f"a marker of {len(payload)} bytes, more than {MARKER_BYTES_MAX}")
    try:
        match marker_type:
            case 10:
                request = ReplicatedSubscriptionsSnapshotRequest.FromString(payload)
                _check(request, "source_cluster")
                return SnapshotRequest(request.snapshot_id, request.source_cluster)
            case 11:
                response = ReplicatedSubscriptionsSnapshotResponse.FromString(payload)
                _check(response, "cluster")
                answered = response.cluster
                return SnapshotResponse(response.snapshot_id, answered.cluster, _position(answered.message_id))
            case 12:
                snapshot = ReplicatedSubscriptionsSnapshot.FromString(payload)
                _check(snapshot, "local_message_id")
                clusters = _positions(snapshot.clusters)
                return ClusterSnapshot(snapshot.snapshot_id, _position(snapshot.local_message_id), clusters)
            case 13:
                update = ReplicatedSubscriptionsUpdate.FromString(payload)
                _check(update, "subscription_name")
                acknowledged = _stretches(update.acknowledged)
                return SubscriptionUpdate(update.subscription_name, _positions(update.clusters), acknowledged)
            case _:
                return None
    except DecodeError as error:
        raise BadMetadata(f"a marker of type {marker_type} that cannot be read: {error}") from None


def _check(message: Message, field: str) -> None:
    """Parsing looks at neither what is required nor what a marker is of no use without."""
    if not message.IsInitialized() or not message.HasField(field):
        raise BadMetadata(f"a {message.DESCRIPTOR.name} that lacks what it must have, such as {field}")


def _marker(marker_type: int, payload: bytes, publish_time_ms: int, *, only_for: str = "") -> bytes:
    metadata = MessageMetadata(
        producer_name=MARKER_PRODUCER, sequence_id=0, publish_time=publish_time_ms, marker_type=marker_type
    )
    if only_for:
        metadata.replicate_to.append(only_for)
    return build_message(metadata, payload)


def _of_cluster(cluster: str, position: Position) -> ClusterMessageId:
    return ClusterMessageId(cluster=cluster, message_id=_message_id(position))


def _message_id(position: Position) -> MarkersMessageIdData:
    return MarkersMessageIdData(ledger_id=unsigned64(position[0]), entry_id=unsigned64(position[1]))


def _position(message_id: MarkersMessageIdData) -> Position:
    return signed64(message_id.ledger_id), signed64(message_id.entry_id)


def _positions(clusters: Sequence[ClusterMessageId]) -> dict[str, Position]:
    if len(clusters) > CLUSTERS_MAX:
        raise BadMetadata(f"a marker that names {len(clusters)} clusters, more than {CLUSTERS_MAX}")
    return {each.cluster: _position(each.message_id) for each in clusters}


def _entries(cluster: str, stretches: Sequence[Stretch]) -> EntriesOfCluster:
    return EntriesOfCluster(
        cluster=cluster,
        stretches=[
            EntryStretch(ledger_id=ledger_id, first_entry_id=first, last_entry_id=last)
            for ledger_id, first, last in stretches
        ],
    )


def _stretches(clusters: Sequence[EntriesOfCluster]) -> dict[str, list[Stretch]]:
    count = sum([len(each.stretches) for each in clusters[:CLUSTERS_MAX]])
    if len(clusters) > CLUSTERS_MAX or count > STRETCHES_MAX:
        raise BadMetadata(f"a marker that names {count} stretches of {len(clusters)} clusters, which are too many")
    return {
        each.cluster: sorted((one.ledger_id, one.first_entry_id, one.last_entry_id) for one in each.stretches)
        for each in clusters
    }
