"""Which cursor a subscription reads by: that of the topic, or one that begins with what compaction has left."""

from __future__ import annotations

import logging
from typing import Final, Protocol

from magnetar.broker.compaction.compacted_cursor import CompactedCursor
from magnetar.broker.compaction.compacted_topic import compaction_of
from magnetar.broker.dispatch.consumer import Consumer
from magnetar.broker.subscriptions.cursor import SubscriptionCursor
from magnetar.broker.subscriptions.reset import wait_until_read
from magnetar.broker.subscriptions.subscription import Subscription
from magnetar.core.errors import MagnetarError
from magnetar.core.ids import EARLIEST, Position
from magnetar.core.topic_name import TopicName
from magnetar.ledger.api import LedgerNotFound
from magnetar.managed.compaction import COMPACTION_CURSOR
from magnetar.managed.cursors.cursor import Cursor
from magnetar.managed.managed_ledger import ManagedLedger
from magnetar.wire.pulsar.errors import PulsarError, ServerError

logger: Final = logging.getLogger(__name__)


class HeldTopic(Protocol):
    """A topic that is to keep what no compaction went through."""

    name: TopicName

    async def create_subscription(self, name: str, start: Position, /) -> object: ...


async def open_compaction_cursor_quietly(topic: HeldTopic) -> None:
    """For a topic that is compacted from now on; if that fails, the first compaction does it."""
    try:
        await topic.create_subscription(COMPACTION_CURSOR, EARLIEST)
    except MagnetarError as error:
        logger.warning("%s has no subscription %s yet: %s", topic.name, COMPACTION_CURSOR, error)


async def check_compacted(ledger: ManagedLedger) -> None:
    """For who wants a compacted view. `PulsarError` when the ledger that it begins with is lost: its client would wait
    for ever. What may pass is no error, as reading is tried again."""
    while (compaction := compaction_of(ledger)) is not None:
        try:
            reader = await ledger.open_other(compaction.ledger_id)
        except LedgerNotFound:
            if compaction_of(ledger) != compaction:
                continue  # A later one has replaced it.
            raise PulsarError(
                ServerError.PERSISTENCE_ERROR,
                f"The compacted ledger {compaction.ledger_id} is lost: delete the subscription {COMPACTION_CURSOR}, "
                "and compact the topic again",
            ) from None
        except MagnetarError:
            return
        await reader.close()
        return


def reader_cursor(ledger: ManagedLedger, consumer: Consumer, name: str, start: Position) -> SubscriptionCursor:
    """The cursor of a reader, which is not stored."""
    cursor = ledger.new_non_durable_cursor(name, start)
    return CompactedCursor(ledger, cursor, start) if consumer.identity.read_compacted else cursor


async def follow_view(
    subscription: Subscription, ledger: ManagedLedger, consumer: Consumer, start: Position | None
) -> None:
    """Have a durable subscription read as its first consumer wants it; those that join it later get the same.

    `start` is where a new one begins; one at the earliest has what is left of trimmed ledgers, too. Pulsar asks the
    consumer that is active, whose wish is mostly that of all."""
    wanted = consumer.identity.read_compacted
    if not _may_change(subscription, wanted):
        return
    await wait_until_read(subscription)
    if not _may_change(subscription, wanted):
        return  # Somebody else was faster.
    cursor = subscription.cursor
    if isinstance(cursor, CompactedCursor):
        subscription.read_by(cursor.inner)
        await cursor.let_go()
    else:
        assert isinstance(cursor, Cursor)
        begins = EARLIEST if start == EARLIEST else ledger.ledgers.next_position(cursor.mark_delete)
        subscription.read_by(CompactedCursor(ledger, cursor, begins))


def _may_change(subscription: Subscription, wanted: bool) -> bool:
    return subscription.is_idle and isinstance(subscription.cursor, CompactedCursor) is not wanted
