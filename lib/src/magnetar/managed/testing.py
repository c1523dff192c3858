"""Ledgers in memory, for tests of what stands on managed ledgers: a ledger client with faults on demand."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from magnetar.core.errors import MagnetarError
from magnetar.core.ids import Position
from magnetar.ledger.api import (
    EntriesSeen,
    EntryNotFound,
    LedgerClosed,
    LedgerFenced,
    LedgerListener,
    LedgerNotFound,
    LedgerOptions,
    LedgerUnauthorized,
    LedgerUnavailable,
    NotEnoughBookies,
    nobody_told,
)
from magnetar.managed.cursors.cursor import Cursor
from magnetar.managed.factory import ManagedLedgerFactory
from magnetar.managed.managed_ledger import ManagedLedger
from magnetar.managed.settings import ManagedLedgerSettings
from magnetar.metadata.memory import MemoryMetadataStore
from magnetar.metadata.store import MetadataStore
from magnetar.tiered.offloaders import Offloaders
from magnetar.wire.bookkeeper.ledger_metadata import LedgerMetadata, LedgerState


class ManualClock:
    """A clock that stands still until it is moved."""

    def __init__(self) -> None:
        self.ms: int = 1_700_000_000_000

    def now_ms(self) -> int:
        """Milliseconds since 1970."""
        return self.ms

    def monotonic_seconds(self) -> float:
        """The time in seconds, which only the test moves on."""
        return self.ms / 1000


class ManagedWorld:
    """Metadata and ledgers in memory, which outlive the factories on them. A factory that is not closed before the
    next one opens a topic is a killed owner."""

    def __init__(self) -> None:
        self.clock: ManualClock = ManualClock()
        self.store: MemoryMetadataStore = MemoryMetadataStore()
        self.ledgers: MemoryLedgers = MemoryLedgers()
        self._factories: list[ManagedLedgerFactory] = []

    def factory(
        self,
        settings: ManagedLedgerSettings | None = None,
        cache_bytes_max: int = 1 << 20,
        store: MetadataStore | None = None,
        offloaders: Offloaders | None = None,
    ) -> ManagedLedgerFactory:
        """Another owner of topics, with a way to the metadata of its own if it is given one."""
        loop = asyncio.get_running_loop()
        factory = ManagedLedgerFactory(
            store or self.store,
            self.ledgers,
            self.clock,
            loop,
            cache_bytes_max=cache_bytes_max,
            settings=settings,
            offloaders=offloaders,
        )
        self._factories.append(factory)
        return factory

    async def settle(self) -> None:
        """Give everything that is ready its turns."""
        for _ in range(50):
            await asyncio.sleep(0)

    async def close(self) -> None:
        """Close all factories, and the store."""
        self.ledgers.release()
        for factory in self._factories:
            await factory.close()
        await self.store.close()


async def append(ledger: ManagedLedger, payloads: Sequence[bytes]) -> Position:
    """Append one batch and wait; the position of its first entry."""
    outcome: asyncio.Future[Position] = asyncio.get_running_loop().create_future()

    def done(error: MagnetarError | None, ledger_id: int, first_entry_id: int, context: object) -> None:
        if error is None:
            outcome.set_result((ledger_id, first_entry_id))
        else:
            outcome.set_exception(error)

    ledger.appends.append(payloads, done, None)
    return await outcome


async def read_all(cursor: Cursor) -> list[bytes]:
    """Payloads until the cursor has caught up."""
    found: list[bytes] = []
    while entries := await cursor.read(7, 1 << 20):
        found += [entry.data for entry in entries]
    return found


class MemoryLedgerState:
    """One ledger's entries and state; outlives clients."""

    def __init__(self, options: LedgerOptions) -> None:
        self.options: LedgerOptions = options
        self.entries: list[bytes] = []
        self.closed: bool = False
        self.fenced: bool = False
        self.observers: list[Callable[[], None]] = []
        """Told when it is closed."""

    def close(self) -> None:
        """It has its end."""
        self.closed = True
        for told in list(self.observers):
            told()

    def copy(self) -> MemoryLedgerState:
        """A copy that changes apart from this."""
        copied = MemoryLedgerState(self.options)
        copied.entries = list(self.entries)
        copied.closed, copied.fenced = self.closed, self.fenced
        return copied


