"""SUBSCRIBE and what a consumer sends after it (pulsar-protocol section 6); ACK, FLOW: `acknowledge.py`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, ClassVar, Final

from magnetar.broker.auth.rules import NOT_TO_SUBSCRIBE, Right
from magnetar.broker.bundles.close_notices import urls_of
from magnetar.broker.bundles.served_elsewhere import ServedElsewhere
from magnetar.broker.client_memory import MemoryReservation, consumer_bytes
from magnetar.broker.dispatch.consumer import NO_EPOCH, Consumer, ConsumerIdentity, KeySharedPolicy
from magnetar.broker.migrated_topics import MIGRATION_COMMAND_VERSION, Destination, TopicMigrated
from magnetar.broker.replicated_subscriptions.marked import mark
from magnetar.broker.session.acknowledge import KNOWN, Attachment, ConsumerRequests
from magnetar.broker.session.end_notices import END_NOTICES_KEY, EndNotices
from magnetar.broker.session.leaving import check_alone, steps_of, subscribed
from magnetar.broker.session.lookup_questions import parse_topic
from magnetar.broker.slices import TimeSlice
from magnetar.broker.subscriptions.subscription import Subscription
from magnetar.broker.topics.limits import RESERVED_SUBSCRIPTIONS
from magnetar.broker.topics.seek import last_message_id, position_in, position_of_seek, position_of_time, reader_start
from magnetar.broker.topics.topic import PersistentTopic, Topic
from magnetar.core.errors import MagnetarError
from magnetar.core.ids import EARLIEST, LATEST, Position
from magnetar.managed.compaction import COMPACTION_CURSOR
from magnetar.managed.cursors.internal_properties import without_internal
from magnetar.wire.pulsar import messages
from magnetar.wire.pulsar.enums import SubscriptionType
from magnetar.wire.pulsar.errors import PulsarError, ServerError
from magnetar.wire.pulsar.generated.pulsar_api_pb2 import (
    BaseCommand,
    CommandCloseConsumer,
    CommandConsumerStats,
    CommandGetLastMessageId,
    CommandRedeliverUnacknowledgedMessages,
    CommandSeek,
    CommandSubscribe,
    CommandUnsubscribe,
    KeySharedMode,
)

if TYPE_CHECKING:
    from magnetar.broker.session.api import ControlCommand, Session

COMPACTED_BY_BROKER: Final = "Topics are compacted by their brokers: ask for it with PUT …/compaction"
REDELIVERED_AT_ONCE: Final = 1_000


class ConsumerCommands:
    """The consumers of one session. Implements `magnetar.broker.dispatch.consumer.ConsumerConnection` for them."""

    COMMANDS: ClassVar[dict[int, ControlCommand[ConsumerCommands]]] = {
        BaseCommand.SUBSCRIBE: lambda self, command: self._subscribe(command.subscribe),
        BaseCommand.CLOSE_CONSUMER: lambda self, command: self._close(command.close_consumer),
        BaseCommand.UNSUBSCRIBE: lambda self, command: self._unsubscribe(command.unsubscribe),
        BaseCommand.SEEK: lambda self, command: self._seek(command.seek),
        BaseCommand.REDELIVER_UNACKNOWLEDGED_MESSAGES: (
            lambda self, command: self._redeliver(command.redeliverUnacknowledgedMessages)
        ),
        BaseCommand.GET_LAST_MESSAGE_ID: lambda self, command: self._last_message_id(command.getLastMessageId),
        BaseCommand.CONSUMER_STATS: lambda self, command: self._stats(command.consumerStats),
    }
    """The protocol's commands about consumers, each with its handler; ACK and FLOW are decoded by hand."""

    def __init__(self, session: Session) -> None:
        self._session: Session = session
        self._service = session.context.service
        self.requests = ConsumerRequests(session.connection)
        self._consumers = self.requests.consumers
        self.output = session.connection
        self._reservations: dict[int, MemoryReservation] = {}
        """By consumer id: what the consumers that are open have reserved."""
        self._opening: dict[int, MemoryReservation] = {}
        self._end_notices = EndNotices(session.connection)

    def writable_again(self) -> None:
        """The peer caught up: go on sending."""
        # Each once, however many consumers of it there are: it looks at all of them.
        for subscription in dict.fromkeys([attachment.subscription for attachment in self._consumers.values()]):
            if isinstance(subscription, Subscription):
                subscription.writable_changed()
        self._end_notices.writable_again()

    def attached(self) -> list[Attachment]:
        """The consumers that are open."""
        return list(self._consumers.values())

    # --- magnetar.broker.dispatch.consumer.ConsumerConnection

    @property
    def ended(self) -> bool:
        """Whether the client is gone; its consumers are let go of."""
        return self._session.ended

    def active_consumer_changed(self, consumer: Consumer, *, active: bool) -> None:
        """Failover: tell the client whether it is the one that receives."""
        if self._session.protocol_version >= 12:
            self._session.write(messages.active_consumer_change(consumer.consumer_id, active))

    def reached_end_of_topic(self, consumer: Consumer) -> None:
        """Tell the client that nothing will come any more, if it can take it.

        C++, Python and Go clients drop the connection on this command: only the Java client knows it. Where the topic
        goes on in another cluster, the consumer is sent there instead."""
        attachment = self._consumers.get(consumer.consumer_id)
        if attachment is not None and attachment.topic.destination is not None:
            # Whoever announces the end is going through the consumers.
            asyncio.get_running_loop().call_soon(self._move, attachment, attachment.topic.destination)
            return
        if self._session.protocol_version >= 9 and "java" in self._session.client_version.lower():
            self._session.write(messages.reached_end_of_topic(consumer.consumer_id))

    def _move(self, attachment: Attachment, destination: Destination) -> None:
        consumer_id = attachment.consumer.consumer_id
        if self._consumers.get(consumer_id) is not attachment:
            return
        self._forget(consumer_id)
        self._session.once_known(attachment.opened_seconds, partial(self._send_away, consumer_id, destination))

    def _send_away(self, consumer_id: int, destination: Destination) -> None:
        """The client subscribes again in another cluster."""
        if consumer_id not in self._consumers:
            self._tell_moved(consumer_id, destination)
            self._tell_closed(consumer_id, "", "")

    def _tell_moved(self, consumer_id: int, destination: Destination) -> None:
        if self._session.protocol_version >= MIGRATION_COMMAND_VERSION:
            urls = destination.broker_service_url, destination.broker_service_url_tls
            self._session.write(messages.consumer_migrated(consumer_id, *urls))

    def consumer_disconnected(self, consumer: Consumer) -> None:
        """Tell the client to look the topic up and subscribe again."""
        attachment = self._consumers.get(consumer.consumer_id)
        close_notices = None
        opened_seconds = 0.0
        if attachment is not None and attachment.consumer is consumer:
            self._detach(consumer.consumer_id)
            close_notices = attachment.topic.close_notices
            opened_seconds = attachment.opened_seconds
        notice = partial(self._send_close_notice, consumer.consumer_id, opened_seconds)
        if close_notices is None:
            notice()
        else:
            close_notices.add(notice)

    def _send_close_notice(
        self, consumer_id: int, opened_seconds: float, assigned_url: str = "", assigned_url_tls: str = ""
    ) -> None:
        told = partial(self._tell_closed, consumer_id, assigned_url, assigned_url_tls)
        self._session.once_known(opened_seconds, told)

    def _tell_closed(self, consumer_id: int, assigned_url: str, assigned_url_tls: str) -> None:
        if consumer_id in self._consumers or consumer_id in self._opening or self._session.ended:
            return  # The client closed it meanwhile and has another one under this id.
        if not self._session.close_on_old_peer():
            self._session.write(messages.close_consumer(consumer_id, assigned_url, assigned_url_tls))

    # --- SUBSCRIBE

    def _subscribe(self, request: CommandSubscribe) -> None:
        consumer_id = request.consumer_id
        if consumer_id in self._consumers:
            self._session.write(messages.success(request.request_id))
            return
        if consumer_id in self._opening:
            self._session.send_error(
                request.request_id, ServerError.SERVICE_NOT_READY, "Consumer is already present on the connection"
            )
            return
        # What stands here says who is being waited for: CLOSE_CONSUMER takes it away.
        try:
            opening = self._opening[consumer_id] = self._session.memory.reserve(consumer_bytes(request))
        except PulsarError as refusal:
            self._session.send_error(request.request_id, refusal.code, refusal.message)
            return
        self._session.spawn(self._session.answering(request.request_id, lambda: self._open_guarded(request, opening)))

    async def _open_guarded(self, request: CommandSubscribe, opening: MemoryReservation) -> None:
        try:
            await self._open_consumer(request, opening)
        except TopicMigrated as moved:
            if self._opening.get(request.consumer_id) is opening:
                self._tell_moved(request.consumer_id, moved.destination)
                raise PulsarError(ServerError.SERVICE_NOT_READY, moved.message) from None
        except PulsarError as error:
            # The client that closed what it was opening has had its answer.
            if self._opening.get(request.consumer_id) is not opening:
                return
            if not isinstance(error, ServedElsewhere) or request.subType == CommandSubscribe.Exclusive:
                raise
            self._send_elsewhere(request, error)
        finally:
            if self._opening.get(request.consumer_id) is opening:
                del self._opening[request.consumer_id]
            if self._reservations.get(request.consumer_id) is not opening:
                opening.release()

    async def _open_consumer(self, request: CommandSubscribe, opening: MemoryReservation) -> None:
        self._check_request(request)
        name = parse_topic(request.topic)
        await self._session.require(Right.CONSUME, name, NOT_TO_SUBSCRIBE, request.subscription)
        create = request.force_topic_creation and await self._service.may_create(name)
        topic = await self._service.topic(name, create=create)
        if not isinstance(topic, PersistentTopic):
            topic.refuse_when_migrated()
        if request.HasField("schema"):
            await self._service.topic_schemas.check_for_consumer(topic, request.schema)
        if request.durable and isinstance(topic, PersistentTopic) and request.subscription not in topic.subscriptions:
            self._service.check_may_create_subscription(topic, request.subscription)
        consumer = Consumer(
            self._identity(request),
            self,
            partition_index=name.partition_index,
            unacked_messages_max=topic.policies.dispatch.unacked_messages_per_consumer_max,
            connected_since_ms=self._session.context.clock.now_ms(),
        )
        start = await self._start(topic, request)
        properties = without_internal({pair.key: pair.value for pair in request.subscription_properties})
        await self._free_exclusive(topic, request)
        subscription = await subscribed(topic, consumer, request.subscription, start, properties)
        if request.replicate_subscription_state and isinstance(topic, PersistentTopic):
            await self._have_replicated(topic, consumer, subscription.name)
        if self._opening.get(request.consumer_id) is not opening:
            topic.remove_consumer(consumer, request.subscription)
            return
        now_seconds = self._session.context.clock.monotonic_seconds()
        self._consumers[request.consumer_id] = Attachment(consumer, subscription, topic, now_seconds)
        self._reservations[request.consumer_id] = opening
        self._session.write(messages.success(request.request_id))
        if topic.destination is not None and isinstance(subscription, Subscription):
            subscription.terminated = True
        subscription.consumer_ready(consumer)

    async def _have_replicated(self, topic: PersistentTopic, consumer: Consumer, subscription: str) -> None:
        """The subscription is one whose position other clusters know, before its client hears of it. Where the broker
        has that switched off, or the subscription is not durable, nothing happens, as at Apache's."""
        cursor = topic.ledger.cursors.get(subscription)
        if cursor is None or not self._session.context.settings.policies.replicated_subscriptions:
            return
        try:
            await mark(topic, cursor, replicated=True)
        except BaseException:
            topic.remove_consumer(consumer, subscription)
            raise

    async def _free_exclusive(self, topic: Topic, request: CommandSubscribe) -> None:
        """A second Exclusive consumer may be the first one's client, back before its old connection was found dead."""
        subscription = topic.subscriptions.get(request.subscription)
        if subscription is None or request.subType != CommandSubscribe.Exclusive:
            return
        holder = subscription.exclusive_holder()
        if holder is None or holder.connection is self or not isinstance(holder.connection, ConsumerCommands):
            return
        if not await holder.connection.alive():
            topic.remove_consumer(holder, request.subscription)

    async def alive(self) -> bool:
        """Whether the client still answers. When not, its connection is closed."""
        return await self._session.alive()

    def _send_elsewhere(self, request: CommandSubscribe, error: ServedElsewhere) -> None:
        """No answer of SUBSCRIBE says where to go; a close notice does, to clients that know it (PIP-307). The others
        look the topic up again, and are sent to another broker each time."""
        del self._opening[request.consumer_id]
        self._session.write(messages.success(request.request_id))
        opened_seconds = self._session.context.clock.monotonic_seconds()
        self._send_close_notice(request.consumer_id, opened_seconds, *urls_of(error.broker))

    def _check_request(self, request: CommandSubscribe) -> None:
        limit = self._session.context.settings.consumer_metadata_bytes_max
        size = sum(len(pair.key.encode()) + len(pair.value.encode()) for pair in request.metadata)
        if size > limit:
            raise PulsarError(
                ServerError.METADATA_ERROR, f"Consumer metadata has {size} bytes, more than the {limit} allowed"
            )
        # PRODUCER_BUSY is what Apache's broker calls every error about names.
        if not request.subscription:
            raise PulsarError(ServerError.PRODUCER_BUSY, "Empty subscription name")
        if request.subscription.startswith(RESERVED_SUBSCRIPTIONS):
            raise PulsarError(ServerError.PRODUCER_BUSY, "Subscription with reserved subscription name attempted")
        if request.subscription == COMPACTION_CURSOR:
            # What is acknowledged there would count as compacted.
            raise PulsarError(ServerError.NOT_ALLOWED_ERROR, COMPACTED_BY_BROKER)
        if not request.read_compacted:
            return
        if not request.topic.startswith("persistent://"):
            raise PulsarError(ServerError.NOT_ALLOWED_ERROR, "readCompacted only valid on persistent topics")
        if request.subType in (CommandSubscribe.Shared, CommandSubscribe.Key_Shared):
            raise PulsarError(
                ServerError.NOT_ALLOWED_ERROR, "readCompacted only allowed on failover or exclusive subscriptions"
            )

    def _identity(self, request: CommandSubscribe) -> ConsumerIdentity:
        name = request.consumer_name or f"{self._session.peer_address}-{request.consumer_id}"
        identity = ConsumerIdentity(request.consumer_id, name, SubscriptionType(request.subType))
        identity.priority_level = request.priority_level
        identity.durable = request.durable
        identity.consumer_epoch = request.consumer_epoch if request.HasField("consumer_epoch") else NO_EPOCH
        identity.metadata = {pair.key: pair.value for pair in request.metadata}
        identity.address = self._session.peer_address
        identity.client_version = self._session.client_version
        identity.read_compacted = request.read_compacted
        if request.HasField("keySharedMeta") and identity.subscription_type is SubscriptionType.KEY_SHARED:
            meta = request.keySharedMeta
            sticky = meta.keySharedMode == KeySharedMode.STICKY
            identity.key_shared = KeySharedPolicy(
                sticky=sticky,
                ranges=[(hash_range.start, hash_range.end) for hash_range in meta.hashRanges] if sticky else [],
                allow_out_of_order=meta.allowOutOfOrderDelivery,
            )
        return identity

    async def _start(self, topic: Topic, request: CommandSubscribe) -> Position:
        earliest = request.initialPosition == CommandSubscribe.Earliest
        if not isinstance(topic, PersistentTopic):
            return LATEST
        wanted = position_in(request.start_message_id)  # The first one of all, if there is none.
        knows_end = await topic.learn_end(wanted)
        if request.start_message_rollback_duration_sec:
            now_ms = self._session.context.clock.now_ms()
            since_ms = now_ms - 1_000 * request.start_message_rollback_duration_sec
            return await position_of_time(topic, since_ms, compacted=request.read_compacted)
        if not request.durable and request.HasField("start_message_id"):
            return reader_start(topic, wanted, earliest=earliest, knows_end=knows_end)
        return EARLIEST if earliest else LATEST

    # --- requests about a consumer

    def _close(self, request: CommandCloseConsumer) -> Coroutine[Any, Any, None] | None:
        self._opening.pop(request.consumer_id, None)
        attachment = self._forget(request.consumer_id)
        leaving = None if attachment is None else attachment.topic.leaving(attachment.subscription.name)
        if leaving is not None:
            return self._answer_after(leaving, request.request_id)
        self._session.write(messages.success(request.request_id))
        return None

    async def _answer_after(self, leaving: asyncio.Future[None], request_id: int) -> None:
        """Who closes the last consumer may open one at another broker with the answer."""
        await asyncio.wait([leaving])
        self._session.write(messages.success(request_id))

    def _unsubscribe(self, request: CommandUnsubscribe) -> Coroutine[Any, Any, None] | None:
        return self._with_consumer(
            request.consumer_id, request.request_id, lambda attachment: self._delete_subscription(attachment, request)
        )

    async def _delete_subscription(self, attachment: Attachment, request: CommandUnsubscribe) -> None:
        subscription = attachment.subscription
        if not request.force:
            await check_alone(attachment)
        if self._consumers.get(request.consumer_id) is attachment:
            self._detach(request.consumer_id)
        subscription.remove_consumer(attachment.consumer)
        try:
            await attachment.topic.delete_subscription(subscription.name, force=request.force)
        except MagnetarError:
            # Behind the refusal, at which the client goes on with a consumer that has no subscription any more.
            asyncio.get_running_loop().call_soon(self.consumer_disconnected, attachment.consumer)
            raise
        self._session.write(messages.success(request.request_id))

    def _seek(self, request: CommandSeek) -> Coroutine[Any, Any, None] | None:
        if not request.HasField("message_id") and not request.HasField("message_publish_time"):
            self._session.send_error(
                request.request_id,
                ServerError.METADATA_ERROR,
                "Message id and message publish time were not present",
            )
            return None
        return self._with_consumer(
            request.consumer_id, request.request_id, lambda attachment: self._reset(attachment, request)
        )

    async def _reset(self, attachment: Attachment, request: CommandSeek) -> None:
        attachment.opened_seconds = KNOWN
        topic, subscription = attachment.topic, attachment.subscription
        if isinstance(topic, PersistentTopic) and isinstance(subscription, Subscription):
            knows_end = await topic.learn_end(position_in(request.message_id))
            if request.HasField("message_id"):
                position, ack_set = position_of_seek(topic, request.message_id, knows_end=knows_end)
            else:
                compacted = attachment.consumer.identity.read_compacted
                position = await position_of_time(topic, request.message_publish_time, compacted=compacted)
                ack_set = None
            await topic.reset_subscription(subscription, position, ack_set)
        # A non-persistent topic has no positions: like Apache's broker, this one takes the seek and does nothing.
        self._session.write(messages.success(request.request_id))

    def _redeliver(self, request: CommandRedeliverUnacknowledgedMessages) -> Coroutine[Any, Any, None] | None:
        attachment = self._consumers.get(request.consumer_id)
        if attachment is None or not isinstance(attachment.subscription, Subscription):
            return None
        epoch = request.consumer_epoch if request.HasField("consumer_epoch") else NO_EPOCH
        consumer, subscription = attachment.consumer, attachment.subscription
        if consumer.identity.subscription_type.acknowledges_individually:
            if request.message_ids:
                named = map(position_in, request.message_ids)
                return self._redeliver_these(consumer, subscription, named)
            if len(consumer.pending) > REDELIVERED_AT_ONCE:
                return self._redeliver_these(consumer, subscription, iter(sorted(consumer.pending.messages)))
        subscription.redeliver(consumer, None, epoch)
        return None

    async def _redeliver_these(
        self, consumer: Consumer, subscription: Subscription, positions: Iterator[Position]
    ) -> None:
        """Single entries, in turns with what others send. Java's client names a thousand at once, others as many as
        they hold, or none, which means all."""
        turn = TimeSlice()
        while some := list(islice(positions, REDELIVERED_AT_ONCE)):
            subscription.redeliver(consumer, some)
            if turn.over:
                await turn.pause()
                if consumer.closed:
                    return

    def _last_message_id(self, request: CommandGetLastMessageId) -> Coroutine[Any, Any, None] | None:
        return self._with_consumer(
            request.consumer_id, request.request_id, lambda attachment: self._answer_last(attachment, request)
        )

    async def _answer_last(self, attachment: Attachment, request: CommandGetLastMessageId) -> None:
        topic = persistent(attachment.topic)
        await topic.learn_end()
        wants_notices = END_NOTICES_KEY in attachment.consumer.identity.metadata
        if wants_notices:
            position, batch_index = topic.ledger.last_confirmed, -1
        else:
            position, batch_index = await last_message_id(topic, compacted=attachment.consumer.identity.read_compacted)
        assert isinstance(attachment.subscription, Subscription)
        mark_delete = attachment.subscription.cursor.mark_delete
        self._session.write(
            messages.get_last_message_id_response(
                request.request_id, position, topic.name.partition_index, batch_index, mark_delete
            )
        )
        if wants_notices and self._consumers.get(request.consumer_id) is attachment:
            self._end_notices.begin(request.consumer_id, topic, request.request_id)

    def _stats(self, request: CommandConsumerStats) -> None:
        attachment = self._consumers.get(request.consumer_id)
        if attachment is None:
            self._session.write(
                messages.consumer_stats_error(
                    request.request_id,
                    ServerError.CONSUMER_NOT_FOUND,
                    f"Consumer {request.consumer_id} not found",
                )
            )
            return
        self._session.write(
            messages.consumer_stats_response(
                request.request_id, attachment.subscription.consumer_statistics(attachment.consumer)
            )
        )

    def _with_consumer(
        self, consumer_id: int, request_id: int, work: Callable[[Attachment], Coroutine[Any, Any, None]]
    ) -> Coroutine[Any, Any, None] | None:
        attachment = self._consumers.get(consumer_id)
        if attachment is None or attachment.consumer.closed:
            self._session.send_error(request_id, ServerError.METADATA_ERROR, "Consumer not found")
            return None
        return self._session.answering(request_id, lambda: work(attachment))

    # --- the end

    def _forget(self, consumer_id: int) -> Attachment | None:
        attachment = self._detach(consumer_id)
        if attachment is not None and not attachment.consumer.closed:
            attachment.topic.remove_consumer(attachment.consumer, attachment.subscription.name)
        return attachment

    def _detach(self, consumer_id: int) -> Attachment | None:
        """It belongs to this connection no more; what was attached."""
        attachment = self._consumers.pop(consumer_id, None)
        if attachment is not None:
            self._reservations.pop(consumer_id).release()
            self._end_notices.stop(consumer_id)
        return attachment

    def close_all(self) -> Iterator[None]:
        """The connection is gone, step by step. Consumers that their topics drop meanwhile are gone already."""
        self._opening.clear()
        for consumer_ids in steps_of(self._consumers):
            for consumer_id in consumer_ids:
                self._forget(consumer_id)
            yield


def persistent(topic: Topic) -> PersistentTopic:
    """The topic, when it stores its messages; NotAllowed otherwise."""
    if not isinstance(topic, PersistentTopic):
        raise PulsarError(ServerError.NOT_ALLOWED_ERROR, "Not supported on non-persistent topics")
    return topic
