"""What a client sends: the counterpart of `messages`, which has what a broker answers.

Builders return whole frames. What a field is called is what PulsarApi.proto calls it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from struct import Struct
from typing import Any, Final, cast

from google.protobuf.message import Message
from magnetar.core.ids import signed64, unsigned64
from magnetar.wire.pulsar.command import TYPE_SEND
from magnetar.wire.pulsar.errors import PulsarError, ServerError
from magnetar.wire.pulsar.generated import pulsar_api_pb2 as pb
from magnetar.wire.pulsar.messages import frame_of
from magnetar.wire.pulsar.send_receipts import Receipt
from magnetar.wire.pulsar.varint import varint

PROTOCOL_VERSION: Final = 21

_SIZES: Final = Struct(">II")

_FAILED_LOOKUP: Final = int(pb.CommandLookupTopicResponse.Failed)
_FAILED_COUNT: Final = int(pb.CommandPartitionedTopicMetadataResponse.Failed)

_ANSWERS: Final = {
    int(pb.BaseCommand.SUCCESS): "success",
    int(pb.BaseCommand.ERROR): "error",
    int(pb.BaseCommand.PRODUCER_SUCCESS): "producer_success",
    int(pb.BaseCommand.LOOKUP_RESPONSE): "lookupTopicResponse",
    int(pb.BaseCommand.PARTITIONED_METADATA_RESPONSE): "partitionMetadataResponse",
    int(pb.BaseCommand.GET_LAST_MESSAGE_ID_RESPONSE): "getLastMessageIdResponse",
    int(pb.BaseCommand.GET_SCHEMA_RESPONSE): "getSchemaResponse",
    int(pb.BaseCommand.GET_OR_CREATE_SCHEMA_RESPONSE): "getOrCreateSchemaResponse",
    int(pb.BaseCommand.GET_TOPICS_OF_NAMESPACE_RESPONSE): "getTopicsOfNamespaceResponse",
    int(pb.BaseCommand.ACK_RESPONSE): "ackResponse",
    int(pb.BaseCommand.CONSUMER_STATS_RESPONSE): "consumerStatsResponse",
    int(pb.BaseCommand.NEW_TXN_RESPONSE): "newTxnResponse",
    int(pb.BaseCommand.ADD_PARTITION_TO_TXN_RESPONSE): "addPartitionToTxnResponse",
    int(pb.BaseCommand.ADD_SUBSCRIPTION_TO_TXN_RESPONSE): "addSubscriptionToTxnResponse",
    int(pb.BaseCommand.END_TXN_RESPONSE): "endTxnResponse",
    int(pb.BaseCommand.END_TXN_ON_PARTITION_RESPONSE): "endTxnOnPartitionResponse",
    int(pb.BaseCommand.END_TXN_ON_SUBSCRIPTION_RESPONSE): "endTxnOnSubscriptionResponse",
    int(pb.BaseCommand.TC_CLIENT_CONNECT_RESPONSE): "tcClientConnectResponse",
}
"""Where the body of each answer to a request stands; all of them have a request id."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerRequest:
    """What PRODUCER asks for, but for its ids."""

    topic: str
    name: str | None = None
    name_is_given: bool = True
    """False when the broker made the name and the producer only comes back with it."""
    epoch: int = 0
    """Counts how often this producer came back; a newer one replaces an older one of the same name."""
    access_mode: pb.ProducerAccessMode = pb.Shared
    topic_epoch: int | None = None
    schema: pb.Schema | None = None
    metadata: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscribeRequest:
    """What SUBSCRIBE asks for, but for its ids."""

    topic: str
    subscription: str
    kind: pb.CommandSubscribe.SubType = pb.CommandSubscribe.Exclusive
    consumer_name: str = ""
    durable: bool = True
    start_message_id: pb.MessageIdData | None = None
    read_compacted: bool = False
    from_earliest: bool = False
    """Where a new subscription begins."""
    create_topic: bool = True
    replicated: bool = False
    priority_level: int = 0
    schema: pb.Schema | None = None
    metadata: Mapping[str, str] = field(default_factory=dict)
    properties: Mapping[str, str] = field(default_factory=dict)
    """Of a subscription that is new."""


def _pairs(values: Mapping[str, str]) -> list[pb.KeyValue]:
    return [pb.KeyValue(key=key, value=value) for key, value in values.items()]


def answer_of(command: pb.BaseCommand) -> tuple[int, Any] | None:
    """(request id, body) of an answer to a request; None for every other command."""
    name = _ANSWERS.get(command.type)
    if name is None:
        return None
    body = getattr(command, name)
    return body.request_id, body


