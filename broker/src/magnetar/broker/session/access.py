"""Who is at the other end of one connection: handshake, renewal of credentials that expire, and rights.

Pulsar: `ServerCnx.handleConnect`, `refreshAuthenticationCredentials`, `isTopicOperationAllowed`; pulsar-protocol
section 2.
"""

from __future__ import annotations

import asyncio
import logging
import weakref
from collections.abc import Awaitable, Callable, Collection
from typing import TYPE_CHECKING, Final, Protocol

from magnetar.auth.credentials import METHOD_NONE, REFRESH, AuthenticationFailed, Certificate, Credentials, Identity
from magnetar.broker.auth.access import AccessControl
from magnetar.broker.auth.authorizer import TenantNotFound
from magnetar.broker.auth.principal import Principal, principal_of
from magnetar.broker.auth.rules import Right
from magnetar.broker.session.api import Session
from magnetar.core.errors import PeerError
from magnetar.core.topic_name import NamespaceName, TopicName
from magnetar.wire.pulsar import messages
from magnetar.wire.pulsar.errors import PulsarError, ServerError
from magnetar.wire.pulsar.generated.pulsar_api_pb2 import CommandAuthResponse, CommandConnect

if TYPE_CHECKING:
    from magnetar.broker.session.consume import ConsumerCommands
    from magnetar.broker.session.produce import ProducerCommands

logger: Final = logging.getLogger(__name__)


def _not_let_in() -> PulsarError:
    """A new one each time: one that is raised again and again keeps what it was raised by, with its connection, in a
    traceback that only grows."""
    return PulsarError(ServerError.AUTHENTICATION_ERROR, "Failed to authenticate")


class AuthenticatedSession(Session, Protocol):
    """A session whose client may be refused, and may lose what it has opened."""

    @property
    def producers(self) -> ProducerCommands: ...
    @property
    def consumers(self) -> ConsumerCommands: ...

    def refuse(self, refusal: PulsarError) -> None: ...


