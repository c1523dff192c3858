"""Adds on their way to a bookie in our own process; each is answered once, whoever is faster, the bookie or a close.

Hot: compiled by mypyc (see CONTRIBUTING).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

from magnetar.ledger.bookie_client.bookie_connection import AddCallback
from magnetar.wire.bookkeeper.codes import BookieCode

_UNREACHABLE: Final = int(BookieCode.UNREACHABLE)


class LocalAdds:
    """The adds of one connection. Entries are handed over as they are, not copied."""

    def __init__(
        self, add_to_bookie: Callable[[int, bytes, Sequence[int], Sequence[bytes], int, AddCallback], None]
    ) -> None:
        self._add_to_bookie = add_to_bookie
        self._loop = asyncio.get_running_loop()
        self._outstanding: dict[_Add, None] = {}
        self.closed: bool = False

    def add_entries(
        self,
        ledger_id: int,
        master_key: bytes,
        entry_ids: Sequence[int],
        entries: Sequence[bytes],
        flags: int,
        done: AddCallback,
    ) -> None:
        """Store whole entries. Never waits: every entry id is answered exactly once, never from inside this call. After
        `close` the answer is UNREACHABLE."""
        if not entry_ids:
            return
        if self.closed:
            self._loop.call_soon(done, _UNREACHABLE, ledger_id, entry_ids)
            return
        add = _Add(self._outstanding, done, ledger_id, entry_ids)
        self._outstanding[add] = None
        self._add_to_bookie(ledger_id, master_key, entry_ids, entries, flags, add)

    def close(self) -> None:
        """Answer what is outstanding UNREACHABLE, in the order of the calls. The bookie itself runs on."""
        self.closed = True
        outstanding = list(self._outstanding)
        self._outstanding.clear()
        for add in outstanding:
            add.done(_UNREACHABLE, add.ledger_id, add.entry_ids)


class _Add:
    """An add on its way."""

    __slots__ = ("_outstanding", "done", "entry_ids", "ledger_id")

    def __init__(
        self, outstanding: dict[_Add, None], done: AddCallback, ledger_id: int, entry_ids: Sequence[int]
    ) -> None:
        self._outstanding = outstanding
        self.done = done
        self.ledger_id = ledger_id
        self.entry_ids = entry_ids

    def __call__(self, code: int, ledger_id: int, entry_ids: Sequence[int]) -> None:
        if self in self._outstanding:
            del self._outstanding[self]
            self.done(code, ledger_id, entry_ids)
