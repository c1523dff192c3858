"""Sees what the metadata says of owners and cursors, at the very moment: who owns a topic, and what the next owner
would find of the acknowledgements that clients know to be durable."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from magnetar.broker.peers.addresses import decode_owner
from magnetar.core.bundle import BundleName
from magnetar.core.ids import Position
from magnetar.core.topic_name import TopicName
from magnetar.ledger.ledger_paths import ledger_id_of
from magnetar.managed.info_codec import POSITION_IN_NODE, decode_cursor_info, decode_position
from magnetar.managed.paths import ROOT, cursor_path
from magnetar.metadata.tree import NodeTable, Outcome
from magnetar.wire.bookkeeper.ledger_metadata import LedgerState
from magnetar.wire.pulsar.generated.ml_data_formats_pb2 import ManagedCursorInfo, PositionInfo

from e2e.broker_simulation.history import Acknowledged, History, Sought, SubscriptionHistory
from e2e.simulation.topic_witness import StoredAcknowledgements
from e2e.simulation.witness import Witness

OWNERS: Final = "/namespace/"


class MetadataWitness:
    """Of one run."""

    def __init__(self, witness: Witness, table: NodeTable, history: History) -> None:
        """`table`: the nodes as the service has them."""
        self._witness = witness
        self._table = table
        self._history = history
        self._owners: dict[str, tuple[BundleName, str]] = {}
        self._receipts: dict[tuple[str, str], list[Acknowledged]] = {}
        self._paths: dict[str, SubscriptionHistory] = {}
        self.is_gone: Callable[[str, Position], bool] = lambda topic, position: False
        """Whether an entry is dropped from a topic: then nobody needs to know that it was acknowledged."""

    def metadata_applied(self, outcome: Outcome, now: float) -> None:
        """The service has made an outcome so."""
        changed = [path for path, _ in (*outcome.saves, *outcome.removals)]
        if any(path.startswith(OWNERS) for path in changed):
            for path, record in outcome.saves:
                bundle = _bundle_of(path)
                if bundle is not None:
                    owner, _ = decode_owner(path, record.value)
                    self._owners[path] = bundle, owner.broker_id.partition(":")[0]
            for path, _ in outcome.removals:
                self._owners.pop(path, None)
            self._note_holders(now)
        for path in changed:
            if path.startswith(ROOT) and path in self._paths:
                self._check(self._paths[path], "its node has changed")
        if any(ledger_id_of(path) is not None for path, _ in outcome.removals):
            for subscription in self._paths.values():
                self._check(subscription, "ledgers were deleted")

    def _note_holders(self, now: float) -> None:
        for topic in self._history.topics.values():
            name = TopicName.parse(topic.name)
            holders = frozenset(
                broker
                for bundle, broker in self._owners.values()
                if str(bundle.namespace) == str(name.namespace_name) and name.bundle_hash() in bundle.range
            )
            if not topic.holders or topic.holders[-1][1] != holders:
                topic.holders.append((now, holders))

    def acknowledgement_told(self, subscription: SubscriptionHistory, asked: Acknowledged) -> None:
        """A consumer has the receipt of an acknowledgement."""
        if asked.remaining is not None:
            return
        key = subscription.topic, subscription.name
        self._receipts.setdefault(key, []).append(asked)
        self._paths[cursor_path(TopicName.parse(subscription.topic).persistence_name, subscription.name)] = subscription
        self._check(subscription, "there is a receipt")

    def _check(self, subscription: SubscriptionHistory, when: str) -> None:
        receipts = self._receipts.get((subscription.topic, subscription.name), [])
        if not receipts or any(isinstance(event, Sought) for event in subscription.events):
            return
        who = f"{subscription.name} of {subscription.topic}"
        stored = self._stored(subscription)
        if stored is None:
            self._witness.accuse(f"{who}: {when}, and the cursor's node, or what it names, is not there")
            return
        missing: list[Position] = []
        for asked in receipts:
            position = asked.positions[0]
            if self.is_gone(subscription.topic, position):
                continue
            if not (stored.mark >= position if asked.cumulative else stored.cover(position)):
                missing.append(position)
        if missing:
            self._witness.accuse(
                f"{who}: {when}, and the next owner does not find the acknowledgements of {missing[:3]}, "
                f"{len(missing)} in all"
            )

    def _stored(self, subscription: SubscriptionHistory) -> StoredAcknowledgements | None:
        """What the next owner would begin with, at least."""
        stored = stored_cursor(self._witness, self._table, subscription.topic, subscription.name)
        return None if stored is None else StoredAcknowledgements(stored)


def stored_cursor(
    witness: Witness, table: NodeTable, topic: str, subscription: str
) -> PositionInfo | ManagedCursorInfo | None:
    """What the next owner would find of a cursor, at least; None: its node, or what that names, is not there."""
    node = table.load(cursor_path(TopicName.parse(topic).persistence_name, subscription))
    if node is None:
        return None
    info = decode_cursor_info(node.value)
    if info.cursorsLedgerId == POSITION_IN_NODE:
        return info
    ledger = witness.ledgers.get(info.cursorsLedgerId)
    if ledger is None:
        return None
    last = ledger.confirmed
    if ledger.metadata.state is LedgerState.CLOSED:
        last = ledger.metadata.last_entry_id
    return decode_position(ledger.payloads[last]) if last >= 0 else info


def _bundle_of(path: str) -> BundleName | None:
    """`/namespace/<tenant>/<namespace>/<range>`."""
    parts = path.removeprefix(OWNERS).split("/")
    if not path.startswith(OWNERS) or len(parts) != 3 or not parts[2].startswith("0x"):
        return None
    return BundleName.parse("/".join(parts))
