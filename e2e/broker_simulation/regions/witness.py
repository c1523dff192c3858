"""Sees what both clusters have stored: what of a topic the other one lacks, and that no replication cursor, as its
owner has it or the next one would find it, is ahead of what the other cluster has confirmed."""

from __future__ import annotations

from magnetar.broker.replication.replicator import Replicator
from magnetar.broker.replicator_names import cursor_name
from magnetar.broker.topics.topic import PersistentTopic
from magnetar.core.ids import Position
from magnetar.core.topic_name import TopicName
from magnetar.managed.info_codec import decode_ledger_info
from magnetar.managed.paths import cursor_path, ledger_path
from magnetar.metadata.tree import Outcome

from e2e.broker_simulation.metadata_witness import stored_cursor
from e2e.broker_simulation.regions.arrivals import Origin, origin_of
from e2e.broker_simulation.regions.clusters import RegionCluster
from e2e.simulation.topic_witness import StoredAcknowledgements


class StoredTopics:
    """The entries of the topics of one cluster that count: confirmed, or in a ledger that was closed behind them."""

    def __init__(self, cluster: RegionCluster) -> None:
        self._world = cluster.world
        self._origins: dict[int, list[Origin]] = {}
        """Of the entries of a ledger, as far as they were looked at."""
        self._found: dict[str, tuple[tuple[int, int], dict[Position, Origin]]] = {}
        """What was found of each topic, and at which state of the cluster."""

    @property
    def state(self) -> tuple[int, int]:
        """Another one whenever anything is stored, in the metadata or in ledgers."""
        return self._world.service.outcomes, self._world.witness.confirmed_entries

    def origins(self, topic: str) -> dict[Position, Origin]:
        """Where each entry comes from, in the order of the topic."""
        known = self._found.get(topic)
        if known is None or known[0] != self.state:
            known = self._found[topic] = self.state, self._look(topic)
        return known[1]

    def _look(self, topic: str) -> dict[Position, Origin]:
        node = self._world.service.table.load(ledger_path(TopicName.parse(topic).persistence_name))
        found: dict[Position, Origin] = {}
        for record in () if node is None else decode_ledger_info(node.value).records:
            ledger = self._world.witness.ledgers.get(record.ledger_id)
            if ledger is None:
                continue
            known = self._origins.setdefault(record.ledger_id, [])
            # What a writer has left at the end of a ledger may be no part of the topic: the list says how far it goes.
            count = record.entries if record.closed_ms else ledger.last_known + 1
            stored = ledger.payloads[:count]
            known += [origin_of(payload) for payload in stored[len(known) :]]
            found.update({(record.ledger_id, entry_id): origin for entry_id, origin in enumerate(known[: len(stored)])})
        return found

    def come_from(self, region: str, topic: str) -> set[Position]:
        """Where those stand at another cluster that have come from there."""
        return {
            origin.position
            for origin in self.origins(topic).values()
            if origin.cluster == region and origin.position is not None
        }


class CursorWitness:
    """Of one direction."""

    def __init__(self, source: RegionCluster, target: RegionCluster) -> None:
        self._source = source
        self._region = source.region
        regions = source.parameters.regions
        self._forgets = regions is not None and regions.forgets
        self._cursor = cursor_name(target.region)
        self._here = StoredTopics(source)
        self._there = StoredTopics(target)
        self._seen: set[str] = set()
        """Topics whose cursor was there."""
        self._accused: set[tuple[str, Position]] = set()
        self._paths: dict[str, str] = {}

    def metadata_applied(self, outcome: Outcome) -> None:
        """The source's metadata service has made an outcome so."""
        if len(self._paths) < len(self._source.history.topics):
            self._paths = {self._path(topic): topic for topic in self._source.history.topics}
        for path, _ in (*outcome.saves, *outcome.removals):
            if path in self._paths:
                self.check(self._paths[path])

    def lacking(self, topic: str) -> list[Position]:
        """Entries of the source that the target has not stored."""
        there = self._there.come_from(self._region, topic)
        return [
            position
            for position, origin in self._here.origins(topic).items()
            if not origin.cluster and position not in there
        ]

    def sent_on(self, topic: str) -> list[Position]:
        """Entries of the target that have come from the source, which has them from elsewhere."""
        here = self._here.origins(topic)
        come = self._there.come_from(self._region, topic)
        return [position for position, origin in here.items() if origin.cluster and position in come]

    def is_there(self, topic: str) -> bool:
        """Whether the source has a cursor for the target."""
        return self._source.world.service.table.load(self._path(topic)) is not None

    def check_all(self) -> None:
        """Look at the cursors of all topics: they may be stored in ledgers, past the metadata, or not yet."""
        for topic in self._source.history.topics:
            self.check(topic)

    def check(self, topic: str) -> None:
        """Look at one of them."""
        world = self._source.world
        if not self.is_there(topic):
            if topic in self._seen and not self._forgets:
                self._seen.discard(topic)
                world.witness.accuse(f"{self._cursor} of {topic} is deleted, and the topic is still replicated")
            return
        self._seen.add(topic)
        stored = stored_cursor(world.witness, world.service.table, topic, self._cursor)
        if stored is None:
            world.witness.accuse(f"{self._cursor} of {topic}: what its node names is not there")
            return
        found = StoredAcknowledgements(stored)
        lacking = self.lacking(topic)
        cursors = [one.cursor for one in running_replicators(self._source, topic)] if lacking else []
        for position in lacking:
            known = found.cover(position) or any(one.is_acknowledged(position) for one in cursors)
            if known and (topic, position) not in self._accused:
                self._accused.add((topic, position))
                world.witness.accuse(
                    f"{self._cursor} of {topic} has {position}, and the other cluster has not confirmed it"
                )

    def _path(self, topic: str) -> str:
        return cursor_path(TopicName.parse(topic).persistence_name, self._cursor)


def running_replicators(cluster: RegionCluster, topic: str) -> list[Replicator]:
    """Of a topic, wherever it is loaded."""
    found: list[Replicator] = []
    for broker in cluster.brokers:
        loaded = None if broker.running is None else broker.running.context.service.topics.get(topic)
        if isinstance(loaded, PersistentTopic) and loaded.replicators is not None:
            found += loaded.replicators.running.values()
    return found
