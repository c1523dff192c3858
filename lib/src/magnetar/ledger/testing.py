"""Bookies in memory for tests: the rules of real ones, and switches for everything that can go wrong with them."""

from __future__ import annotations

import asyncio
import enum
from bisect import bisect_right
from collections.abc import Callable, Collection, Sequence
from typing import Final, TypeAlias

from magnetar.ledger.bookie_client.bookie_connection import (
    ADD_FLAG_RECOVERY,
    LAST_ADD_CONFIRMED,
    READ_FLAG_FENCE,
    READ_FLAG_NONE,
    AddCallback,
)
from magnetar.ledger.ledger_paths import AVAILABLE_PATH
from magnetar.metadata.store import MetadataStore
from magnetar.wire.bookkeeper.codes import BookieCode, BookieError
from magnetar.wire.bookkeeper.entry import EntryRun, run_of

ANSWER_TIMEOUT_SECONDS: Final = 0.02
"""After this long a read of a hanging bookie is given up, as a real connection does after its own timeout."""


class Health(enum.Enum):
    """How a bookie behaves."""

    HEALTHY = enum.auto()
    STOPPED = enum.auto()
    """Adds and reads answer UNREACHABLE at once; it keeps what it has."""
    HANGING = enum.auto()
    """Adds are held, neither stored nor answered; reads answer UNREACHABLE after a while."""
    MUTE = enum.auto()
    """Adds are stored but never answered; reads answer UNREACHABLE after a while."""


class MemoryLedger:
    """What one bookie knows of one ledger."""

    def __init__(self, master_key: bytes) -> None:
        self.master_key = master_key
        self.entries: dict[int, bytes] = {}
        self.fenced = False


Add: TypeAlias = tuple[int, bytes, Sequence[int], Sequence[bytes], int, AddCallback]
"""(ledger id, master key, entry ids, entries, flags, done)."""


