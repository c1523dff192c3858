"""Receipts of what is relayed from another cluster: by source position, or by order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import pytest
from magnetar.client.relay import MARKER_RECEIPT, RelayProducer
from magnetar.core.errors import MagnetarError
from magnetar.core.ids import Position, unsigned64
from magnetar.core.topic_name import TopicName
from magnetar.wire.pulsar import requests
from magnetar.wire.pulsar.errors import PulsarError, ServerError
from magnetar.wire.pulsar.generated import pulsar_api_pb2 as pb


@dataclass
class Relayed:
    position: Position
    sequence_id: int
    marker: bool = False
    message: bytes = b"four"
    num_messages: int = 1
    publish_time_ms: int = 0
    chunked: bool = False


class Heard:
    def __init__(self) -> None:
        self.positions: list[Position] = []
        self.errors: list[MagnetarError] = []

    def relayed(self, position: Position) -> None:
        self.positions.append(position)

    def relay_ended(self, error: MagnetarError) -> None:
        self.errors.append(error)


class Wire:
    """A connection that only takes frames."""

    closed = False

    def __init__(self) -> None:
        self.frames: list[bytes] = []

    def write_parts(self, frames: list[bytes]) -> None:
        self.frames += frames

    def write(self, frame: bytes) -> None:
        self.frames.append(frame)

    def detach(self, end_id: int) -> None:
        del end_id


def attached(*, by_position: bool) -> tuple[RelayProducer, Heard]:
    heard = Heard()
    producer = RelayProducer(cast(Any, None), TopicName.parse("t"), "pulsar.repl.a-->b", heard)
    producer._connection = cast(Any, Wire())
    producer.by_position = by_position
    return producer, heard


def receipt(first: int, second: int = -1) -> pb.CommandSendReceipt:
    return pb.CommandSendReceipt(sequence_id=unsigned64(first), highest_sequence_id=unsigned64(second))


def test_receipts_by_position_may_come_in_any_order() -> None:
    producer, heard = attached(by_position=True)
    producer.send([Relayed((1, 0), 7), Relayed((1, 1), 7)])
    producer.receipt(receipt(1, 1))
    assert producer.unanswered_bytes == 4
    producer.receipt(receipt(1, 0))
    producer.receipt(receipt(9, 9))
    assert heard.positions == [(1, 1), (1, 0)]
    assert (producer.unanswered, producer.unanswered_bytes) == (0, 0)


def test_the_receipt_of_a_marker_names_its_sequence_id() -> None:
    producer, heard = attached(by_position=True)
    producer.send([Relayed((1, 0), 0), Relayed((1, 1), 0, marker=True)])
    producer.receipt(receipt(0, MARKER_RECEIPT))
    assert heard.positions == [(1, 1)]


def test_receipts_by_order_take_the_oldest_of_a_sequence_id() -> None:
    producer, heard = attached(by_position=False)
    producer.send([Relayed((1, 0), 5), Relayed((1, 1), 5), Relayed((1, 2), 3)])
    for number in (5, 3, 5):
        producer.receipt(receipt(number))
    assert heard.positions == [(1, 0), (1, 2), (1, 1)]


def test_an_entry_that_is_refused_ends_the_producer_once() -> None:
    producer, heard = attached(by_position=True)
    producer.send([Relayed((1, 0), 5)])
    producer.send_failed(5, PulsarError(ServerError.PERSISTENCE_ERROR, "no"))
    producer.detached("")
    producer.receipt(receipt(1, 0))
    assert (len(heard.errors), heard.positions, producer.unanswered) == (1, [], 0)


@pytest.mark.parametrize(("chunked", "marker"), [(False, False), (True, False), (False, True)])
def test_send_says_what_protobuf_would(*, chunked: bool, marker: bool) -> None:
    frame = requests.relay_send(3, -1, b"m", 2, chunked=chunked, marker=marker)
    size = int.from_bytes(frame[4:8], "big")
    command = pb.BaseCommand.FromString(frame[8 : 8 + size]).send
    said = (command.producer_id, command.sequence_id, command.num_messages, command.is_chunk, command.marker)
    assert said == (3, 2**64 - 1, 2, chunked, marker)
    assert not command.HasField("highest_sequence_id")
