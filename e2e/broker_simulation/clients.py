"""What producers, consumers and readers have in common: programs that find a topic's owner again and again."""

from __future__ import annotations

import asyncio
import contextlib
import random
from abc import ABC, abstractmethod
from typing import Any, Final, Protocol

from magnetar.core.ids import Position, signed64, unsigned64
from magnetar.wire.pulsar.batch import build_batch, build_message, split_batch
from magnetar.wire.pulsar.errors import BadMetadata
from magnetar.wire.pulsar.generated import pulsar_api_pb2 as pb
from magnetar.wire.pulsar.messages import encode_command
from magnetar.wire.pulsar.metadata import checksum_ok, skim

from e2e.broker_simulation.drawn.compaction import is_keyed, message_of
from e2e.broker_simulation.history import GARBLED, Content, History
from e2e.broker_simulation.metadata_witness import MetadataWitness
from e2e.broker_simulation.protocol import Entrances, Link, Links, NoAnswer, PulsarError, host_of
from e2e.simulation.cluster import World

ATTEMPT_PAUSE_SECONDS: Final = 0.1
"""After an attempt that failed, about."""


def payload_of(content: Content, index: int) -> bytes:
    """One message of an entry; a tombstone has none."""
    sequence_id = content.sequence_id + index
    if not message_of(content.producer, sequence_id).has_value:
        return b""
    return b"%s %d" % (content.producer.encode(), sequence_id)


def key_of(content: Content, index: int) -> str | None:
    """The key of one message of an entry, where each has its own."""
    return message_of(content.producer, content.sequence_id + index).key


def entry_of(content: Content, key: str, now_ms: int, transaction: tuple[int, int] | None = None) -> bytes:
    """headersAndPayload, as SEND carries them."""
    metadata = pb.MessageMetadata(
        producer_name=content.producer, sequence_id=unsigned64(content.sequence_id), publish_time=now_ms
    )
    if key:
        metadata.partition_key = key
    if transaction is not None:
        metadata.txnid_most_bits, metadata.txnid_least_bits = transaction
    if content.messages == 1:
        return build_message(metadata, payload_of(content, 0))
    metadata.highest_sequence_id = content.sequence_id + content.messages - 1
    singles = [pb.SingleMessageMetadata(partition_key=key_of(content, index)) for index in range(content.messages)]
    return build_batch(metadata, [(single, payload_of(content, index)) for index, single in enumerate(singles)])


def content_of(data: bytes) -> tuple[Content, str]:
    """What an entry holds, and its key; `GARBLED` for what no producer made."""
    try:
        view = skim(data)
        content = Content(view.producer_name, view.sequence_id, view.num_messages)
        payloads = [data[view.payload_start :]]
        if view.is_batch:
            singles = split_batch(data)
            payloads = [payload for _, payload in singles]
            if is_keyed(content.producer):
                keys = [single.partition_key or None for single, _ in singles]
                if keys != [key_of(content, index) for index in range(content.messages)]:
                    return GARBLED, ""
    except BadMetadata:
        return GARBLED, ""
    right = [payload_of(content, index) for index in range(content.messages)]
    if payloads != right or not checksum_ok(data, 0, len(data)):
        return GARBLED, ""
    return content, view.partition_key or ""


def position_of(message_id: pb.MessageIdData) -> Position:
    return signed64(message_id.ledgerId), signed64(message_id.entryId)


