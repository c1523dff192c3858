"""Writers of a managed ledger and its followers, over the real ledger client and bookies in memory."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from magnetar.core.ids import Position
from magnetar.ledger.bookie_client.bookie_connection import READ_FLAG_NONE, AddCallback
from magnetar.ledger.client import BookKeeperClient
from magnetar.ledger.metadata_ops import LedgerMetadataOps
from magnetar.ledger.settings import LedgerClientSettings
from magnetar.ledger.testing import MemoryBookie, MemoryBookies
from magnetar.managed.cursors.cursor import Cursor
from magnetar.managed.factory import ManagedLedgerFactory
from magnetar.managed.following.followed_ledger import FollowedLedger
from magnetar.managed.following.settings import FollowSettings
from magnetar.managed.following.testing import READS, WriterAsOwner
from magnetar.managed.info_codec import decode_ledger_info, encode_ledger_info
from magnetar.managed.ledger_list import LedgerRecord
from magnetar.managed.managed_ledger import ManagedLedger
from magnetar.managed.paths import ledger_path
from magnetar.managed.settings import ManagedLedgerSettings
from magnetar.managed.testing import read_all
from magnetar.metadata.faulty import FaultyStore, RequestFate
from magnetar.metadata.memory import MemoryMetadataStore
from magnetar.metadata.store import MetadataStore, Notification
from magnetar.sim.virtual_time import LoopClock
from magnetar.wire.bookkeeper.ledger_metadata import LedgerMetadata

NAME = "public/default/persistent/topic"
POLICY = ManagedLedgerSettings(
    ensemble_size=3,
    write_quorum=3,
    ack_quorum=2,
    minimum_rollover_ms=0,
    retention_time_ms=-1,
    retention_size_bytes=-1,
)
PATIENCE_SECONDS = 20.0


class OnlyReadBookie(MemoryBookie):
    """The way of a follower to a bookie: whatever would change it fails the test."""

    def __init__(self, bookie: MemoryBookie) -> None:
        super().__init__(bookie.bookie_id)
        self._bookie = bookie
        self.looks = 0

    def add_entries(
        self,
        ledger_id: int,
        master_key: bytes,
        entry_ids: Sequence[int],
        entries: Sequence[bytes],
        flags: int,
        done: AddCallback,
    ) -> None:
        raise AssertionError("a follower adds entries")

    async def read_entry(
        self, ledger_id: int, entry_id: int, flags: int = READ_FLAG_NONE, master_key: bytes = b""
    ) -> bytes:
        assert flags == READ_FLAG_NONE, "a follower fences"
        return await self._bookie.read_entry(ledger_id, entry_id)

    async def read_entries(
        self, ledger_id: int, first_entry_id: int, count_max: int, size_bytes_max: int
    ) -> list[bytes]:
        self.looks += 1
        return await self._bookie.read_entries(ledger_id, first_entry_id, count_max, size_bytes_max)


class OnlyReadBookies(MemoryBookies):
    """All bookies, seen so."""

    def __init__(self, bookies: MemoryBookies) -> None:
        super().__init__(0)
        self._all = bookies
        self._seen: dict[str, OnlyReadBookie] = {}

    def connection(self, bookie_id: str) -> OnlyReadBookie:
        if bookie_id not in self._seen:
            self._seen[bookie_id] = OnlyReadBookie(self._all.connection(bookie_id))
        return self._seen[bookie_id]

    @property
    def looks(self) -> int:
        return sum(each.looks for each in self._seen.values())


class DeafStore(FaultyStore):
    """A session that may not hear of some nodes, as one that is lost."""

    deaf: set[str]

    def __init__(self, store: MetadataStore, fate: Callable[[str, str], RequestFate]) -> None:
        super().__init__(store, fate)
        self.deaf = set()

    def watch(self, listener: Callable[[Notification], None]) -> Callable[[], None]:
        def heard(notification: Notification) -> None:
            if notification.path not in self.deaf:
                listener(notification)

        return super().watch(heard)


@dataclass
class Followed:
    """A follower with what it stands on."""

    ledger: FollowedLedger
    owner: WriterAsOwner
    store: DeafStore
    bookies: OnlyReadBookies
    tree: MemoryMetadataStore

    @property
    def deaf(self) -> set[str]:
        """Nodes of which the follower hears nothing."""
        return self.store.deaf

    async def rewrite_list(self, change: Callable[[list[LedgerRecord]], None]) -> None:
        """The owner stores another list."""
        node = await self.tree.get(ledger_path(NAME))
        assert node is not None
        info = decode_ledger_info(node.value)
        change(info.records)
        value = encode_ledger_info(info.records, info.terminated_at, info.properties)
        await self.tree.put(ledger_path(NAME), value)

    async def until(self, reached: Callable[[], bool]) -> None:
        """Wait for something, and tell how things stood when it does not come."""
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                while not reached():
                    await asyncio.sleep(0.01)
        except TimeoutError as error:
            ledgers = [(each.ledger_id, each.entries) for each in self.ledger.ledgers.records()]
            shown = f"{self.ledger.state}, {ledgers}, shown {self.ledger.last_confirmed}, {self.ledger.lag}"
            raise AssertionError(f"not reached: {shown}; the owner is {self.owner}") from error

    async def until_shown(self, position: Position) -> None:
        await self.until(lambda: self.ledger.last_confirmed >= position)

    async def read(self, cursor: Cursor, count: int) -> list[bytes]:
        """So many payloads, waited for."""
        found: list[bytes] = []
        async with asyncio.timeout(PATIENCE_SECONDS):
            while len(found) < count:
                found += await read_all(cursor)
                await asyncio.sleep(0.01)
        return found


Closing: TypeAlias = tuple[ManagedLedgerFactory, BookKeeperClient, MemoryMetadataStore]


class FollowedWorld:
    """Bookies and metadata, writers and followers, each with a client and a session of its own."""

    def __init__(self) -> None:
        self.bookies = MemoryBookies(3)
        self.store = MemoryMetadataStore()
        self.clock = LoopClock()
        self.settings = LedgerClientSettings(
            add_timeout_seconds=0.5, speculative_read_seconds=0.2, quarantine_seconds=1.0
        )
        self.store_away = False
        self.sessions: list[MemoryMetadataStore] = []
        self._opened: list[Closing] = []

    async def writer(self, policy: ManagedLedgerSettings = POLICY) -> ManagedLedger:
        """Another process opens the topic, and so takes it over."""
        store = self.store.another_session()
        client = BookKeeperClient(store, self.bookies, self.clock, random.Random(1), self.settings)
        factory = ManagedLedgerFactory(store, client, self.clock, asyncio.get_running_loop())
        self._opened.append((factory, client, store))
        return await factory.open(NAME, policy)

    async def described(self, ledger_id: int) -> LedgerMetadata:
        """The metadata of a ledger."""
        return (await LedgerMetadataOps(self.store).read(ledger_id))[0]

    async def delete_ledger(self, ledger_id: int) -> None:
        """Somebody deletes it, whoever names it."""
        await LedgerMetadataOps(self.store).delete(ledger_id)

    async def follower(
        self,
        writer: ManagedLedger | None,
        following: FollowSettings = FollowSettings(),
        *,
        cache_bytes_max: int = 1 << 20,
        policy: ManagedLedgerSettings = POLICY,
    ) -> Followed:
        """A process that only reads: each write to store or bookies fails the test."""
        session = self.store.another_session()
        self.sessions.append(session)
        store = DeafStore(session, self._fate)
        bookies = OnlyReadBookies(self.bookies)
        client = BookKeeperClient(store, bookies, self.clock, random.Random(1), self.settings)
        loop = asyncio.get_running_loop()
        factory = ManagedLedgerFactory(store, client, self.clock, loop, cache_bytes_max=cache_bytes_max)
        self._opened.append((factory, client, session))
        owner = WriterAsOwner(writer)
        return Followed(await factory.follow(NAME, owner, policy, following), owner, store, bookies, self.store)

    def _fate(self, verb: str, path: str) -> RequestFate:
        assert verb in READS, f"a follower asks the store to {verb} {path}"
        return RequestFate.REFUSED if self.store_away else RequestFate.DONE

    async def close(self) -> None:
        self.store_away = False
        for bookie in self.bookies.bookies.values():
            bookie.heal()
        for factory, client, store in reversed(self._opened):
            await factory.close()
            await client.close()
            await store.close()
        await self.store.close()


def texts(first: int, count: int) -> list[bytes]:
    """Payloads that tell their number."""
    return [b"%d" % each for each in range(first, first + count)]
