"""The disturbances of `e2e.disturbing` on the brokers and bookies of a local cluster."""

from __future__ import annotations

import contextlib
import logging
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import Final

import pulsar

from e2e import history
from e2e.cluster.local import LocalCluster
from e2e.disturbing import control
from e2e.disturbing.control import Disturbance
from e2e.disturbing.mistakes import FORGETFUL_DISK
from e2e.disturbing.relay import Relay
from e2e.disturbing.storms import (
    OFTEN_CHECKPOINTS,
    ClockJumps,
    DiskStalls,
    LostAnswers,
    Stops,
    Trouble,
    disturb_all,
    registrations,
)
from e2e.history import Acknowledged
from e2e.run_clients import Run

logger: Final = logging.getLogger(__name__)

FAULTS = ("clock", "stall", "answers", "stops")
LONG_SESSION_MS = 10_000
"""The longest that ZooKeeper allows here, so that no session ends because the machine is busy."""
SHORT_LEDGERS = {
    "managedLedgerMaxEntriesPerLedger": "500",
    "managedLedgerMinLedgerRolloverTimeMinutes": "0",
    "managedLedgerCursorMaxEntriesPerLedger": "20",
}
"""Ledgers begin and end every few seconds: the metadata store is written to all the time, and a bookie that was given
up is chosen again."""
KEPT = {"defaultRetentionTimeInMinutes": "-1", "defaultRetentionSizeInMB": "-1"}
"""Consumers take messages from the owner's memory; only who reads all again sees that the next owner has them too."""
READ_MS = 10_000
OWNED_SHARE = 0.6
DELAYED_TOPICS = 3
DELAY_SECONDS_MAX = 20.0
DELAYED_COME_SECONDS_MAX = 60.0
"""After their time and after the clocks were put right: a broker looks at its clock every few seconds."""


def plant(cluster: LocalCluster, mistake: str) -> None:
    """A mistake of `e2e.disturbing.mistakes` in brokers and bookies; before they start."""
    if mistake and mistake != FORGETFUL_DISK:
        for part in [*cluster.brokers, *cluster.bookies]:
            part.mistake = mistake


def prepare(
    fault: str, cluster: LocalCluster, rng: random.Random, stack: contextlib.ExitStack, mistake: str
) -> Trouble | None:
    """What makes the trouble, if it is one of these faults. Before the cluster starts."""
    parts = [*cluster.brokers, *cluster.bookies]
    if fault in FAULTS:
        for broker in cluster.brokers:
            broker.settings |= KEPT
    if fault == "stops":
        return Stops(parts, rng)
    if fault == "answers":
        return _answers(cluster, rng, stack)
    if fault == "stall":
        for broker in cluster.brokers:
            broker.settings |= SHORT_LEDGERS
        for bookie in cluster.bookies:
            bookie.settings |= OFTEN_CHECKPOINTS
        disturbances = disturb_all(cluster.bookies, control.build(cluster.folder), cluster.folder)
        return DiskStalls(disturbances, rng, forgetful=mistake == FORGETFUL_DISK)
    if fault == "clock":
        for broker in cluster.brokers:
            broker.settings["metadataStoreSessionTimeoutMillis"] = str(LONG_SESSION_MS)
        for bookie in cluster.bookies:
            bookie.settings["zkTimeout"] = str(LONG_SESSION_MS)
        disturbances = disturb_all(parts, control.build(cluster.folder), cluster.folder)
        return ClockJumpsUnderDelays(cluster, list(disturbances.values()), rng, stack)
    return None


def _answers(cluster: LocalCluster, rng: random.Random, stack: contextlib.ExitStack) -> LostAnswers:
    servers = [server.address for server in cluster.ensemble.servers]
    relays = []
    for broker in cluster.brokers:
        relays.append(stack.enter_context(Relay(servers)))
        url = f"zk:{relays[-1].address}"
        broker.settings |= {**SHORT_LEDGERS, "metadataStoreUrl": url, "configurationMetadataStoreUrl": url}
    for bookie in cluster.bookies:
        relays.append(stack.enter_context(Relay(servers)))
        bookie.settings["metadataServiceUri"] = f"metadata-store:zk:{relays[-1].address}"
    return LostAnswers(relays, rng, owned_share=OWNED_SHARE)


