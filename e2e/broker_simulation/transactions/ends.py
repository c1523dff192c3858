"""What a transactor holds on each topic: a producer, and a consumer of the subscription that it takes from."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from struct import Struct
from typing import Any, Final, cast

from magnetar.core.ids import Position, signed64, unsigned64
from magnetar.wire.pulsar import requests
from magnetar.wire.pulsar.enums import SubscriptionType
from magnetar.wire.pulsar.generated import pulsar_api_pb2 as pb
from magnetar.wire.pulsar.messages import frame_of

from e2e.broker_simulation.clients import Attached, Client, content_of, indexes_of, position_of, wire_id
from e2e.broker_simulation.drawn.transactions import SUBSCRIPTION, TransactionParameters
from e2e.broker_simulation.history import Content, Entry
from e2e.broker_simulation.producers import Sequence
from e2e.broker_simulation.protocol import ANSWER_SECONDS, Link, NoAnswer

LOOK_SECONDS: Final = 0.5
_SIZES: Final = Struct(">II")

TransactionBits = tuple[int, int]
"""Most significant bits, least significant bits."""


def bits_of(transaction: TransactionBits) -> dict[str, int]:
    """The fields of a command that name a transaction."""
    return {"txnid_most_bits": transaction[0], "txnid_least_bits": transaction[1]}


class OutputProducer(Attached):
    """Publishes in transactions, and sends nothing twice: what has no receipt fails its transaction."""

    def __init__(self, client: Client, topic: str, name: str, sequence: Sequence) -> None:
        super().__init__(client, topic)
        self.name = name
        self.sequence = sequence
        self._waiting: dict[int, asyncio.Future[Position]] = {}

    async def attach(self, link: Link, end_id: int) -> None:
        """See `Attached.attach`."""
        request = requests.ProducerRequest(topic=self.topic, name=self.name, epoch=self.sequence.epoch)
        self.sequence.epoch += 1
        await link.ask(lambda request_id: requests.producer(request_id, end_id, request))

    async def work(self, link: Link) -> None:
        """See `Attached.work`."""
        while self.link is link and not self.finished:
            await self.wait(LOOK_SECONDS)
        if self.link is link:
            await self.leave()

    async def send(self, content: Content, entry: bytes, transaction: TransactionBits) -> Position:
        """Publish; where it stands. `NoAnswer`, `PulsarError`."""
        link = self.link
        if link is None:
            raise NoAnswer(f"{self.name} is not attached")
        receipt: asyncio.Future[Position] = asyncio.get_running_loop().create_future()
        self._waiting[content.sequence_id] = receipt
        command = frame_of(
            pb.CommandSend(
                producer_id=self.id,
                sequence_id=unsigned64(content.sequence_id),
                num_messages=content.messages,
                highest_sequence_id=content.sequence_id + content.messages - 1,
                txnid_most_bits=transaction[0],
                txnid_least_bits=transaction[1],
            )
        )[8:]
        link.write(_SIZES.pack(4 + len(command) + len(entry), len(command)) + command + entry)
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                return await receipt
        except TimeoutError:
            link.abort()
            raise NoAnswer(f"{self.name} gets no receipt") from None
        finally:
            self._waiting.pop(content.sequence_id, None)

    def forget(self) -> None:
        """See `Attached.forget`."""
        self._waiting.clear()

    def close_request(self, request_id: int, end_id: int) -> bytes:
        """See `Attached.close_request`."""
        return requests.close_producer(request_id, end_id)

    def detached(self, *, closed: bool) -> None:
        """See `Attached.detached`."""
        waiting, self._waiting = self._waiting, {}
        for receipt in waiting.values():
            if not receipt.done():
                receipt.set_exception(NoAnswer(f"{self.name} is detached"))
                receipt.exception()  # Looked at: its program may be gone.

    def take(self, command: pb.BaseCommand, rest: bytes) -> None:
        """See `End.take`."""
        if command.type == pb.BaseCommand.SEND_RECEIPT:
            waiting = self._waiting.get(signed64(command.send_receipt.sequence_id))
            if waiting is not None and not waiting.done():
                waiting.set_result(position_of(command.send_receipt.message_id))
        elif command.type == pb.BaseCommand.SEND_ERROR:
            waiting = self._waiting.get(signed64(command.send_error.sequence_id))
            if waiting is not None and not waiting.done():
                waiting.set_exception(requests.error_from(command.send_error.error, command.send_error.message))
        elif command.type == pb.BaseCommand.CLOSE_PRODUCER:
            self.told_to_leave(command.close_producer.assignedBrokerServiceUrl)


@dataclass(slots=True, eq=False)
class Input:
    """An entry that a transactor has and has not acknowledged."""

    topic: str
    entry: Entry
    left: frozenset[int]
    """Of its messages."""
    link: Link
    """By which it came: the session that holds it."""


class InputConsumer(Attached):
    """Takes what transactors acknowledge."""

    def __init__(
        self, client: Client, topic: str, name: str, parameters: TransactionParameters, arrived: Callable[[], None]
    ) -> None:
        """`arrived` is told when an entry has come."""
        super().__init__(client, topic)
        self.name = name
        self.inbox: dict[Position, Input] = {}
        self._parameters = parameters
        self._owed = 0
        self._arrived = arrived

    async def attach(self, link: Link, end_id: int) -> None:
        """See `Attached.attach`."""
        self.inbox.clear()
        self._owed = 0
        request = requests.SubscribeRequest(
            topic=self.topic,
            subscription=SUBSCRIPTION,
            kind=cast(pb.CommandSubscribe.SubType, int(self._parameters.kind)),
            consumer_name=self.name,
            from_earliest=True,
        )
        await link.ask(lambda request_id: requests.subscribe(request_id, end_id, request))

    async def work(self, link: Link) -> None:
        """See `Attached.work`."""
        link.write(requests.flow(self.id, self._parameters.permits))
        while self.link is link and not self.finished:
            await self.wait(LOOK_SECONDS)
        if self.link is link:
            await self.leave()

    async def acknowledge(self, one: Input, indexes: frozenset[int], transaction: TransactionBits | None) -> None:
        """These messages of an entry, and be told. `NoAnswer`, `PulsarError`."""
        link = self.link
        if link is None or link is not one.link:
            raise NoAnswer(f"{self.name} does not hold {one.entry.position} any more")
        # As stock clients: a set for every batch, of all but these, whatever of the rest was acknowledged before.
        size = one.entry.content.messages
        remaining = frozenset(range(size)) - indexes if size > 1 else None
        message_id = wire_id(one.entry.position, size, remaining)
        body = pb.CommandAck(
            consumer_id=self.id,
            ack_type=pb.CommandAck.Individual,
            message_id=[message_id],
        )
        if transaction is not None:
            body.txnid_most_bits, body.txnid_least_bits = transaction

        def build(request_id: int) -> bytes:
            body.request_id = request_id
            return frame_of(body)

        await link.ask(build)

    def ask_again(self, some: Iterable[Input]) -> None:
        """For entries that it holds and has not acknowledged, as far as it knows."""
        link = self.link
        wanted = [one for one in some if link is not None and one.link is link]
        if link is None or not wanted:
            return
        body = pb.CommandRedeliverUnacknowledgedMessages(consumer_id=self.id)
        if self._parameters.kind is SubscriptionType.FAILOVER:
            self.inbox.clear()
        else:
            body.message_ids.extend(wire_id(one.entry.position) for one in wanted)
        link.write(frame_of(body))

    async def backlog(self) -> int:
        """What the broker says is left. `NoAnswer`, `PulsarError`."""
        link, end_id = self.link, self.id
        if link is None:
            raise NoAnswer(f"{self.name} is not attached")
        answer: Any = await link.ask(
            lambda request_id: frame_of(pb.CommandConsumerStats(request_id=request_id, consumer_id=end_id))
        )
        return int(answer.msgBacklog)

    def forget(self) -> None:
        """See `Attached.forget`."""
        self.inbox.clear()

    def close_request(self, request_id: int, end_id: int) -> bytes:
        """See `Attached.close_request`."""
        return requests.close_consumer(request_id, end_id)

    def detached(self, *, closed: bool) -> None:
        """See `Attached.detached`."""
        self.inbox.clear()

    def take(self, command: pb.BaseCommand, rest: bytes) -> None:
        """See `End.take`."""
        if command.type == pb.BaseCommand.CLOSE_CONSUMER:
            self.told_to_leave(command.close_consumer.assignedBrokerServiceUrl)
        elif command.type == pb.BaseCommand.MESSAGE and self.link is not None:
            self._delivered(self.link, command.message, rest)

    def _delivered(self, link: Link, message: pb.CommandMessage, rest: bytes) -> None:
        content, key = content_of(rest)
        entry = Entry(position_of(message.message_id), content, key)
        left = frozenset(range(content.messages))
        if message.ack_set:
            left = indexes_of(list(message.ack_set), content.messages)
        self.client.note(f"gets {content} at {entry.position} of {self.topic}, {sorted(left)}")
        self.client.history.shown.append((self.topic, entry))
        self.inbox[entry.position] = Input(self.topic, entry, left, link)
        self._owed += len(left)
        if 2 * self._owed >= self._parameters.permits:
            link.write(requests.flow(self.id, self._owed))
            self._owed = 0
        self._arrived()
