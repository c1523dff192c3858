"""Opens managed ledgers, each at most once in this process, and looks after what they share."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Final, TypeAlias

from magnetar.core.clock import Clock
from magnetar.core.errors import Misuse, Unavailable
from magnetar.core.limits import MIB
from magnetar.ledger.api import LedgerClient, LedgerNotFound
from magnetar.managed.append_path import AppendPath
from magnetar.managed.compaction import ledgers_of_cursor
from magnetar.managed.entry_cache import CacheRates, EntryCache
from magnetar.managed.errors import (
    ManagedLedgerClosed,
    ManagedLedgerIsShadow,
    ManagedLedgerNotFound,
    ManagedLedgerReadOnly,
)
from magnetar.managed.info_codec import (
    POSITION_IN_NODE,
    SHADOW_SOURCE_PROPERTY,
    LedgerInfo,
    decode_cursor_info,
    decode_ledger_info,
    encode_ledger_info,
)
from magnetar.managed.info_node import InfoNode
from magnetar.managed.ledger_list import LedgerList, LedgerRecord
from magnetar.managed.ledger_rollover import LedgerRollover
from magnetar.managed.managed_ledger import ManagedLedger
from magnetar.managed.offload.context import at_bookies, copy_of
from magnetar.managed.offload.copies import TieredAccess
from magnetar.managed.offload.upkeep import delete_everything
from magnetar.managed.paths import cursor_path, decode, ledger_path
from magnetar.managed.settings import ManagedLedgerSettings
from magnetar.managed.shared import Shared
from magnetar.managed.states import ManagedLedgerState
from magnetar.metadata.store import MUST_NOT_EXIST, MetadataStore, VersionConflict
from magnetar.metadata.sure_writes import put_surely
from magnetar.tiered.offloaders import Offloaders

if TYPE_CHECKING:
    from magnetar.managed.following.api import EndTeller, TopicOwner
    from magnetar.managed.following.followed_ledger import FollowedLedger
    from magnetar.managed.following.settings import FollowSettings
    from magnetar.managed.following.shadow_ledger import ShadowLedger

logger: Final = logging.getLogger(__name__)

CACHE_AGE_SECONDS_MAX: Final = 120.0
"""Entries of idle topics give their memory back after so long, where nobody says otherwise."""

CACHE_LOOK_SECONDS_MIN: Final = 0.1
"""How often the cache is looked at for old entries, at most."""

TIERED_LOOK_SECONDS: Final = 120.0
"""How often readers of offloaded ledgers are looked for that nobody uses."""

TIERED_IDLE_SECONDS_MAX: Final = 600.0
"""Pulsar's default of `managedLedgerInactiveOffloadedLedgerEvictionTimeSeconds`."""


SaidByLastEntry: TypeAlias = Callable[[bytes, Mapping[str, str]], Mapping[str, str]]
"""Of the last entry of the last ledger and the stored properties: the properties that are right by now. They are stored
with each write of the list from the first one on, before anything of that ledger can be trimmed (Pulsar
`ManagedLedgerInterceptor.onManagedLedgerLastLedgerInitialize`)."""


