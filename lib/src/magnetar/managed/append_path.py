"""How appends reach ledgers: one ledger in use, a queue of what is not yet confirmed, and the step to the next ledger.

Per batch there is one queue item and one call of the ledger's writer; nothing is done per entry but making its object.
When a ledger is full or fails, appends wait while `ledger_rollover.py` closes it and makes the next one, then all that
is unconfirmed is sent again in order. The queue is bounded by those who append: the broker stops reading connections.

Hot: compiled by mypyc (see CONTRIBUTING).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from magnetar.core.errors import MagnetarError
from magnetar.core.histogram import Histogram
from magnetar.core.ids import Position
from magnetar.ledger.api import LedgerError, LedgerUnavailable, LedgerWriter
from magnetar.managed.entry import Entry
from magnetar.managed.errors import (
    ManagedLedgerClosed,
    ManagedLedgerFenced,
    ManagedLedgerReadOnly,
    ManagedLedgerTerminated,
    ManagedLedgerWriteFailed,
)
from magnetar.managed.ledger_list import LedgerList
from magnetar.managed.period import LedgerPeriods
from magnetar.managed.rollover import is_due, is_full
from magnetar.managed.settings import ManagedLedgerSettings
from magnetar.managed.shared import Shared
from magnetar.managed.states import TRANSITIONS, ManagedLedgerState

logger: Final = logging.getLogger(__name__)

NOT_SENT: Final = -1


class AppendCallback(Protocol):
    """Told once how a batch fared; the entry ids follow one another from the first one."""

    def __call__(self, error: MagnetarError | None, ledger_id: int, first_entry_id: int, context: object) -> None:
        """On error, ledger and entry are -1."""
        ...


class PendingAppend:
    """A batch that is not yet confirmed."""

    __slots__ = ("context", "done", "first_entry_id", "payloads", "queued_seconds", "size_bytes")

    def __init__(
        self,
        payloads: Sequence[bytes],
        size_bytes: int,
        done: AppendCallback,
        context: object,
        queued_seconds: float,
    ) -> None:
        self.payloads: Sequence[bytes] = payloads
        self.size_bytes: int = size_bytes
        self.done: AppendCallback = done
        self.context: object = context
        self.first_entry_id: int = NOT_SENT
        self.queued_seconds: float = queued_seconds
        """When it was appended, by the monotonic clock."""


def _entries_of(ledger_id: int, batches: Sequence[PendingAppend]) -> list[Entry]:
    entries: list[Entry] = []
    for batch in batches:
        entry_id = batch.first_entry_id
        for payload in batch.payloads:
            entries.append(Entry(ledger_id, entry_id, payload))
            entry_id += 1
    return entries


class Rollover(Protocol):
    """Closes the ledger in use and makes the next one, in the background."""

    def start(self) -> None:
        """Begin, unless it is under way."""
        ...


class AppendPath:
    """The writing half of a managed ledger; it is the listener of its ledgers."""

    __slots__ = (
        "_held_back",
        "_pending",
        "_pushed_bytes",
        "_rollover",
        "_shared",
        "_writer",
        "cache_wanted",
        "entries_added",
        "failed_in_a_row",
        "last_append_ms",
        "last_confirmed",
        "last_creation_error",
        "latencies",
        "ledger_created_ms",
        "ledgers",
        "name",
        "on_appended",
        "on_fenced",
        "on_rolled",
        "periods",
        "properties",
        "settings",
        "state",
        "terminated_at",
    )

    def __init__(self, shared: Shared, name: str, settings: ManagedLedgerSettings, ledgers: LedgerList) -> None:
        self._shared: Shared = shared
        self._rollover: Rollover | None = None
        self._pending: list[PendingAppend] | None = None
        """In order; a list, as compiled code has them cheaper than a deque, and what is over goes all at once."""
        self._writer: LedgerWriter | None = None
        self._pushed_bytes: int = 0
        self._held_back: bool = False
        """The ledger's writer has too much outstanding: what follows is queued until something is confirmed."""
        self.name: str = name
        self.settings: ManagedLedgerSettings = settings
        self.ledgers: LedgerList = ledgers
        self.properties: dict[str, str] = {}
        self.terminated_at: Position | None = None
        self.state: ManagedLedgerState = ManagedLedgerState.CLOSED_LEDGER
        self.last_confirmed: Position = ledgers.last_position()
        self.on_appended: list[Callable[[], None]] = []
        """Called once per confirmed group, after `last_confirmed` advanced and the entries are in the cache."""
        self.on_fenced: Callable[[ManagedLedgerFenced], None] | None = None
        """Told later, once, that another owner was seen: where nothing is appended, nothing else tells that."""
        self.on_rolled: Callable[[], None] | None = None
        """Told after another ledger came into use and the list was written."""
        self.cache_wanted: bool = False
        """Whether any cursor may read what is appended."""
        self.ledger_created_ms: int = 0
        self.last_append_ms: int = 0
        self.last_creation_error: MagnetarError | None = None
        self.entries_added: int = 0
        self.periods: LedgerPeriods | None = None
        """The counters of writes and reads; None before the first one."""
        self.latencies: Histogram | None = None
        """Of several managed ledgers together, in seconds; whoever wants them brings it."""
        self.failed_in_a_row: int = 0
        """Ledgers that failed since an entry was confirmed."""

    @property
    def pending_entries(self) -> int:
        """Entries that wait for their confirmation."""
        return sum([len(pending.payloads) for pending in self._pending or ()])

    @property
    def writer(self) -> LedgerWriter | None:
        """The ledger in use."""
        return self._writer

    def append(self, payloads: Sequence[bytes], done: AppendCallback, context: object) -> None:
        """Store a batch: consecutive entries of one ledger. Never waits, and never calls `done` from inside.

        `done` hears once per call, in the order of the calls. When a ledger fails, the batch goes to the next one."""
        assert payloads
        pending = self._pending
        if pending is None:
            pending = self._pending = []
        state = self.state
        size_bytes = sum(map(len, payloads))
        if state is ManagedLedgerState.LEDGER_OPENED:
            batch = PendingAppend(payloads, size_bytes, done, context, self._shared.clock.monotonic_seconds())
            pending.append(batch)
            if not self._held_back:
                self._send(batch)
            return
        error = self.refusal()
        if error is not None:
            self._shared.loop.call_soon(done, error, -1, -1, context)
            return
        pending.append(PendingAppend(payloads, size_bytes, done, context, self._shared.clock.monotonic_seconds()))
        if state is ManagedLedgerState.CLOSED_LEDGER:
            self.start_rollover()

    def confirmed(self, ledger_id: int, last_add_confirmed: int) -> None:
        """From the ledger's writer. Only whole batches count: of one that failed half-way nothing is shown, so that
        sending it again makes no duplicates."""
        writer = self._writer
        pending = self._pending
        if writer is None or writer.ledger_id != ledger_id or not pending:
            return
        finished: list[PendingAppend] = []
        size_bytes = 0
        last_entry_id = -1
        for batch in pending:
            first = batch.first_entry_id
            last = first + len(batch.payloads) - 1
            if first == NOT_SENT or last > last_add_confirmed:
                break
            finished.append(batch)
            size_bytes += batch.size_bytes
            last_entry_id = last
        if not finished:
            return
        if len(finished) == len(pending):
            self._pending = None  # An idle topic keeps no queue.
        else:
            del pending[: len(finished)]
        record = self.ledgers.get(ledger_id)
        assert record is not None
        self.entries_added += last_entry_id + 1 - record.entries
        record.entries = last_entry_id + 1
        record.size_bytes += size_bytes
        self.last_confirmed = (ledger_id, last_entry_id)
        self.failed_in_a_row = 0
        now_seconds = self._shared.clock.monotonic_seconds()
        if self.cache_wanted:
            self._shared.cache.add(ledger_id, _entries_of(ledger_id, finished), size_bytes, now_seconds)
        written = self.measured().writing()
        for batch in finished:
            seconds = now_seconds - batch.queued_seconds
            written.add(batch.payloads, batch.size_bytes, seconds)
            if self.latencies is not None:
                self.latencies.record(seconds, len(batch.payloads))
            batch.done(None, ledger_id, batch.first_entry_id, batch.context)
        for told in self.on_appended:
            told()
        if self._held_back:
            self.send_queued()

    def measured(self) -> LedgerPeriods:
        """The counters of writes, and of reads from bookies; made when they are first asked for."""
        periods = self.periods
        if periods is None:
            periods = self.periods = LedgerPeriods()
        return periods

    def failed(self, ledger_id: int, error: MagnetarError) -> None:
        """From the ledger's writer: go on in another ledger."""
        writer = self._writer
        if writer is None or writer.ledger_id != ledger_id:
            return
        logger.warning("%s: ledger %d failed: %s", self.name, ledger_id, error)
        if self.state is ManagedLedgerState.LEDGER_OPENED:
            self.failed_in_a_row += 1
            self.start_rollover()

    def rolled_over_by(self, rollover: Rollover) -> None:
        """Once, before anything is appended."""
        self._rollover = rollover

    def let_go(self) -> None:
        """Closed or fenced, and so for good: what would be told refers to this object."""
        self._rollover = None
        self.on_fenced = None
        self.on_rolled = None

    def start_rollover(self) -> None:
        """Use the ledger no more, and have the next one made."""
        assert self._rollover is not None
        if self.state is ManagedLedgerState.LEDGER_OPENED:
            self.go(ManagedLedgerState.CLOSING_LEDGER)
        self._rollover.start()

    def use(self, writer: LedgerWriter) -> None:
        """A new ledger, which the list has already."""
        if self.last_confirmed[1] < 0:
            self.last_confirmed = self.ledgers.last_position()
        self._writer = writer
        self._pushed_bytes = 0
        self.ledger_created_ms = self.last_append_ms = self._shared.clock.now_ms()

    def let_go_of_writer(self) -> None:
        """The ledger in use is closed as far as that goes: what is unconfirmed has to be sent again."""
        writer = self._writer
        if writer is None:
            return
        self._writer = None
        for batch in self._pending or ():
            batch.first_entry_id = NOT_SENT
        record = self.ledgers.get(writer.ledger_id)
        if record is not None:
            record.closed_ms = self._shared.clock.now_ms()

    def terminated(self, position: Position) -> None:
        """The managed ledger is terminated, and the store has it: `position` is its last, and it takes no append any
        more."""
        self.terminated_at = position
        self.go(ManagedLedgerState.TERMINATED)

    def ready_to_create_ledger(self) -> None:
        """After `ManagedLedgerWriteFailed`: the producers that saw it are disconnected, appends may try again."""
        if self.state is ManagedLedgerState.WRITE_FAILED:
            self.go(ManagedLedgerState.CLOSED_LEDGER)

    def due_for_rollover(self, now_ms: int) -> bool:
        """Whether to go on in another ledger though nothing is appended. Also when the last time there was no other one
        to be had: what stays the last ledger is never trimmed."""
        last = self.ledgers.last()
        if self.state is not ManagedLedgerState.LEDGER_OPENED:
            return self.state is ManagedLedgerState.CLOSED_LEDGER and last.entries > 0
        if self._pending:
            return False  # What is on its way tells by itself when the ledger is full.
        age_ms, quiet_ms = now_ms - self.ledger_created_ms, now_ms - self.last_append_ms
        return is_due(self.settings, last.ledger_id, last.entries, last.size_bytes, age_ms, quiet_ms)

    def fence(self, error: ManagedLedgerFenced) -> None:
        """Another owner was seen: stop everything."""
        if self.state not in (ManagedLedgerState.FENCED, ManagedLedgerState.CLOSED):
            self.go(ManagedLedgerState.FENCED)
            self._writer = None
            self.fail_pending(error)
            if self.on_fenced is not None:
                self._shared.loop.call_soon(self.on_fenced, error)

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
            self.start_rollover()

    def _hold_back(self, batch: PendingAppend, error: MagnetarError) -> None:
        """The writer took nothing of it: send it after the next confirmation. If it is alone it is simply too big."""
        assert self._pending
        if self._pending[0] is batch:
            del self._pending[0]
            self._shared.loop.call_soon(batch.done, error, -1, -1, batch.context)
        else:
            self._held_back = True

    def send_queued(self) -> None:
        """Send what waits, in order, as far as the ledger in use takes it."""
        self._held_back = False
        for batch in list(self._pending or ()):
            if batch.first_entry_id == NOT_SENT:
                if self._held_back or not self.is_in(ManagedLedgerState.LEDGER_OPENED):
                    return
                self._send(batch)

    def refusal(self) -> MagnetarError | None:
        """Why an append cannot even wait."""
        match self.state:
            case ManagedLedgerState.WRITE_FAILED:
                return ManagedLedgerWriteFailed(f"{self.name}: waiting to recover from failure")
            case ManagedLedgerState.FENCED:
                return ManagedLedgerFenced(self.name)
            case ManagedLedgerState.CLOSED:
                return ManagedLedgerClosed(self.name)
            case ManagedLedgerState.FOLLOWED:
                return ManagedLedgerReadOnly(self.name)
            case ManagedLedgerState.TERMINATED:
                return ManagedLedgerTerminated(self.name)
            case _:
                return None

    def is_in(self, state: ManagedLedgerState) -> bool:
        """The state of this moment; it may have changed during any wait or call."""
        return self.state is state

    def go(self, state: ManagedLedgerState) -> None:
        """Change the state, as `states.py` allows it."""
        self.state = TRANSITIONS.step(self.state, state)

    def fail_pending(self, error: MagnetarError) -> None:
        """Tell all who wait."""
        pending = self._pending
        self._pending = None
        for batch in pending or ():
            batch.done(error, -1, -1, batch.context)