class MemoryBookie:
    """A bookie and the connection to it: a `BookieConnection`."""

    def __init__(self, bookie_id: str) -> None:
        self.bookie_id = bookie_id
        self.ledgers: dict[int, MemoryLedger] = {}
        self.health = Health.HEALTHY
        self.writable = True
        """Whether it is registered as writable; a read-only one refuses adds."""
        self.refusal: BookieCode | None = None
        """When set, the answer to every add; nothing is stored then."""
        self.last_taken: dict[int, int] = {}
        """By ledger, the entry behind which it hangs, also in the middle of a call, as it does over TCP."""
        self.add_calls = 0
        """How often `add_entries` was called."""
        self._held: list[Add] = []

    def stop(self) -> None:
        """Become unreachable; held adds are answered so."""
        self.health = Health.STOPPED
        self._give_up_held()

    def hang(self) -> None:
        """Take requests and do nothing about them."""
        self.health = Health.HANGING

    def mute(self) -> None:
        """Store, but do not answer."""
        self.health = Health.MUTE

    def heal(self) -> None:
        """Behave again; held adds are carried out."""
        self.health = Health.HEALTHY
        held, self._held = self._held, []
        for add in held:
            self._serve(add)

    def add_entries(
        self,
        ledger_id: int,
        master_key: bytes,
        entry_ids: Sequence[int],
        entries: Sequence[bytes],
        flags: int,
        done: AddCallback,
    ) -> None:
        """Store whole entries. Each entry id is answered exactly once, on the next turn of the loop."""
        self.add_calls += 1
        add = (ledger_id, master_key, list(entry_ids), list(entries), flags, done)
        asyncio.get_running_loop().call_soon(self._serve, add)

    def _serve(self, add: Add) -> None:
        ledger_id, master_key, entry_ids, entries, flags, done = add
        if self.health is Health.HANGING:
            self._held.append(add)
            return
        if self.health is Health.STOPPED:
            done(BookieCode.UNREACHABLE, ledger_id, entry_ids)
            return
        taken = bisect_right(entry_ids, self.last_taken.get(ledger_id, entry_ids[-1]))
        if taken < len(entry_ids):
            self._held.append((ledger_id, master_key, entry_ids[taken:], entries[taken:], flags, done))
            entry_ids, entries = entry_ids[:taken], entries[:taken]
            if not entry_ids:
                return
        code = self._store(ledger_id, master_key, dict(zip(entry_ids, entries, strict=True)), flags)
        if self.health is Health.MUTE:
            self._held.append(add)
            return
        done(code, ledger_id, entry_ids)

    def _store(self, ledger_id: int, master_key: bytes, entries: dict[int, bytes], flags: int) -> BookieCode:
        if self.refusal is not None:
            return self.refusal
        if not self.writable:
            return BookieCode.EREADONLY
        ledger = self.ledgers.setdefault(ledger_id, MemoryLedger(master_key))
        if ledger.master_key != master_key:
            return BookieCode.EUA
        if ledger.fenced and not flags & ADD_FLAG_RECOVERY:
            return BookieCode.EFENCED
        ledger.entries.update(entries)
        return BookieCode.EOK

    async def read_entry(
        self, ledger_id: int, entry_id: int, flags: int = READ_FLAG_NONE, master_key: bytes = b""
    ) -> bytes:
        """One whole entry. Raises `BookieError` with the code. With READ_FLAG_FENCE the ledger is fenced, durably,
        before the answer (also when that is an error such as ENOENTRY)."""
        await self._reachable()
        if flags & READ_FLAG_FENCE:
            ledger = self.ledgers.setdefault(ledger_id, MemoryLedger(master_key))
            if ledger.master_key != master_key:
                raise BookieError(BookieCode.EUA)
            ledger.fenced = True
        entries = self._entries(ledger_id)
        wanted = max(entries, default=0) if entry_id == LAST_ADD_CONFIRMED else entry_id
        if wanted not in entries:
            raise BookieError(BookieCode.ENOENTRY, f"{ledger_id}:{wanted}")
        return entries[wanted]

    async def read_entries(
        self, ledger_id: int, first_entry_id: int, count_max: int, size_bytes_max: int
    ) -> list[bytes]:
        """Consecutive whole entries from the first one; stops early at the first missing entry or at the size. At least
        one entry is returned when the first exists, whatever its size. Raises `BookieError`."""
        await self._reachable()
        entries = self._entries(ledger_id)
        found: list[bytes] = []
        size_bytes = 0
        for entry_id in range(first_entry_id, first_entry_id + count_max):
            entry = entries.get(entry_id)
            if entry is None or (found and size_bytes + len(entry) > size_bytes_max):
                break
            found.append(entry)
            size_bytes += len(entry)
        if not found:
            raise BookieError(BookieCode.ENOENTRY, f"{ledger_id}:{first_entry_id}")
        return found

    async def read_run(self, ledger_id: int, first_entry_id: int, count_max: int, size_bytes_max: int) -> EntryRun:
        """Entries that follow one another, not copied yet; at least the first one, or its error."""
        return run_of(await self.read_entries(ledger_id, first_entry_id, count_max, size_bytes_max))

    async def read_each(self, ledger_id: int, entry_ids: Sequence[int]) -> list[bytes | BookieError]:
        """Whole entries that need not be neighbours, each or why there is none. All are asked for at once, so their
        number is the caller's to bound."""
        results: list[bytes | BookieError] = []
        for entry_id in entry_ids:
            try:
                results.append(await self.read_entry(ledger_id, entry_id))
            except BookieError as error:
                results.append(error)
        return results

    async def close(self) -> None:
        """Let go of the connection, as if the bookie had stopped: outstanding requests answer
        `BookieCode.UNREACHABLE`."""
        self.stop()

    def _entries(self, ledger_id: int) -> dict[int, bytes]:
        if ledger_id not in self.ledgers:
            raise BookieError(BookieCode.ENOLEDGER, str(ledger_id))
        return self.ledgers[ledger_id].entries

    async def _reachable(self) -> None:
        await asyncio.sleep(0)
        if self.health in (Health.HANGING, Health.MUTE):
            await asyncio.sleep(ANSWER_TIMEOUT_SECONDS)
        if self.health is not Health.HEALTHY:
            raise BookieError(BookieCode.UNREACHABLE, self.bookie_id)

    def _give_up_held(self) -> None:
        held, self._held = self._held, []
        for ledger_id, _, entry_ids, _, _, done in held:
            done(BookieCode.UNREACHABLE, ledger_id, entry_ids)


