"""One client connection until it is either a lookup connection or handed over to the broker that it asked for.

A CONNECT without `proxy_to_broker_url` opens a lookup connection: the proxy answers it and serves four requests. One
with it is checked, repeated to that broker in the client's name, and with the broker's CONNECTED the two connections
become one: from then on nothing is read any more. (Pulsar: ProxyConnection, DirectProxyHandler.)
"""

from __future__ import annotations

import enum
import logging
from collections.abc import Callable
from typing import Final

from magnetar.core.errors import PeerError, Unavailable
from magnetar.core.limits import CLIENT_VERSION_CHARACTERS_MAX, CONNECT_FRAME_BYTES_MAX
from magnetar.core.transitions import Transitions
from magnetar.net.connection import Connection
from magnetar.net.requests import PAUSED_FOR_REQUESTS, ConnectionRequests, Place
from magnetar.proxy.client_access import ClientAccess
from magnetar.proxy.handshake import PROTOCOL_VERSION, ConnectedBroker, Greeting
from magnetar.proxy.lookups import Question
from magnetar.proxy.proven_targets import TargetUnknown
from magnetar.proxy.service import ProxyService
from magnetar.proxy.settings import SERVER_VERSION
from magnetar.proxy.targets import TargetDenied
from magnetar.wire.framing import LENGTH_BYTES
from magnetar.wire.haproxy import ProxiedConnection, encode_v1, encode_v2
from magnetar.wire.pulsar import messages
from magnetar.wire.pulsar.command import PING_FRAME, PONG_FRAME
from magnetar.wire.pulsar.errors import PulsarError, ServerError
from magnetar.wire.pulsar.frame import client_splitter
from magnetar.wire.pulsar.generated.pulsar_api_pb2 import BaseCommand, CommandConnect, CommandConnected, FeatureFlags
from magnetar.wire.pulsar.refusals import heard_at_first_request, refusal_of

logger: Final = logging.getLogger(__name__)

PROXY_VERSION_MIN: Final = 10
"""Clients of older protocol versions do not know what `proxy_through_service_url` is."""

REQUESTS: Final = frozenset(
    [
        BaseCommand.LOOKUP,
        BaseCommand.PARTITIONED_METADATA,
        BaseCommand.GET_TOPICS_OF_NAMESPACE,
        BaseCommand.GET_SCHEMA,
    ]
)
LARGE_ANSWERS: Final = frozenset([BaseCommand.GET_TOPICS_OF_NAMESPACE, BaseCommand.GET_SCHEMA])
CONNECTING_PAUSE: Final = "connecting"

TURN_COMMANDS_MAX: Final = 200
"""Commands of one connection in one turn of the event loop, a millisecond or two: one read brings twenty thousand."""

NOT_ACTIVE: Final = "Target broker isn't available."
NOT_ALLOWED: Final = "Target broker cannot be validated."
"""The words with which Apache's proxy refuses a broker's address that is not allowed."""


class ProxySessionState(enum.Enum):
    """Where a client stands."""

    START = enum.auto()
    CONNECTING = enum.auto()
    """It is being found out who that is, or whether a broker takes it: no command but an answer to a challenge."""
    LOOKUP = enum.auto()
    REFUSED = enum.auto()
    """It believes to be connected, and learns from the answer to its first request that it may not come in."""
    CLOSED = enum.auto()


_S: Final = ProxySessionState

TRANSITIONS: Final = Transitions(
    "a client's connection",
    {
        _S.START: {_S.CONNECTING, _S.LOOKUP, _S.CLOSED},
        _S.CONNECTING: {_S.LOOKUP, _S.REFUSED, _S.CLOSED},
        _S.LOOKUP: {_S.CLOSED},
        _S.REFUSED: {_S.CLOSED},
        _S.CLOSED: {_S.CLOSED},
    },
)


