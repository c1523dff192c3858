"""Sees which entries of a topic are trimmed, and that nothing is trimmed too early.

A trim is there when the topic's list of ledgers names a ledger no more. What it held is kept here, so that the log of a
topic is known from its first entry on.
"""

from __future__ import annotations

from typing import Final

from magnetar.broker.topics import deduplication
from magnetar.core.ids import Position
from magnetar.core.topic_name import TopicName
from magnetar.managed.compaction import COMPACTION_CURSOR
from magnetar.managed.info_codec import decode_ledger_info
from magnetar.managed.paths import cursor_path, ledger_path
from magnetar.metadata.tree import NodeTable, Outcome
from magnetar.wire.bookkeeper.ledger_metadata import LedgerState

from e2e.broker_simulation.clients import content_of
from e2e.broker_simulation.history import Entry, History, TopicHistory, Trimmed
from e2e.broker_simulation.metadata_witness import stored_cursor
from e2e.simulation.topic_witness import StoredAcknowledgements
from e2e.simulation.witness import Witness

KNOWN_SECONDS: Final = 1.0
"""A trim that is under way when a cursor is made knows nothing of it; it lasts no longer."""


class TrimsWitness:
    """Of one run."""

    def __init__(self, witness: Witness, table: NodeTable, history: History) -> None:
        """`table`: the nodes as the service has them."""
        self._witness = witness
        self._table = table
        self._history = history
        self._lists: dict[str, list[int]] = {}
        """The ledgers of each topic, by its node."""
        self._made_at: dict[str, float] = {}
        """Cursors, by their nodes."""

    def metadata_applied(self, outcome: Outcome, now: float) -> None:
        """The service has made an outcome so. To be told before the storage's witness forgets deleted ledgers."""
        topics = {ledger_path(_ledger_name(name)): topic for name, topic in self._history.topics.items()}
        for path, record in outcome.saves:
            self._made_at.setdefault(path, now)
            topic = topics.get(path)
            if topic is None:
                continue
            ledger_ids = [each.ledger_id for each in decode_ledger_info(record.value).records]
            for ledger_id in self._lists.get(path, ()):
                if ledger_id not in ledger_ids:
                    self._trimmed(topic, ledger_id, now)
            self._lists[path] = ledger_ids

    def _trimmed(self, topic: TopicHistory, ledger_id: int, now: float) -> None:
        ledger = self._witness.ledgers[ledger_id]
        closed = ledger.metadata.state is LedgerState.CLOSED
        last = ledger.metadata.last_entry_id if closed else ledger.confirmed
        if last < 0:
            return
        compacted = self._known(topic, COMPACTION_CURSOR, now)
        if compacted:
            self._check_covered(topic, COMPACTION_CURSOR, (ledger_id, last))
        if self._known(topic, deduplication.CURSOR_NAME, now):
            self._check_covered(topic, deduplication.CURSOR_NAME, (ledger_id, last))
        subscriptions = frozenset(
            subscription.name
            for subscription in self._history.of_topic(topic.name)
            if self._known(topic, subscription.name, now)
        )
        for entry_id, payload in enumerate(ledger.payloads[: last + 1]):
            entry = Entry((ledger_id, entry_id), *content_of(payload))
            topic.trimmed[entry.position] = Trimmed(entry, subscriptions, compacted=compacted)

    def _known(self, topic: TopicHistory, cursor: str, now: float) -> bool:
        """Whether there was such a cursor long enough."""
        made_at = self._made_at.get(cursor_path(_ledger_name(topic.name), cursor), now)
        return made_at < now - KNOWN_SECONDS

    def _check_covered(self, topic: TopicHistory, cursor: str, last: Position) -> None:
        stored = stored_cursor(self._witness, self._table, topic.name, cursor)
        if stored is None or StoredAcknowledgements(stored).mark < last:
            self._witness.accuse(f"{topic.name}: {last} is trimmed, and what is stored of {cursor} does not go so far")


def _ledger_name(topic: str) -> str:
    return TopicName.parse(topic).persistence_name
