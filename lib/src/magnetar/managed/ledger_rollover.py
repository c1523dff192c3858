"""From one ledger to the next: the ledger in use is closed, another one is made and written into the list.

What waits stands here; `append_path.py` holds the queue and the state.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from typing import Final

from magnetar.core.errors import MagnetarError, Unavailable
from magnetar.core.ids import Position
from magnetar.ledger.api import LedgerWriter
from magnetar.managed.append_path import AppendPath
from magnetar.managed.errors import (
    ManagedLedgerClosed,
    ManagedLedgerFenced,
    ManagedLedgerTerminated,
    ManagedLedgerWriteFailed,
)
from magnetar.managed.info_node import InfoNode
from magnetar.managed.ledger_list import LedgerRecord
from magnetar.managed.shared import LEDGER_CREATION_SECONDS_MAX, Shared, ledger_options
from magnetar.managed.states import ManagedLedgerState

logger: Final = logging.getLogger(__name__)

FAILING_LEDGER_DELAY_SECONDS: Final[tuple[float, ...]] = (0.0, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
"""Waits before the next ledger while ledgers fail without a single confirmed entry; the last one repeats."""


_UNCHANGED: Final[Mapping[str, str | None]] = {}


class LedgerRollover:
    """A `Rollover`, and every other change of which ledger is in use: the first one, termination, the close."""

    __slots__ = ("_appends", "_node", "_shared", "_task")

    def __init__(self, shared: Shared, node: InfoNode, appends: AppendPath) -> None:
        self._shared = shared
        self._node = node
        self._appends = appends
        self._task: asyncio.Task[None] | None = None
        appends.rolled_over_by(self)

    def start(self) -> None:
        """Begin, unless it is under way."""
        if self._task is None:
            self._task = self._shared.start(self._roll())

    async def create_ledger(self) -> None:
        """Make the next ledger, write the list with it but without empty ones, and use it.

        Raises `ManagedLedgerFenced`, or what the client or the store raise; then nothing changed here. The new ledger
        is deleted then, unless the list may name it."""
        shared, appends = self._shared, self._appends
        async with asyncio.timeout(LEDGER_CREATION_SECONDS_MAX):
            writer = await shared.ledgers.create(ledger_options(appends.settings, appends.name), appends)
        record = LedgerRecord(writer.ledger_id)
        try:
            async with self._node.lock:
                records = [each for each in appends.ledgers.records() if each.entries]
                due_times = [each.due_ms for each in records]
                await self._node.write([*records, record], None, appends.properties)
                appends.ledgers.add(record)
                if due_times != [each.due_ms for each in records]:
                    appends.ledgers.due_unstored = True  # Something was noted while it was written.
        except BaseException:
            if writer.ledger_id not in self._node.ledgers_in_doubt:
                shared.delete_later(writer.ledger_id)
            raise
        appends.use(writer)

    async def check_writable(self) -> None:
        """After a failed creation try again, so that nobody is let in whose appends could only fail.

        `ManagedLedgerWriteFailed` when it fails again."""
        appends = self._appends
        if appends.last_creation_error is None or appends.state not in (
            ManagedLedgerState.WRITE_FAILED,
            ManagedLedgerState.CLOSED_LEDGER,
        ):
            return
        appends.ready_to_create_ledger()
        appends.start_rollover()
        await self._wait()
        if appends.last_creation_error is not None:
            raise ManagedLedgerWriteFailed(f"{appends.name}: no new ledger: {appends.last_creation_error}")

    async def roll_now(self) -> None:
        """Go on in a new ledger, unless the one in use has no entries (admin: roll-over for trimming)."""
        appends = self._appends
        if appends.state is ManagedLedgerState.LEDGER_OPENED and appends.ledgers.last().entries:
            appends.start_rollover()
        await self._wait()

    async def roll_if_due(self) -> None:
        """Go on in a new ledger if it is time to, though nothing is appended. Returns when that is over: the caller
        bounds how many do it at once. Failing is a state, and another time finds it due again."""
        appends = self._appends
        if appends.due_for_rollover(self._shared.clock.now_ms()):
            appends.start_rollover()
            await self._wait()

    async def terminate(self) -> Position:
        """Take no more entries, for ever; returns the last one's position. What was appended before is confirmed."""
        appends = self._appends
        await self._wait()
        if appends.terminated_at is not None:
            return appends.terminated_at
        if appends.state is not ManagedLedgerState.TERMINATED:  # Else the list could not be written the last time.
            refusal = appends.refusal()
            if refusal is not None and appends.state is not ManagedLedgerState.WRITE_FAILED:
                raise refusal
            appends.go(ManagedLedgerState.TERMINATED)
        await self._close_writer()
        appends.fail_pending(ManagedLedgerTerminated(appends.name))
        position = appends.last_confirmed
        async with self._node.lock:
            await self._write(appends.ledgers.records(), position, appends.properties)
        appends.terminated_at = position
        return position

    async def write_list(self, records: Sequence[LedgerRecord], changes: Mapping[str, str | None] = _UNCHANGED) -> None:
        """Store another list, and change some properties, or remove them (None); hold the node's lock.

        What is noted of properties meanwhile stays. `ManagedLedgerFenced`: it has another owner. After any other error
        it may have happened or not, and the next write settles that."""
        appends = self._appends
        changed = {**appends.properties, **changes}
        stored = {key: value for key, value in changed.items() if value is not None}
        await self._write(records, appends.terminated_at, stored)
        for key, value in changes.items():
            if value is None:
                appends.properties.pop(key, None)
            else:
                appends.properties[key] = value

    async def close(self) -> None:
        """Wait for what was sent, then close the ledger in use; nothing is written but the ledger's own metadata."""
        appends = self._appends
        await self._wait()
        if appends.state is not ManagedLedgerState.CLOSED:
            appends.go(ManagedLedgerState.CLOSED)
            await self._close_writer()
            appends.fail_pending(ManagedLedgerClosed(appends.name))

    def abandon(self, error: ManagedLedgerFenced) -> LedgerWriter | None:
        """Write nothing any more, as if fenced, before another owner was seen. Returns the ledger that was in use."""
        writer = self._appends.writer
        self._appends.fence(error)
        if self._task is not None:
            self._task.cancel()
        return writer

    async def _wait(self) -> None:
        while (task := self._task) is not None:
            await asyncio.wait((task,))
            if self._task is task:
                self._task = None  # It was cancelled before it began.

    async def _roll(self) -> None:
        """Close, create, send again; repeat as long as the new ledger is full or failed at once."""
        appends = self._appends
        try:
            while True:
                if appends.is_in(ManagedLedgerState.CLOSING_LEDGER):
                    await self._close_writer()
                    if not appends.is_in(ManagedLedgerState.CLOSING_LEDGER):
                        return
                    delays = FAILING_LEDGER_DELAY_SECONDS
                    await asyncio.sleep(delays[min(appends.failed_in_a_row, len(delays) - 1)])
                    if not appends.is_in(ManagedLedgerState.CLOSING_LEDGER):
                        return  # Another write has met a new owner meanwhile.
                if not await self._next_ledger() or not appends.is_in(ManagedLedgerState.CLOSING_LEDGER):
                    return
        except asyncio.CancelledError:
            # Let go of: nobody here settles any more what became of a write.
            self._shared.left_over(appends.name, self._node.ledgers_in_doubt)
            raise
        finally:
            self._task = None

    async def _write(
        self, records: Sequence[LedgerRecord], terminated_at: Position | None, properties: Mapping[str, str]
    ) -> None:
        try:
            await self._node.write(records, terminated_at, properties)
        except ManagedLedgerFenced as error:
            self._appends.fence(error)
            raise

    async def _close_writer(self) -> None:
        """Close the ledger in use as far as that goes, and settle what its record says.

        If its metadata could not be written it stays open; whoever reads it later recovers it first."""
        writer = self._appends.writer
        if writer is None:
            return
        try:
            await writer.close()
        except MagnetarError as error:
            logger.warning("%s: ledger %d is not closed: %s", self._appends.name, writer.ledger_id, error)
        self._appends.let_go_of_writer()

    async def _next_ledger(self) -> bool:
        """Make the next ledger and send what waits; whether it stands. Failing is a state, not an exception."""
        appends = self._appends
        appends.go(ManagedLedgerState.CREATING_LEDGER)
        empty = [record.ledger_id for record in appends.ledgers.records() if not record.entries]
        try:
            await self.create_ledger()
        except ManagedLedgerFenced as error:
            appends.fence(error)
            return False
        except (MagnetarError, TimeoutError) as error:
            self._creation_failed(error)
            return False
        for ledger_id in empty:
            appends.ledgers.remove((ledger_id,))
            self._shared.delete_later(ledger_id)
        if not appends.is_in(ManagedLedgerState.CREATING_LEDGER):
            return False
        appends.last_creation_error = None
        appends.go(ManagedLedgerState.LEDGER_OPENED)
        if not appends.ledgers.get(appends.last_confirmed[0]):
            appends.last_confirmed = appends.ledgers.last_position()
        appends.send_queued()
        if appends.on_rolled is not None:
            appends.on_rolled()
        return True

    def _creation_failed(self, error: MagnetarError | TimeoutError) -> None:
        """With appends waiting they all fail, and more will until producers are gone; else the next append tries."""
        appends = self._appends
        logger.warning("%s: no new ledger: %r", appends.name, error)
        known = error if isinstance(error, MagnetarError) else Unavailable(f"no ledger within the time: {error!r}")
        appends.last_creation_error = known
        if appends.state is not ManagedLedgerState.CREATING_LEDGER:
            return
        appends.go(ManagedLedgerState.WRITE_FAILED if appends.pending_entries else ManagedLedgerState.CLOSED_LEDGER)
        appends.fail_pending(ManagedLedgerWriteFailed(f"{appends.name}: no new ledger: {known}"))
