"""One bookie: adds, fences, the last add confirmed, reads. Everything here runs on the event loop."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable, Sequence
from typing import Final

from magnetar.bookie.adds import BookieAdds
from magnetar.bookie.checkpoint import Checkpointer
from magnetar.bookie.counters import BookieCounters
from magnetar.bookie.journal import format as journal_format
from magnetar.bookie.ledger_state import BookieLedgerState, LedgerStates, explicit_lac, unreadable_state
from magnetar.bookie.storage.directory_storage import NOT_READ, READ_BYTES_UNBOUNDED, ReadResult
from magnetar.bookie.storage.ledger_storage import LedgerStorage
from magnetar.core.clock import SystemClock
from magnetar.core.ids import NO_ENTRY
from magnetar.ledger.bookie_client.bookie_connection import AddCallback
from magnetar.wire.bookkeeper.codes import BookieCode, BookieError
from magnetar.wire.bookkeeper.entry import HEADER_BYTES, MASTER_KEY_BYTES

LAC_WAITERS_MAX: Final = 1_000
"""Long polls of one ledger; a further one is answered at once."""

_LAC: Final = struct.Struct(">q")
_LAC_AT: Final = 16


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
        self.counters = counters if counters is not None else BookieCounters(SystemClock())
        self.adds = adds = BookieAdds(storage.caches, states, checkpointer, self.counters)
        self.add_entries: Callable[[int, bytes, Sequence[int], Sequence[bytes], int, AddCallback], None]
        """`BookieAdds.add_entries`, without a call in between."""
        self.add_entries = adds.add_entries

    # --- back-pressure

    def watch_holding(self, listener: Callable[[bool], None]) -> Callable[[], None]:
        """Be told when adds begin to be held (True) and when none is any more (False); returns the way to stop."""
        self.adds.holding_listeners.append(listener)
        return lambda: self.adds.holding_listeners.remove(listener)

    # --- fencing and the last add confirmed

    async def fence(self, ledger_id: int, master_key: bytes) -> None:
        """Refuse ordinary adds to a ledger from now on, durably; also of a ledger never seen. `BookieError`."""
        state = self._owned(ledger_id, master_key)
        state.fenced = True
        self._states.touch(state)
        if state.fence_durable:
            return
        records = [journal_format.encode_fence_record(ledger_id)]
        if not state.key_logged:
            self.adds.claim(state, master_key)
            records.insert(0, journal_format.encode_master_key_record(ledger_id, master_key))
        await self._log(state, records, f"ledger {ledger_id} could not be fenced")
        state.key_logged = state.fence_durable = True

    async def write_lac(self, ledger_id: int, master_key: bytes, lac: int, packet: bytes) -> None:
        """Store an explicit LAC, durably if the journal's format has it. `BookieError`."""
        state = self._owned(ledger_id, master_key)
        records: list[bytes] = []
        if not state.key_logged:
            self.adds.claim(state, master_key)
            records.append(journal_format.encode_master_key_record(ledger_id, master_key))
        if self.adds.takes_explicit_lac(ledger_id):
            records.append(journal_format.encode_explicit_lac_record(ledger_id, packet))
        if state.take_explicit_lac(packet):
            self._states.touch(state)
        if lac > state.last_add_confirmed:
            self.adds.advance_lac(state, lac)
        if records:
            await self._log(state, records, f"the LAC of ledger {ledger_id} could not be stored")
            state.key_logged = True

    async def read_lac(self, ledger_id: int) -> tuple[bytes, bytes]:
        """(explicit LAC packet or empty, last entry or empty). `BookieError` ENOLEDGER when there is no such ledger,
        EUNKNOWNLEDGERSTATE."""
        state = self._settled(ledger_id)
        last = (await self._storage.read_many([(ledger_id, -1)]))[0]
        if isinstance(last, BookieError):
            if last.code is not BookieCode.ENOENTRY:
                raise last
            last = b""
        return state.explicit_lac, last

    async def last_add_confirmed(self, ledger_id: int) -> int:
        """The greatest LAC that this bookie has been told of. `BookieError` ENOLEDGER, EUNKNOWNLEDGERSTATE."""
        state = self._settled(ledger_id)
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

    def _owned(self, ledger_id: int, master_key: bytes) -> BookieLedgerState:
        """The state of a ledger that the key gives access to; a new one if there is none. `BookieError`."""
        if ledger_id < 0:
            raise BookieError(BookieCode.EBADREQ, f"no ledger has the id {ledger_id}")
        if len(master_key) > MASTER_KEY_BYTES:
            # Each ledger's key is kept in memory, index and journal; keys of 5 MB would fill all three.
            raise BookieError(BookieCode.EBADREQ, f"no ledger has a master key of {len(master_key)} bytes")
        try:
            state = self._states.get_or_create(ledger_id)
        except (OSError, ValueError) as error:
            raise unreadable_state(ledger_id, error) from None
        if state.master_key and state.master_key != master_key:
            raise BookieError(BookieCode.EUA, f"wrong master key for ledger {ledger_id}")
        return state

    async def _log(self, state: BookieLedgerState, records: list[bytes], problem: str) -> None:
        if self.adds.stopped:
            raise BookieError(BookieCode.EREADONLY, "the bookie is stopping")
        finished: asyncio.Future[int] = asyncio.get_running_loop().create_future()

        def journaled(code: int, ledger_id: int, entry_ids: Sequence[int]) -> None:
            del ledger_id, entry_ids
            if not finished.done():
                finished.set_result(code)

        self.adds.log(state.ledger_id, records, journaled)
        code = await finished
        if code != BookieCode.EOK:
            raise BookieError(BookieCode(code), problem)

    # --- reads

    def cached_entry(self, ledger_id: int, entry_id: int) -> bytes | None:
        """An entry that is in memory."""
        return self._storage.cached_entry(ledger_id, entry_id)

    async def read_entries(
        self, wanted: Sequence[tuple[int, int]], size_bytes_max: int = READ_BYTES_UNBOUNDED
    ) -> list[ReadResult]:
        """(ledger id, entry id; -1 the last one) → each entry or its error; one trip to the disk for all. Those behind
        `size_bytes_max` are `NOT_READ`."""
        found = size = left = 0
        left_limbo = self._states.left_limbo
        started = self.counters.read_started(len(wanted))
        try:
            results = await self._storage.read_many(wanted, size_bytes_max)
            for at, result in enumerate(results):
                if wanted[at][1] < 0 and not isinstance(result, BookieError):
                    results[at] = result = self._checked_last(wanted[at][0], result, left_limbo)
                if not isinstance(result, BookieError):
                    found += 1
                    size += len(result)
                elif result.code is BookieCode.ENOENTRY:
                    results[at] = self._why_missing(wanted[at][0], result, left_limbo)
                elif result is NOT_READ:
                    left += 1
        finally:
            self.counters.reads_in_progress -= left
            self.counters.read_ended(started, len(wanted) - left, found, size)
        return results

    async def read_entry(self, ledger_id: int, entry_id: int) -> bytes:
        """One entry. `BookieError` ENOLEDGER, ENOENTRY, EIO, EUNKNOWNLEDGERSTATE."""
        result = (await self.read_entries([(ledger_id, entry_id)]))[0]
        if isinstance(result, BookieError):
            raise result
        return result

    async def read_run(self, ledger_id: int, first_entry_id: int, count_max: int, size_bytes_max: int) -> list[bytes]:
        """Consecutive entries; at least one. `BookieError` ENOLEDGER, ENOENTRY, EIO."""
        entries: list[bytes] = []
        left_limbo = self._states.left_limbo
        started = self.counters.read_started(1)
        try:
            entries = await self._storage.read_run(ledger_id, first_entry_id, max(1, count_max), size_bytes_max)
        finally:
            self.counters.read_ended(started, 1, len(entries), sum(map(len, entries)))
        if not entries:
            self._settled_since(ledger_id, left_limbo)
            raise BookieError(BookieCode.ENOENTRY, f"{ledger_id}:{first_entry_id}")
        return entries

    async def entry_ids(self, ledger_id: int) -> list[int]:
        """All ids that this bookie has of a ledger, ascending. `BookieError` ENOLEDGER, EUNKNOWNLEDGERSTATE."""
        self._settled(ledger_id)
        return await self._storage.entry_ids(ledger_id)

    def _why_missing(self, ledger_id: int, no_entry: BookieError, left_limbo: int) -> BookieError:
        try:
            self._settled_since(ledger_id, left_limbo)
        except BookieError as error:
            return error
        return no_entry

    def _checked_last(self, ledger_id: int, entry: bytes, left_limbo: int) -> ReadResult:
        """A ledger's last entry here, unless there may have been later ones."""
        try:
            self._settled_since(ledger_id, left_limbo)
        except BookieError as error:
            return entry if error.code is BookieCode.ENOLEDGER else error
        return entry

    def _settled(self, ledger_id: int) -> BookieLedgerState:
        """The state of a ledger of which nothing may be missing. `BookieError` ENOLEDGER, EUNKNOWNLEDGERSTATE."""
        state = self._existing(ledger_id)
        if state.limbo:
            raise _unknown(ledger_id)
        return state

    def _settled_since(self, ledger_id: int, left_limbo: int) -> None:
        """Raises what `_settled` raises, and EUNKNOWNLEDGERSTATE if a ledger has left limbo since `left_limbo` was
        looked at: it may have been healed behind the read's back. Whoever asks once more gets what is here."""
        self._settled(ledger_id)
        if left_limbo != self._states.left_limbo:
            raise _unknown(ledger_id)

    def _existing(self, ledger_id: int) -> BookieLedgerState:
        try:
            state = self._states.get(ledger_id)
        except (OSError, ValueError) as error:
            raise unreadable_state(ledger_id, error) from None
        if state is None:
            raise BookieError(BookieCode.ENOLEDGER, f"ledger {ledger_id}")
        return state


def _unknown(ledger_id: int) -> BookieError:
    return BookieError(BookieCode.EUNKNOWNLEDGERSTATE, f"ledger {ledger_id} is in limbo: entries may be missing here")
