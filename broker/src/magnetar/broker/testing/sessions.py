"""A broker over memory and a client of raw frames, for tests of what clients see.

`MemoryBroker` is the real broker, with its socket and its admin API, over a metadata store and bookies in memory.
`ProtocolClient` speaks PulsarApi.proto and nothing else: what it is sent is kept in order until it is asked for.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any, Final, cast

from magnetar.balance.settings import BalanceSettings
from magnetar.broker.app import RunningBroker, start_broker
from magnetar.broker.broker_parts import BrokerEnvironment, BrokerParts
from magnetar.broker.resources import Resources, cluster_data, initialize_cluster_metadata
from magnetar.broker.settings.broker import BrokerSettings
from magnetar.broker.transactions.initialization import initialize_coordinators
from magnetar.core.clock import Clock, SystemClock
from magnetar.ledger.client import BookKeeperClient
from magnetar.ledger.testing import MemoryBookies
from magnetar.managed.settings import ManagedLedgerSettings
from magnetar.metadata.memory import MemoryMetadataStore
from magnetar.metadata.store import MetadataStore
from magnetar.wire.pulsar.batch import build_batch, build_message
from magnetar.wire.pulsar.generated import pulsar_api_pb2 as pb

PATIENCE_SECONDS: Final = 120.0
"""How long an answer may take before the test fails; never reached when all is well."""

COORDINATORS: Final = 4
"""Transaction coordinators of a broker that is set up with transactions."""

BODIES: Final = {number: field for number, field in pb.BaseCommand.DESCRIPTOR.fields_by_number.items() if number > 1}
"""The body of each command stands at the field number that equals its type."""


class ConnectionEnded(Exception):
    """The broker closed the connection while something was expected."""


def command_type(name: str) -> pb.BaseCommand.Type:
    """The type of a command by its name in the protocol."""
    return cast("pb.BaseCommand.Type", pb.BaseCommand.Type.Value(name))


def command_frame(kind: pb.BaseCommand.Type, payload: bytes = b"", **fields: Any) -> bytes:
    """The frame of a command with these fields; `payload` is what follows it (SEND)."""
    body = pb.BaseCommand(type=kind, **{BODIES[kind].name: fields}).SerializePartialToString()
    return (4 + len(body) + len(payload)).to_bytes(4, "big") + len(body).to_bytes(4, "big") + body + payload


def message(payload: bytes = b"x", *, checksum: bool = True, **fields: Any) -> bytes:
    """headersAndPayload of one message."""
    metadata = pb.MessageMetadata(**{"producer_name": "p", "sequence_id": 0, "publish_time": 1, **fields})
    return build_message(metadata, payload, checksum=checksum)


def batch_message(*payloads: bytes, **fields: Any) -> bytes:
    """headersAndPayload of a batch."""
    metadata = pb.MessageMetadata(**{"producer_name": "p", "sequence_id": 0, "publish_time": 1, **fields})
    return build_batch(metadata, [(pb.SingleMessageMetadata(), payload) for payload in payloads])


class Received:
    """One command from the broker: its type, its body, and what followed it."""

    def __init__(self, command: pb.BaseCommand, payload: bytes) -> None:
        self.kind = command.type
        self.name = pb.BaseCommand.Type.Name(command.type)
        self.body: Any = getattr(command, BODIES[command.type].name)
        self.payload = payload

    def __repr__(self) -> str:
        return f"{self.name} {str(self.body).strip()!r}"


class ProtocolClient:
    """One connection. Reads all the time and answers PING by itself."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._request_ids = itertools.count(1)
        self._news = asyncio.Event()
        self._reading = asyncio.get_running_loop().create_task(self._read())
        self.ended = False
        self.inbox: list[Received] = []

    @staticmethod
    async def open(port: int, host: str = "127.0.0.1") -> ProtocolClient:
        """A connection on which nothing was said yet."""
        reader, writer = await asyncio.open_connection(host, port)
        return ProtocolClient(reader, writer)

    @staticmethod
    async def connected(port: int, protocol_version: int = 21, client_version: str = "test") -> ProtocolClient:
        """A connection with the handshake done."""
        client = await ProtocolClient.open(port)
        client.send(pb.BaseCommand.CONNECT, client_version=client_version, protocol_version=protocol_version)
        await client.expect(pb.BaseCommand.CONNECTED)
        return client

    def send(self, kind: pb.BaseCommand.Type, payload: bytes = b"", **fields: Any) -> None:
        """Send a command."""
        self.send_bytes(command_frame(kind, payload, **fields))

    def send_bytes(self, data: bytes) -> None:
        """Send any bytes, frames or not."""
        self._writer.write(data)

    async def request(self, kind: pb.BaseCommand.Type, **fields: Any) -> Received:
        """Send a request with a new request id and wait for its answer."""
        return await self.answer(self.start(kind, **fields))

    def start(self, kind: pb.BaseCommand.Type, **fields: Any) -> int:
        """Send a request with a new request id, which is returned."""
        request_id = next(self._request_ids)
        self.send(kind, request_id=request_id, **fields)
        return request_id

    async def answer(self, request_id: int) -> Received:
        """The (next) answer to a request."""
        return await self._take(lambda received: getattr(received.body, "request_id", None) == request_id)

    async def expect(self, kind: pb.BaseCommand.Type) -> Received:
        """The next command of a type; others before it stay in the inbox."""
        return await self._take(lambda received: received.kind == kind)

    async def round_trip(self) -> list[Received]:
        """What the broker had sent when it answered a PING: the inbox, which is emptied."""
        self.send(pb.BaseCommand.PING)
        await self.expect(pb.BaseCommand.PONG)
        received, self.inbox = self.inbox, []
        return received

    async def end(self) -> list[Received]:
        """Wait until the broker closes the connection; what it sent before."""
        while not self.ended:
            await self._more()
        received, self.inbox = self.inbox, []
        return received

    def stop_reading(self) -> None:
        """Be there, but dead."""
        self._reading.cancel()

    async def close(self) -> None:
        """Close the connection."""
        self._reading.cancel()
        self._writer.close()
        try:
            await self._writer.wait_closed()
        except ConnectionError:
            return

    async def abort(self) -> None:
        """Cut the connection without a word."""
        self._writer.transport.abort()
        await self.close()

    # --- what most tests do

    async def producer(self, topic: str, producer_id: int = 1, **fields: Any) -> Any:
        """Open a producer; the body of PRODUCER_SUCCESS."""
        answer = await self.request(pb.BaseCommand.PRODUCER, topic=topic, producer_id=producer_id, **fields)
        assert answer.name == "PRODUCER_SUCCESS", answer
        return answer.body

    async def consumer(self, topic: str, subscription: str = "s", consumer_id: int = 1, **fields: Any) -> None:
        """Open a consumer."""
        answer = await self.request(
            pb.BaseCommand.SUBSCRIBE,
            **{"topic": topic, "subscription": subscription, "consumer_id": consumer_id, "subType": 0, **fields},
        )
        assert answer.name == "SUCCESS", answer

    async def publish(self, count: int = 1, *, producer_id: int = 1, first: int = 0, **fields: Any) -> list[Any]:
        """Publish messages `m0`, `m1` …; their ids."""
        for number in range(first, first + count):
            content = message(b"m%d" % number, **{"sequence_id": number, **fields})
            self.send(pb.BaseCommand.SEND, content, producer_id=producer_id, sequence_id=number)
        return [(await self.expect(pb.BaseCommand.SEND_RECEIPT)).body.message_id for _ in range(count)]

    async def messages(self, count: int, *, consumer_id: int = 1, permits: int | None = None) -> list[Received]:
        """Ask for messages and wait for so many."""
        self.send(pb.BaseCommand.FLOW, consumer_id=consumer_id, messagePermits=count if permits is None else permits)
        return [await self.expect(pb.BaseCommand.MESSAGE) for _ in range(count)]

    async def _take(self, wanted: Callable[[Received], bool]) -> Received:
        looked_at = 0
        while True:
            for index in range(looked_at, len(self.inbox)):
                if wanted(self.inbox[index]):
                    return self.inbox.pop(index)
            looked_at = len(self.inbox)
            if self.ended:
                raise ConnectionEnded(f"with {self.inbox} not asked for")
            await self._more()

    async def news(self) -> None:
        """Wait until something more has come, or the connection has ended."""
        self._news.clear()
        async with asyncio.timeout(PATIENCE_SECONDS):
            await self._news.wait()

    async def _more(self) -> None:
        self._news.clear()
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                await self._news.wait()
        except TimeoutError:
            raise TimeoutError(f"nothing more came; not asked for: {self.inbox}") from None

    async def _read(self) -> None:
        try:
            while True:
                frame = await self._reader.readexactly(int.from_bytes(await self._reader.readexactly(4), "big"))
                end = 4 + int.from_bytes(frame[:4], "big")
                command = pb.BaseCommand.FromString(frame[4:end])
                if command.type == pb.BaseCommand.PING:
                    self.send(pb.BaseCommand.PONG)
                else:
                    self.inbox.append(Received(command, frame[end:]))
                    self._news.set()
        except (asyncio.IncompleteReadError, ConnectionError):
            self.ended = True
            self._news.set()


