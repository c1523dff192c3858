"""How appends reach ledgers: one ledger in use, a queue of what is not yet confirmed, and the step to the next ledger.

Per batch there is one queue item and one call of the ledger's writer; nothing is done per entry but making its object.
When a ledger is full or fails, appends wait while it is closed and the next one is made, then all that is unconfirmed
is sent again in order. The queue is bounded by those who append: the broker stops reading connections.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from magnetar.core.errors import MagnetarError, Unavailable
from magnetar.core.ids import Position
from magnetar.ledger.api import LedgerError, LedgerUnavailable, LedgerWriter
from magnetar.managed.entry import Entry
from magnetar.managed.errors import (
    ManagedLedgerClosed,
    ManagedLedgerFenced,
    ManagedLedgerTerminated,
    ManagedLedgerWriteFailed,
)
from magnetar.managed.info_node import InfoNode
from magnetar.managed.ledger_list import LedgerList, LedgerRecord
from magnetar.managed.rollover import is_full, is_inactive
from magnetar.managed.settings import ManagedLedgerSettings
from magnetar.managed.shared import LEDGER_CREATION_SECONDS_MAX, Shared, ledger_options
from magnetar.managed.states import LedgerState, check_transition

log = logging.getLogger(__name__)

FAILING_LEDGER_DELAY_SECONDS: Final[tuple[float, ...]] = (0.0, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
"""Waits before the next ledger while ledgers fail without a single confirmed entry; the last one repeats."""

NOT_SENT: Final = -1


class AppendCallback(Protocol):
    """Told once how a batch fared; the entry ids follow one another from the first one."""

    def __call__(self, error: MagnetarError | None, ledger_id: int, first_entry_id: int, context: object) -> None:
        """On error, ledger and entry are -1."""
        ...


class PendingAppend:
    """A batch that is not yet confirmed."""

    __slots__ = ("context", "done", "first_entry_id", "payloads", "size_bytes")

    def __init__(
        self, payloads: Sequence[bytes], size_bytes: int, done: AppendCallback, context: object, first_entry_id: int
    ) -> None:
        self.payloads: Sequence[bytes] = payloads
        self.size_bytes: int = size_bytes
        self.done: AppendCallback = done
        self.context: object = context
        self.first_entry_id: int = first_entry_id


class AppendPath:
    """The writing half of a managed ledger; it is the listener of its ledgers."""

    __slots__ = (
        "_failed_in_a_row",
        "_held_back",
        "_node",
        "_pending",
        "_pushed_bytes",
        "_roll_task",
        "_shared",
        "_writer",
        "cache_wanted",
        "entries_added",
        "last_append_ms",
        "last_confirmed",
        "last_creation_error",
        "ledger_created_ms",
        "ledgers",
        "name",
        "on_appended",
        "on_rolled",
        "properties",
        "settings",
        "state",
        "terminated_at",
    )

    def __init__(
        self, shared: Shared, name: str, settings: ManagedLedgerSettings, node: InfoNode, ledgers: LedgerList
    ) -> None:
        self._shared: Shared = shared
        self._node: InfoNode = node
        self._pending: deque[PendingAppend] | None = None
        self._writer: LedgerWriter | None = None
        self._pushed_bytes: int = 0
        self._failed_in_a_row: int = 0
        self._held_back: bool = False
        """The ledger's writer has too much outstanding: what follows is queued until something is confirmed."""
        self._roll_task: asyncio.Task[None] | None = None
        self.name: str = name
        self.settings: ManagedLedgerSettings = settings
        self.ledgers: LedgerList = ledgers
        self.properties: dict[str, str] = {}
        self.terminated_at: Position | None = None
        self.state: LedgerState = LedgerState.CLOSED_LEDGER
        self.last_confirmed: Position = ledgers.last_position()
        self.on_appended: list[Callable[[], None]] = []
        self.on_rolled: Callable[[], None] | None = None
        """Told after another ledger came into use and the list was written."""
        self.cache_wanted: bool = False
        """Whether any cursor may read what is appended."""
        self.ledger_created_ms: int = 0
        self.last_append_ms: int = 0
        self.last_creation_error: MagnetarError | None = None
        self.entries_added: int = 0

    @property
    def pending_entries(self) -> int:
        """Entries that wait for their confirmation."""
        return sum(len(pending.payloads) for pending in self._pending or ())

    @property
    def writer(self) -> LedgerWriter | None:
        """The ledger in use."""
        return self._writer

    def append(self, payloads: Sequence[bytes], done: AppendCallback, context: object) -> None:
        """See `ManagedLedger.append`."""
        assert payloads
        pending = self._pending
        if pending is None:
            pending = self._pending = deque()
        state = self.state
        size_bytes = sum(map(len, payloads))
        if state is LedgerState.LEDGER_OPENED:
            batch = PendingAppend(payloads, size_bytes, done, context, NOT_SENT)
            pending.append(batch)
            if not self._held_back:
                self._send(batch)
            return
        error = self._refusal()
        if error is not None:
            self._shared.loop.call_soon(done, error, -1, -1, context)
            return
        pending.append(PendingAppend(payloads, size_bytes, done, context, NOT_SENT))
        if state is LedgerState.CLOSED_LEDGER and self._roll_task is None:
            self._start_roll()

    def confirmed(self, ledger_id: int, last_add_confirmed: int) -> None:
        """From the ledger's writer. Only whole batches count: of one that failed half-way nothing is shown, so that
        sending it again makes no duplicates."""
        writer = self._writer
        pending = self._pending
        if writer is None or writer.ledger_id != ledger_id or not pending:
            return
        finished: list[PendingAppend] = []
        entries: list[Entry] = []
        cache_wanted = self.cache_wanted
        size_bytes = 0
        last_entry_id = -1
        while pending:
            batch = pending[0]
            first = batch.first_entry_id
            last = first + len(batch.payloads) - 1
            if first == NOT_SENT or last > last_add_confirmed:
                break
            pending.popleft()
            finished.append(batch)
            size_bytes += batch.size_bytes
            last_entry_id = last
            if cache_wanted:
                entries += [Entry(ledger_id, entry_id, data) for entry_id, data in enumerate(batch.payloads, first)]
        if not finished:
            return
        if not pending:
            self._pending = None  # An idle topic keeps no queue.
        record = self.ledgers.get(ledger_id)
        assert record is not None
        self.entries_added += last_entry_id + 1 - record.entries
        record.entries = last_entry_id + 1
        record.size_bytes += size_bytes
        self.last_confirmed = (ledger_id, last_entry_id)
        self._failed_in_a_row = 0
        if cache_wanted:
            self._shared.cache.add(ledger_id, entries, size_bytes, self._shared.clock.monotonic_seconds())
        for batch in finished:
            batch.done(None, ledger_id, batch.first_entry_id, batch.context)
        for told in self.on_appended:
            told()
        if self._held_back:
            self._send_queued()

    def failed(self, ledger_id: int, error: MagnetarError) -> None:
        """From the ledger's writer: go on in another ledger."""
        writer = self._writer
        if writer is None or writer.ledger_id != ledger_id:
            return
        log.warning("%s: ledger %d failed: %s", self.name, ledger_id, error)
        if self.state is LedgerState.LEDGER_OPENED:
            self._failed_in_a_row += 1
            self._start_roll()

    async def create_ledger(self) -> None:
        """Make the next ledger, write the list with it but without empty ones, and use it.

        Raises `ManagedLedgerFenced`, or what the client or the store raise; then nothing changed here."""
        shared = self._shared
        async with asyncio.timeout(LEDGER_CREATION_SECONDS_MAX):
            writer = await shared.ledgers.create(ledger_options(self.settings, self.name), self)
        record = LedgerRecord(writer.ledger_id)
        async with self._node.lock:
            records = [each for each in self.ledgers.records() if each.entries]
            try:
                await self._node.write([*records, record], None, self.properties)
            except ManagedLedgerFenced:
                await shared.delete_ledger(writer.ledger_id)
                raise
            self.ledgers.add(record)
        if self.last_confirmed[1] < 0:
            self.last_confirmed = self.ledgers.last_position()
        self._writer = writer
        self._pushed_bytes = 0
        self.ledger_created_ms = self.last_append_ms = shared.clock.now_ms()

    def opened(self) -> None:
        """The first ledger stands: appends may come."""
        self.state = LedgerState.LEDGER_OPENED

    def terminated(self, position: Position) -> None:
        """As stored: no append any more."""
        self.terminated_at = position
        self.state = LedgerState.TERMINATED

    def ready_to_create_ledger(self) -> None:
        """The producers whose appends failed are gone: the next append tries again."""
        if self.state is LedgerState.WRITE_FAILED:
            self._go(LedgerState.CLOSED_LEDGER)

    async def check_writable(self) -> None:
        """After a failed creation try again, so that nobody is let in whose appends could only fail.

        `ManagedLedgerWriteFailed` when it fails again."""
        if self.last_creation_error is None or self.state not in (LedgerState.WRITE_FAILED, LedgerState.CLOSED_LEDGER):
            return
        self.ready_to_create_ledger()
        if self._roll_task is None:
            self._start_roll()
        await self._wait_for_roll()
        if self.last_creation_error is not None:
            raise ManagedLedgerWriteFailed(f"{self.name}: no new ledger: {self.last_creation_error}")

    def roll_if_due(self, now_ms: int) -> None:
        """Close the ledger in use when it had no append for too long, without making the next one."""
        if self.state is LedgerState.LEDGER_OPENED and not self._pending:
            entries = self.ledgers.last().entries
            if is_inactive(self.settings, entries, now_ms - self.last_append_ms):
                self._start_roll(stay_closed=True)

    async def roll_now(self) -> None:
        """Go on in a new ledger, unless the one in use has no entries (admin: roll-over for trimming)."""
        if self.state is LedgerState.LEDGER_OPENED and self.ledgers.last().entries:
            self._start_roll()
        await self._wait_for_roll()

    async def terminate(self) -> Position:
        """See `ManagedLedger.terminate`."""
        await self._wait_for_roll()
        if self.terminated_at is not None:
            return self.terminated_at
        if self.state is not LedgerState.TERMINATED:  # Else the list could not be written the last time.
            refusal = self._refusal()
            if refusal is not None and self.state is not LedgerState.WRITE_FAILED:
                raise refusal
            self._go(LedgerState.TERMINATED)
        await self._close_writer()
        self._fail_pending(ManagedLedgerTerminated(self.name))
        position = self.last_confirmed
        async with self._node.lock:
            try:
                await self._node.write(self.ledgers.records(), position, self.properties)
            except ManagedLedgerFenced as error:
                self.fence(error)
                raise
        self.terminated_at = position
        return position

    async def close(self) -> None:
        """Wait for what was sent, then close the ledger in use; nothing is written but the ledger's own metadata."""
        await self._wait_for_roll()
        if self.state is not LedgerState.CLOSED:
            self._go(LedgerState.CLOSED)
            await self._close_writer()
            self._fail_pending(ManagedLedgerClosed(self.name))

    def fence(self, error: ManagedLedgerFenced) -> None:
        """Another owner was seen: stop everything."""
        if self.state not in (LedgerState.FENCED, LedgerState.CLOSED):
            self._go(LedgerState.FENCED)
            self._writer = None
            self._fail_pending(error)

    def abandon(self, error: ManagedLedgerFenced) -> LedgerWriter | None:
        """As `fence`, before anybody else was seen: nothing is written any more. Returns the ledger that was in use."""
        writer = self._writer
        self.fence(error)
        if self._roll_task is not None:
            self._roll_task.cancel()
        return writer

    def _send(self, batch: PendingAppend) -> None:
        """Hand a queued batch to the ledger in use, and close that when it is full by then."""
        writer = self._writer
        assert writer is not None
        payloads = batch.payloads
        try:
            batch.first_entry_id = first = writer.append(payloads)
        except LedgerUnavailable as error:
            self._hold_back(batch, error)
            return
        except LedgerError as error:
            self.failed(writer.ledger_id, error)
            return
        self._pushed_bytes += batch.size_bytes
        now_ms = self._shared.clock.now_ms()
        self.last_append_ms = now_ms
        age_ms = now_ms - self.ledger_created_ms
        if is_full(self.settings, writer.ledger_id, first + len(payloads), self._pushed_bytes, age_ms):
            self._start_roll()

    def _hold_back(self, batch: PendingAppend, error: MagnetarError) -> None:
        """The writer took nothing of it: send it after the next confirmation. If it is alone it is simply too big."""
        assert self._pending
        if self._pending[0] is batch:
            self._pending.popleft()
            self._shared.loop.call_soon(batch.done, error, -1, -1, batch.context)
        else:
            self._held_back = True

    def _send_queued(self) -> None:
        """Send what waits, in order, as far as the ledger in use takes it."""
        self._held_back = False
        for batch in list(self._pending or ()):
            if batch.first_entry_id == NOT_SENT:
                if self._held_back or not self._is(LedgerState.LEDGER_OPENED):
                    return
                self._send(batch)

    def _refusal(self) -> MagnetarError | None:
        """Why an append cannot even wait."""
        match self.state:
            case LedgerState.WRITE_FAILED:
                return ManagedLedgerWriteFailed(f"{self.name}: waiting to recover from failure")
            case LedgerState.FENCED:
                return ManagedLedgerFenced(self.name)
            case LedgerState.CLOSED:
                return ManagedLedgerClosed(self.name)
            case LedgerState.TERMINATED:
                return ManagedLedgerTerminated(self.name)
            case _:
                return None

    def _is(self, state: LedgerState) -> bool:
        """The state of this moment; it may have changed during any wait or call."""
        return self.state is state

    def _go(self, state: LedgerState) -> None:
        self.state = check_transition(self.state, state)

    def _start_roll(self, *, stay_closed: bool = False) -> None:
        if self.state is LedgerState.LEDGER_OPENED:
            self._go(LedgerState.CLOSING_LEDGER)
        if self._roll_task is None:
            self._roll_task = self._shared.start(self._roll(stay_closed))

    async def _wait_for_roll(self) -> None:
        while self._roll_task is not None:
            await asyncio.wait((self._roll_task,))

    async def _roll(self, stay_closed: bool) -> None:
        """Close, create, send again; repeat as long as the new ledger is full or failed at once."""
        try:
            while True:
                if self._is(LedgerState.CLOSING_LEDGER):
                    await self._close_writer()
                    if not self._is(LedgerState.CLOSING_LEDGER):
                        return
                    if stay_closed and not self._pending:
                        self._go(LedgerState.CLOSED_LEDGER)
                        return
                    delays = FAILING_LEDGER_DELAY_SECONDS
                    await asyncio.sleep(delays[min(self._failed_in_a_row, len(delays) - 1)])
                if not await self._next_ledger() or not self._is(LedgerState.CLOSING_LEDGER):
                    return
        finally:
            self._roll_task = None

    async def _close_writer(self) -> None:
        """Close the ledger in use as far as that goes, and settle what its record says.

        If its metadata could not be written it stays open; whoever reads it later recovers it first."""
        writer = self._writer
        if writer is None:
            return
        try:
            await writer.close()
        except MagnetarError as error:
            log.warning("%s: ledger %d is not closed: %s", self.name, writer.ledger_id, error)
        self._writer = None
        for batch in self._pending or ():
            batch.first_entry_id = NOT_SENT
        record = self.ledgers.get(writer.ledger_id)
        if record is not None:
            record.closed_ms = self._shared.clock.now_ms()

    async def _next_ledger(self) -> bool:
        """Make the next ledger and send what waits; whether it stands. Failing is a state, not an exception."""
        self._go(LedgerState.CREATING_LEDGER)
        empty = [record.ledger_id for record in self.ledgers.records() if not record.entries]
        try:
            await self.create_ledger()
        except ManagedLedgerFenced as error:
            self.fence(error)
            return False
        except (MagnetarError, TimeoutError) as error:
            self._creation_failed(error)
            return False
        for ledger_id in empty:
            self.ledgers.remove(ledger_id)
        if not self._is(LedgerState.CREATING_LEDGER):
            return False
        self.last_creation_error = None
        self._go(LedgerState.LEDGER_OPENED)
        if not self.ledgers.get(self.last_confirmed[0]):
            self.last_confirmed = self.ledgers.last_position()
        self._send_queued()
        if self.on_rolled is not None:
            self.on_rolled()
        for ledger_id in empty:
            await self._shared.delete_ledger(ledger_id)
        return True

    def _creation_failed(self, error: MagnetarError | TimeoutError) -> None:
        """With appends waiting they all fail, and more will until producers are gone; else the next append tries."""
        log.warning("%s: no new ledger: %r", self.name, error)
        known = error if isinstance(error, MagnetarError) else Unavailable(f"no ledger within the time: {error!r}")
        self.last_creation_error = known
        if self.state is not LedgerState.CREATING_LEDGER:
            return
        self._go(LedgerState.WRITE_FAILED if self._pending else LedgerState.CLOSED_LEDGER)
        self._fail_pending(ManagedLedgerWriteFailed(f"{self.name}: no new ledger: {known}"))

    def _fail_pending(self, error: MagnetarError) -> None:
        pending = self._pending
        self._pending = None
        for batch in pending or ():
            batch.done(error, -1, -1, batch.context)
