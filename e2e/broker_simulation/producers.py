"""Producers: they send in order, and send again what has no receipt, to whoever serves the topic then."""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass
from typing import Final

from magnetar.core.ids import Position, signed64
from magnetar.wire.pulsar import requests
from magnetar.wire.pulsar.generated import pulsar_api_pb2 as pb

from e2e.broker_simulation.clients import Attached, Client, entry_of, key_of, position_of
from e2e.broker_simulation.drawn.compaction import is_keyed
from e2e.broker_simulation.history import Content, Receipt
from e2e.broker_simulation.parameters import Parameters
from e2e.broker_simulation.protocol import Link

PATIENCE_SECONDS: Final = 8.0
"""Without any receipt for so long a producer looks for its topic's owner again."""
NO_POSITION: Final[Position] = (-1, -1)


@dataclass(slots=True)
class Pending:
    """What was sent and has no receipt."""

    content: Content
    entry: bytes
    asked_at: float


class Sequence:
    """What a producer's next life must know of this one."""

    def __init__(self) -> None:
        self.next_id = 0
        self.entries = 0
        self.epoch = 0


class Producer(Attached):
    """One producer of one topic."""

    def __init__(self, client: Client, topic: str, name: str, parameters: Parameters, sequence: Sequence) -> None:
        super().__init__(client, topic)
        self.name = name
        self._history = client.history.topics[topic]
        self._parameters = parameters
        self._sequence = sequence
        self._pending: deque[Pending] = deque()
        self._answered_at = 0.0
        """When the last receipt came, or it began to wait for one."""
        self._unanswered: deque[Pending] = deque()
        """Those of the pending ones that were sent on this connection, in this order."""

    async def attach(self, link: Link, end_id: int) -> None:
        """See `Attached.attach`."""
        sequence = self._sequence
        request = requests.ProducerRequest(topic=self.topic, name=self.name, epoch=sequence.epoch)
        sequence.epoch += 1
        answer = await link.ask(lambda request_id: requests.producer(request_id, end_id, request))
        self.client.note(f"produces at {link.broker}, last sequence id {signed64(answer.last_sequence_id)}")

    async def work(self, link: Link) -> None:
        """See `Attached.work`."""
        self._unanswered.clear()
        self._answered_at = self.client.now()
        for pending in self._pending:
            self._send(link, pending)
        parameters, sequence = self._parameters, self._sequence
        while self.link is link:
            if sequence.entries < parameters.entries and len(self._pending) < parameters.pending_max:
                self._send_next(link)
                await asyncio.sleep(self.chance.expovariate(1 / parameters.pause_seconds))
            elif self._pending:
                await self.wait(PATIENCE_SECONDS)
                if self._pending and self.client.now() - self._answered_at > PATIENCE_SECONDS:
                    link.abort()
            else:
                self.finished = True
                await self.leave()

    def forget(self) -> None:
        """See `Attached.forget`: what has no receipt is not sent again, as nobody knows of it any more."""
        self._pending.clear()

    def close_request(self, request_id: int, end_id: int) -> bytes:
        """See `Attached.close_request`."""
        return requests.close_producer(request_id, end_id)

    def detached(self, *, closed: bool) -> None:
        """See `Attached.detached`."""
        self.client.note("is detached")

    def take(self, command: pb.BaseCommand, rest: bytes) -> None:
        """See `End.take`."""
        if command.type == pb.BaseCommand.SEND_RECEIPT:
            self._receipt(command.send_receipt)
        elif command.type == pb.BaseCommand.SEND_ERROR:
            self.client.note(f"is refused {signed64(command.send_error.sequence_id)}: {command.send_error.error}")
            if self.link is not None:
                # As real clients: everything is sent again, in order, on another connection.
                self.link.abort()
        elif command.type == pb.BaseCommand.CLOSE_PRODUCER:
            self.told_to_leave(command.close_producer.assignedBrokerServiceUrl)

    def _receipt(self, receipt: pb.CommandSendReceipt) -> None:
        link = self.link
        if link is None:
            return
        sequence_id = signed64(receipt.sequence_id)
        position = position_of(receipt.message_id)
        self.client.note(f"has a receipt of {sequence_id} at {position}")
        if not self._unanswered or self._unanswered[0].content.sequence_id != sequence_id:
            expected = self._unanswered[0].content.sequence_id if self._unanswered else "nothing"
            self.client.history.wrong.append(f"{self.name} has a receipt of {sequence_id}, and waits for {expected}")
            link.abort()
            return
        pending = self._unanswered.popleft()
        self._answered_at = self.client.now()
        self._pending.remove(pending)
        self._history.receipts.append(
            Receipt(
                content=pending.content,
                position=None if position == NO_POSITION else position,
                broker=link.broker,
                link=link.number,
                asked_at=pending.asked_at,
                told_at=self.client.now(),
            )
        )
        self.news.set()

    def _send_next(self, link: Link) -> None:
        sequence, parameters = self._sequence, self._parameters
        messages = self.chance.randint(1, parameters.batch_messages_max)
        content = Content(self.name, sequence.next_id, messages)
        key = self._draw_key(content)
        sequence.next_id += messages
        sequence.entries += 1
        self._history.sent[content] = key
        self._history.asked[content] = self.client.now()
        pending = Pending(content, entry_of(content, key, self.client.world.clock.now_ms()), 0.0)
        self._pending.append(pending)
        self._send(link, pending)

    def _draw_key(self, content: Content) -> str:
        """Of the entry."""
        if is_keyed(self.name):
            return (key_of(content, 0) or "") if content.messages == 1 else ""
        keys = self._parameters.keys
        return f"key{self.chance.randrange(keys)}" if keys else ""

    def _send(self, link: Link, pending: Pending) -> None:
        content = pending.content
        self.client.note(f"sends {content}")
        attempts = self._history.attempts
        attempts[content] = attempts.get(content, 0) + 1
        pending.asked_at = self.client.now()
        self._unanswered.append(pending)
        self.client.history.on_moment()
        link.write(
            requests.send(
                self.id,
                content.sequence_id,
                pending.entry,
                num_messages=content.messages,
                highest_sequence_id=content.sequence_id + content.messages - 1 if content.messages > 1 else 0,
            )
        )
