"""Receipts of what is relayed from another cluster: by source position, or by sequence id."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest
from magnetar.client.addresses import BrokerAddress
from magnetar.client.errors import ConnectionFailed, TimedOut
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
    """A connection that takes frames, and answers requests as a test says. It is its own pool and lookup service."""

    closed = False
    address = BrokerAddress("west", 6650, tls=False)
    answers_positions = True

    def __init__(self, answer: object = None) -> None:
        self.frames: list[bytes] = []
        self.requests: list[bytes] = []
        self.producers: dict[int, RelayProducer] = {}
        self.moves: list[tuple[str, bool]] = []
        self.meanwhile: Callable[[], None] = lambda: None
        """What happens before an answer comes."""
        self._answer = answer

    async def broker_of(self, topic: TopicName) -> BrokerAddress:
        del topic
        return self.address

    def moved(self, topic: TopicName, url: str, *, tls: bool) -> None:
        del topic
        self.moves.append((url, tls))

    def forget_move(self, topic: TopicName) -> None:
        del topic
        self.moves.clear()

    async def get(self, address: BrokerAddress) -> Wire:
        del address
        return self

    def attach_producer(self, producer: RelayProducer) -> int:
        self.producers[4] = producer
        return 4

    async def request(self, encode: Callable[[int], bytes]) -> object:
        self.requests.append(encode(9))
        self.meanwhile()
        if isinstance(self._answer, Exception):
            raise self._answer
        return self._answer

    def write_parts(self, frames: list[bytes]) -> None:
        self.frames += frames

    def write(self, frame: bytes) -> None:
        self.frames.append(frame)

    def detach(self, end_id: int) -> None:
        self.producers.pop(end_id, None)


def attached(*, by_position: bool) -> tuple[RelayProducer, Heard]:
    heard = Heard()
    producer = RelayProducer(cast(Any, None), TopicName.parse("t"), "pulsar.repl.a-->b", heard)
    producer._connection = cast(Any, Wire())
    producer._unanswered.by_position = by_position
    return producer, heard


READY = pb.CommandProducerSuccess(request_id=9, producer_name="n", producer_ready=True)


def unopened(wire: Wire, topic: str = "t") -> tuple[RelayProducer, Heard]:
    heard = Heard()
    parts = SimpleNamespace(pool=wire, lookup=wire)
    return RelayProducer(cast(Any, parts), TopicName.parse(topic), "pulsar.repl.a-->b", heard), heard


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


@pytest.mark.parametrize("at", [0, 1, 2])
def test_a_marker_that_is_named_by_position_holds_no_other_one_up(at: int) -> None:
    """The other side has receipts of their own for the markers that it knows. Clients may write other ones."""
    producer, heard = attached(by_position=True)
    producer.send([relayed((1, entry_id), 0, marker=True) for entry_id in range(3)])
    receipts = [receipt(0, MARKER_RECEIPT), receipt(0, MARKER_RECEIPT)]
    receipts.insert(at, receipt(1, 0))
    for each in receipts[:2]:
        producer.receipts(each)
    assert len(heard.positions) == (1 if at < 2 else 0)  # Of the other two, nobody knows which one is stored.
    producer.receipts(receipts[2])
    assert sorted(heard.positions) == [(1, 0), (1, 1), (1, 2)]
    assert (producer.unanswered, producer.unanswered_bytes) == (0, 0)
    producer.send([relayed((1, 3), 0, marker=True), relayed((1, 4), 0, marker=True)])
    producer.receipts(receipt(0, MARKER_RECEIPT))
    assert len(heard.positions) == 3
    producer.receipts(receipt(0, MARKER_RECEIPT))
    assert heard.positions[3:] == [(1, 3), (1, 4)]


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
    producer.send([relayed((1, 3), 5), relayed((1, 4), 5)])
    producer.receipts(receipt(5))
    assert len(heard.positions) == 3
    producer.receipts(receipt(5))
    assert heard.positions[3:] == [(1, 3), (1, 4)]


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
    assert producer.oldest is not None
    assert producer.oldest.position == (1, 0)
    producer.receipts([*receipt(1, 0), *receipt(0, MARKER_RECEIPT), *receipt(9, 9), *receipt(1, 3)])
    assert told == [[(1, 0), (1, 2), (1, 3)]]
    producer.receipts(receipt(1, 0))
    assert len(told) == 1
    assert producer.oldest.position == (1, 1)


def test_an_entry_that_is_refused_ends_the_producer_once() -> None:
    producer, heard = attached(by_position=True)
    wire = cast(Wire, producer._connection)
    producer.send([relayed((1, 0), 5)])
    producer.send_failed(5, PulsarError(ServerError.PERSISTENCE_ERROR, "no"))
    assert wire.frames[-1] == requests.close_producer(0, 0)
    producer.send_failed(6, PulsarError(ServerError.PERSISTENCE_ERROR, "no"))
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


def test_a_send_says_of_its_entry_what_the_other_side_has_to_know() -> None:
    unanswered = Unanswered()
    entry = RelayedEntry((8, 9), b"he", b"ad", 5, num_messages=3, chunked=True, marker=True, shadowed=True)
    sent = encode_relayed_send(2, 5, 4, 3, chunked=True, marker=True, message_id=(8, 9))
    assert unanswered.frames(2, [entry]) == [sent, b"he", b"ad"]
    plain = encode_relayed_send(2, 6, 4, 1, chunked=False, marker=False)
    assert unanswered.frames(2, [relayed((8, 10), 6)]) == [plain, b"fo", b"ur"]


# --- from its beginning to its end


async def test_it_opens_under_its_own_name() -> None:
    """Another cluster's deduplication knows it by this name, whichever broker sends."""
    wire = Wire(READY)
    producer, _ = unopened(wire)
    await producer.open()
    opened = pb.BaseCommand.FromString(wire.requests[0][8:]).producer
    assert (opened.producer_name, opened.user_provided_producer_name, opened.producer_id) == (
        "pulsar.repl.a-->b",
        True,
        4,
    )
    assert (producer.remote_address, producer.by_position) == ("west:6650", True)


