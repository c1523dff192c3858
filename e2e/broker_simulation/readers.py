"""Readers: they read a topic from its first entry on, and go on where they were when they come back."""

from __future__ import annotations

from typing import Final

from magnetar.core.ids import Position
from magnetar.wire.pulsar import requests
from magnetar.wire.pulsar.generated import pulsar_api_pb2 as pb

from e2e.broker_simulation.clients import Attached, Client, content_of, position_of, wire_id
from e2e.broker_simulation.history import Entry
from e2e.broker_simulation.protocol import Link

PERMITS: Final = 20
LOOK_SECONDS: Final = 0.5
BEFORE_ALL: Final[Position] = (-1, -1)


class Reader(Attached):
    """One reader."""

    def __init__(self, client: Client, topic: str, name: str, read: list[Entry]) -> None:
        """`read` gets what is read, each entry once."""
        super().__init__(client, topic)
        self.name = name
        self.leave_when_done = False
        """Come to an end once everything is read."""
        self.read = read
        self._owed = 0
        self._lives = 0

    async def attach(self, link: Link, end_id: int) -> None:
        """See `Attached.attach`."""
        self._owed = 0
        self._lives += 1
        start = self.read[-1].position if self.read else BEFORE_ALL
        request = requests.SubscribeRequest(
            topic=self.topic,
            subscription=f"{self.name}-{self._lives}",
            consumer_name=self.name,
            durable=False,
            start_message_id=wire_id(start),
        )
        await link.ask(lambda request_id: requests.subscribe(request_id, end_id, request))
        self.client.note(f"reads from {start} on at {link.broker}")

    async def work(self, link: Link) -> None:
        """See `Attached.work`."""
        link.write(requests.flow(self.id, PERMITS))
        while self.link is link:
            await self.wait(LOOK_SECONDS)
            if self.leave_when_done and self.link is link and await self._at_the_end(link):
                self.finished = True
                await self.leave()

    async def _at_the_end(self, link: Link) -> bool:
        end_id = self.id
        answer = await link.ask(lambda request_id: requests.get_last_message_id(request_id, end_id))
        last = position_of(answer.last_message_id)
        return last[1] < 0 or bool(self.read and self.read[-1].position >= last)

    def forget(self) -> None:
        """See `Attached.forget`: it has written down how far it has read."""

    def close_request(self, request_id: int, end_id: int) -> bytes:
        """See `Attached.close_request`."""
        return requests.close_consumer(request_id, end_id)

    def detached(self, *, closed: bool) -> None:
        """See `Attached.detached`."""

    def take(self, command: pb.BaseCommand, rest: bytes) -> None:
        """See `End.take`."""
        if command.type == pb.BaseCommand.CLOSE_CONSUMER:
            self.told_to_leave(command.close_consumer.assignedBrokerServiceUrl)
        if command.type != pb.BaseCommand.MESSAGE:
            return
        content, key = content_of(rest)
        entry = Entry(position_of(command.message.message_id), content, key)
        # Of a start its entry comes as well.
        if not self.read or entry.position != self.read[-1].position:
            self.read.append(entry)
        self._owed += content.messages
        if 2 * self._owed >= PERMITS and self.link is not None:
            self.link.write(requests.flow(self.id, self._owed))
            self._owed = 0
        self.news.set()
