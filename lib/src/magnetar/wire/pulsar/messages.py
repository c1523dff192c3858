"""Every command that does not pass per message: read by protobuf, and the answers that a broker gives.

Builders return whole frames. What a field is called is what PulsarApi.proto calls it."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from struct import Struct
from typing import Any, Final, cast

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import DecodeError, EncodeError, Message
from magnetar.core.ids import Position, unsigned64
from magnetar.wire.pulsar.errors import BadCommand, ServerError
from magnetar.wire.pulsar.generated import pulsar_api_pb2 as pb
from magnetar.wire.pulsar.varint import varint

SERVER_REQUEST_ID: Final = 0xFFFF_FFFF_FFFF_FFFF
"""The request id of commands that a broker sends unasked."""

TEXT_CHARACTERS_MAX: Final = 4_000
"""Characters of an error's text: it may quote what the client has sent, which may be a whole frame."""

TEXT_GROUPS_MAX: Final = 20_000
"""Properties and the like in one place of a command: each is looked at."""

_SIZES: Final = Struct(">II")
_U32: Final = Struct(">I")


def decode_command(buffer: bytes, start: int, end: int) -> pb.BaseCommand:
    """The command of the frame in buffer[start:end] (from its size on). Raises `BadCommand`."""
    command, to_check = read_command(buffer, start, end)
    if to_check:
        check_texts(command)
    return command


def read_command(buffer: bytes, start: int, end: int) -> tuple[pb.BaseCommand, bool]:
    """The command of the frame in buffer[start:end], with texts that may be no UTF-8: they have to go through
    `check_texts` if the second value says so. That takes its time for each text, so whoever bounds their number looks
    at it in between. Raises `BadCommand`."""
    if end - start < 4:
        raise BadCommand("a frame that is too short for a command")
    size: int = _U32.unpack_from(buffer, start)[0]
    if size > end - start - 4:
        raise BadCommand(f"a command of {size} bytes in a frame of {end - start}")
    encoded = buffer[start + 4 : start + 4 + size]
    try:
        command = pb.BaseCommand.FromString(encoded)
    except DecodeError as error:
        raise BadCommand(f"a command that cannot be read: {error}") from None
    field = _FIELD_OF_TYPE.get(command.type)
    if field is None or not command.HasField(field):
        raise BadCommand(f"a command of type {command.type} without its body")
    if not command.IsInitialized():  # Parsing does not look at required fields.
        raise BadCommand(f"{field} without a required field")
    # Not of MESSAGE, which comes with each entry, has no texts, and whose numbers are rarely ASCII.
    return command, command.type != pb.BaseCommand.MESSAGE and not encoded.isascii()


def check_texts(message: Message) -> None:
    """Raises `BadCommand` for text that is not UTF-8: protobuf would hand it out as bytes where everybody expects a
    string."""
    for field, value in message.ListFields():
        if field.type == FieldDescriptor.TYPE_STRING:
            texts = (value,) if isinstance(value, str | bytes) else value
            if any(isinstance(text, bytes) for text in texts):
                raise BadCommand(f"{field.full_name} is not UTF-8")
        elif field.type == FieldDescriptor.TYPE_MESSAGE and _has_texts(field.message_type):
            inners = (value,) if isinstance(value, Message) else value
            if len(inners) > TEXT_GROUPS_MAX:
                raise BadCommand(f"{len(inners)} of {field.full_name}; at most {TEXT_GROUPS_MAX} are taken")
            for inner in inners:
                check_texts(inner)


@cache
def _has_texts(kind: Descriptor) -> bool:
    """Whether there are texts anywhere in messages of a kind: ids of messages, which may be many, have none."""
    seen = {kind}
    waiting = [kind]
    while waiting:
        for field in waiting.pop().fields:
            if field.type == FieldDescriptor.TYPE_STRING:
                return True
            inner = field.message_type
            if inner is not None and inner not in seen:
                seen.add(inner)
                waiting.append(inner)
    return False


def encode_command(command: pb.BaseCommand) -> bytes:
    """The frame of a command without payload."""
    try:
        body = command.SerializeToString()
    except EncodeError as error:
        raise BadCommand(f"a command that lacks a required field: {error}") from None
    return _SIZES.pack(len(body) + 4, len(body)) + body


