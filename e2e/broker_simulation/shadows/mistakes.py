"""Mistakes of shadow topics and of those who tell them: what is shown, what is told, whose ledgers are whose."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final
from weakref import WeakKeyDictionary

from magnetar.broker.policies.model import EffectivePolicies
from magnetar.broker.read_only.topic_owner import OwnerParts, RemoteTopicOwner
from magnetar.broker.replication.shadow_replicators import ShadowReplicators
from magnetar.broker.session import publish
from magnetar.broker.topics.following.shadow_topic import ShadowTopic
from magnetar.broker.topics.producer import Producer, PublishBatch
from magnetar.core.ids import Position
from magnetar.core.topic_name import TopicName
from magnetar.managed.following.follower import ManagedLedgerFollower
from magnetar.managed.following.shadow_ledger import ShadowLedger
from magnetar.wire.pulsar.command import Send

from e2e.broker_simulation.read_only.mistakes import READ_ONLY_MISTAKES
from e2e.simulation.planting import Mistake, Patch, original


def nobody_is_told() -> list[Patch]:
    """What the source tells of its entries changes nothing: the shadow looks for them."""

    def told(self: ShadowLedger, position: Position) -> None:
        """Nothing."""

    return [(ShadowLedger, "told", told)]


def late_shadows_are_not_told() -> list[Patch]:
    """A topic tells the shadows that it has when it is loaded, and no others."""
    right = original(ShadowReplicators, "_wanted")
    told: WeakKeyDictionary[ShadowReplicators, set[str]] = WeakKeyDictionary()

    def wanted(self: ShadowReplicators, policies: EffectivePolicies) -> dict[str, TopicName]:
        found: dict[str, TopicName] = right(self, policies)
        left = told.setdefault(self, set(found))
        left &= set(found)
        return {text: shadow for text, shadow in found.items() if text in left}

    return [(ShadowReplicators, "_wanted", wanted)]


def anybody_may_publish() -> list[Patch]:
    """A shadow takes what any producer tells it."""

    def refusal(send: Send, producer: Producer) -> str:
        return "" if producer.of_shadow else publish.FOR_SHADOWS_ONLY

    return [(publish, "_refusal_by_position", refusal)]


def receipts_are_not_given() -> list[Patch]:
    """The source never hears that its shadow knows."""

    def told(self: Producer, batch: PublishBatch, positions: Sequence[Position]) -> None:
        """Nothing."""

    return [(Producer, "told", told)]


def source_is_recovered() -> list[Patch]:
    """Who loads a shadow recovers the source's last ledger, as its owner would."""
    right = original(ManagedLedgerFollower, "load")

    async def load(self: ManagedLedgerFollower) -> None:
        await right(self)
        if self._tail.current is not None:
            password = self._appends.settings.password
            reader = await self._shared.ledgers.open(self._tail.current, password=password, recover=True)
            await reader.close()

    return [(ManagedLedgerFollower, "load", load)]


def ledgers_go_with_the_shadow() -> list[Patch]:
    """Who deletes a shadow deletes the ledgers that it shows."""
    right = original(ShadowLedger, "delete")

    async def delete(self: ShadowLedger) -> None:
        shown = list(self.ledgers.ids)
        await right(self)
        for ledger_id in shown:
            await self._shared.delete_ledger(ledger_id)

    return [(ShadowLedger, "delete", delete)]


def ledgers_are_listed() -> list[Patch]:
    """A shadow lists its source's ledgers as its own."""

    async def write_node(self: ShadowLedger, properties: Mapping[str, str]) -> None:
        await self._node.write(self.ledgers.records(), None, properties)

    return [(ShadowLedger, "_write_node", write_node)]


def positions_are_not_reached() -> list[Patch]:
    """A cursor that stands behind what bookies vouch for is taken back to that."""

    async def reach(self: ShadowLedger, position: Position) -> None:
        """Nothing."""

    return [(ShadowLedger, "_reach", reach)]


def one_asker_for_all() -> list[Patch]:
    """All shadows of a broker ask the owner of their source by one subscription."""
    right = original(RemoteTopicOwner, "__init__")

    def init(self: RemoteTopicOwner, topic: TopicName, parts: OwnerParts, *others: Any) -> None:
        right(self, topic, replace(parts, asks_for=""), *others)

    return [(RemoteTopicOwner, "__init__", init)]


def the_next_entry_is_told() -> list[Patch]:
    """A shadow believes that the entry behind the one that it is told of is confirmed, too."""
    right = original(ShadowTopic, "publish")

    def publish_one_more(self: ShadowTopic, batch: PublishBatch) -> None:
        right(self, batch)
        for ledger_id, entry_id in batch.positions or ():
            self.shadow.told((ledger_id, entry_id + 1))

    return [(ShadowTopic, "publish", publish_one_more)]


def failed_deletions_are_followed() -> list[Patch]:
    """A shadow that could not be deleted is followed on, by an object that nobody has any more."""
    delete_right = original(ShadowLedger, "delete")
    abandon_right, close_right = original(ShadowLedger, "abandon"), original(ShadowLedger, "close")
    begun: set[ShadowLedger] = set()

    async def delete(self: ShadowLedger) -> None:
        begun.add(self)
        await delete_right(self)

    async def abandon(self: ShadowLedger) -> None:
        if self not in begun:
            await abandon_right(self)

    async def close(self: ShadowLedger) -> None:
        if self not in begun:
            await close_right(self)

    return [(ShadowLedger, "delete", delete), (ShadowLedger, "abandon", abandon), (ShadowLedger, "close", close)]


def _of_followers(*names: str) -> dict[str, Mistake]:
    """What brokers that only read have in common with shadows."""
    return {name: READ_ONLY_MISTAKES[name] for name in names}


MISTAKES: Final[dict[str, Mistake]] = {
    **_of_followers("end-is-not-asked-for", "roll-overs-are-not-followed", "transactions-are-not-looked-at"),
    "anybody-may-publish": anybody_may_publish,
    "failed-deletions-are-followed": failed_deletions_are_followed,
    "late-shadows-are-not-told": late_shadows_are_not_told,
    "ledgers-are-listed": ledgers_are_listed,
    "ledgers-go-with-the-shadow": ledgers_go_with_the_shadow,
    "nobody-is-told": nobody_is_told,
    "one-asker-for-all": one_asker_for_all,
    "positions-are-not-reached": positions_are_not_reached,
    "receipts-are-not-given": receipts_are_not_given,
    "source-is-recovered": source_is_recovered,
    "the-next-entry-is-told": the_next_entry_is_told,
}
