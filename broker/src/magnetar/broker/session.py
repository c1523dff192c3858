"""One client connection: frames in, commands to the group that serves them, answers out.

SENDs, ACKs and FLOWs are decoded by hand and never wait, nor do questions about topics whose answer is in memory;
everything else is a control command, run as a task of the session so that a slow one does not hold up the rest. The
order of Pulsar's protocol that clients rely on is kept by each group: see there.
"""

from __future__ import annotations

import asyncio
import enum
import logging
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from magnetar.broker.auth.rules import Right
from magnetar.broker.command_limits import check_notes
from magnetar.broker.context import BrokerContext
from magnetar.broker.session_consume import ConsumerCommands
from magnetar.broker.session_lookup import LookupCommands
from magnetar.broker.session_produce import ProducerCommands
from magnetar.broker.session_schema import SchemaCommands
from magnetar.broker.session_topics import TopicListCommands
from magnetar.broker.session_transactions import TransactionCommands
from magnetar.broker.settings import SERVER_VERSION
from magnetar.core.errors import MagnetarError, PeerError, Unavailable
from magnetar.core.limits import FRAME_PADDING_BYTES
from magnetar.core.topic_name import NamespaceName, TopicName
from magnetar.managed.errors import ManagedLedgerClosed, ManagedLedgerError, ManagedLedgerFenced
from magnetar.metadata.store import NodeTooLarge, StoreUnavailable
from magnetar.net.connection import Connection
from magnetar.wire.pulsar import messages
from magnetar.wire.pulsar.command import PING_FRAME, PONG_FRAME, TYPE_ACK, TYPE_FLOW, TYPE_SEND, command_type
from magnetar.wire.pulsar.errors import PulsarError, ServerError
from magnetar.wire.pulsar.frame import FrameSplitter
from magnetar.wire.pulsar.generated.pulsar_api_pb2 import BaseCommand, CommandConnect
from magnetar.wire.pulsar.refusals import heard_at_first_request, refusal_of
from magnetar.wire.pulsar.topic_requests import TYPE_LOOKUP, TYPE_PARTITIONED_METADATA

if TYPE_CHECKING:
    from magnetar.broker.auth.session_access import SessionAccess

logger = logging.getLogger(__name__)

PROTOCOL_VERSION: Final = 21
"""The newest protocol version served; Pulsar 4.x."""

CONTROL_COMMANDS_MAX: Final = 60_000
"""Control commands of one connection under way; above the lookups that one client may have outstanding (50 000)."""

CLOSE_COMMANDS_VERSION: Final = 5
"""From this protocol version on, clients understand that a broker closes one producer or consumer."""

ControlCommand: TypeAlias = Callable[[BaseCommand], Coroutine[Any, Any, None] | None]


class SessionState(enum.Enum):
    """Where the handshake stands."""

    START = enum.auto()
    CONNECTING = enum.auto()
    """Its credentials are being checked."""
    REFUSED = enum.auto()
    """It believes to be connected, and learns from the answer to its first request that it may not come in."""
    CONNECTED = enum.auto()
    CLOSED = enum.auto()


