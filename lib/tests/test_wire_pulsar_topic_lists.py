"""GET_TOPICS_OF_NAMESPACE read by hand against protobuf's reading, and its answer against protobuf's writing."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from magnetar.wire.pulsar import messages
from magnetar.wire.pulsar.errors import BadCommand
from magnetar.wire.pulsar.generated import pulsar_api_pb2 as pb
from magnetar.wire.pulsar.topic_lists import (
    TYPE_TOPICS_OF_NAMESPACE,
    TopicListRequest,
    encode_topics,
    read_topic_list_request,
    topic_list_response,
)

U64 = st.one_of(st.integers(0, 300), st.integers(0, 2**64 - 1))
TEXT = st.text(max_size=300)
MODES = list(pb.CommandGetTopicsOfNamespace.Mode.values())


def command_of(
    request_id: int, namespace: str, mode: int | None, pattern: str | None, topics_hash: str | None
) -> pb.CommandGetTopicsOfNamespace:
    command = pb.CommandGetTopicsOfNamespace(request_id=request_id, namespace=namespace)
    if mode is not None:
        command.mode = mode  # type: ignore[assignment]  # At run time an enum is a number.
    if pattern is not None:
        command.topics_pattern = pattern
    if topics_hash is not None:
        command.topics_hash = topics_hash
    return command


def frame_of(command: pb.CommandGetTopicsOfNamespace) -> bytes:
    kind = pb.BaseCommand.GET_TOPICS_OF_NAMESPACE
    return messages.encode_command(pb.BaseCommand(type=kind, getTopicsOfNamespace=command))


def read(frame: bytes) -> TopicListRequest | None:
    """As from the middle of a buffer."""
    return read_topic_list_request(b"before" + frame[4:] + b"after", 6, len(frame) + 2)


def seen(request: TopicListRequest) -> tuple[object, ...]:
    return request.request_id, request.namespace, request.mode, request.pattern, request.topics_hash


def test_the_type_is_that_of_the_protocol() -> None:
    assert TYPE_TOPICS_OF_NAMESPACE == pb.BaseCommand.GET_TOPICS_OF_NAMESPACE


@given(U64, TEXT, st.sampled_from(MODES) | st.none(), TEXT | st.none(), TEXT | st.none())
def test_requests(
    request_id: int, namespace: str, mode: int | None, pattern: str | None, topics_hash: str | None
) -> None:
    command = command_of(request_id, namespace, mode, pattern, topics_hash)
    request = read(frame_of(command))
    assert request is not None
    assert seen(request) == (request_id, namespace, mode or 0, pattern, topics_hash)
    assert seen(request) == seen(TopicListRequest.of_command(command))


def test_properties_are_left_to_messages() -> None:
    command = command_of(1, "public/default", None, None, None)
    command.properties.add(key="a", value="b")
    assert read(frame_of(command)) is None


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\x12\x01n",  # No request id.
        b"\x08\x01",  # No namespace.
        b"\x08\x01\x12\x01\xff",  # Not UTF-8.
        b"\x08\x01\x12\x09n",  # A text over the end.
        b"\x12\x01n\x08\x80",  # A number without an end.
        b"\x08\x01\x12\x01n\x18\x03",  # A mode from the future.
        b"\x08\x01\x12\x01n\xf8\x07\x05",  # A field from the future.
        b"\x12\x01n\x08",
    ],
)
def test_what_is_odd_is_left_to_messages(body: bytes) -> None:
    command = b"\x08\x20\x82\x02" + bytes([len(body)]) + body
    assert read(bytes(4) + len(command).to_bytes(4, "big") + command) is None


@given(st.data())
def test_damaged_frames_are_read_as_protobuf_reads_them_or_not_at_all(data: st.DataObject) -> None:
    frame = bytearray(frame_of(command_of(data.draw(U64), "public/default", 2, "a.*", "hash")))
    for _ in range(data.draw(st.integers(1, 3))):
        frame[data.draw(st.integers(10, len(frame) - 1))] = data.draw(st.integers(0, 255))
    found = read(bytes(frame))
    if found is not None:
        command = messages.decode_command(bytes(frame), 4, len(frame))
        assert seen(found) == seen(TopicListRequest.of_command(command.getTopicsOfNamespace))


@given(st.integers(0, 60), st.binary(max_size=60))
def test_any_bytes_are_borne(cut: int, noise: bytes) -> None:
    damaged = frame_of(command_of(1, "public/default", 1, "a.*", None))[:cut] + noise
    for buffer in (damaged, damaged[:10]):
        end = len(buffer)
        if end < 8 or read_topic_list_request(buffer, 4, end) is None:
            continue
        try:
            messages.decode_command(buffer, 4, end)
        except BadCommand as error:
            raise AssertionError("read by hand, refused by protobuf") from error


@given(U64, st.lists(st.text(max_size=300), max_size=20), st.text(max_size=20), st.booleans(), st.booleans())
def test_the_answer_is_the_one_that_protobuf_writes(
    request_id: int, names: list[str], topics_hash: str, filtered: bool, changed: bool
) -> None:
    parts = topic_list_response(request_id, encode_topics(names), topics_hash, filtered=filtered, changed=changed)
    body = pb.CommandGetTopicsOfNamespaceResponse(
        request_id=request_id, topics=names, topics_hash=topics_hash, filtered=filtered, changed=changed
    )
    assert b"".join(parts) == messages.frame_of(body)


def test_the_bytes_of_an_answer() -> None:
    parts = topic_list_response(7, encode_topics(["a", "b"]), "h", filtered=True, changed=True)
    assert b"".join(parts).hex() == "000000180000001408218a020f080712016112016218012201682801"
    parts = topic_list_response(7, b"", "h", filtered=True, changed=False)
    assert b"".join(parts).hex() == "000000120000000e08218a0209080718012201682800"
