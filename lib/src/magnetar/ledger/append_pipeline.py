"""The appends of one ledger: makes entries of payloads, sends them to bookies, hears the answers, changes the ensemble.

The `Appender` decides. A normal writer and a recovery that writes back both run on it; they differ in the flags of
their adds and in where a changed ensemble is recorded. Nothing here waits: `writer.py` does.

Hot: compiled by mypyc (see CONTRIBUTING).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from magnetar.core.clock import Clock
from magnetar.core.errors import MagnetarError
from magnetar.ledger.api import LedgerClosed, LedgerFenced, LedgerListener, LedgerUnavailable, unauthorized
from magnetar.ledger.appender import CHANGING, FAILED, OPEN, Appender, Send
from magnetar.ledger.bookie_client.bookie_connection import BookieConnection, BookieConnections
from magnetar.ledger.ensemble_change import EnsembleChanger, replace_failed_bookies, stop_replacing
from magnetar.ledger.settings import LedgerClientSettings
from magnetar.wire.bookkeeper.codes import BookieCode, known_code
from magnetar.wire.bookkeeper.entry import EntryCodec, header

_EOK: Final = int(BookieCode.EOK)
TICKS_PER_TIMEOUT: Final = 4
"""How often within the add timeout the oldest entry's age is looked at."""


class PipelineContext:
    """What every add of a pipeline has in common, and whom to tell of failures."""

    __slots__ = ("_report", "add_flags", "clock", "codec", "ledger_id", "settings")

    def __init__(
        self,
        codec: EntryCodec,
        add_flags: int,
        settings: LedgerClientSettings,
        clock: Clock,
        report: Callable[[int, str, BookieCode], None],
    ) -> None:
        self.codec = codec
        self.ledger_id = codec.ledger_id
        self.add_flags = add_flags
        self.settings = settings
        self.clock = clock
        self._report = report

    def bookie_failed(self, bookie_id: str, code: int) -> None:
        """A bookie answered an add with this code, or not at all."""
        self._report(self.ledger_id, bookie_id, known_code(code))


class PendingGroup:
    """Entries of one push, kept until all of them are confirmed."""

    __slots__ = ("entries", "first_entry_id", "last_entry_id", "pushed_at_seconds", "size_bytes")

    def __init__(self, first_entry_id: int, entries: Sequence[bytes], size_bytes: int, now_seconds: float) -> None:
        self.first_entry_id = first_entry_id
        self.last_entry_id = first_entry_id + len(entries) - 1
        self.entries = entries
        self.size_bytes = size_bytes
        self.pushed_at_seconds = now_seconds


class BookieAnswers:
    """Hears the answers of the bookie at one place of the ensemble; one object per place, not per add."""

    __slots__ = ("_index", "_pipeline", "bookie_id", "connection")

    def __init__(self, pipeline: AppendPipeline, index: int, bookie_id: str, connection: BookieConnection) -> None:
        self._pipeline = pipeline
        self._index = index
        self.bookie_id = bookie_id
        self.connection = connection

    def __call__(self, code: int, ledger_id: int, entry_ids: Sequence[int]) -> None:
        self._pipeline.answered(self, self._index, code, entry_ids)


