"""Limits of resource groups over whole brokers, on virtual time: what passes in ten seconds, and who is not held up."""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

import pytest
from magnetar.broker.resource_groups.groups import ROOT
from magnetar.broker.resources import new_policies
from magnetar.wire.pulsar import requests
from magnetar.wire.pulsar.generated import pulsar_api_pb2 as pb

from e2e.broker_simulation.brokers import CLUSTER
from e2e.broker_simulation.clients import Attached, Client, entry_of
from e2e.broker_simulation.cluster import Cluster
from e2e.broker_simulation.history import Content, History
from e2e.broker_simulation.metadata_witness import MetadataWitness
from e2e.broker_simulation.parameters import draw_parameters
from e2e.broker_simulation.protocol import Entrances, Link
from e2e.simulation.cluster import World
from e2e.simulation.metadata import SimulatedMetadata
from e2e.simulation.planting import planted
from e2e.simulation_runner import running

BOUNDS: Final = running.Bounds(steps_max=20_000_000, virtual_seconds_max=500.0)
LIMIT: Final = 100
"""Messages per second of the group."""
WINDOW_SECONDS: Final = 10.0
PENDING_MAX: Final = 20
"""Of one sender, as clients have it: who is held up sends no more than that on top."""


class Sender(Attached):
    """Sends at a steady rate, one message at a time, and notes when each receipt comes."""

    def __init__(self, client: Client, topic: str, name: str, per_second: float) -> None:
        super().__init__(client, topic)
        self.name = name
        self.receipts: list[tuple[float, float]] = []
        """When it was sent, and when its receipt came."""
        self._pause_seconds = 1 / per_second
        self._sent: deque[float] = deque()
        self._number = 0

    async def attach(self, link: Link, end_id: int) -> None:
        """See `Attached.attach`."""
        request = requests.ProducerRequest(topic=self.topic, name=self.name, epoch=0)
        await link.ask(lambda request_id: requests.producer(request_id, end_id, request))

    async def work(self, link: Link) -> None:
        """See `Attached.work`."""
        self._sent.clear()
        while self.link is link:
            if len(self._sent) < PENDING_MAX:
                entry = entry_of(Content(self.name, self._number, 1), "", 1)
                self._sent.append(self.client.now())
                link.write(requests.send(self.id, self._number, entry))
                self._number += 1
                await asyncio.sleep(self._pause_seconds)
            else:
                await self.wait(60.0)

    def forget(self) -> None:
        """See `Attached.forget`."""

    def close_request(self, request_id: int, end_id: int) -> bytes:
        """See `Attached.close_request`."""
        return requests.close_producer(request_id, end_id)

    def detached(self, *, closed: bool) -> None:
        """See `Attached.detached`."""

    def take(self, command: pb.BaseCommand, rest: bytes) -> None:
        """See `End.take`."""
        if command.type == pb.BaseCommand.SEND_RECEIPT:
            self.receipts.append((self._sent.popleft(), self.client.now()))
            self.news.set()

    def between(self, begin: float, end: float) -> list[float]:
        """How long each receipt that came then was waited for."""
        return [received - sent for sent, received in self.receipts if begin <= received < end]


class LimitRun:
    """Some brokers, the senders of a group on all of them, and a neighbour on each."""

    def __init__(self, loop: Any, brokers: int, demand: float) -> None:
        parameters = draw_parameters(1)
        storage = replace(parameters.storage, fault_kinds=(), faults=0, metadata_lag_seconds=0.0)
        self.parameters = replace(
            parameters, brokers=brokers, proxies=0, storage=storage, bundles=4, deduplication=False
        )
        self.windows: list[int] = []
        """What passed in the group in each window."""
        self.before: list[float] = []
        """How long neighbours waited for each receipt, before anybody else sent."""
        self.beside: list[float] = []
        """The same beside the group."""
        self.owners: set[str] = set()
        self._demand = demand
        self._loop = loop

    def violations(self) -> list[str]:
        """None is looked for: what passed is judged."""
        return []

    def counts(self) -> dict[str, int]:
        """See `Run.counts`."""
        return {}

    async def scenario(self) -> None:
        """Neighbours alone, then the group beside them, with a limit."""
        loop = self._loop
        world = World(loop, self.parameters.storage)
        cluster = Cluster(world, self.parameters)
        await cluster.start()
        store = await self._prepared(world)
        history = History()
        witness = MetadataWitness(world.witness, world.service.table, history)

        def senders(domain: str, namespace: str, count: int, per_second: float) -> list[Sender]:
            made = []
            for number in range(count):
                name = f"{namespace.replace('/', '-')}-{number}"
                client = Client(world, name, Entrances(cluster.broker_names, proxies=False), history, witness)
                sender = Sender(client, f"{domain}://{namespace}/t{number}", name, per_second)
                cluster.client(name, sender)
                made.append(sender)
            return made

        # What is not stored has no disk to share with others.
        neighbours = senders("non-persistent", "public/other", 4, 100)
        await asyncio.sleep(5.0)
        self.before = await self._window([], neighbours) + await self._window([], neighbours)
        group = senders("persistent", "public/default", 8, self._demand / 8)
        await asyncio.sleep(10.0)
        self.owners = {sender.link.host for sender in group if sender.link is not None}
        for _ in range(2):
            self.beside += await self._window(group, neighbours)
        await store.close()

    async def _window(self, group: Sequence[Sender], neighbours: Sequence[Sender]) -> list[float]:
        begin = self._loop.time()
        await asyncio.sleep(WINDOW_SECONDS)
        end = self._loop.time()
        if group:
            self.windows.append(sum(len(sender.between(begin, end)) for sender in group))
        return [seconds for sender in neighbours for seconds in sender.between(begin, end)]

    async def _prepared(self, world: World) -> SimulatedMetadata:
        node = world.node("operator")
        process = node.start()
        store = SimulatedMetadata(world.service, node.name, lambda: process.alive)
        limits = {"publishRateInMsgs": LIMIT}
        policies = new_policies(CLUSTER, self.parameters.bundles)
        done = asyncio.Event()

        async def prepare() -> None:
            await store.put(f"{ROOT}/g", json.dumps(limits).encode())
            await store.put("/admin/policies/public/other", json.dumps(policies).encode())
            with_group = {**policies, "resource_group_name": "g"}
            await store.put("/admin/policies/public/default", json.dumps(with_group).encode())
            done.set()

        node.run(prepare())
        await done.wait()
        return store


def slowest(waited: Sequence[float]) -> float:
    """99 of 100 receipts came within so long."""
    return sorted(waited)[len(waited) * 99 // 100]


@pytest.mark.slow
@pytest.mark.parametrize(("brokers", "demand"), [(1, 400.0), (2, 400.0), (2, 80.0)])
def test_ten_seconds_hold_the_limit_of_the_group_and_neighbours_notice_nothing(brokers: int, demand: float) -> None:
    runs: list[LimitRun] = []

    def make(loop: Any) -> LimitRun:
        runs.append(LimitRun(loop, brokers, demand))
        return runs[-1]

    verdict = running.run_seed(1, make, BOUNDS, planted=planted(None))
    assert verdict.violations == []
    (run,) = runs
    assert len(run.owners) == brokers
    expected = WINDOW_SECONDS * min(LIMIT, demand)
    assert all(0.95 * expected <= passed <= 1.05 * expected for passed in run.windows), run.windows
    assert len(run.beside) >= 0.95 * len(run.before)
    assert slowest(run.beside) <= 1.1 * slowest(run.before)
