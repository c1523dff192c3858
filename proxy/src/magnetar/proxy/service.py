"""The connections of one proxy: who may come in, which are joined with brokers, who has gone quiet, and the drain."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Any, Final, Protocol

from magnetar.auth.credentials import METHOD_NONE
from magnetar.auth.plugin import ClientCredentials
from magnetar.core.clock import Clock
from magnetar.net.accepting import ENOUGH
from magnetar.net.connection import Connection
from magnetar.net.descriptors import clients_max
from magnetar.net.refused_connections import ConnectionLimit, LimitKind, RefusedConnections, limit_of_all
from magnetar.net.requests import ServerRequests
from magnetar.net.splice import Splice
from magnetar.proxy.access import ProxyAccess
from magnetar.proxy.counters import ProxyCounters
from magnetar.proxy.discovery import BrokerChoice
from magnetar.proxy.handshake import (
    BrokerConnector,
    BrokerEndpoint,
    BrokerUnreachable,
    ConnectedBroker,
    Greeting,
    Relay,
)
from magnetar.proxy.joined import JoinedConnection
from magnetar.proxy.lookup_links import LookupLinks
from magnetar.proxy.lookups import Lookups
from magnetar.proxy.proven_targets import ProvenTargets
from magnetar.proxy.settings import ProxySettings
from magnetar.proxy.targets import Targets

logger: Final = logging.getLogger(__name__)

TOTAL_SETTING: Final = "maxConcurrentInboundConnections"
PER_ADDRESS_SETTING: Final = "maxConcurrentInboundConnectionsPerIp"

SWEEP_SECONDS: Final = 5.0
"""How often joined connections are looked at: ten thousand take some ten milliseconds."""

CLOSE_STEP: Final = 200
CLOSE_STEP_SECONDS: Final = 0.05
"""At the end of a drain this many connections are closed at a time, so that their clients do not come back to the
cluster all at once."""

LOOKUPS_SECONDS_MAX: Final = 2.0
"""How long a drain goes on for clients that only look topics up, which they can do elsewhere: longer than a lookup."""


class ClientSession(Protocol):
    """The connection of a client that is not joined with a broker yet: `ProxySession`."""

    @property
    def connection(self) -> Connection: ...
    @property
    def client_address(self) -> str: ...
    @property
    def client_host(self) -> str: ...
    def tick(self) -> None: ...


class ProxyService:
    """What the sessions share."""

    def __init__(
        self,
        settings: ProxySettings,
        clock: Clock,
        brokers: BrokerChoice,
        connector: BrokerConnector,
        links: LookupLinks,
        access: ProxyAccess | None = None,
    ) -> None:
        """`access` is None where nobody is authenticated."""
        self.settings = settings
        self.access = access
        self.brokers = brokers
        self.connector = connector
        self.counters = ProxyCounters()
        self._links = links
        self._proven = ProvenTargets(
            settings.targets, brokers, clock, shows_credentials=connector.credentials.method != METHOD_NONE
        )
        self.lookups = Lookups(links, brokers, self.counters, self._proven, settings)
        self.requests = ServerRequests()
        # One with a client, and one with the broker that it is joined with.
        self._limit = limit_of_all(settings.connections_max, TOTAL_SETTING, clients_max(each=2))
        self._per_address_limit = ConnectionLimit(
            settings.connections_per_address_max, LimitKind.ADDRESS, PER_ADDRESS_SETTING
        )
        self.refused = RefusedConnections()
        """At all ports."""
        self._clock = clock
        self._targets = Targets(settings.targets)
        # All of these are limited by `connections_max`.
        self._sessions: dict[ClientSession, None] = {}
        self._joined: dict[Splice, JoinedConnection] = {}
        self._per_address: Counter[str] = Counter()
        self._tasks: set[asyncio.Task[None]] = set()
        self._empty = asyncio.Event()
        self._empty.set()
        self._none_joined = asyncio.Event()
        self._none_joined.set()
        self._upkeep: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Begin to look after the connections."""
        loop = asyncio.get_running_loop()
        self._upkeep = [
            loop.create_task(self._keep_alive(), name="proxy keep-alive"),
            loop.create_task(self._sweep(), name="proxy sweep"),
        ]
        for task in self._upkeep:
            task.add_done_callback(_report)

    # --- for the sessions

    def admit(self, session: ClientSession) -> str | None:
        """Take a new connection; else the reason why not."""
        self.counters.new_connections += 1
        if self.active_connections >= self._limit.connections_max:
            self.refused.refused(session.client_address, self._limit)
            return "Reached the maximum number of connections"
        if 0 < self._per_address_limit.connections_max <= self._per_address[session.client_host]:
            self.refused.refused(session.client_address, self._per_address_limit)
            return f"Reached the maximum number of connections on address{session.client_address}"
        self._sessions[session] = None
        self._per_address[session.client_host] += 1
        self._empty.clear()
        return None

    def places_left(self) -> int:
        """How many more connections there may be."""
        return self._limit.connections_max - self.active_connections

    def left_of(self, host: str) -> int:
        """How many more connections an address may have."""
        per_address_max = self._per_address_limit.connections_max
        return per_address_max - self._per_address[host] if per_address_max > 0 else ENOUGH

    def left(self, session: ClientSession) -> None:
        """A connection has ended before it was joined."""
        if session in self._sessions:
            del self._sessions[session]
            self._forget(session.client_host)

    def join(self, session: ClientSession, broker: Connection) -> None:
        """Make one of a client's connection and a broker's."""
        self._sessions.pop(session, None)
        splice = Splice(session.connection, broker, self._ended)
        self._none_joined.clear()
        self._joined[splice] = JoinedConnection(splice, session.client_address, session.client_host)

    @property
    def credentials(self) -> ClientCredentials:
        """The credentials that the proxy shows."""
        return self.connector.credentials

    async def open_broker(
        self, target: str, greet: Callable[[Connection], Greeting], relay: Relay | None = None
    ) -> ConnectedBroker:
        """A connection with the broker that a client named. `TargetDenied`, `Unavailable`, `PulsarError`."""
        host, port = self._targets.check_name(target)
        await self._proven.check(target)
        addresses = self._targets.allowed(target, await _resolve(host, port))
        # The text alone: an error would refer to itself, by its traceback and this variable.
        failure = f"{host} has no address"
        for address in addresses:
            try:
                return await self.connector.open(BrokerEndpoint(address, port, host), greet, relay)
            except BrokerUnreachable as error:
                failure = str(error)
        raise BrokerUnreachable(failure)

    def spawn(self, session: ClientSession, work: Coroutine[Any, Any, None]) -> None:
        """Run something for a session; each connection has one, or lookups, which are limited."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(lambda done: self._finished(session, done))

    def _finished(self, session: ClientSession, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("serving %s failed, closing its connection", session.client_address, exc_info=error)
            session.connection.abort()

    def _ended(self, splice: Splice) -> None:
        joined = self._joined.pop(splice)
        if not self._joined:
            self._none_joined.set()
        self.counters.closed_reads += joined.reads
        self.counters.closed_bytes += joined.received_bytes
        self._forget(joined.client_host)

    def _forget(self, client_host: str) -> None:
        self._per_address[client_host] -= 1
        if not self._per_address[client_host]:
            del self._per_address[client_host]
        if not self.active_connections:
            self._empty.set()

    # --- for those who look

    @property
    def active_connections(self) -> int:
        """Client connections of all kinds."""
        return len(self._sessions) + len(self._joined)

    @property
    def joined(self) -> list[JoinedConnection]:
        """The connections that are joined with brokers."""
        return list(self._joined.values())

    @property
    def reads(self) -> int:
        """Reads on joined connections, both ways, since the start."""
        return self.counters.closed_reads + sum(joined.reads for joined in self._joined.values())

    @property
    def received_bytes(self) -> int:
        """Bytes received over the joined connections."""
        return self.counters.closed_bytes + sum(joined.received_bytes for joined in self._joined.values())

    # --- upkeep

    async def _keep_alive(self) -> None:
        while self.settings.keep_alive_seconds > 0:
            await asyncio.sleep(self.settings.keep_alive_seconds)
            for session in list(self._sessions):
                session.tick()
            self._links.tick()

    async def _sweep(self) -> None:
        read_timeout_ms = self.settings.broker_client.read_timeout_ms
        quiet_sweeps_max = -(-read_timeout_ms // (SWEEP_SECONDS * 1000)) if read_timeout_ms else None
        while True:
            await asyncio.sleep(SWEEP_SECONDS)
            now_seconds = self._clock.monotonic_seconds()
            for joined in list(self._joined.values()):
                joined.sweep(now_seconds, quiet_sweeps_max)

    # --- the end

    async def drain(self, limit_seconds: float) -> None:
        """Wait until all clients have gone, but no longer than this, nor long for those that are joined with no broker;
        then close what is left, step by step. Without brokers it is over soon, whatever the limit."""
        try:
            async with asyncio.timeout(limit_seconds):
                await self._until_idle()
        except TimeoutError:
            logger.info("closing the %d connections that are left", self.active_connections)
        left: list[ClientSession | Splice] = [*self._sessions, *self._joined]
        for start in range(0, len(left), CLOSE_STEP):
            if start:
                await asyncio.sleep(CLOSE_STEP_SECONDS)
            for one in left[start : start + CLOSE_STEP]:
                (one if isinstance(one, Splice) else one.connection).close()

    async def _until_idle(self) -> None:
        while self.active_connections:
            await self._none_joined.wait()
            try:
                async with asyncio.timeout(LOOKUPS_SECONDS_MAX):
                    await self._empty.wait()
            except TimeoutError:
                if not self._joined:
                    return

    async def close(self) -> None:
        """End everything that still stands, at once."""
        for task in self._upkeep:
            task.cancel()
        await asyncio.gather(*self._upkeep, return_exceptions=True)
        await self._links.close()
        for session in list(self._sessions):
            session.connection.abort()
        for splice in list(self._joined):
            splice.abort()
        # Requests of clients that are gone end with their links; those that open a connection are given up.
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._empty.wait()


async def _resolve(host: str, port: int) -> list[str]:
    """The addresses of a name, in the system's order. `BrokerUnreachable`."""
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, ValueError) as error:
        # ValueError: labels that are empty or too long, zero bytes.
        raise BrokerUnreachable(f"{host!r} cannot be resolved: {error}") from None
    return list(dict.fromkeys(str(address[4][0]) for address in found))


def _report(upkeep: asyncio.Task[None]) -> None:
    if not upkeep.cancelled() and (error := upkeep.exception()) is not None:
        logger.critical("%s has died: quiet connections stay", upkeep.get_name(), exc_info=error)
