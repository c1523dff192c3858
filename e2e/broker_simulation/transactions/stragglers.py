"""Stragglers: programs that take part in the transactions of transactors, and whose frames come too late.

A transactor ends its transactions without knowing of them. Their frames are lost with a connection, or have no answer,
and are sent again when the producer or consumer is attached anew, as stock clients do. By then the transaction may have
ended, and the topic may be with another owner, which was told nothing of that end.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass
from struct import Struct
from typing import Any, Final

from magnetar.broker.transactions.names import coordinator_topic
from magnetar.core.ids import Position, signed64, unsigned64
from magnetar.wire.pulsar import requests
from magnetar.wire.pulsar.enums import SubscriptionType
from magnetar.wire.pulsar.errors import ServerError
from magnetar.wire.pulsar.generated import pulsar_api_pb2 as pb
from magnetar.wire.pulsar.messages import frame_of

from e2e.broker_simulation.clients import Attached, Client, entry_of, wire_id
from e2e.broker_simulation.consumers import Goal
from e2e.broker_simulation.drawn.late import LateParameters
from e2e.broker_simulation.drawn.transactions import SUBSCRIPTION
from e2e.broker_simulation.history import Content, LateAcknowledgement, LateMessage, TransactionHistory
from e2e.broker_simulation.producers import Sequence
from e2e.broker_simulation.protocol import Link, NoAnswer, PulsarError
from e2e.broker_simulation.transactions.transactors import NAME

OWN_SUBSCRIPTION: Final = "stragglers"
"""Where they acknowledge at the end: nobody else does there, so that nothing was acknowledged before."""
LOOK_SECONDS: Final = 0.2
PAUSE_SECONDS: Final = 0.1
PATIENCE_SECONDS: Final = 8.0
"""Without any answer for so long the topic's owner is looked up again."""
RECENT: Final = 8
"""Of the transactions, the newest ones, which frames are late for while there are faults."""
CANDIDATES: Final = 3
"""Of the entries, the newest ones that were sent to somebody, or confirmed: these may not be acknowledged yet."""
_SIZES: Final = Struct(">II")


def is_over(transaction: TransactionHistory) -> bool:
    """Whether a transaction has ended as its client was told, or can only be aborted."""
    return transaction.answered or (transaction.left and transaction.commit is not True)


@dataclass(slots=True, eq=False)
class _Pending:
    """A message without an answer."""

    message: LateMessage
    entry: bytes


class LateEnd(Attached):
    """What a straggler has on a topic: it works off transactions that wait for it, each for one frame."""

    def __init__(self, client: Client, topic: str, name: str) -> None:
        super().__init__(client, topic)
        self.name = name
        self.held: deque[TransactionHistory] = deque()
        """What waits until it is attached anew, as if it was lost with its connection."""
        self.hurried = False
        """Nothing waits any more; it ends when everything is answered."""

    def hurry(self) -> None:
        """Come to an end."""
        self.hurried = True
        self.news.set()

    def forget(self) -> None:
        """See `Attached.forget`."""
        self.held.clear()


