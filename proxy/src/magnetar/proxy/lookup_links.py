"""Connections to brokers for lookups, shared by all clients in whose name the same may be asked.

A link carries any number of requests at a time. Links that nobody has used for a while are closed.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from itertools import islice
from typing import Final, NamedTuple

from magnetar.auth.plugin import ClientCredentials
from magnetar.core.errors import PeerError, Unavailable
from magnetar.core.limits import FRAME_PADDING_BYTES
from magnetar.net.connection import Connection
from magnetar.net.descriptors import open_files_max
from magnetar.proxy.credentials import OriginalClient
from magnetar.proxy.handshake import (
    HANDSHAKE_PAUSE,
    BrokerConnector,
    BrokerEndpoint,
    BrokerUnreachable,
    ConnectedBroker,
    Greeting,
    Relay,
    auth_response,
)
from magnetar.wire.pulsar import messages
from magnetar.wire.pulsar.command import PING_FRAME, PONG_FRAME
from magnetar.wire.pulsar.frame import command_splitter
from magnetar.wire.pulsar.generated.pulsar_api_pb2 import BaseCommand

logger: Final = logging.getLogger(__name__)

ANSWER_SECONDS_MAX: Final = 30.0
"""Pulsar's clients wait this long for an answer (`operationTimeout`), so nobody listens to a later one."""

IDLE_TICKS_MAX: Final = 2
"""Ticks of the keep-alive without a request after which a link is closed."""

SHARE_OF_FILES: Final = 16
"""One of so many that the process may have open is for links, and one for those that are being opened."""

LINKS_MAX: Final = 10_000
"""However many files there may be: a client with a token of its own has a link of its own, also when it has gone."""

BODIES: Final = {
    BaseCommand.LOOKUP: "lookupTopic",
    BaseCommand.PARTITIONED_METADATA: "partitionMetadata",
    BaseCommand.GET_TOPICS_OF_NAMESPACE: "getTopicsOfNamespace",
    BaseCommand.GET_SCHEMA: "getSchema",
    BaseCommand.LOOKUP_RESPONSE: "lookupTopicResponse",
    BaseCommand.PARTITIONED_METADATA_RESPONSE: "partitionMetadataResponse",
    BaseCommand.GET_TOPICS_OF_NAMESPACE_RESPONSE: "getTopicsOfNamespaceResponse",
    BaseCommand.GET_SCHEMA_RESPONSE: "getSchemaResponse",
    BaseCommand.ERROR: "error",
}
"""Where the request id stands in the requests that are passed on, and in their answers."""


class LinkKey(NamedTuple):
    """What makes two requests fit for one link."""

    address: BrokerEndpoint
    client: OriginalClient
    protocol_version: int
    """Brokers write some answers otherwise for old clients."""


class BrokerLink:
    """One connection; requests in, answers by request id out. Implements `magnetar.net.connection.Handler`."""

    def __init__(self, opened: ConnectedBroker, key: LinkKey, credentials: ClientCredentials, frame_bytes_max: int):
        self._connection: Connection = opened.connection
        self._key = key
        self._credentials = credentials
        self._splitter = command_splitter(frame_bytes_max)
        self._request_id = 0
        # At most as many as lookups may be under way in the whole proxy.
        self._waiting: dict[int, asyncio.Future[BaseCommand]] = {}
        self._idle_ticks = 0
        self._received = True
        self.closed = False
        """Not to be asked any more."""

    async def ask(self, command: BaseCommand) -> BaseCommand:
        """The answer to a request, whose request id is overwritten; so is the answer's. `BrokerUnreachable`."""
        if self.closed:
            raise BrokerUnreachable(f"{self._key.address}: the connection is closed")
        self._idle_ticks = 0
        self._request_id += 1
        request_id = self._request_id
        getattr(command, BODIES[command.type]).request_id = request_id
        answer: asyncio.Future[BaseCommand] = asyncio.get_running_loop().create_future()
        self._waiting[request_id] = answer
        self._connection.write(messages.encode_command(command))
        try:
            async with asyncio.timeout(ANSWER_SECONDS_MAX):
                return await answer
        except TimeoutError:
            raise BrokerUnreachable(f"{self._key.address}: no answer in time") from None
        finally:
            self._waiting.pop(request_id, None)
            self._close_if_retired()

    def tick(self) -> None:
        """Keep alive: a broker from which nothing came since the last PING is gone, a link without use is closed."""
        self._idle_ticks += 1
        if not self._received:
            logger.warning("the lookup connection to %s does not answer", self._key.address)
            self._connection.abort()
        elif not self._waiting and self._idle_ticks > IDLE_TICKS_MAX:
            self._connection.close()
        else:
            self._received = False
            self._connection.write(PING_FRAME)

    @property
    def waited_for(self) -> bool:
        """Whether requests are under way."""
        return bool(self._waiting)

    def close(self) -> None:
        """End the connection and all requests on it."""
        self._connection.abort()

    # --- magnetar.net.connection.Handler

    def connection_made(self) -> None:
        """Read on from where the handshake stopped."""
        self._connection.replace_handler(self)
        self._connection.resume_reading(HANDSHAKE_PAUSE)

    def data_received(self, data: bytes) -> None:
        """Answers, and the broker's own keep-alive."""
        self._received = True
        try:
            buffer, bounds = self._splitter.feed(data)
            for index in range(0, len(bounds), 2):
                self._serve(messages.decode_command(buffer, bounds[index], bounds[index + 1]))
        except PeerError as error:
            logger.warning("closing the lookup connection to %s: %s", self._key.address, error)
            self._connection.abort()

    def _serve(self, command: BaseCommand) -> None:
        if command.type == BaseCommand.PING:
            self._connection.write(PONG_FRAME)
        elif command.type == BaseCommand.AUTH_CHALLENGE:
            self._challenged(command)
        elif command.type in BODIES:
            waiting = self._waiting.pop(getattr(command, BODIES[command.type]).request_id, None)
            # Nobody waits for what comes too late.
            if waiting is not None and not waiting.done():
                waiting.set_result(command)

    def _challenged(self, challenge: BaseCommand) -> None:
        """The broker's credentials check has run out."""
        if not self._key.client.auth_data:
            self._connection.write(auth_response(self._credentials, challenge))
            return
        # The clients' credentials are theirs to renew: the next request opens a link with those that they have then.
        self.closed = True
        self._close_if_retired()

    def _close_if_retired(self) -> None:
        if self.closed and not self._waiting:
            self._connection.close()

    def writable_changed(self, writable: bool) -> None:
        """Requests are small and limited in number."""

    def connection_lost(self, error: Exception | None) -> None:
        """Whoever waits is told."""
        self.closed = True
        text = f": {error}" if error is not None else ""
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_exception(BrokerUnreachable(f"{self._key.address} closed the connection{text}"))


