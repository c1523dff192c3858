"""One seed: a cluster, clients and faults; then everything is healed, and what clients were promised is looked for."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from magnetar.metadata.tree import Outcome
from magnetar.sim.loop import SimulatedLoop

from e2e.broker_simulation.admin import forget_applications
from e2e.broker_simulation.checker import check, undelivered
from e2e.broker_simulation.clients import Client, Host
from e2e.broker_simulation.cluster import Cluster
from e2e.broker_simulation.compaction.clients import CompactionClients
from e2e.broker_simulation.compaction.trims import TrimsWitness
from e2e.broker_simulation.consumers import Consumer, Goal, LateConsumer
from e2e.broker_simulation.deliveries import ALONE_SECONDS
from e2e.broker_simulation.drawn.compaction import KEYED
from e2e.broker_simulation.faults import Faults
from e2e.broker_simulation.history import Delivered, History, SubscriptionHistory, Told, TopicHistory
from e2e.broker_simulation.metadata_witness import MetadataWitness
from e2e.broker_simulation.parameters import (
    Parameters,
    SubscriptionParameters,
    draw_parameters,
    topic_name,
)
from e2e.broker_simulation.producers import Producer, Sequence
from e2e.broker_simulation.protocol import Entrances
from e2e.broker_simulation.read_only.brokers import check_written
from e2e.broker_simulation.read_only.end_askers import EndAsker
from e2e.broker_simulation.read_only.witness import BindingsWitness
from e2e.broker_simulation.readers import Reader
from e2e.broker_simulation.regions.run import RegionsRun
from e2e.broker_simulation.transactions.still_open import still_open
from e2e.broker_simulation.transactions.stragglers import LastStraggler, Straggler
from e2e.broker_simulation.transactions.transactors import Transactor
from e2e.broker_simulation.waiting import PATIENCE_SECONDS, until_done
from e2e.simulation.cluster import World
from e2e.simulation.planting import Mistake, planted
from e2e.simulation_runner import running
from e2e.simulation_runner.running import Verdict

BOUNDS: Final = running.Bounds(steps_max=1_000_000, virtual_seconds_max=500.0)
INQUIRY_SECONDS: Final = 180.0
"""How long it may take where frames come late: who could not ask about one holds it until it is asked about once more,
with all that was open at two looks, a minute apart."""
SETTLING_SECONDS: Final = 2.0
LAST_ENTRIES: Final = 5
"""Of each topic, published when all is quiet."""
RESTART_SECONDS: Final = 1.0
"""Before anybody looks whether the brokers have come back at the end."""


class BrokerRun:
    """Of one seed."""

    def __init__(self, loop: SimulatedLoop, parameters: Parameters, *, ends_at_first: bool) -> None:
        self.history = History(ends_at_first=ends_at_first)
        self.parameters = parameters
        self.world: World | None = None
        self._loop = loop
        self._goal = Goal()
        self._transfer = Goal()
        """Of transactors."""
        self._late = Goal()
        """Of stragglers."""
        self._readers: list[Reader] = []
        self._compaction: CompactionClients | None = None
        self._witness: MetadataWitness

    def violations(self) -> list[str]:
        """What was broken, so far."""
        seen = [] if self.world is None else self.world.witness.violations
        return [*seen, *check(self.history)]

    def counts(self) -> dict[str, int]:
        """How much happened."""
        events = [event for each in self.history.subscriptions.values() for event in each.events]
        return {
            "confirmed messages": sum(
                receipt.content.messages for topic in self.history.topics.values() for receipt in topic.receipts
            ),
            "deliveries": sum(isinstance(event, Delivered) for event in events),
            "transactions that were committed": sum(
                bool(one.commit) and one.answered for one in self.history.transactions
            ),
            "compacted readings": len(self.history.compacted),
            "trimmed entries": sum(len(topic.trimmed) for topic in self.history.topics.values()),
            "receipts of acknowledgements": sum(isinstance(event, Told) for event in events),
        }

    async def scenario(self) -> None:
        """From the first start to the last look."""
        parameters = self.parameters
        self._loop.trace.remark("scenario", repr(parameters))
        world = self.world = World(self._loop, parameters.storage)
        self._watch(world)
        cluster = self._make_cluster(world)
        await cluster.start()
        producers, readers, consumers = self._start_clients(cluster)
        transactors = self._start_transactors(cluster, "transactor")
        stragglers = self._start_stragglers(cluster)
        if parameters.compaction is not None:
            self._compaction = CompactionClients(cluster, self.history, parameters.compaction, self._client)
            self._compaction.start(list(self.history.topics))
        faults = self._make_faults(cluster)
        await faults.run()
        faults.heal()
        for subscription in self.history.subscriptions.values():
            subscription.calm_since = self._loop.time()
        await cluster.until_bookies_run()
        await self._until_done(producers, "does not come to an end")
        await self._publish_once_more(cluster)
        self._late.drain = True
        await self._until_done(stragglers, "does not come to an end")
        self._transfer.drain = True
        complaint = "does not take all that is there"
        await until_done(self.history, transactors, complaint, self._transactions_seconds, self._count_taken)
        await self._until_transactions_are_over(cluster)
        # Whoever has lost its session must have heard of it: until then it answers as if it was the owner.
        await asyncio.sleep(SETTLING_SECONDS)
        if self._compaction is not None:
            await self._until_done(self._compaction.finish(), "does not come to an end")
        await self._read_all(cluster, "early")
        self._goal.drain = True
        await self._until_drained(consumers)
        self._goal.leave = True
        for reader in self._readers:
            reader.leave_when_done = True
        await self._until_done([*readers, *consumers.values()], "does not come to an end")
        for reader in self._readers:
            self.history.topics[reader.topic].whole.append(reader.read)
        if self._compaction is not None:
            await self._compaction.begin_some()
        chance = world.chance("end")
        for broker in (*cluster.brokers, *cluster.reading):
            if chance.random() < 0.5:
                broker.kill()
                broker.start()
            else:
                broker.stop()
        await asyncio.sleep(RESTART_SECONDS)
        await cluster.until_brokers_serve()
        await self._be_late_once_more(cluster)
        await self._look_once_more(cluster)
        await self._read_all(cluster, "late")
        if self._compaction is not None:
            await self._compaction.until_nothing_is_left_over(PATIENCE_SECONDS)

    def _make_cluster(self, world: World) -> Cluster:
        return Cluster(world, self.parameters)

    def _make_faults(self, cluster: Cluster) -> Faults:
        return Faults(cluster, self.history)

    @property
    def _published(self) -> list[str]:
        """Topics that producers publish to."""
        return list(self.history.topics)

    @property
    def _taken(self) -> list[str]:
        """Topics from which transactions take."""
        return self._published

    def _topic_of(self, subscription: SubscriptionParameters) -> str:
        return topic_name(subscription.topic)

    def _watch(self, world: World) -> None:
        witness = self._witness = MetadataWitness(world.witness, world.service.table, self.history)
        storage_witness = world.witness
        bindings = BindingsWitness(world.witness, world.service.table, self.history)
        trims = TrimsWitness(world.witness, world.service.table, self.history)

        def applied(outcome: Outcome, host: str) -> None:
            if self.parameters.trims:
                trims.metadata_applied(outcome, self._loop.time())
            storage_witness.metadata_applied(outcome, host)
            witness.metadata_applied(outcome, self._loop.time())
            if self.parameters.read_only is not None:
                check_written(storage_witness, outcome, host)
                bindings.metadata_applied(outcome, host, self._loop.time())

        world.service.on_applied = applied

    def _start_clients(self, cluster: Cluster) -> tuple[list[Host], list[Host], dict[Consumer, Host]]:
        parameters, history = self.parameters, self.history
        producers: list[Host] = []
        readers: list[Host] = []
        for number in range(parameters.topics):
            topic = topic_name(number)
            history.topics.setdefault(topic, TopicHistory(topic, parameters.deduplication))
            for index in range(parameters.producers):
                kind = "producer" if parameters.compaction is None else f"{KEYED}{parameters.seed}-"
                name = f"{kind}{number}.{index}"
                client = self._client(cluster, name)
                producer = Producer(client, topic, name, parameters, Sequence())
                producers.append(cluster.client(name, producer))
            for index in range(parameters.readers):
                name = f"reader{number}.{index}"
                history.topics[topic].readings.append([])
                reader = Reader(
                    self._client(cluster, name, consumes=True), topic, name, history.topics[topic].readings[-1]
                )
                self._readers.append(reader)
                readers.append(cluster.client(name, reader))
        return producers, readers, self._start_consumers(cluster)

    def _start_consumers(self, cluster: Cluster) -> dict[Consumer, Host]:
        parameters, history = self.parameters, self.history
        consumers: dict[Consumer, Host] = {}
        for subscription in parameters.subscriptions:
            topic = self._topic_of(subscription)
            history.subscriptions[(topic, subscription.name)] = SubscriptionHistory(
                topic, subscription.name, subscription.kind
            )
            for index in range(subscription.consumers):
                name = f"consumer{subscription.topic}.{subscription.name}.{index}"
                consumer = Consumer(self._client(cluster, name, consumes=True), topic, name, subscription, self._goal)
                if parameters.read_only is not None:
                    consumer.unsubscribe_share = parameters.read_only.unsubscribe_share
                    consumer.leave_share = parameters.read_only.leave_share
                consumers[consumer] = cluster.client(name, consumer)
        return consumers

    def _start_transactors(self, cluster: Cluster, kind: str) -> list[Host]:
        parameters = self.parameters.transactions
        if parameters is None:
            return []
        hosts = []
        for number in range(parameters.transactors if kind == "transactor" else 1):
            name = f"{kind}{number}"
            client = self._client(cluster, name)
            transactor = Transactor(client, name, self._published, parameters, self._transfer, self._taken)
            hosts.append(cluster.client(name, transactor))
        return hosts

    def _start_stragglers(self, cluster: Cluster) -> list[Host]:
        parameters = self.parameters.transactions
        if parameters is None or parameters.late is None:
            return []
        hosts = []
        for number in range(parameters.late.stragglers):
            name = f"straggler{number}"
            straggler = Straggler(self._client(cluster, name), name, parameters.late, self._late, parameters.kind)
            hosts.append(cluster.client(name, straggler))
        return hosts

    async def _publish_once_more(self, cluster: Cluster) -> None:
        """Who delivers something that only reads, when nothing goes wrong any more, must be bound to what it is of."""
        if self.parameters.read_only is None or self.parameters.compaction is not None:
            return  # What compaction has to leave is known of keys that are drawn for a producer's whole life.
        await asyncio.sleep(ALONE_SECONDS)
        parameters = replace(self.parameters, entries=LAST_ENTRIES)
        askers = self._start_end_askers(cluster)
        hosts = []
        for number, topic in enumerate(self.history.topics):
            name = f"last-producer{number}"
            producer = Producer(self._client(cluster, name), topic, name, parameters, Sequence())
            hosts.append(cluster.client(name, producer))
        await self._until_done(hosts, "does not come to an end")
        for asker in askers:
            asker.leave_when_done = True
        await self._until_done(askers.values(), "does not come to an end")

    def _start_end_askers(self, cluster: Cluster) -> dict[EndAsker, Host]:
        """At brokers that only read. Where there are transactions they may hide what was confirmed."""
        if self.parameters.transactions is not None:
            return {}
        askers = {}
        for number, topic in enumerate(self.history.topics):
            name = f"end-asker{number}"
            reading = Entrances(cluster.reading_names, proxies=False)
            asker = EndAsker(Client(cluster.world, name, reading, self.history, self._witness), topic, name)
            askers[asker] = cluster.client(name, asker)
        return askers

    async def _be_late_once_more(self, cluster: Cluster) -> None:
        """At owners that have just come, of transactions that are all over."""
        parameters = self.parameters.transactions
        if parameters is None or parameters.late is None:
            return
        name = "straggler-late"
        straggler = LastStraggler(self._client(cluster, name), name, parameters.late, parameters.coordinators)
        await self._until_done([cluster.client(name, straggler)], "does not come to an end")
        await self._until_transactions_are_over(cluster)

    @property
    def _transactions_seconds(self) -> float:
        """How long a transaction that is over may be held somewhere."""
        parameters = self.parameters.transactions
        return PATIENCE_SECONDS if parameters is None or parameters.late is None else INQUIRY_SECONDS

    def _count_taken(self) -> int:
        """How many messages transactors have taken for good."""
        committed = (one.taken for one in self.history.transactions if one.commit and one.answered)
        parts = {(part.topic, part.position, index) for taken in committed for part in taken for index in part.indexes}
        return len(parts | self.history.plain)

    async def _until_transactions_are_over(self, cluster: Cluster) -> None:
        """Nothing is held for ever, neither positions nor acknowledgements nor coordinators' records."""
        deadline = self._loop.time() + self._transactions_seconds
        while what := still_open(cluster):
            if self._loop.time() > deadline:
                self.history.stuck += [f"a transaction stays open: {one}" for one in what]
                return
            await asyncio.sleep(0.1)

    def _client(self, cluster: Cluster, name: str, *, consumes: bool = False) -> Client:
        """`consumes`: it does nothing else, and may do so at brokers that only read."""
        entrances = Entrances(cluster.broker_names, proxies=False)
        if cluster.proxies and cluster.world.chance(f"entrance {name}").random() < self.parameters.proxied_share:
            entrances = Entrances(cluster.proxy_names, proxies=True)
        read_only = self.parameters.read_only
        if read_only is None or not consumes:
            return Client(cluster.world, name, entrances, self.history, self._witness)
        reading = Entrances(cluster.reading_names, proxies=False)
        if cluster.world.chance(f"reads {name}").random() < read_only.share:
            entrances, reading = reading, entrances
        client = Client(cluster.world, name, entrances, self.history, self._witness)
        client.may_move(reading, read_only.move_share)
        return client

    @property
    def _patience_seconds(self) -> float:
        """How long something may take that must happen."""
        return PATIENCE_SECONDS

    async def _until_done(self, hosts: Iterable[Host], complaint: str) -> None:
        await until_done(self.history, hosts, complaint, self._patience_seconds)

    async def _read_all(self, cluster: Cluster, when: str) -> None:
        """Each topic from its first entry to its last."""
        hosts: list[Host] = []
        readings: dict[str, Reader] = {}
        for name in self.history.topics:
            who = f"{when} reader of {name.rpartition('/')[2]}"
            reader = readings[name] = Reader(self._client(cluster, who), name, who.replace(" ", "-"), [])
            reader.leave_when_done = True
            hosts.append(cluster.client(who, reader))
        await self._until_done(hosts, "does not come to an end")
        for name, reader in readings.items():
            if reader.finished:
                topic = self.history.topics[name]
                topic.logs.append(topic.log_with(reader.read))
        if self._compaction is not None:
            await self._compaction.read_all(when, self._until_done)

    async def _until_drained(self, consumers: dict[Consumer, Host]) -> None:
        """Everything is delivered, and acknowledged with a receipt, or without."""
        deadline = self._loop.time() + self._patience_seconds
        while self._loop.time() < deadline:
            missing = {key: self._undelivered(subscription) for key, subscription in self.history.subscriptions.items()}
            if not any(missing.values()) and all(consumer.idle for consumer in consumers):
                return
            await asyncio.sleep(0.1)
        for (topic, name), count in missing.items():
            if count:
                self.history.stuck.append(f"{name} of {topic} does not get {count} entries, and has permits")
        for consumer in consumers:
            if not consumer.idle:
                self.history.stuck.append(f"{consumer.name} gets no receipts")

    def _undelivered(self, subscription: SubscriptionHistory) -> int:
        topic = self.history.topics[subscription.topic]
        return len(undelivered(subscription, topic.last_log_of(subscription.name) if topic.logs else []))

    async def _look_once_more(self, cluster: Cluster) -> None:
        """Another owner, and another consumer: what comes now nobody has acknowledged."""
        hosts: list[Host] = []
        for parameters in self.parameters.subscriptions:
            name = f"late consumer of {parameters.topic} {parameters.name}"
            client = self._client(cluster, name, consumes=True)
            consumer = LateConsumer(client, self._topic_of(parameters), name.replace(" ", "-"), parameters)
            hosts.append(cluster.client(name, consumer))
        hosts += self._start_transactors(cluster, "transactor-late")
        await self._until_done(hosts, "does not come to an end: nothing comes, and there is a backlog")


def _run_of(loop: SimulatedLoop, parameters: Parameters, mistake: Mistake | None) -> running.Run:
    if parameters.regions is not None:
        return RegionsRun(loop, parameters)
    return BrokerRun(loop, parameters, ends_at_first=mistake is not None)


def run_seed(seed: int, *, mistake: Mistake | None = None, keep_trace: bool = False) -> Verdict:
    """The same verdict and the same trace, whenever and wherever it runs."""
    try:
        return running.run_seed(
            seed,
            lambda loop: _run_of(loop, draw_parameters(seed), mistake),
            BOUNDS,
            planted=planted(mistake),
            keep_trace=keep_trace,
        )
    finally:
        forget_applications()