class LateProducer(LateEnd):
    """Publishes, and sends again what has neither receipt nor refusal."""

    def __init__(self, client: Client, topic: str, name: str, sequence: Sequence, *, certain: bool) -> None:
        """`certain`: all transactions are over, whatever their clients know."""
        super().__init__(client, topic, name)
        self.at_once: deque[TransactionHistory] = deque()
        self._certain = certain
        self._sequence = sequence
        self._pending: dict[int, _Pending] = {}
        self._heard_at = 0.0

    async def attach(self, link: Link, end_id: int) -> None:
        """See `Attached.attach`."""
        request = requests.ProducerRequest(topic=self.topic, name=self.name, epoch=self._sequence.epoch)
        self._sequence.epoch += 1
        await link.ask(lambda request_id: requests.producer(request_id, end_id, request))

    async def work(self, link: Link) -> None:
        """See `Attached.work`."""
        self._heard_at = self.client.now()
        for pending in self._pending.values():
            self._write(link, pending)
        self.at_once.extend(self.held)
        self.held.clear()
        while self.link is link and not self.finished:
            if self.hurried:
                self.at_once.extend(self.held)
                self.held.clear()
            while self.at_once:
                self._send(link, self.at_once.popleft())
            if self.hurried and not self._pending:
                self.finished = True
                await self.leave()
            elif self._pending and self.client.now() - self._heard_at > PATIENCE_SECONDS:
                link.abort()
            else:
                await self.wait(LOOK_SECONDS)

    def _send(self, link: Link, transaction: TransactionHistory) -> None:
        content = Content(self.name, self._sequence.next_id, 1)
        self._sequence.next_id += 1
        history = self.client.history
        history.topics[self.topic].sent[content] = ""
        over = self._certain or transaction.answered
        message = LateMessage(transaction, self.topic, content, over)
        history.late_messages.append(message)
        entry = entry_of(content, "", self.client.world.clock.now_ms(), transaction.id)
        pending = self._pending[content.sequence_id] = _Pending(message, entry)
        self._heard_at = self.client.now()
        self._write(link, pending)

    def _write(self, link: Link, pending: _Pending) -> None:
        content, transaction = pending.message.content, pending.message.transaction
        attempts = self.client.history.topics[self.topic].attempts
        attempts[content] = attempts.get(content, 0) + 1
        self.client.note(f"sends {content} to {self.topic} in transaction {transaction.id}")
        self.client.history.on_transaction_step()
        body = pb.CommandSend(producer_id=self.id, sequence_id=unsigned64(content.sequence_id), num_messages=1)
        body.txnid_most_bits, body.txnid_least_bits = transaction.id
        command = frame_of(body)[8:]
        entry = pending.entry
        link.write(_SIZES.pack(4 + len(command) + len(entry), len(command)) + command + entry)

    def forget(self) -> None:
        """See `Attached.forget`."""
        super().forget()
        self.at_once.clear()
        self._pending.clear()

    def close_request(self, request_id: int, end_id: int) -> bytes:
        """See `Attached.close_request`."""
        return requests.close_producer(request_id, end_id)

    def detached(self, *, closed: bool) -> None:
        """See `Attached.detached`."""

    def take(self, command: pb.BaseCommand, rest: bytes) -> None:
        """See `End.take`."""
        self._heard_at = self.client.now()
        if command.type == pb.BaseCommand.SEND_RECEIPT:
            answered = self._pending.pop(signed64(command.send_receipt.sequence_id), None)
            if answered is not None:
                answered.message.confirmed = True
        elif command.type == pb.BaseCommand.SEND_ERROR:
            self._refused(command.send_error)
        elif command.type == pb.BaseCommand.CLOSE_PRODUCER:
            self.told_to_leave(command.close_producer.assignedBrokerServiceUrl)
        self.news.set()

    def _refused(self, error: pb.CommandSendError) -> None:
        self.client.note(f"is refused {signed64(error.sequence_id)} on {self.topic}: {error.message}")
        if error.error == pb.NotAllowedError:
            self._pending.pop(signed64(error.sequence_id), None)
        elif self.link is not None:
            self.link.abort()


class LateAcknowledger(LateEnd):
    """Acknowledges entries that others were sent, and asks again when it is not answered."""

    def __init__(self, client: Client, topic: str, name: str, subscription: str) -> None:
        super().__init__(client, topic, name)
        self._subscription = subscription
        self._asked: LateAcknowledgement | None = None
        """What has no answer yet."""

    @property
    def _alone(self) -> bool:
        """Whether nobody else acknowledges there: then each late one must be refused."""
        return self._subscription == OWN_SUBSCRIPTION

    async def attach(self, link: Link, end_id: int) -> None:
        """See `Attached.attach`."""
        request = requests.SubscribeRequest(
            topic=self.topic,
            subscription=self._subscription,
            kind=pb.CommandSubscribe.Shared,
            consumer_name=self.name,
            from_earliest=True,
        )
        await link.ask(lambda request_id: requests.subscribe(request_id, end_id, request))

    async def work(self, link: Link) -> None:
        """See `Attached.work`."""
        left = len(self.held)
        while self.link is link and not self.finished:
            if self._asked is not None or left:
                left -= self._asked is None
                await self._ask(link)
            elif self.hurried:
                left = len(self.held)
                if not left:
                    self.finished = True
                    await self.leave()
            else:
                await self.wait(LOOK_SECONDS)

    async def _ask(self, link: Link) -> None:
        late = self._asked
        if late is None:
            late = self._asked = self._next(self.held.popleft())
        if late is None:
            return
        self.client.note(f"acknowledges {late.position} of {self.topic} in transaction {late.transaction.id}")
        self.client.history.on_transaction_step()
        message_id = wire_id(late.position)
        body = pb.CommandAck(consumer_id=self.id, ack_type=pb.CommandAck.Individual, message_id=[message_id])
        body.txnid_most_bits, body.txnid_least_bits = late.transaction.id

        def build(request_id: int) -> bytes:
            body.request_id = request_id
            return frame_of(body)

        try:
            await link.ask(build)
            late.confirmed = True
        except PulsarError as error:
            self.client.note(f"is refused {late.position} of {self.topic}: {error}")
            if error.code != ServerError.TRANSACTION_CONFLICT:
                raise
        self._asked = None
        if self._alone:
            self.client.history.late_acknowledgements.append(late)

    def _next(self, transaction: TransactionHistory) -> LateAcknowledgement | None:
        """None: there is nothing to acknowledge, or the transaction is not over yet."""
        positions = self._positions()
        if positions and (self._alone or is_over(transaction)):
            return LateAcknowledgement(transaction, self.topic, self.chance.choice(positions))
        if not self.hurried:
            self.held.append(transaction)
        return None

    def _positions(self) -> list[Position]:
        history = self.client.history
        topic = history.topics[self.topic]
        if self._alone:
            return [entry.position for entry in topic.logs[-1]] if topic.logs else []
        shown = [entry.position for name, entry in history.shown if name == self.topic]
        confirmed = [receipt.position for receipt in topic.receipts[-CANDIDATES:] if receipt.position is not None]
        return shown[-CANDIDATES:] + confirmed

    def forget(self) -> None:
        """See `Attached.forget`."""
        super().forget()
        self._asked = None

    def close_request(self, request_id: int, end_id: int) -> bytes:
        """See `Attached.close_request`."""
        return requests.close_consumer(request_id, end_id)

    def detached(self, *, closed: bool) -> None:
        """See `Attached.detached`."""

    def take(self, command: pb.BaseCommand, rest: bytes) -> None:
        """See `End.take`."""
        if command.type == pb.BaseCommand.CLOSE_CONSUMER:
            self.told_to_leave(command.close_consumer.assignedBrokerServiceUrl)


