"""A stored message over HTTP: its payload as the body, its metadata as `X-Pulsar-…` headers.

Names and order: Apache's `PersistentTopicsBase.generateResponseWithEntry`."""

from __future__ import annotations

import base64
import json
from datetime import UTC, datetime
from typing import Any, Final

from aiohttp import web
from magnetar.managed.entry import Entry
from magnetar.wire.pulsar.batch import decompressed_payload
from magnetar.wire.pulsar.compression import Compression
from magnetar.wire.pulsar.metadata import broker_entry_metadata, full_metadata, metadata_bounds

PREFIX: Final = "X-Pulsar-"

TIME_MS_MAX: Final = 253_402_300_799_999
"""The end of the year 9999, the last that has a date here."""

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


def message_response(entry: Entry) -> web.Response:
    """A message as Apache answers it."""
    metadata = full_metadata(entry.data)
    _, start = metadata_bounds(entry.data)
    # What is encrypted was compressed before: only who has the key can unpack it.
    payload = entry.data[start:] if metadata.encryption_keys else decompressed_payload(entry.data)
    headers = {"Message-ID": f"{entry.ledger_id}:{entry.entry_id}", **broker_headers(entry.data)}
    properties = {pair.key: pair.value for pair in metadata.properties}
    if metadata.HasField("num_messages_in_batch"):
        headers["num-batch-message"] = str(metadata.num_messages_in_batch)
        headers["batch-size"] = str(len(entry.data) - start)
    headers["PROPERTY"] = json.dumps(properties, separators=(",", ":"))
    headers["Is-Encrypted"] = str(bool(metadata.encryption_keys)).lower()
    headers["txn-uncommitted"] = "false"
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
        headers={PREFIX + name: header_text(value) for name, value in headers.items()},
        content_type="application/json",
    )


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
    """A time in UTC as Java's `Instant` formats it: no zeros at the end of the fraction."""
    if not 0 <= milliseconds <= TIME_MS_MAX:
        # Producers may claim any; better the number than no message.
        return str(milliseconds)
    moment = datetime.fromtimestamp(milliseconds // 1000, UTC).strftime("%Y-%m-%dT%H:%M:%S")
    fraction = f"{milliseconds % 1000:03d}".rstrip("0")
    return f"{moment}.{fraction}Z" if fraction else f"{moment}Z"
