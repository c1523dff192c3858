"""One seed with two clusters: what is published in one arrives in the other, whatever goes wrong in both."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import replace
from typing import Any, Final

from magnetar.broker.replication.replicator import Replicator
from magnetar.metadata.tree import Outcome
from magnetar.sim.loop import SimulatedLoop

from e2e.broker_simulation.checker import check
from e2e.broker_simulation.clients import Client, Host
from e2e.broker_simulation.faults import Faults
from e2e.broker_simulation.history import TopicHistory
from e2e.broker_simulation.metadata_witness import MetadataWitness
from e2e.broker_simulation.parameters import Parameters, topic_name
from e2e.broker_simulation.producers import Producer, Sequence
from e2e.broker_simulation.protocol import Entrances
from e2e.broker_simulation.regions.arrivals import ArrivalReader
from e2e.broker_simulation.regions.clusters import RegionCluster, parameters_of_regions
from e2e.broker_simulation.regions.faults import LinkFaults
from e2e.broker_simulation.regions.rules import RegionTopic, check_direction
from e2e.broker_simulation.regions.witness import CursorWitness, running_replicators
from e2e.broker_simulation.waiting import until_done
from e2e.simulation.cluster import World
from e2e.simulation_runner.running import Stuck

ARRIVAL_SECONDS_MAX: Final = 20.0
"""When nothing is wrong any more: a replicator may have to wait for its next attempt to connect for about as long as
there were faults."""
SILENCE_SECONDS_MAX: Final = 80.0
"""The same where hosts of brokers went off, and nobody was told: whoever waits for one asks every 30 s whether it is
alive, and gives it up when it has said nothing since the last time."""
LOOK_SECONDS: Final = 0.01
SETTLING_SECONDS: Final = 2.0
RESTART_SECONDS: Final = 1.0
LATE_ENTRIES: Final = 3
"""Of a producer that comes when all brokers were started anew."""


class Region:
    """One cluster, its clients, and what they have seen."""

    def __init__(self, cluster: RegionCluster) -> None:
        self.cluster = cluster
        self.witness = MetadataWitness(cluster.world.witness, cluster.world.service.table, cluster.history)
        self.topics: dict[str, RegionTopic] = {}
        self.readers: dict[str, ArrivalReader] = {}
        """Those that stay from the beginning to the end: a topic that nobody uses is not loaded."""
        self.hosts: list[Host] = []
        """Of these readers."""
        for number in range(cluster.parameters.topics):
            name = topic_name(number)
            history = cluster.history.topics[name] = TopicHistory(name, cluster.parameters.deduplication)
            self.topics[name] = RegionTopic(cluster.region, history)

    def client(self, name: str) -> Client:
        """A new one."""
        cluster = self.cluster
        return Client(
            cluster.world, name, Entrances(cluster.broker_names, proxies=False), cluster.history, self.witness
        )

    def start_readers(self) -> None:
        """Those that stay."""
        for topic in self.topics:
            self.readers[topic] = self._read(topic, "steady")

    def _read(self, topic: str, kind: str) -> ArrivalReader:
        name = f"{self.cluster.region}-{kind}-reader-{topic.rpartition('/')[2]}"
        reader = ArrivalReader(self.client(name), topic, name)
        self.hosts.append(self.cluster.client(name, reader))
        return reader

    def start_producers(self, kind: str, parameters: Parameters) -> list[Host]:
        """Of each topic."""
        hosts: list[Host] = []
        for topic in self.topics:
            for index in range(parameters.producers):
                name = f"{self.cluster.region}-{kind}-{topic.rpartition('/')[2]}.{index}"
                producer = Producer(self.client(name), topic, name, parameters, Sequence())
                hosts.append(self.cluster.client(name, producer))
        return hosts

    async def read_all(self, when: str, *, last: bool) -> None:
        """Each topic from its first entry to its last; `last`: nothing is published any more."""
        before = len(self.hosts)
        readers = {topic: self._read(topic, when) for topic in self.topics}
        for reader in readers.values():
            reader.leave_when_done = True
        hosts, self.hosts[before:] = self.hosts[before:], []
        await until_done(self.cluster.history, hosts, "does not come to an end")
        for topic, reader in readers.items():
            if reader.finished:
                self.topics[topic].logs.append(reader.arrivals)
                history = self.topics[topic].history
                (history.logs if last else history.readings).append(reader.own)

    async def end(self) -> None:
        """The readers that have stayed read to the end, and leave."""
        for topic, reader in self.readers.items():
            reader.leave_when_done = True
            self.topics[topic].history.readings.append([])
        await until_done(self.cluster.history, self.hosts, "does not come to an end")
        for topic, reader in self.readers.items():
            self.topics[topic].history.readings[-1] += reader.own


class RegionsRun:
    """Of one seed."""

    def __init__(self, loop: SimulatedLoop, parameters: Parameters) -> None:
        self.parameters = parameters
        self._loop = loop
        self._regions: list[Region] = []
        self._witnesses: list[CursorWitness] = []
        """Of each direction in which something goes."""

    def violations(self) -> list[str]:
        """What was broken, so far."""
        found: list[str] = []
        for region in self._regions:
            found += [*region.cluster.world.witness.violations, *check(region.cluster.history)]
        for source, target in self._directions():
            for name, topic in source.topics.items():
                found += check_direction(topic, target.topics[name], sends=source.cluster.sends)
        return found

    def counts(self) -> dict[str, int]:
        """How much happened."""
        topics = [(region.cluster.region, topic) for region in self._regions for topic in region.topics.values()]
        return {
            "confirmed messages": sum(
                receipt.content.messages for _, topic in topics for receipt in topic.history.receipts
            ),
            "replicated entries": sum(
                bool(arrival.origin.cluster) for _, topic in topics for log in topic.logs[-1:] for arrival in log
            ),
        }

    def _directions(self) -> list[tuple[Region, Region]]:
        return [(one, other) for one in self._regions for other in self._regions if one is not other]

    async def scenario(self) -> None:
        """From the first start to the last look."""
        parameters = self.parameters
        self._make_regions()
        await asyncio.gather(*(region.cluster.start() for region in self._regions))
        for region in self._regions:
            region.start_readers()
        await self._until_replicated()
        producers = [
            (region, region.start_producers("producer", region.cluster.parameters)) for region in self._regions
        ]
        await self._suffer()
        for region, hosts in producers:
            await until_done(region.cluster.history, hosts, "does not come to an end")
        # Whoever has lost its session must have heard of it: until then it answers as if it was the owner.
        await asyncio.sleep(SETTLING_SECONDS)
        await self._until_all_has_arrived("when faults have ended")
        await asyncio.gather(*(region.read_all("early", last=False) for region in self._regions))
        await self._start_brokers_anew()
        late = replace(parameters, entries=LATE_ENTRIES, producers=1)
        for region in self._regions:
            hosts = region.start_producers("late", late)
            await until_done(region.cluster.history, hosts, "does not come to an end")
        await self._until_all_has_arrived("when brokers were started anew")
        await asyncio.gather(*(region.read_all("late", last=True) for region in self._regions))
        for region in self._regions:
            await region.end()

    def _make_regions(self) -> None:
        worlds: list[World] = []
        for parameters in parameters_of_regions(self.parameters):
            self._loop.trace.remark("scenario", repr(parameters))
            worlds.append(World(self._loop, parameters.storage, f"{parameters.region} ", worlds[0] if worlds else None))
            self._regions.append(Region(RegionCluster(worlds[-1], parameters)))
        for source, target in self._directions():
            source.cluster.remote_url = target.cluster.url
            witness = CursorWitness(source.cluster, target.cluster) if source.cluster.sends else None
            if witness is not None:
                self._witnesses.append(witness)
            self._watch(source, witness)

    def _watch(self, region: Region, cursors: CursorWitness | None) -> None:
        world = region.cluster.world

        def applied(outcome: Outcome, host: str) -> None:
            world.witness.metadata_applied(outcome, host)
            region.witness.metadata_applied(outcome, self._loop.time())
            if cursors is not None:
                cursors.metadata_applied(outcome)

        world.service.on_applied = applied

    async def _until_replicated(self) -> None:
        """Every topic has a cursor where it is to have one: what comes before that is nobody's promise."""
        deadline = self._loop.time() + ARRIVAL_SECONDS_MAX
        while not all(witness.is_there(topic) for witness in self._witnesses for topic in self._regions[0].topics):
            if self._loop.time() > deadline:
                raise Stuck("a topic has no cursor for the other cluster")
            await asyncio.sleep(LOOK_SECONDS)

    async def _suffer(self) -> None:
        """Everything that goes wrong, in both clusters and between them; then it is healed."""
        regions = self.parameters.regions
        assert regions is not None
        faults = [Faults(region.cluster, region.cluster.history) for region in self._regions]
        east, west = (region.cluster for region in self._regions)
        links = LinkFaults(east, west, regions)
        suffering = self._loop.create_task(_all(*(each.run() for each in faults), links.run()))
        while not suffering.done():
            self._check_cursors()
            await asyncio.sleep(LOOK_SECONDS)
        await suffering
        for each in faults:
            each.heal()
        links.heal()
        for region in self._regions:
            await region.cluster.until_bookies_run()
            await region.cluster.administrator.done()

    def _check_cursors(self) -> None:
        for witness, region in zip(self._witnesses, self._regions, strict=False):
            witness.check_all()
            for topic in region.topics:
                if found := witness.sent_on(topic):
                    # It would go on for ever.
                    raise Stuck(
                        f"{topic} in {region.cluster.region}: {found[:3]} has come from elsewhere, and is sent on"
                    )

    async def _until_all_has_arrived(self, when: str) -> None:
        """Everything that is stored at its source is stored at the target, and the source knows it. `Stuck`."""
        deadline = self._loop.time() + self._arrival_seconds_max()
        while missing := self._missing():
            self._check_cursors()
            if self._loop.time() > deadline:
                raise Stuck(f"{when} " + "; ".join(missing))
            await asyncio.sleep(LOOK_SECONDS)

    def _arrival_seconds_max(self) -> float:
        if any(region.cluster.world.witness.violations for region in self._regions):
            return SETTLING_SECONDS  # What was lost never comes.
        silent = any("broker_power_loss" in region.cluster.parameters.storage.fault_kinds for region in self._regions)
        return SILENCE_SECONDS_MAX if silent else ARRIVAL_SECONDS_MAX

    def _missing(self) -> list[str]:
        found: list[str] = []
        for witness, region in zip(self._witnesses, self._regions, strict=False):
            for topic in region.topics:
                running = running_replicators(region.cluster, topic)
                lacking = witness.lacking(topic)
                if lacking or not running or any(one.backlog for one in running):
                    said = ", ".join(_said(one) for one in running) or "no replicator"
                    found.append(f"{lacking[:3]} of {topic} are missing, from {region.cluster.region}: {said}")
        return found

    async def _start_brokers_anew(self) -> None:
        for region in self._regions:
            chance = region.cluster.world.chance("end")
            for broker in region.cluster.brokers:
                if chance.random() < 0.5:
                    broker.kill()
                    broker.start()
                else:
                    broker.stop()
        await asyncio.sleep(RESTART_SECONDS)
        for region in self._regions:
            await region.cluster.until_brokers_serve()


def _said(one: Replicator) -> str:
    return f"{one.label} is {one.state.value}, {one.reason.value or 'and says no reason'}, backlog {one.backlog}"


async def _all(*works: Coroutine[Any, Any, None]) -> None:
    await asyncio.gather(*works)
