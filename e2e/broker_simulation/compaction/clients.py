"""All who have to do with compaction in a run: who asks for it, who reads by it, and the looks at what is left over."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from magnetar.broker.states import CompactionState
from magnetar.broker.topics.topic import PersistentTopic
from magnetar.managed.compaction import COMPACTION_CURSOR, LEDGER_PROPERTY

from e2e.broker_simulation.clients import Client, Host
from e2e.broker_simulation.cluster import Cluster
from e2e.broker_simulation.compaction.compactor import Compactor
from e2e.broker_simulation.compaction.readers import CompactedReader
from e2e.broker_simulation.consumers import Goal
from e2e.broker_simulation.drawn.compaction import CompactionParameters
from e2e.broker_simulation.history import History
from e2e.broker_simulation.metadata_witness import stored_cursor

LOOK_SECONDS: Final = 0.1
RESTING_SECONDS: Final = 2.5
"""Longer than brokers take until they look at thresholds again."""
READINGS_MAX: Final = 5
"""Until one of them meets no compaction."""
COMPACTED: Final = b"compacted-ledger"

BEGUN_SECONDS: Final = 0.02
"""Less than a compaction takes."""

Done = Callable[[list[Host], str], Awaitable[None]]


class _Once:
    """A `Program` that asks for compactions once."""

    def __init__(self, compactor: Compactor) -> None:
        self._compactor = compactor

    def reborn(self) -> None:
        """See `Program.reborn`."""

    async def run(self) -> None:
        """See `Program.run`."""
        await self._compactor.start_each()


class CompactionClients:
    """Of one run."""

    def __init__(
        self,
        cluster: Cluster,
        history: History,
        parameters: CompactionParameters,
        make_client: Callable[[Cluster, str], Client],
    ) -> None:
        self._cluster = cluster
        self._history = history
        self._parameters = parameters
        self._make_client = make_client
        self._goal = Goal()
        self._hosts: list[Host] = []
        history.keeps_without_key = parameters.keeps_without_key

    def start(self, topics: list[str]) -> None:
        """Those that are there all the time."""
        cluster, parameters = self._cluster, self._parameters
        for topic in topics:
            for number in range(parameters.readers):
                name = f"compacted-reader{number}-{topic.rpartition('/')[2]}"
                client = self._make_client(cluster, name)
                reader = CompactedReader(
                    client,
                    topic,
                    name,
                    permits=parameters.permits,
                    slow=parameters.slow,
                    pause_seconds=parameters.scan_pause_seconds,
                    goal=self._goal,
                )
                self._hosts.append(cluster.client(name, reader))
        client = self._make_client(cluster, "compactor")
        compactor = Compactor(client, cluster.broker_names, topics, parameters, self._goal)
        self._hosts.append(cluster.client("compactor", compactor))

    def finish(self) -> list[Host]:
        """Each topic is compacted once more, and readers come to an end."""
        self._goal.drain = True
        return self._hosts

    async def begin_some(self) -> None:
        """Have brokers begin what they won't end, perhaps, as they are killed then or stopped."""
        cluster, topics = self._cluster, list(self._history.topics)
        client = self._make_client(cluster, "last compactor")
        if client.chance.random() < 0.5:
            return
        compactor = Compactor(client, cluster.broker_names, topics, self._parameters, self._goal)
        host = cluster.client("last compactor", _Once(compactor))
        await asyncio.wait((asyncio.ensure_future(host.done.wait()),), timeout=RESTING_SECONDS)
        await asyncio.sleep(client.chance.uniform(0.0, BEGUN_SECONDS))
        host.node.kill()

    async def read_all(self, when: str, until_done: Done) -> None:
        """Read each topic while nothing is compacted."""
        for attempt in range(READINGS_MAX):
            await self._until_it_rests()
            before = self._named_ledgers(set(self._history.topics))
            readers: list[CompactedReader] = []
            hosts = []
            for topic, history in self._history.topics.items():
                name = f"{when}-compacted-reader{attempt}-{topic.rpartition('/')[2]}"
                client = self._make_client(self._cluster, name)
                floor = history.compacted_up_to
                readers.append(CompactedReader(client, topic, name, permits=self._parameters.permits, floor=floor))
                hosts.append(self._cluster.client(name, readers[-1]))
            await until_done(hosts, "does not come to an end")
            if before == self._named_ledgers(set(self._history.topics)):
                self._history.compacted += [reader.reading for reader in readers if reader.finished]
                return
        self._history.stuck.append(f"topics are compacted again and again: no {when} reader meets none")

    async def _until_it_rests(self) -> None:
        loop = self._cluster.world.loop
        deadline = loop.time() + RESTING_SECONDS
        while self._runs() and loop.time() < deadline:  # noqa: ASYNC110  (nobody tells)
            await asyncio.sleep(LOOK_SECONDS)

    def _runs(self) -> bool:
        return any(
            topic.compaction is not None and topic.compaction.state is CompactionState.RUNNING
            for broker in self._cluster.brokers
            if broker.running is not None
            for topic in broker.running.context.service.topics.values()
            if isinstance(topic, PersistentTopic)
        )

    # --- what is left over

    def _compacted_ledgers(self) -> dict[int, str]:
        """Those that there are, also of topics of the brokers' own, and their topics."""
        found: dict[int, str] = {}
        for ledger_id, ledger in self._cluster.world.witness.ledgers.items():
            labels = ledger.metadata.custom_metadata
            if labels.get("component") == COMPACTED:
                found[ledger_id] = labels["pulsar/compactedTopic"].decode()
        return found

    def _named_ledgers(self, topics: set[str]) -> dict[int, str]:
        """The one that each topic's cursor names, and the topic."""
        world = self._cluster.world
        named: dict[int, str] = {}
        for topic in sorted(topics):
            stored = stored_cursor(world.witness, world.service.table, topic, COMPACTION_CURSOR)
            for each in stored.properties if stored is not None else ():
                if each.name == LEDGER_PROPERTY:
                    named[each.value] = topic
        return named

    def _wrong(self) -> list[str]:
        there = self._compacted_ledgers()
        named = self._named_ledgers({*self._history.topics, *there.values()})
        left, gone = sorted(there.keys() - named.keys()), sorted(named.keys() - there.keys())
        return [
            *(f"the compacted ledger {one} of {there[one]} is left over" for one in left),
            *(f"{named[one]} names the compacted ledger {one}, which is gone" for one in gone),
        ]

    async def until_nothing_is_left_over(self, seconds_max: float) -> None:
        """Of compacted ledgers there is the one that the cursor names, and no other."""
        loop = self._cluster.world.loop
        deadline = loop.time() + seconds_max
        while wrong := self._wrong():
            if loop.time() > deadline:
                self._history.stuck += wrong
                return
            await asyncio.sleep(LOOK_SECONDS)