def error_of(body: Message) -> PulsarError | None:
    """The error that an answer carries, if any.

    Answers name it in three ways: `error` and `message` (`error` alone in CommandError), or `error_code` and
    `error_message`."""
    kind = type(body).__name__
    if kind in ("CommandLookupTopicResponse", "CommandPartitionedTopicMetadataResponse"):
        failed = _FAILED_LOOKUP if kind == "CommandLookupTopicResponse" else _FAILED_COUNT
        answer = cast("pb.CommandLookupTopicResponse", body)
        return _error(answer.error, answer.message) if answer.response == failed else None
    for code_name, text_name in (("error", "message"), ("error_code", "error_message")):
        if code_name in body.DESCRIPTOR.fields_by_name and body.HasField(code_name):
            return _error(getattr(body, code_name), getattr(body, text_name))
    return None


def error_from(code: int, message: str) -> PulsarError:
    """The error of a SEND_ERROR, or of another command that names one."""
    return _error(code, message)


def _error(code: int, message: str) -> PulsarError:
    try:
        known = ServerError(code)
    except ValueError:
        known = ServerError.UNKNOWN_ERROR
    return PulsarError(known, message)


# --- session


def connect(
    *,
    client_version: str,
    auth_method_name: str = "",
    auth_data: bytes = b"",
    proxy_to_broker_url: str = "",
    relays: bool = False,
) -> bytes:
    """The first command of a connection. `proxy_to_broker_url` is `host:port` of the broker behind a proxy; `relays`
    says that messages of another cluster come with their source positions."""
    command = pb.CommandConnect(
        client_version=client_version,
        protocol_version=PROTOCOL_VERSION,
        feature_flags=pb.FeatureFlags(
            supports_auth_refresh=True,
            supports_broker_entry_metadata=True,
            supports_get_partitioned_metadata_without_auto_creation=True,
        ),
    )
    if relays:
        command.feature_flags.supports_repl_dedup_by_lid_and_eid = True
    if auth_method_name:
        command.auth_method_name = auth_method_name
        command.auth_data = auth_data
    if proxy_to_broker_url:
        command.proxy_to_broker_url = proxy_to_broker_url
    return frame_of(command)


def auth_response(*, client_version: str, auth_method_name: str, auth_data: bytes) -> bytes:
    """The answer to AUTH_CHALLENGE."""
    return frame_of(
        pb.CommandAuthResponse(
            client_version=client_version,
            protocol_version=PROTOCOL_VERSION,
            response=pb.AuthData(auth_method_name=auth_method_name, auth_data=auth_data),
        )
    )


# --- lookup


def lookup(request_id: int, topic: str, *, authoritative: bool = False, listener_name: str = "") -> bytes:
    """Which broker serves the topic?"""
    command = pb.CommandLookupTopic(topic=topic, request_id=request_id, authoritative=authoritative)
    if listener_name:
        command.advertised_listener_name = listener_name
    return frame_of(command)


def partitioned_metadata(request_id: int, topic: str, *, create: bool) -> bytes:
    """How many partitions has the topic? With `create` it may come to be by being asked for."""
    command = pb.CommandPartitionedTopicMetadata(
        topic=topic, request_id=request_id, metadata_auto_creation_enabled=create
    )
    return frame_of(command)


def get_or_create_schema(request_id: int, topic: str, schema: pb.Schema) -> bytes:
    """The version of a schema of the topic, which is registered if need be."""
    return frame_of(pb.CommandGetOrCreateSchema(request_id=request_id, topic=topic, schema=schema))


def get_schema(request_id: int, topic: str, version: bytes | None = None) -> bytes:
    """The schema of a topic: the newest or that of one version."""
    command = pb.CommandGetSchema(request_id=request_id, topic=topic)
    if version is not None:
        command.schema_version = version
    return frame_of(command)


def topics_of_namespace(request_id: int, namespace: str) -> bytes:
    """The persistent topics of a namespace, each partition by itself; `namespace` is `tenant/namespace`."""
    return frame_of(
        pb.CommandGetTopicsOfNamespace(
            request_id=request_id, namespace=namespace, mode=pb.CommandGetTopicsOfNamespace.PERSISTENT
        )
    )


# --- produce


def producer(request_id: int, producer_id: int, request: ProducerRequest) -> bytes:
    """Open a producer."""
    command = pb.CommandProducer(
        topic=request.topic,
        producer_id=producer_id,
        request_id=request_id,
        epoch=request.epoch,
        user_provided_producer_name=request.name_is_given,
        producer_access_mode=request.access_mode,
        metadata=_pairs(request.metadata),
        schema=request.schema,
    )
    if request.name is not None:
        command.producer_name = request.name
    if request.topic_epoch is not None:
        command.topic_epoch = request.topic_epoch
    return frame_of(command)


def send(
    producer_id: int, sequence_id: int, message: bytes, *, num_messages: int = 1, highest_sequence_id: int = 0
) -> bytes:
    """SEND by hand, as it passes per message; `message` is what `build_message` or `build_batch` made."""
    body = b"\x08" + varint(producer_id) + b"\x10" + varint(unsigned64(sequence_id))
    if num_messages != 1:
        body += b"\x18" + varint(num_messages)
    if highest_sequence_id:
        body += b"\x30" + varint(highest_sequence_id)
    command = b"\x08" + varint(TYPE_SEND) + varint(TYPE_SEND << 3 | 2) + varint(len(body)) + body
    return _SIZES.pack(4 + len(command) + len(message), len(command)) + command + message