class ProxySession:
    """The proxy's side of one client connection. Implements `magnetar.net.connection.Handler`."""

    def __init__(self, connection: Connection, service: ProxyService, proxied: ProxiedConnection | None = None) -> None:
        self.connection = connection
        self.state = ProxySessionState.START
        self._service = service
        self._proxied = proxied
        self.client_address = f"/{proxied.source_host}:{proxied.source_port}" if proxied else connection.peer_address
        addresses = connection.socket_addresses
        self.client_host = proxied.source_host if proxied else addresses[0][0] if addresses else ""
        self._splitter = client_splitter(CONNECT_FRAME_BYTES_MAX)
        self._protocol_version = 0
        self._client_version = ""
        self._refusal: PulsarError | None = None
        self._access = ClientAccess(
            connection, self.client_address, service.access, lambda work: service.spawn(self, work)
        )
        self._requests = ConnectionRequests(connection, service.requests)
        self._going_on = False
        self._holds_much = False
        self._moved_bytes: int | None = None
        """What the client had moved at the last tick, if it was behind then."""
        self._ticks = 0
        self._received = True

    # --- magnetar.net.connection.Handler

    def connection_made(self) -> None:
        """Register, or be refused."""
        refusal = self._service.admit(self)
        if refusal is not None:
            self._refuse(ServerError.NOT_ALLOWED_ERROR, refusal)

    def data_received(self, data: bytes) -> None:
        """Commands, until the connection is handed over."""
        self._received = True
        try:
            if self._splitter.has_more:
                self._splitter.keep(data)
            else:
                self._serve_some(data)
        except PeerError as error:
            self._give_up(error)
        self._tell_what_is_held()

    def writable_changed(self, writable: bool) -> None:
        """A client that takes no answers is asked for no further requests."""
        if writable:
            self._requests.caught_up()
            self.connection.resume_reading("answers")
        else:
            self.connection.pause_reading("answers")

    def connection_lost(self, error: Exception | None) -> None:
        """The connection is over: give back what the session holds."""
        del error
        self._become(ProxySessionState.CLOSED)
        self._access.close()
        self._requests.close()
        self._splitter = client_splitter(CONNECT_FRAME_BYTES_MAX)
        self._service.left(self)

    # --- keep-alive

    def tick(self) -> None:
        """Every keep-alive interval: a client that never said CONNECT, or does not answer PING, is gone."""
        self._ticks += 1
        if self.state is ProxySessionState.START and self._ticks > 1:
            logger.warning("closing connection of %s: no CONNECT in time", self.client_address)
            self._close()
        elif self.state is ProxySessionState.REFUSED and self._ticks > 1:
            self._close()
        elif self.state is ProxySessionState.LOOKUP:
            if not self._received:
                logger.warning("closing connection of %s: no answer to PING", self.client_address)
                self.connection.abort()
                return
            moved_before = self._moved_bytes
            self._moved_bytes = None if self.connection.writable else self.connection.moved_bytes
            if moved_before is not None and moved_before == self._moved_bytes:
                logger.warning("closing connection of %s: it takes nothing of what it is sent", self.client_address)
                self.connection.abort()
                return
            self._received = self.connection.throttled  # Then no answer to PING can come.
            self.connection.write(PING_FRAME)

    # --- commands

    def _serve_some(self, data: bytes = b"") -> None:
        """A turn's worth of what was read; the rest goes on when it can: in another turn of the loop, or when fewer
        requests are under way. Nothing more is read meanwhile."""
        buffer, bounds = self._splitter.feed(data)
        bounds_max = min(len(bounds), 2 * TURN_COMMANDS_MAX)
        at = 0
        while at < bounds_max and not self._requests.full:
            start, end = bounds[at], bounds[at + 1]
            self._serve(messages.decode_command(buffer, start, end), end - start)
            at += 2
        if at < len(bounds) and self.state is not ProxySessionState.CLOSED:
            self._splitter.put_back(buffer, bounds[at] - LENGTH_BYTES)
        if self.state is ProxySessionState.CONNECTING and self._splitter.pending_bytes and not self._access.relaying:
            raise PeerError("more than CONNECT before CONNECTED")
        if self.state is ProxySessionState.CLOSED:
            self._splitter = client_splitter(CONNECT_FRAME_BYTES_MAX)
        elif self._splitter.has_more:
            self.connection.pause_reading(PAUSED_FOR_REQUESTS)
            self._go_on_soon()
        else:
            self.connection.resume_reading(PAUSED_FOR_REQUESTS)

    def _go_on_soon(self) -> None:
        if self._splitter.has_more and not self._going_on and not self._requests.full:
            self._going_on = True
            self._service.requests.in_turn(self._go_on)

    def _go_on(self) -> None:
        self._going_on = False
        try:
            self._serve_some()
        except PeerError as error:
            self._give_up(error)
        except Exception:
            # The edge of a connection: an error of ours must not leave its client waiting for ever.
            logger.exception("closing connection of %s", self.client_address)
            self._close()
        self._tell_what_is_held()

    def _give_up(self, error: PeerError) -> None:
        logger.warning("closing connection of %s: %s", self.client_address, error)
        self._close()

    def _tell_what_is_held(self) -> None:
        held_bytes = self._splitter.pending_bytes + self._requests.held_bytes
        if held_bytes > self.connection.noted_bytes or self._holds_much:
            self._holds_much = held_bytes > self.connection.noted_bytes
            self.connection.hold_incoming(held_bytes if self._holds_much else 0)

    def _serve(self, command: BaseCommand, size_bytes: int) -> None:
        if self.state is ProxySessionState.START:
            if command.type != BaseCommand.CONNECT:
                raise PeerError(f"{BaseCommand.Type.Name(command.type)} before CONNECT")
            self._connect(command.connect)
        elif self.state is ProxySessionState.LOOKUP:
            self._serve_lookup_connection(command, size_bytes)
        elif self.state is ProxySessionState.CONNECTING:
            if command.type != BaseCommand.AUTH_RESPONSE:
                raise PeerError(f"{BaseCommand.Type.Name(command.type)} before CONNECTED")
            self.connection.pause_reading(CONNECTING_PAUSE)
            self._access.answered(command)
        elif self.state is ProxySessionState.REFUSED:
            self._answer_refused(command)

    def _serve_lookup_connection(self, command: BaseCommand, size_bytes: int) -> None:
        if command.type in REQUESTS:

            def run() -> None:
                self._service.spawn(self, self._serve_request(command, size_bytes))

            if command.type in LARGE_ANSWERS:
                self._requests.begin_large(size_bytes, run)
            else:
                self._requests.begin(size_bytes)
                run()
        elif command.type == BaseCommand.PING:
            self.connection.write(PONG_FRAME)
        elif command.type == BaseCommand.AUTH_RESPONSE:
            self._access.answered(command)
        elif command.type != BaseCommand.PONG:
            raise PeerError(f"{BaseCommand.Type.Name(command.type)} on a lookup connection")

    async def _serve_request(self, command: BaseCommand, size_bytes: int) -> None:
        try:
            if command.type in LARGE_ANSWERS:
                await self._requests.answer_large(lambda place: self._answer(command, size_bytes, place))
            else:
                await self._answer(command, size_bytes)
        finally:
            self._requests.end(size_bytes)
            self._tell_what_is_held()
            self._go_on_soon()

    async def _answer(self, command: BaseCommand, size_bytes: int, place: Place | None = None) -> None:
        question = Question(command, size_bytes, self._access, self._protocol_version, place)
        self.connection.write(await self._service.lookups.answer(question))

    def _connect(self, connect: CommandConnect) -> None:
        self._protocol_version = min(connect.protocol_version, PROTOCOL_VERSION)
        self._client_version = connect.client_version[:CLIENT_VERSION_CHARACTERS_MAX]
        if connect.protocol_version < PROXY_VERSION_MIN:
            self._refuse(
                ServerError.NOT_ALLOWED_ERROR, "Client doesn't support connecting through proxy due to its version"
            )
            return
        if connect.HasField("proxy_version"):
            # Brokers would take its word for who the client is.
            self._refuse(ServerError.NOT_ALLOWED_ERROR, "Must not provide proxyVersion")
            return
        service = self._service
        if service.access is None:
            self._access.let_in_unchecked(
                connect, service.credentials, forward_credentials=service.settings.broker_client.forward_credentials
            )
            if not self._access.client.passed_on and not connect.HasField("proxy_to_broker_url"):
                self._serve_lookups()
                return
        self._become(ProxySessionState.CONNECTING)
        self.connection.pause_reading(CONNECTING_PAUSE)
        service.spawn(self, self._let_in(connect))

    async def _let_in(self, connect: CommandConnect) -> None:
        try:
            if self._service.access is not None:
                await self._access.let_in(connect)
            if connect.HasField("proxy_to_broker_url"):
                await self._join(connect)
                return
            client = self._access.client
            if client.passed_on:
                await self._service.lookups.introduce(client, self._protocol_version, self._relay)
        except PulsarError as error:
            self._service.counters.authentication_failures += error.code == ServerError.AUTHENTICATION_ERROR
            if self._access.client.passed_on:
                logger.warning("%s is refused by a broker: %s", self.client_address, error.message)
            self._refuse(error.code, error.message)
        except (Unavailable, PeerError) as error:
            logger.warning("%s cannot be let in, as no broker has looked at it: %s", self.client_address, error)
            self._close()
        else:
            if self.state is ProxySessionState.CONNECTING:
                self._serve_lookups()
                self.connection.resume_reading(CONNECTING_PAUSE)

    def _serve_lookups(self) -> None:
        self._become(ProxySessionState.LOOKUP)
        self.connection.write(lookup_connected(self._protocol_version))
        self._access.keep_valid()

    def _relay(self, challenge: BaseCommand, answer: Callable[[BaseCommand], None]) -> None:
        self._access.relay(challenge, answer)
        self.connection.resume_reading(CONNECTING_PAUSE)

    # --- data connections

    async def _join(self, connect: CommandConnect) -> None:
        target = connect.proxy_to_broker_url
        try:
            opened = await self._service.open_broker(target, lambda _: self._greeting(connect), self._relay)
        except TargetDenied as error:
            logger.warning("%s may not be connected with %r: %s", self.client_address, target, error)
            self._service.counters.denied_targets += 1
            self._refuse(ServerError.SERVICE_NOT_READY, NOT_ACTIVE if isinstance(error, TargetUnknown) else NOT_ALLOWED)
        except PulsarError:
            raise
        except (Unavailable, PeerError) as error:
            logger.warning("%s cannot be connected with %r: %s", self.client_address, target, error)
            self._service.counters.broker_connection_failures += 1
            self._close()
        else:
            self._hand_over(opened)

    def _hand_over(self, opened: ConnectedBroker) -> None:
        if self.connection.closing or opened.connection.closing or self.state is not ProxySessionState.CONNECTING:
            opened.connection.abort()
            self._close()
            return
        # The broker's own answer: what it can do is what the client will meet.
        self.connection.write(messages.frame_of(opened.connected) + opened.rest)
        self._become(ProxySessionState.CLOSED)
        self._access.close()
        self._service.join(self, opened.connection)

    def _greeting(self, connect: CommandConnect) -> Greeting:
        client = self._access.client
        command = self._service.connector.command(connect, client, self._protocol_version)
        return Greeting(connect=command, client=client, before=self._proxy_header())

    def _proxy_header(self) -> bytes:
        """What came from in front, else the client's connection with this proxy (Pulsar sends version 1)."""
        settings = self._service.settings
        if not settings.proxy_protocol:
            return b""
        encode = encode_v2 if settings.proxy_protocol_version == 2 else encode_v1
        if self._proxied is not None:
            return encode(self._proxied)
        addresses = self.connection.socket_addresses
        return encode(ProxiedConnection(*addresses[0], *addresses[1])) if addresses else b""

    # --- the end

    def _refuse(self, code: ServerError, text: str) -> None:
        if self.state is ProxySessionState.CONNECTING and heard_at_first_request(self._client_version, code):
            self._refusal = PulsarError(code, text)
            self._become(ProxySessionState.REFUSED)
            self._ticks = 0
            self.connection.write(lookup_connected(self._protocol_version))
            self.connection.resume_reading(CONNECTING_PAUSE)
            return
        self.connection.write(messages.error(messages.SERVER_REQUEST_ID, code, text))
        self._close()

    def _answer_refused(self, command: BaseCommand) -> None:
        assert self._refusal is not None
        answer = refusal_of(command, self._refusal.code, self._refusal.message)
        if answer is not None:
            self.connection.write(answer)
            self._close()

    def _become(self, state: ProxySessionState) -> None:
        self.state = TRANSITIONS.step(self.state, state)

    def _close(self) -> None:
        self._become(ProxySessionState.CLOSED)
        self._splitter = client_splitter(CONNECT_FRAME_BYTES_MAX)
        self.connection.close()


def lookup_connected(protocol_version: int) -> bytes:
    """The answer to a CONNECT for lookups: no size of messages, as none pass, and no watchers of topics."""
    flags = FeatureFlags(
        supports_topic_watchers=False,
        supports_get_partitioned_metadata_without_auto_creation=True,
        supports_repl_dedup_by_lid_and_eid=True,
    )
    return messages.frame_of(
        CommandConnected(server_version=SERVER_VERSION, protocol_version=protocol_version, feature_flags=flags)
    )
