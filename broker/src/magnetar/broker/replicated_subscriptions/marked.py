"""Which subscriptions are replicated: a property of the cursor says so (Pulsar `PersistentSubscription`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Protocol

from magnetar.managed.cursors.cursor import Cursor
from magnetar.managed.cursors.reading import durable

REPLICATED_PROPERTY: Final = "pulsar.replicated.subscription"

MARKED: Final[Mapping[str, int]] = {REPLICATED_PROPERTY: 1}
"""The properties of a new cursor of a replicated subscription."""


class MarkedTopic(Protocol):
    """What is needed of a topic."""

    def replicated_changed(self, subscription: str) -> None:
        """A subscription is replicated, or is not, since now."""
        ...


def is_marked(cursor: Cursor | None) -> bool:
    """Whether a subscription's position is to be known in other clusters; None is that of one that is not stored."""
    return cursor is not None and cursor.properties.get(REPLICATED_PROPERTY) == 1


async def mark(topic: MarkedTopic, cursor: Cursor, *, replicated: bool) -> None:
    """Have a subscription replicated, or not. Durable on return. When it could not be stored, or nobody knows whether
    it was, it holds all the same and is stored with what is acknowledged next; who asks again waits for that."""
    if is_marked(cursor) is replicated:
        await durable(cursor.storage, None)
        return
    properties = {key: value for key, value in cursor.properties.items() if key != REPLICATED_PROPERTY}
    if replicated:
        properties |= MARKED
    try:
        await cursor.set_properties(properties)
    finally:
        topic.replicated_changed(cursor.name)