class MemoryLedgers:
    """A LedgerClient. Confirmations come with the next turn of the loop, unless `hold` is set."""

    def __init__(self) -> None:
        self.stored: dict[int, MemoryLedgerState] = {}
        self.refuse_creation: MagnetarError | None = None
        """Every creation fails with this while it is set."""
        self.fail_appends_after: int | None = None
        """So many more entries are confirmed, then the ledger in use fails; the next ledger works."""
        self.hold: bool = False
        """Nothing is confirmed while this is set; `release` goes on."""
        self.delay_seconds: float = 0.0
        """How long a confirmation takes; 0: until the next turn of the loop."""
        self.unreachable: bool = False
        """While this is set no bookie answers: nothing can be made, opened, read or confirmed."""
        self.away: set[int] = set()
        """Ledgers that cannot be recovered or read while they are in here."""
        self.keep_failed: bool = False
        """Entries that a ledger was sent when it failed are stored all the same, unconfirmed: a recovery finds them."""
        self.reads: int = 0
        self._held: list[MemoryWriter] = []
        self._next_id: int = 0

    async def create(self, options: LedgerOptions, listener: LedgerListener) -> MemoryWriter:
        """A new, empty, open ledger. `NotEnoughBookies`, `Unavailable`."""
        await asyncio.sleep(0)
        if self.unreachable:
            raise NotEnoughBookies("0 of 1")
        if self.refuse_creation is not None:
            raise self.refuse_creation
        ledger_id, self._next_id = self._next_id, self._next_id + 1
        if options.announce is not None:
            await options.announce(ledger_id)
        self.stored[ledger_id] = MemoryLedgerState(options)
        return MemoryWriter(self, ledger_id, listener)

    async def open(self, ledger_id: int, *, password: bytes = b"", recover: bool) -> MemoryReader:
        """Open for reading. With `recover`: fence the writer, find the true end, close it. Without: look only."""
        await asyncio.sleep(0)
        stored = self.find(ledger_id)
        if stored.options.password != password:
            raise LedgerUnauthorized(f"ledger {ledger_id}")
        if recover and not stored.closed and (self.unreachable or ledger_id in self.away):
            raise LedgerUnavailable(f"ledger {ledger_id}: 0 of 1 bookies answered")
        if recover and not stored.closed:
            stored.fenced = True
            stored.close()
        return MemoryReader(self, ledger_id, stored.closed)

    async def observe(
        self, ledger_id: int, *, password: bytes = b"", changed: Callable[[], None] = nobody_told
    ) -> MemoryObserver:
        """Open a ledger that somebody else may be writing, without recovery; `changed` is told when it is closed."""
        await asyncio.sleep(0)
        stored = self.find(ledger_id)
        if stored.options.password != password:
            raise LedgerUnauthorized(f"ledger {ledger_id}")
        return MemoryObserver(self, ledger_id, changed)

    async def describe(self, ledger_id: int) -> LedgerMetadata:
        """The ledger's record in the metadata store. `LedgerNotFound`, `Unavailable`."""
        await asyncio.sleep(0)
        stored = self.find(ledger_id)
        return LedgerMetadata(
            ensemble_size=stored.options.ensemble_size,
            write_quorum=stored.options.write_quorum,
            ack_quorum=stored.options.ack_quorum,
            ensembles=[(0, [f"127.0.0.1:{3181 + index}" for index in range(stored.options.ensemble_size)])],
            state=LedgerState.CLOSED if stored.closed else LedgerState.OPEN,
            last_entry_id=len(stored.entries) - 1 if stored.closed else -1,
            length_bytes=sum(map(len, stored.entries)) if stored.closed else 0,
            digest_type=stored.options.digest_type,
            password=stored.options.password,
            custom_metadata=dict(stored.options.custom_metadata),
        )

    async def delete(self, ledger_id: int) -> None:
        """Remove the ledger's metadata; bookies collect the entries. A missing ledger is no error."""
        await asyncio.sleep(0)
        self.stored.pop(ledger_id, None)

    async def close(self) -> None:
        """Nothing to let go of."""

    def find(self, ledger_id: int) -> MemoryLedgerState:
        """The stored ledger. `LedgerNotFound`."""
        stored = self.stored.get(ledger_id)
        if stored is None:
            raise LedgerNotFound(f"ledger {ledger_id}")
        return stored

    def copy(self) -> MemoryLedgers:
        """Bookies that hold what these hold now, and are well."""
        copied = MemoryLedgers()
        copied.stored = {ledger_id: stored.copy() for ledger_id, stored in self.stored.items()}
        copied._next_id = self._next_id
        return copied

    def not_enough_bookies(self) -> None:
        """Let creations fail from now on."""
        self.refuse_creation = NotEnoughBookies("0 of 1")

    def release(self) -> None:
        """Confirm what was held back, and hold no more."""
        self.hold = False
        held, self._held = self._held, []
        for writer in held:
            writer.confirm_soon()

    def keep_waiting(self, writer: MemoryWriter) -> None:
        """From a writer while `hold` is set."""
        self._held.append(writer)

    async def payloads(self, ledger_id: int, first: int, last: int) -> list[bytes]:
        """Entries of a ledger."""
        self.reads += 1
        await asyncio.sleep(0)
        entries = self.find(ledger_id).entries
        if self.unreachable or ledger_id in self.away:
            raise LedgerUnavailable(f"ledger {ledger_id}: no bookie answers")
        if not 0 <= first <= last < len(entries):
            raise EntryNotFound(f"{first}..{last} of ledger {ledger_id}")
        return entries[first : last + 1]


