"""A stored message over HTTP: its payload as the body, its metadata as `X-Pulsar-…` headers.

Names and order: Apache's `PersistentTopicsBase.generateResponseWithEntry`. Clients refuse an answer whose headers are
too long; what would make them so is left out, and named in `X-Pulsar-left-out`.
"""

from __future__ import annotations

import base64
import json
from datetime import UTC, datetime
from typing import Any, Final

from aiohttp import web
from magnetar.broker.admin.web.responses import TOO_LARGE, AdminError
from magnetar.broker.topics.topic import PersistentTopic
from magnetar.core.ids import signed64
from magnetar.core.limits import MIB
from magnetar.managed.entry import Entry
from magnetar.wire.pulsar.batch import decompressed_payload
from magnetar.wire.pulsar.compression_type import Compression
from magnetar.wire.pulsar.errors import BadMetadata
from magnetar.wire.pulsar.metadata import broker_entry_metadata, full_metadata, metadata_bounds

PREFIX: Final = "X-Pulsar-"

HEADERS_BYTES_MAX: Final = 7_000
"""Of all of them, names included. Java's clients take 8 192 bytes of headers together, and there are others beside."""

PROPERTIES_MAX: Final = 2_000
"""More do not fit into the headers; they are not written out to find that."""

TOO_LONG: Final = "?" * HEADERS_BYTES_MAX
"""What stands in a header for a value that does not fit into it."""

HEADER_OVERHEAD_BYTES: Final = 4
"""A colon, a space and the end of the line."""

UNPACKED_BYTES_MAX: Final = 32 * MIB
"""Of a payload: unpacking it takes some milliseconds. Few kilobytes may unpack to any size."""

LEFT_OUT: Final = "left-out"
"""The header that names those which are not there."""

TIMES: Final = {"publish_time": "publish-time", "event_time": "event-time", "deliver_at_time": "deliver-at-time"}

TEXTS: Final = {
    "null_value": "null-value",
    "num_chunks_from_msg": "PROPERTY-TOTAL-CHUNKS",
    "chunk_id": "PROPERTY-CHUNK-ID",
    "encryption_algo": "encryption-algo",
    "producer_name": "producer-name",
    "sequence_id": "sequence-id",
    "highest_sequence_id": "highest-sequence-id",
    "replicated_from": "replicated-from",
    "partition_key": "partition-key",
    "partition_key_b64_encoded": "partition-key-b64-encoded",
    "marker_type": "marker-type",
    "txnid_least_bits": "txnid-least-bits",
    "txnid_most_bits": "txnid-most-bits",
    "uuid": "uuid",
    "uncompressed_size": "uncompressed-size",
}

BYTES: Final = {
    "schema_version": "Base64-schema-version-b64encoded",
    "encryption_param": "Base64-encryption-param",
    "ordering_key": "Base64-ordering-key",
}


def message_response(entry: Entry, topic: PersistentTopic) -> web.Response:
    """A message of this topic as Apache answers it; also one that consumers do not get, which it says."""
    metadata = full_metadata(entry.data)
    _, start = metadata_bounds(entry.data)
    # What is encrypted was compressed before: only who has the key can unpack it.
    payload = entry.data[start:] if metadata.encryption_keys else unpacked(entry.data)
    headers = {"Message-ID": f"{entry.ledger_id}:{entry.entry_id}", **broker_headers(entry.data)}
    properties = {pair.key: pair.value for pair in metadata.properties[:PROPERTIES_MAX]}
    if metadata.HasField("num_messages_in_batch"):
        headers["num-batch-message"] = str(metadata.num_messages_in_batch)
        headers["batch-size"] = str(len(entry.data) - start)
    all_there = len(metadata.properties) <= PROPERTIES_MAX
    headers["PROPERTY"] = json.dumps(properties, separators=(",", ":")) if all_there else TOO_LONG
    headers["Is-Encrypted"] = str(bool(metadata.encryption_keys)).lower()
    if topic.visibility is not None and metadata.HasField("txnid_most_bits") and metadata.HasField("txnid_least_bits"):
        aborted = topic.visibility.is_aborted((metadata.txnid_most_bits, metadata.txnid_least_bits))
        headers["txn-aborted"] = text_of(aborted)
    headers["txn-uncommitted"] = text_of(entry.position > topic.max_read_position)
    for field, header in TIMES.items():
        if metadata.HasField(field):
            headers[header] = short_time(getattr(metadata, field))
    for field, header in TEXTS.items():
        if metadata.HasField(field):
            headers[header] = text_of(getattr(metadata, field))
    for field, header in BYTES.items():
        if metadata.HasField(field):
            headers[header] = base64.b64encode(getattr(metadata, field)).decode()
    if metadata.encryption_keys:
        headers["Base64-encryption-keys"] = base64.b64encode(metadata.encryption_keys[0].SerializeToString()).decode()
    if metadata.compression:
        headers["compression"] = Compression(metadata.compression).name
    return web.Response(
        body=payload,
        headers=short_headers(headers),
        content_type="application/json",
    )


def unpacked(data: bytes) -> bytes:
    """The payload of an entry. Raises 413 for one that is too large unpacked, or broken."""
    try:
        return decompressed_payload(data, UNPACKED_BYTES_MAX)
    except BadMetadata as problem:
        raise AdminError(TOO_LARGE, f"The message cannot be unpacked: {problem}") from None


def short_headers(headers: dict[str, str]) -> dict[str, str]:
    """The headers as they are sent, without those that make them too long."""
    sent: dict[str, str] = {}
    left_out: list[str] = []
    size_bytes = 0
    for name, value in headers.items():
        # Each letter has a byte at least; the longest values are millions.
        text = header_text(value) if len(value) <= HEADERS_BYTES_MAX else TOO_LONG
        text_bytes = len(PREFIX) + len(name) + len(text.encode()) + HEADER_OVERHEAD_BYTES
        if size_bytes + text_bytes > HEADERS_BYTES_MAX:
            left_out.append(name)
        else:
            sent[PREFIX + name] = text
            size_bytes += text_bytes
    if left_out:
        sent[PREFIX + LEFT_OUT] = ",".join(left_out)
    return sent


def broker_headers(data: bytes) -> dict[str, str]:
    """What a broker noted on the entry, if brokers do that."""
    noted = broker_entry_metadata(data)
    headers: dict[str, str] = {}
    if noted is not None and noted.HasField("broker_timestamp"):
        headers["Broker-Entry-METADATA-timestamp"] = short_time(noted.broker_timestamp)
    if noted is not None and noted.HasField("index"):
        headers["Broker-Entry-METADATA-index"] = str(noted.index)
    return headers


def text_of(value: Any) -> str:
    """A field's value as Java prints it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def header_text(value: str) -> str:
    """Headers are lines of Latin-1: line ends would begin another header, and the rest cannot be written."""
    return "".join(character if " " <= character <= "\xff" else "?" for character in value)


def short_time(milliseconds: int) -> str:
    """A time in UTC as Java's `Instant` formats it: no zeros at the end of the fraction. Clients may send any 64 bits,
    which count as Java's `long`; a year that is none of the calendar's leaves the milliseconds as they are."""
    milliseconds = signed64(milliseconds)
    try:
        moment = datetime.fromtimestamp(milliseconds // 1000, UTC).isoformat()[: len("2000-01-01T00:00:00")]
    except (ValueError, OverflowError, OSError):
        return str(milliseconds)
    fraction = f"{milliseconds % 1000:03d}".rstrip("0")
    return f"{moment}.{fraction}Z" if fraction else f"{moment}Z"
