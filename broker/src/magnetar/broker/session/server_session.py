"""One client connection: frames in, commands to the group that serves them, answers out.

SENDs, ACKs and FLOWs are decoded by hand and never wait, nor do questions about topics whose answer is in memory;
everything else is a control command, run as a task of the session so that a slow one does not hold up the rest. The
order of Pulsar's protocol that clients rely on is kept by each group: see there.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from magnetar.broker.auth.rules import Right
from magnetar.broker.client_memory import ConnectionMemory
from magnetar.broker.context import BrokerContext
from magnetar.broker.server_errors import server_error_of
from magnetar.broker.session.command_limits import (
    COMMAND_BYTES_MAX,
    FRAME_OVERHEAD_BYTES,
    TURN_COMMANDS_CROWDED,
    TURN_COMMANDS_MAX,
    refusal_of_size,
    turn_commands_max,
    turn_lookups_max,
)
from magnetar.broker.session.commands import COMMANDS, READ_BY_HAND
from magnetar.broker.session.consume import ConsumerCommands
from magnetar.broker.session.frames import MessageFrames
from magnetar.broker.session.liveness import Liveness
from magnetar.broker.session.lookup import LookupCommands
from magnetar.broker.session.produce import ProducerCommands
from magnetar.broker.session.topic_lists import TopicListCommands
from magnetar.broker.settings.broker import SERVER_VERSION
from magnetar.broker.states import SESSION_TRANSITIONS, SessionState
from magnetar.core.errors import MagnetarError, PeerError, forget_frames
from magnetar.core.limits import (
    CLIENT_VERSION_CHARACTERS_MAX,
    FRAME_PADDING_BYTES,
    KIB,
    PROXIED_CONNECT_FRAME_BYTES_MAX,
)
from magnetar.core.topic_name import NamespaceName, TopicName
from magnetar.net.connection import Connection
from magnetar.net.requests import PAUSED_FOR_REQUESTS, ConnectionRequests, Place
from magnetar.wire.framing import LENGTH_BYTES
from magnetar.wire.pulsar import messages
from magnetar.wire.pulsar.command import PONG_FRAME, command_type
from magnetar.wire.pulsar.errors import PulsarError, ServerError
from magnetar.wire.pulsar.frame import client_splitter
from magnetar.wire.pulsar.generated.pulsar_api_pb2 import BaseCommand, CommandConnect
from magnetar.wire.pulsar.refusals import heard_at_first_request, refusal_of

if TYPE_CHECKING:
    from magnetar.broker.session.access import SessionAccess

logger: Final = logging.getLogger(__name__)

PROTOCOL_VERSION: Final = 21
"""The newest version of the binary protocol that is served: that of Pulsar 4.x."""

CONTROL_COMMANDS_MAX: Final = 60_000
"""Control commands of one connection under way: others wait before they are as many (`ConnectionRequests`)."""

CLOSE_COMMANDS_VERSION: Final = 5
"""From this protocol version on, clients understand that a broker closes one producer or consumer."""

NEVER_WAIT: Final = (BaseCommand.PING, BaseCommand.PONG, BaseCommand.AUTH_RESPONSE)
"""Control commands that are served however many are under way: the connection ends without them."""

WAITING_BYTES_MAX: Final = 64 * KIB
"""Of control commands that wait for others of their connection; it is read no further beyond that. Until then messages
and acknowledgements pass by: what is under way may wait for the metadata store."""


class ServerSession:
    """The broker's side of one connection. Implements `magnetar.net.connection.Handler`."""

    def __init__(self, connection: Connection, context: BrokerContext) -> None:
        self.connection = connection
        self.context = context
        self.state = SessionState.START
        self.protocol_version = 0
        self.client_version = ""
        self.source_positions = False  # Whether the client matches receipts by positions at the source.
        self.access: SessionAccess | None = None
        """Who the client is and what it may do; None where nobody has to say who he is."""
        self._refusal: PulsarError | None = None
        self.peer_address = connection.peer_address
        self._splitter = client_splitter(PROXIED_CONNECT_FRAME_BYTES_MAX)
        self._tasks: set[asyncio.Task[None]] = set()
        self._liveness = Liveness(self)
        self._in_all = context.service.limits.requests
        self.requests = ConnectionRequests(connection, self._in_all)
        self.memory = ConnectionMemory(context.service.limits.client_memory)
        self._frame_bytes = 0
        """The size of the command that is being served."""
        self._waiting: deque[bytes] = deque()
        """Control commands that came while too many were under way."""
        self._waiting_bytes = 0
        self._going_on = False
        self._holds_much = False
        self._counted = False
        """Whether it is one of those that the limits of connections count."""
        self.producers: ProducerCommands = ProducerCommands(self)
        self.consumers: ConsumerCommands = ConsumerCommands(self)
        self.lookups: LookupCommands = LookupCommands(self)
        self._frames = MessageFrames(self.producers.publishes, self.consumers.requests, self.lookups)
        self.topic_lists: TopicListCommands = TopicListCommands(self)

    # --- magnetar.net.connection.Handler

    def connection_made(self) -> None:
        """Start the keep-alive: a peer that never says CONNECT is dropped by its first tick."""
        try:
            self.context.service.limits.connections.opened(self.peer_address)
        except PulsarError as error:
            self.refuse(error)
            return
        self._counted = True
        self._liveness.start()

    def data_received(self, data: bytes) -> None:
        """Cut the read into frames and serve them as one batch."""
        self._liveness.received()
        try:
            if self._splitter.has_more:
                self._splitter.keep(data)
            else:
                self._serve_frames(data)
        except PeerError as error:
            self._give_up(error)
        if self._splitter.pending_bytes > self.connection.noted_bytes or self._holds_much:
            self._tell_what_is_held()

    def writable_changed(self, writable: bool) -> None:
        """The peer fell behind or caught up: consumers and large answers wait or go on."""
        if writable:
            self.requests.caught_up()
            self.consumers.writable_again()

    def connection_lost(self, error: Exception | None) -> None:
        """Let go of all this connection held: now, or in turns, where that is much or thousands end together."""
        self._become(SessionState.CLOSED)
        if error is not None:
            logger.info("connection of %s broke: %s", self.peer_address, error)
        self._splitter = client_splitter(PROXIED_CONNECT_FRAME_BYTES_MAX)  # At once: it may hold megabytes.
        self._waiting.clear()
        self.requests.close()
        self._in_all.in_turns(self._let_go())

    def _let_go(self) -> Iterator[None]:
        if self._counted:
            self._counted = False
            self.context.service.limits.connections.closed(self.peer_address)
        self._liveness.stop()
        if self.access is not None:
            self.access.close()
        # Commands under way end by themselves: one that is cut off between two metadata writes would do harm.
        yield from self.producers.close_all()
        yield from self.consumers.close_all()
        yield from self.topic_lists.close_all()
        self.memory.close()
        # What refers to each other would else stay until the collector of cycles comes by.
        del self._frames, self.producers, self.consumers, self.lookups, self.topic_lists, self._liveness

    # --- serving

    def _serve_frames(self, data: bytes = b"") -> None:
        """Serve what was read, after what is left of former reads: of control commands a turn's worth."""
        buffer, bounds = self._splitter.feed(data)
        self._frames.begin_turn()
        controls, index = 0, 0
        while True:
            connected = self.state is SessionState.CONNECTED
            if connected:
                left = 0 if self._waiting or self.requests.full else turn_lookups_max(self._in_all) - controls
                frames = self._frames
                index = frames.serve(buffer, bounds, index, left)
                controls += frames.looked_up
            if index < 0 or (controls and controls >= turn_commands_max(self._in_all)):
                self._end_turn(buffer, bounds, ~index if index < 0 else index)
                break
            if index >= len(bounds):
                if not self._splitter.has_more:
                    break
                (buffer, bounds), index = self._splitter.feed(b""), 0
                continue
            start, end = bounds[index], bounds[index + 1]
            kind = command_type(buffer, start)
            if connected and (self._waiting or self.requests.full) and kind not in NEVER_WAIT:
                self._waiting.append(buffer[start:end])
                self._waiting_bytes += end - start + FRAME_OVERHEAD_BYTES
            else:
                self.producers.flush()
                self._control(kind, buffer, start, end)
            controls += 1
            index += 2
            if controls >= turn_commands_max(self._in_all) or self._waiting_bytes > WAITING_BYTES_MAX:
                self._end_turn(buffer, bounds, index)
                break
        self.producers.flush()

    def _end_turn(self, buffer: bytes, bounds: list[int], next_frame: int) -> None:
        """Others first; the frames from the next one on have to wait."""
        if next_frame < len(bounds):
            self._splitter.put_back(buffer, bounds[next_frame] - LENGTH_BYTES)
        elif self._waiting_bytes <= WAITING_BYTES_MAX and not self._splitter.has_more:
            return
        self.connection.pause_reading(PAUSED_FOR_REQUESTS)
        self._tell_what_is_held()
        self._go_on_soon()

    def _go_on_soon(self) -> None:
        """Go on in the next turn, if anything that has waited can be served."""
        able = bool(self._waiting) and not self.requests.full
        if not able and self._splitter.has_more:
            able = self._waiting_bytes <= WAITING_BYTES_MAX // 2
        if able and not self._going_on:
            self._going_on = True
            self._in_all.in_turn(self._go_on)

    def _go_on(self) -> None:
        self._going_on = False
        if self.ended:
            return
        try:
            self._serve_waiting()
        except Exception as error:  # noqa: BLE001  (the edge of a connection, and it is logged)
            # An error of ours must not leave its client waiting for ever.
            self._give_up(error)
            return
        if not self._splitter.has_more and self._waiting_bytes <= WAITING_BYTES_MAX // 2:
            self.connection.resume_reading(PAUSED_FOR_REQUESTS)
        if self._holds_much:
            self._tell_what_is_held()
        self._go_on_soon()

    def _give_up(self, error: Exception) -> None:
        mistake = None if isinstance(error, PeerError) else error
        logger.warning("closing connection of %s: %s", self.peer_address, error, exc_info=mistake)
        self._waiting.clear()
        self._splitter = client_splitter(PROXIED_CONNECT_FRAME_BYTES_MAX)
        self.connection.close()

    def _serve_waiting(self) -> None:
        controls = 0
        controls_max = TURN_COMMANDS_CROWDED if self._in_all.crowded else TURN_COMMANDS_MAX
        while self._waiting and not self.requests.full and not self.ended and controls < controls_max:
            command = self._waiting.popleft()
            self._waiting_bytes -= len(command) + FRAME_OVERHEAD_BYTES
            self._control(command_type(command, 0), command, 0, len(command))
            controls += 1
        if self._splitter.has_more and self._waiting_bytes <= WAITING_BYTES_MAX // 2 and not self.ended:
            self._serve_frames()

    def _tell_what_is_held(self) -> None:
        held_bytes = self._splitter.pending_bytes + self.requests.held_bytes + self._waiting_bytes
        self._holds_much = held_bytes > self.connection.noted_bytes
        self.connection.hold_incoming(held_bytes if self._holds_much else 0)

    def _control(self, kind: int, buffer: bytes, start: int, end: int) -> None:
        self._frame_bytes = end - start
        if self.state is SessionState.CONNECTED:
            serve = READ_BY_HAND.get(kind)
            if serve is None or self._frame_bytes > COMMAND_BYTES_MAX or not serve(self, buffer, start, end):
                self._request(buffer, start, end)
            return
        command = messages.decode_command(buffer, start, end)
        if self.state is SessionState.START:
            self._connect(command)
        elif self.state is SessionState.CONNECTING:
            raise PeerError(f"{BaseCommand.Type.Name(command.type)} before CONNECTED")
        elif self.state is SessionState.REFUSED:
            self._refuse_request(command)

    def _request(self, buffer: bytes, start: int, end: int) -> None:
        command, has_texts = messages.read_command(buffer, start, end)
        serve = COMMANDS.get(command.type)
        if serve is None:
            # What only a broker sends, or a second CONNECT.
            raise PeerError(f"unexpected command {BaseCommand.Type.Name(command.type)}")
        refusal = refusal_of_size(command, self._frame_bytes)
        if refusal:
            self.write(refusal)
            return
        if has_texts:
            messages.check_texts(command)
        if (work := serve(self, command)) is not None:
            self.spawn(work)

    def _connect(self, command: BaseCommand) -> None:
        if command.type != BaseCommand.CONNECT:
            raise PeerError(f"{BaseCommand.Type.Name(command.type)} before CONNECT")
        connect = command.connect
        self.protocol_version = min(connect.protocol_version, PROTOCOL_VERSION)
        self.client_version = connect.client_version[:CLIENT_VERSION_CHARACTERS_MAX]
        self.source_positions = connect.feature_flags.supports_repl_dedup_by_lid_and_eid
        if (access := self.context.access) is None:
            self._let_in()
            return
        # Whoever has an `access` has loaded this module.
        from magnetar.broker.session.access import SessionAccess

        self._become(SessionState.CONNECTING)
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
            forget_frames(refusal)
            return
        if not self.ended:
            self._let_in()

    def refuse(self, refusal: PulsarError) -> None:
        """Say why, and close the connection."""
        self.send_error(messages.SERVER_REQUEST_ID, refusal.code, refusal.message)
        self._become(SessionState.CLOSED)
        self.connection.close()

    def _refuse_later(self, refusal: PulsarError) -> None:
        """Have the client believe that it is connected, and refuse its first request."""
        if not self.ended:
            self._refusal = refusal
            self._become(SessionState.REFUSED)
            self._say_connected()

    def _refuse_request(self, command: BaseCommand) -> None:
        assert self._refusal is not None
        if (answer := refusal_of(command, self._refusal.code, self._refusal.message)) is not None:
            self.write(answer)
            self._become(SessionState.CLOSED)
            self.connection.close()

    def _let_in(self) -> None:
        self._become(SessionState.CONNECTED)
        self._splitter.allow(self.context.settings.message_size_bytes_max + FRAME_PADDING_BYTES)
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

    def _become(self, state: SessionState) -> None:
        self.state = SESSION_TRANSITIONS.step(self.state, state)

    # --- for the command groups

    @property
    def connecting(self) -> bool:
        """Whether the client has not been let in yet."""
        return self.state in (SessionState.START, SessionState.CONNECTING, SessionState.REFUSED)

    @property
    def ended(self) -> bool:
        """Whether the connection is gone: what is opened now has nobody to belong to."""
        return self.state is SessionState.CLOSED

    async def require(self, right: Right, topic: TopicName, refusal: str, subscription: str = "") -> None:
        """Raises PulsarError with the text `refusal` unless the client has a right on a topic, and may use the
        subscription, if any."""
        if self.access is not None:
            await self.access.require_on_topic(right, topic, refusal, subscription)

    @property
    def is_super_user(self) -> bool:
        """Whether it may do everything: also where nobody has to say who he is."""
        return self.access is None or self.access.is_super_user

    async def require_tenant(self, topic: TopicName) -> None:
        """Raises PulsarError(TOPIC_NOT_FOUND) when rights are looked at and the topic's tenant is missing."""
        if self.access is not None:
            await self.access.require_tenant(topic)

    async def require_topic_list(self, namespace: NamespaceName, refusal: str) -> None:
        """Raises PulsarError with the text `refusal` unless the client may list the topics of a namespace."""
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
        self.requests.begin(self._frame_bytes)
        self.context.service.wait_for_at_close(self._start(work, self._frame_bytes))

    def _start(self, work: Coroutine[Any, Any, None], frame_bytes: int) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(partial(self._finished, frame_bytes))
        return task

    @property
    def frame_bytes(self) -> int:
        """The size of the command that is being served."""
        return self._frame_bytes

    def step_aside(self, frame_bytes: int) -> None:
        """A request under way, of this size, begins to wait for what may never come, or for what this client itself has
        to ask for: it counts as none until `step_back`, and what it brought is bounded elsewhere."""
        self.requests.end(frame_bytes)
        self._go_on_soon()

    def step_back(self, frame_bytes: int) -> None:
        """The request goes on."""
        self.requests.begin(frame_bytes)

    def _finished(self, frame_bytes: int, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self.requests.end(frame_bytes)
        if self._waiting or self._splitter.has_more:
            self._go_on_soon()
        elif self._holds_much and not self.ended:
            self._tell_what_is_held()
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("a command of %s failed, closing its connection", self.peer_address, exc_info=error)
            self.connection.close()

    async def answering(self, request_id: int, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run the work of one request; whatever it raises becomes the request's error answer."""
        try:
            await work()
        except PulsarError as error:
            self.send_error(request_id, error.code, error.message)
            forget_frames(error)
        except MagnetarError as error:
            logger.warning("request %d of %s failed: %s", request_id, self.peer_address, error)
            self.send_error(request_id, server_error_of(error), str(error) or type(error).__name__)
            forget_frames(error)

    def answering_large(self, request_id: int, work: Callable[[Place], Coroutine[Any, Any, None]]) -> None:
        """Run the work of one request, of which only a large answer comes, in the place that it takes
        (`ConnectionRequests.begin_large`); what it raises becomes the error answer. The broker stops without waiting
        for it, as the client may read nothing."""
        frame_bytes = self._frame_bytes

        def run() -> None:
            self._start(self.answering(request_id, lambda: self.requests.answer_large(work)), frame_bytes)

        self.requests.begin_large(frame_bytes, run)

    # --- is somebody there?

    async def alive(self) -> bool:
        """Whether the client answers a PING soon; when not, the connection is closed and all it held is free."""
        return self.state is SessionState.CONNECTED and await self._liveness.alive()

    def auth_response(self, command: BaseCommand) -> None:
        """The client says anew who it is."""
        if self.access is None:
            raise PeerError("AUTH_RESPONSE that nobody asked for")
        self.access.answered(command.authResponse)

    def ping(self) -> None:
        """The client asks whether we are there."""
        self.write(PONG_FRAME)
