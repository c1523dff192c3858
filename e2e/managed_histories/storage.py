"""Where ledgers are: in memory themselves, or BookKeeper's client over bookies in memory. Both can be in trouble, and
be copied as they are."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Protocol

from magnetar.core.clock import Clock
from magnetar.ledger.api import (
    LedgerClient,
    LedgerListener,
    LedgerObserver,
    LedgerOptions,
    LedgerReader,
    LedgerWriter,
    nobody_told,
)
from magnetar.ledger.client import BookKeeperClient
from magnetar.ledger.metadata_ops import LedgerMetadataOps
from magnetar.ledger.settings import LedgerClientSettings
from magnetar.ledger.testing import MemoryBookies, MemoryLedger
from magnetar.managed.testing import MemoryLedgers
from magnetar.metadata.store import MetadataStore
from magnetar.wire.bookkeeper.ledger_metadata import LedgerMetadata

BOOKIES: int = 4


class Storage(Protocol):
    """The ledgers of one world."""

    def client(self, store: MetadataStore, clock: Clock, rng: random.Random) -> LedgerClient:
        """How one process reaches them."""
        ...

    def copy(self) -> Storage:
        """All of it as it is, without the troubles."""
        ...

    async def stored(self, store: MetadataStore) -> set[int]:
        """The ledgers that there are."""
        ...

    def trouble(self, rng: random.Random, *, for_a_moment: bool = False) -> str:
        """Something goes wrong; says what. For a moment: bookies are away, and all that they have stays."""
        ...

    def heal(self) -> None:
        """Nothing is wrong any more."""
        ...


class LedgersInMemory:
    """`MemoryLedgers`."""

    def __init__(self, ledgers: MemoryLedgers | None = None, delay_seconds: float = 0.0) -> None:
        self.ledgers = MemoryLedgers() if ledgers is None else ledgers
        self.ledgers.delay_seconds = delay_seconds

    def client(self, store: MetadataStore, clock: Clock, rng: random.Random) -> LedgerClient:
        """See `Storage.client`."""
        del store, clock, rng
        return self.ledgers

    def copy(self) -> LedgersInMemory:
        """See `Storage.copy`."""
        return LedgersInMemory(self.ledgers.copy())

    async def stored(self, store: MetadataStore) -> set[int]:
        """See `Storage.stored`."""
        del store
        return set(self.ledgers.stored)

    def trouble(self, rng: random.Random, *, for_a_moment: bool = False) -> str:
        """See `Storage.trouble`."""
        ledgers = self.ledgers
        kind = rng.choice(("fail", "fail", "fail and keep", "unreachable", "some away", "hold"))
        if for_a_moment:
            kind = "some away"
        if kind == "unreachable":
            ledgers.unreachable = True
        elif kind == "some away":
            ledgers.away = {ledger_id for ledger_id in sorted(ledgers.stored) if rng.random() < 0.4}
        elif kind == "hold":
            ledgers.hold = True
        else:
            ledgers.fail_appends_after = rng.randint(0, 2)
            ledgers.keep_failed = kind != "fail"
        return kind

    def heal(self) -> None:
        """See `Storage.heal`."""
        ledgers = self.ledgers
        ledgers.unreachable = ledgers.keep_failed = False
        ledgers.away = set()
        ledgers.fail_appends_after = None
        ledgers.release()


class LedgersOnBookies:
    """`BookKeeperClient` on `MemoryBookies`; the ledgers' metadata goes through each owner's own store."""

    def __init__(self, bookies: MemoryBookies | None = None) -> None:
        self.bookies = MemoryBookies(BOOKIES) if bookies is None else bookies

    def client(self, store: MetadataStore, clock: Clock, rng: random.Random) -> LedgerClient:
        """See `Storage.client`."""
        settings = LedgerClientSettings(add_timeout_seconds=0.5, quarantine_seconds=1.0)
        return BookKeeperClient(store, self.bookies, clock, rng, settings)

    def copy(self) -> LedgersOnBookies:
        """See `Storage.copy`."""
        copied = MemoryBookies(0)
        for bookie in self.bookies.bookies.values():
            other = copied.add_bookie()
            for ledger_id, ledger in bookie.ledgers.items():
                known = other.ledgers[ledger_id] = MemoryLedger(ledger.master_key)
                known.entries, known.fenced = dict(ledger.entries), ledger.fenced
        return LedgersOnBookies(copied)

    async def stored(self, store: MetadataStore) -> set[int]:
        """See `Storage.stored`."""
        return {ledger_id async for ledger_id in LedgerMetadataOps(store).ledger_ids()}

    def trouble(self, rng: random.Random, *, for_a_moment: bool = False) -> str:
        """See `Storage.trouble`."""
        kind = "stop" if for_a_moment else rng.choice(("stop", "hang", "mute"))
        chosen = rng.sample(sorted(self.bookies.bookies), rng.choice((1, 1, 2, BOOKIES)))
        for name in chosen:
            bookie = self.bookies.bookies[name]
            {"stop": bookie.stop, "hang": bookie.hang, "mute": bookie.mute}[kind]()
        return f"{kind} {' '.join(chosen)}"

    def heal(self) -> None:
        """See `Storage.heal`."""
        for bookie in self.bookies.bookies.values():
            bookie.heal()


class MortalClient:
    """A `LedgerClient` of a process that may die: then whatever it asks for is not done, and it hears nothing."""

    def __init__(self, client: LedgerClient, note: Callable[[str], None], orphaned: Callable[[int], None]) -> None:
        """`orphaned` is told of ledgers that are made after the death."""
        self._client = client
        self._note = note
        self._orphaned = orphaned
        self._dead = False

    def end(self) -> None:
        """The process has died."""
        self._dead = True

    async def create(self, options: LedgerOptions, listener: LedgerListener) -> LedgerWriter:
        """See `LedgerClient.create`."""
        await self._alive()
        writer = await self._client.create(options, listener)
        if self._dead:
            self._orphaned(writer.ledger_id)
        of = options.custom_metadata.get("pulsar/cursor", b"").decode()
        self._note(f"makes ledger {writer.ledger_id} {of}")
        return writer

    async def open(self, ledger_id: int, *, password: bytes = b"", recover: bool) -> LedgerReader:
        """See `LedgerClient.open`."""
        await self._alive()
        return await self._client.open(ledger_id, password=password, recover=recover)

    async def observe(
        self, ledger_id: int, *, password: bytes = b"", changed: Callable[[], None] = nobody_told
    ) -> LedgerObserver:
        """See `LedgerClient.observe`."""
        await self._alive()
        return await self._client.observe(ledger_id, password=password, changed=changed)

    async def describe(self, ledger_id: int) -> LedgerMetadata:
        """See `LedgerClient.describe`."""
        await self._alive()
        return await self._client.describe(ledger_id)

    async def delete(self, ledger_id: int) -> None:
        """See `LedgerClient.delete`."""
        await self._alive()
        self._note(f"deletes ledger {ledger_id}")
        await self._client.delete(ledger_id)

    async def close(self) -> None:
        """See `LedgerClient.close`."""
        await self._client.close()

    async def _alive(self) -> None:
        if self._dead:
            await asyncio.get_running_loop().create_future()
