"""How much one command may bring: what a producer or a consumer carries stays in memory while it is open, and whatever
a command repeats is walked through in one turn of the event loop."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Final

from magnetar.core.limits import KIB
from magnetar.net.requests import ServerRequests
from magnetar.wire.pulsar.errors import PulsarError, ServerError
from magnetar.wire.pulsar.generated.pulsar_api_pb2 import (
    BaseCommand,
    CommandProducer,
    CommandSubscribe,
    KeyValue,
)
from magnetar.wire.pulsar.refusals import refusal_of

PROPERTIES_CHARACTERS_MAX: Final = 64 * KIB
"""Names and properties of one producer or consumer together; Apache's brokers bound a consumer's metadata alone
(`maxConsumerMetadataSize`). Without it one frame, and there may be any number, leaves 5 MB behind."""

PAIRS_MAX: Final = 4_096
"""Pairs of all properties of one command, as one may be empty and yet be walked through: a frame holds 800 000 of
these. Clients send a dozen."""

HASH_RANGES_MAX: Final = 4_096
"""Of one consumer, which wants a part of the 65 536 hash slots by itself. Clients give it a few."""

COMMAND_BYTES_MAX: Final = 1_280 * KIB
"""A command without payload: the largest schema with its properties, and names beside it in letters of four bytes."""

TURN_COMMANDS_MAX: Final = 64
"""Control commands of one connection that are served in a turn: a read may bring thousands."""

TURN_COMMANDS_CROWDED: Final = 8
"""While other connections wait for their turn. Who asks now and then is always served at once."""

FRAME_OVERHEAD_BYTES: Final = 40
"""What a command that waits costs beside its own bytes."""

_LISTS: Final = (BaseCommand.ACK, BaseCommand.REDELIVER_UNACKNOWLEDGED_MESSAGES)
"""Commands that name messages, as many as a frame holds."""


TRANSACTION_COMMAND_BYTES_MAX: Final = 64 * KIB
"""Of a command about transactions: these may name any number of topics, and each is looked at. Clients name one."""

_TRANSACTIONS: Final = (
    BaseCommand.ADD_PARTITION_TO_TXN,
    BaseCommand.ADD_SUBSCRIPTION_TO_TXN,
    BaseCommand.END_TXN,
    BaseCommand.END_TXN_ON_PARTITION,
    BaseCommand.END_TXN_ON_SUBSCRIPTION,
)


def turn_commands_max(in_all: ServerRequests) -> int:
    """How many control commands of one connection this turn may serve."""
    if not in_all.crowded:
        return TURN_COMMANDS_MAX
    return 1 if in_all.spent() else TURN_COMMANDS_CROWDED


def turn_lookups_max(in_all: ServerRequests) -> int:
    """How many lookups are answered with the frames that come per message, which begin no turn of requests."""
    if not in_all.crowded:
        return TURN_COMMANDS_MAX
    return 1 if in_all.over else TURN_COMMANDS_CROWDED


def refusal_of_size(command: BaseCommand, size_bytes: int) -> bytes:
    """The answer that refuses a command which brings too much, empty for one that does not; `size_bytes` is that of its
    frame. `PeerError` for one that wants no answer."""
    try:
        check_command(command, size_bytes)
    except PulsarError as refusal:
        answer = refusal_of(command, refusal.code, refusal.message)
        if answer is None:
            raise
        return answer
    return b""


def check_command(command: BaseCommand, size_bytes: int) -> None:
    """`PulsarError` for a command that brings too much; `size_bytes` is that of its frame. Nothing is walked through
    before it is known to be bounded, and texts may still be none."""
    kind = command.type
    limit = TRANSACTION_COMMAND_BYTES_MAX if kind in _TRANSACTIONS else COMMAND_BYTES_MAX
    if size_bytes > limit and kind not in _LISTS:
        raise _too_much(f"{BaseCommand.Type.Name(kind)} has {size_bytes} bytes; at most {limit} are taken")
    if kind == BaseCommand.PRODUCER:
        _check_pairs(len(command.producer.schema.properties))
        _check_properties(_names_of_producer(command.producer), [command.producer.metadata])
    elif kind == BaseCommand.SUBSCRIBE:
        body = command.subscribe
        _check_pairs(len(body.schema.properties))
        _check_properties(_names_of_consumer(body), [body.metadata, body.subscription_properties])
        ranges = len(body.keySharedMeta.hashRanges)
        if ranges > HASH_RANGES_MAX:
            raise _too_much(f"keySharedMeta has {ranges} hash ranges; at most {HASH_RANGES_MAX} are taken")
    elif kind == BaseCommand.GET_OR_CREATE_SCHEMA:
        _check_pairs(len(command.getOrCreateSchema.schema.properties))


def _check_pairs(pairs: int) -> None:
    if pairs > PAIRS_MAX:
        raise _too_much(f"there are {pairs} properties; at most {PAIRS_MAX} are taken")


def _check_properties(names: int, properties: list[Collection[KeyValue]]) -> None:
    _check_pairs(sum(map(len, properties)))
    characters = names + sum(map(_of_pairs, properties))
    if characters > PROPERTIES_CHARACTERS_MAX:
        raise _too_much(
            f"names and properties have {characters} characters together; at most {PROPERTIES_CHARACTERS_MAX} are taken"
        )


def _names_of_producer(body: CommandProducer) -> int:
    return len(body.topic) + len(body.producer_name) + len(body.initial_subscription_name)


def _names_of_consumer(body: CommandSubscribe) -> int:
    return len(body.topic) + len(body.subscription) + len(body.consumer_name)


def _of_pairs(pairs: Iterable[KeyValue]) -> int:
    return sum(len(pair.key) + len(pair.value) for pair in pairs)


def _too_much(text: str) -> PulsarError:
    return PulsarError(ServerError.NOT_ALLOWED_ERROR, text)