_FIELDS: Final = pb.BaseCommand.DESCRIPTOR.fields_by_number
_FIELD_OF_TYPE: Final = {kind: _FIELDS[kind].name for kind in pb.BaseCommand.Type.values() if kind in _FIELDS}
"""Each command stands at the field number that equals its type."""
_TYPE_OF_BODY: Final = {_FIELDS[kind].message_type: kind for kind in _FIELD_OF_TYPE}


_LENGTH_DELIMITED: Final = 2
"""protobuf's wire type of a message in a message."""
_COMMAND_HEADS: Final = {
    kind: b"\x08" + varint(kind) + varint(kind << 3 | _LENGTH_DELIMITED) for kind in _TYPE_OF_BODY.values()
}
"""What stands before each command's body: its type, which is field 1, and the tag of the body's field."""


def frame_of(body: Message) -> bytes:
    """The frame of the command that has this body. A long list is not copied into a command first."""
    try:
        encoded = body.SerializeToString()
    except EncodeError as error:
        raise BadCommand(f"a command that lacks a required field: {error}") from None
    head = _COMMAND_HEADS[_TYPE_OF_BODY[body.DESCRIPTOR]] + varint(len(encoded))
    size = len(head) + len(encoded)
    return b"".join((_SIZES.pack(size + 4, size), head, encoded))


def _code(code: ServerError) -> pb.ServerError:
    """Our enum as the generated one: the same numbers, which at run time are all there is."""
    return cast(pb.ServerError, int(code))


def _message_id(position: Position, partition: int = -1, batch_index: int = -1) -> pb.MessageIdData:
    message_id = pb.MessageIdData(ledgerId=unsigned64(position[0]), entryId=unsigned64(position[1]))
    if partition >= 0:
        message_id.partition = partition
    if batch_index >= 0:
        message_id.batch_index = batch_index
    return message_id


# --- session


def connected(*, server_version: str, protocol_version: int, max_message_size: int, topic_watchers: bool) -> bytes:
    """The answer to CONNECT."""
    flags = pb.FeatureFlags(
        supports_topic_watchers=topic_watchers,
        supports_topic_watcher_reconcile=topic_watchers,
        supports_get_partitioned_metadata_without_auto_creation=True,
        supports_repl_dedup_by_lid_and_eid=True,
    )
    return frame_of(
        pb.CommandConnected(
            server_version=server_version,
            protocol_version=protocol_version,
            max_message_size=max_message_size,
            feature_flags=flags,
        )
    )


def auth_method_of(connect: pb.CommandConnect) -> str:
    """How a client says that it authenticates: by name or, as old ones do, by number; `none` when it does not."""
    if connect.HasField("auth_method_name"):
        return connect.auth_method_name
    if connect.HasField("auth_method"):
        return pb.AuthMethod.Name(connect.auth_method).removeprefix("AuthMethod").lower()
    return "none"


def auth_challenge(method: str, data: bytes, protocol_version: int) -> bytes:
    """Ask a client for credentials."""
    return frame_of(
        pb.CommandAuthChallenge(
            challenge=pb.AuthData(auth_method_name=method, auth_data=data), protocol_version=protocol_version
        )
    )


def success(request_id: int) -> bytes:
    """A request was carried out."""
    return frame_of(pb.CommandSuccess(request_id=request_id))


def error(request_id: int, code: ServerError, message: str) -> bytes:
    """A request was not."""
    return frame_of(pb.CommandError(request_id=request_id, error=_code(code), message=_told(message)))


# --- lookup


def lookup_connect(request_id: int, service_url: str, service_url_tls: str = "") -> bytes:
    """The topic is served at this URL."""
    return _lookup(request_id, pb.CommandLookupTopicResponse.Connect, service_url, service_url_tls, authoritative=True)


def lookup_redirect(request_id: int, service_url: str, service_url_tls: str = "", *, authoritative: bool) -> bytes:
    """Ask the broker at this URL."""
    kind = pb.CommandLookupTopicResponse.Redirect
    return _lookup(request_id, kind, service_url, service_url_tls, authoritative=authoritative)


def _lookup(
    request_id: int,
    kind: pb.CommandLookupTopicResponse.LookupType,
    service_url: str,
    service_url_tls: str,
    *,
    authoritative: bool,
) -> bytes:
    response = pb.CommandLookupTopicResponse(
        request_id=request_id, response=kind, brokerServiceUrl=service_url, authoritative=authoritative
    )
    if service_url_tls:
        response.brokerServiceUrlTls = service_url_tls
    return frame_of(response)


