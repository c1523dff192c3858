"""One seed: a cluster with shadows, clients of both, and faults; then what is the source's is looked for at each."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Final

from magnetar.managed.following.settings import FollowSettings
from magnetar.metadata.tree import Outcome
from magnetar.sim.loop import SimulatedLoop

from e2e.broker_simulation.admin import forget_applications
from e2e.broker_simulation.checker import undelivered
from e2e.broker_simulation.clients import Host
from e2e.broker_simulation.cluster import Cluster
from e2e.broker_simulation.consumers import Consumer
from e2e.broker_simulation.history import Entry, SubscriptionHistory, TopicHistory
from e2e.broker_simulation.parameters import SubscriptionParameters
from e2e.broker_simulation.producers import Producer, Sequence
from e2e.broker_simulation.read_only.end_askers import EndAsker
from e2e.broker_simulation.readers import Reader
from e2e.broker_simulation.run import BOUNDS, BrokerRun
from e2e.broker_simulation.shadows.clients import Intruder, PunctualReader
from e2e.broker_simulation.shadows.cluster import ShadowCluster
from e2e.broker_simulation.shadows.faults import ShadowFaults
from e2e.broker_simulation.shadows.links import untold
from e2e.broker_simulation.shadows.parameters import ShadowParameters, draw_shadow_parameters
from e2e.broker_simulation.shadows.rules import check, told_at_once
from e2e.broker_simulation.shadows.witness import SourceWitness
from e2e.broker_simulation.waiting import PATIENCE_SECONDS
from e2e.simulation.cluster import World
from e2e.simulation.planting import Mistake, planted
from e2e.simulation_runner import running
from e2e.simulation_runner.running import Stuck, Verdict

SILENCE_SECONDS_MAX: Final = 80.0
"""How long something may take that must happen, where hosts of brokers went off: a broker that waits for one, which has
the policies of topics or a shadow, asks every 30 s whether it lives, and gives it up when it has said nothing since the
last time."""
PUNCTUAL_SECONDS: Final = 0.1
"""From a receipt to a reader of the shadow, when all is quiet; a shadow looks by itself once a second."""
PAUSE_SECONDS_MAX: Final = FollowSettings().retry_seconds_max + 1.0
"""Who could not read of bookies tries again after so long, with the time that it takes, whatever it is told."""
LAST_ENTRIES: Final = 4
TOLD_PAUSE_SECONDS: Final = 1.2
"""Between two of them: a shadow to which nothing comes looks less and less often."""
ASKED_PAUSE_SECONDS: Final = 0.2
"""The same, when the end of the shadow is asked for after each."""
LOOK_SECONDS: Final = 0.05


class ShadowRun(BrokerRun):
    """Of one seed."""

    def __init__(self, loop: SimulatedLoop, parameters: ShadowParameters, *, ends_at_first: bool) -> None:
        super().__init__(loop, parameters.cluster, ends_at_first=ends_at_first)
        self.shadows = parameters
        self._sources: SourceWitness
        self._intruders: dict[Intruder, Host] = {}
        self._late_told: list[str] = []
        for source, shadows in parameters.sources.items():
            history = self.history.topics[source] = TopicHistory(source, parameters.cluster.deduplication)
            for shadow in shadows:
                # What producers of the source are told holds of the shadow as well.
                self.history.topics[shadow] = replace(history, name=shadow, logs=[], readings=[], whole=[], holders=[])
                self.history.topics[shadow].ends_told = []

    def violations(self) -> list[str]:
        """See `Run.violations`."""
        seen = [] if self.world is None else self.world.witness.violations
        return [*seen, *self._late_told, *check(self.history, self.shadows.sources, self._taken)]

    def counts(self) -> dict[str, int]:
        """See `Run.counts`."""
        counts = super().counts()
        sources, shadows = self.shadows.sources, [self.history.topics[shadow] for shadow in self._all_shadows]
        counts["confirmed messages"] = sum(
            receipt.content.messages for source in sources for receipt in self.history.topics[source].receipts
        )
        del counts["compacted readings"]
        counts["entries read of shadows"] = sum(len(topic.logs[-1]) for topic in shadows if topic.logs)
        return counts

    # --- the parts of a run

    def _watch(self, world: World) -> None:
        super()._watch(world)
        before = world.service.on_applied
        sources = self._sources = SourceWitness(world, self.history, self.shadows.sources)
        self._witness.is_gone = sources.is_gone

        def applied(outcome: Outcome, host: str) -> None:
            # What is removed is not known any more afterwards.
            sources.metadata_applied(outcome, host)
            before(outcome, host)

        world.service.on_applied = applied

    def _make_cluster(self, world: World) -> Cluster:
        return ShadowCluster(world, self.shadows, self._client)

    def _make_faults(self, cluster: Cluster) -> ShadowFaults:
        assert isinstance(cluster, ShadowCluster)
        return ShadowFaults(cluster, self.history)

    @property
    def _published(self) -> list[str]:
        return list(self.shadows.sources)

    @property
    def _taken(self) -> list[str]:
        # What was taken of a shadow that is made anew is there once more.
        anew = "recreate_shadow" in self.parameters.storage.fault_kinds
        return self._published if anew else list(self.history.topics)

    def _topic_of(self, subscription: SubscriptionParameters) -> str:
        return self.shadows.names[subscription.topic]

    def _start_clients(self, cluster: Cluster) -> tuple[list[Host], list[Host], dict[Consumer, Host]]:
        producers, readers, consumers = super()._start_clients(cluster)
        for shadow in self._all_shadows:
            short = shadow.rpartition("/")[2]
            for index in range(self.parameters.readers):
                name = f"reader-{short}.{index}"
                self.history.topics[shadow].readings.append([])
                reader = Reader(self._client(cluster, name), shadow, name, self.history.topics[shadow].readings[-1])
                self._readers.append(reader)
                readers.append(cluster.client(name, reader))
            for index in range(self.shadows.intruders):
                name = f"intruder-{short}.{index}"
                intruder = Intruder(self._client(cluster, name), shadow, name)
                self._intruders[intruder] = cluster.client(name, intruder)
        return producers, readers, consumers

    @property
    def _all_shadows(self) -> list[str]:
        return [shadow for shadows in self.shadows.sources.values() for shadow in shadows]

    async def _publish_once_more(self, cluster: Cluster) -> None:
        """What is confirmed when nothing is wrong comes to readers of the shadows at once, as their source tells it."""
        for intruder in self._intruders:
            intruder.leaves_soon = True
        await self._until_done(self._intruders.values(), "does not come to an end")
        if self.parameters.transactions is not None:
            return  # Open transactions may hide it for a while.
        await self._until_told(cluster)
        await self._look_whether_shadows_are_told(cluster)
        askers = self._start_askers_at_shadows(cluster)
        await self._publish_some(cluster, "asked-for", ASKED_PAUSE_SECONDS)
        for asker in askers:
            asker.leave_when_done = True
        await self._until_done(askers.values(), "does not come to an end")

    async def _look_whether_shadows_are_told(self, cluster: Cluster) -> None:
        """While nobody asks for the end of a shadow, which would find it, too."""
        readers = self._start_punctual_readers(cluster)
        await asyncio.sleep(PAUSE_SECONDS_MAX)
        await self._until_read(readers)
        before = {shadow: len(self.history.topics[shadow].receipts) for shadow in self._all_shadows}
        await self._publish_some(cluster, "told", TOLD_PAUSE_SECONDS)
        await self._until_read(readers)
        seconds_max = PUNCTUAL_SECONDS + 2 * self.parameters.storage.metadata_lag_seconds
        for reader in readers:
            receipts = self.history.topics[reader.topic].receipts[before[reader.topic] :]
            self._late_told += [
                f"{reader.topic}: {what}" for what in told_at_once(receipts, reader.arrivals, seconds_max)
            ]
            reader.leave_when_done = True
        await self._until_done(readers.values(), "does not come to an end")

    async def _publish_some(self, cluster: Cluster, what: str, pause_seconds: float) -> None:
        """To each source."""
        parameters = replace(self.parameters, entries=LAST_ENTRIES, pause_seconds=pause_seconds)
        hosts = []
        for number, source in enumerate(self.shadows.sources):
            name = f"{what}-producer{number}"
            producer = Producer(self._client(cluster, name), source, name, parameters, Sequence())
            hosts.append(cluster.client(name, producer))
        await self._until_done(hosts, "does not come to an end")

    def _start_punctual_readers(self, cluster: Cluster) -> dict[PunctualReader, Host]:
        readers = {}
        for number, shadow in enumerate(self._all_shadows):
            name = f"punctual-reader{number}"
            reader = PunctualReader(self._client(cluster, name), shadow, name)
            readers[reader] = cluster.client(name, reader)
        return readers

    def _start_askers_at_shadows(self, cluster: Cluster) -> dict[EndAsker, Host]:
        askers = {}
        for number, shadow in enumerate(self._all_shadows):
            name = f"end-asker{number}"
            asker = EndAsker(self._client(cluster, name), shadow, name)
            askers[asker] = cluster.client(name, asker)
        return askers

    async def _until_read(self, readers: dict[PunctualReader, Host]) -> None:
        """Each has all that was confirmed by now."""
        deadline = self._loop.time() + self._patience_seconds
        for reader in readers:
            receipts = self.history.topics[reader.topic].receipts
            told = [receipt.position for receipt in receipts if receipt.position is not None]
            last = max((each for each in told if not self._sources.is_gone(reader.topic, each)), default=(-1, -1))
            while last >= (0, 0) and (not reader.read or reader.read[-1].position < last):
                if self._loop.time() > deadline:
                    self.history.stuck.append(f"{reader.name} does not come to {last}: it is at {reader.read[-1:]}")
                    return
                await asyncio.sleep(LOOK_SECONDS)

    @property
    def _patience_seconds(self) -> float:
        silent = "broker_power_loss" in self.parameters.storage.fault_kinds
        return SILENCE_SECONDS_MAX if silent else PATIENCE_SECONDS

    async def _until_told(self, cluster: Cluster) -> None:
        """Administrators have done everything, and each source tells its shadows."""
        assert isinstance(cluster, ShadowCluster)
        deadline = self._loop.time() + self._patience_seconds
        while missing := [*cluster.administrator.left, *untold(cluster)]:
            if self._loop.time() > deadline:
                self.history.stuck += missing
                if self.history.ends_at_first:
                    raise Stuck("what comes next is not looked for")
                return
            await asyncio.sleep(LOOK_SECONDS)

    async def _read_all(self, cluster: Cluster, when: str) -> None:
        """See `BrokerRun._read_all`: with what is read counts what was dropped before."""
        before = {name: len(topic.logs) for name, topic in self.history.topics.items()}
        await super()._read_all(cluster, when)
        for source, shadows in self.shadows.sources.items():
            for name in (source, *shadows):
                for log in self.history.topics[name].logs[before[name] :]:
                    there = {entry.position for entry in log}
                    log[:0] = [entry for entry in self._sources.trimmed[source] if entry.position not in there]
                    log.sort(key=lambda entry: entry.position)

    def _undelivered(self, subscription: SubscriptionHistory) -> int:
        logs = self.history.topics[subscription.topic].logs
        gone = {entry.position for entries in self._sources.trimmed.values() for entry in entries}
        left: list[Entry] = undelivered(subscription, logs[-1] if logs else [])
        return sum(entry.position not in gone for entry in left)

    async def _look_once_more(self, cluster: Cluster) -> None:
        """See `BrokerRun._look_once_more`; then sources tell their shadows, as before."""
        await super()._look_once_more(cluster)
        await self._until_told(cluster)


def run_seed(seed: int, *, mistake: Mistake | None = None, keep_trace: bool = False) -> Verdict:
    """The same verdict and the same trace, whenever and wherever it runs."""
    try:
        return running.run_seed(
            seed,
            lambda loop: ShadowRun(loop, draw_shadow_parameters(seed), ends_at_first=mistake is not None),
            BOUNDS,
            planted=planted(mistake),
            keep_trace=keep_trace,
        )
    finally:
        forget_applications()
