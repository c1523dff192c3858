"""The bookie in our own process, as the ledger client sees bookies."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from magnetar.bookie.bookie import Bookie
from magnetar.bookie.local_adds import LocalAdds
from magnetar.ledger.bookie_client.bookie_connection import (
    READ_FLAG_FENCE,
    READ_FLAG_NONE,
    AddCallback,
    BookieConnection,
)
from magnetar.wire.bookkeeper.codes import BookieCode, BookieError


class LocalBookieConnection:
    """A `BookieConnection` without a network. Entries are handed over as they are, not copied."""

    def __init__(self, bookie_id: str, bookie: Bookie) -> None:
        self.bookie_id = bookie_id
        self._bookie = bookie
        self._adds = LocalAdds(bookie.add_entries)
        self.add_entries: Callable[[int, bytes, Sequence[int], Sequence[bytes], int, AddCallback], None]
        """`LocalAdds.add_entries`, without a call in between."""
        self.add_entries = self._adds.add_entries

    async def read_entry(
        self, ledger_id: int, entry_id: int, flags: int = READ_FLAG_NONE, master_key: bytes = b""
    ) -> bytes:
        """One whole entry. Raises `BookieError` with the code. With READ_FLAG_FENCE the ledger is fenced, durably,
        before the answer (also when that is an error such as ENOENTRY)."""
        self._check_open()
        if flags & READ_FLAG_FENCE:
            await self._bookie.fence(ledger_id, master_key)
        else:
            entry = self._bookie.cached_entry(ledger_id, entry_id)
            if entry is not None:
                return entry
        return await self._bookie.read_entry(ledger_id, entry_id)

    async def read_entries(
        self, ledger_id: int, first_entry_id: int, count_max: int, size_bytes_max: int
    ) -> list[bytes]:
        """Consecutive whole entries from the first one; stops early at the first missing entry or at the size. At least
        one entry is returned when the first exists, whatever its size. Raises `BookieError`."""
        self._check_open()
        return await self._bookie.read_run(ledger_id, first_entry_id, count_max, size_bytes_max)

    async def close(self) -> None:
        """Let go of the connection; outstanding requests answer `BookieCode.UNREACHABLE`. The bookie itself runs on."""
        self._adds.close()

    def leads_to(self, bookie: Bookie) -> bool:
        """Whether it is a connection to this very object: a bookie that was started again is another one."""
        return self._bookie is bookie

    def _check_open(self) -> None:
        if self._adds.closed:
            raise BookieError(BookieCode.UNREACHABLE, "the connection is closed")


class LocalBookies:
    """`BookieConnections` of a process whose bookies all run inside it."""

    def __init__(self, bookies: dict[str, Bookie]) -> None:
        """Bookies by id. The dict may change: one that was started again gets a new connection; whoever takes one out
        closes the connection to it."""
        self._bookies = bookies
        self._connections: dict[str, LocalBookieConnection] = {}

    def connection(self, bookie_id: str) -> BookieConnection:
        """The connection to a bookie. `BookieError` UNREACHABLE when there is none of this id."""
        connection = self._connections.get(bookie_id)
        bookie = self._bookies.get(bookie_id)
        if bookie is None:
            if connection is None:
                raise BookieError(BookieCode.UNREACHABLE, f"no bookie {bookie_id} in this process")
            return connection
        if connection is None or not connection.leads_to(bookie):
            connection = self._connections[bookie_id] = LocalBookieConnection(bookie_id, bookie)
        return connection

    def writable_bookies(self) -> list[str]:
        """Ids of the bookies that take writes now, sorted."""
        return sorted(bookie_id for bookie_id, bookie in self._bookies.items() if not bookie.adds.read_only)

    def readable_bookies(self) -> list[str]:
        """Ids of all bookies, sorted."""
        return sorted(self._bookies)

    def registrations(self, bookie_ids: Collection[str]) -> list[str]:
        """None: what is asked here is the bookies themselves."""
        return []

    async def look_again(self) -> None:
        """The lists are always as it is."""

    async def close(self) -> None:
        """Close every connection."""
        for connection in self._connections.values():
            await connection.close()
        self._connections.clear()
