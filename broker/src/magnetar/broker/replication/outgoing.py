"""What of a stored entry goes to another cluster, and in which form. Pure.

The metadata is walked once, by hand: fields that stay are copied as they are, the payload is never looked into.
Facts: Pulsar `GeoPersistentReplicator.replicateEntries`, `GeoReplicationProducerImpl`.

Hot: compiled by mypyc (see CONTRIBUTING).
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Mapping
from struct import Struct
from typing import Final

import google_crc32c
from magnetar.broker.replicator_names import SOURCE_POSITION_PROPERTY
from magnetar.broker.transactions.buffers.markers import ABORT_MARKER, COMMIT_MARKER
from magnetar.client.unanswered import RelayedEntry
from magnetar.core.ids import Position, signed64
from magnetar.managed.entry import Entry
from magnetar.wire.errors import BadProtobuf
from magnetar.wire.pulsar.errors import BadMetadata
from magnetar.wire.pulsar.metadata import ABSENT, CHECKSUM_MAGIC, metadata_bounds
from magnetar.wire.pulsar.varint import read_length, read_tag, read_varint, signed32, skip_value, varint

TOLD_BY_MARKERS: Final = (10, 11, 13)
"""The types of markers by which clusters ask for snapshots, answer, and tell of subscriptions
(`PulsarMarkers.proto`)."""

_HEAD: Final = Struct(">HI")
_U32: Final = Struct(">I")

_PROPERTY: Final = 0x22
_REPLICATED_FROM: Final = 0x2A
_REPLICATE_TO: Final = 0x3A
_SCHEMA_VERSION: Final = 0x82
_TXNID_LEAST: Final = 0xB0
_TXNID_MOST: Final = 0xB8

_SOURCE_KEY: Final = b"\x0a" + varint(len(SOURCE_POSITION_PROPERTY)) + SOURCE_POSITION_PROPERTY.encode()
_SCHEMA_TAG: Final = varint(_SCHEMA_VERSION)


class Skipped(enum.Enum):
    """Why an entry stays in this cluster."""

    UNREADABLE = "unreadable"
    TRANSACTION_MARKER = "transaction marker"
    ABORTED = "aborted"
    REPLICATED = "replicated"
    """It came from another cluster, which sends it to the others itself."""
    REMOTE_MARKER = "marker of the remote cluster"
    """The remote cluster asks or tells something about replicated subscriptions."""
    ADDRESSED = "addressed to others"
    EXPIRED = "expired"


class EntryLook:
    """What one walk over the metadata of an entry has found. Numbers that are absent are -1."""

    __slots__ = (
        "chunked",
        "data",
        "dropped",
        "end",
        "marker_type",
        "num_messages",
        "publish_time_ms",
        "replicate_to",
        "replicated",
        "schema_version",
        "sequence_id",
        "start",
        "txnid_least_bits",
        "txnid_most_bits",
    )

    def __init__(self, data: bytes, start: int, end: int) -> None:
        self.data = data
        self.start = start
        self.end = end
        self.dropped: list[int] = []
        """Where fields begin and end that are not sent, in pairs, ascending."""
        self.chunked = False
        self.marker_type: int = ABSENT
        self.num_messages: int = 1
        self.publish_time_ms: int = ABSENT
        self.replicated = 0, 0
        """Where the name of the cluster begins and ends that it comes from; the end is 0 for one of this cluster."""
        self.replicate_to: list[bytes] = []
        self.schema_version: bytes | None = None
        self.sequence_id: int = ABSENT
        self.txnid_least_bits: int = ABSENT
        self.txnid_most_bits: int = ABSENT


def look_at(data: bytes) -> EntryLook:
    """Walk the metadata of a stored entry. Raises `BadMetadata`."""
    start, end = metadata_bounds(data)
    look = EntryLook(data, start, end)
    at = start
    try:
        while at < end:
            field = at
            tag = data[at]
            if tag < 0x80:
                at += 1
            else:
                tag, at = read_tag(data, at, end)
            wire_type = tag & 7
            if wire_type == 0:
                value, at = read_varint(data, at, end)
                _take_number(look, tag, value, field, at)
            elif wire_type == 2:
                value_start, at = read_length(data, at, end)
                _take_bytes(look, tag, field, value_start, at)
            else:
                at = skip_value(data, at, end, tag)
    except BadProtobuf as error:
        raise BadMetadata(f"message metadata: {error}") from None
    if look.sequence_id == ABSENT or look.publish_time_ms == ABSENT:
        raise BadMetadata("message metadata without sequence id or publish time")
    return look


def _take_number(look: EntryLook, tag: int, value: int, start: int, end: int) -> None:
    if tag == 0x10:
        look.sequence_id = value
    elif tag == 0x18:
        look.publish_time_ms = value
    elif tag == 0x58:
        look.num_messages = max(1, signed32(value))
    elif tag == 0xA0:
        look.marker_type = signed32(value)
    elif tag == 0xE8:
        look.chunked = signed32(value) >= 0
    elif tag == _TXNID_LEAST:
        look.txnid_least_bits = value
        look.dropped += (start, end)
    elif tag == _TXNID_MOST:
        look.txnid_most_bits = value
        look.dropped += (start, end)


def _take_bytes(look: EntryLook, tag: int, field: int, start: int, end: int) -> None:
    if tag == _REPLICATED_FROM:
        look.replicated = start, end
    elif tag == _REPLICATE_TO:
        look.replicate_to.append(look.data[start:end])
    elif tag == _SCHEMA_VERSION:
        look.schema_version = look.data[start:end]
        look.dropped += (field, end)
    elif tag == _PROPERTY and look.data.startswith(_SOURCE_KEY, start, end):
        # Of a consumer that published again what it was sent. A receiver believes the first one.
        look.dropped += (field, end)


def reason_to_skip(
    look: EntryLook, remote: bytes, now_ms: int, ttl_seconds: int, aborted: Collection[tuple[int, int]]
) -> Skipped | None:
    """Why the entry is not sent to `remote`; None: it is sent. The order of tests is Apache's."""
    if look.marker_type in (COMMIT_MARKER, ABORT_MARKER):
        return Skipped.TRANSACTION_MARKER
    if look.txnid_most_bits >= 0 and (look.txnid_most_bits, look.txnid_least_bits) in aborted:
        return Skipped.ABORTED
    if look.replicated[1]:
        source_start, source_end = look.replicated
        told = look.marker_type in TOLD_BY_MARKERS and look.data[source_start:source_end] == remote
        return Skipped.REMOTE_MARKER if told else Skipped.REPLICATED
    if look.replicate_to and remote not in look.replicate_to:
        return Skipped.ADDRESSED
    if ttl_seconds > 0 and now_ms > look.publish_time_ms + ttl_seconds * 1000:
        return Skipped.EXPIRED
    return None


