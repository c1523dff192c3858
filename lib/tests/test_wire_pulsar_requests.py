"""What a client sends, read back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from magnetar.wire.pulsar import messages, requests
from magnetar.wire.pulsar.command import decode_send
from magnetar.wire.pulsar.errors import ServerError
from magnetar.wire.pulsar.generated import pulsar_api_pb2 as pb


def decoded(frame: bytes) -> pb.BaseCommand:
    return messages.decode_command(frame, 4, len(frame))


@given(
    st.integers(0, 2**63), st.integers(-1, 2**62), st.binary(max_size=20), st.integers(1, 2**30), st.integers(0, 2**62)
)
def test_send(producer_id: int, sequence_id: int, message: bytes, count: int, highest: int) -> None:
    frame = requests.send(producer_id, sequence_id, message, num_messages=count, highest_sequence_id=highest)
    assert int.from_bytes(frame[:4], "big") == len(frame) - 4
    command = decoded(frame).send
    assert (command.producer_id, command.sequence_id) == (producer_id, sequence_id & 0xFFFF_FFFF_FFFF_FFFF)
    assert (command.num_messages, command.highest_sequence_id) == (count, highest)
    found = decode_send(frame, 4, len(frame))
    assert frame[found.payload_start : found.payload_end] == message


def test_connect() -> None:
    plain = decoded(requests.connect(client_version="v")).connect
    assert plain.protocol_version == 21
    assert plain.feature_flags.supports_auth_refresh
    assert not plain.HasField("auth_method_name")
    assert not plain.HasField("proxy_to_broker_url")
    behind = decoded(
        requests.connect(client_version="v", auth_method_name="token", auth_data=b"t", proxy_to_broker_url="b:1")
    ).connect
    assert (behind.auth_method_name, behind.auth_data, behind.proxy_to_broker_url) == ("token", b"t", "b:1")


def test_producer_and_subscribe_say_only_what_is_given() -> None:
    producer = decoded(requests.producer(1, 2, requests.ProducerRequest(topic="t"))).producer
    assert (producer.topic, producer.request_id, producer.producer_id) == ("t", 1, 2)
    assert not producer.HasField("producer_name")
    assert not producer.HasField("schema")
    assert not producer.HasField("topic_epoch")
    named = requests.ProducerRequest(
        topic="t",
        name="n",
        topic_epoch=3,
        metadata={"a": "b"},
        schema=pb.Schema(name="", schema_data=b"{}", type=pb.Schema.Avro),
    )
    producer = decoded(requests.producer(1, 2, named)).producer
    assert (producer.producer_name, producer.topic_epoch, producer.schema.type) == ("n", 3, pb.Schema.Avro)
    assert [(pair.key, pair.value) for pair in producer.metadata] == [("a", "b")]

    consumer = decoded(requests.subscribe(1, 2, requests.SubscribeRequest(topic="t", subscription="s"))).subscribe
    assert consumer.durable
    assert not consumer.HasField("start_message_id")
    assert consumer.initialPosition == pb.CommandSubscribe.Latest


ERRORS = [
    messages.error(5, ServerError.TOPIC_NOT_FOUND, "no"),
    messages.lookup_failed(5, ServerError.TOPIC_NOT_FOUND, "no"),
    messages.partitioned_metadata_failed(5, ServerError.TOPIC_NOT_FOUND, "no"),
    messages.get_schema_error(5, ServerError.TOPIC_NOT_FOUND, "no"),
    messages.get_or_create_schema_error(5, ServerError.TOPIC_NOT_FOUND, "no"),
    messages.ack_response(1, 5, ServerError.TOPIC_NOT_FOUND, "no"),
    messages.consumer_stats_error(5, ServerError.TOPIC_NOT_FOUND, "no"),
]
GOOD = [
    messages.success(5),
    messages.lookup_connect(5, "pulsar://b:1"),
    messages.partitioned_metadata(5, 0),
    messages.producer_success(5, "p"),
    messages.ack_response(1, 5),
    messages.get_or_create_schema_response(5, b"\0"),
]


@pytest.mark.parametrize("frame", ERRORS)
def test_errors_of_answers(frame: bytes) -> None:
    answer = requests.answer_of(decoded(frame))
    assert answer is not None
    request_id, body = answer
    error = requests.error_of(body)
    assert request_id == 5
    assert error is not None
    assert (error.code, error.message) == (ServerError.TOPIC_NOT_FOUND, "no")


@pytest.mark.parametrize("frame", GOOD)
def test_answers_without_an_error(frame: bytes) -> None:
    answer = requests.answer_of(decoded(frame))
    assert answer is not None
    assert answer[0] == 5
    assert requests.error_of(answer[1]) is None


def test_what_is_no_answer() -> None:
    assert requests.answer_of(decoded(messages.close_producer(1))) is None
    assert requests.error_from(999, "new").code is ServerError.UNKNOWN_ERROR