class MemoryWriter:
    """A LedgerWriter: entries are stored when they are confirmed."""

    def __init__(self, ledgers: MemoryLedgers, ledger_id: int, listener: LedgerListener) -> None:
        self.ledger_id: int = ledger_id
        self.last_add_confirmed: int = -1
        self.last_add_pushed: int = -1
        self.length_bytes: int = 0
        self._ledgers: MemoryLedgers = ledgers
        self._stored: MemoryLedgerState = ledgers.stored[ledger_id]
        self._listener: LedgerListener = listener
        self._pushed: list[bytes] = []
        self._scheduled: bool = False
        self._closed: bool = False
        self._drained: asyncio.Event | None = None
        self._loop: asyncio.AbstractEventLoop = asyncio.get_running_loop()

    def append(self, payloads: Sequence[bytes]) -> int:
        """Send entries on their way; returns the first one's id, the rest follow. The listener hears the outcome.
        Raises `LedgerClosed` or `LedgerFenced` if the ledger takes no more."""
        if self._closed:
            raise LedgerClosed(f"ledger {self.ledger_id}")
        first = self.last_add_pushed + 1
        self.last_add_pushed += len(payloads)
        self._pushed += payloads
        self.confirm_soon()
        return first

    def confirm_soon(self) -> None:
        """Confirm when the time has come."""
        if not self._scheduled:
            self._scheduled = True
            if self._ledgers.delay_seconds:
                self._loop.call_later(self._ledgers.delay_seconds, self._confirm)
            else:
                self._loop.call_soon(self._confirm)

    async def read(self, first_entry_id: int, last_entry_id: int) -> list[bytes]:
        """Payloads of entries first..last (both confirmed), digests checked."""
        return await self._ledgers.payloads(self.ledger_id, first_entry_id, last_entry_id)

    async def close(self) -> None:
        """Wait for what is outstanding, then write the closed state. Closing twice is no error."""
        if self._pushed and not self._closed:
            self._drained = asyncio.Event()
            await self._drained.wait()
        self._closed = True
        if self._stored.fenced:
            raise LedgerFenced(f"ledger {self.ledger_id}")
        # What was never confirmed is no part of it.
        del self._stored.entries[self.last_add_confirmed + 1 :]
        self._stored.close()

    async def abandon(self) -> None:
        """Let go without writing anything; the next owner recovers the ledger."""
        self._closed = True
        self._pushed = []

    def _confirm(self) -> None:
        self._scheduled = False
        if self._closed or not self._pushed:
            return
        if self._ledgers.hold:
            self._ledgers.keep_waiting(self)
            return
        if self._stored.fenced:
            self._fail(LedgerFenced(f"ledger {self.ledger_id}"))
            return
        if self._ledgers.unreachable:
            self._fail(LedgerUnavailable(f"ledger {self.ledger_id}: no bookie answers"))
            return
        pushed, self._pushed = self._pushed, []
        room = self._ledgers.fail_appends_after
        if room is not None:
            self._ledgers.fail_appends_after = room - len(pushed) if room > len(pushed) else None
            rest = pushed[room:]
            pushed = pushed[:room]
        if pushed:
            self._stored.entries += pushed
            self.length_bytes += sum(map(len, pushed))
            self.last_add_confirmed += len(pushed)
            self._listener.confirmed(self.ledger_id, self.last_add_confirmed)
        if room is not None and (rest or self._ledgers.fail_appends_after is None):
            if self._ledgers.keep_failed:
                self._stored.entries += rest
            self._fail(LedgerUnavailable(f"ledger {self.ledger_id}: no quorum"))
        if self._drained is not None:
            self._drained.set()

    def _fail(self, error: MagnetarError) -> None:
        self._closed = True
        self._pushed = []
        if self._drained is not None:
            self._drained.set()
        self._listener.failed(self.ledger_id, error)


