"""One bookie: who may write, what is kept, when it is acknowledged.

Everything here runs on the event loop. An add goes into the write cache and to the journal in the same call, so the
journal's mark at any moment covers what older halves of the cache hold; it is answered when its group is on the disk.
"""

from __future__ import annotations

import asyncio
import logging
import struct
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

from magnetar.bookie import journal_format
from magnetar.bookie.checkpoint import Checkpointer
from magnetar.bookie.counters import BookieCounters, TimedAdd
from magnetar.bookie.directory_storage import ReadResult
from magnetar.bookie.journal import Context, Journal
from magnetar.bookie.ledger_state import LedgerState, LedgerStates, explicit_lac
from magnetar.bookie.storage import LedgerStorage
from magnetar.bookie.write_cache import WriteCache
from magnetar.core.clock import SystemClock
from magnetar.core.ids import NO_ENTRY
from magnetar.core.limits import MIB
from magnetar.ledger.bookie_connection import ADD_FLAG_HIGH_PRIORITY, ADD_FLAG_RECOVERY, AddCallback
from magnetar.wire.bookkeeper.codes import BookieCode, BookieError
from magnetar.wire.bookkeeper.entry import HEADER_BYTES

log = logging.getLogger(__name__)

HELD_BYTES_MAX: Final = 64 * MIB
"""Adds that wait because the disk is behind. Connections stop reading as soon as one add is held, so this is what
they had read already; beyond it adds are refused with ETOOMANYREQUESTS."""

LAC_WAITERS_MAX: Final = 1_000
"""Long polls of one ledger; a further one is answered at once."""

_LAC: Final = struct.Struct(">q")
_LAC_AT: Final = 16
_EOK: Final = int(BookieCode.EOK)

_HeldAdd: TypeAlias = tuple[int, bytes, Sequence[int], Sequence[bytes], int, AddCallback, int]