class SessionAccess:
    """The access of one session."""

    def __init__(self, session: AuthenticatedSession, access: AccessControl, certificate: Certificate | None) -> None:
        # The session has this one; the other way round would be a cycle.
        self._reference = weakref.ref(session)
        self._access = access
        self._certificate = certificate
        self._method = METHOD_NONE
        self._identity: Identity | None = None
        """Whose credentials are renewed: the client's, where a proxy passed them on."""
        self._renewable = True
        self._challenged = False
        self._refreshes = False
        self._timer: asyncio.TimerHandle | None = None
        self.principal: Principal | None = None
        """Who the client is; None until it is connected."""

    @property
    def _session(self) -> AuthenticatedSession:
        session = self._reference()
        assert session is not None, "whoever calls is the session, one of its tasks, or its timer"
        return session

    @property
    def address(self) -> str:
        """The client's address, for the log: `/host:port`."""
        return self._session.peer_address

    @property
    def role(self) -> str:
        """The client's role, that of whom a proxy speaks for if it does."""
        principal = self.principal
        return "" if principal is None else principal.original or principal.role

    @property
    def is_known_super_user(self) -> bool:
        """Whether the client may do anything; False where rights are not checked."""
        authorizer, principal = self._access.authorizer, self.principal
        return authorizer is not None and principal is not None and authorizer.is_super_user(principal)

    def close(self) -> None:
        """The connection is gone."""
        self._access.leave(self)
        if self._timer is not None:
            self._timer.cancel()

    # --- handshake

    async def connect(self, connect: CommandConnect) -> None:
        """Let the client in. `PulsarError` with what it is told when it may not come in."""
        self._refreshes = connect.feature_flags.supports_auth_refresh
        try:
            self.principal = await self._authenticate(connect)
        except AuthenticationFailed as failure:
            logger.warning("%s failed to authenticate by %s: %s", self.address, self._method, failure)
            raise _not_let_in() from None
        if self._session.ended:
            return
        if self._access.authorizer is not None:
            self._check_proxy(connect)
            self._access.enter(self)
        self._schedule()

    async def _authenticate(self, connect: CommandConnect) -> Principal:
        access, authenticator = self._access, self._access.authenticator
        self._method = messages.auth_method_of(connect)
        identity = await authenticator.authenticate(Credentials(self._method, connect.auth_data, self._certificate))
        self._identity = identity
        original = connect.original_principal
        spoken_for = bool(original) or connect.HasField("original_auth_data")
        if access.settings.authenticate_original_data and spoken_for:
            # TLS is between the proxy and us: the client's certificate is not here to be seen.
            method = connect.original_auth_method or METHOD_NONE
            shown = await authenticator.authenticate(Credentials(method, connect.original_auth_data.encode()))
            self._method, self._identity, original = method, shown, shown.role
        elif original:
            self._renewable = False
        if access.authorizer is None:
            return Principal(identity.role, original, through_proxy=bool(original))
        principal = principal_of(identity.role, original, access.settings.proxy_roles)
        if principal is None:
            logger.warning("%s is %s and says it speaks for %r", self.address, identity.role, original)
            raise PulsarError(ServerError.AUTHORIZATION_ERROR, "Invalid roles.")
        return principal

    def _check_proxy(self, connect: CommandConnect) -> None:
        assert self.principal is not None
        if connect.HasField("proxy_version") and not self.principal.through_proxy:
            raise PulsarError(
                ServerError.AUTHORIZATION_ERROR, "Must not set proxyVersion without connecting as a ProxyRole."
            )

    # --- credentials that expire

    def _schedule(self) -> None:
        identity = self._identity
        if identity is None or identity.expires_ms is None or self._session.ended:
            return
        seconds = self._access.settings.authentication.refresh_check_seconds
        self._timer = asyncio.get_running_loop().call_later(seconds, self._check_expiry)

    def _check_expiry(self) -> None:
        identity = self._identity
        assert identity is not None
        if not identity.expired(self._access.clock.now_ms()):
            self._schedule()
            return
        if not self._renewable:
            self._give_up("credentials behind a proxy that does not pass them on")
        elif not self._refreshes:
            self._give_up("the client cannot renew its credentials")
        elif self._challenged:
            self._give_up("no answer to the challenge in time")
        else:
            self._challenged = True
            self._session.write(messages.auth_challenge(self._method, REFRESH, self._session.protocol_version))
            self._schedule()

    def _give_up(self, reason: str) -> None:
        logger.warning("closing connection of %s, whose credentials have expired: %s", self.address, reason)
        self._session.connection.close()

    def answered(self, response: CommandAuthResponse) -> None:
        """AUTH_RESPONSE. `PeerError` for one that says nothing."""
        if not response.HasField("response") or not response.response.HasField("auth_data"):
            raise PeerError("AUTH_RESPONSE without credentials")
        self._challenged = False
        self._session.spawn(self._renew(response.response.auth_data))

    async def _renew(self, data: bytes) -> None:
        before = self._identity
        assert before is not None
        try:
            identity = await self._access.authenticator.authenticate(Credentials(self._method, data, self._certificate))
        except AuthenticationFailed as failure:
            logger.warning("%s failed to renew its credentials: %s", self.address, failure)
            self._session.refuse(_not_let_in())
            return
        if identity.role != before.role:
            logger.warning("closing connection of %s: it was %s and is %s", self.address, before.role, identity.role)
            self._session.connection.close()
            return
        self._identity = identity
        if before.expires_ms is None:
            self._schedule()

    # --- rights

    async def require_on_topic(self, right: Right, topic: TopicName, refusal: str, subscription: str = "") -> None:
        """`PulsarError` with the text `refusal` unless the client has a right; see `Authorizer.allows_on_topic`. Where
        the tenant is missing nobody but super users has one."""
        if not await self._allowed_on_topic(right, topic, subscription):
            lacking = await self._lacking(lambda one: self._allowed_on_topic(right, topic, subscription, one))
            self._refuse(refusal, f"topic {topic}", lacking)

    async def _allowed_on_topic(
        self, right: Right, topic: TopicName, subscription: str, principal: Principal | None = None
    ) -> bool:
        """Whether somebody may, else the client."""
        authorizer, principal = self._access.authorizer, principal or self.principal
        if authorizer is None:
            return True
        assert principal is not None
        try:
            return await authorizer.allows_on_topic(principal, right, topic, subscription)
        except TenantNotFound:
            return False

    async def require_tenant(self, topic: TopicName) -> None:
        """`PulsarError` TOPIC_NOT_FOUND when a topic's tenant is missing; super users are not told here."""
        authorizer, principal = self._access.authorizer, self.principal
        if authorizer is None:
            return
        assert principal is not None
        try:
            await authorizer.is_tenant_admin(principal, topic.namespace_name.tenant)
        except TenantNotFound:
            raise PulsarError(
                ServerError.TOPIC_NOT_FOUND, f"Tenant or namespace or topic does not exist: {topic.namespace_name}"
            ) from None

    def may_look_up_now(self, topic: TopicName) -> bool:
        """Whether what is in memory says that the client may; False: ask `require_on_topic`."""
        authorizer, principal = self._access.authorizer, self.principal
        if authorizer is None:
            return True
        assert principal is not None
        return authorizer.allows_on_topic_now(principal, Right.LOOKUP, topic) is True

    @property
    def is_super_user(self) -> bool:
        """Whether the client, and the proxy that it comes through, may do everything."""
        authorizer = self._access.authorizer
        if authorizer is None:
            return True
        assert self.principal is not None
        return authorizer.is_super_user(self.principal)

    async def require_on_namespace(self, right: Right, namespace: NamespaceName, refusal: str) -> None:
        """`PulsarError` with the text `refusal` unless the client has a right on a namespace as a whole."""
        if self._access.authorizer is None:
            return
        assert self.principal is not None
        if not await self._allowed_on_namespace(right, namespace, self.principal):
            lacking = await self._lacking(lambda one: self._allowed_on_namespace(right, namespace, one))
            self._refuse(refusal, f"namespace {namespace}", lacking)

    async def _allowed_on_namespace(self, right: Right, namespace: NamespaceName, principal: Principal) -> bool:
        authorizer = self._access.authorizer
        if authorizer is None:
            return True
        try:
            return await authorizer.allows_on_namespace(principal, right, namespace)
        except TenantNotFound:
            return False

    async def _lacking(self, allowed: Callable[[Principal], Awaitable[bool]]) -> list[str]:
        """Which of a proxy's and its client's roles lack a right; empty without a proxy."""
        assert self.principal is not None
        lacking = []
        for role in self.principal.roles if self.principal.through_proxy else ():
            try:
                if not await allowed(Principal(role)):
                    lacking.append(role)
            except PulsarError:
                lacking.append(role)
        return lacking

    def _refuse(self, refusal: str, where: str, lacking: Collection[str]) -> None:
        assert self.principal is not None
        # The client is not told of roles, nor by Apache's broker.
        who = " for ".join(self.principal.roles) + "".join(f"; {role} lacks the right" for role in lacking)
        logger.warning("%s (%s) on %s: %s", self.address, who, where, refusal)
        raise PulsarError(ServerError.AUTHORIZATION_ERROR, refusal)

    async def look_again(self, changed: Collection[str]) -> None:
        """Rights in these tenants and namespaces have changed: close the producers and consumers that may not go on,
        as their clients will hear why when they open them again."""
        if self._over():
            return
        session = self._session
        for producer, topic in session.producers.attached():
            if concerns(changed, topic.name) and not await self._still(Right.PRODUCE, topic.name, ""):
                producer.disconnect()
                topic.remove_producer(producer)
        if self._over():
            return
        for attachment in session.consumers.attached():
            topic, consumer = attachment.topic, attachment.consumer
            subscription = attachment.subscription.name
            if concerns(changed, topic.name) and not await self._still(Right.CONSUME, topic.name, subscription):
                if self._over():
                    return
                topic.remove_consumer(consumer, subscription)
                session.consumers.consumer_disconnected(consumer)

    def _over(self) -> bool:
        session = self._reference()
        return session is None or session.ended

    async def _still(self, right: Right, topic: TopicName, subscription: str) -> bool:
        try:
            return await self._allowed_on_topic(right, topic, subscription)
        except PulsarError:
            return False


def concerns(changed: Collection[str], topic: TopicName) -> bool:
    """Whether a topic's tenant or namespace is among these."""
    namespace = topic.namespace_name
    return str(namespace) in changed or namespace.tenant in changed
