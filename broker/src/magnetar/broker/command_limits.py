"""How much a client may note about itself: what a producer or a consumer carries stays in memory while it is open."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from magnetar.core.limits import KIB
from magnetar.wire.pulsar.errors import PulsarError, ServerError
from magnetar.wire.pulsar.generated.pulsar_api_pb2 import BaseCommand, CommandProducer, CommandSubscribe, KeyValue

NOTES_CHARACTERS_MAX: Final = 64 * KIB
"""Names and properties of one producer or consumer together; Apache's brokers bound a consumer's metadata alone
(`maxConsumerMetadataSize`). Without it one frame, and there may be any number, leaves 5 MB behind."""


def check_notes(command: BaseCommand) -> None:
    """`PulsarError` for a producer or a consumer that says too much about itself; other commands may pass."""
    if command.type == BaseCommand.PRODUCER:
        characters = _of_producer(command.producer)
    elif command.type == BaseCommand.SUBSCRIBE:
        characters = _of_consumer(command.subscribe)
    else:
        return
    if characters > NOTES_CHARACTERS_MAX:
        raise PulsarError(
            ServerError.NOT_ALLOWED_ERROR,
            f"names and properties have {characters} characters together; at most {NOTES_CHARACTERS_MAX} are taken",
        )


def _of_producer(body: CommandProducer) -> int:
    return len(body.topic) + len(body.producer_name) + len(body.initial_subscription_name) + _of_pairs(body.metadata)


def _of_consumer(body: CommandSubscribe) -> int:
    names = len(body.topic) + len(body.subscription) + len(body.consumer_name)
    return names + _of_pairs(body.metadata) + _of_pairs(body.subscription_properties)


def _of_pairs(pairs: Iterable[KeyValue]) -> int:
    return sum(len(pair.key) + len(pair.value) for pair in pairs)