def lookup_failed(request_id: int, code: ServerError, message: str) -> bytes:
    """No broker can be named."""
    return frame_of(
        pb.CommandLookupTopicResponse(
            request_id=request_id,
            response=pb.CommandLookupTopicResponse.Failed,
            error=_code(code),
            message=_told(message),
        )
    )


def partitioned_metadata(request_id: int, partitions: int) -> bytes:
    """So many partitions; 0 is a topic that is not partitioned."""
    return frame_of(
        pb.CommandPartitionedTopicMetadataResponse(
            request_id=request_id, partitions=partitions, response=pb.CommandPartitionedTopicMetadataResponse.Success
        )
    )


def partitioned_metadata_failed(request_id: int, code: ServerError, message: str) -> bytes:
    """The number of partitions cannot be told."""
    return frame_of(
        pb.CommandPartitionedTopicMetadataResponse(
            request_id=request_id,
            response=pb.CommandPartitionedTopicMetadataResponse.Failed,
            error=_code(code),
            message=_told(message),
        )
    )


# --- produce


def producer_success(
    request_id: int,
    producer_name: str,
    *,
    last_sequence_id: int = -1,
    schema_version: bytes = b"",
    topic_epoch: int | None = None,
    ready: bool = True,
) -> bytes:
    """The producer stands; `ready` is false while it waits for exclusive access."""
    response = pb.CommandProducerSuccess(
        request_id=request_id,
        producer_name=producer_name,
        last_sequence_id=last_sequence_id,
        schema_version=schema_version,
        producer_ready=ready,
    )
    if topic_epoch is not None:
        response.topic_epoch = unsigned64(topic_epoch)
    return frame_of(response)


def send_error(producer_id: int, sequence_id: int, code: ServerError, message: str) -> bytes:
    """One message is not stored."""
    return frame_of(
        pb.CommandSendError(producer_id=producer_id, sequence_id=sequence_id, error=_code(code), message=_told(message))
    )


def close_producer(producer_id: int, assigned_url: str = "", assigned_url_tls: str = "") -> bytes:
    """The client must look the topic up again, or go to the broker that is said to have it."""
    command = pb.CommandCloseProducer(producer_id=producer_id, request_id=SERVER_REQUEST_ID)
    return _close(command, assigned_url, assigned_url_tls)


def _close(
    command: pb.CommandCloseProducer | pb.CommandCloseConsumer, assigned_url: str, assigned_url_tls: str
) -> bytes:
    if assigned_url:
        command.assignedBrokerServiceUrl = assigned_url
    if assigned_url_tls:
        command.assignedBrokerServiceUrlTls = assigned_url_tls
    return frame_of(command)


# --- consume


def close_consumer(consumer_id: int, assigned_url: str = "", assigned_url_tls: str = "") -> bytes:
    """The client must look the topic up again, or go to the broker that is said to have it."""
    command = pb.CommandCloseConsumer(consumer_id=consumer_id, request_id=SERVER_REQUEST_ID)
    return _close(command, assigned_url, assigned_url_tls)


def ack_response(consumer_id: int, request_id: int, code: ServerError | None = None, message: str = "") -> bytes:
    """The acknowledgement is durable, or why it is not."""
    response = pb.CommandAckResponse(consumer_id=consumer_id, request_id=request_id)
    if code is not None:
        response.error = _code(code)
        response.message = message
    return frame_of(response)


def active_consumer_change(consumer_id: int, active: bool) -> bytes:
    """Failover: whether this consumer receives."""
    return frame_of(pb.CommandActiveConsumerChange(consumer_id=consumer_id, is_active=active))


def reached_end_of_topic(consumer_id: int) -> bytes:
    """Nothing will come any more."""
    return frame_of(pb.CommandReachedEndOfTopic(consumer_id=consumer_id))


def producer_migrated(producer_id: int, url: str, url_tls: str) -> bytes:
    """The producer's place is another cluster; empty addresses are not told."""
    return _migrated(pb.CommandTopicMigrated.Producer, producer_id, url, url_tls)


def consumer_migrated(consumer_id: int, url: str, url_tls: str) -> bytes:
    """The consumer's place is another cluster; empty addresses are not told."""
    return _migrated(pb.CommandTopicMigrated.Consumer, consumer_id, url, url_tls)