class LookupLinks:
    """All links: as many as brokers are asked in the name of different clients within a minute or so, but no more than
    there are files for. Then those that were not used for the longest time are closed."""

    def __init__(
        self,
        connector: BrokerConnector,
        credentials: ClientCredentials,
        message_size_bytes_max: int,
        links_max: int | None = None,
    ) -> None:
        """`links_max`: unless given, what open files allow."""
        self._connector = connector
        self._credentials = credentials
        self._frame_bytes_max = message_size_bytes_max + FRAME_PADDING_BYTES
        self._links_max = links_max or max(1, min(LINKS_MAX, open_files_max() // SHARE_OF_FILES))
        self._links: OrderedDict[LinkKey, BrokerLink] = OrderedDict()
        """The one that was used last stands last."""
        self._opening: dict[LinkKey, asyncio.Task[BrokerLink]] = {}

    async def introduce(self, key: LinkKey, relay: Relay) -> None:
        """Have a link, so that a broker has seen the client's credentials. `BrokerUnreachable`, `PulsarError`."""
        link = self._links.get(key)
        if link is None or link.closed:
            await self._open(key, relay)

    async def ask(self, key: LinkKey, command: BaseCommand) -> BaseCommand:
        """Ask over a link to the broker, which is opened if there is none. `BrokerUnreachable`, `PulsarError`."""
        link = self._links.get(key)
        if link is None or link.closed:
            link = await self._open(key)
        if key in self._links:
            self._links.move_to_end(key)
        return await link.ask(command)

    async def _open(self, key: LinkKey, relay: Relay | None = None) -> BrokerLink:
        opening = self._opening.get(key)
        if opening is None:
            if len(self._opening) >= self._links_max:
                raise BrokerUnreachable(f"{key.address}: too many connections for lookups are being opened")
            opening = self._opening[key] = asyncio.get_running_loop().create_task(self._connect(key, relay))
            opening.add_done_callback(lambda done: self._opened(key, done))
        # Whoever came first may give up; the others still want it.
        return await asyncio.shield(opening)

    def _opened(self, key: LinkKey, opening: asyncio.Task[BrokerLink]) -> None:
        self._opening.pop(key, None)
        if not opening.cancelled() and (error := opening.exception()) is not None:
            logger.info("no lookup connection to %s: %s", key.address, error)

    async def _connect(self, key: LinkKey, relay: Relay | None) -> BrokerLink:
        def greet(_: Connection) -> Greeting:
            connect = self._connector.command(None, key.client, key.protocol_version)
            return Greeting(connect=connect, client=key.client)

        opened = await self._connector.open(key.address, greet, relay)
        link = BrokerLink(opened, key, self._credentials, self._frame_bytes_max)
        link.connection_made()
        if opened.rest:
            link.data_received(opened.rest)
        self._links[key] = link
        self._links.move_to_end(key)
        self._make_room()
        return link

    def _make_room(self) -> None:
        """Close links that nobody waits for, while there are too many; those of requests end with them soon."""
        surplus = len(self._links) - self._links_max
        for key, link in list(islice(self._links.items(), max(0, surplus))):
            if link.waited_for:
                self._links.move_to_end(key)
            else:
                del self._links[key]
                link.close()

    def tick(self) -> None:
        """Every keep-alive interval."""
        for key, link in list(self._links.items()):
            if link.closed:
                del self._links[key]
            else:
                link.tick()
        self._make_room()

    async def close(self) -> None:
        """Close all links; whoever still waits gets `BrokerUnreachable`."""
        opening = list(self._opening.values())
        for task in opening:
            task.cancel()
        for outcome in await asyncio.gather(*opening, return_exceptions=True):
            if isinstance(outcome, BrokerLink):
                outcome.close()
            elif isinstance(outcome, Unavailable):
                logger.debug("a lookup connection was not opened any more: %s", outcome)
        for link in self._links.values():
            link.close()
