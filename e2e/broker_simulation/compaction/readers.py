"""Readers with `readCompacted`: they read a topic from the first message that is left to the last, again and again."""

from __future__ import annotations

import asyncio
from typing import Final

from magnetar.core.ids import Position
from magnetar.wire.pulsar import requests
from magnetar.wire.pulsar.batch import split_batch
from magnetar.wire.pulsar.errors import BadMetadata
from magnetar.wire.pulsar.generated import pulsar_api_pb2 as pb
from magnetar.wire.pulsar.metadata import checksum_ok, skim

from e2e.broker_simulation.clients import Attached, Client, key_of, payload_of, position_of, wire_id
from e2e.broker_simulation.consumers import Goal
from e2e.broker_simulation.history import GARBLED, CompactedEntry, CompactedReading, Content
from e2e.broker_simulation.protocol import Link

LOOK_SECONDS: Final = 0.1
BEFORE_ALL: Final[Position] = (-1, -1)


class CompactedReader(Attached):
    """One reader. With a goal it begins anew until everything is to come to an end; without one it reads once, while
    nothing changes."""

    def __init__(
        self,
        client: Client,
        topic: str,
        name: str,
        *,
        permits: int,
        slow: bool = False,
        pause_seconds: float = 0.0,
        goal: Goal | None = None,
        floor: Position = BEFORE_ALL,
    ) -> None:
        """`slow`: it gives permits a while after it has used them. `floor`: of a reading while nothing changes, what
        compaction has gone through at least."""
        super().__init__(client, topic)
        self.name = name
        self._permits = permits
        self._slow = slow
        self._pause_seconds = pause_seconds
        self._goal = goal
        self._owed = 0
        self._lives = 0
        self.reading = CompactedReading(name, topic, quiet=goal is None, floor=floor)
        if goal is not None:
            client.history.compacted.append(self.reading)

    async def attach(self, link: Link, end_id: int) -> None:
        """See `Attached.attach`."""
        self._owed = 0
        self._lives += 1
        start = BEFORE_ALL
        if self.reading.entries:
            start = self.reading.entries[-1].position
            self.reading.resumed.append(start)
        request = requests.SubscribeRequest(
            topic=self.topic,
            subscription=f"{self.name}-{self._lives}",
            consumer_name=self.name,
            durable=False,
            start_message_id=wire_id(start),
            read_compacted=True,
        )
        await link.ask(lambda request_id: requests.subscribe(request_id, end_id, request))
        self.client.note(f"reads compacted from {start} on at {link.broker}")

    async def work(self, link: Link) -> None:
        """See `Attached.work`."""
        link.write(requests.flow(self.id, self._permits))
        while self.link is link:
            before = len(self.reading.entries)
            await asyncio.sleep(LOOK_SECONDS)
            self._give_permits()
            if self.link is link and len(self.reading.entries) == before and await self._at_the_end(link):
                if self._goal is None or self._goal.drain:
                    self.finished = True
                await self.leave()
                if not self.finished:
                    await self._begin_anew()
                return

    async def _begin_anew(self) -> None:
        client = self.client
        self.reading = CompactedReading(self.name, self.topic)
        client.history.compacted.append(self.reading)
        await asyncio.sleep(self._pause_seconds * client.chance.random())

    async def _at_the_end(self, link: Link) -> bool:
        """Whether everything is read that was there when it was asked."""
        end_id, reading = self.id, self.reading
        answer = await link.ask(lambda request_id: requests.get_last_message_id(request_id, end_id))
        last = position_of(answer.last_message_id)
        if last[1] >= 0 and not (reading.entries and reading.entries[-1].position >= last):
            return False
        reading.whole, reading.end, reading.ended_at = True, last, self.client.now()
        self.client.note(f"has read {len(reading.entries)} entries, up to {last}")
        return True

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
        content, indexes = what_is_left_of(rest)
        position, entries = position_of(command.message.message_id), self.reading.entries
        # Of a start its entry comes as well.
        if not entries or position != entries[-1].position:
            entries.append(CompactedEntry(position, content, indexes, self.client.now()))
        self._owed += max(1, content.messages)
        if not self._slow:
            self._give_permits()
        self.news.set()

    def _give_permits(self) -> None:
        if 2 * self._owed >= self._permits and self.link is not None:
            self.link.write(requests.flow(self.id, self._owed))
            self._owed = 0


def what_is_left_of(data: bytes) -> tuple[Content, frozenset[int]]:
    """What an entry held, and which of its messages are there; `GARBLED` for what no producer made."""
    try:
        view = skim(data)
        content = Content(view.producer_name, view.sequence_id, view.num_messages)
        if not view.is_batch:
            right = data[view.payload_start :] == payload_of(content, 0) and view.partition_key == key_of(content, 0)
            indexes = frozenset({0})
        else:
            singles = split_batch(data)
            indexes = frozenset(index for index, (single, _) in enumerate(singles) if not single.compacted_out)
            right = len(singles) == content.messages and all(
                singles[index][1] == payload_of(content, index)
                and (singles[index][0].partition_key or None) == key_of(content, index)
                for index in indexes
            )
    except BadMetadata:
        return GARBLED, frozenset()
    if not right or not checksum_ok(data, 0, len(data)):
        return GARBLED, frozenset()
    return content, indexes
