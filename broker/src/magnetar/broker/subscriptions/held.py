"""What transactions do to deliveries: entries that are held are with no consumer, and are sent again or acknowledged
when the transaction is over."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from magnetar.core.errors import MagnetarError
from magnetar.wire.pulsar.errors import BadMetadata
from magnetar.wire.pulsar.metadata import sticky_key

if TYPE_CHECKING:
    from magnetar.broker.dispatch.consumer import Consumer
    from magnetar.broker.subscriptions.subscription import Subscription
    from magnetar.core.ids import Position

logger: Final = logging.getLogger(__name__)

SENT_AGAIN_AT_ONCE: Final = 1_000
"""Entries of an aborted transaction in one turn of the event loop: some milliseconds."""


def hold_back(subscription: Subscription, consumer: Consumer, bits: Mapping[Position, int]) -> None:
    """A consumer's transaction has acknowledged these messages (-1: whole entries): nobody has them to acknowledge any
    more."""
    dispatcher, pump = subscription.delivering
    consumer.messages_acknowledged += len(bits)
    if dispatcher is None or pump is None or not dispatcher.type.acknowledges_individually:
        return
    acknowledger = pump.acknowledger
    freed = False
    for position, held in bits.items():
        holder = consumer if position in consumer.pending else acknowledger.holder(position, dispatcher)
        if holder is None:
            # It may wait to be sent again. Of a batch that is for the messages that are left: those held are left out.
            if held < 0:
                freed |= dispatcher.acknowledged(None, position, 0)
            continue
        key_hash = holder.pending.hash_of(position)
        if key_hash:
            acknowledger.held_slots[position] = key_hash
        had = holder.pending.messages[position]
        left = 0 if held < 0 else had - held.bit_count()
        count = holder.pending.shrink(position, left) if left > 0 else acknowledger.give_up(holder, position)
        acknowledger.unacked_messages -= count
        freed |= holder.released(count)
        if left <= 0:
            freed |= dispatcher.acknowledged(holder, position, key_hash)
    if pump.unblock() or freed:
        pump.wake()


def acknowledge_held(
    subscription: Subscription, whole: Sequence[Position], parts: Sequence[tuple[Position, list[int], int]]
) -> None:
    """Their transaction was committed: acknowledge entries, and parts of batches (position, what remains, size)."""
    cursor = subscription.cursor
    cursor.acknowledge(whole)
    for position, remaining, batch_size in parts:
        cursor.acknowledge_batch_indexes(position, remaining, batch_size)
    _, pump = subscription.delivering
    if pump is not None and pump.acknowledger.held_slots:
        for position in (*whole, *(part[0] for part in parts)):
            pump.acknowledger.held_slots.pop(position, None)


def take_back(subscription: Subscription, positions: Sequence[Position]) -> list[Position]:
    """Their transaction is aborted: whoever has the rest of a batch has it no more, as all that is left of the batch is
    sent again. Those that somebody had."""
    dispatcher, pump = subscription.delivering
    if dispatcher is None or pump is None or not dispatcher.type.acknowledges_individually:
        return []
    found: list[Position] = []
    held_by: dict[Consumer, list[Position]] = {}
    for position in positions:
        holder = pump.acknowledger.holder(position, dispatcher)
        if holder is not None:
            held_by.setdefault(holder, []).append(position)
    for consumer, held in held_by.items():
        taken, messages = pump.acknowledger.take_back(consumer, held)
        consumer.messages_redelivered += messages
        for position, key_hash in taken:
            if key_hash:
                pump.acknowledger.held_slots[position] = key_hash
            dispatcher.acknowledged(consumer, position, key_hash)
            found.append(position)
    return found


async def send_again(subscription: Subscription, positions: Collection[Position]) -> None:
    """Their transaction was aborted, and they are shown again: consumers get these entries again. With one receiver
    that is all that it has not acknowledged, as always."""
    dispatcher, _ = subscription.delivering
    if dispatcher is None or not positions:
        return
    if not dispatcher.type.acknowledges_individually:
        if dispatcher.active is not None:
            subscription.redeliver(dispatcher.active, None)
        return
    ordered = sorted(positions)
    for first in range(0, len(ordered), SENT_AGAIN_AT_ONCE):
        some = ordered[first : first + SENT_AGAIN_AT_ONCE]
        subscription.cursor.redelivered(some)
        try:
            keys = await _keys(subscription, _missed(subscription, some))
        except (MagnetarError, BadMetadata) as error:
            # Those who subscribe again get all that is not acknowledged.
            logger.warning("%s / %s begins again: %s", subscription.topic_name, subscription.name, error)
            subscription.disconnect_all()
            return
        _redeliver(subscription, some, keys)
        await asyncio.sleep(0)


def _missed(subscription: Subscription, positions: Sequence[Position]) -> list[Position]:
    """Of entries that are shown again, those that nothing else brings: reading has passed them, nobody has them, and
    they wait for nothing. What is being read is looked at when the read is over, and is shown by then."""
    dispatcher, pump = subscription.delivering
    if dispatcher is None or pump is None:
        return []
    reader, holder = pump.reader, pump.acknowledger.holder
    reached = reader.reached
    comes = {*reader.replays, *(pump.damaged or ())}
    return [
        position
        for position in positions
        if position < reached
        and position not in comes
        and position not in pump.delayed
        and holder(position, dispatcher) is None
    ]


async def _keys(subscription: Subscription, positions: Sequence[Position]) -> dict[Position, bytes]:
    """Key_Shared: the keys of those entries whose slots are not known; without those that are gone, or acknowledged."""
    _, pump = subscription.delivering
    if pump is None or pump.slots is None:
        return {}
    unknown = [position for position in positions if position not in pump.acknowledger.held_slots]
    if not unknown:
        return {}
    entries = await subscription.cursor.read_positions(unknown)
    return {entry.position: sticky_key(entry.metadata()) for entry in entries}


def _redeliver(subscription: Subscription, positions: Sequence[Position], keys: Mapping[Position, bytes]) -> None:
    dispatcher, pump = subscription.delivering
    if dispatcher is None or pump is None:
        return
    slots, held_slots = pump.slots, pump.acknowledger.held_slots
    items: list[tuple[Position, int]] = []
    # Looked at once more: they may have been sent while keys were read, and consumers of another mode may have come.
    for position in _missed(subscription, positions):
        if slots is None:
            items.append((position, 0))
        elif position in held_slots:
            items.append((position, held_slots[position]))
        elif position in keys:
            items.append((position, slots.slot(keys[position])))
    for position in positions:
        held_slots.pop(position, None)
    dispatcher.redeliver(items)
    pump.unblock()
    pump.wake()
