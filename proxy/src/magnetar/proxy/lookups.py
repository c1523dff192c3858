"""Lookups, partition counts, topic lists and schemas: asked of a broker in the client's place.

A LOOKUP's redirects are followed here, and its answer names the broker but tells the client to connect by way of the
proxy. The other answers are passed on as they are. (Pulsar: LookupProxyHandler.)
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Collection, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Final, NamedTuple
from urllib.parse import urlsplit

from magnetar.core.errors import PeerError, Unavailable
from magnetar.core.limits import MIB
from magnetar.net.requests import Place
from magnetar.proxy.broker_places import BrokerPlaces
from magnetar.proxy.client_access import ClientAccess
from magnetar.proxy.counters import ProxyCounters
from magnetar.proxy.credentials import OriginalClient
from magnetar.proxy.discovery import BrokerChoice, NoBroker
from magnetar.proxy.handshake import BrokerEndpoint, Relay
from magnetar.proxy.lookup_links import BODIES, LinkKey, LookupLinks
from magnetar.proxy.proven_targets import ProvenTargets
from magnetar.proxy.settings import ProxySettings
from magnetar.wire.pulsar import messages
from magnetar.wire.pulsar.errors import PulsarError, ServerError
from magnetar.wire.pulsar.generated.pulsar_api_pb2 import BaseCommand, CommandLookupTopicResponse

logger: Final = logging.getLogger(__name__)

REDIRECTS_MAX: Final = 10
"""Redirects followed for one lookup; Pulsar's proxy follows as many."""

BROKERS_TRIED_MAX: Final = 3
"""For one request: a dead broker stays in the list until its session ends, and hardly more than two die at once."""

UNDER_WAY_BYTES_MAX: Final = 32 * MIB
"""Bytes of the requests of all clients together, some of which may come in frames of 128 KiB: a hundred thousand of the
usual length. Each is in memory several times until it is answered."""

THROTTLED: Final = "Too many concurrent lookup and partitionsMetadata requests"

_FAILURES: Final[dict[int, Callable[[int, ServerError, str], bytes]]] = {
    BaseCommand.LOOKUP: messages.lookup_failed,
    BaseCommand.PARTITIONED_METADATA: messages.partitioned_metadata_failed,
    BaseCommand.GET_TOPICS_OF_NAMESPACE: messages.error,
    BaseCommand.GET_SCHEMA: messages.error,
}
"""How each request's answer says no."""


class Question(NamedTuple):
    """What a client asks."""

    command: BaseCommand
    size_bytes: int
    """Bytes of the request's frame as it came in."""
    access: ClientAccess
    protocol_version: int
    place: Place | None
    """The place of an answer that may be large. It waits for its place at a broker, and for its client, uncounted:
    those are one for each client."""