class SourceField:
    """Writes the property by which a receiver knows where an entry stands at its source."""

    __slots__ = ("_before_entry_id", "_ledger_id")

    def __init__(self) -> None:
        self._ledger_id: int = -1
        self._before_entry_id: bytes = b""

    def encode(self, position: Position) -> bytes:
        """Ready to be appended to metadata."""
        if position[0] != self._ledger_id:
            self._ledger_id = position[0]
            self._before_entry_id = b"%d:" % position[0]
        place = self._before_entry_id + b"%d" % position[1]
        size = len(place)  # At most 41 bytes: each length takes one.
        return b"\x22" + varint(len(_SOURCE_KEY) + 2 + size) + _SOURCE_KEY + b"\x12" + varint(size) + place


def rewritten(look: EntryLook, added: bytes, schema_version: bytes | None, payload: bytes) -> bytes:
    """The headers of the entry's message as it is sent, in front of `payload`, which stays as it is. `added` is what
    its metadata has more, encoded; `schema_version` is the remote's, None where there is none."""
    data = look.data
    dropped = look.dropped
    if not dropped and schema_version is None:
        return _headers(data[look.start : look.end] + added, payload)
    parts: list[bytes] = []
    at = look.start
    for index in range(0, len(dropped), 2):
        parts.append(data[at : dropped[index]])
        at = dropped[index + 1]
    parts.append(data[at : look.end])
    parts.append(added)
    if schema_version is not None:
        parts += (_SCHEMA_TAG, varint(len(schema_version)), schema_version)
    return _headers(b"".join(parts), payload)


def _headers(metadata: bytes, payload: bytes) -> bytes:
    sized: bytes = _U32.pack(len(metadata)) + metadata
    checksum: int = google_crc32c.extend(google_crc32c.value(sized), payload)
    magic: bytes = _HEAD.pack(CHECKSUM_MAGIC, checksum)
    return magic + sized


def origin_field(cluster: str) -> bytes:
    """The field `replicated_from`, ready to be appended to metadata."""
    name = cluster.encode()
    return b"\x2a" + varint(len(name)) + name


def _to_send(look: EntryLook, position: Position, headers: bytes, payload: bytes, *, shadowed: bool) -> RelayedEntry:
    return RelayedEntry(
        position,
        headers,
        payload,
        signed64(look.sequence_id),
        num_messages=look.num_messages,
        publish_time_ms=look.publish_time_ms,
        chunked=look.chunked,
        marker=look.marker_type >= 0,
        shadowed=shadowed,
    )


def stored_bytes(entries: list[Entry]) -> int:
    """Of all these entries."""
    size_bytes = 0
    for entry in entries:
        size_bytes += len(entry.data)
    return size_bytes


