"""One topic with very many subscriptions, at the broker that writes and at read-only brokers beside it.

`python -m bench.read_only [--subscriptions N] [--readers N] [--rate N] [--seconds N] [--apache]`

Both are measured one after the other, on fresh topics of one cluster, by the same client. It consumes and acknowledges
with the project's own client in one process, whose pace bounds what is delivered: so there are the servers' CPU and
the time from publishing to delivery, and no rate that could be reached. `--apache`: the broker that writes is Apache's.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from magnetar.client.client import PulsarClient
from magnetar.client.consumer import ClientConsumer, ConsumerOptions
from magnetar.client.message import OutgoingMessage
from magnetar.client.producer import ClientProducer, ProducerOptions
from magnetar.client.settings import ClientSettings
from magnetar.core.clock import SystemClock
from magnetar.core.topic_name import TopicName
from rich.console import Console
from rich.table import Table

from e2e import processes
from e2e.interchange import brokers
from e2e.interchange.cluster import Cluster
from e2e.interchange.ours import OurBroker
from e2e.interchange.parts import BrokerPart

QUORUMS: Final = (1, 1, 1)
CONNECTING_AT_ONCE: Final = 500
SETTLING_SECONDS: Final = 3.0
BODY_BYTES: Final = 1024
DELIVERED_SECONDS_MAX: Final = 60.0
FEW: Final = 2
"""Connections per broker: one client has one."""

SETTINGS: Final = ClientSettings(receiver_queue_size=100, operation_timeout_seconds=120.0)


@dataclass(frozen=True, slots=True)
class Plan:
    """What is measured."""

    subscriptions: int
    per_second: float
    seconds: float


@dataclass(slots=True)
class Figures:
    """What came of it."""

    connected_seconds: float
    delivered: int
    latencies_ms: list[float]
    writer_cpu_ms: float
    """For each message that was published."""
    readers_cpu_us: float
    """For each message that was delivered; 0 without read-only brokers."""

    def percentile(self, share: float) -> float:
        """Of the times from publishing to delivery, in milliseconds."""
        ordered = sorted(self.latencies_ms)
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


class Subscribers:
    """All consumers of one client, each with a task that takes and acknowledges."""

    def __init__(self) -> None:
        self.latencies_ms: list[float] = []
        self._consumers: list[ClientConsumer] = []
        self._tasks: list[asyncio.Task[None]] = []

    async def connect(self, clients: list[PulsarClient], topic: TopicName, count: int) -> None:
        """Open so many subscriptions, each with one consumer."""
        places = asyncio.Semaphore(CONNECTING_AT_ONCE)

        async def open_one(number: int) -> None:
            async with places:
                options = ConsumerOptions(subscription=f"s{number}")
                consumer = await clients[number % len(clients)].consumer(topic, options)
            self._consumers.append(consumer)
            self._tasks.append(asyncio.get_running_loop().create_task(self._take(consumer)))

        async with asyncio.TaskGroup() as group:
            for number in range(count):
                group.create_task(open_one(number))

    async def _take(self, consumer: ClientConsumer) -> None:
        while True:
            message = await consumer.receive()
            self.latencies_ms.append(1000 * (time.monotonic() - float(message.payload[:20])))
            await consumer.acknowledge([message.id])

    async def close(self) -> None:
        """Consume no more."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


async def measure(
    topic: TopicName, plan: Plan, writer: BrokerPart, readers: list[BrokerPart], clock: SystemClock
) -> Figures:
    """Publish at the writer, consume at the read-only brokers, or at the writer where there are none."""
    writing = client_of([writer], clock)
    urls = readers or [writer]
    reading = [client_of(urls, clock) for _ in range(FEW)]
    subscribers = Subscribers()
    try:
        producer = await writing.producer(topic, ProducerOptions(name="bench"))
        began = time.monotonic()
        await subscribers.connect(reading, topic, plan.subscriptions)
        connected_seconds = time.monotonic() - began
        await asyncio.sleep(SETTLING_SECONDS)
        before = cpu(writer), sum(map(cpu, readers))
        published = await publish(producer, plan)
        await delivered(lambda: len(subscribers.latencies_ms) >= published * plan.subscriptions)
        count = len(subscribers.latencies_ms)
        of_writer, of_readers = cpu(writer) - before[0], sum(map(cpu, readers)) - before[1]
    finally:
        await subscribers.close()
        for client in (*reading, writing):
            await client.close()
    return Figures(
        connected_seconds,
        count,
        subscribers.latencies_ms,
        1e3 * of_writer / published,
        1e6 * of_readers / max(1, count),
    )


