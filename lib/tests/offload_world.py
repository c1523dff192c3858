"""A topic whose ledgers go to tiered storage, all of it in memory, with copies of the whole world on the way."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from magnetar.core.ids import EARLIEST
from magnetar.managed.factory import ManagedLedgerFactory
from magnetar.managed.info_codec import LedgerInfo, decode_ledger_info
from magnetar.managed.managed_ledger import ManagedLedger
from magnetar.managed.offload.context import at_bookies, copy_of
from magnetar.managed.offload.owed import owed_objects
from magnetar.managed.offload.testing import MemoryObjects, MemoryOffloader, MemoryStores
from magnetar.managed.paths import ledger_path
from magnetar.managed.settings import ManagedLedgerSettings
from magnetar.managed.testing import MemoryLedgers, append, read_all
from magnetar.metadata.faulty import FaultyStore, RequestFate
from magnetar.metadata.memory import MemoryMetadataStore
from magnetar.tiered.policy import OffloadPolicy

from lib.tests.managed_world import NAME, World

OFFLOADED = OffloadPolicy(store="a-bucket", threshold_bytes=0)
ASKED = OffloadPolicy(store="a-bucket")
HOUR_MS = 3_600_000


def keeping(policy: OffloadPolicy = OFFLOADED, **fields: Any) -> ManagedLedgerSettings:
    """Four entries a ledger, all of it retained."""
    kept: dict[str, Any] = {"retention_time_ms": -1, "retention_size_bytes": -1, **fields}
    return ManagedLedgerSettings(max_entries_per_ledger=4, minimum_rollover_ms=0, offload=policy, **kept)


class WatchedLedgers(MemoryLedgers):
    """Ledgers whose deletions are told before they happen."""

    def __init__(self) -> None:
        super().__init__()
        self.told: Callable[[str], None] = lambda step: None

    async def delete(self, ledger_id: int) -> None:
        """Remove a ledger."""
        self.told(f"deletion of ledger {ledger_id}")
        await super().delete(ledger_id)


class OffloadWorld(World):
    """What metadata store, bookies and objects hold outlives owners."""

    def __init__(self) -> None:
        super().__init__()
        self.ledgers = self.watched = WatchedLedgers()
        self.objects = MemoryObjects()
        self.stores = MemoryStores(self.objects)
        self.copies: list[tuple[str, OffloadWorld]] = []
        self.watching = False
        self.sent: list[bytes] = []

    def another(self, settings: ManagedLedgerSettings | None = None) -> ManagedLedgerFactory:
        """A process."""
        session = FaultyStore(self.store, self._told_fate, late_seconds=5.0)
        self.sessions.append(session)
        self.stores = MemoryStores(self.objects)
        return self.factory(settings or keeping(), store=session, offloaders=self.stores.offloaders())

    async def opened(self, settings: ManagedLedgerSettings | None = None) -> ManagedLedger:
        """Another owner opens the topic."""
        return await self.another(settings).open(NAME, settings or keeping())

    async def filled(self, settings: ManagedLedgerSettings | None = None, ledgers: int = 3) -> ManagedLedger:
        """A topic of so many full ledgers, and one entry in the ledger in use."""
        ledger = await self.opened(settings)
        for number in range(4 * ledgers + 1):
            self.sent.append(b"entry %d" % number)
            await append(ledger, [self.sent[-1]])
        return ledger

    @property
    def offloader(self) -> MemoryOffloader:
        """The one that was made last."""
        return self.stores.made[-1]

    def watch(self) -> None:
        """From here on keep a copy of the world before each step of anybody."""
        self.watching = True
        self.watched.told = self.take_copy
        for made in self.stores.made:
            self._watch_steps(made)

    def take_copy(self, step: str) -> None:
        """The world as it is now: what a process that dies now leaves behind."""
        if self.watching:
            copied = OffloadWorld()
            copied.store = MemoryMetadataStore(self.store.copy_of_tree())
            copied.ledgers.stored = {key: kept.copy() for key, kept in self.ledgers.stored.items()}
            copied.ledgers._next_id = self.ledgers._next_id + 100  # Ids of the dead are not given again.
            copied.objects.objects = dict(self.objects.objects)
            copied.objects.names = dict(self.objects.names)
            copied.clock.ms = self.clock.ms
            copied.sent = list(self.sent)
            self.copies.append((f"{len(self.copies)}: {step}", copied))

    async def info(self) -> LedgerInfo:
        """What the metadata store holds."""
        node = await self.store.get(ledger_path(NAME))
        assert node is not None
        return decode_ledger_info(node.value)

    async def offloaded_ids(self) -> list[int]:
        """Ledgers whose records say that they are in tiered storage."""
        copies = [(record.ledger_id, copy_of(record)) for record in (await self.info()).records]
        return [ledger_id for ledger_id, copy in copies if copy is not None and copy.complete]

    async def check_promises(self) -> None:
        """At any moment: whatever the list names can be read, and every object is named, or owed."""
        info = await self.info()
        named = {objects.uid for objects in owed_objects(info.properties).values()}
        for record in info.records:
            copy = copy_of(record)
            if copy is not None:
                named.add(copy.uid)
            in_store = copy is not None and copy.complete
            if in_store:
                assert copy is not None
                key = f"{copy.uid}-ledger-{record.ledger_id}"
                assert len(self.objects.objects[key]) >= record.entries
                assert f"{key}-index" in self.objects.objects
            if copy is None or not copy.bookkeeper_deleted:
                assert record.ledger_id in self.ledgers.stored
        assert self.objects.uids() <= named
        assert set(self.ledgers.stored) >= {each.ledger_id for each in info.records if not _only_in_store(each)}

    async def check_settled(self) -> None:
        """Once nothing is left to do: nothing is owed, and there is nothing that no record names."""
        await self.check_promises()
        info = await self.info()
        assert owed_objects(info.properties) == {}
        copies = [copy for copy in map(copy_of, info.records) if copy is not None]
        assert all(copy.complete for copy in copies)
        assert self.objects.uids() == {copy.uid for copy in copies}
        assert set(self.ledgers.stored) == {record.ledger_id for record in info.records if at_bookies(record)}

    async def read_all(self, ledger: ManagedLedger) -> list[bytes]:
        """Everything that can be read, from the first entry on, and not from the cache."""
        for ledger_id in ledger.ledgers.ids:
            ledger.cache.remove_ledger(ledger_id)
        return await read_all(ledger.new_non_durable_cursor("reader", EARLIEST))

    def _watch_steps(self, offloader: MemoryOffloader) -> None:
        step = offloader.step

        async def watched(name: str) -> None:
            self.take_copy(f"before {name}")
            await step(name)

        offloader.step = watched  # type: ignore[method-assign] # Only to look.

    def _told_fate(self, verb: str, path: str) -> RequestFate:
        if verb == "put":
            self.take_copy("before a write of metadata")
        return self._fate(verb, path)


def _only_in_store(record: Any) -> bool:
    copy = copy_of(record)
    return copy is not None and copy.bookkeeper_deleted


async def until_done(ledger: ManagedLedger) -> None:
    """Let the offloads do what is due, again and again until nothing is."""
    while True:
        await ledger.offloads.until_idle()
        await ledger.trim_if_due()
        if not ledger.offloads.due:
            return
        ledger.offloads.later()


def with_policy(settings: ManagedLedgerSettings, **fields: Any) -> ManagedLedgerSettings:
    """Settings with another offload policy."""
    return replace(settings, offload=replace(settings.offload, **fields))


async def prepared(ledger: ManagedLedger) -> None:
    """Have its offloader made before the first offload, so that a test can lay hands on it."""
    await ledger.offloads._tiered.lease()