def wire_id(position: Position, batch_size: int = 0, remaining: frozenset[int] | None = None) -> pb.MessageIdData:
    """A message id; `remaining` are the messages of a batch that are not meant."""
    message_id = pb.MessageIdData(ledgerId=unsigned64(position[0]), entryId=unsigned64(position[1]))
    if remaining is not None:
        message_id.batch_size = batch_size
        words = [0] * (-(-batch_size // 64))
        for index in remaining:
            words[index // 64] |= 1 << (index % 64)
        message_id.ack_set.extend(signed64(word) for word in words)
    return message_id


def indexes_of(ack_set: list[int], batch_size: int) -> frozenset[int]:
    """The messages of a batch that an ack set names: those that are not acknowledged."""
    return frozenset(
        index for index in range(batch_size) if index // 64 < len(ack_set) and ack_set[index // 64] >> (index % 64) & 1
    )


def command(kind: pb.BaseCommand.Type, **body: Any) -> bytes:
    """A frame that no builder of `requests` makes."""
    return encode_command(pb.BaseCommand(type=kind, **body))


class Client:
    """One client program's surroundings."""

    def __init__(
        self, world: World, name: str, entrances: Entrances, history: History, witness: MetadataWitness
    ) -> None:
        self.name = name
        self.world = world
        self.history = history
        self.witness = witness
        self.chance = world.chance(f"client {name}")
        self._entrances = entrances
        self._elsewhere: Entrances | None = None
        self._move_share = 0.0
        self.links = self.new_links()

    def new_links(self) -> Links:
        """Connections of a program that has just begun."""
        self.links = Links(self._entrances, self.history.next_link, self.chance.choice)
        return self.links

    def may_move(self, elsewhere: Entrances, share: float) -> None:
        """It goes over to other entrances, and back, before so many of its attachments."""
        self._elsewhere, self._move_share = elsewhere, share

    def move_perhaps(self) -> None:
        """It is about to look for a broker."""
        if self._elsewhere is not None and self.chance.random() < self._move_share:
            self._entrances, self._elsewhere = self._elsewhere, self._entrances
            self.links.begin_at(self._entrances)
            self.note(f"goes to {self._entrances.hosts}")

    def now(self) -> float:
        """Virtual seconds."""
        return self.world.loop.time()

    def note(self, what: str) -> None:
        """Something happened, for the trace."""
        self.world.loop.trace.note(self.name, what)


class Attached(ABC):
    """A producer or consumer: attached to a broker, or on its way to one. An `End` of its link."""

    def __init__(self, client: Client, topic: str) -> None:
        self.client = client
        self.topic = topic
        self.link: Link | None = None
        self.id = 0
        self.finished = False
        """Nothing is left to do."""
        self.news = asyncio.Event()
        """Set when something has come."""
        self._assigned: str | None = None
        """The broker has closed it, and named another one, or none."""

    @property
    def chance(self) -> random.Random:
        """The client's."""
        return self.client.chance

    @abstractmethod
    async def attach(self, link: Link, end_id: int) -> None:
        """Open it on a connection. `NoAnswer`, `PulsarError`."""

    @abstractmethod
    async def work(self, link: Link) -> None:
        """What it does while it is attached; returns when it is not, or has finished."""

    @abstractmethod
    def detached(self, *, closed: bool) -> None:
        """It is attached no more; `closed`: as it wanted."""

    def reborn(self) -> None:
        """The program was killed, and begins anew on its host. It knows no more than what `forget` leaves."""
        self.client.new_links()
        self.news = asyncio.Event()
        self._assigned = None
        if self.link is not None:
            self._detach(closed=False)
        self.forget()

    @abstractmethod
    def forget(self) -> None:
        """What was in the memory of a program that was killed."""

    async def run(self) -> None:
        """Until it has finished."""
        while not self.finished:
            try:
                await self._attach_and_work()
            except (NoAnswer, PulsarError) as error:
                self.client.world.loop.trace.remark(self.client.name, f"{type(error).__name__}: {error}")
                await asyncio.sleep(ATTEMPT_PAUSE_SECONDS * (0.5 + self.chance.random()))

    async def _attach_and_work(self) -> None:
        assigned, self._assigned = self._assigned, None
        if not assigned:
            self.client.move_perhaps()
        links = self.client.links
        link = await links.to_broker(host_of(assigned)) if assigned else await links.to_owner(self.topic)
        end_id = link.new_id()
        link.ends[end_id] = self
        self.id = end_id
        try:
            await self.attach(link, end_id)
        except BaseException as error:
            self._forget(link, end_id)
            if isinstance(error, NoAnswer):
                # As Java's client does: else the broker may open it late, for nobody.
                link.write(self.close_request(link.new_id(), end_id))
            raise
        self.link = link
        try:
            # The answer and a CLOSE behind it may come in one piece, as after a pause.
            if self._closed_already(link):
                raise NoAnswer(f"{self.topic} was closed by the broker as soon as it was open")
            await self.work(link)
        finally:
            if self.link is link:
                self._detach(closed=False)
            self._forget(link, end_id)

    def _closed_already(self, link: Link) -> bool:
        return self._assigned is not None or link.ends.get(self.id) is not self

    def _forget(self, link: Link, end_id: int) -> None:
        if link.ends.get(end_id) is self:
            del link.ends[end_id]

    async def leave(self) -> None:
        """Close it, as it likes. `NoAnswer`, `PulsarError`."""
        link, end_id = self.link, self.id
        if link is not None:
            self.leaves()
            await link.ask(lambda request: self.close_request(request, end_id))
            self._forget(link, end_id)
            if self.link is link and self.id == end_id:
                self._detach(closed=True)

    def leaves(self) -> None:  # noqa: B027  (most have nothing to do then)
        """It is about to ask the broker to close it."""

    @abstractmethod
    def close_request(self, request_id: int, end_id: int) -> bytes:
        """What closes it."""

    def _detach(self, *, closed: bool) -> None:
        self.link = None
        self.news.set()
        self.detached(closed=closed)

    async def wait(self, seconds: float) -> None:
        """For news, so long at most."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self.news.wait()
        self.news.clear()

    # --- protocol.End

    @abstractmethod
    def take(self, command: pb.BaseCommand, rest: bytes) -> None:
        """See `End.take`."""

    def told_to_leave(self, url: str) -> None:
        """The broker has closed it."""
        self._assigned = url
        link = self.link
        if link is not None:
            self._forget(link, self.id)
            self._detach(closed=False)

    def lost(self) -> None:
        """See `End.lost`."""
        if self.link is not None:
            self._detach(closed=False)


class Program(Protocol):
    """What runs on a client's host."""

    async def run(self) -> None:
        """Until it has finished."""
        ...

    def reborn(self) -> None:
        """It was killed, and begins anew on its host."""
        ...


class Host:
    """A host on which one client program runs, which may be killed and started again."""

    def __init__(self, world: World, name: str, role: Program) -> None:
        self.node = world.node(name)
        self.done = asyncio.Event()
        self._role = role

    def start(self) -> None:
        """Run the program unless it runs, or has come to its end: then `done` is set."""
        if self.node.running or self.done.is_set():
            return
        self.node.start()
        if self.node.starts > 1:
            self._role.reborn()
        self.node.run(self._run())

    async def _run(self) -> None:
        await self._role.run()
        self.done.set()
