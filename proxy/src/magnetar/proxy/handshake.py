"""The proxy's own CONNECT to a broker, up to the broker's CONNECTED."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final, TypeAlias

from magnetar.auth.credentials import METHOD_NONE
from magnetar.auth.plugin import ClientCredentials
from magnetar.core.errors import PeerError, Unavailable
from magnetar.core.limits import KIB
from magnetar.net.connection import Connection
from magnetar.net.endpoints import connect
from magnetar.net.tls import ClientTls
from magnetar.proxy.credentials import NOBODY, OriginalClient, introduce
from magnetar.proxy.settings import PROXY_VERSION
from magnetar.wire.pulsar import messages
from magnetar.wire.pulsar.command import PONG_FRAME
from magnetar.wire.pulsar.errors import PulsarError, ServerError
from magnetar.wire.pulsar.frame import command_splitter
from magnetar.wire.pulsar.generated.pulsar_api_pb2 import BaseCommand, CommandConnect, CommandConnected

logger: Final = logging.getLogger(__name__)

PROTOCOL_VERSION: Final = 21
"""The newest protocol version that the proxy passes on."""

HANDSHAKE_FRAME_BYTES_MAX: Final = 256 * KIB
"""Bytes that a broker may send before a connection stands; it says little."""

HANDSHAKE_PAUSE: Final = "handshake"
"""The reason why a connection that stands is not read until somebody takes it over."""


class BrokerUnreachable(Unavailable):
    """No connection to the broker came about."""


@dataclass(frozen=True, slots=True)
class BrokerEndpoint:
    """Where a broker is, and who its certificate must be for."""

    host: str
    port: int
    server_name: str

    def __str__(self) -> str:
        return f"{self.server_name}:{self.port}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Greeting:
    """What the proxy says first."""

    connect: CommandConnect
    client: OriginalClient = NOBODY
    """For whom; what CONNECT says of it stands there already."""
    before: bytes = b""
    """Bytes before CONNECT: a PROXY header."""


@dataclass(frozen=True, slots=True)
class ConnectedBroker:
    """A connection on which the broker has said CONNECTED; reading is paused."""

    connection: Connection
    connected: CommandConnected
    rest: bytes
    """What came right behind CONNECTED."""


Relay: TypeAlias = Callable[[BaseCommand, Callable[[BaseCommand], None]], None]
"""Passes a broker's challenge on to a client, and the client's answer to the given function."""


class BrokerConnector:
    """Opens connections to brokers."""

    def __init__(
        self, credentials: ClientCredentials, tls: ClientTls | None, connect_timeout_ms: int, read_timeout_ms: int
    ) -> None:
        self.credentials = credentials
        self._tls = tls
        self._connect_seconds_max = connect_timeout_ms / 1000 if connect_timeout_ms else None
        self._answer_seconds_max = read_timeout_ms / 1000 if read_timeout_ms else None

    def command(self, client: CommandConnect | None, who: OriginalClient, protocol_version: int) -> CommandConnect:
        """A CONNECT in the name of a client: its version and what it can do; None: in the proxy's own name. OSError
        when the proxy's token cannot be read."""
        made = CommandConnect(
            client_version=client.client_version if client is not None else f"Pulsar proxy {PROXY_VERSION}",
            protocol_version=protocol_version,
        )
        if client is None:
            made.feature_flags.supports_auth_refresh = True
        elif client.HasField("feature_flags"):
            made.feature_flags.CopyFrom(client.feature_flags)
        introduce(made, self.credentials, who)
        return made

    async def open(
        self, address: BrokerEndpoint, greet: Callable[[Connection], Greeting], relay: Relay | None = None
    ) -> ConnectedBroker:
        """Connect and wait for CONNECTED. `BrokerUnreachable`, `PulsarError` with the broker's own refusal.

        Challenges go to `relay` where the client's credentials are shown instead of the proxy's."""
        answer: asyncio.Future[ConnectedBroker] = asyncio.get_running_loop().create_future()
        challenged = partial(self._challenged, relay)
        try:
            connection = await connect(
                address.host,
                address.port,
                lambda connection: _Greeter(connection, greet, challenged, answer),
                self._connect_seconds_max,
                tls=self._tls,
                server_name=address.server_name,
            )
        except (OSError, TimeoutError) as error:
            answer.cancel()
            raise BrokerUnreachable(f"{address}: {str(error) or 'no connection in time'}") from None
        try:
            async with asyncio.timeout(self._answer_seconds_max):
                return await answer
        except TimeoutError:
            connection.abort()
            raise BrokerUnreachable(f"{address}: no CONNECTED in time") from None
        except _Refused as refused:
            raise self._refusal(address, refused.client, refused.error) from None
        except BaseException:
            connection.abort()
            raise

    def _challenged(
        self, relay: Relay | None, connection: Connection, client: OriginalClient, ask: BaseCommand
    ) -> None:
        """A broker wants to know more before it says CONNECTED. `PeerError` when there is nothing to say."""
        if not client.passed_on:
            connection.write(auth_response(self.credentials, ask))
        elif relay is not None:
            relay(ask, lambda answer: connection.write(messages.encode_command(answer)))
        else:
            raise PeerError("a broker asks for more than the credentials that it was shown")

    def _refusal(self, address: BrokerEndpoint, client: OriginalClient, error: PulsarError) -> Exception:
        """What becomes of a broker's refusal, and a word in the log for who can do something about it."""
        if client.passed_on or self.credentials.method == METHOD_NONE:
            return error
        if error.code == ServerError.AUTHENTICATION_ERROR and (client.principal or not client.auth_data):
            logger.error(
                "%s refuses the proxy itself (%s): brokerClientAuthenticationPlugin and "
                "brokerClientAuthenticationParameters are not good there, or it has authenticateOriginalAuthData and "
                "does not get what it wants by forwardAuthorizationCredentials",
                address,
                error.message,
            )
            # No fault of the client's: it may try again, and need not know.
            return BrokerUnreachable(f"{address} does not let the proxy in")
        if error.code == ServerError.AUTHORIZATION_ERROR and client.principal:
            logger.warning(
                "%s refuses %r by way of this proxy (%s): the role of brokerClientAuthenticationPlugin must be among "
                "the broker's proxyRoles, the client's must not",
                address,
                client.principal,
                error.message,
            )
        elif error.code == ServerError.AUTHORIZATION_ERROR:
            logger.warning(
                "%s refuses this proxy (%s): it cannot say for whom it speaks, as authenticationEnabled is off",
                address,
                error.message,
            )
        return error


