"""What of a followed topic its transactions hide, learnt from what is stored: the owner's snapshot, and the markers
since. Nothing is written.

An owner hears of each message before it is confirmed. Who follows has to look at each entry first, so nothing is shown
beyond the last one that was looked at. Without a snapshot there was no message of a transaction up to then: owners
write the first snapshot before the first message (facts: transactions-dedup-compaction 1.6).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from magnetar.broker.slices import TimeSlice
from magnetar.broker.subscriptions.entry_reader import Spawn
from magnetar.broker.subscriptions.visibility import Visibility
from magnetar.broker.transactions.buffers.buffer_table import BufferTable
from magnetar.broker.transactions.buffers.snapshot_store import SnapshotStore
from magnetar.core.errors import MagnetarError
from magnetar.core.ids import EARLIEST, LATEST, Position
from magnetar.core.limits import MIB
from magnetar.core.topic_name import TopicName
from magnetar.managed.cursors.cursor import Cursor
from magnetar.managed.entry import Entry
from magnetar.managed.managed_ledger import ManagedLedger
from magnetar.wire.pulsar.errors import PulsarError, ServerError

logger: Final = logging.getLogger(__name__)

CURSOR: Final = "read-only-transactions"
"""Looks at each entry once; never stored."""

LOOKED_AT_ONCE: Final = 500
READ_BYTES_MAX: Final = 5 * MIB

FORGOTTEN_AT_ONCE: Final = 1_000
"""Aborted transactions whose messages are gone: many may go with one ledger."""


class FollowedTransactions:
    """Owned by its topic, which asks it to look whenever there are more entries."""

    def __init__(
        self,
        topic: TopicName,
        ledger: ManagedLedger,
        snapshots: SnapshotStore,
        spawn: Spawn,
        shown: Callable[[], None],
        failed: Callable[[MagnetarError], None],
    ) -> None:
        """`shown` is called when more may be sent; `failed` when entries cannot be looked at."""
        self.table = BufferTable()
        self.visibility = Visibility(self.table.aborted)
        self._topic = topic
        self._ledger = ledger
        self._snapshots = snapshots
        self._spawn = spawn
        self._shown = shown
        self._failed = failed
        self._cursor: Cursor | None = None
        self._looking = asyncio.Lock()
        """One looks at a time, and each entry is looked at once."""

    @property
    def max_read_position(self) -> Position:
        """Everything up to here may be sent."""
        hidden_from, last = self.visibility.hidden_from, self._ledger.last_confirmed
        return last if hidden_from > last else self._ledger.ledgers.previous_position(hidden_from)

    async def recover(self) -> None:
        """Learn what the owner has written down. Raises `PulsarError` when there is no way to it now."""
        end = self._ledger.last_confirmed  # Before the snapshot is looked for: what comes meanwhile is looked at.
        try:
            found = await self._snapshots.read(self._topic, self._ledger.ledgers.ids[0])
        except MagnetarError as error:
            text = f"The transactions of topic {self._topic} are not known yet: {error}"
            raise PulsarError(ServerError.SERVICE_NOT_READY, text) from error
        seen = end
        if found is not None:
            snapshot, aborted = found
            self.table.restore(aborted)
            seen = min(snapshot.max_read_position, end)
        start = EARLIEST if seen[0] < 0 else self._ledger.ledgers.next_position(seen)
        self._cursor = self._ledger.new_non_durable_cursor(CURSOR, start)
        self._show()
        await self.look_to_the_end()

    def look(self) -> None:
        """There are more entries: look at them, at once if they are in memory."""
        cursor = self._cursor
        if cursor is None or self._looking.locked():
            return  # Whoever looks does not stop before the end.
        entries = cursor.read_cached(LOOKED_AT_ONCE, READ_BYTES_MAX)
        if entries:
            self._look_at(entries)
            self._show()
        if cursor.read_position <= self._ledger.last_confirmed:
            self._spawn(self._look_on())

    async def _look_on(self) -> None:
        try:
            await self.look_to_the_end()
        except MagnetarError as error:
            self._failed(error)
            return
        self._shown()

    async def look_to_the_end(self) -> None:
        """Until all entries that are known are looked at. Raises what the ledger raises."""
        async with self._looking:
            cursor = self._cursor
            assert cursor is not None
            turn = TimeSlice()
            while entries := await cursor.read(LOOKED_AT_ONCE, READ_BYTES_MAX):
                self._look_at(entries)
                self._show()
                if turn.over:
                    await turn.pause()

    def _look_at(self, entries: list[Entry]) -> None:
        for entry in entries:
            self.table.take(entry)

    def _show(self) -> None:
        assert self._cursor is not None
        self.table.forget_before(self._ledger.ledgers.first_position()[0], FORGOTTEN_AT_ONCE)
        first = self.table.first_open
        self.visibility.hidden_from = min(LATEST if first is None else first, self._cursor.read_position)

    async def close(self) -> None:
        """The topic is let go of."""
        self._snapshots.release(self._topic)
        if self._cursor is not None:
            await self._cursor.close()
