"""PRODUCER and CLOSE_PRODUCER (pulsar-protocol section 5); SEND is in `publish.py`."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, ClassVar, Final

from magnetar.broker.auth.rules import NOT_TO_SUBSCRIBE, Right
from magnetar.broker.client_memory import MemoryReservation, producer_bytes
from magnetar.broker.migrated_topics import MIGRATION_COMMAND_VERSION, Destination, TopicMigrated
from magnetar.broker.replicator_names import is_shadow_producer, source_cluster
from magnetar.broker.session.lookup_questions import parse_topic
from magnetar.broker.session.publish import Publishes
from magnetar.broker.states import ProducerState
from magnetar.broker.topics.producer import Producer, ProducerIdentity
from magnetar.broker.topics.topic import PersistentTopic, Topic
from magnetar.core.ids import EARLIEST, signed64
from magnetar.core.topic_name import PERSISTENT, TopicName
from magnetar.wire.pulsar import messages
from magnetar.wire.pulsar.errors import PulsarError, ServerError
from magnetar.wire.pulsar.generated.pulsar_api_pb2 import (
    BaseCommand,
    CommandCloseProducer,
    CommandProducer,
    ProducerAccessMode,
)

if TYPE_CHECKING:
    from magnetar.broker.session.api import ControlCommand, Session
    from magnetar.core.topic_name import TopicName

logger: Final = logging.getLogger(__name__)


class Opening:
    """A PRODUCER that is being carried out, and how its client takes it back."""

    __slots__ = ("frame_bytes", "request_id", "reservation", "turn", "withdrawn")

    def __init__(self, request_id: int, reservation: MemoryReservation, frame_bytes: int) -> None:
        self.request_id = request_id
        self.reservation = reservation
        self.frame_bytes = frame_bytes
        """With its schema: it stays in memory while it is carried out."""
        self.withdrawn = False
        self.turn: asyncio.Future[PulsarError | None] = asyncio.get_running_loop().create_future()
        """Done when a producer that waits for exclusive access may come in, or will not."""

    def admitted(self, error: PulsarError | None) -> None:
        """The wait is over."""
        if not self.turn.done():
            self.turn.set_result(error)

    def withdraw(self) -> None:
        """The client does not want it any more."""
        self.withdrawn = True
        self.admitted(None)


class ProducerCommands:
    """The producers of one session."""

    COMMANDS: ClassVar[dict[int, ControlCommand[ProducerCommands]]] = {
        BaseCommand.PRODUCER: lambda self, command: self._open(command.producer),
        BaseCommand.CLOSE_PRODUCER: lambda self, command: self._close(command.close_producer),
    }
    """The protocol's commands about producers, each with its handler; SEND is decoded by hand."""

    def __init__(self, session: Session) -> None:
        self._session: Session = session
        self._service = session.context.service
        self.publishes = publishes = Publishes(
            session.connection,
            session.context.service.limits,
            session.context.settings.publish_buffer_bytes_per_connection_max,
        )
        self._producers = publishes.producers
        self._topics = publishes.topics
        # Of `Publishes`, without a call in between.
        self.flush: Callable[[], None] = publishes.flush
        self.write: Callable[[bytes], None] = publishes.write
        self.publish_finished: Callable[[int], None] = publishes.publish_finished
        self._opened_seconds: dict[int, float] = {}
        """When each client was told of its success, by the monotonic clock."""
        self._reservations: dict[int, MemoryReservation] = {}
        """By producer id: what the producers that are open have reserved."""
        self._opening: dict[int, Opening] = {}
        self._draining: dict[Producer, Topic] = {}
        """Closed by the client while some of their messages are not stored yet."""

    def producer_disconnected(self, producer: Producer) -> None:
        """Producer: the broker dropped it. The client hears of it, unless it has the id in use for another one."""
        topic = self._topics.get(producer.producer_id)
        opened_seconds = self._opened_seconds.get(producer.producer_id, 0.0)
        if self._producers.get(producer.producer_id) is producer:
            self._closed(producer.producer_id)
        destination = None if topic is None else topic.redirected_to
        if destination is not None:
            self._session.once_known(opened_seconds, partial(self._send_away, producer.producer_id, destination))
            return
        notice = partial(self._send_close_notice, producer.producer_id, opened_seconds)
        if topic is None or topic.close_notices is None:
            notice()
        else:
            topic.close_notices.add(notice)

    def _send_close_notice(
        self, producer_id: int, opened_seconds: float, assigned_url: str = "", assigned_url_tls: str = ""
    ) -> None:
        told = partial(self._tell_closed, producer_id, assigned_url, assigned_url_tls)
        self._session.once_known(opened_seconds, told)

    def _tell_closed(self, producer_id: int, assigned_url: str, assigned_url_tls: str) -> None:
        if producer_id in self._producers or producer_id in self._opening or self._session.ended:
            return  # The client closed it meanwhile and has another one under this id.
        if not self._session.close_on_old_peer():
            self._session.write(messages.close_producer(producer_id, assigned_url, assigned_url_tls))

    async def alive(self) -> bool:
        """Producer: whether the client still answers."""
        # Of one that has ended the name is free, though it is held until its turn comes.
        return not self._session.ended and (self.publishes.paused or await self._session.alive())

    # --- PRODUCER

    def _open(self, request: CommandProducer) -> None:
        producer_id = request.producer_id
        producer = self._producers.get(producer_id)
        if producer is not None:
            self._success(request.request_id, producer)
            return
        if producer_id in self._opening:
            self._session.send_error(
                request.request_id, ServerError.SERVICE_NOT_READY, "Producer is already present on the connection"
            )
            return
        try:
            reservation = self._session.memory.reserve(producer_bytes(request))
        except PulsarError as refusal:
            self._session.send_error(request.request_id, refusal.code, refusal.message)
            return
        opening = self._opening[producer_id] = Opening(request.request_id, reservation, self._session.frame_bytes)
        self._session.spawn(self._session.answering(request.request_id, lambda: self._open_guarded(request, opening)))

    async def _open_guarded(self, request: CommandProducer, opening: Opening) -> None:
        try:
            await self._open_producer(request, opening)
        except TopicMigrated as moved:
            if not opening.withdrawn:
                # Apache's broker closes what is not open, and leaves the request without an answer: Go's client waits.
                self._tell_moved(request.producer_id, moved.destination)
                raise PulsarError(ServerError.SERVICE_NOT_READY, moved.message) from None
        except PulsarError:
            # The client that closed what it was opening has had its answer.
            if not opening.withdrawn:
                raise
        finally:
            if self._opening.get(request.producer_id) is opening:
                del self._opening[request.producer_id]
            if self._reservations.get(request.producer_id) is not opening.reservation:
                opening.reservation.release()

    def _send_away(self, producer_id: int, destination: Destination) -> None:
        """The client opens it again in another cluster."""
        self._tell_moved(producer_id, destination)
        self._tell_closed(producer_id, "", "")

    def _tell_moved(self, producer_id: int, destination: Destination) -> None:
        if self._session.protocol_version >= MIGRATION_COMMAND_VERSION:
            urls = destination.broker_service_url, destination.broker_service_url_tls
            self._session.write(messages.producer_migrated(producer_id, *urls))

    async def _open_producer(self, request: CommandProducer, opening: Opening) -> None:
        name = parse_topic(request.topic)
        await self._session.require(Right.PRODUCE, name, "Client is not authorized to Produce")
        self._refuse_own_replicator(request.producer_name)
        if request.initial_subscription_name:
            await self._session.require(Right.CONSUME, name, NOT_TO_SUBSCRIBE, request.initial_subscription_name)
        topic = await self._service.topic(name, create=await self._may_create(name, request.producer_name))
        identity = self._identity(request, name)
        identity.name = identity.name or await self._service.new_producer_name()
        producer = Producer(identity, self, self._session.context.clock.now_ms())
        topic.refuse_when_migrated()
        await topic.check_producer(producer)
        identity.schema_version = await self._service.topic_schemas.add_for_producer(topic, request)
        await self._create_initial_subscription(topic, request.initial_subscription_name)
        await self._admit(opening, topic, producer)

    def _refuse_own_replicator(self, producer_name: str) -> None:
        """A cluster that has migrated to this one sends replicators on as it sends others: what they bring is here."""
        own = self._session.context.settings.cluster_name
        if source_cluster(producer_name) == own:
            raise PulsarError(
                ServerError.NOT_ALLOWED_ERROR,
                f"This is cluster {own}, from which this replicator comes: the cluster that it replicates to has "
                f"migrated to it. Take that one out of the namespace's clusters",
            )

    async def _may_create(self, name: TopicName, producer_name: str) -> bool:
        # Somebody deletes a shadow, and its source goes on telling it: no topic of its own comes of that.
        return not is_shadow_producer(producer_name) and await self._service.may_create(name)

    def _identity(self, request: CommandProducer, topic: TopicName) -> ProducerIdentity:
        identity = ProducerIdentity(request.producer_id, request.producer_name)
        identity.epoch = request.epoch
        identity.user_provided_name = request.user_provided_producer_name and bool(request.producer_name)
        identity.access_mode = request.producer_access_mode
        identity.topic_epoch = signed64(request.topic_epoch) if request.HasField("topic_epoch") else None
        identity.encrypted = request.encrypted
        identity.metadata = {pair.key: pair.value for pair in request.metadata}
        identity.address = self._session.peer_address
        identity.client_version = self._session.client_version
        # What a topic that stores nothing is sent has no position, whatever the client can do.
        identity.source_positions = self._session.source_positions and topic.domain == PERSISTENT
        return identity

    async def _create_initial_subscription(self, topic: Topic, name: str) -> None:
        if not name or not isinstance(topic, PersistentTopic) or name in topic.subscriptions:
            return
        if not topic.policies.auto_subscription_creation:
            raise PulsarError(
                ServerError.NOT_ALLOWED_ERROR,
                "Could not create the initial subscription due to the auto subscription creation is not allowed.",
            )
        await topic.create_subscription(name, EARLIEST)

    async def _admit(self, opening: Opening, topic: Topic, producer: Producer) -> None:
        refusal: PulsarError | None = None
        try:
            topic.refuse_when_migrated()
            if await topic.add_producer(producer, opening.admitted):
                refusal = await self._wait_for_turn(opening, producer)
        except BaseException:
            topic.remove_producer(producer)
            raise
        if producer.closed:
            refusal = PulsarError(ServerError.SERVICE_NOT_READY, "The producer was closed while it was opened")
        if opening.withdrawn or refusal is not None:
            producer.become(ProducerState.CLOSED)
            topic.remove_producer(producer)
            if refusal is not None:
                raise refusal
            return
        self.publishes.opened(producer, topic)
        self._reservations[producer.producer_id] = opening.reservation
        self._opened_seconds[producer.producer_id] = self._session.context.clock.monotonic_seconds()
        self._success(opening.request_id, producer)

    async def _wait_for_turn(self, opening: Opening, producer: Producer) -> PulsarError | None:
        """Until a producer may come in, or why it may not. What it brought counts with what is kept of clients
        meanwhile: the turn may come only with what this connection asks for next."""
        reservation = self._session.memory.reserve(opening.frame_bytes)
        self._success(opening.request_id, producer, ready=False)
        self._session.step_aside(opening.frame_bytes)
        try:
            return await opening.turn
        finally:
            self._session.step_back(opening.frame_bytes)
            reservation.release()

    def _success(self, request_id: int, producer: Producer, *, ready: bool = True) -> None:
        identity = producer.identity
        topic = self._topics.get(producer.producer_id)
        last_sequence_id = topic.last_sequence_id(producer.name) if topic is not None else -1
        exclusive = identity.access_mode != ProducerAccessMode.Shared
        self._session.write(
            messages.producer_success(
                request_id,
                producer.name,
                last_sequence_id=last_sequence_id,
                schema_version=identity.schema_version,
                topic_epoch=identity.topic_epoch if exclusive and ready else None,
                ready=ready,
            )
        )

    # --- the end

    def _close(self, request: CommandCloseProducer) -> None:
        """SUCCESS comes after the receipts of what was sent before."""
        opening = self._opening.pop(request.producer_id, None)
        if opening is not None:
            opening.withdraw()
        producer = self._producers.get(request.producer_id)
        if producer is None:
            self._session.write(messages.success(request.request_id))
            return
        topic = self._topics[request.producer_id]
        self._closed(request.producer_id)
        self._draining[producer] = topic

        def drained() -> None:
            producer.become(ProducerState.CLOSED)
            if self._draining.pop(producer, None) is not None:
                topic.remove_producer(producer)
            self._session.write(messages.success(request.request_id))

        producer.when_drained(drained)

    def _closed(self, producer_id: int) -> None:
        del self._opened_seconds[producer_id]
        self._reservations.pop(producer_id).release()
        self.publishes.closed(producer_id)

    def attached(self) -> list[tuple[Producer, Topic]]:
        """The producers that are open, with their topics."""
        return [(producer, self._topics[producer_id]) for producer_id, producer in self._producers.items()]

    def close_all(self) -> Iterator[None]:
        """The connection is gone: a step for each producer. What is dropped or stored meanwhile is gone already."""
        while self._opening:
            self._opening.popitem()[1].withdraw()
            yield
        for producer_id, producer in list(self._producers.items()):
            if self._producers.get(producer_id) is producer:
                topic = self._topics[producer_id]
                self._closed(producer_id)
                self._leave(producer, topic)
                yield
        while self._draining:
            self._leave(*self._draining.popitem())
            yield

    def _leave(self, producer: Producer, topic: Topic) -> None:
        producer.become(ProducerState.CLOSED)
        topic.remove_producer(producer)