class MemoryReader:
    """A `LedgerReader` of a ledger in memory."""

    def __init__(self, ledgers: MemoryLedgers, ledger_id: int, closed: bool) -> None:
        entries = ledgers.stored[ledger_id].entries
        self.ledger_id: int = ledger_id
        self.last_add_confirmed: int = len(entries) - 1
        self.length_bytes: int = sum(map(len, entries))
        self.closed: bool = closed
        self._ledgers: MemoryLedgers = ledgers

    async def read(self, first_entry_id: int, last_entry_id: int) -> list[bytes]:
        """Payloads of entries first..last, digests checked; fewer, at least one, when a later one cannot be had.
        `EntryNotFound` beyond the last confirmed one, `EntryUnreadable`, `LedgerUnavailable`."""
        return await self._ledgers.payloads(self.ledger_id, first_entry_id, last_entry_id)

    async def close(self) -> None:
        """Nothing to let go of."""


class MemoryObserver(MemoryReader):
    """A `LedgerObserver` of a ledger in memory. As at bookies, the last entry of an open ledger is not known to be
    confirmed before there is another one."""

    nothing_beyond: bool = True

    def __init__(self, ledgers: MemoryLedgers, ledger_id: int, changed: Callable[[], None]) -> None:
        stored = ledgers.find(ledger_id)
        super().__init__(ledgers, ledger_id, closed=False)
        self.last_add_confirmed = -1
        self.length_bytes = 0
        self._changed: Callable[[], None] = changed
        self._state: MemoryLedgerState = stored
        stored.observers.append(changed)
        self._take()

    def vouch(self, last_entry_id: int) -> None:
        """Somebody knows that all up to this entry are confirmed: they may be read."""
        if not self.closed:
            self.last_add_confirmed = max(self.last_add_confirmed, last_entry_id)

    async def refresh(self) -> None:
        """Look whether it is closed. `LedgerNotFound`."""
        await asyncio.sleep(0)
        self._ledgers.find(self.ledger_id)
        self._take()

    async def ask(self) -> None:
        """Ask how far the ledger is confirmed. `LedgerUnavailable`."""
        await asyncio.sleep(0)
        self._reachable()
        if not self.closed and len(self._state.entries) - 2 > self.last_add_confirmed:
            self.vouch(len(self._state.entries) - 2)
            self.length_bytes = sum(map(len, self._state.entries[:-1]))

    async def look(self, first_entry_id: int, size_bytes_max: int, *, told: bool = False) -> EntriesSeen:
        """The entries from this one on, whether confirmed or not. `LedgerUnavailable`."""
        await asyncio.sleep(0)
        self._reachable()
        payloads: list[bytes] = []
        size_bytes = 0
        for payload in self._state.entries[first_entry_id:]:
            size_bytes += len(payload)
            if payloads and size_bytes > size_bytes_max:
                break
            payloads.append(payload)
        if not payloads:
            return EntriesSeen([], 0)
        self.vouch(first_entry_id + len(payloads) - 2)
        return EntriesSeen(payloads, sum(map(len, self._state.entries[:first_entry_id])))

    async def close(self) -> None:
        """Look at it no more."""
        if self._changed in self._state.observers:
            self._state.observers.remove(self._changed)

    def _take(self) -> None:
        if self._state.closed:
            self.closed = True
            self.last_add_confirmed = len(self._state.entries) - 1
            self.length_bytes = sum(map(len, self._state.entries))

    def _reachable(self) -> None:
        self._ledgers.find(self.ledger_id)
        if self._ledgers.unreachable or self.ledger_id in self._ledgers.away:
            raise LedgerUnavailable(f"ledger {self.ledger_id}: no bookie answers")