class MemoryBookies:
    """Some bookies: a `BookieConnections`. Clients that share it share the bookies."""

    def __init__(self, count: int = 1) -> None:
        self.bookies = {f"bookie-{number}:3181": MemoryBookie(f"bookie-{number}:3181") for number in range(count)}

    def add_bookie(self) -> MemoryBookie:
        """Add one more bookie."""
        bookie_id = f"bookie-{len(self.bookies)}:3181"
        self.bookies[bookie_id] = MemoryBookie(bookie_id)
        return self.bookies[bookie_id]

    def connection(self, bookie_id: str) -> MemoryBookie:
        """The bookie itself."""
        return self.bookies[bookie_id]

    def writable_bookies(self) -> list[str]:
        """Ids of those that take writes and are not stopped (whose registration would be gone), sorted."""
        return self._which(lambda bookie: bookie.writable)

    def readable_bookies(self) -> list[str]:
        """Ids of all that are not stopped, sorted."""
        return self._which(lambda bookie: True)

    def registrations(self, bookie_ids: Collection[str]) -> list[str]:
        """None: these bookies do not register."""
        return []

    async def look_again(self) -> None:
        """The lists are always as it is."""

    def holders(self, ledger_id: int, entry_id: int) -> list[str]:
        """Ids of the bookies that have an entry, sorted."""
        return sorted(
            bookie_id
            for bookie_id, bookie in self.bookies.items()
            if ledger_id in bookie.ledgers and entry_id in bookie.ledgers[ledger_id].entries
        )

    def _which(self, wanted: Callable[[MemoryBookie], bool]) -> list[str]:
        return sorted(
            bookie_id
            for bookie_id, bookie in self.bookies.items()
            if bookie.health is not Health.STOPPED and wanted(bookie)
        )


class RegisteredBookies(MemoryBookies):
    """Bookies that register in a metadata store, and a list of them that is as old as the last look."""

    def __init__(self, store: MetadataStore, count: int) -> None:
        super().__init__(count)
        self._store = store
        self._listed: list[str] = []

    async def register(self) -> None:
        """All are there, and the list says so."""
        for registration in self.registrations(self.bookies):
            await self._store.put(registration, b"")
        await self.look_again()

    async def leave(self, *bookie_ids: str) -> None:
        """These are not registered any more, and the list is as before. They take adds, so that only metadata tells who
        was chosen."""
        for registration in self.registrations(bookie_ids):
            await self._store.delete(registration)

    def writable_bookies(self) -> list[str]:
        """Those that were registered at the last look."""
        return self._listed

    def registrations(self, bookie_ids: Collection[str]) -> list[str]:
        """The nodes by which these bookies are registered as available."""
        return [f"{AVAILABLE_PATH}/{bookie_id}" for bookie_id in bookie_ids]

    async def look_again(self) -> None:
        """Read the list of registered bookies from the store anew."""
        self._listed = await self._store.children(AVAILABLE_PATH)


class RecordingListener:
    """A `LedgerListener` that keeps what it is told and can be waited on."""

    def __init__(self) -> None:
        self.confirmations: list[int] = []
        self.errors: list[Exception] = []
        self._news = asyncio.Event()

    def confirmed(self, ledger_id: int, last_add_confirmed: int) -> None:
        """Keeps what was confirmed."""
        self.confirmations.append(last_add_confirmed)
        self._news.set()

    def failed(self, ledger_id: int, error: Exception) -> None:
        """Keeps the error."""
        self.errors.append(error)
        self._news.set()

    async def until_confirmed(self, entry_id: int, patience_seconds: float = 30.0) -> None:
        """Wait until this entry is confirmed; raises the error if the ledger fails before."""
        await self._until(lambda: bool(self.confirmations) and self.confirmations[-1] >= entry_id, patience_seconds)
        if not self.confirmations or self.confirmations[-1] < entry_id:
            raise self.errors[0]

    async def until_failed(self, patience_seconds: float = 30.0) -> Exception:
        """Wait until the ledger fails."""
        await self._until(lambda: False, patience_seconds)
        return self.errors[0]

    async def _until(self, reached: Callable[[], bool], patience_seconds: float) -> None:
        async with asyncio.timeout(patience_seconds):
            while not reached() and not self.errors:
                self._news.clear()
                await self._news.wait()