class _Refused(Exception):
    """A broker's ERROR before CONNECTED."""

    def __init__(self, client: OriginalClient, error: PulsarError) -> None:
        super().__init__(str(error))
        self.client = client
        self.error = error


class _Greeter:
    """Says CONNECT, answers challenges, and stops at CONNECTED. Implements `magnetar.net.connection.Handler`."""

    def __init__(
        self,
        connection: Connection,
        greet: Callable[[Connection], Greeting],
        challenged: Callable[[Connection, OriginalClient, BaseCommand], None],
        answer: asyncio.Future[ConnectedBroker],
    ) -> None:
        self._connection = connection
        self._greet = greet
        self._challenged = challenged
        self._client = NOBODY
        self._answer = answer
        self._splitter = command_splitter(HANDSHAKE_FRAME_BYTES_MAX)

    def connection_made(self) -> None:
        try:
            greeting = self._greet(self._connection)
            self._client = greeting.client
            frame = messages.frame_of(greeting.connect)
        except OSError as error:
            self._fail(BrokerUnreachable(f"the proxy's own credentials cannot be read: {error}"))
            return
        self._connection.write(greeting.before + frame)

    def data_received(self, data: bytes) -> None:
        if self._answer.done():
            return
        try:
            buffer, bounds = self._splitter.feed(data)
            for index in range(0, len(bounds), 2):
                command = messages.decode_command(buffer, bounds[index], bounds[index + 1])
                if command.type == BaseCommand.CONNECTED:
                    self._connection.pause_reading(HANDSHAKE_PAUSE)
                    rest = buffer[bounds[index + 1] :]
                    self._answer.set_result(ConnectedBroker(self._connection, command.connected, rest))
                    return
                self._serve(command)
        except PeerError as error:
            self._fail(error)

    def _serve(self, command: BaseCommand) -> None:
        if command.type == BaseCommand.ERROR:
            self._fail(_Refused(self._client, PulsarError(ServerError(command.error.error), command.error.message)))
        elif command.type == BaseCommand.PING:
            self._connection.write(PONG_FRAME)
        elif command.type == BaseCommand.AUTH_CHALLENGE:
            self._challenged(self._connection, self._client, command)
        else:
            raise PeerError(f"{BaseCommand.Type.Name(command.type)} from a broker before CONNECTED")

    def writable_changed(self, writable: bool) -> None:
        pass

    def connection_lost(self, error: Exception | None) -> None:
        if not self._answer.done():
            text = f": {error}" if error is not None else ""
            self._answer.set_exception(BrokerUnreachable(f"the broker closed the connection{text}"))

    def _fail(self, error: Exception) -> None:
        if not self._answer.done():
            self._answer.set_exception(error)
        self._connection.abort()


def auth_response(credentials: ClientCredentials, challenge: BaseCommand) -> bytes:
    """The proxy's answer to a broker that asks who it is (again). `PeerError` when it has nothing to say."""
    try:
        data = credentials.data()
    except OSError as error:
        raise PeerError(f"the proxy's own credentials cannot be read: {error}") from None
    response = BaseCommand(type=BaseCommand.AUTH_RESPONSE)
    response.authResponse.client_version = f"Pulsar proxy {PROXY_VERSION}"
    response.authResponse.protocol_version = challenge.authChallenge.protocol_version
    response.authResponse.response.auth_method_name = credentials.method
    response.authResponse.response.auth_data = data
    return messages.encode_command(response)