class ManagedLedgerFactory:
    """Opens managed ledgers; one per process."""

    def __init__(
        self,
        store: MetadataStore,
        ledgers: LedgerClient,
        clock: Clock,
        loop: asyncio.AbstractEventLoop,
        *,
        cache_bytes_max: int = 64 * MIB,
        cache_seconds_max: float = CACHE_AGE_SECONDS_MAX,
        settings: ManagedLedgerSettings | None = None,
        offloaders: Offloaders | None = None,
    ) -> None:
        self.cache: EntryCache = EntryCache(cache_bytes_max)
        self.cache_rates: CacheRates = CacheRates(self.cache)
        """Of the last period of statistics; whoever tells of them ends the periods."""
        self.settings: ManagedLedgerSettings = settings if settings is not None else ManagedLedgerSettings()
        """The policy of managed ledgers that are opened without their own; each gets a copy."""
        self.tiered_idle_seconds_max: float = TIERED_IDLE_SECONDS_MAX
        """Seconds after which readers of offloaded ledgers that nobody uses are closed."""
        self._shared: Shared = Shared(store, ledgers, clock, loop, self.cache, offloaders or Offloaders())
        self._shared.forget = self._forget
        self._open: dict[str, ManagedLedger] = {}
        self._opening: dict[str, asyncio.Task[ManagedLedger]] = {}
        self._following: dict[str, asyncio.Task[FollowedLedger]] = {}
        self._closed: bool = False
        self._cache_seconds_max: float = cache_seconds_max
        self._aging: asyncio.TimerHandle = self._age_cache_later()
        self._closing: asyncio.TimerHandle = loop.call_later(TIERED_LOOK_SECONDS, self._look_for_unused_readers)

    async def open(
        self,
        name: str,
        settings: ManagedLedgerSettings | None = None,
        *,
        create: bool = True,
        said_by_last: SaidByLastEntry | None = None,
    ) -> ManagedLedger:
        """The managed ledger of this name, taken over from its former owner if there was one.

        The same object for all callers until it is closed, deleted or fenced. `ManagedLedgerNotFound` when it is not
        there and `create` is False; `ManagedLedgerFenced` when another process takes it at the same time.
        `said_by_last` brings the properties up to date; what it raises is raised here."""
        if self._closed:
            raise ManagedLedgerClosed("the factory is closed")
        ledger = self._usable(name)
        if ledger is not None and not ledger.keeps_cursors:
            raise ManagedLedgerReadOnly(name)
        if ledger is not None:
            return ledger
        task = self._opening.get(name)
        if task is None:
            task = self._opening[name] = self._shared.loop.create_task(
                self._load(name, replace(settings if settings is not None else self.settings), create, said_by_last)
            )
            task.add_done_callback(lambda _: self._opening.pop(name, None))
        return await asyncio.shield(task)

    async def follow(
        self,
        name: str,
        owner: TopicOwner,
        settings: ManagedLedgerSettings | None = None,
        following: FollowSettings | None = None,
    ) -> FollowedLedger:
        """The managed ledger of this name, which another process writes: it is read and followed, and nothing of it is
        written. `settings` are those that it would be opened with.

        The same object for all callers until it is closed or lost; it closes the owner of the first of them, and the
        others' is still theirs (see `FollowedLedger.owner`). `ManagedLedgerNotFound`, `BrokenMetadata`, `Unavailable`;
        `Misuse` when it is open here for writing."""
        # Here, not above: whoever follows nothing does not load it.
        from magnetar.managed.following.followed_ledger import FollowedLedger

        if self._closed:
            raise ManagedLedgerClosed("the factory is closed")
        ledger = self._usable(name)
        if isinstance(ledger, FollowedLedger):
            return ledger
        if ledger is not None or name in self._opening:
            raise Misuse(f"{name} is open for writing")
        task = self._following.get(name)
        if task is None:
            policy = replace(settings if settings is not None else self.settings)
            task = self._following[name] = self._shared.loop.create_task(self._follow(name, owner, policy, following))
            task.add_done_callback(lambda _: self._following.pop(name, None))
        return await asyncio.shield(task)

    async def _follow(
        self, name: str, owner: TopicOwner, settings: ManagedLedgerSettings, following: FollowSettings | None
    ) -> FollowedLedger:
        from magnetar.managed.following.followed_ledger import follow

        ledger = await follow(self._shared, name, owner, settings, following)
        self._open[name] = ledger
        return ledger

    async def open_shadow(
        self,
        name: str,
        source: str,
        owner: EndTeller,
        following: FollowSettings,
        properties: Mapping[str, str],
        settings: ManagedLedgerSettings | None = None,
    ) -> ShadowLedger:
        """The managed ledger of this name as a shadow of another one, made if it is not there: the source's entries are
        read and followed, and nothing of the source is written. `properties` are stored beside those that it has.

        One call at a time for a name. It closes the owner when it is closed; after an error the owner is the caller's.
        `ManagedLedgerNotFound`: there is no such source. `ManagedLedgerFenced`, `BrokenMetadata`, `Unavailable`."""
        # Here, not above: whoever has no shadows does not load it.
        from magnetar.managed.following.shadow_ledger import open_shadow

        if self._closed:
            raise ManagedLedgerClosed("the factory is closed")
        if self._usable(name) is not None or name in self._opening:
            raise Misuse(f"{name} is open")
        policy = replace(settings if settings is not None else self.settings)
        ledger = await open_shadow(self._shared, name, source, owner, policy, following, properties)
        self._open[name] = ledger
        for ledger_id in self._unnamed(ledger):
            self._shared.delete_later(ledger_id)
        return ledger

    def _usable(self, name: str) -> ManagedLedger | None:
        ledger = self._open.get(name)
        if ledger is None or ledger.state in (ManagedLedgerState.FENCED, ManagedLedgerState.CLOSED):
            return None
        return ledger

    @property
    def offloaders(self) -> Offloaders:
        """The offloaders, by the settings of their stores."""
        return self._shared.offloaders

    def opened(self) -> list[ManagedLedger]:
        """All that are open now: whoever opened the factory has each roll over and trim when it is due."""
        return list(self._open.values())

    async def create(self, name: str, properties: Mapping[str, str] | None = None) -> bool:
        """Make a managed ledger that nobody opens now, whoever will own it: an empty node, as Pulsar's brokers make
        for the partitions of a new topic (TopicResources.createPersistentTopicAsync), or one that has only properties.
        False when it is there already."""
        value = b"" if properties is None else encode_ledger_info((), None, properties)
        try:
            await put_surely(self._shared.store, ledger_path(name), value, MUST_NOT_EXIST)
        except VersionConflict:
            return False
        return True

    async def exists(self, name: str) -> bool:
        """Whether there is a managed ledger of this name in the store."""
        return await self._shared.store.exists(ledger_path(name), watch=False)

    async def properties(self, name: str) -> dict[str, str] | None:
        """What is noted in the node of a managed ledger, open or not; None: there is no such node. `BrokenMetadata`"""
        node = await self._shared.store.get(ledger_path(name), watch=False)
        return None if node is None else decode_ledger_info(node.value).properties

    async def delete(
        self, name: str, settings: ManagedLedgerSettings | None = None, *, with_ledgers: bool = True
    ) -> None:
        """Remove a managed ledger, open or not: cursors, ledgers, objects of tiered storage, metadata. One that is not
        there is no error. The settings are those that it would be opened with. A shadow's ledgers stay, and without
        `with_ledgers` those of any that is not open."""
        ledger = self._open.get(name)
        if ledger is not None:
            await ledger.delete()
            return
        shared, store = self._shared, self._shared.store
        node = InfoNode(store, name, shared.delete_later)
        info = await node.load()
        doomed = set(shared.unsettled.get(name, ()))
        if info is not None and (SHADOW_SOURCE_PROPERTY in info.properties or not with_ledgers):
            info.records = []  # They are the source's.
        if info is not None:
            doomed.update(record.ledger_id for record in info.records if at_bookies(record))
            try:
                await self._delete_objects(name, info, settings if settings is not None else self.settings)
                for encoded in await store.children(ledger_path(name), watch=False):
                    cursor = await store.get(cursor_path(name, decode(encoded)), watch=False)
                    if cursor is not None:
                        doomed.add(decode_cursor_info(cursor.value).cursorsLedgerId)
                async with node.lock:
                    await node.delete()
            except Unavailable:
                shared.left_over(name, doomed - {POSITION_IN_NODE})
                raise
        shared.unsettled.pop(name, None)
        for ledger_id in sorted(doomed - {POSITION_IN_NODE}):
            await shared.delete_ledger(ledger_id)

    async def _delete_objects(self, name: str, info: LedgerInfo, settings: ManagedLedgerSettings) -> None:
        appends = AppendPath(self._shared, name, settings, LedgerList(info.records))
        tiered = TieredAccess(self._shared, appends)
        try:
            await delete_everything(tiered, info.records, info.properties, name)
        finally:
            await tiered.close()

    async def close(self) -> None:
        """Close all managed ledgers and wait for what runs in the background."""
        self._closed = True
        self._aging.cancel()
        self._closing.cancel()
        if opening := [*self._opening.values(), *self._following.values()]:
            await asyncio.wait(opening)
        for ledger in self.opened():
            await ledger.close()
        await self._shared.wait_for_tasks()
        await self._shared.offloaders.close()
        self._shared.close()

    async def _load(
        self, name: str, settings: ManagedLedgerSettings, create: bool, said_by_last: SaidByLastEntry | None
    ) -> ManagedLedger:
        """Pulsar's order (ManagedLedgerImpl.initialize): recover the last ledger, which fences the former owner; drop
        empty ledgers; make a new one; write the list by compare-and-set; load the cursors. Then, unlike Pulsar, look
        whether the list is still its own: while it loaded them slowly, they may have become another owner's."""
        node = InfoNode(self._shared.store, name, self._shared.delete_later)
        info = await node.load()
        if info is None and not create:
            raise ManagedLedgerNotFound(name)
        new = info is None
        if info is None:
            info = LedgerInfo([], None, {})
        elif SHADOW_SOURCE_PROPERTY in info.properties:
            # To recover its last ledger would fence the source's writer, and to trim would delete the source's entries.
            raise ManagedLedgerIsShadow(name, info.properties[SHADOW_SOURCE_PROPERTY])
        else:
            await self._recover_last(info, settings, said_by_last)
        empty = [record for record in info.records if not record.entries]
        records = [record for record in info.records if record.entries]
        if info.terminated_at is not None:
            records, empty = info.records or [LedgerRecord(info.terminated_at[0])], []
        appends = AppendPath(self._shared, name, settings, LedgerList(records))
        rollover = LedgerRollover(self._shared, node, appends)
        appends.properties = info.properties
        if info.terminated_at is not None:
            appends.terminated(info.terminated_at)
        else:
            appends.go(ManagedLedgerState.CREATING_LEDGER)
            try:
                await rollover.create_ledger()
            except Unavailable:
                self._shared.left_over(name, node.ledgers_in_doubt)
                raise
            appends.go(ManagedLedgerState.LEDGER_OPENED)
            for record in empty:
                self._shared.delete_later(record.ledger_id)
        ledger = ManagedLedger(self._shared, node, appends, rollover)
        try:
            if not new:
                cursors = await self._shared.store.children(ledger_path(name), watch=False)
                await ledger.load_cursors([decode(each) for each in cursors])
                await ledger.check_loaded_cursors()
        except BaseException:
            await ledger.abandon()  # It may have another owner: nothing of what it has loaded may be written.
            raise
        self._open[name] = ledger
        if info.terminated_at is None:
            # What had no answer came before the write that named the new ledger, or never will.
            for ledger_id in self._unnamed(ledger):
                await self._shared.delete_ledger(ledger_id)
        ledger.trim_later()
        ledger.offloads.loaded()
        return ledger

    def _unnamed(self, ledger: ManagedLedger) -> list[int]:
        """Ids of ledgers that this managed ledger was in doubt of before, and does not name now."""
        before = self._shared.unsettled.pop(ledger.name, set())
        storages = [cursor.storage for cursor in ledger.cursors.values()]
        named = {POSITION_IN_NODE, *ledger.ledgers.ids, *(storage.ledger_id for storage in storages if storage)}
        for cursor in ledger.cursors.values():
            named |= ledgers_of_cursor(cursor)
        return sorted(before - named)

    async def _recover_last(
        self, info: LedgerInfo, settings: ManagedLedgerSettings, said_by_last: SaidByLastEntry | None
    ) -> None:
        if not info.records:
            return
        last = info.records[-1]
        copy = copy_of(last)
        if copy is not None and copy.bookkeeper_deleted:
            return  # Apache's brokers offload the last ledger of a terminated topic too; its record says all of it.
        try:
            reader = await self._shared.ledgers.open(last.ledger_id, password=settings.password, recover=True)
        except LedgerNotFound:
            logger.warning("the last ledger, %d, is gone", last.ledger_id)
            info.records.pop()
            return
        last.entries = reader.last_add_confirmed + 1
        last.size_bytes = reader.length_bytes
        last.closed_ms = last.closed_ms or self._shared.clock.now_ms()
        try:
            if said_by_last is not None and last.entries:
                entry = (await reader.read(last.entries - 1, last.entries - 1))[0]
                info.properties = dict(said_by_last(entry, info.properties))
        finally:
            await reader.close()

    def _forget(self, name: str, ledger: object) -> None:
        if self._open.get(name) is ledger:
            del self._open[name]

    def keep_cached(self, seconds_max: float) -> None:
        """Entries stay in the cache for so long, or as they are looked for up to twice as long, from now on."""
        if seconds_max != self._cache_seconds_max:
            self._cache_seconds_max = seconds_max
            self._aging.cancel()
            self._age_cache()

    def _age_cache_later(self) -> asyncio.TimerHandle:
        seconds = max(CACHE_LOOK_SECONDS_MIN, self._cache_seconds_max)
        return self._shared.loop.call_later(seconds, self._age_cache)

    def _age_cache(self) -> None:
        self.cache.evict_older_than(self._shared.clock.monotonic_seconds() - self._cache_seconds_max)
        self._aging = self._age_cache_later()

    def _look_for_unused_readers(self) -> None:
        if self._shared.tiered_readers:
            now_seconds = self._shared.clock.monotonic_seconds()
            self._shared.start(self._close_unused_readers(now_seconds - self.tiered_idle_seconds_max))
        self._closing = self._shared.loop.call_later(TIERED_LOOK_SECONDS, self._look_for_unused_readers)

    async def _close_unused_readers(self, since_seconds: float) -> None:
        for readers in list(self._shared.tiered_readers):
            await readers.close_unused(since_seconds)