class ServerSession:
    """The broker's side of one connection. Implements `magnetar.net.connection.Handler`."""

    def __init__(self, connection: Connection, context: BrokerContext) -> None:
        self.connection = connection
        self.context = context
        self.state = SessionState.START
        self.protocol_version = 0
        self.client_version = ""
        self.access: SessionAccess | None = None
        """Who the client is and what it may do; None where nobody has to say who he is."""
        self._refusal: PulsarError | None = None
        self.peer_address = connection.peer_address
        self._splitter = FrameSplitter(context.settings.message_size_bytes_max + FRAME_PADDING_BYTES)
        self._tasks: set[asyncio.Task[None]] = set()
        self._ping_outstanding = False
        self._received_since_ping = False
        self._keep_alive: asyncio.TimerHandle | None = None
        self._pauses = 0
        self._paused_before = False
        self._counted = False
        """Whether it is one of those that the limits of connections count."""
        self._liveness_checks: list[asyncio.Future[bool]] = []
        self.producers = ProducerCommands(self)
        self.consumers = ConsumerCommands(self)
        self._lookups = LookupCommands(self)
        self._topic_lists = TopicListCommands(self)
        self._commands: dict[int, ControlCommand] = {
            BaseCommand.PING: self._ping,
            BaseCommand.PONG: self._pong,
            BaseCommand.AUTH_RESPONSE: self._auth_response,
            **self._lookups.commands(),
            **self.producers.commands(),
            **self.consumers.commands(),
            **SchemaCommands(self).commands(),
            **self._topic_lists.commands(),
            **TransactionCommands(self).commands(),
        }

    # --- magnetar.net.connection.Handler

    def connection_made(self) -> None:
        """Start the keep-alive: a peer that never says CONNECT is dropped by its first tick."""
        try:
            self.context.service.limits.connections.opened(self.peer_address)
        except PulsarError as error:
            logger.warning("refusing the connection of %s: %s", self.peer_address, error.message)
            self.send_error(messages.SERVER_REQUEST_ID, error.code, error.message)
            self.state = SessionState.CLOSED
            self.connection.close()
            return
        self._counted = True
        self._schedule_keep_alive()

    def data_received(self, data: bytes) -> None:
        """Cut the read into frames and serve them as one batch."""
        self._received_since_ping = True
        if self._liveness_checks:
            self._answer_liveness_checks(alive=True)
        try:
            self._serve(data)
        except PeerError as error:
            logger.warning("closing connection of %s: %s", self.peer_address, error)
            self.connection.close()

    def writable_changed(self, writable: bool) -> None:
        """The peer fell behind or caught up: consumers wait or go on."""
        if writable:
            self.consumers.writable_again()

    def connection_lost(self, error: Exception | None) -> None:
        """Let go of everything this connection held."""
        self.state = SessionState.CLOSED
        if self._counted:
            self._counted = False
            self.context.service.limits.connections.closed(self.peer_address)
        if error is not None:
            logger.info("connection of %s broke: %s", self.peer_address, error)
        if self._keep_alive is not None:
            self._keep_alive.cancel()
        if self.access is not None:
            self.access.close()
        self._answer_liveness_checks(alive=False)
        # Commands under way end by themselves: one that is cut off between two metadata writes would do harm.
        self.producers.close_all()
        self.consumers.close_all()
        self._topic_lists.close_all()

    # --- serving

    def _serve(self, data: bytes) -> None:
        buffer, bounds = self._splitter.feed(data)
        connected = self.state is SessionState.CONNECTED
        producers = self.producers
        for index in range(0, len(bounds), 2):
            start = bounds[index]
            end = bounds[index + 1]
            kind = command_type(buffer, start)
            if kind == TYPE_SEND and connected:
                producers.send(buffer, start, end)
            elif kind == TYPE_ACK and connected:
                self.consumers.acknowledge(buffer, start, end)
            elif kind == TYPE_FLOW and connected:
                self.consumers.flow(buffer, start, end)
            elif kind == TYPE_LOOKUP and connected:
                self._lookups.look_up(buffer, start, end)
            elif kind == TYPE_PARTITIONED_METADATA and connected:
                self._lookups.count_partitions(buffer, start, end)
            else:
                producers.flush()
                self._control(buffer, start, end)
                connected = self.state is SessionState.CONNECTED
        producers.flush()

    def _control(self, buffer: bytes, start: int, end: int) -> None:
        command = messages.decode_command(buffer, start, end)
        if self.state is SessionState.START:
            self._connect(command)
            return
        if self.state is SessionState.CLOSED:
            return
        if self.state is SessionState.CONNECTING:
            raise PeerError(f"{BaseCommand.Type.Name(command.type)} before CONNECTED")
        if self.state is SessionState.REFUSED:
            self._refuse_request(command)
            return
        serve = self._commands.get(command.type)
        if serve is None:
            # What only a broker sends, or a second CONNECT.
            raise PeerError(f"unexpected command {BaseCommand.Type.Name(command.type)}")
        try:
            check_notes(command)
        except PulsarError as refusal:
            answer = refusal_of(command, refusal.code, refusal.message)
            if answer is not None:
                self.write(answer)
            return
        work = serve(command)
        if work is not None:
            self.spawn(work)

    def _connect(self, command: BaseCommand) -> None:
        if command.type != BaseCommand.CONNECT:
            raise PeerError(f"{BaseCommand.Type.Name(command.type)} before CONNECT")
        connect = command.connect
        self.protocol_version = min(connect.protocol_version, PROTOCOL_VERSION)
        self.client_version = connect.client_version
        access = self.context.access
        if access is None:
            self._let_in()
            return
        # Whoever has an `access` has loaded this module.
        from magnetar.broker.auth.session_access import SessionAccess

        self.state = SessionState.CONNECTING
        self.access = SessionAccess(self, access, self.connection.peer_certificate)
        self.spawn(self._authenticate(self.access, connect))

    async def _authenticate(self, access: SessionAccess, connect: CommandConnect) -> None:
        try:
            await access.connect(connect)
        except PulsarError as refusal:
            # A proxy is to hear it itself.
            if heard_at_first_request(connect.client_version, refusal.code) and not connect.HasField("proxy_version"):
                self._refuse_later(refusal)
            else:
                self.refuse(refusal)
            return
        if not self.ended:
            self._let_in()

    def refuse(self, refusal: PulsarError) -> None:
        """Say why, and close the connection."""
        self.send_error(messages.SERVER_REQUEST_ID, refusal.code, refusal.message)
        self.state = SessionState.CLOSED
        self.connection.close()

    def _refuse_later(self, refusal: PulsarError) -> None:
        """Have the client believe that it is connected, and refuse its first request."""
        if not self.ended:
            self._refusal = refusal
            self.state = SessionState.REFUSED
            self._say_connected()

    def _refuse_request(self, command: BaseCommand) -> None:
        assert self._refusal is not None
        answer = refusal_of(command, self._refusal.code, self._refusal.message)
        if answer is not None:
            self.write(answer)
            self.state = SessionState.CLOSED
            self.connection.close()

    def _let_in(self) -> None:
        self.state = SessionState.CONNECTED
        self._say_connected()

    def _say_connected(self) -> None:
        self.write(
            messages.connected(
                server_version=SERVER_VERSION,
                protocol_version=self.protocol_version,
                max_message_size=self.context.settings.message_size_bytes_max,
                topic_watchers=self.context.settings.topic_list_watchers,
            )
        )

    # --- for the command groups

    @property
    def ended(self) -> bool:
        """Whether the connection is gone: what is opened now has nobody to belong to."""
        return self.state is SessionState.CLOSED

    async def require(self, right: Right, topic: TopicName, refusal: str, subscription: str = "") -> None:
        """Raises PulsarError with the text `refusal` unless the client has a right on a topic, and may use the
        subscription, if any."""
        if self.access is not None:
            await self.access.require_on_topic(right, topic, refusal, subscription)

    async def require_topic_list(self, namespace: NamespaceName, refusal: str) -> None:
        """As `require`, for a namespace's list of topics."""
        if self.access is not None:
            await self.access.require_on_namespace(Right.LOOKUP, namespace, refusal)

    def write(self, data: bytes) -> None:
        """Send bytes to the client."""
        self.connection.write(data)

    def send_error(self, request_id: int, code: ServerError, message: str) -> None:
        """Answer a request with an error."""
        self.write(messages.error(request_id, code, message))

    def close_on_old_peer(self) -> bool:
        """Peers before version 5 know no CLOSE_PRODUCER or CLOSE_CONSUMER from a broker: the connection has to go."""
        if self.protocol_version >= CLOSE_COMMANDS_VERSION:
            return False
        self.connection.close()
        return True

    def once_known(self, opened_seconds: float, tell: Callable[[], None]) -> None:
        """Tell of the end of a producer or consumer, but not before the client can know of its beginning."""
        known_seconds = opened_seconds + self.context.settings.known_after_seconds
        wait_seconds = known_seconds - self.context.clock.monotonic_seconds()
        if wait_seconds > 0:
            asyncio.get_running_loop().call_later(wait_seconds, tell)
        else:
            tell()

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a control command to its end, also when the connection ends before."""
        if len(self._tasks) >= CONTROL_COMMANDS_MAX:
            work.close()
            raise PeerError(f"more than {CONTROL_COMMANDS_MAX} requests outstanding on one connection")
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._finished)
        self.context.service.wait_for_at_close(task)

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if task.cancelled():
            return
        error = task.exception()
        if error is not None:
            logger.error("a command of %s failed, closing its connection", self.peer_address, exc_info=error)
            self.connection.close()

    async def answering(self, request_id: int, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run the work of one request; whatever it raises becomes the request's error answer."""
        try:
            await work()
        except PulsarError as error:
            self.send_error(request_id, error.code, error.message)
        except MagnetarError as error:
            logger.warning("request %d of %s failed: %s", request_id, self.peer_address, error)
            self.send_error(request_id, server_error_of(error), str(error) or type(error).__name__)

    # --- is somebody there?

    async def alive(self) -> bool:
        """Whether the client answers a PING soon; when not, the connection is closed and all it held is free."""
        if self.state is not SessionState.CONNECTED:
            return False
        loop = asyncio.get_running_loop()
        check: asyncio.Future[bool] = loop.create_future()
        self._liveness_checks.append(check)
        timer = loop.call_later(self.context.settings.connection_liveness_check_seconds, self._found_dead)
        self.write(PING_FRAME)
        try:
            return await check
        finally:
            timer.cancel()

    def _found_dead(self) -> None:
        logger.warning("closing connection of %s: no answer to PING while others wait for its place", self.peer_address)
        self.connection.abort()

    def _answer_liveness_checks(self, *, alive: bool) -> None:
        checks, self._liveness_checks = self._liveness_checks, []
        for check in checks:
            if not check.done():
                check.set_result(alive)

    def _auth_response(self, command: BaseCommand) -> None:
        if self.access is None:
            raise PeerError("AUTH_RESPONSE that nobody asked for")
        self.access.answered(command.authResponse)

    def _ping(self, _: BaseCommand) -> None:
        self.write(PONG_FRAME)

    def _pong(self, _: BaseCommand) -> None:
        self._ping_outstanding = False

    def _was_paused(self) -> bool:
        """Whether the connection was not always read since the last look, for it is throttled: then no answer came."""
        connection = self.connection
        paused = self._paused_before or connection.reading_paused or connection.pauses != self._pauses
        self._paused_before = connection.reading_paused
        self._pauses = connection.pauses
        return paused

    def _schedule_keep_alive(self) -> None:
        loop = asyncio.get_running_loop()
        self._keep_alive = loop.call_later(self.context.settings.keep_alive_seconds, self._keep_alive_tick)

    def _keep_alive_tick(self) -> None:
        if self.state in (SessionState.START, SessionState.CONNECTING, SessionState.REFUSED):
            logger.warning("closing connection of %s: no CONNECT in time", self.peer_address)
            self.connection.close()
            return
        if self._ping_outstanding and not self._received_since_ping and not self._was_paused():
            logger.warning("closing connection of %s: no answer to PING", self.peer_address)
            self.connection.abort()
            return
        self._received_since_ping = False
        if self.protocol_version >= 1:
            self._ping_outstanding = True
            self.write(PING_FRAME)
        self._schedule_keep_alive()


def server_error_of(error: MagnetarError) -> ServerError:
    """The protocol's code for an error that is not the protocol's own."""
    if isinstance(error, NodeTooLarge):
        return ServerError.NOT_ALLOWED_ERROR
    if isinstance(error, StoreUnavailable):
        return ServerError.METADATA_ERROR
    if isinstance(error, ManagedLedgerFenced | ManagedLedgerClosed):
        return ServerError.SERVICE_NOT_READY
    if isinstance(error, ManagedLedgerError | Unavailable):
        return ServerError.PERSISTENCE_ERROR
    return ServerError.UNKNOWN_ERROR
