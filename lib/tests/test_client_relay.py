"""Receipts of what is relayed from another cluster: by source position, or by sequence id."""

from __future__ import annotations

from typing import Any, cast

import pytest
from magnetar.client.relay import RelayProducer
from magnetar.client.unanswered import MARKER_RECEIPT, RelayedEntry, Unanswered
from magnetar.core.errors import MagnetarError
from magnetar.core.ids import Position
from magnetar.core.topic_name import TopicName
from magnetar.wire.pulsar import requests
from magnetar.wire.pulsar.command import encode_relayed_send
from magnetar.wire.pulsar.errors import PulsarError, ServerError
from magnetar.wire.pulsar.generated import pulsar_api_pb2 as pb
from magnetar.wire.pulsar.send_receipts import Receipt


def relayed(position: Position, sequence_id: int, *, marker: bool = False) -> RelayedEntry:
    return RelayedEntry(position, b"fo", b"ur", sequence_id, marker=marker)


class Heard:
    def __init__(self) -> None:
        self.positions: list[Position] = []
        self.errors: list[MagnetarError] = []

    def relayed(self, positions: list[Position]) -> None:
        self.positions += positions

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
    producer._unanswered.by_position = by_position
    return producer, heard


def receipt(first: int, second: int = -1) -> list[Receipt]:
    return [Receipt(0, first, second)]


def test_receipts_by_position_may_come_in_any_order() -> None:
    producer, heard = attached(by_position=True)
    producer.send([relayed((1, 0), 7), relayed((1, 1), 7)])
    producer.receipts(receipt(1, 1))
    assert producer.unanswered_bytes == 4
    producer.receipts(receipt(1, 0))
    producer.receipts(receipt(9, 9))
    assert heard.positions == [(1, 1), (1, 0)]
    assert (producer.unanswered, producer.unanswered_bytes) == (0, 0)


def test_the_receipt_of_a_marker_names_its_sequence_id() -> None:
    producer, heard = attached(by_position=True)
    producer.send([relayed((1, 0), 0), relayed((1, 1), 0, marker=True)])
    producer.receipts(receipt(0, MARKER_RECEIPT))
    assert heard.positions == [(1, 1)]


@pytest.mark.parametrize("order", [["position", "marker", "marker"], ["marker", "position", "marker"]])
def test_a_marker_that_is_named_by_position_holds_no_other_one_up(order: list[str]) -> None:
    """The other side has receipts of their own for the markers that it knows. Clients may write other ones."""
    producer, heard = attached(by_position=True)
    producer.send([relayed((1, entry_id), 0, marker=True) for entry_id in range(3)])
    for kind in order:
        producer.receipts(receipt(1, 0) if kind == "position" else receipt(0, MARKER_RECEIPT))
    assert sorted(heard.positions) == [(1, 0), (1, 1), (1, 2)]
    assert (producer.unanswered, producer.unanswered_bytes) == (0, 0)
    producer.send([relayed((1, 3), 0, marker=True)])
    producer.receipts(receipt(0, MARKER_RECEIPT))
    assert heard.positions[-1] == (1, 3)


def test_a_receipt_that_overtakes_is_not_taken_for_another_producers() -> None:
    """Without positions: also when entries of a third one come in between, and when the first receipt is the last."""
    producer, heard = attached(by_position=False)
    producer.send([relayed((1, 0), 5), relayed((1, 1), 5)])
    producer.receipts(receipt(5))
    producer.send([relayed((1, 2), 5)])
    producer.receipts(receipt(5))
    assert heard.positions == []
    producer.receipts(receipt(5))
    assert heard.positions == [(1, 0), (1, 1), (1, 2)]
    producer.send([relayed((1, 3), 5)])
    producer.receipts(receipt(5))
    assert heard.positions[-1] == (1, 3)


def test_of_entries_with_one_sequence_id_none_counts_as_stored_before_all_have_receipts() -> None:
    """Of two producers: the second one's may be a duplicate, which is answered first."""
    producer, heard = attached(by_position=False)
    producer.send([relayed((1, 0), 5), relayed((1, 1), 5), relayed((1, 2), 3)])
    producer.receipts(receipt(5))
    assert heard.positions == []
    producer.receipts(receipt(3))
    assert heard.positions == [(1, 2)]
    producer.receipts(receipt(5))
    assert heard.positions == [(1, 2), (1, 0), (1, 1)]
    assert (producer.unanswered, producer.unanswered_bytes) == (0, 0)


