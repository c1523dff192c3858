import contextlib
import struct
import sys
from typing import Any

import pytest
from google.protobuf.descriptor import FieldDescriptor
from hypothesis import given
from hypothesis import strategies as st
from magnetar.wire.pulsar import command, messages, send_receipts
from magnetar.wire.pulsar.errors import BadCommand, PulsarError, ServerError
from magnetar.wire.pulsar.generated import pulsar_api_pb2 as pb

VERSION_ONE = bytes(7) + b"\x01"
SCHEMA = pb.Schema(name="n", schema_data=b"{}", type=pb.Schema.Json, properties=[{"key": "k", "value": "v"}])


def parsed(frame: bytes) -> pb.BaseCommand:
    total, size = struct.unpack_from(">II", frame)
    assert (total, size) == (len(frame) - 4, len(frame) - 8)
    return messages.decode_command(frame, 4, len(frame))


# Frames that Pulsar 4.0.8's Commands writes for the same arguments.
SAME_FRAMES = {
    "success": (messages.success(7), "0000000a00000006080d6a020807"),
    "error": (
        messages.error(7, ServerError.TOPIC_NOT_FOUND, "gone"),
        "000000120000000e080e720a0807100b1a04676f6e65",
    ),
    "producer_success": (
        messages.producer_success(7, "p", schema_version=VERSION_ONE),
        "000000250000002108118a011c080712017018ffffffffffffffffff01220800000000000000013001",
    ),
    "producer_success, waiting": (
        messages.producer_success(7, "p", last_sequence_id=5, topic_epoch=3, ready=False),
        "000000160000001208118a010d08071201701805220028033000",
    ),
    "send_receipt": (
        send_receipts.encode_send_receipt(1, 2, 3, 4, 5),
        "000000140000001008073a0c080110021a04080410052003",
    ),
    "send_receipt, duplicate": (
        send_receipts.encode_send_receipt(1, 2, 3, -1, -1),
        "000000260000002208073a1e080110021a1608ffffffffffffffffff0110ffffffffffffffffff012003",
    ),
    "send_error": (
        messages.send_error(1, 2, ServerError.PERSISTENCE_ERROR, "no"),
        "000000120000000e0808420a08011002180222026e6f",
    ),
    "lookup_failed": (
        messages.lookup_failed(7, ServerError.SERVICE_NOT_READY, "wait"),
        "00000015000000110818c2010c1802200730063a0477616974",
    ),
    "partitioned_metadata": (messages.partitioned_metadata(7, 4), "0000000f0000000b0816b20106080410071800"),
    "partitioned_metadata_failed": (
        messages.partitioned_metadata_failed(7, ServerError.METADATA_ERROR, "bad"),
        "00000014000000100816b2010b1007180120012a03626164",
    ),
    "close_consumer": (messages.close_consumer(3), "0000001600000012081082010d080310ffffffffffffffffff01"),
    "active_consumer_change": (
        messages.active_consumer_change(3, True),
        "0000000d00000009081ffa010408031001",
    ),
    "reached_end_of_topic": (messages.reached_end_of_topic(3), "0000000b00000007081bda01020803"),
    "ack_response": (messages.ack_response(7, 3), "0000000d000000090826b2020408073003"),
    "ack_response, refused": (
        messages.ack_response(7, 3, ServerError.PERSISTENCE_ERROR, "no"),
        "000000130000000f0826b2020a080720022a026e6f3003",
    ),
    "get_schema": (
        messages.get_schema_response(7, SCHEMA, VERSION_ONE),
        "000000280000002408239a021f080722110a016e1a027b7d20022a060a016b1201762a080000000000000001",
    ),
    "get_schema_error": (
        messages.get_schema_error(7, ServerError.TOPIC_NOT_FOUND, "no"),
        "000000110000000d08239a02080807100b1a026e6f",
    ),
    "get_or_create_schema": (
        messages.get_or_create_schema_response(7, VERSION_ONE),
        "00000015000000110828c2020c080722080000000000000001",
    ),
    "get_or_create_schema_error": (
        messages.get_or_create_schema_error(7, ServerError.INCOMPATIBLE_SCHEMA, "no"),
        "000000110000000d0828c20208080710121a026e6f",
    ),
    "watch_topic_list_success": (
        messages.watch_topic_list_success(7, 8, ["a"], "h"),
        "000000130000000f08418a040a080710081a0161220168",
    ),
    "watch_topic_update": (
        messages.watch_topic_update(8, ["a"], ["b"], "h"),
        "0000001400000010084292040b08081201611a0162220168",
    ),
    "consumer_stats_error": (
        messages.consumer_stats_error(7, ServerError.CONSUMER_NOT_FOUND, "no"),
        "000000110000000d081ad201080807100d1a026e6f",
    ),
}

