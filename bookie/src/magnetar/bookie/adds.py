"""The adds of a bookie: who may write, what is kept, when it is acknowledged.

An add goes into the write cache and to the journal in the same call, so the journal's mark at any moment covers what
older halves of the cache hold; it is answered when its group is on the disk. What waits stands in `bookie.py`.

Hot: compiled by mypyc (see CONTRIBUTING).
"""

from __future__ import annotations

import asyncio
import struct
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

from magnetar.bookie.checkpoint import Checkpointer
from magnetar.bookie.counters import BookieCounters, TimedAdd
from magnetar.bookie.journal import format as journal_format
from magnetar.bookie.journal.journal import Context, Journal
from magnetar.bookie.ledger_state import BookieLedgerState, LedgerStates, unreadable_state
from magnetar.bookie.storage.write_cache import WriteCache
from magnetar.core.limits import MIB
from magnetar.ledger.bookie_client.bookie_connection import ADD_FLAG_HIGH_PRIORITY, ADD_FLAG_RECOVERY, AddCallback
from magnetar.wire.bookkeeper.codes import BookieCode

HELD_BYTES_MAX: Final = 64 * MIB
"""Adds that wait because the disk is behind. Connections stop reading as soon as one add is held, so this is what
they had read already; beyond it adds are refused with ETOOMANYREQUESTS."""

_LAC: Final = struct.Struct(">q")
_LAC_AT: Final = 16
_EOK: Final = int(BookieCode.EOK)

_HeldAdd: TypeAlias = tuple[int, bytes, Sequence[int], Sequence[bytes], int, AddCallback, int]


class BookieAdds:
    """Takes adds, and what else goes to the journal."""

    def __init__(
        self, caches: list[WriteCache], states: LedgerStates, checkpointer: Checkpointer, counters: BookieCounters
    ) -> None:
        self._states = states
        self._checkpointer = checkpointer
        self._caches: list[WriteCache] = caches
        self._caches_count = len(caches)
        self._journals: list[Journal] = []
        self._journals_count = 0
        self._loop = asyncio.get_running_loop()
        self._held: deque[_HeldAdd] = deque()
        self._held_bytes = 0
        self.holding_listeners: list[Callable[[bool], None]] = []
        """Told when adds begin to be held (True) and when none is any more (False)."""
        self.stopped = False
        self.read_only = False
        """Whether ordinary adds are refused, as the bookie is read-only."""
        self.recovery_writes = True
        """In read-only mode: whether there is room for high priority adds (recoveries)."""
        # What `counters` is told of once per journal group.
        self._entries_in_progress = 0
        self._entries_answered = 0
        self._entries_failed = 0
        self._bytes_taken = 0
        self.counters: BookieCounters = counters

    def start(self, journals: Sequence[Journal]) -> None:
        """Take adds from here on; a ledger goes to one of the journals by its id. Their progress must be reported to
        `group_written`."""
        assert not self._journals
        self._journals = list(journals)
        self._journals_count = len(self._journals)

    def stop(self) -> None:
        """Take no more: adds that wait and all later ones are answered EREADONLY; what the journal has is finished."""
        self.stopped = True
        held, self._held = self._held, deque()
        self._held_bytes = self.counters.adds_held = 0
        for ledger_id, _, entry_ids, _, _, done, _ in held:
            self._loop.call_soon(done, int(BookieCode.EREADONLY), ledger_id, entry_ids)

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
        if self.stopped:
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
            self._refuse(done, int(unreadable_state(ledger_id, error).code), ledger_id, entry_ids)
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
            self.claim(state, master_key)
            records.insert(0, journal_format.encode_master_key_record(ledger_id, master_key))
            journaled = self._first_journaled_timed if timed else self._first_journaled
        journal = self._journals[ledger_id % self._journals_count]
        journal.append(records, size, journaled, (done, ledger_id, entry_ids))
        if not timed:
            self._entries_in_progress += len(entry_ids)
            self._bytes_taken += size
        if cache.half_full:
            self._checkpointer.request()
        if last_add_confirmed > state.last_add_confirmed:
            self.advance_lac(state, last_add_confirmed)

    def _check_add(self, state: BookieLedgerState, master_key: bytes, flags: int) -> int:
        if self.read_only and not (flags & ADD_FLAG_HIGH_PRIORITY and self.recovery_writes):
            return int(BookieCode.EREADONLY)
        if state.fenced and not flags & ADD_FLAG_RECOVERY:
            return int(BookieCode.EFENCED)
        if state.master_key and state.master_key != master_key:
            return int(BookieCode.EUA)
        return _EOK

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

    @property
    def holding(self) -> bool:
        """Whether adds are being held back because the disk is behind."""
        return bool(self._held)

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
        for listener in tuple(self.holding_listeners):
            listener(holding)

    # --- what else is journaled

    def takes_explicit_lac(self, ledger_id: int) -> bool:
        """Whether the journal of a ledger has records for explicit LACs."""
        return self._journals[ledger_id % self._journals_count].takes_explicit_lac

    def log(self, ledger_id: int, records: list[bytes], done: AddCallback) -> None:
        """Have records of a ledger made durable; `done(code, ledger_id, ())` later."""
        journal = self._journals[ledger_id % self._journals_count]
        journal.append(records, sum(map(len, records)), self._journaled, (done, ledger_id, ()))

    def claim(self, state: BookieLedgerState, master_key: bytes) -> None:
        """The ledger belongs to whoever has this key; a record of it has to go to the journal."""
        if state.master_key != master_key:
            state.master_key = master_key
        self._states.touch(state)
        if self._states.crowded():
            self._checkpointer.request()

    def advance_lac(self, state: BookieLedgerState, last_add_confirmed: int) -> None:
        """A greater LAC was heard of: tell who waits for it."""
        state.last_add_confirmed = last_add_confirmed
        if state.lac_waiters:
            waiters, state.lac_waiters = state.lac_waiters, []
            for waiter in waiters:
                waiter(last_add_confirmed)
