"""Mistakes in brokers that only read: what they show, which subscriptions they hold, and whose positions they keep."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final

from magnetar.broker.read_only import kept_position
from magnetar.broker.read_only.bindings import Bindings
from magnetar.broker.read_only.bundles import ReadOnlyBundles
from magnetar.broker.read_only.followed_topic import FollowedTopic
from magnetar.broker.read_only.kept_position import KeptPosition
from magnetar.broker.read_only.paths import binding_path
from magnetar.broker.read_only.position_difference import Kept
from magnetar.broker.subscriptions.subscription import Subscription
from magnetar.broker.topics.following.following_topic import FollowingTopic
from magnetar.broker.transactions.buffers.followed_transactions import FollowedTransactions
from magnetar.client.connection import BrokerConnection
from magnetar.client.hold import SubscriptionHold
from magnetar.core.errors import MagnetarError
from magnetar.core.ids import EARLIEST, Position
from magnetar.core.topic_name import TopicName
from magnetar.managed.ack_state import AckState
from magnetar.managed.entry import Entry
from magnetar.managed.following.api import KeptCursor
from magnetar.managed.following.followed_ledger import FollowedLedger
from magnetar.managed.following.follower import ManagedLedgerFollower
from magnetar.managed.following.tail import LedgerTail
from magnetar.managed.following.tail_follower import TailFollower
from magnetar.metadata.store import NodeNotFound
from magnetar.wire.pulsar.enums import SubscriptionType
from magnetar.wire.pulsar.generated.pulsar_api_pb2 import CommandGetLastMessageIdResponse

from e2e.simulation.planting import Mistake, Patch, original

AHEAD_ENTRIES: Final = 1_000


def shown_before_it_is_vouched_for() -> list[Patch]:
    """An entry is shown as soon as a bookie has it."""
    right = original(LedgerTail, "saw")

    def saw(self: LedgerTail, payloads: Sequence[bytes], length_bytes: int, now_seconds: float) -> None:
        right(self, payloads, length_bytes, now_seconds)
        self.confirm(self.next_entry_id - 1)

    return [(LedgerTail, "saw", saw)]


def hold_is_shared() -> list[Patch]:
    """The owner lets others consume beside the broker that holds the subscription."""
    right = original(SubscriptionHold, "__init__")

    def init(self: SubscriptionHold, parts: Any, topic: TopicName, held: Any) -> None:
        right(self, parts, topic, replace(held, options=replace(held.options, kind=SubscriptionType.SHARED)))

    return [(SubscriptionHold, "__init__", init)]


def nothing_is_stored_at_the_close() -> list[Patch]:
    """The last consumer leaves, and what it has acknowledged since the last round is forgotten."""
    return [(KeptPosition, "close", KeptPosition.abandon)]


def holes_are_not_taken_over() -> list[Patch]:
    """Of a subscription that is taken only the mark is known."""
    right = original(FollowedLedger, "_acks_of")

    def acks_of(self: FollowedLedger, kept: KeptCursor) -> AckState:
        assert isinstance(kept, KeptPosition)
        kept.acknowledged = ()
        acks: AckState = right(self, kept)
        return acks

    return [(FollowedLedger, "_acks_of", acks_of)]


def holes_are_not_told() -> list[Patch]:
    """The owner is told of the mark only."""
    right = original(Kept, "of")

    def of(acks: AckState) -> Kept:
        found: Kept = right(acks)
        return Kept(found.mark)

    return [(Kept, "of", staticmethod(of))]


def receipts_do_not_wait_for_the_owner() -> list[Patch]:
    """A consumer has its receipt before the owner has heard of the acknowledgement."""
    right = original(KeptPosition, "persist")

    def persist(self: KeptPosition, done: Callable[[MagnetarError | None], None]) -> None:
        right(self, lambda error: None)
        done(None)

    return [(KeptPosition, "persist", persist)]


def released_before_it_is_stored() -> list[Patch]:
    """Others may serve a subscription while its position is still being stored."""

    async def let_go(self: FollowedTopic, subscription: Subscription) -> None:
        await self._bindings.release(self.name, subscription.name)
        subscription.close()
        await subscription.cursor.close()

    return [(FollowedTopic, "_let_subscription_go", let_go)]


def steps_back_are_not_told() -> list[Patch]:
    """After a seek the owner keeps what was acknowledged before it."""
    return [(kept_position, "takes_back", lambda told, now: False)]


def roll_overs_are_not_followed() -> list[Patch]:
    """Who looks at the end of a ledger does not go on to the next one."""
    right = original(TailFollower, "follow")

    async def follow(self: TailFollower, ledger_id: int | None) -> None:
        await right(self, ledger_id if self.current is None else self.current)

    return [(TailFollower, "follow", follow)]


def transactions_are_not_looked_at() -> list[Patch]:
    """What is stored is shown, whatever becomes of its transaction."""

    async def nothing(self: FollowedTransactions) -> None:
        """Nothing."""

    return [
        (FollowedTransactions, "recover", nothing),
        (FollowedTransactions, "look_to_the_end", nothing),
        (FollowedTransactions, "max_read_position", property(lambda self: self._ledger.last_confirmed)),
    ]


def aborted_is_committed() -> list[Patch]:
    """The marker of an abort is taken for that of a commit."""
    right = original(FollowedTransactions, "_look_at")

    def look_at(self: FollowedTransactions, entries: list[Entry]) -> None:
        before = set(self.table.aborted)
        right(self, entries)
        for transaction in set(self.table.aborted) - before:
            del self.table.aborted[transaction]
            self.table.commit(transaction)

    return [(FollowedTransactions, "_look_at", look_at)]


def lost_sessions_change_nothing() -> list[Patch]:
    """A broker that has lost its session with the metadata store goes on serving."""
    return [(ReadOnlyBundles, "_take_session_event", lambda self, event: None)]


def lost_holds_change_nothing() -> list[Patch]:
    """Whoever else consumes a subscription by now, its consumers here stay."""
    return [(FollowedTopic, "subscription_lost", lambda self, name, error: None)]


def bindings_stay() -> list[Patch]:
    """Who lets a subscription go stays bound to it."""

    async def release(self: Bindings, topic: TopicName, subscription: str) -> None:
        """Nothing."""

    return [(Bindings, "release", release)]


def bindings_are_taken_by_force() -> list[Patch]:
    """Who wants a subscription takes the binding from another broker."""
    right = original(Bindings, "take")

    async def take(self: Bindings, topic: TopicName, subscription: str) -> None:
        with contextlib.suppress(NodeNotFound):
            await self._store.delete(binding_path(topic, subscription))
        await right(self, topic, subscription)

    return [(Bindings, "take", take)]


def end_is_not_asked_for() -> list[Patch]:
    """A client that asks for the last message hears of the last one that is shown here."""

    async def learn_end(self: FollowingTopic, wanted: Position = EARLIEST) -> bool:
        return True

    return [(FollowingTopic, "learn_end", learn_end)]


def owner_is_not_asked() -> list[Patch]:
    """The last entry of a burst waits for the next one, and what the owner tells unasked is not heard."""

    async def ask_owner(self: TailFollower, tail: LedgerTail) -> None:
        tail.answered(-1, self._shared.loop.time())

    return [(TailFollower, "_ask_owner", ask_owner), (ManagedLedgerFollower, "_heard", lambda self, position: None)]


def notices_are_ahead() -> list[Patch]:
    """The owner tells of entries that it has sent and not confirmed."""
    right = original(BrokerConnection, "_take_end")

    def take_end(self: BrokerConnection, consumer_id: int, body: Any) -> None:
        if isinstance(body, CommandGetLastMessageIdResponse) and body.last_message_id.entryId <= AHEAD_ENTRIES:
            body.last_message_id.entryId += AHEAD_ENTRIES
        right(self, consumer_id, body)

    return [(BrokerConnection, "_take_end", take_end)]


READ_ONLY_MISTAKES: Final[dict[str, Mistake]] = {
    "aborted-is-committed": aborted_is_committed,
    "bindings-are-taken-by-force": bindings_are_taken_by_force,
    "bindings-stay": bindings_stay,
    "end-is-not-asked-for": end_is_not_asked_for,
    "hold-is-shared": hold_is_shared,
    "holes-are-not-taken-over": holes_are_not_taken_over,
    "holes-are-not-told": holes_are_not_told,
    "lost-holds-change-nothing": lost_holds_change_nothing,
    "lost-sessions-change-nothing": lost_sessions_change_nothing,
    "notices-are-ahead": notices_are_ahead,
    "nothing-is-stored-at-the-close": nothing_is_stored_at_the_close,
    "owner-is-not-asked": owner_is_not_asked,
    "receipts-do-not-wait-for-the-owner": receipts_do_not_wait_for_the_owner,
    "released-before-it-is-stored": released_before_it_is_stored,
    "roll-overs-are-not-followed": roll_overs_are_not_followed,
    "shown-before-it-is-vouched-for": shown_before_it_is_vouched_for,
    "steps-back-are-not-told": steps_back_are_not_told,
    "transactions-are-not-looked-at": transactions_are_not_looked_at,
}