# Here Pulsar also writes fields that have their default value.
PEER_LOOKUP_CONNECT = bytes.fromhex(
    "00000037000000330818c2012e0a0f70756c7361723a2f2f613a36363530121370756c7361722b73736c3a2f2f613a36363531180120072801"
    "4000"
)
PEER_LOOKUP_REDIRECT = bytes.fromhex("000000220000001e0818c201190a0f70756c7361723a2f2f613a363635301800200728014000")
PEER_LAST_MESSAGE_ID = bytes.fromhex(
    "0000002700000023081ef2011e0a1a080b100c18ffffffffffffffffff0120ffffffffffffffffff011007"
)


@pytest.mark.parametrize("name", SAME_FRAMES)
def test_frames_are_those_of_pulsar(name: str) -> None:
    ours, theirs = SAME_FRAMES[name]
    assert parsed(ours) == parsed(bytes.fromhex(theirs))


def test_lookup_answers_are_those_of_pulsar() -> None:
    for ours, theirs in [
        (messages.lookup_connect(7, "pulsar://a:6650", "pulsar+ssl://a:6651"), PEER_LOOKUP_CONNECT),
        (messages.lookup_redirect(7, "pulsar://a:6650", authoritative=True), PEER_LOOKUP_REDIRECT),
    ]:
        expected = parsed(theirs)
        expected.lookupTopicResponse.ClearField("proxy_through_service_url")
        assert parsed(ours) == expected


def test_last_message_id_is_that_of_pulsar() -> None:
    frame = messages.get_last_message_id_response(7, (11, 12), -1, -1, (11, 5))
    ours = parsed(frame).getLastMessageIdResponse.last_message_id
    theirs = parsed(PEER_LAST_MESSAGE_ID).getLastMessageIdResponse.last_message_id
    for one in (ours, theirs):
        assert (one.ledgerId, one.entryId, one.partition, one.batch_index) == (11, 12, -1, -1)
    full = parsed(messages.get_last_message_id_response(7, (11, 12), 2, 4, (11, -1))).getLastMessageIdResponse
    assert (full.last_message_id.partition, full.last_message_id.batch_index) == (2, 4)
    assert full.consumer_mark_delete_position.entryId == 2**64 - 1


def test_connected() -> None:
    frame = messages.connected(
        server_version="Pulsar Server4", protocol_version=19, max_message_size=5_242_880, topic_watchers=True
    )
    answer = parsed(frame).connected
    assert (answer.server_version, answer.protocol_version, answer.max_message_size) == ("Pulsar Server4", 19, 5242880)
    assert answer.feature_flags.supports_topic_watchers
    assert answer.feature_flags.supports_get_partitioned_metadata_without_auto_creation


def test_close_producer_and_consumer_stats() -> None:
    close = parsed(messages.close_producer(3)).close_producer
    assert (close.producer_id, close.request_id) == (3, 2**64 - 1)
    stats = {
        "msgRateOut": 1.5,
        "msgThroughputOut": 2.5,
        "msgRateRedeliver": 0.0,
        "consumerName": "c",
        "availablePermits": -3,
        "unackedMessages": 4,
        "blockedConsumerOnUnackedMsgs": False,
        "address": "/127.0.0.1:1",
        "connectedSince": "now",
        "type": "Shared",
        "msgRateExpired": 0.0,
        "msgBacklog": 5,
        "messageAckRate": 1.0,
        "ignored": 1,
    }
    answer = parsed(messages.consumer_stats_response(7, stats)).consumerStatsResponse
    assert (answer.msgRateOut, answer.availablePermits, answer.msgBacklog, answer.type) == (1.5, 0, 5, "Shared")


# What Pulsar 4.0.8's client code writes.
PEER_SEND = bytes.fromhex(
    "000000300000000c0806320808011005180330090e01dfba2d45000000110a017010051880d095ffbc3132016b580168656c6c6f"
)
PEER_ACK = bytes.fromhex("000000120000000e080a520a080310001a04080b100c")
PEER_ACK_SET = bytes.fromhex(
    "0000003900000035080a5231080310011a09080b100c28fb07300a20022a180a14436f6d706163746564546f7069634c65646765721009"
    "30043805404d"
)
PEER_FLOW = bytes.fromhex("0000000d00000009080b5a05080310e807")
PEER_MESSAGE = bytes.fromhex("000000280000001d08094a1908031206080b100c1802180520ffffffffffffffffff012005") + b"payload"