class Straggler:
    """One program, while there are faults. A `Program` of its host."""

    def __init__(
        self, client: Client, name: str, parameters: LateParameters, goal: Goal, kind: SubscriptionType
    ) -> None:
        """`kind`: of the transactors' subscription."""
        self._client = client
        self._parameters = parameters
        self._goal = goal
        self._left = parameters.frames
        topics = list(client.history.topics)
        # Transactors know by these names that nothing is to be made of the messages.
        self._producers = {
            topic: LateProducer(client, topic, f"{NAME}-{name}-{number}", Sequence(), certain=False)
            for number, topic in enumerate(topics)
        }
        self._acknowledgers: dict[str, LateAcknowledger] = {}
        if kind is SubscriptionType.SHARED:
            self._acknowledgers = {topic: LateAcknowledger(client, topic, name, SUBSCRIPTION) for topic in topics}

    def reborn(self) -> None:
        """The program was killed, and begins anew on its host."""
        for end in self._ends():
            end.reborn()

    def _ends(self) -> list[LateEnd]:
        return [*self._producers.values(), *self._acknowledgers.values()]

    async def run(self) -> None:
        """Until all is sent and answered."""
        running = [asyncio.ensure_future(end.run()) for end in self._ends()]
        while not self._goal.drain:
            await asyncio.sleep(2 * self._parameters.pause_seconds * self._client.chance.random())
            if self._left:
                self._hold_one()
        for end in self._ends():
            end.hurry()
        await asyncio.gather(*running)

    def _hold_one(self) -> None:
        """A frame of some transaction of late."""
        chance, parameters = self._client.chance, self._parameters
        acknowledges = bool(self._acknowledgers) and chance.random() < parameters.acknowledged_share
        recent = self._client.history.transactions[-RECENT:]
        places = [
            (transaction, topic)
            for transaction in recent
            for topic in sorted({one[0] for one in (transaction.taken if acknowledges else transaction.sent)})
        ]
        if not places:
            return
        self._left -= 1
        transaction, topic = chance.choice(places)
        if acknowledges:
            self._acknowledgers[topic].held.append(transaction)
        elif chance.random() < parameters.at_once_share:
            self._producers[topic].at_once.append(transaction)
            self._producers[topic].news.set()
        else:
            self._producers[topic].held.append(transaction)


class LastStraggler:
    """One program, when every topic has another owner and all transactions are over. A `Program` of its host."""

    def __init__(self, client: Client, name: str, parameters: LateParameters, coordinators: int) -> None:
        self._client = client
        self._coordinators = coordinators
        transactions = client.history.transactions
        self._ends: list[LateEnd] = []
        for number, topic in enumerate(client.history.topics):
            producer = LateProducer(client, topic, f"{NAME}-{name}-{number}", Sequence(), certain=True)
            for end in (producer, LateAcknowledger(client, topic, name, OWN_SUBSCRIPTION)):
                count = min(parameters.frames_at_the_end, len(transactions))
                end.held.extend(client.chance.sample(transactions, count))
                self._ends.append(end)

    def reborn(self) -> None:
        """Never: nobody kills it."""

    async def run(self) -> None:
        """Until all is sent and answered."""
        for number in range(self._coordinators):
            await self._have_run(number)
        for end in self._ends:
            end.hurry()
        await asyncio.gather(*(end.run() for end in self._ends))

    async def _have_run(self, number: int) -> None:
        """An acknowledgement is answered, whatever its transaction, when its coordinator cannot be asked."""
        topic = str(coordinator_topic(number))

        def connect(request_id: int) -> Any:
            return requests.tc_client_connect(request_id, number)

        while True:
            try:
                await (await self._client.links.to_owner(topic)).ask(connect)
            except (NoAnswer, PulsarError) as error:
                self._client.note(f"finds no coordinator {number}: {type(error).__name__}")
                await asyncio.sleep(PAUSE_SECONDS)
            else:
                return