class Lookups:
    """Serves the requests of all lookup connections."""

    def __init__(
        self,
        links: LookupLinks,
        brokers: BrokerChoice,
        counters: ProxyCounters,
        proven: ProvenTargets,
        settings: ProxySettings,
    ) -> None:
        self._links = links
        self._brokers = brokers
        self._broker_places = BrokerPlaces(brokers)
        self._counters = counters
        self._proven = proven
        self._tls = settings.broker_client.tls_enabled
        self._at_once_max = settings.lookups_max
        self.under_way = 0
        self._under_way_bytes = 0

    async def introduce(self, client: OriginalClient, protocol_version: int, relay: Relay) -> None:
        """Have a broker look at the credentials of a client that are passed on. `PulsarError` with its refusal,
        `Unavailable`."""
        for left in reversed(range(BROKERS_TRIED_MAX)):
            url = self._brokers.service_url()
            try:
                await self._links.introduce(LinkKey(address_of(url), client, protocol_version), relay)
            except Unavailable as error:
                if left == 0 or len(self._brokers.service_urls()) < 2:
                    raise
                logger.info("another broker is shown a client's credentials, as %s did not answer: %s", url, error)
            else:
                return

    async def answer(self, question: Question) -> bytes:
        """The frame that answers a request, whatever happens. `ClientGone`, for one whose answer may be large."""
        command = question.command
        self._counters.requests[command.type] += 1
        request_id = request_id_of(command)
        kind = command.type
        try:
            if question.place is not None:
                return await self._answer(question, request_id)
            with self._counted_as_under_way(question):
                return await self._answer(question, request_id)
        except PulsarError as error:
            return _failed(command, request_id, error.code, error.message)
        except (Unavailable, PeerError) as error:
            logger.info("%s cannot be answered: %s", BaseCommand.Type.Name(kind), error)
            return _failed(command, request_id, ServerError.SERVICE_NOT_READY, str(error))

    @contextmanager
    def _counted_as_under_way(self, question: Question) -> Iterator[None]:
        """`PulsarError` when there are too many."""
        size_bytes = question.size_bytes
        if self.under_way >= self._at_once_max or self._under_way_bytes + size_bytes > UNDER_WAY_BYTES_MAX:
            self._counters.rejected_requests[question.command.type] += 1
            raise PulsarError(ServerError.SERVICE_NOT_READY, THROTTLED)
        self.under_way += 1
        self._under_way_bytes += size_bytes
        try:
            yield
        finally:
            self.under_way -= 1
            self._under_way_bytes -= size_bytes

    async def _answer(self, question: Question, request_id: int) -> bytes:
        client = await question.access.valid_client()
        try:
            return await self._serve(question, request_id, client)
        except PulsarError as error:
            if error.code != ServerError.AUTHENTICATION_ERROR or not client.passed_on:
                raise
        # They were good when the client came, so they have expired.
        return await self._serve(question, request_id, await question.access.renewed_client())

    async def _serve(self, question: Question, request_id: int, client: OriginalClient) -> bytes:
        command = question.command
        if command.type == BaseCommand.LOOKUP:
            return await self._look_up(question, request_id, client)
        _forget_claims(command)
        answer = await self._ask_any(question, client)
        getattr(answer, BODIES[answer.type]).request_id = request_id
        return messages.encode_command(answer)

    async def _look_up(self, question: Question, request_id: int, client: OriginalClient) -> bytes:
        command = question.command
        lookup = command.lookupTopic
        _forget_claims(command)
        # A listener's addresses are for clients outside; the proxy stands inside.
        lookup.ClearField("advertised_listener_name")
        lookup.authoritative = False
        url = ""
        for _ in range(REDIRECTS_MAX):
            if url:
                key = LinkKey(address_of(url), client, question.protocol_version)
                answer = await self._links.ask(key, command)
            else:
                answer = await self._ask_any(question, client)
            if answer.type != BaseCommand.LOOKUP_RESPONSE:
                answer.error.request_id = request_id
                return messages.encode_command(answer)
            response = answer.lookupTopicResponse
            if response.response == CommandLookupTopicResponse.Failed:
                response.request_id = request_id
                return messages.encode_command(answer)
            url = response.brokerServiceUrlTls if self._tls else response.brokerServiceUrl
            if response.response == CommandLookupTopicResponse.Connect:
                address_of(url)
                self._proven.answered(urlsplit(url).netloc)
                return _by_way_of_the_proxy(request_id, url)
            lookup.authoritative = response.authoritative
        raise PulsarError(ServerError.SERVICE_NOT_READY, "Reached max number of redirections")

    async def _ask_any(self, question: Question, client: OriginalClient) -> BaseCommand:
        """The answer of whichever broker answers: any one may be asked first, and asking twice does no harm."""
        tried: list[str] = []
        for left in reversed(range(BROKERS_TRIED_MAX)):
            try:
                async with self._broker(question, tried) as url:
                    tried.append(url)
                    key = LinkKey(address_of(url), client, question.protocol_version)
                    answer = await self._links.ask(key, question.command)
                    if question.place is not None:
                        # Before the broker's is left: what came is in memory until it is passed on.
                        await question.place.take()
                    return answer
            except NoBroker:
                raise
            except Unavailable as error:
                if left == 0 or len(self._brokers.service_urls()) < 2:
                    raise
                logger.info("another broker is asked, as %s did not answer: %s", tried[-1], error)
        raise AssertionError("the last attempt returns or raises")

    @asynccontextmanager
    async def _broker(self, question: Question, tried: Collection[str]) -> AsyncIterator[str]:
        """The URL of one to ask. For a large answer there is a place at it; `ClientGone` when that came too late."""
        if question.place is None:
            yield self._brokers.service_url()
            return
        async with self._broker_places.place(tried) as url:
            question.place.require_client()
            with self._counted_as_under_way(question):
                yield url


def request_id_of(command: BaseCommand) -> int:
    """The request id that the client chose."""
    request_id: int = getattr(command, BODIES[command.type]).request_id
    return request_id


def address_of(url: str) -> BrokerEndpoint:
    """Where the binary protocol is served at a broker's URL. `PeerError` for what is no such URL."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        host = port = None
    if not host or not port:
        raise PeerError(f"a broker gave {url!r} as an address, which is none that this proxy can use")
    return BrokerEndpoint(host, port, host)


def _failed(command: BaseCommand, request_id: int, code: ServerError, text: str) -> bytes:
    return _FAILURES[command.type](request_id, code, text)


def _forget_claims(command: BaseCommand) -> None:
    """What a client says about who it speaks for is worth nothing: brokers would believe it from a proxy."""
    if command.type in (BaseCommand.LOOKUP, BaseCommand.PARTITIONED_METADATA):
        body = getattr(command, BODIES[command.type])
        for field in ("original_principal", "original_auth_data", "original_auth_method"):
            body.ClearField(field)


def _by_way_of_the_proxy(request_id: int, url: str) -> bytes:
    """Both URLs are the one that the proxy uses, whatever the client has to the proxy: the client sends it back in its
    next CONNECT."""
    return messages.frame_of(
        CommandLookupTopicResponse(
            request_id=request_id,
            response=CommandLookupTopicResponse.Connect,
            brokerServiceUrl=url,
            brokerServiceUrlTls=url,
            authoritative=True,
            proxy_through_service_url=True,
        )
    )
