"""Who sends a request, and what brokers are told about it. Importing this loads aiohttp.

As Pulsar's proxy, this one leaves a client's `Authorization` in place, so that a broker checks it once more, and adds
who it found the client to be. Where a request has none that a broker could check (a certificate, which ends here, or
nobody's), the proxy shows its own credentials instead. (Pulsar: AuthenticationFilter, AdminProxyHandler.)
"""

from __future__ import annotations

import logging
from typing import Final

from aiohttp import hdrs, web
from magnetar.auth.credentials import METHOD_BASIC, METHOD_TOKEN, AuthenticationFailed, Identity
from magnetar.auth.plugin import ClientCredentials
from magnetar.proxy.access import ProxyAccess
from magnetar.proxy.discovery import NoBroker
from multidict import CIMultiDict
from yarl import URL

logger: Final = logging.getLogger(__name__)

METHOD_HEADER: Final = "X-Pulsar-Auth-Method-Name"
ORIGINAL_HEADER: Final = "X-Original-Principal"
UNAUTHORIZED: Final = 401
IDENTITY: Final = web.RequestKey("identity", Identity)

_IN_HEADERS: Final = (METHOD_TOKEN, METHOD_BASIC)
"""Methods whose credentials a request carries itself."""


class NotAllowed(Exception):
    """The request goes no further; the text is for its sender."""


class HttpGate:
    """Authenticates HTTP requests and lets them in, or not."""

    def __init__(self, access: ProxyAccess, own: ClientCredentials) -> None:
        self._access = access
        self._own = own

    @property
    def metrics_open(self) -> bool:
        """Whether /metrics is for everybody."""
        return not self._access.settings.metrics_authenticated

    async def enter(self, request: web.Request) -> Identity:
        """Who sends it. `NotAllowed`."""
        certificate = None if request.transport is None else request.transport.get_extra_info("peercert")
        try:
            identity = await self._access.authenticator.authenticate_http(
                request.headers.get(METHOD_HEADER), request.headers.get(hdrs.AUTHORIZATION, ""), certificate
            )
        except AuthenticationFailed as failure:
            logger.warning("%s failed to authenticate for %s: %s", request.remote, request.path, failure)
            raise NotAllowed("Authentication required") from None
        if not identity.role.isprintable():
            # It is to stand in a header.
            logger.warning("%s has a role that cannot be passed on: %r", request.remote, identity.role)
            raise NotAllowed("Authentication required")
        return identity

    async def enter_statistics(self, request: web.Request) -> None:
        """For the proxy's own pages. `NotAllowed`."""
        identity = await self.enter(request)
        if not self._access.may_see_statistics(identity):
            logger.warning("%s is %s and may not see %s", request.remote, identity.role, request.path)
            raise NotAllowed("Client is not authorized to perform operation")

    def introduce(self, headers: CIMultiDict[str], identity: Identity) -> None:
        """Write into a request to a broker who comes, and for whom. `NoBroker` when the proxy cannot show itself."""
        if identity.method in _IN_HEADERS:
            headers[METHOD_HEADER] = identity.method
        else:
            headers.popall(hdrs.AUTHORIZATION, None)
            headers.popall(METHOD_HEADER, None)
            headers.update(self._own_headers())
        headers[ORIGINAL_HEADER] = identity.role

    def answered(self, status: int, url: URL, identity: Identity) -> None:
        """A broker's answer: a word in the log when it may not have let the proxy in."""
        if status == UNAUTHORIZED and identity.method not in _IN_HEADERS:
            logger.warning(
                "%s answers 401 to %s by way of this proxy: brokerClientAuthenticationPlugin and "
                "brokerClientAuthenticationParameters must be good there, and their role among its proxyRoles",
                url.authority,
                identity.role,
            )

    def _own_headers(self) -> dict[str, str]:
        try:
            return self._own.http_headers()
        except OSError as error:
            logger.warning("the proxy's own credentials cannot be read: %s", error)
            raise NoBroker("The proxy cannot show itself to brokers") from None
