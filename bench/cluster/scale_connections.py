"""Many connections to one broker or proxy: what each costs in memory, and what a publisher notices of the others."""

from __future__ import annotations

import asyncio
import resource
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import uvloop
from magnetar.net.connection import Connection
from magnetar.net.endpoints import connect
from magnetar.wire.pulsar import requests
from magnetar.wire.pulsar.batch import build_message
from magnetar.wire.pulsar.command import PING_FRAME, PONG_FRAME
from magnetar.wire.pulsar.frame import command_splitter
from magnetar.wire.pulsar.generated import pulsar_api_pb2 as pb
from magnetar.wire.pulsar.messages import decode_command

from bench.cluster.receipts import Publishing, percentile
from bench.page import Figures
from bench.report import Metric, Results
from e2e import processes
from e2e.cluster.local import LocalCluster, Size
from e2e.cluster.parts import Broker, Proxy

ONE_PUBLISHES_OF = 100
"""Of so many connections one publishes a message a second."""
TOPICS = 100
"""That these publish to."""
AT_ONCE = 200
"""Connections that are opened side by side."""
PING_EVERY_S = 30.0
SPARE_FILES = 500
SPARE_CONNECTIONS = 100
"""Those of whoever measures, above the default limit of a proxy when the crowd has reached it."""
SETTLE_S = 5.0
CONNECT_SECONDS_MAX = 60.0
PROBE = "persistent://public/default/probe"
PROBE_TOPICS = 2
"""At 50 messages a second each."""
PRODUCER_ID, REQUEST_ID = 1, 1


@dataclass(frozen=True, slots=True)
class Entrance:
    """Where the crowd comes in: a broker, or a proxy before it."""

    part: Broker | Proxy
    service_url: str
    broker_address: str = ""
    """What is told to the proxy: where connections are to lead."""


class Idler:
    """One connection (a `net` handler) that is there; with a topic it may publish."""

    def __init__(self, connection: Connection, topic: str | None, broker_address: str) -> None:
        self.connection = connection
        self.topic = topic
        self._broker_address = broker_address
        self.ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.lost = False
        self.receipts = 0
        self._sequence_id = 0
        self._splitter = command_splitter()

    def connection_made(self) -> None:
        self.connection.write(requests.connect(client_version="scale", proxy_to_broker_url=self._broker_address))

    def data_received(self, data: bytes) -> None:
        buffer, bounds = self._splitter.feed(data)
        for index in range(0, len(bounds), 2):
            self._take(decode_command(buffer, bounds[index], bounds[index + 1]))

    def writable_changed(self, writable: bool) -> None:
        """Little is written."""

    def connection_lost(self, error: Exception | None) -> None:
        self.lost = True
        if not self.ready.done():
            self.ready.set_exception(ConnectionResetError(f"a new connection was closed: {error}"))

    def publish(self) -> None:
        """One small message."""
        name = f"scale-{id(self)}"
        metadata = pb.MessageMetadata(
            producer_name=name, sequence_id=self._sequence_id, publish_time=time.time_ns() // 1_000_000
        )
        message = build_message(metadata, b"x" * 100)
        self.connection.write(requests.send(PRODUCER_ID, self._sequence_id, message))
        self._sequence_id += 1

    def _take(self, command: pb.BaseCommand) -> None:
        if command.type == pb.BaseCommand.PING:
            self.connection.write(PONG_FRAME)
        elif command.type == pb.BaseCommand.SEND_RECEIPT:
            self.receipts += 1
        elif command.type == pb.BaseCommand.CONNECTED and self.topic is not None:
            lookup = requests.lookup(REQUEST_ID, self.topic)
            self.connection.write(lookup)
        elif command.type == pb.BaseCommand.LOOKUP_RESPONSE and self.topic is not None:
            wanted = requests.ProducerRequest(topic=self.topic)
            self.connection.write(requests.producer(REQUEST_ID, PRODUCER_ID, wanted))
        elif command.type in (pb.BaseCommand.CONNECTED, pb.BaseCommand.PRODUCER_SUCCESS):
            self.ready.set_result(None)


class Crowd:
    """Connections that come and stay; some of them publish."""

    def __init__(self, entrance: Entrance) -> None:
        self._entrance = entrance
        self.idlers: list[Idler] = []
        self._tasks: list[asyncio.Task[None]] = []

    async def come(self, count: int) -> None:
        """So many, each with its handshake done."""
        numbers = iter(range(count))

        async def work() -> None:
            for number in numbers:
                topic = number // ONE_PUBLISHES_OF % TOPICS
                name = f"persistent://public/default/crowd-{topic}" if number % ONE_PUBLISHES_OF == 0 else None
                await self._open(name)

        await asyncio.gather(*(work() for _ in range(min(AT_ONCE, count))))
        self._tasks = [asyncio.create_task(self._ping()), asyncio.create_task(self._publish())]

    async def leave(self) -> None:
        """All of them. A task that failed is told of here."""
        for task in self._tasks:
            task.cancel()
        ended = await asyncio.gather(*self._tasks, return_exceptions=True)
        for idler in self.idlers:
            idler.connection.abort()
        for error in ended:
            if isinstance(error, Exception):
                raise error

    async def _open(self, topic: str | None) -> None:
        made: list[Idler] = []

        def make_handler(connection: Connection) -> Idler:
            made.append(Idler(connection, topic, self._entrance.broker_address))
            return made[0]

        await connect("127.0.0.1", self._entrance.part.port, make_handler, CONNECT_SECONDS_MAX)
        async with asyncio.timeout(CONNECT_SECONDS_MAX):
            await made[0].ready
        self.idlers.append(made[0])

    async def _ping(self) -> None:
        """Evenly spread, each as often as clients do it."""
        while True:
            for idler in self.idlers:
                idler.connection.write(PING_FRAME)
                await asyncio.sleep(PING_EVERY_S / len(self.idlers))

    async def _publish(self) -> None:
        publishers = [idler for idler in self.idlers if idler.topic is not None]
        while True:
            for idler in publishers:
                idler.publish()
                await asyncio.sleep(1.0 / len(publishers))