def test_commands_of_pulsars_client_are_read() -> None:
    send = command.decode_send(PEER_SEND, 4, len(PEER_SEND))
    assert (send.producer_id, send.sequence_id, send.highest_sequence_id, send.num_messages) == (1, 5, 9, 3)
    assert PEER_SEND[send.payload_end - 5 : send.payload_end] == b"hello"

    ack = command.decode_ack(PEER_ACK, 4, len(PEER_ACK))
    assert (ack.consumer_id, ack.cumulative, ack.positions, ack.ack_sets) == (3, False, [(11, 12)], None)

    ack = command.decode_ack(PEER_ACK_SET, 4, len(PEER_ACK_SET))
    assert (ack.cumulative, ack.ack_sets, ack.batch_sizes, ack.request_id) == (True, [[0b1111111011]], [10], 77)
    assert (ack.validation_error, ack.txnid_least_bits, ack.txnid_most_bits) == (2, 4, 5)
    assert ack.has_properties
    assert parsed(PEER_ACK_SET).ack.properties[0].value == 9

    flow = command.decode_flow(PEER_FLOW, 4, len(PEER_FLOW))
    assert (flow.consumer_id, flow.permits) == (3, 1000)


def test_message_is_written_as_pulsar_writes_it() -> None:
    header = command.MessageHeaderEncoder(3, 2, None).encode(11, 12, 5, [-1, 5], 7)
    assert header + b"payload" == PEER_MESSAGE


def test_what_cannot_be_read_is_refused() -> None:
    for body in (
        b"",
        b"\x08\x06",
        b"\x08\x06\x32\x02\x08\x01",
        b"\x08\x63",
        b"\x08\x02\x12\x00",
        b"\x08\x04\x22\x02\x08\xff",
        b"\xff\xff",
    ):
        frame = struct.pack(">I", len(body)) + body
        with pytest.raises(BadCommand):
            messages.decode_command(frame, 0, len(frame))
    for frame in (b"", b"\x00\x00\x00", b"\x00\x00\x00\x09\x08\x12\x92\x01\x00"):
        with pytest.raises(BadCommand):
            messages.decode_command(frame, 0, len(frame))


@given(st.binary(max_size=60) | st.binary(max_size=40).map(lambda body: struct.pack(">I", len(body)) + body))
def test_garbage_is_a_command_or_refused(data: bytes) -> None:
    with contextlib.suppress(BadCommand):
        messages.decode_command(data, 0, len(data))


def test_a_message_has_no_texts_to_check() -> None:
    def has_texts(kind: Any, seen: set[str]) -> bool:
        seen.add(kind.full_name)
        inner = [field.message_type for field in kind.fields if field.message_type is not None]
        return any(field.type == FieldDescriptor.TYPE_STRING for field in kind.fields) or any(
            has_texts(each, seen) for each in inner if each.full_name not in seen
        )

    assert not has_texts(pb.CommandMessage.DESCRIPTOR, set())
    assert has_texts(pb.CommandSubscribe.DESCRIPTOR, set())


def test_encoding_what_lacks_a_field_is_refused() -> None:
    with pytest.raises(BadCommand):
        messages.encode_command(pb.BaseCommand(type=pb.BaseCommand.FLOW, flow=pb.CommandFlow(consumer_id=1)))


def test_error_codes_are_those_of_the_wire() -> None:
    assert [code.value for code in ServerError] == sorted(pb.ServerError.values())
    spelled = {code.name.replace("_", "").lower(): code.value for code in ServerError}
    assert spelled == {name.lower(): number for name, number in pb.ServerError.items()}
    refusal = PulsarError(ServerError.PRODUCER_FENCED, "late")
    assert (refusal.code, refusal.message) == (ServerError.PRODUCER_FENCED, "late")


def test_very_many_ids_need_no_look_at_each() -> None:
    def calls(count: int) -> int:
        ids = [pb.MessageIdData(ledgerId=300, entryId=number) for number in range(count)]
        request = pb.CommandRedeliverUnacknowledgedMessages(consumer_id=300, message_ids=ids)
        kind = pb.BaseCommand.REDELIVER_UNACKNOWLEDGED_MESSAGES
        frame = messages.encode_command(pb.BaseCommand(type=kind, redeliverUnacknowledgedMessages=request))
        assert not frame.isascii()
        made = 0

        def profile(_: object, event: str, __: object) -> None:
            nonlocal made
            made += event == "call"

        before = sys.getprofile()
        sys.setprofile(profile)
        try:
            decoded = messages.decode_command(frame, 4, len(frame))
        finally:
            sys.setprofile(before)
        assert len(decoded.redeliverUnacknowledgedMessages.message_ids) == count
        return made

    calls(1)  # Which kinds of messages have texts is found out once.
    assert calls(10_000) == calls(10)


def test_properties_without_end_are_refused() -> None:
    def frame(count: int) -> bytes:
        pairs = [pb.KeyValue(key="\u00e9", value="")] * count
        request = pb.CommandProducer(topic="t", producer_id=1, request_id=1, metadata=pairs)
        return messages.encode_command(pb.BaseCommand(type=pb.BaseCommand.PRODUCER, producer=request))

    taken = frame(messages.TEXT_GROUPS_MAX)
    messages.decode_command(taken, 4, len(taken))
    refused = frame(messages.TEXT_GROUPS_MAX + 1)
    with pytest.raises(BadCommand, match="20001 of"):
        messages.decode_command(refused, 4, len(refused))
