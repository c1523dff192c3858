"""Entries that are acknowledged one by one: told to other clusters, and acknowledged there.

A subscription with a hole tells of no further snapshot before the hole is closed. So it tells of each entry behind the
last snapshot that it has acknowledged. Apache's brokers know nothing of it: between theirs and ours these come again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from magnetar.broker.replicated_subscriptions.entry_origins import NamedEntries, origin_of, stretches_of
from magnetar.broker.replicated_subscriptions.followed_subscription import FollowedSubscription
from magnetar.broker.slices import TimeSlice
from magnetar.core.clock import CallLater, TimerHandle
from magnetar.core.errors import MagnetarError
from magnetar.core.limits import MIB
from magnetar.managed.cursors.reading import durable
from magnetar.wire.pulsar.subscription_markers import Stretch

if TYPE_CHECKING:
    from magnetar.core.ids import Position
    from magnetar.managed.ledger_list import LedgerList
    from magnetar.managed.managed_ledger import ManagedLedger

logger: Final = logging.getLogger(__name__)

ENTRIES_MAX: Final = 2_000
"""Entries behind the last snapshot that are looked at, some 20 ms of work in turns: what is acknowledged beyond comes
again in another cluster."""

LOOK_BYTES_MAX: Final = 32 * MIB
"""What these entries may weigh: of large messages fewer are looked at, as each look reads them, at worst from bookies.
Single acknowledgements behind them come again in another cluster."""

READ_ENTRIES_MAX: Final = 100
READ_BYTES_MAX: Final = MIB

SUBSCRIPTIONS_MAX: Final = 1_000
"""Subscriptions of one topic that wait for what other clusters have told. What more tell is dropped; with their next
acknowledgement they tell all of it again."""

Acknowledged: TypeAlias = Mapping[str, Sequence[Stretch]]


def _known(acknowledged: Acknowledged) -> int:
    return hash(tuple([(cluster, tuple(stretches)) for cluster, stretches in sorted(acknowledged.items())]))


def some_before(ledgers: LedgerList, mark_delete: Position) -> Position:
    """Where to begin to look while nobody knows which snapshot was told last: half of what is looked at may stand
    before the mark."""
    first = ledgers.previous_position(ledgers.first_position())
    index = ledgers.entries_between(first, mark_delete) - ENTRIES_MAX // 2
    return first if index <= 0 else ledgers.entry_at(index)


class SingleAcknowledgements:
    """Of the replicated subscriptions of one topic."""

    __slots__ = (
        "_call_later",
        "_changed",
        "_interval_seconds",
        "_ledger",
        "_local_cluster",
        "_named",
        "_one_at_a_time",
        "_spawn",
        "_tell",
        "_telling",
        "_timer",
        "_told",
    )

    def __init__(
        self,
        ledger: ManagedLedger,
        local_cluster: str,
        interval_seconds: float,
        call_later: CallLater,
        spawn: Callable[[Coroutine[Any, Any, None]], None],
        one_at_a_time: asyncio.Semaphore,
        tell: Callable[[str, Acknowledged], None],
    ) -> None:
        """`tell` writes the marker about a subscription of this name; `one_at_a_time` is the broker's, so that many
        topics look at their entries one after the other."""
        self._ledger = ledger
        self._local_cluster = local_cluster
        self._interval_seconds = interval_seconds
        self._call_later = call_later
        self._spawn = spawn
        self._one_at_a_time = one_at_a_time
        self._tell: Callable[[str, Acknowledged], None] | None = tell
        """None: the topic is going."""
        self._changed: dict[str, FollowedSubscription] = {}
        self._telling = False
        """What is told is looked for: looks may take longer than the interval, and must not pile up."""
        self._told: dict[str, int] = {}
        """What all clusters know of each subscription: a hash, as two thousand stretches of each would weigh 300 KB."""
        self._named: dict[str, tuple[FollowedSubscription, Acknowledged]] = {}
        """What other clusters told last of each subscription, and is not done yet."""
        self._timer: TimerHandle | None = None

    def forget(self, name: str) -> None:
        """The subscription is gone, or is not replicated any more."""
        self._changed.pop(name, None)
        self._told.pop(name, None)

    def close(self) -> None:
        """The topic is going: tell and acknowledge nothing more. What waits refers to this object, and would else wait
        for the collector of cycles."""
        self._tell = None
        self._changed = {}
        self._named = {}
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # --- what is acknowledged here

    def acknowledged(self, followed: FollowedSubscription) -> None:
        """The others hear of it after the interval, with all that comes until then."""
        if followed.cursor.acks.individual_count and self._tell is not None:
            self._changed[followed.subscription.name] = followed
            self._arm()

    def _arm(self) -> None:
        if self._timer is None and self._changed and not self._telling:
            self._timer = self._call_later(self._interval_seconds, self._due)

    def _due(self) -> None:
        self._timer = None
        changed, self._changed = self._changed, {}
        if changed:
            self._telling = True
            self._spawn(self._tell_all(list(changed.values())))

    async def _tell_all(self, changed: list[FollowedSubscription]) -> None:
        try:
            await self._tell_each(changed)
        finally:
            self._telling = False
            self._arm()

    async def _tell_each(self, changed: list[FollowedSubscription]) -> None:
        for followed in changed:
            name, cursor = followed.subscription.name, followed.cursor
            ranges = cursor.acks.ranges(ENTRIES_MAX)
            if not ranges:
                continue
            try:
                after = min(followed.told_until, cursor.mark_delete)
                found = await self._look(after, ranges[-1][1], cursor.is_acknowledged)
            except MagnetarError as error:
                logger.warning("%s: what %s has acknowledged is not told now: %s", self._ledger.name, name, error)
                continue
            acknowledged = stretches_of([origin for _, origin in found])
            known = _known(acknowledged)
            if self._tell is not None and not cursor.closed and acknowledged and known != self._told.get(name):
                self._told[name] = known
                self._tell(name, acknowledged)

    # --- what other clusters tell

    def told(self, followed: FollowedSubscription, acknowledged: Acknowledged) -> None:
        """Another cluster has acknowledged these entries."""
        name = followed.subscription.name
        begins = not self._named
        if name in self._named or len(self._named) < SUBSCRIPTIONS_MAX:
            self._named[name] = followed, acknowledged
            if begins:
                self._spawn(self._follow_all())

    async def _follow_all(self) -> None:
        while self._named and self._tell is not None:
            name, (followed, acknowledged) = next(iter(self._named.items()))
            try:
                await self._follow(followed, NamedEntries(acknowledged))
            except MagnetarError as error:
                logger.warning("%s: %s does not follow single entries now: %s", self._ledger.name, name, error)
            except BaseException:
                self._named.clear()  # Whoever is told of next begins anew; all is told again with what is acknowledged.
                raise
            if name in self._named and self._named[name][1] is acknowledged:
                del self._named[name]
                self._told[name] = _known(acknowledged)

    async def _follow(self, followed: FollowedSubscription, named: NamedEntries) -> None:
        cursor = followed.cursor
        last = self._ledger.last_confirmed
        found = await self._look(cursor.mark_delete, last, lambda position: not cursor.is_acknowledged(position))
        positions = [position for position, origin in found if origin in named]
        if positions and self._tell is not None and not cursor.closed:
            cursor.acknowledge(positions)
            followed.subscription.acknowledged_by_broker()
            await durable(cursor.storage, None)

    async def _look(
        self, after: Position, last: Position, wanted: Callable[[Position], bool]
    ) -> list[tuple[Position, tuple[str, Position]]]:
        """Entries behind a position, up to `last`, each with where it was stored first."""
        found: list[tuple[Position, tuple[str, Position]]] = []
        ledger, looked_at, size_bytes = self._ledger, 0, 0
        async with self._one_at_a_time:
            start = ledger.ledgers.next_position(after)
            reader = ledger.new_non_durable_cursor("single acknowledgements", start)
            try:
                turn = TimeSlice()
                while looked_at < ENTRIES_MAX and size_bytes < LOOK_BYTES_MAX and reader.read_position <= last:
                    entries = [] if self._tell is None else await reader.read(READ_ENTRIES_MAX, READ_BYTES_MAX)
                    if not entries:
                        break
                    looked_at += len(entries)
                    size_bytes += sum([len(entry.data) for entry in entries])
                    for entry in entries:
                        position = entry.position
                        if position <= last and wanted(position):
                            origin = origin_of(entry.data, position, self._local_cluster)
                            if origin is not None:
                                found.append((position, origin))
                    if turn.over:
                        await turn.pause()
            finally:
                await reader.close()
        return found
