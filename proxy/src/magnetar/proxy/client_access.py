"""The credentials of one client: checked or passed on, shown to brokers, and renewed on the same connection."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any, Final

from magnetar.auth.credentials import (
    METHOD_NONE,
    REFRESH,
    AuthenticationFailed,
    Certificate,
    Credentials,
    Identity,
)
from magnetar.auth.plugin import ClientCredentials
from magnetar.core.errors import PeerError, Unavailable
from magnetar.net.connection import Connection
from magnetar.proxy.access import ProxyAccess
from magnetar.proxy.credentials import NOBODY, OriginalClient, unchecked_client
from magnetar.wire.pulsar import messages
from magnetar.wire.pulsar.errors import PulsarError, ServerError
from magnetar.wire.pulsar.generated.pulsar_api_pb2 import BaseCommand, CommandAuthResponse, CommandConnect

logger: Final = logging.getLogger(__name__)

RENEWAL_SECONDS_MAX: Final = 20.0
"""For an answer to the question for fresh credentials: less than clients wait for the lookup behind it (30 s)."""


def not_let_in() -> PulsarError:
    """A new one each time: one that is raised again and again keeps what it was raised by, with its connection, in a
    traceback that only grows."""
    return PulsarError(ServerError.AUTHENTICATION_ERROR, "Failed to authenticate")


class NotRenewed(Unavailable):
    """The client has no fresh credentials; its connection is closed, so that it comes again with others."""


class ClientAccess:
    """The access of one session."""

    def __init__(
        self,
        connection: Connection,
        address: str,
        access: ProxyAccess | None,
        spawn: Callable[[Coroutine[Any, Any, None]], None],
    ) -> None:
        """`access` is None where nobody is authenticated here."""
        self.address = address
        self.client: OriginalClient = NOBODY
        """What brokers are told; known once connected."""
        self._connection = connection
        self._access = access
        self._spawn = spawn
        self._certificate: Certificate = {}
        self._method = METHOD_NONE
        self._protocol_version = 0
        self._refreshes = False
        self._identity: Identity | None = None
        self._renewal: asyncio.Future[None] | None = None
        self._relay: Callable[[BaseCommand], None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False

    def close(self) -> None:
        """The connection is gone, or it is joined with a broker's: brokers have their own ways to ask."""
        self._closed = True
        self._spawn = _drop  # It refers to the session, which refers to this.
        self._relay = None
        if self._timer is not None:
            self._timer.cancel()
        if self._renewal is not None:
            self._renewal.cancel()

    # --- handshake

    def let_in_unchecked(self, connect: CommandConnect, own: ClientCredentials, *, forward_credentials: bool) -> None:
        """CONNECT where nobody is authenticated here."""
        self._take(connect)
        self.client = unchecked_client(connect, own, forward_credentials=forward_credentials)

    async def let_in(self, connect: CommandConnect) -> None:
        """CONNECT. `PulsarError` with what a client is told that may not come in."""
        access = self._access
        assert access is not None
        self._take(connect)
        self._certificate = self._connection.peer_certificate
        try:
            identity = await access.authenticator.authenticate(
                Credentials(self._method, connect.auth_data, self._certificate)
            )
        except AuthenticationFailed as failure:
            logger.warning("%s failed to authenticate by %s: %s", self.address, self._method, failure)
            raise not_let_in() from None
        self._become(identity, connect.auth_data)

    def _take(self, connect: CommandConnect) -> None:
        self._method = messages.auth_method_of(connect)
        self._protocol_version = connect.protocol_version
        self._refreshes = connect.feature_flags.supports_auth_refresh

    def _become(self, identity: Identity, data: bytes) -> None:
        assert self._access is not None
        self._identity = identity
        if self._access.forward_credentials:
            self.client = OriginalClient(identity.role, data, self._method if data else "")
        else:
            self.client = OriginalClient(identity.role)

    # --- credentials that expire

    async def valid_client(self) -> OriginalClient:
        """The client with credentials that are good now. `NotRenewed`."""
        identity, access = self._identity, self._access
        if identity is not None and access is not None and identity.expired(access.clock.now_ms()):
            return await self.renewed_client()
        return self.client

    async def renewed_client(self) -> OriginalClient:
        """The client with credentials that it was asked for anew. `NotRenewed`."""
        if self._renewal is None:
            self._ask_for_renewal()
        renewal = self._renewal
        if renewal is None:
            raise NotRenewed("the client cannot renew its credentials")
        try:
            async with asyncio.timeout(RENEWAL_SECONDS_MAX):
                await asyncio.shield(renewal)
        except TimeoutError:
            self._give_up("no answer to the challenge in time")
            raise NotRenewed("the client did not renew its credentials") from None
        except asyncio.CancelledError:
            if not self._closed:
                raise
            raise NotRenewed("the client's credentials were not renewed") from None
        return self.client

    def keep_valid(self) -> None:
        """Look from now on whether the credentials have expired: as long as lookups are asked on this connection."""
        identity, access = self._identity, self._access
        if identity is None or access is None or identity.expires_ms is None or self._closed:
            return
        seconds = access.settings.authentication.refresh_check_seconds
        self._timer = asyncio.get_running_loop().call_later(seconds, self._check_expiry)

    def _check_expiry(self) -> None:
        assert self._identity is not None
        assert self._access is not None
        if not self._identity.expired(self._access.clock.now_ms()):
            self.keep_valid()
        elif self._renewal is not None:
            self._give_up("no answer to the challenge in time")
        else:
            self._ask_for_renewal()
            self.keep_valid()

    def _ask_for_renewal(self) -> None:
        if self._closed:
            return
        if not self._refreshes:
            self._give_up("the client cannot renew its credentials")
            return
        self._renewal = asyncio.get_running_loop().create_future()
        self._connection.write(messages.auth_challenge(self._method, REFRESH, self._protocol_version))

    def _give_up(self, reason: str) -> None:
        logger.warning("closing connection of %s, whose credentials have expired: %s", self.address, reason)
        self.close()
        self._connection.close()

    # --- what clients answer

    @property
    def relaying(self) -> bool:
        """Whether a broker waits for the client's answer to a challenge."""
        return self._relay is not None

    def relay(self, challenge: BaseCommand, answer: Callable[[BaseCommand], None]) -> None:
        """A broker that is shown the client's credentials wants to know more: `answer` gets what the client says."""
        self._relay = answer
        self._connection.write(messages.encode_command(challenge))

    def answered(self, command: BaseCommand) -> None:
        """AUTH_RESPONSE. `PeerError` for one that nobody asked for or that says nothing."""
        response: CommandAuthResponse = command.authResponse
        if not response.HasField("response") or not response.response.HasField("auth_data"):
            raise PeerError("AUTH_RESPONSE without credentials")
        relay, self._relay = self._relay, None
        if relay is not None:
            relay(command)
        elif self._renewal is None:
            raise PeerError("AUTH_RESPONSE that nobody asked for")
        elif self._access is None:
            self.client = self.client._replace(auth_data=response.response.auth_data)
            self._renewed()
        else:
            self._spawn(self._renew(self._access, response.response.auth_data))

    async def _renew(self, access: ProxyAccess, data: bytes) -> None:
        before = self._identity
        assert before is not None
        try:
            identity = await access.authenticator.authenticate(Credentials(self._method, data, self._certificate))
        except AuthenticationFailed as failure:
            logger.warning("%s failed to renew its credentials: %s", self.address, failure)
            self._refuse()
            return
        if identity.role != before.role:
            logger.warning("closing connection of %s: it was %s and is %s", self.address, before.role, identity.role)
            self._refuse()
            return
        self._become(identity, data)
        self._renewed()

    def _refuse(self) -> None:
        self.close()
        refusal = not_let_in()
        self._connection.write(messages.error(messages.SERVER_REQUEST_ID, refusal.code, refusal.message))
        self._connection.close()

    def _renewed(self) -> None:
        renewal, self._renewal = self._renewal, None
        if renewal is not None and not renewal.done():
            renewal.set_result(None)


def _drop(work: Coroutine[Any, Any, None]) -> None:
    """Nobody is there any more."""
    work.close()
