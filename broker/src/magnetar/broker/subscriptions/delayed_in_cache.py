"""Delayed entries of a topic in the cache of entries: once all subscriptions have put them aside, nobody reads them for
long. A million of them would push out what other topics are about to read.

Those that are read no more are let go of in whole chunks of the cache, in which nothing is delivered at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from magnetar.broker.subscriptions.delayed_index import TopicDelays
from magnetar.broker.subscriptions.subscription import Subscription
from magnetar.core.ids import Position
from magnetar.managed.entry_cache import EntryCache
from magnetar.managed.managed_ledger import ManagedLedger

KEPT_MS: Final = 10_000
"""What is due before stays in the cache: it is read from there again soon. At a hundred thousand delayed messages a
second it is a million."""


def delays_of(ledger: ManagedLedger, subscriptions: Mapping[str, Subscription]) -> TopicDelays:
    """The delayed entries of a topic with these subscriptions, of which none is there yet."""
    return TopicDelays(ledger.ledgers.note_due, DelayedInCache(ledger.cache, subscriptions).let_go)


class DelayedInCache:
    """What of one topic's delayed entries has left the cache."""

    __slots__ = ("_cache", "_next", "_subscriptions")

    def __init__(self, cache: EntryCache, subscriptions: Mapping[str, Subscription]) -> None:
        self._cache = cache
        self._subscriptions = subscriptions
        self._next: Position = (-1, 0)
        """The first entry that was not looked at."""

    def let_go(self, now_ms: int) -> None:
        """Let go of what all subscriptions with consumers have read. It asks each of them."""
        readers = [each.cursor for each in self._subscriptions.values() if not each.is_idle]
        if not readers:
            return
        ledger_id, end_entry_id = min([cursor.read_position for cursor in readers])
        first_entry_id = self._next[1] if self._next[0] == ledger_id else 0
        self._next = ledger_id, self._cache.let_go_of_delayed(ledger_id, first_entry_id, end_entry_id, now_ms + KEPT_MS)