@dataclass(slots=True)
class _Delayed:
    """One topic whose messages come later."""

    producer: pulsar.Producer
    consumer: pulsar.Consumer
    sent: set[bytes] = field(default_factory=set)
    received: list[bytes] = field(default_factory=list)

    def send(self, delay_seconds: float) -> None:
        content = f"{time.time_ns()}".encode()
        self.producer.send(content, deliver_after=timedelta(seconds=delay_seconds))
        self.sent.add(content)

    def receive(self) -> None:
        """What is there by now."""
        with contextlib.suppress(pulsar.Timeout):
            while True:
                message = self.consumer.receive(100)
                self.consumer.acknowledge(message)
                self.received.append(message.data())


class ClockJumpsUnderDelays(ClockJumps):
    """Clocks jump while delayed messages wait: they may come early, and come once the clocks are right."""

    def __init__(
        self,
        cluster: LocalCluster,
        disturbances: Sequence[Disturbance],
        rng: random.Random,
        stack: contextlib.ExitStack,
    ) -> None:
        paths = [f"/loadbalance/brokers/{broker.id}" for broker in cluster.brokers]
        paths += [f"/ledgers/available/{bookie.id}" for bookie in cluster.bookies]
        registered = partial(registrations, cluster.settings.metadata_url, paths)
        super().__init__(disturbances, registered, rng)
        self._cluster = cluster
        self._delays = random.Random(rng.random())
        self._stack = stack
        self._delayed: list[_Delayed] = []

    def disturb(self) -> str:
        self._delayed = self._delayed or self._open()
        for one in self._delayed:
            one.send(self._delays.uniform(1.0, DELAY_SECONDS_MAX))
        what = super().disturb()
        for one in self._delayed:
            one.receive()
        return what

    def finish(self) -> None:
        super().finish()
        deadline = time.monotonic() + DELAY_SECONDS_MAX + DELAYED_COME_SECONDS_MAX
        while missing := sum(len(one.sent - set(one.received)) for one in self._delayed):
            if time.monotonic() > deadline:
                self.problems.append(f"{missing} delayed messages do not come although the clocks are right")
                return
            for one in self._delayed:
                one.receive()

    def _open(self) -> list[_Delayed]:
        client = pulsar.Client(self._cluster.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
        self._stack.callback(client.close)
        found = []
        for number in range(DELAYED_TOPICS):
            topic = f"persistent://public/default/delayed-{number}"
            consumer = client.subscribe(topic, "later", consumer_type=pulsar.ConsumerType.Shared)
            found.append(_Delayed(client.create_producer(topic), consumer))
        return found


def missing(cluster: LocalCluster, run: Run) -> list[str]:
    """What was acknowledged and is not in the topic any more, read from its beginning. After the run."""
    events = history.read(run.history_file("produce"))
    acknowledged = {_entry_of(event.id) for event in events if isinstance(event, Acknowledged)}
    topics = [run.topic]
    if run.workload.partitions:
        topics = [f"{run.topic}-partition-{number}" for number in range(run.workload.partitions)]
    found: set[tuple[int, ...]] = set()
    client = pulsar.Client(cluster.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    try:
        for topic in topics:
            reader = client.create_reader(topic, pulsar.MessageId.earliest)
            while reader.has_message_available():
                message = reader.read_next(READ_MS).message_id()
                found.add((message.ledger_id(), message.entry_id()))
            reader.close()
    finally:
        client.close()
    lost = sorted(acknowledged - found)
    logger.info("%s: %d entries acknowledged, %d in the topic", run.workload.name, len(acknowledged), len(found))
    return [f"{len(lost)} entries were acknowledged and are not there, such as {lost[:5]}"] if lost else []


def _entry_of(message_id: str) -> tuple[int, ...]:
    """Ledger and entry of what clients write as ledger:entry:partition:index."""
    return tuple(int(part) for part in message_id.split(":")[:2])


def provoked_by(unload: Callable[[], object]) -> Callable[[], None]:
    """What has brokers write to the metadata store; a failure is what a lost answer looks like from outside."""

    def provoke() -> None:
        with contextlib.suppress(OSError):
            unload()

    return provoke