def client_of(parts: list[BrokerPart], clock: SystemClock) -> PulsarClient:
    """A client that looks topics up at these brokers."""
    url = "pulsar://" + ",".join(part.service_url.removeprefix("pulsar://") for part in parts)
    return PulsarClient(lambda: url, clock, SETTINGS)


def cpu(part: BrokerPart) -> float:
    """Seconds that its processes have used."""
    return processes.cpu_seconds(part.pids)


async def publish(producer: ClientProducer, plan: Plan) -> int:
    """At the plan's pace, one after the other; how many."""
    began, number = time.monotonic(), 0
    while (now := time.monotonic()) < began + plan.seconds:
        content = b"%020.6f" % now
        await producer.send(OutgoingMessage(content.ljust(BODY_BYTES, b".")))
        number += 1
        await asyncio.sleep(max(0.0, began + number / plan.per_second - time.monotonic()))
    return number


async def delivered(all_there: Callable[[], bool]) -> None:
    """Wait for the rest; what does not come is told by the count."""
    deadline = time.monotonic() + DELIVERED_SECONDS_MAX
    while not all_there() and time.monotonic() < deadline:  # noqa: ASYNC110 - Many tasks count, and none knows the end.
        await asyncio.sleep(0.05)


def table_of(plan: Plan, found: dict[str, Figures]) -> Table:
    """One row for each way."""
    title = f"{plan.subscriptions} subscriptions, {plan.per_second:g} messages of {BODY_BYTES} bytes a second"
    table = Table(title=title)
    for name in ("consumers at", "connected, s", "delivered", "p50, ms", "p99, ms", "writer's CPU, ms a message",
                 "readers' CPU, µs a delivery"):  # fmt: skip
        table.add_column(name, justify="left" if name == "consumers at" else "right")
    for name, figures in found.items():
        table.add_row(
            name,
            f"{figures.connected_seconds:.1f}",
            str(figures.delivered),
            f"{figures.percentile(0.5):.1f}",
            f"{figures.percentile(0.99):.1f}",
            f"{figures.writer_cpu_ms:.2f}",
            f"{figures.readers_cpu_us:.1f}",
        )
    return table


def main() -> None:
    """Measures nobody, the writer, and the read-only brokers, and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--subscriptions", type=int, default=1_000)
    parser.add_argument("--readers", type=int, default=2, help="read-only brokers")
    parser.add_argument("--rate", type=float, default=1.0, help="messages a second")
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--apache", action="store_true", help="Apache's broker writes")
    arguments = parser.parse_args()
    processes.leave_nothing_behind()
    console = Console(width=140)
    plan = Plan(arguments.subscriptions, arguments.rate, arguments.seconds)
    found: dict[str, Figures] = {}
    with tempfile.TemporaryDirectory(prefix="magnetar-bench-read-only-") as folder, Cluster(Path(folder)) as cluster:
        cluster.initialize_pulsar(transaction_coordinators=1)
        cluster.start(cluster.our_bookie("bookie"))
        writer = cluster.apache_broker(QUORUMS) if arguments.apache else cluster.our_broker(QUORUMS)
        brokers.start_with_namespace(cluster, writer)
        readers: list[BrokerPart] = [
            cluster.keep(
                OurBroker(
                    cluster.folder / f"reader{number}",
                    cluster.zookeeper.address,
                    QUORUMS,
                    {"readOnlyBrokerEnabled": "true"},
                )
            )
            for number in range(arguments.readers)
        ]
        cluster.start(*readers)
        for name, at in (("the broker that writes", []), (f"{len(readers)} read-only brokers", readers)):
            console.print(f"{name} … load {os.getloadavg()[0]:.1f}")
            topic = TopicName.parse(f"persistent://public/default/bench-{len(found)}")
            found[name] = asyncio.run(measure(topic, plan, writer, at, SystemClock()))
    console.print(table_of(plan, found))


if __name__ == "__main__":
    main()
