"""Clients that only shadows have: who tries to publish there, and who notes when entries come."""

from __future__ import annotations

from typing import Final

from magnetar.core.ids import Position, signed64
from magnetar.wire.pulsar import requests
from magnetar.wire.pulsar.command import encode_relayed_send
from magnetar.wire.pulsar.errors import ServerError
from magnetar.wire.pulsar.generated import pulsar_api_pb2 as pb

from e2e.broker_simulation.clients import Attached, Client, entry_of
from e2e.broker_simulation.history import Content
from e2e.broker_simulation.protocol import Link
from e2e.broker_simulation.readers import Reader

PAUSE_SECONDS: Final = 0.5
BEYOND: Final = 5
"""By so many entries a position is ahead that an intruder makes up."""


class PunctualReader(Reader):
    """A reader that notes when each entry comes for the first time."""

    def __init__(self, client: Client, topic: str, name: str) -> None:
        super().__init__(client, topic, name, [])
        self.arrivals: dict[Position, float] = {}

    def take(self, command: pb.BaseCommand, rest: bytes) -> None:
        """See `End.take`."""
        super().take(command, rest)
        if self.read:
            self.arrivals.setdefault(self.read[-1].position, self.client.now())


class Intruder(Attached):
    """Publishes to a shadow, with and without a position, and must be refused."""

    def __init__(self, client: Client, topic: str, name: str) -> None:
        super().__init__(client, topic)
        self.name = name
        self.leaves_soon = False
        """Come to an end."""
        self.refusals = 0
        self._next_id = 0

    async def attach(self, link: Link, end_id: int) -> None:
        """See `Attached.attach`."""
        request = requests.ProducerRequest(topic=self.topic, name=self.name)
        await link.ask(lambda request_id: requests.producer(request_id, end_id, request))

    async def work(self, link: Link) -> None:
        """See `Attached.work`."""
        while self.link is link:
            if self.leaves_soon and self.refusals:
                self.finished = True
                await self.leave()
            else:
                self._send(link)
                await self.wait(PAUSE_SECONDS)

    def _send(self, link: Link) -> None:
        sequence_id, self._next_id = self._next_id, self._next_id + 1
        message = entry_of(Content(self.name, sequence_id, 1), "", self.client.world.clock.now_ms())
        position = self._made_up() if self.chance.random() < 0.5 else None
        self.client.note(f"sends {sequence_id} at {position}")
        head = encode_relayed_send(
            self.id, sequence_id, len(message), 1, chunked=False, marker=False, message_id=position
        )
        link.write(head + message)

    def _made_up(self) -> Position:
        """Behind what is confirmed, so that a shadow which believes it shows what nobody has confirmed."""
        receipts = self.client.history.topics[self.topic].receipts
        told = [receipt.position for receipt in receipts if receipt.position is not None]
        ledger_id, entry_id = max(told, default=(0, 0))
        return ledger_id, entry_id + self.chance.randint(1, BEYOND)

    def take(self, command: pb.BaseCommand, rest: bytes) -> None:
        """See `End.take`."""
        if command.type == pb.BaseCommand.SEND_RECEIPT:
            told = signed64(command.send_receipt.sequence_id)
            self.client.history.wrong.append(f"{self.topic}, a shadow, has taken {told} of {self.name}")
        elif command.type == pb.BaseCommand.SEND_ERROR:
            self.refusals += 1
            if command.send_error.error != int(ServerError.NOT_ALLOWED_ERROR):
                self.client.note(f"is refused with {command.send_error.error}")
        elif command.type == pb.BaseCommand.CLOSE_PRODUCER:
            self.told_to_leave(command.close_producer.assignedBrokerServiceUrl)

    def forget(self) -> None:
        """See `Attached.forget`."""

    def close_request(self, request_id: int, end_id: int) -> bytes:
        """See `Attached.close_request`."""
        return requests.close_producer(request_id, end_id)

    def detached(self, *, closed: bool) -> None:
        """See `Attached.detached`."""
