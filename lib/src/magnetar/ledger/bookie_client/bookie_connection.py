"""How the ledger client sees one bookie: over TCP, or in the same process. One contract suite runs against both."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final, Protocol

from magnetar.wire.bookkeeper.codes import BookieError
from magnetar.wire.bookkeeper.entry import EntryRun

ADD_FLAG_NONE: Final = 0x0
ADD_FLAG_RECOVERY: Final = 0x2
ADD_FLAG_HIGH_PRIORITY: Final = 0x4
READ_FLAG_NONE: Final = 0x0
READ_FLAG_FENCE: Final = 0x1

LAST_ADD_CONFIRMED: Final = -1
"""The entry id of a read that asks for the last entry that the bookie has of this ledger."""


class AddCallback(Protocol):
    """Told once per group of entries that came back with the same result."""

    def __call__(self, code: int, ledger_id: int, entry_ids: Sequence[int]) -> None:
        """`code` is a `magnetar.wire.bookkeeper.codes.BookieCode`; EOK means: forced to the bookie's disk."""
        ...


class BookieConnection(Protocol):
    """One bookie. Requests of one ledger reach it in the order of the calls."""

    bookie_id: str

    def add_entries(
        self,
        ledger_id: int,
        master_key: bytes,
        entry_ids: Sequence[int],
        entries: Sequence[bytes],
        flags: int,
        done: AddCallback,
    ) -> None:
        """Store whole entries (header, digest and payload, as `wire.bookkeeper.entry` makes them). Never waits.

        Every entry id is answered exactly once, in one or more calls of `done`, never from inside this call.
        A bookie that cannot be reached or does not answer in time answers `BookieCode.UNREACHABLE`."""
        ...

    async def read_entry(
        self, ledger_id: int, entry_id: int, flags: int = READ_FLAG_NONE, master_key: bytes = b""
    ) -> bytes:
        """One whole entry. Raises `BookieError` with the code. With READ_FLAG_FENCE the ledger is fenced,
        durably, before the answer (also when that is an error such as ENOENTRY)."""
        ...

    async def read_entries(
        self, ledger_id: int, first_entry_id: int, count_max: int, size_bytes_max: int
    ) -> list[bytes]:
        """Consecutive whole entries from the first one; stops early at the first missing entry or at the size.

        At least one entry is returned when the first exists, whatever its size. Raises `BookieError`."""
        ...

    async def close(self) -> None:
        """Let go of the connection; outstanding requests answer `BookieCode.UNREACHABLE`."""
        ...


class BookieConnections(Protocol):
    """Where the ledger client gets connections and learns which bookies are there."""

    def connection(self, bookie_id: str) -> BookieConnection:
        """The connection to a bookie, made on first use and shared."""
        ...

    def writable_bookies(self) -> list[str]:
        """Ids of the bookies that take writes now, sorted."""
        ...

    def readable_bookies(self) -> list[str]:
        """Ids of all registered bookies (writable and read-only), sorted."""
        ...

    def registrations(self, bookie_ids: Collection[str]) -> list[str]:
        """Nodes of the metadata store, one per bookie, that are there as long as these take writes. None of them where
        bookies are not found by the store. The last part of each is the bookie's id."""
        ...

    async def look_again(self) -> None:
        """Return when the lists are not older than this call. Raises `Unavailable`."""
        ...


class ReadOnlyBookie(Protocol):
    """A bookie as one sees it who only reads: nothing of this stores, fences or marks anything."""

    async def read_entry(self, ledger_id: int, entry_id: int) -> bytes:
        """One whole entry. Raises `BookieError` with the code. With READ_FLAG_FENCE the ledger is fenced, durably,
        before the answer (also when that is an error such as ENOENTRY)."""
        ...

    async def read_run(self, ledger_id: int, first_entry_id: int, count_max: int, size_bytes_max: int) -> EntryRun:
        """Consecutive whole entries from the first one, not copied yet. At least one when the first exists, whatever
        its size. Raises `BookieError`."""
        ...

    async def read_each(self, ledger_id: int, entry_ids: Sequence[int]) -> list[bytes | BookieError]:
        """Whole entries that need not be neighbours, each or why there is none. All are asked for at once, so their
        number is the caller's to bound."""
        ...


class ReadOnlyBookies(Protocol):
    """Bookies by their ids, for one who only reads."""

    def connection(self, bookie_id: str) -> ReadOnlyBookie:
        """The connection to a bookie, made on first use and shared."""
        ...