@pytest.mark.parametrize(
    ("topic", "answers_positions"),
    [("non-persistent://public/default/t", True), ("persistent://public/default/t", False)],
)
async def test_receipts_name_no_position_where_nothing_is_stored_or_the_broker_cannot(
    topic: str, *, answers_positions: bool
) -> None:
    wire = Wire(READY)
    wire.answers_positions = answers_positions
    producer, _ = unopened(wire, topic)
    await producer.open()
    assert not producer.by_position


@pytest.mark.parametrize(
    ("answer", "raised"),
    [
        (PulsarError(ServerError.PRODUCER_BUSY, "busy"), PulsarError),
        (pb.CommandProducerSuccess(request_id=9, producer_name="n", producer_ready=False), TimedOut),
    ],
)
async def test_who_may_not_open_leaves_nothing_behind(answer: object, raised: type[MagnetarError]) -> None:
    """Neither here nor at the broker, which may let it in later."""
    wire = Wire(answer)
    producer, heard = unopened(wire)
    with pytest.raises(raised):
        await producer.open()
    assert (wire.producers, wire.frames) == ({}, [requests.close_producer(0, 4)])
    assert (producer.remote_address, heard.errors) == ("", [])


@pytest.mark.parametrize(
    ("answer", "moves"),
    [(PulsarError(ServerError.TOPIC_NOT_FOUND, "none"), 0), (ConnectionFailed("cut"), 1)],
    ids=["refused", "cut off"],
)
async def test_a_move_is_forgotten_where_the_topic_is_refused_and_no_earlier(answer: Exception, moves: int) -> None:
    wire = Wire(answer)
    producer, _ = unopened(wire)
    producer.moved("pulsar://green:6650", tls=False)
    with pytest.raises(type(answer)):
        await producer.open()
    assert len(wire.moves) == moves


@pytest.mark.parametrize("lost", ["connection", "topic"])
async def test_who_is_let_go_of_while_it_opens_is_not_open(lost: str) -> None:
    """Whoever opens hears of it by that, and by nothing else."""
    wire = Wire(READY)
    producer, heard = unopened(wire)

    def losing() -> None:
        if lost == "connection":
            wire.closed = True
        else:
            producer.detached("")

    wire.meanwhile = losing
    with pytest.raises(ConnectionFailed):
        await producer.open()
    assert (producer.remote_address, heard.errors) == ("", [])


def test_nothing_is_sent_on_a_connection_that_is_closed() -> None:
    producer, _ = attached(by_position=True)
    wire = cast(Wire, producer._connection)
    wire.closed = True
    producer.send([relayed((1, 0), 5)])
    assert (wire.frames, producer.unanswered) == ([], 0)


def test_a_lost_connection_is_told_with_its_address_and_once() -> None:
    producer, heard = attached(by_position=True)
    wire = cast(Wire, producer._connection)
    producer.send([relayed((1, 0), 5)])
    producer.detached("")
    producer.detached("")
    assert len(heard.errors) == 1
    assert "west:6650" in str(heard.errors[0])
    assert (producer.unanswered, producer.unanswered_bytes, producer.remote_address) == (0, 0, "")
    sent = len(wire.frames)
    producer.send([relayed((1, 1), 5)])
    assert (len(wire.frames), producer.unanswered) == (sent, 0)


def test_a_refusal_on_a_connection_that_is_closed_is_not_answered() -> None:
    producer, heard = attached(by_position=True)
    wire = cast(Wire, producer._connection)
    wire.producers[0] = producer
    wire.closed = True
    producer.send_failed(5, PulsarError(ServerError.PERSISTENCE_ERROR, "no"))
    assert (wire.producers, wire.frames, len(heard.errors)) == ({}, [], 1)


@pytest.mark.parametrize("answer", [READY, PulsarError(ServerError.SERVICE_NOT_READY, "moving")])
async def test_who_has_closed_hears_nothing_more(answer: object) -> None:
    """Also when the broker does not let it go in peace."""
    wire = Wire(READY)
    producer, heard = unopened(wire)
    await producer.open()
    producer.send([relayed((1, 0), 5), relayed((1, 1), 6)])
    wire._answer = answer
    left: list[int] = []

    def hearing() -> None:
        left.append(producer.unanswered)
        producer.receipts(receipt(1, 0))
        producer.send_failed(6, PulsarError(ServerError.PERSISTENCE_ERROR, "no"))

    wire.meanwhile = hearing
    await producer.close()
    assert wire.requests[-1] == requests.close_producer(9, 4)
    assert (wire.producers, left, producer.remote_address) == ({}, [0], "")
    producer.detached("")
    assert (heard.positions, heard.errors) == ([], [])


@pytest.mark.parametrize("tls", [False, True])
def test_a_topic_that_moves_is_looked_up_where_it_goes_on(*, tls: bool) -> None:
    wire = Wire()
    producer, _ = unopened(wire)
    producer.moved("pulsar://green:6650", tls=tls)
    assert wire.moves == [("pulsar://green:6650", tls)]
