"""LOOKUP and PARTITIONED_METADATA read by hand against protobuf's reading, and the prepared answer."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from magnetar.wire.pulsar import messages, requests
from magnetar.wire.pulsar.errors import BadCommand
from magnetar.wire.pulsar.generated import pulsar_api_pb2 as pb
from magnetar.wire.pulsar.topic_requests import (
    TYPE_LOOKUP,
    TYPE_PARTITIONED_METADATA,
    ConnectEncoder,
    TopicRequest,
    read_topic_request,
)

LOOKUP, PARTITIONS = pb.BaseCommand.LOOKUP, pb.BaseCommand.PARTITIONED_METADATA
U64 = st.one_of(st.integers(0, 300), st.integers(0, 2**64 - 1))
KIND = st.sampled_from([TYPE_LOOKUP, TYPE_PARTITIONED_METADATA])
TOPIC = "persistent://public/default/t"


def read(frame: bytes, kind: int) -> TopicRequest | None:
    """As from the middle of a buffer."""
    return read_topic_request(b"before" + frame[4:] + b"after", 6, len(frame) + 2, kind)


def frame_of(kind: pb.BaseCommand.Type, fields: dict[str, Any]) -> bytes:
    body = "lookupTopic" if kind == LOOKUP else "partitionMetadata"
    return messages.encode_command(pb.BaseCommand(type=kind, **{body: fields}))


def seen(request: TopicRequest | None) -> tuple[object, ...] | None:
    if request is None:
        return None
    return request.topic, request.request_id, request.authoritative, request.listener_name, request.create


@given(st.text(max_size=300), U64, st.booleans() | st.none(), st.text(max_size=20) | st.none())
def test_lookups(topic: str, request_id: int, authoritative: bool | None, listener: str | None) -> None:
    fields = {
        "topic": topic,
        "request_id": request_id,
        "authoritative": authoritative,
        "advertised_listener_name": listener,
    }
    frame = frame_of(LOOKUP, {key: value for key, value in fields.items() if value is not None})
    assert seen(read(frame, TYPE_LOOKUP)) == (topic, request_id, bool(authoritative), listener or "", True)


@given(st.text(max_size=300), U64, st.booleans() | st.none())
def test_partitions(topic: str, request_id: int, create: bool | None) -> None:
    fields = {"topic": topic, "request_id": request_id, "metadata_auto_creation_enabled": create}
    frame = frame_of(PARTITIONS, {key: value for key, value in fields.items() if value is not None})
    assert seen(read(frame, TYPE_PARTITIONED_METADATA)) == (topic, request_id, False, "", create is not False)


def test_our_own_client_is_read() -> None:
    assert seen(read(requests.lookup(7, TOPIC), TYPE_LOOKUP)) == (TOPIC, 7, False, "", True)


@pytest.mark.parametrize("kind", [LOOKUP, PARTITIONS])
@pytest.mark.parametrize(
    "fields", [{"original_principal": "p"}, {"original_auth_data": "d"}, {"original_auth_method": "token"}]
)
def test_who_speaks_for_another_is_left_to_messages(kind: pb.BaseCommand.Type, fields: dict[str, str]) -> None:
    assert read(frame_of(kind, {"topic": TOPIC, "request_id": 1, **fields}), kind) is None


def test_properties_are_left_to_messages() -> None:
    properties = [pb.KeyValue(key="a", value="b")]
    assert read(frame_of(LOOKUP, {"topic": TOPIC, "request_id": 1, "properties": properties}), TYPE_LOOKUP) is None


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\x0a\x01t",  # No request id.
        b"\x10\x01",  # No topic.
        b"\x0a\x01\xff\x10\x01",  # Not UTF-8.
        b"\x0a\x09t\x10\x01",  # A text over the end.
        b"\x0a\x01t\x10\x80",  # A number without an end.
        b"\x0a\x01t\x10\x01\xf8\x07\x05",  # A field from the future.
        b"\x0a\x01t\x10",
    ],
)
def test_what_is_odd_is_left_to_messages(body: bytes) -> None:
    command = b"\x08\x17\xba\x01" + bytes([len(body)]) + body
    assert read(bytes(4) + len(command).to_bytes(4, "big") + command, TYPE_LOOKUP) is None


@given(KIND, st.data())
def test_damaged_frames_are_read_as_protobuf_reads_them_or_not_at_all(kind: int, data: st.DataObject) -> None:
    fields = {"topic": TOPIC, "request_id": data.draw(U64)}
    frame = bytearray(frame_of(LOOKUP if kind == TYPE_LOOKUP else PARTITIONS, fields))
    for _ in range(data.draw(st.integers(1, 3))):
        frame[data.draw(st.integers(10, len(frame) - 1))] = data.draw(st.integers(0, 255))
    found = read(bytes(frame), kind)
    if found is None:
        return
    command = messages.decode_command(bytes(frame), 4, len(frame))
    if kind == TYPE_LOOKUP:
        lookup = command.lookupTopic
        assert (found.topic, found.request_id) == (lookup.topic, lookup.request_id)
        assert (found.authoritative, found.listener_name) == (lookup.authoritative, lookup.advertised_listener_name)
    else:
        partitions = command.partitionMetadata
        assert (found.topic, found.request_id) == (partitions.topic, partitions.request_id)
        assert found.create == partitions.metadata_auto_creation_enabled


@given(KIND, st.integers(0, 60), st.binary(max_size=60))
def test_any_bytes_are_borne(kind: int, cut: int, noise: bytes) -> None:
    frame = frame_of(LOOKUP if kind == TYPE_LOOKUP else PARTITIONS, {"topic": TOPIC, "request_id": 1})
    damaged = frame[:cut] + noise
    for buffer in (damaged, damaged[:10]):
        end = len(buffer)
        if end < 8 or read_topic_request(buffer, 4, end, kind) is None:
            continue
        try:
            messages.decode_command(buffer, 4, end)
        except BadCommand as error:
            raise AssertionError("read by hand, refused by protobuf") from error


@given(st.lists(U64, min_size=1, max_size=5), st.text(max_size=200), st.text(max_size=200))
def test_the_prepared_answer_is_the_encoded_one(request_ids: list[int], url: str, url_tls: str) -> None:
    encoder = ConnectEncoder(url, url_tls)
    for request_id in request_ids:
        assert encoder.encode(request_id) == messages.lookup_connect(request_id, url, url_tls)