def _migrated(kind: pb.CommandTopicMigrated.ResourceType, resource_id: int, url: str, url_tls: str) -> bytes:
    command = pb.CommandTopicMigrated(resource_type=kind, resource_id=resource_id)
    if url:
        command.brokerServiceUrl = url
    if url_tls:
        command.brokerServiceUrlTls = url_tls
    return frame_of(command)


def get_last_message_id_response(
    request_id: int, position: Position, partition: int, batch_index: int, mark_delete: Position
) -> bytes:
    """The last message of a topic, and how far the asking subscription has acknowledged."""
    return frame_of(
        pb.CommandGetLastMessageIdResponse(
            request_id=request_id,
            last_message_id=_message_id(position, partition, batch_index),
            consumer_mark_delete_position=_message_id(mark_delete),
        )
    )


def end_notice(request_id: int, position: Position, partition: int) -> bytes:
    """The last confirmed entry of a topic, as one more answer to a GET_LAST_MESSAGE_ID."""
    last = _message_id(position, partition)
    return frame_of(pb.CommandGetLastMessageIdResponse(request_id=request_id, last_message_id=last))


def consumer_stats_response(request_id: int, stats: Mapping[str, Any]) -> bytes:
    """A consumer's figures, from the admin API's ConsumerStats with `type` and `msgBacklog` beside it."""
    return frame_of(
        pb.CommandConsumerStatsResponse(
            request_id=request_id,
            msgRateOut=stats["msgRateOut"],
            msgThroughputOut=stats["msgThroughputOut"],
            msgRateRedeliver=stats["msgRateRedeliver"],
            consumerName=stats["consumerName"],
            availablePermits=max(stats["availablePermits"], 0),
            unackedMessages=stats["unackedMessages"],
            blockedConsumerOnUnackedMsgs=stats["blockedConsumerOnUnackedMsgs"],
            address=stats["address"],
            connectedSince=stats["connectedSince"],
            type=stats["type"],
            msgRateExpired=stats["msgRateExpired"],
            msgBacklog=stats["msgBacklog"],
            messageAckRate=stats["messageAckRate"],
        )
    )


def consumer_stats_error(request_id: int, code: ServerError, message: str) -> bytes:
    """There is no such consumer."""
    return frame_of(
        pb.CommandConsumerStatsResponse(request_id=request_id, error_code=_code(code), error_message=_told(message))
    )


# --- topics of a namespace


def watch_topic_list_success(request_id: int, watcher_id: int, topics: list[str], topics_hash: str) -> bytes:
    """The watch stands; this is the list to start from."""
    return frame_of(
        pb.CommandWatchTopicListSuccess(
            request_id=request_id, watcher_id=watcher_id, topic=topics, topics_hash=topics_hash
        )
    )


def watch_topic_update(watcher_id: int, new_topics: list[str], deleted_topics: list[str], topics_hash: str) -> bytes:
    """What came and went since."""
    return frame_of(
        pb.CommandWatchTopicUpdate(
            watcher_id=watcher_id, new_topics=new_topics, deleted_topics=deleted_topics, topics_hash=topics_hash
        )
    )


# --- schemas


def get_schema_response(request_id: int, schema: pb.Schema, schema_version: bytes) -> bytes:
    """GET_SCHEMA_RESPONSE with a schema and its version, as a frame."""
    return frame_of(pb.CommandGetSchemaResponse(request_id=request_id, schema=schema, schema_version=schema_version))


def get_schema_error(request_id: int, code: ServerError, message: str) -> bytes:
    """There is no such schema."""
    return frame_of(
        pb.CommandGetSchemaResponse(request_id=request_id, error_code=_code(code), error_message=_told(message))
    )


def get_or_create_schema_response(request_id: int, schema_version: bytes) -> bytes:
    """The schema's version, new or not."""
    return frame_of(pb.CommandGetOrCreateSchemaResponse(request_id=request_id, schema_version=schema_version))


def get_or_create_schema_error(request_id: int, code: ServerError, message: str) -> bytes:
    """The schema was refused."""
    return frame_of(
        pb.CommandGetOrCreateSchemaResponse(request_id=request_id, error_code=_code(code), error_message=_told(message))
    )


def _told(message: str) -> str:
    return message if len(message) <= TEXT_CHARACTERS_MAX else message[:TEXT_CHARACTERS_MAX] + "…"