def receipt_of(told: pb.CommandSendReceipt) -> Receipt:
    """A SEND_RECEIPT that `send_receipts` does not read."""
    stored = told.message_id
    return Receipt(
        told.producer_id,
        signed64(told.sequence_id),
        signed64(told.highest_sequence_id),
        signed64(stored.ledgerId),
        signed64(stored.entryId),
    )


def close_producer(request_id: int, producer_id: int) -> bytes:
    """The producer is done."""
    return frame_of(pb.CommandCloseProducer(producer_id=producer_id, request_id=request_id))


# --- consume


def subscribe(request_id: int, consumer_id: int, request: SubscribeRequest) -> bytes:
    """Open a consumer."""
    earliest, latest = pb.CommandSubscribe.Earliest, pb.CommandSubscribe.Latest
    command = pb.CommandSubscribe(
        topic=request.topic,
        subscription=request.subscription,
        subType=request.kind,
        consumer_id=consumer_id,
        request_id=request_id,
        consumer_name=request.consumer_name,
        priority_level=request.priority_level,
        durable=request.durable,
        read_compacted=request.read_compacted,
        initialPosition=earliest if request.from_earliest else latest,
        replicate_subscription_state=request.replicated,
        force_topic_creation=request.create_topic,
        metadata=_pairs(request.metadata),
        subscription_properties=_pairs(request.properties),
        schema=request.schema,
        start_message_id=request.start_message_id,
    )
    return frame_of(command)


def flow(consumer_id: int, permits: int) -> bytes:
    """So many more messages may come."""
    return frame_of(pb.CommandFlow(consumer_id=consumer_id, messagePermits=permits))


def ack(
    consumer_id: int, message_ids: Sequence[pb.MessageIdData], *, cumulative: bool, request_id: int | None = None
) -> bytes:
    """These messages are done; with a request id the broker answers when that is durable."""
    kind = pb.CommandAck.Cumulative if cumulative else pb.CommandAck.Individual
    command = pb.CommandAck(consumer_id=consumer_id, ack_type=kind, message_id=message_ids)
    if request_id is not None:
        command.request_id = request_id
    return frame_of(command)


def seek(request_id: int, consumer_id: int, message_id: pb.MessageIdData) -> bytes:
    """The subscription is to go on with this message."""
    return frame_of(pb.CommandSeek(consumer_id=consumer_id, request_id=request_id, message_id=message_id))


def get_last_message_id(request_id: int, consumer_id: int) -> bytes:
    """The topic's last message."""
    return frame_of(pb.CommandGetLastMessageId(consumer_id=consumer_id, request_id=request_id))


def close_consumer(request_id: int, consumer_id: int) -> bytes:
    """The consumer is done."""
    return frame_of(pb.CommandCloseConsumer(consumer_id=consumer_id, request_id=request_id))


def unsubscribe(request_id: int, consumer_id: int) -> bytes:
    """The subscription is to be deleted."""
    return frame_of(pb.CommandUnsubscribe(consumer_id=consumer_id, request_id=request_id))


def tc_client_connect(request_id: int, coordinator: int) -> bytes:
    """TC_CLIENT_CONNECT_REQUEST: the owner of its partition is to run a transaction coordinator."""
    return frame_of(pb.CommandTcClientConnectRequest(request_id=request_id, tc_id=coordinator))


def end_txn_on_partition(
    request_id: int, txnid: tuple[int, int], topic: str, action: pb.TxnAction, low_water_mark: int
) -> bytes:
    """END_TXN_ON_PARTITION: a coordinator tells the owner of a topic how a transaction (most, least bits) ends; the
    mark is the last id before the oldest transaction that is not over, -1 where that is the first one."""
    command = pb.CommandEndTxnOnPartition(
        request_id=request_id,
        txnid_most_bits=txnid[0],
        txnid_least_bits=txnid[1],
        topic=topic,
        txn_action=action,
        txnid_least_bits_of_low_watermark=unsigned64(low_water_mark),
    )
    return frame_of(command)


def end_txn_on_subscription(
    request_id: int,
    txnid: tuple[int, int],
    subscription: tuple[str, str],
    action: pb.TxnAction,
    low_water_mark: int,
) -> bytes:
    """END_TXN_ON_SUBSCRIPTION, for (topic, subscription); otherwise as `end_txn_on_partition`."""
    command = pb.CommandEndTxnOnSubscription(
        request_id=request_id,
        txnid_most_bits=txnid[0],
        txnid_least_bits=txnid[1],
        subscription=pb.Subscription(topic=subscription[0], subscription=subscription[1]),
        txn_action=action,
        txnid_least_bits_of_low_watermark=unsigned64(low_water_mark),
    )
    return frame_of(command)
