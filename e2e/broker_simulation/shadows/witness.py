"""Sees what becomes of the ledgers of sources: who changes them, when they are dropped, and that shadows have none."""

from __future__ import annotations

from magnetar.core.ids import Position
from magnetar.core.topic_name import TopicName
from magnetar.ledger.ledger_paths import ledger_id_of
from magnetar.managed.info_codec import LedgerInfo, decode_ledger_info
from magnetar.managed.paths import ledger_path
from magnetar.metadata.tree import Outcome

from e2e.broker_simulation.clients import content_of
from e2e.broker_simulation.history import Acknowledged, Entry, History, SubscriptionHistory
from e2e.broker_simulation.shadows.rules import NOBODY, needed
from e2e.simulation.cluster import World


class SourceWitness:
    """Of one run."""

    def __init__(self, world: World, history: History, sources: dict[str, list[str]]) -> None:
        """`sources`: with their shadows."""
        self._world = world
        self._history = history
        self._sources = sources
        self._source_at = {_path(source): source for source in sources}
        self._shadow_at = {_path(shadow): shadow for shadows in sources.values() for shadow in shadows}
        self._of = {shadow: source for source, shadows in sources.items() for shadow in shadows}
        self._lists: dict[str, LedgerInfo] = {}
        """As they were stored last."""
        self.trimmed: dict[str, list[Entry]] = {source: [] for source in sources}
        """What each source had, and has dropped."""

    def metadata_applied(self, outcome: Outcome, host: str) -> None:
        """The service has made an outcome so, which a host has asked for."""
        for path, record in outcome.saves:
            if path in self._source_at:
                self._list_changed(self._source_at[path], decode_ledger_info(record.value), host)
            elif path in self._shadow_at and decode_ledger_info(record.value).records:
                self._accuse(f"{self._shadow_at[path]}, a shadow, has ledgers of its own by the doing of {host}")
            elif (ledger_id := ledger_id_of(path)) is not None:
                self._ledger_changed(ledger_id, host, "changes")
        for path, _ in outcome.removals:
            if path in self._source_at:
                self._accuse(f"{host} deletes {self._source_at[path]}, and nobody has asked for it")
            elif (ledger_id := ledger_id_of(path)) is not None:
                self._ledger_removed(ledger_id, host)

    def is_gone(self, topic: str, position: Position) -> bool:
        """Whether a source, or that of a shadow, has dropped an entry."""
        source = topic if topic in self._sources else self._of[topic]
        return any(entry.position == position for entry in self.trimmed[source])

    def _accuse(self, what: str) -> None:
        self._world.witness.accuse(what)

    def _list_changed(self, source: str, info: LedgerInfo, host: str) -> None:
        if not self._was_owner(source, host):
            self._accuse(f"{host}, which never owned {source}, changes its list of ledgers")
        before = self._lists.get(source)
        self._lists[source] = info
        listed = {record.ledger_id for record in info.records}
        for record in () if before is None else before.records:
            if record.ledger_id not in listed:
                self._dropped(source, record.ledger_id, record.entries)

    def _dropped(self, source: str, ledger_id: int, count: int) -> None:
        ledger = self._world.witness.ledgers.get(ledger_id)
        payloads = [] if ledger is None else ledger.payloads[:count]
        if len(payloads) < count:
            self._accuse(f"ledger {ledger_id} of {source} has {count} entries by its list, and had {len(payloads)}")
        entries = [Entry((ledger_id, entry_id), *content_of(payload)) for entry_id, payload in enumerate(payloads)]
        if not entries:
            return
        for subscription in self._history.of_topic(source):
            if wanted := needed(subscription, entries):
                self._accuse(f"{source} drops {wanted[:3]}, which {subscription.name} has not acknowledged")
        self.trimmed[source] += entries
        for topic in (source, *self._sources[source]):
            for subscription in self._history.of_topic(topic):
                self._nobody_gets(subscription, entries)

    def _nobody_gets(self, subscription: SubscriptionHistory, entries: list[Entry]) -> None:
        """What the source drops, its shadows drop: as if it was acknowledged."""
        positions = tuple(entry.position for entry in entries)
        subscription.events.append(Acknowledged(NOBODY, self._world.loop.time(), positions))

    def _ledger_changed(self, ledger_id: int, host: str, does: str) -> None:
        for source, info in self._lists.items():
            listed = any(record.ledger_id == ledger_id for record in info.records)
            if listed and not self._was_owner(source, host):
                self._accuse(f"{host}, which never owned {source}, {does} its ledger {ledger_id}")

    def _ledger_removed(self, ledger_id: int, host: str) -> None:
        for source, info in self._lists.items():
            if any(record.ledger_id == ledger_id for record in info.records):
                self._accuse(f"{host} deletes ledger {ledger_id}, which {source} lists, and so do its shadows")

    def _was_owner(self, source: str, host: str) -> bool:
        return any(host in holders for _, holders in self._history.topics[source].holders)


def _path(topic: str) -> str:
    return ledger_path(TopicName.parse(topic).persistence_name)