def sent_totals(sent: list[RelayedEntry]) -> tuple[int, int]:
    """Messages and bytes of all these entries."""
    messages = 0
    size_bytes = 0
    for entry in sent:
        messages += entry.num_messages
        size_bytes += entry.size_bytes
    return messages, size_bytes


class Decision:
    """Of stored entries: what goes elsewhere."""

    def decide(
        self,
        data: bytes,
        position: Position,
        now_ms: int,
        ttl_seconds: int,
        aborted: Collection[tuple[int, int]],
        schemas: Mapping[bytes, bytes],
    ) -> RelayedEntry | Skipped | bytes:
        """The entry to send, or why it is not sent, or the version of a schema that the remote cluster has to have
        first: `schemas` gives the remote's versions by the local ones."""
        raise NotImplementedError

    def decide_run(
        self,
        entries: list[Entry],
        index: int,
        now_ms: int,
        ttl_seconds: int,
        aborted: Collection[tuple[int, int]],
        schemas: Mapping[bytes, bytes],
        sent: list[RelayedEntry],
    ) -> tuple[int, Skipped | bytes | None]:
        """Add the entries from `index` on to `sent`, up to the first that is not simply sent: its index, and what
        `decide` says of it. None: all are sent."""
        while index < len(entries):
            entry = entries[index]
            found = self.decide(entry.data, entry.position, now_ms, ttl_seconds, aborted, schemas)
            if not isinstance(found, RelayedEntry):
                return index, found
            sent.append(found)
            index += 1
        return index, None


class Outgoing(Decision):
    """Decides for one remote cluster, entry by entry."""

    __slots__ = ("_origin", "_place", "_remote")

    def __init__(self, local: str, remote: str) -> None:
        self._origin = origin_field(local)
        self._place = SourceField()
        self._remote = remote.encode()

    def decide(
        self,
        data: bytes,
        position: Position,
        now_ms: int,
        ttl_seconds: int,
        aborted: Collection[tuple[int, int]],
        schemas: Mapping[bytes, bytes],
    ) -> RelayedEntry | Skipped | bytes:
        """The entry to send, or why it is not sent, or the version of a schema that the remote cluster has to have
        first: `schemas` gives the remote's versions by the local ones."""
        try:
            look = look_at(data)
        except BadMetadata:
            return Skipped.UNREADABLE
        reason = reason_to_skip(look, self._remote, now_ms, ttl_seconds, aborted)
        if reason is not None:
            return reason
        version = look.schema_version
        if version:
            remote_version = schemas.get(version)
            if remote_version is None:
                return version
            version = remote_version
        payload = data[look.end :]
        headers = rewritten(look, self._origin + self._place.encode(position), version or None, payload)
        return _to_send(look, position, headers, payload, shadowed=False)


class ShadowOutgoing(Decision):
    """Decides for one shadow topic, which is told of every entry that is not expired."""

    __slots__ = ("_origin", "_place")

    def __init__(self, local: str) -> None:
        self._origin = origin_field(local)
        self._place = SourceField()

    def decide(
        self,
        data: bytes,
        position: Position,
        now_ms: int,
        ttl_seconds: int,
        aborted: Collection[tuple[int, int]],
        schemas: Mapping[bytes, bytes],
    ) -> RelayedEntry | Skipped | bytes:
        """The entry to tell of, or why it is not told of. Its schema is the source's, which the shadow shares."""
        del aborted, schemas
        try:
            look = look_at(data)
        except BadMetadata:
            return Skipped.UNREADABLE
        if ttl_seconds > 0 and now_ms > look.publish_time_ms + ttl_seconds * 1000:
            return Skipped.EXPIRED
        # All of its metadata, where it stands, and no payload (Pulsar `ShadowReplicator`).
        metadata = data[look.start : look.end] + self._origin + self._place.encode(position)
        return _to_send(look, position, _headers(metadata, b""), b"", shadowed=True)


class UnstoredOutgoing:
    """Decides for one remote cluster what goes there of a topic that stores nothing. (Pulsar:
    `NonPersistentReplicator.sendMessage`)"""

    __slots__ = ("_origin", "_remote")

    def __init__(self, local: str, remote: str) -> None:
        self._origin = origin_field(local)
        self._remote = remote.encode()

    def decide(self, data: bytes, position: Position) -> RelayedEntry | Skipped:
        """The message to send, or why it is not sent. `position` tells it from others under way. Its version of a
        schema stays this cluster's, as at Apache's: to ask for the other one would take longer than it may wait."""
        try:
            look = look_at(data)
        except BadMetadata:
            return Skipped.UNREADABLE
        if look.replicated[1]:
            return Skipped.REPLICATED
        if look.replicate_to and self._remote not in look.replicate_to:
            return Skipped.ADDRESSED
        payload = data[look.end :]
        headers = rewritten(look, self._origin, look.schema_version, payload)
        return _to_send(look, position, headers, payload, shadowed=False)