class ShiftedClock(SystemClock):
    """The machine's clocks, which a test may put forward."""

    def __init__(self) -> None:
        self._ahead_seconds = 0.0

    def advance(self, seconds: float) -> None:
        """So much time is over."""
        self._ahead_seconds += seconds

    def now_ms(self) -> int:
        """Milliseconds since 1970."""
        return super().now_ms() + int(self._ahead_seconds * 1000)

    def monotonic_seconds(self) -> float:
        """Seconds that never go back."""
        return super().monotonic_seconds() + self._ahead_seconds


@dataclass(frozen=True, slots=True)
class SharedParts:
    """What brokers of one cluster share: the tree, each with a session of its own, and the bookies."""

    store: MetadataStore
    bookies: MemoryBookies
    configuration_store: MetadataStore | None = None
    """What clusters of one instance share besides; None: it is in `store`."""


class MemoryBroker:
    """A broker of a test's own. An asynchronous context manager."""

    def __init__(
        self,
        settings: BrokerSettings | None = None,
        ledgers: ManagedLedgerSettings | None = None,
        clock: Clock | None = None,
        shared: SharedParts | None = None,
        known_after_seconds: float = 0.0,
        balance: BalanceSettings | None = None,
        environment: BrokerEnvironment | None = None,
    ) -> None:
        """`shared`: what it has together with other brokers; without, everything is its own.

        The clients of tests know at once what they have opened, unless `known_after_seconds` says otherwise."""
        self._clock = clock if clock is not None else SystemClock()
        settings = settings if settings is not None else BrokerSettings()
        self._settings = replace(
            settings, broker_service_port=0, web_service_port=0, known_after_seconds=known_after_seconds
        )
        self._ledger_settings = ledgers if ledgers is not None else ManagedLedgerSettings()
        self._balance = balance
        self._environment = environment if environment is not None else BrokerEnvironment()
        self._clients: list[ProtocolClient] = []
        # Any store, but tests of a single broker play with what a memory one can do.
        self.store: Any = MemoryMetadataStore() if shared is None else shared.store
        self.bookies = MemoryBookies() if shared is None else shared.bookies
        self.configuration_store = None if shared is None else shared.configuration_store
        self.ledgers: BookKeeperClient | None = None
        self.broker: RunningBroker | None = None

    @property
    def running(self) -> RunningBroker:
        """The broker itself."""
        assert self.broker is not None
        return self.broker

    @property
    def service(self) -> Any:
        """The broker's topics."""
        return self.running.context.service

    @property
    def port(self) -> int:
        """Of the binary protocol."""
        return self.running.settings.broker_service_port

    @property
    def admin_url(self) -> str:
        """Of the admin API."""
        return self.running.settings.web_service_url

    async def start(self) -> None:
        """Start; again after `stop`, on what was stored."""
        clock = self._clock
        self.ledgers = BookKeeperClient(self.store, self.bookies, clock)
        settings = self._settings
        resources = Resources(self.store, self.configuration_store)
        await initialize_cluster_metadata(
            resources, settings.cluster_name, cluster_data(settings.service_url, settings.web_service_url)
        )
        if settings.transactions.enabled:
            await initialize_coordinators(resources, COORDINATORS)
        parts = BrokerParts(
            self.store,
            self.ledgers,
            clock,
            self._ledger_settings,
            configuration_store=self.configuration_store,
            balance_settings=self._balance,
            environment=self._environment,
        )
        self.broker = await start_broker(settings, parts)

    async def stop(self) -> None:
        """Close the broker and every client."""
        clients, self._clients = self._clients, []
        for client in clients:
            await client.close()
        await self.running.close()
        assert self.ledgers is not None
        await self.ledgers.close()

    async def open(self) -> ProtocolClient:
        """A connection on which nothing was said yet; closed with the broker."""
        client = await ProtocolClient.open(self.port)
        self._clients.append(client)
        return client

    async def connect(self, protocol_version: int = 21, client_version: str = "test") -> ProtocolClient:
        """A connection with the handshake done; closed with the broker."""
        client = await ProtocolClient.connected(self.port, protocol_version, client_version)
        self._clients.append(client)
        return client

    async def __aenter__(self) -> MemoryBroker:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.stop()