class AppendPipeline:
    """The outstanding entries of one ledger and the bookies they are on their way to.

    One per loaded topic, most of them idle: what only a busy one needs is made when it is."""

    __slots__ = (
        "_appender",
        "_change_task",
        "_changer",
        "_changes_in_a_row",
        "_connections",
        "_context",
        "_listener",
        "_loop",
        "_pending",
        "_places",
        "_settled",
        "_settled_waiters",
        "_silent_since_seconds",
        "_timer",
        "closing",
        "error",
        "length_bytes",
        "length_confirmed_bytes",
        "pending_bytes",
    )

    def __init__(
        self,
        listener: LedgerListener | None,
        changer: EnsembleChanger,
        appender: Appender,
        ensemble: Sequence[str],
        connections: BookieConnections,
        context: PipelineContext,
    ) -> None:
        self._listener: LedgerListener | None = listener
        self._changer: EnsembleChanger | None = changer
        self._appender: Appender = appender
        self._connections: BookieConnections = connections
        self._context: PipelineContext = context
        self._loop: asyncio.AbstractEventLoop = asyncio.get_running_loop()
        self._places: list[BookieAnswers] = [self._place(index, bookie) for index, bookie in enumerate(ensemble)]
        self._pending: list[PendingGroup] | None = None
        self.pending_bytes: int = 0
        self._silent_since_seconds: float = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._change_task: asyncio.Task[None] | None = None
        self._changes_in_a_row: int = 0
        self._settled: bool = True
        self._settled_waiters: list[asyncio.Future[None]] | None = None
        self.closing: bool = False
        """Whether the ledger is being closed: it takes no append any more."""
        self.error: MagnetarError | None = None
        """The error with which the ledger failed; None while it has not."""
        self.length_bytes: int = 0
        """Of all payloads that were appended."""
        self.length_confirmed_bytes: int = 0
        """After a failure: the length up to the last confirmed entry."""

    @property
    def last_add_confirmed(self) -> int:
        """The last entry of whole pushes that is on an ack quorum of disks, as all before it are."""
        return self._appender.last_add_confirmed

    @property
    def last_add_pushed(self) -> int:
        """The last entry that was appended."""
        return self._appender.last_add_pushed

    @property
    def ensemble(self) -> list[str]:
        """The bookies that take new entries."""
        return [place.bookie_id for place in self._places]

    def append(self, payloads: Sequence[bytes]) -> int:
        """Make entries of payloads and send them on their way; returns the first one's id, the rest follow.

        Raises `LedgerFenced` or `LedgerClosed` if the ledger takes no more, `LedgerUnavailable` (and takes none of
        these) if too much is outstanding."""
        if self.error is not None or self.closing:
            raise self._refusal()
        first = self._appender.last_add_pushed + 1
        if not payloads:
            return first
        context = self._context
        codec = context.codec
        entries = codec.encode_many(first, self._appender.last_add_confirmed, self.length_bytes, payloads)
        size_bytes = sum(map(len, entries))
        if self.pending_bytes + size_bytes > context.settings.pending_bytes_max:
            raise LedgerUnavailable(f"ledger {context.ledger_id} has {self.pending_bytes} bytes outstanding")
        self.length_bytes += size_bytes - len(payloads) * codec.overhead_bytes
        self.push(entries, size_bytes)
        return first

    def _refusal(self) -> MagnetarError:
        if isinstance(self.error, LedgerFenced):
            return LedgerFenced(str(self.error))
        return LedgerClosed(f"ledger {self._context.ledger_id} takes no more entries: {self.error or 'it is closed'}")

    def push(self, entries: Sequence[bytes], size_bytes: int) -> None:
        """Send the next whole entries on their way. Must not be called after a failure."""
        first = self._appender.last_add_pushed + 1
        now = self._context.clock.monotonic_seconds()
        if self._pending is None:
            self._pending = []
        self._pending.append(PendingGroup(first, entries, size_bytes, now))
        self.pending_bytes += size_bytes
        self._settled = False
        count = len(entries)
        for index, entry_ids in self._appender.append(count):
            if len(entry_ids) == count:
                self._send(index, entry_ids, entries)
            else:
                self._send(index, entry_ids, [entries[entry_id - first] for entry_id in entry_ids])
        if self._timer is None:
            self._arm_timer()

    def answered(self, place: BookieAnswers, index: int, code: int, entry_ids: Sequence[int]) -> None:
        """A bookie's answer to some adds. Those of bookies that were replaced meanwhile are of no interest."""
        if not self._places:
            return  # It is closed.
        if self._places[index] is not place:
            return
        if code == _EOK:
            if self._appender.acknowledged(index, entry_ids):
                self._confirmed()
        elif code == BookieCode.EFENCED:
            self.fail(LedgerFenced(f"{place.bookie_id} says that ledger {self._context.ledger_id} is fenced"))
        elif code == BookieCode.EUA:
            self.fail(unauthorized(place.bookie_id, self._context.ledger_id))
        else:
            self._bookie_failed(index, code)

    def fail(self, error: MagnetarError) -> None:
        """Give up on everything that is not confirmed. A second failure is ignored."""
        if not self._appender.fail():
            return
        self.error = error
        self.length_confirmed_bytes = self.length_bytes
        following = self._pending_entry(self._appender.last_add_confirmed + 1)
        if following is not None:
            payload_bytes = len(following) - self._context.codec.overhead_bytes
            self.length_confirmed_bytes = header(following)[3] - payload_bytes
        if self._listener is not None:
            self._listener.failed(self._context.ledger_id, error)
        self._pending = None
        self.pending_bytes = 0
        self._set_settled()
        self._stop_timer()

    def _pending_entry(self, entry_id: int) -> bytes | None:
        for group in self._pending or ():
            if group.first_entry_id <= entry_id <= group.last_entry_id:
                return group.entries[entry_id - group.first_entry_id]
        return None

    def settled(self) -> asyncio.Future[None] | None:
        """None when nothing is outstanding and no ensemble change is under way, or all has failed. Else what is done
        when that comes; by the time that somebody hears of it there may be more to wait for."""
        if self._settled:
            return None
        waiter: asyncio.Future[None] = self._loop.create_future()
        if self._settled_waiters is None:
            self._settled_waiters = []
        self._settled_waiters.append(waiter)
        return waiter

    def close(self) -> Awaitable[None]:
        """Stop at once; what is outstanding is not heard of any more. Await the end of a change that is under way."""
        self._appender.fail()
        self._stop_timer()
        self._set_settled()
        self._pending = None
        # All of these refer to the pipeline: each ledger that was rolled would else wait for the collector of cycles.
        self._listener = None
        self._changer = None
        self._places = []
        return stop_replacing(self._change_task)

    def _place(self, index: int, bookie_id: str) -> BookieAnswers:
        return BookieAnswers(self, index, bookie_id, self._connections.connection(bookie_id))

    def _send(self, index: int, entry_ids: Sequence[int], entries: Sequence[bytes]) -> None:
        context = self._context
        place = self._places[index]
        place.connection.add_entries(
            context.ledger_id, context.codec.master_key, entry_ids, entries, context.add_flags, place
        )

    def _confirmed(self) -> None:
        confirmed = self._appender.last_add_confirmed
        self._changes_in_a_row = 0
        pending = self._pending
        if pending is not None:
            count = 0
            for group in pending:
                if group.last_entry_id > confirmed:
                    break
                self.pending_bytes -= group.size_bytes
                count += 1
            if count == len(pending):
                self._pending = None
            else:
                del pending[:count]
        self._settle()
        if self._listener is not None:
            self._listener.confirmed(self._context.ledger_id, confirmed)

    def _settle(self) -> None:
        if not self._pending and self._appender.state is OPEN:
            self._set_settled()

    def _set_settled(self) -> None:
        self._settled = True
        waiters, self._settled_waiters = self._settled_waiters, None
        for waiter in waiters or ():
            if not waiter.done():
                waiter.set_result(None)

    def _bookie_failed(self, index: int, code: int) -> None:
        if index not in self._appender.failed_bookies:
            self._context.bookie_failed(self._places[index].bookie_id, code)
        changer = self._changer
        if self._appender.bookie_failed(index) and changer is not None:
            self._settled = False
            self._change_task = self._loop.create_task(
                replace_failed_bookies(self, changer),
                name=f"ensemble change of ledger {self._context.ledger_id}",
            )

    # --- what an ensemble change asks for (`ensemble_change.ChangingPipeline`)

    @property
    def ledger_id(self) -> int:
        """The ledger whose entries these are."""
        return self._context.ledger_id

    @property
    def change_pause_seconds(self) -> float:
        """The first pause between ensemble changes."""
        return self._context.settings.change_pause_seconds

    def next_change(self) -> tuple[int, list[str], list[int]] | None:
        """First entry, ensemble and failed places of the change that is needed now; None when none is."""
        appender = self._appender
        if appender.state is not CHANGING:
            return None
        return appender.last_add_confirmed + 1, self.ensemble, sorted(appender.failed_bookies)

    def count_change(self) -> int:
        """One more change is about to be made; how many there were since something was confirmed."""
        self._changes_in_a_row += 1
        return self._changes_in_a_row

    def install(self, changed: Sequence[str], indexes: Sequence[int]) -> None:
        """The change is recorded: send to the new bookies at these places what is not confirmed."""
        if self._appender.state is FAILED:
            return
        for index in indexes:
            self._places[index] = self._place(index, changed[index])
        self._silent_since_seconds = self._context.clock.monotonic_seconds()
        confirmed_before = self._appender.last_add_confirmed
        sends = self._appender.replaced(indexes)
        self._send_again(sends)
        if self._appender.last_add_confirmed > confirmed_before:
            self._confirmed()
        else:
            self._settle()

    def _send_again(self, sends: Sequence[Send]) -> None:
        if not sends:
            return
        entries: dict[int, bytes] = {}
        for group in self._pending or ():
            entries.update(zip(range(group.first_entry_id, group.last_entry_id + 1), group.entries, strict=True))
        for index, entry_ids in sends:
            self._send(index, entry_ids, [entries[entry_id] for entry_id in entry_ids])

    def _arm_timer(self) -> None:
        period = self._context.settings.add_timeout_seconds / TICKS_PER_TIMEOUT
        self._timer = self._loop.call_later(period, self._tick)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _tick(self) -> None:
        self._timer = None
        if not self._pending or self._appender.state is FAILED:
            return
        if self._appender.state is OPEN:
            since = max(self._pending[0].pushed_at_seconds, self._silent_since_seconds)
            if self._context.clock.monotonic_seconds() - since >= self._context.settings.add_timeout_seconds:
                for index in self._appender.silent_bookies(self._appender.quorum_up_to + 1):
                    self._bookie_failed(index, BookieCode.UNREACHABLE)
        self._arm_timer()