def run(folder: Path, count: int, seconds: float, say: Callable[[str], None]) -> Figures:
    """One broker, one bookie. A column without the crowd, one with it."""
    _allow_files(count + SPARE_FILES)
    with LocalCluster(folder, Size(bookies=1, brokers=1, proxies=0)) as cluster:
        cluster.start()
        entrance = Entrance(cluster.brokers[0], cluster.broker_service_url)
        return _figures("connections", "broker", entrance, count, seconds, say)


def run_through_proxy(folder: Path, count: int, seconds: float, say: Callable[[str], None]) -> Figures:
    """The same, through a proxy, which has two connections for each."""
    _allow_files(2 * count + SPARE_FILES)
    settings = {"maxConcurrentInboundConnections": str(count + SPARE_CONNECTIONS)}
    with LocalCluster(folder, Size(bookies=1, brokers=1, proxies=1), proxy_settings=settings) as cluster:
        cluster.start()
        entrance = Entrance(cluster.proxies[0], cluster.service_url, f"127.0.0.1:{cluster.brokers[0].port}")
        return _figures("proxied-connections", "proxy", entrance, count, seconds, say)


def _figures(
    name: str, kind: str, entrance: Entrance, count: int, seconds: float, say: Callable[[str], None]
) -> Figures:
    alone, crowded = "alone", f"beside {count:,} connections".replace(",", "\u202f")
    with Publishing(entrance.service_url, PROBE, PROBE_TOPICS) as probe:
        results = uvloop.run(_measure(entrance, probe, (alone, crowded), count, seconds))
    for column, figures in results.items():
        say(f"{column}: " + ", ".join(f"{key} {value:,.2f}" for key, value in figures.items()))
    return Figures(name, f"Many connections to one {kind}", results, metrics(kind), crowded, alone)


def _allow_files(wanted: int) -> None:
    """Here and in the processes that are started from here. ValueError when the machine does not allow as many."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < wanted:
        raise ValueError(f"{wanted} open files are needed, and `ulimit -Hn` is {hard}")
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


async def _measure(
    entrance: Entrance, probe: Publishing, names: tuple[str, str], count: int, seconds: float
) -> Results:
    crowd, part = Crowd(entrance), entrance.part
    await asyncio.sleep(SETTLE_S)
    before = processes.memory(part.pids).pss_bytes
    alone = await _watch(part, probe, seconds)
    began = time.perf_counter()
    await crowd.come(count)
    came_per_s = count / (time.perf_counter() - began)
    await asyncio.sleep(SETTLE_S)
    crowded = await _watch(part, probe, seconds)
    crowded["came_per_s"] = came_per_s
    crowded["memory_bytes_per_connection"] = (processes.memory(part.pids).pss_bytes - before) / count
    crowded["lost"] = float(sum(idler.lost for idler in crowd.idlers))
    crowded["receipts"] = float(sum(idler.receipts for idler in crowd.idlers))
    await crowd.leave()
    return {names[0]: alone, names[1]: crowded}


async def _watch(part: Broker | Proxy, probe: Publishing, seconds: float) -> dict[str, float]:
    probe.forget_latencies()
    before = processes.cpu_seconds(part.pids)
    await asyncio.sleep(seconds)
    latencies = probe.latencies_s()
    return {
        "p50_ms": percentile(latencies, 0.5) * 1e3,
        "p99_ms": percentile(latencies, 0.99) * 1e3,
        "cpu_percent": (processes.cpu_seconds(part.pids) - before) / seconds * 100,
        "memory_mb": processes.memory(part.pids).pss_bytes / 1e6,
    }


def metrics(kind: str) -> list[Metric]:
    """No goals but that none is lost."""
    return [
        Metric("came_per_s", "connections made", "/s", more_is_better=True),
        Metric("lost", "connections lost", "", goal=0.0, absolute=True),
        Metric("memory_bytes_per_connection", f"the {kind}'s memory per connection", "B"),
        Metric("memory_mb", f"the {kind}'s memory (PSS)", "MB"),
        Metric("cpu_percent", f"the {kind}'s CPU", "% of a core"),
        Metric("p50_ms", "a publisher's receipt p50", "ms"),
        Metric("p99_ms", "a publisher's receipt p99", "ms"),
    ]
