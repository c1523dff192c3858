"""One connection to a broker: handshake, requests and their answers, keep-alive, and who gets what comes unasked."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Final, Protocol, TypeAlias

from magnetar.client.addresses import BrokerAddress
from magnetar.client.errors import ConnectionFailed, TimedOut, TooManyRequests
from magnetar.client.settings import ClientSettings
from magnetar.core.errors import MagnetarError, PeerError
from magnetar.core.ids import signed64
from magnetar.net.connection import Connection
from magnetar.wire.pulsar import requests
from magnetar.wire.pulsar.command import PING_FRAME, PONG_FRAME
from magnetar.wire.pulsar.errors import PulsarError
from magnetar.wire.pulsar.frame import command_splitter
from magnetar.wire.pulsar.generated.pulsar_api_pb2 import (
    BaseCommand,
    CommandConnected,
    CommandGetLastMessageIdResponse,
    CommandMessage,
    CommandTopicMigrated,
    MessageIdData,
)
from magnetar.wire.pulsar.messages import decode_command
from magnetar.wire.pulsar.send_receipts import Receipt, read_receipts

logger: Final = logging.getLogger(__name__)

Authentication: TypeAlias = Callable[[], tuple[str, bytes]]
"""(auth_method_name, auth_data), asked for each time that a broker wants to know."""

REFUSED_REQUEST_ID: Final = -1
"""The request id of the ERROR that refuses the whole connection."""


STANDING_REQUESTS: Final = 1 << 62
"""Added to a consumer's id: the id of its question for the topic's end, which is answered for as long as it is open.
Other requests never get that far."""


class ProducerEnd(Protocol):
    """What a connection tells a producer."""

    def receipts(self, receipts: list[Receipt]) -> None:
        """Messages are stored."""
        ...

    def send_failed(self, sequence_id: int, error: PulsarError) -> None:
        """A message is not stored."""
        ...

    def detached(self, assigned_url: str) -> None:
        """The broker lets go of the topic, or the connection is lost; `assigned_url` is the new owner if known."""
        ...

    def moved(self, url: str, *, tls: bool) -> None:
        """The topic goes on in another cluster, at this service URL; it is let go of here next."""
        ...


class ConsumerEnd(Protocol):
    """What a connection tells a consumer."""

    def arrived(self, command: CommandMessage, entry: bytes) -> None:
        """A stored entry."""
        ...

    def detached(self, assigned_url: str) -> None:
        """The broker lets go of the topic, or the connection is lost; `assigned_url` is the new owner if known."""
        ...

    def moved(self, url: str, *, tls: bool) -> None:
        """The topic goes on in another cluster, at this service URL; it is let go of here next."""
        ...


class BrokerConnection:
    """A `net` handler. Made by the pool; usable after `ready` has returned."""

    def __init__(
        self,
        address: BrokerAddress,
        connection: Connection,
        settings: ClientSettings,
        authentication: Authentication | None,
    ) -> None:
        self.address = address
        self.closed = False
        self._connection = connection
        self._settings = settings
        self._authentication = authentication
        self._loop = asyncio.get_running_loop()
        self._splitter = command_splitter(settings.frame_bytes_max)
        self._connected: asyncio.Future[CommandConnected] = self._loop.create_future()
        self._over: asyncio.Future[None] = self._loop.create_future()
        # Bounded by `requests_max`.
        self._requests: dict[int, asyncio.Future[Any]] = {}
        self._last_request_id = 0
        self._last_end_id = 0
        self._producers: dict[int, ProducerEnd] = {}
        self._consumers: dict[int, ConsumerEnd] = {}
        # By consumer id: who is told of the topic's end.
        self._told_of_ends: dict[int, Callable[[MessageIdData], None]] = {}
        self._keep_alive: asyncio.TimerHandle | None = None
        self._heard = False
        self.message_bytes_max = 0
        """What the broker takes, headers included; known once connected."""
        self.answers_positions = False
        """Whether receipts for replication name the source position; known once connected."""

    # --- as a handler of `net`

    def connection_made(self) -> None:
        """Say who we are."""
        self._schedule_keep_alive()
        try:
            method, data = self._authentication() if self._authentication is not None else ("", b"")
        except Exception as error:  # noqa: BLE001 - Somebody else's code; whoever opens the connection is told.
            self._fail(ConnectionFailed(f"no credentials for {self.address.host_and_port}: {error}"))
            return
        behind = self.address.host_and_port if self.address.proxy is not None else ""
        self.write(
            requests.connect(
                client_version=self._settings.client_version,
                auth_method_name=method,
                auth_data=data,
                proxy_to_broker_url=behind,
                relays=self._settings.relays,
            )
        )

    def data_received(self, data: bytes) -> None:
        """Answers, messages and the like, in any chunking."""
        self._heard = True
        try:
            buffer, bounds = self._splitter.feed(data)
            index = 0
            while index < len(bounds):
                receipts = read_receipts(buffer, bounds, index)
                if receipts:
                    self._take_receipts(receipts)
                else:
                    self._take(buffer, bounds[index], bounds[index + 1])
                index += 2 * max(1, len(receipts))
        except PeerError as error:
            logger.warning("broker %s broke the protocol: %s", self.address.host_and_port, error)
            self._fail(ConnectionFailed(str(error)))

    def writable_changed(self, writable: bool) -> None:
        """What is outstanding is bounded by producers and requests, who wait for answers."""

    def connection_lost(self, error: Exception | None) -> None:
        """It is over."""
        self._fail(ConnectionFailed(f"{self.address.host_and_port}: {error or 'closed by the broker'}"))
        if not self._over.done():
            self._over.set_result(None)

    # --- for the pool, producers and consumers

    async def ready(self) -> None:
        """Wait for the end of the handshake. Raises `ConnectionFailed`, `TimedOut` or what the broker refuses with."""
        try:
            async with asyncio.timeout(self._settings.connect_timeout_seconds):
                connected = await asyncio.shield(self._connected)
        except TimeoutError:
            self._fail(TimedOut(f"{self.address.host_and_port} does not answer CONNECT"))
            raise TimedOut(f"{self.address.host_and_port} does not answer CONNECT") from None
        self.message_bytes_max = connected.max_message_size
        flag = connected.feature_flags.supports_repl_dedup_by_lid_and_eid
        self.answers_positions = self._settings.relays and flag

    def write(self, frame: bytes) -> None:
        """Send a command that has no answer."""
        self._connection.write(frame)

    def write_parts(self, frames: list[bytes]) -> None:
        """Send several frames in one write."""
        self._connection.write_parts(frames)

    async def request(self, build: Callable[[int], bytes]) -> Any:
        """Send a request and wait for its answer's body.

        Raises `PulsarError` (it is refused), `ConnectionFailed`, `TimedOut` or `TooManyRequests`."""
        request_id, answer = self.start_request(build)
        try:
            async with asyncio.timeout(self._settings.operation_timeout_seconds):
                return await answer
        except TimeoutError:
            raise TimedOut(f"{self.address.host_and_port} does not answer request {request_id}") from None
        finally:
            self._requests.pop(request_id, None)

    def start_request(self, build: Callable[[int], bytes]) -> tuple[int, asyncio.Future[Any]]:
        """Send a request; its id and its answer. Whoever calls this gives the id back to `forget_request`."""
        if self.closed:
            raise ConnectionFailed(f"the connection to {self.address.host_and_port} is closed")
        if len(self._requests) >= self._settings.requests_max:
            raise TooManyRequests(f"{len(self._requests)} requests to {self.address.host_and_port} without an answer")
        self._last_request_id += 1
        request_id = self._last_request_id
        answer: asyncio.Future[Any] = self._loop.create_future()
        self._requests[request_id] = answer
        self.write(build(request_id))
        return request_id, answer

    def next_answer(self, request_id: int) -> asyncio.Future[Any]:
        """For a request that is answered twice (a producer that waits for its turn): the second answer."""
        answer: asyncio.Future[Any] = self._loop.create_future()
        if self.closed:
            answer.set_exception(ConnectionFailed(f"the connection to {self.address.host_and_port} is closed"))
        else:
            self._requests[request_id] = answer
        return answer

    def forget_request(self, request_id: int) -> None:
        """Nobody waits for its answer any more."""
        self._requests.pop(request_id, None)

    def ask_for_ends(self, consumer_id: int, told: Callable[[MessageIdData], None]) -> None:
        """Ask where the topic of a consumer ends. `told` has each answer: of a broker that gives end notices there are
        many, until the consumer is detached."""
        self._told_of_ends[consumer_id] = told
        self.write(requests.get_last_message_id(STANDING_REQUESTS + consumer_id, consumer_id))

    def attach_producer(self, producer: ProducerEnd) -> int:
        """A producer id; what concerns it goes to `producer` from now on."""
        self._last_end_id += 1
        self._producers[self._last_end_id] = producer
        return self._last_end_id

    def attach_consumer(self, consumer: ConsumerEnd) -> int:
        """A consumer id."""
        self._last_end_id += 1
        self._consumers[self._last_end_id] = consumer
        return self._last_end_id

    def detach(self, end_id: int) -> None:
        """A producer or consumer is gone; what still comes for it is dropped."""
        self._producers.pop(end_id, None)
        self._consumers.pop(end_id, None)
        self._told_of_ends.pop(end_id, None)

    async def close(self) -> None:
        """Close, after what was written is sent; returns when the socket is closed."""
        if not self.closed:
            self._end(ConnectionFailed("closed by this client"))
            self._connection.close()
        await self._over

    def abort(self) -> None:
        """Give the connection up, as when the other side is silent."""
        self._fail(ConnectionFailed(f"the connection to {self.address.host_and_port} is given up"))

    # --- what comes in

    def _take(self, buffer: bytes, start: int, end: int) -> None:
        command = decode_command(buffer, start, end)
        match command.type:
            case BaseCommand.MESSAGE:
                self._take_message(command.message, buffer, start, end)
            case BaseCommand.SEND_RECEIPT:
                self._take_receipts([requests.receipt_of(command.send_receipt)])
            case BaseCommand.PING:
                self.write(PONG_FRAME)
            case BaseCommand.PONG:
                pass
            case BaseCommand.CONNECTED:
                if not self._connected.done():
                    self._connected.set_result(command.connected)
            case BaseCommand.AUTH_CHALLENGE:
                self._answer_challenge()
            case _:
                self._take_rare(command)

    def _take_receipts(self, receipts: list[Receipt]) -> None:
        producer = self._producers.get(receipts[0].producer_id)
        if producer is not None:
            producer.receipts(receipts)

    def _take_message(self, message: CommandMessage, buffer: bytes, start: int, end: int) -> None:
        consumer = self._consumers.get(message.consumer_id)
        if consumer is not None:
            after_command = start + 4 + int.from_bytes(buffer[start : start + 4], "big")
            consumer.arrived(message, buffer[after_command:end])

    def _take_rare(self, command: BaseCommand) -> None:
        answer = requests.answer_of(command)
        if answer is not None:
            self._take_answer(*answer)
        elif command.type == BaseCommand.SEND_ERROR:
            failed = command.send_error
            producer = self._producers.get(failed.producer_id)
            if producer is not None:
                producer.send_failed(signed64(failed.sequence_id), requests.error_from(failed.error, failed.message))
        elif command.type == BaseCommand.CLOSE_PRODUCER:
            closed = command.close_producer
            producer = self._producers.pop(closed.producer_id, None)
            if producer is not None:
                producer.detached(self._assigned(closed.assignedBrokerServiceUrl, closed.assignedBrokerServiceUrlTls))
        elif command.type == BaseCommand.CLOSE_CONSUMER:
            ended = command.close_consumer
            consumer = self._consumers.pop(ended.consumer_id, None)
            self._told_of_ends.pop(ended.consumer_id, None)
            if consumer is not None:
                consumer.detached(self._assigned(ended.assignedBrokerServiceUrl, ended.assignedBrokerServiceUrlTls))
        elif command.type == BaseCommand.TOPIC_MIGRATED:
            self._take_move(command.topicMigrated)
        else:
            # REACHED_END_OF_TOPIC, ACTIVE_CONSUMER_CHANGE: nothing that anybody here acts on.
            logger.debug("broker %s sends a command of type %d", self.address.host_and_port, command.type)

    def _take_move(self, command: CommandTopicMigrated) -> None:
        url = self._assigned(command.brokerServiceUrl, command.brokerServiceUrlTls)
        of_producer = command.resource_type == CommandTopicMigrated.Producer
        end = (self._producers if of_producer else self._consumers).get(command.resource_id)
        if end is not None and url:
            end.moved(url, tls=self.address.tls)

    def _assigned(self, url: str, url_tls: str) -> str:
        return url_tls if self.address.tls else url

    def _take_answer(self, request_id: int, body: Any) -> None:
        error = requests.error_of(body)
        if error is not None and signed64(request_id) == REFUSED_REQUEST_ID:
            self._fail(error)
            return
        if request_id >= STANDING_REQUESTS:
            self._take_end(request_id - STANDING_REQUESTS, body)
            return
        waiting = self._requests.pop(request_id, None)
        if waiting is None or waiting.done():
            return
        if error is not None:
            waiting.set_exception(error)
        else:
            waiting.set_result(body)

    def _take_end(self, consumer_id: int, body: Any) -> None:
        told = self._told_of_ends.get(consumer_id)
        if told is not None and isinstance(body, CommandGetLastMessageIdResponse):
            told(body.last_message_id)

    def _answer_challenge(self) -> None:
        if self._authentication is None:
            self._fail(ConnectionFailed(f"{self.address.host_and_port} wants credentials and there are none"))
            return
        try:
            method, data = self._authentication()
        except Exception as error:  # noqa: BLE001 - Somebody else's code; a connection without is of no use.
            self._fail(ConnectionFailed(f"no credentials for {self.address.host_and_port}: {error}"))
            return
        self.write(
            requests.auth_response(
                client_version=self._settings.client_version, auth_method_name=method, auth_data=data
            )
        )

    # --- keep-alive and end

    def _schedule_keep_alive(self) -> None:
        if self._settings.keep_alive_seconds <= 0:
            return
        self._keep_alive = self._loop.call_later(self._settings.keep_alive_seconds, self._look_after)

    def _look_after(self) -> None:
        if not self._heard:
            self._fail(ConnectionFailed(f"{self.address.host_and_port} is silent"))
            return
        self._heard = False
        self.write(PING_FRAME)
        self._schedule_keep_alive()

    def _fail(self, error: MagnetarError) -> None:
        if not self.closed:
            self._end(error)
            self._connection.abort()

    def _end(self, error: MagnetarError) -> None:
        """Tell everybody, once."""
        self.closed = True
        if self._keep_alive is not None:
            self._keep_alive.cancel()
        if not self._connected.done():
            self._connected.set_exception(error)
            self._connected.exception()  # Looked at: nobody may be left to wait for it.
        waiting, self._requests = self._requests, {}
        for answer in waiting.values():
            if not answer.done():
                answer.set_exception(error)
                answer.exception()  # Looked at, for the same reason.
        producers, self._producers = self._producers, {}
        consumers, self._consumers = self._consumers, {}
        self._told_of_ends.clear()
        for producer in producers.values():
            producer.detached("")
        for consumer in consumers.values():
            consumer.detached("")