def test_a_sequence_id_that_is_used_again_begins_anew() -> None:
    producer, heard = attached(by_position=False)
    for entry_id in range(3):
        producer.send([relayed((1, entry_id), 5)])
        producer.receipts(receipt(5))
        producer.receipts(receipt(5))
    assert heard.positions == [(1, 0), (1, 1), (1, 2)]


def test_who_closes_when_it_hears_of_entries_hears_of_no_others() -> None:
    producer, heard = attached(by_position=False)
    producer.send([relayed((1, 0), 5), relayed((1, 1), 5), relayed((1, 2), 6)])

    def closing(positions: list[Position]) -> None:
        heard.positions += positions
        producer._end(PulsarError(ServerError.PERSISTENCE_ERROR, "staged"))

    heard.relayed = closing  # type: ignore[method-assign]
    for sequence_id in (5, 5, 6):
        producer.receipts(receipt(sequence_id))
    assert heard.positions == [(1, 0), (1, 1)]
    assert producer.unanswered_bytes == 0


def test_receipts_that_come_together_are_told_together() -> None:
    producer, heard = attached(by_position=True)
    told: list[list[Position]] = []

    def telling(positions: list[Position]) -> None:
        told.append(positions)

    heard.relayed = telling  # type: ignore[method-assign]
    producer.send([relayed((1, entry_id), 0, marker=entry_id == 2) for entry_id in range(4)])
    producer.receipts([*receipt(1, 0), *receipt(0, MARKER_RECEIPT), *receipt(9, 9), *receipt(1, 3)])
    assert told == [[(1, 0), (1, 2), (1, 3)]]
    producer.receipts(receipt(1, 0))
    assert len(told) == 1
    assert producer.oldest is not None
    assert producer.oldest.position == (1, 1)


def test_an_entry_that_is_refused_ends_the_producer_once() -> None:
    producer, heard = attached(by_position=True)
    wire = cast(Wire, producer._connection)
    producer.send([relayed((1, 0), 5)])
    producer.send_failed(5, PulsarError(ServerError.PERSISTENCE_ERROR, "no"))
    assert wire.frames[-1] == requests.close_producer(0, 0)
    producer.detached("")
    producer.receipts(receipt(1, 0))
    assert (len(heard.errors), heard.positions, producer.unanswered) == (1, [], 0)


async def test_who_is_not_connected_closes_without_a_word() -> None:
    producer, _ = attached(by_position=True)
    wire = cast(Wire, producer._connection)
    wire.closed = True
    await producer.close()
    await producer.close()
    assert wire.frames == []


@pytest.mark.parametrize(("chunked", "marker"), [(False, False), (True, False), (False, True)])
def test_send_says_what_protobuf_would(*, chunked: bool, marker: bool) -> None:
    frame = encode_relayed_send(3, -1, 1, 2, chunked=chunked, marker=marker)
    size = int.from_bytes(frame[4:8], "big")
    assert int.from_bytes(frame[:4], "big") == 4 + size + 1
    command = pb.BaseCommand.FromString(frame[8:]).send
    said = (command.producer_id, command.sequence_id, command.num_messages, command.is_chunk, command.marker)
    assert said == (3, 2**64 - 1, 2, chunked, marker)
    assert not command.HasField("highest_sequence_id")


def test_a_shadow_is_told_where_the_message_stands_as_protobuf_would() -> None:
    frame = encode_relayed_send(3, 5, 1, 1, chunked=False, marker=False, message_id=(2**40, 300)) + b"m"
    size = int.from_bytes(frame[4:8], "big")
    command = pb.BaseCommand.FromString(frame[8 : 8 + size]).send
    assert command.message_id == pb.MessageIdData(ledgerId=2**40, entryId=300)
    assert (command.producer_id, command.sequence_id, frame[8 + size :]) == (3, 5, b"m")


def test_what_is_forgotten_counts_for_no_later_receipt() -> None:
    unanswered = Unanswered()
    unanswered.frames(1, [relayed((1, 0), 5), relayed((1, 1), 5), relayed((1, 2), 5)])
    assert unanswered.answered(receipt(5)) == []
    unanswered.clear()
    assert (unanswered.count, unanswered.size_bytes, unanswered.oldest) == (0, 0, None)
    unanswered.frames(1, [relayed((2, 0), 5), relayed((2, 1), 5)])
    assert unanswered.answered(receipt(5)) == []
    assert unanswered.answered(receipt(5)) == [(2, 0), (2, 1)]
