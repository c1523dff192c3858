"""The offloaders of a process: one for each store that policies name, closed when nobody uses it."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Hashable
from typing import Final
from uuid import UUID, uuid4

from magnetar.core.errors import MagnetarError
from magnetar.ledger.api import LedgerUnavailable
from magnetar.tiered.api import Offloader

logger: Final = logging.getLogger(__name__)

STORES_MAX: Final = 64
"""Stores at a time: more than buckets that a cluster's namespaces are spread over. Each has connections of its own."""


class StoreLease:
    """One user's hold on the offloader of a store; several users have the same one."""

    __slots__ = ("_entry", "_offloaders", "store")

    def __init__(self, offloaders: Offloaders, entry: _Entry, store: Hashable) -> None:
        self._offloaders: Offloaders = offloaders
        self._entry: _Entry = entry
        self.store: Hashable = store

    @property
    def offloader(self) -> Offloader:
        """The offloader, until the lease is given back."""
        return self._entry.offloader

    @property
    def runs(self) -> Turns:
        """Whose turn it is to offload."""
        return self._entry.runs

    @property
    def upkeep(self) -> Turns:
        """Whose turn it is to verify and to delete."""
        return self._entry.upkeep

    async def give_back(self) -> None:
        """Use it no more; the last one closes the offloader. Raises nothing."""
        await self._offloaders.given_back(self.store, self._entry)


class _Entry:
    __slots__ = ("leases", "offloader", "runs", "upkeep")

    def __init__(self, offloader: Offloader) -> None:
        self.offloader: Offloader = offloader
        self.leases: int = 0
        self.runs: Turns = Turns()
        self.upkeep: Turns = Turns()


class Turns:
    """Lets so many in at a time; the others wait in the order in which they came."""

    __slots__ = ("_running", "_waiting")

    def __init__(self) -> None:
        self._running: int = 0
        self._waiting: deque[asyncio.Future[None]] = deque()
        """One per managed ledger at most."""

    async def enter(self, at_once_max: int) -> None:
        """Wait until fewer than so many are in; `leave` ends one's turn."""
        while self._running >= at_once_max:
            turn = asyncio.get_running_loop().create_future()
            self._waiting.append(turn)
            try:
                await turn
            except asyncio.CancelledError:
                if turn in self._waiting:
                    self._waiting.remove(turn)
                elif turn.done() and not turn.cancelled():
                    self._wake()  # The turn was given, and is not taken.
                raise
        self._running += 1

    def leave(self) -> None:
        """A turn is over."""
        self._running -= 1
        self._wake()

    def _wake(self) -> None:
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                return


class Offloaders:
    """Makes offloaders of the stores that policies name."""

    def __init__(
        self, make: Callable[[Hashable], Offloader] | None = None, new_uid: Callable[[], UUID] = uuid4
    ) -> None:
        """`make` may raise `MagnetarError` for a store that cannot be used; None: there is no tiered storage."""
        self._make: Callable[[Hashable], Offloader] | None = make
        self._entries: dict[Hashable, _Entry] = {}
        self.new_uid: Callable[[], UUID] = new_uid

    def lease(self, store: Hashable) -> StoreLease:
        """A hold on the offloader of a store. `LedgerUnavailable` when there is none, with the reason."""
        entry = self._entries.get(store)
        if entry is None:
            if self._make is None:
                raise LedgerUnavailable("this process has no tiered storage")
            if len(self._entries) >= STORES_MAX:
                raise LedgerUnavailable(
                    f"{STORES_MAX} stores are in use: let offload policies name fewer buckets, endpoints or credentials"
                )
            entry = self._entries[store] = _Entry(self._make(store))
        entry.leases += 1
        return StoreLease(self, entry, store)

    async def given_back(self, store: Hashable, entry: _Entry) -> None:
        """From a lease."""
        entry.leases -= 1
        if entry.leases == 0 and self._entries.get(store) is entry:
            del self._entries[store]
            await _close(entry)

    async def close(self) -> None:
        """Close all, when nobody uses any of them."""
        entries, self._entries = self._entries, {}
        for entry in entries.values():
            await _close(entry)


async def _close(entry: _Entry) -> None:
    try:
        await entry.offloader.close()
    except MagnetarError as error:
        logger.warning("an offloader is not closed: %r", error)