class Bookie:
    """Adds, reads, fencing, last add confirmed."""

    def __init__(
        self,
        storage: LedgerStorage,
        states: LedgerStates,
        checkpointer: Checkpointer,
        counters: BookieCounters | None = None,
    ) -> None:
        self._storage = storage
        self._states = states
        self._checkpointer = checkpointer
        self._caches: list[WriteCache] = storage.caches
        self._caches_count = len(storage.caches)
        self._journals: list[Journal] = []
        self._journals_count = 0
        self._loop = asyncio.get_running_loop()
        self._held: deque[_HeldAdd] = deque()
        self._held_bytes = 0
        self._holding_listeners: list[Callable[[bool], None]] = []
        self._stopped = False
        self.read_only = False
        """Ordinary adds are refused."""
        self.recovery_writes = True
        """In read-only mode: whether there is room for high priority adds (recoveries)."""
        self.added_entries = 0
        self.added_bytes = 0
        # What `counters` is told of once per journal group.
        self._entries_in_progress = 0
        self._entries_answered = 0
        self._entries_failed = 0
        self._bytes_taken = 0
        self.counters = counters if counters is not None else BookieCounters(SystemClock())

    def start(self, journals: Sequence[Journal]) -> None:
        """Take adds from here on; a ledger goes to one of the journals by its id. Their progress must be reported to
        `group_written`."""
        assert not self._journals
        self._journals = list(journals)
        self._journals_count = len(self._journals)

    def stop(self) -> None:
        """Take no more: adds that wait and all later ones are answered EREADONLY; what the journal has is finished."""
        self._stopped = True
        held, self._held = self._held, deque()
        self._held_bytes = self.counters.adds_held = 0
        for ledger_id, _, entry_ids, _, _, done, _ in held:
            self._loop.call_soon(done, int(BookieCode.EREADONLY), ledger_id, entry_ids)

    # Adds.

    def add_entries(
        self,
        ledger_id: int,
        master_key: bytes,
        entry_ids: Sequence[int],
        entries: Sequence[bytes],
        flags: int,
        done: AddCallback,
    ) -> None:
        """Store whole entries of one ledger, at least one. Never waits.

        `done(code, ledger_id, entry_ids)` is called once for all of them, never from inside this call: EOK when they
        are on the disk."""
        size = sum(map(len, entries))
        hold = bool(self._held) or self._full(ledger_id)
        if hold or flags & ADD_FLAG_RECOVERY:
            done = self.counters.timed_add(done, len(entry_ids), size, recovery=bool(flags & ADD_FLAG_RECOVERY))
        if self._stopped:
            self._refuse(done, int(BookieCode.EREADONLY), ledger_id, entry_ids)
        elif hold:
            self._hold((ledger_id, master_key, entry_ids, entries, flags, done, size))
        else:
            self._add(ledger_id, master_key, entry_ids, entries, flags, done, size)

    def _add(
        self,
        ledger_id: int,
        master_key: bytes,
        entry_ids: Sequence[int],
        entries: Sequence[bytes],
        flags: int,
        done: AddCallback,
        size: int,
    ) -> None:
        try:
            state = self._states.get_or_create(ledger_id)
        except (OSError, ValueError) as error:
            self._refuse(done, int(_unreadable(ledger_id, error).code), ledger_id, entry_ids)
            return
        if self.read_only or state.fenced or state.master_key != master_key or not state.key_logged:
            code = self._check_add(state, master_key, flags)
            if code:
                self._refuse(done, code, ledger_id, entry_ids)
                return
        records = list(entries)
        last_add_confirmed: int = _LAC.unpack_from(records[-1], _LAC_AT)[0]
        cache = self._caches[ledger_id % self._caches_count]
        cache.active.add(ledger_id, entry_ids, records, size)
        timed = isinstance(done, TimedAdd)
        journaled = self._journaled_timed if timed else self._journaled
        if not state.key_logged:
            self._claim(state, master_key)
            records.insert(0, journal_format.encode_master_key_record(ledger_id, master_key))
            journaled = self._first_journaled_timed if timed else self._first_journaled
        journal = self._journals[ledger_id % self._journals_count]
        journal.append(records, size, journaled, (done, ledger_id, entry_ids))
        if not timed:
            self._entries_in_progress += len(entry_ids)
            self._bytes_taken += size
        self.added_entries += len(entry_ids)
        self.added_bytes += size
        if cache.half_full:
            self._checkpointer.request()
        if last_add_confirmed > state.last_add_confirmed:
            self._advance_lac(state, last_add_confirmed)

    def _check_add(self, state: LedgerState, master_key: bytes, flags: int) -> int:
        if self.read_only and not (flags & ADD_FLAG_HIGH_PRIORITY and self.recovery_writes):
            return int(BookieCode.EREADONLY)
        if state.fenced and not flags & ADD_FLAG_RECOVERY:
            return int(BookieCode.EFENCED)
        if state.master_key and state.master_key != master_key:
            return int(BookieCode.EUA)
        return _EOK

    def _claim(self, state: LedgerState, master_key: bytes) -> None:
        if state.master_key != master_key:
            state.master_key = master_key
        self._states.touch(state)

    def _refuse(self, done: AddCallback, code: int, ledger_id: int, entry_ids: Sequence[int]) -> None:
        self._loop.call_soon(done, code, ledger_id, entry_ids)
        if not isinstance(done, TimedAdd):
            self.counters.add.record(0.0, len(entry_ids), success=False)

    def _journaled(self, code: int, context: Context) -> None:
        done, ledger_id, entry_ids = context
        if code == _EOK:
            self._entries_answered += len(entry_ids)
        else:
            self._entries_failed += len(entry_ids)
        done(code, ledger_id, entry_ids)

    def _journaled_timed(self, code: int, context: Context) -> None:
        done, ledger_id, entry_ids = context
        done(code, ledger_id, entry_ids)

    def _first_journaled(self, code: int, context: Context) -> None:
        self._key_journaled(code, context[1])
        self._journaled(code, context)

    def _first_journaled_timed(self, code: int, context: Context) -> None:
        self._key_journaled(code, context[1])
        self._journaled_timed(code, context)

    def _key_journaled(self, code: int, ledger_id: int) -> None:
        # Until the key's record is durable every append brings it: the first group may fail, and the next one not.
        state = self._states.known(ledger_id)
        if code == _EOK and state is not None:
            state.key_logged = True

    def group_written(self, waited_seconds: float) -> None:
        """A journal has told of a whole group, whose oldest append came that long ago."""
        counters = self.counters
        counters.adds_in_progress += self._entries_in_progress
        answered, failed = self._entries_answered, self._entries_failed
        counters.adds_answered(waited_seconds, answered, failed, self._bytes_taken)
        self._entries_in_progress = self._entries_answered = self._entries_failed = self._bytes_taken = 0
        self.resume()

    # Back-pressure.

    @property
    def holding(self) -> bool:
        """Whether adds are being held back because the disk is behind."""
        return bool(self._held)

    def watch_holding(self, listener: Callable[[bool], None]) -> Callable[[], None]:
        """Be told when adds begin to be held (True) and when none is any more (False); returns the way to stop."""
        self._holding_listeners.append(listener)
        return lambda: self._holding_listeners.remove(listener)

    def resume(self) -> None:
        """The journal or a checkpoint has made progress: let held adds go on."""
        if not self._held:
            return
        while self._held and not self._full(self._held[0][0]):
            add = self._held.popleft()
            self._held_bytes -= add[6]
            self.counters.adds_held -= len(add[2])
            self._add(*add)
        if not self._held:
            self._tell_holding(holding=False)

    def _full(self, ledger_id: int) -> bool:
        journal = self._journals[ledger_id % self._journals_count]
        return self._caches[ledger_id % self._caches_count].full or journal.full

    def _hold(self, add: _HeldAdd) -> None:
        if self._held_bytes + add[6] > HELD_BYTES_MAX:
            self.counters.adds_rejected += len(add[2])
            self._loop.call_soon(add[5], int(BookieCode.ETOOMANYREQUESTS), add[0], add[2])
            return
        self._held.append(add)
        self._held_bytes += add[6]
        self.counters.adds_held += len(add[2])
        if len(self._held) == 1:
            self._tell_holding(holding=True)

    def _tell_holding(self, *, holding: bool) -> None:
        for listener in tuple(self._holding_listeners):
            listener(holding)

    # Fencing and the last add confirmed.

    async def fence(self, ledger_id: int, master_key: bytes) -> None:
        """Refuse ordinary adds to a ledger from now on, durably; also of a ledger never seen. `BookieError`."""
        state = self._owned(ledger_id, master_key)
        state.fenced = True
        self._states.touch(state)
        if state.fence_durable:
            return
        records = [journal_format.encode_fence_record(ledger_id)]
        if not state.key_logged:
            self._claim(state, master_key)
            records.insert(0, journal_format.encode_master_key_record(ledger_id, master_key))
        await self._log(state, records, f"ledger {ledger_id} could not be fenced")
        state.key_logged = state.fence_durable = True

    async def write_lac(self, ledger_id: int, master_key: bytes, lac: int, packet: bytes) -> None:
        """Store an explicit LAC, durably if the journal's format has it. `BookieError`."""
        state = self._owned(ledger_id, master_key)
        records: list[bytes] = []
        if not state.key_logged:
            self._claim(state, master_key)
            records.append(journal_format.encode_master_key_record(ledger_id, master_key))
        if self._journals[ledger_id % self._journals_count].takes_explicit_lac:
            records.append(journal_format.encode_explicit_lac_record(ledger_id, packet))
        if state.take_explicit_lac(packet):
            self._states.touch(state)
        if lac > state.last_add_confirmed:
            self._advance_lac(state, lac)
        if records:
            await self._log(state, records, f"the LAC of ledger {ledger_id} could not be stored")
            state.key_logged = True

    async def read_lac(self, ledger_id: int) -> tuple[bytes, bytes]:
        """(explicit LAC packet or empty, last entry or empty). `BookieError` ENOLEDGER when there is no such ledger."""
        state = self._existing(ledger_id)
        last = (await self._storage.read_many([(ledger_id, -1)]))[0]
        if isinstance(last, BookieError):
            if last.code is not BookieCode.ENOENTRY:
                raise last
            last = b""
        return state.explicit_lac, last

    async def last_add_confirmed(self, ledger_id: int) -> int:
        """The greatest LAC that this bookie has been told of. `BookieError` ENOLEDGER."""
        state = self._existing(ledger_id)
        if state.last_add_confirmed == NO_ENTRY:
            packet, entry = await self.read_lac(ledger_id)
            known = explicit_lac(packet)
            if len(entry) >= HEADER_BYTES:
                known = max(known, _LAC.unpack_from(entry, _LAC_AT)[0])
            state.last_add_confirmed = max(known, state.last_add_confirmed)
        return state.last_add_confirmed

    def wait_for_lac(self, ledger_id: int, waiter: Callable[[int], None]) -> bool:
        """Have `waiter` called once when the LAC of the ledger grows; False when too many wait already.
        `BookieError` ENOLEDGER."""
        waiters = self._existing(ledger_id).lac_waiters
        if len(waiters) >= LAC_WAITERS_MAX:
            return False
        waiters.append(waiter)
        return True

    def stop_waiting_for_lac(self, ledger_id: int, waiter: Callable[[int], None]) -> None:
        """Take a waiter back; one that was called or never came is no error."""
        state = self._states.known(ledger_id)
        if state is not None and waiter in state.lac_waiters:
            state.lac_waiters.remove(waiter)

    def _owned(self, ledger_id: int, master_key: bytes) -> LedgerState:
        """The state of a ledger that the key gives access to; a new one if there is none. `BookieError`."""
        if ledger_id < 0:
            raise BookieError(BookieCode.EBADREQ, f"no ledger has the id {ledger_id}")
        try:
            state = self._states.get_or_create(ledger_id)
        except (OSError, ValueError) as error:
            raise _unreadable(ledger_id, error) from None
        if state.master_key and state.master_key != master_key:
            raise BookieError(BookieCode.EUA, f"wrong master key for ledger {ledger_id}")
        return state

    def _advance_lac(self, state: LedgerState, last_add_confirmed: int) -> None:
        state.last_add_confirmed = last_add_confirmed
        if state.lac_waiters:
            waiters, state.lac_waiters = state.lac_waiters, []
            for waiter in waiters:
                waiter(last_add_confirmed)

    async def _log(self, state: LedgerState, records: list[bytes], problem: str) -> None:
        if self._stopped:
            raise BookieError(BookieCode.EREADONLY, "the bookie is stopping")
        finished: asyncio.Future[int] = self._loop.create_future()

        def journaled(code: int, _: int, __: Sequence[int]) -> None:
            if not finished.done():
                finished.set_result(code)

        context: Context = (journaled, state.ledger_id, ())
        journal = self._journals[state.ledger_id % self._journals_count]
        journal.append(records, sum(map(len, records)), self._journaled, context)
        code = await finished
        if code != _EOK:
            raise BookieError(BookieCode(code), problem)

    # Reads.

    def cached_entry(self, ledger_id: int, entry_id: int) -> bytes | None:
        """An entry that is in memory."""
        return self._storage.cached_entry(ledger_id, entry_id)

    async def read_entries(self, wanted: Sequence[tuple[int, int]]) -> list[ReadResult]:
        """(ledger id, entry id; -1 the last one) → each entry or its error; one trip to the disk for all."""
        found = size = 0
        started = self.counters.read_started(len(wanted))
        try:
            results = await self._storage.read_many(wanted)
            for at, result in enumerate(results):
                if not isinstance(result, BookieError):
                    found += 1
                    size += len(result)
                elif result.code is BookieCode.ENOENTRY:
                    results[at] = self._why_missing(wanted[at][0], result)
        finally:
            self.counters.read_ended(started, len(wanted), found, size)
        return results

    async def read_entry(self, ledger_id: int, entry_id: int) -> bytes:
        """One entry. `BookieError` ENOLEDGER, ENOENTRY, EIO."""
        result = (await self.read_entries([(ledger_id, entry_id)]))[0]
        if isinstance(result, BookieError):
            raise result
        return result

    async def read_run(self, ledger_id: int, first_entry_id: int, count_max: int, size_bytes_max: int) -> list[bytes]:
        """Consecutive entries; at least one. `BookieError` ENOLEDGER, ENOENTRY, EIO."""
        entries: list[bytes] = []
        started = self.counters.read_started(1)
        try:
            entries = await self._storage.read_run(ledger_id, first_entry_id, max(1, count_max), size_bytes_max)
        finally:
            self.counters.read_ended(started, 1, len(entries), sum(map(len, entries)))
        if not entries:
            self._existing(ledger_id)
            raise BookieError(BookieCode.ENOENTRY, f"{ledger_id}:{first_entry_id}")
        return entries

    async def entry_ids(self, ledger_id: int) -> list[int]:
        """All ids that this bookie has of a ledger, ascending. `BookieError` ENOLEDGER."""
        self._existing(ledger_id)
        return await self._storage.entry_ids(ledger_id)

    def _why_missing(self, ledger_id: int, no_entry: BookieError) -> BookieError:
        try:
            self._existing(ledger_id)
        except BookieError as error:
            return error
        return no_entry

    def _existing(self, ledger_id: int) -> LedgerState:
        try:
            state = self._states.get(ledger_id)
        except (OSError, ValueError) as error:
            raise _unreadable(ledger_id, error) from None
        if state is None:
            raise BookieError(BookieCode.ENOLEDGER, f"ledger {ledger_id}")
        return state


def _unreadable(ledger_id: int, error: Exception) -> BookieError:
    log.error("the state of ledger %d cannot be read: %s", ledger_id, error)
    return BookieError(BookieCode.EIO, f"ledger {ledger_id}: {error}")
