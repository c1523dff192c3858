"""Which ledgers lack replicas: marks, locks and switches that Apache's auditors and workers share with ours.

The nodes and their values are Apache's, of BookKeeper's own ZooKeeper driver and of Pulsar's metadata-store driver
alike, so that each side repairs what the other has marked. What is promised here beyond theirs: a mark's version is
read under the lock, and a lock that vanishes is noticed by its holder.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Collection
from dataclasses import dataclass
from typing import Final

from magnetar.bookie.autorecovery import paths
from magnetar.bookie.autorecovery.replication_lock import LockTable, ReplicationLock
from magnetar.core.clock import Clock, SystemClock
from magnetar.core.errors import PeerError
from magnetar.metadata.store import (
    MUST_NOT_EXIST,
    MetadataStore,
    NodeChange,
    NodeHasChildren,
    NodeNotFound,
    Notification,
    SessionEvent,
    StoreUnavailable,
    VersionConflict,
)
from magnetar.wire.bookkeeper.under_replication import (
    LAYOUT_TYPE,
    LAYOUT_VERSION,
    CheckKind,
    decode_last_check,
    decode_layout,
    decode_underreplicated,
    encode_last_check,
    encode_layout,
    encode_underreplicated,
)

logger: Final = logging.getLogger(__name__)

ATTEMPTS_MAX: Final = 20
"""How often a write starts again because others changed the node meanwhile."""

READS_IN_FLIGHT_MAX: Final = 32
"""Marks that a walk reads at a time: hides the store's delay and leaves it room for others."""

PROBLEM_LETTERS_MAX: Final = 1000
"""The length of the text that says why a ledger is not whole: some entries and bookies are enough to know where to
look."""

CHECK_ASKED_FOR_MS: Final = 0
"""The mark of a check that somebody asks for: it ran long ago, for Apache's auditors too."""

_SYSTEM_CLOCK: Final = SystemClock()


@dataclass(frozen=True, slots=True)
class UnderreplicatedLedger:
    """A ledger that is marked as under-replicated."""

    ledger_id: int
    missing_replicas: tuple[str, ...]
    """Ids of the bookies whose copies are missing; a hint, and empty when only the placement is to be repaired."""
    created_ms: int
    """When it was marked, or the last replica was added; the node's own time if the marker did not say."""
    version: int


class ChangeSignal:
    """Set when there may be something to do: a mark appeared, a lock was released, AutoRecovery was switched on or
    off, or the store may have kept such news from us. Close it, or use it as a context manager."""

    def __init__(self, signals: set[ChangeSignal]) -> None:
        self._event = asyncio.Event()
        self._signals = signals
        signals.add(self)

    def set(self) -> None:
        """Wake the waiter."""
        self._event.set()

    async def wait(self) -> None:
        """Return at once if there was news since the last return, else when there is."""
        await self._event.wait()
        self._event.clear()

    def close(self) -> None:
        """No more news. Closing twice is no error."""
        self._signals.discard(self)

    def __enter__(self) -> ChangeSignal:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class UnderreplicatedLedgers:
    """The nodes below `/ledgers/underreplication`. One object per session of a store: the locks of a session are
    told apart by it. All methods may raise `StoreUnavailable`, and `PeerError` for a damaged node."""

    def __init__(
        self,
        store: MetadataStore,
        bookie_id: str,
        clock: Clock = _SYSTEM_CLOCK,
        rng: random.Random | None = None,
    ) -> None:
        self._store = store
        self._clock = clock
        self._rng = rng or random.SystemRandom()
        self._bookie_id = bookie_id
        self._locks = LockTable(store, bookie_id)
        self._signals: set[ChangeSignal] = set()
        self._prepared = False
        self._walk: AsyncGenerator[int, None] | None = None
        self._one_walk = asyncio.Lock()
        self._stops: list[Callable[[], None]] = [
            store.watch(self._take_notification),
            store.watch_session(self._take_session_event),
        ]

    async def prepare(self) -> None:
        """Make the nodes that Apache's tools expect. `PeerError` if the layout is one that we do not know."""
        if self._prepared:
            return
        node = await self._store.get(paths.LAYOUT)
        if node is None:
            await self._create(paths.LAYOUT, encode_layout())
        elif decode_layout(node.value) != (LAYOUT_TYPE, LAYOUT_VERSION):
            raise PeerError(f"{paths.LAYOUT} is of an unknown kind: {node.value[:100]!r}")
        for folder in (paths.MARKS, paths.LOCKS):
            if not await self._store.exists(folder):
                await self._create(folder, b"")
        self._prepared = True

    async def close(self) -> None:
        """Give all locks back and listen no more."""
        for stop in self._stops:
            stop()
        self._stops = []
        async with self._one_walk:
            walk, self._walk = self._walk, None
            if walk is not None:
                await walk.aclose()
        await self._locks.close()

    async def mark(self, ledger_id: int, missing_replicas: Collection[str]) -> None:
        """Say that a ledger lacks the copies on these bookies; those it was marked with already stay.

        Nothing is written when the mark says so already. A mark with new replicas gets a new version, so that a
        repair under way does not remove it."""
        await self.prepare()
        path = paths.mark_path(ledger_id)
        for _ in range(ATTEMPTS_MAX):
            node = await self._store.get(path, watch=False)
            known = decode_underreplicated(node.value)[0] if node is not None else ()
            replicas = tuple(dict.fromkeys((*known, *missing_replicas)))
            if node is not None and replicas == known:
                return
            value = encode_underreplicated(replicas, self._clock.now_ms())
            with contextlib.suppress(VersionConflict):  # Somebody marked or finished it just now: look again.
                await self._store.put(path, value, MUST_NOT_EXIST if node is None else node.stat.version)
                return
        raise StoreUnavailable(f"{path} changed under {ATTEMPTS_MAX} attempts to mark it")

    async def get(self, ledger_id: int) -> UnderreplicatedLedger | None:
        """The mark; None if the ledger is not marked."""
        # News of marks comes from the folders that a walk looks into; there may be more marks than can be watched.
        node = await self._store.get(paths.mark_path(ledger_id), watch=False)
        if node is None:
            return None
        replicas, created_ms = decode_underreplicated(node.value)
        created_ms = node.stat.modified_ms if created_ms is None else created_ms
        return UnderreplicatedLedger(ledger_id, replicas, created_ms, node.stat.version)

    async def all(self) -> AsyncIterator[UnderreplicatedLedger]:
        """Every mark, ascending; those that come and go meanwhile may be missed. A damaged one is logged."""
        batch: list[int] = []
        async for ledger_id in self._ledger_ids(shuffled=False):
            batch.append(ledger_id)
            if len(batch) == READS_IN_FLIGHT_MAX:
                for found in await self._get_all(batch):
                    yield found
                batch = []
        for found in await self._get_all(batch):
            yield found

    async def count(self) -> int:
        """How many ledgers are marked. Walks all marks: not for every second."""
        number = 0
        async for _ in self.all():
            number += 1
        return number

    async def lock(self, ledger_id: int) -> ReplicationLock | None:
        """The lock of a ledger, marked or not, for as long as our session lasts; None when anybody holds it."""
        await self.prepare()
        return await self._locks.acquire(ledger_id)

    async def lock_holder(self, ledger_id: int) -> str | None:
        """What the holder calls itself; None if nobody holds the lock."""
        return await self._locks.holder(ledger_id)

    async def tell_problem(self, ledger_id: int, problem: str) -> None:
        """Say why a ledger could not be replicated, for whoever waits for it; until `replicated`, or the end of our
        session. Never fails: nothing depends on it."""
        value = f"{self._bookie_id}: {problem}"[:PROBLEM_LETTERS_MAX].encode()
        path = paths.problem_path(ledger_id)
        try:
            with contextlib.suppress(NodeNotFound):
                await self._store.delete(path)
            await self._create(path, value, ephemeral=True)
        except StoreUnavailable as error:
            logger.info("why ledger %d is not whole is told to nobody: %s", ledger_id, error)

    async def problem(self, ledger_id: int) -> str:
        """Who could not replicate the ledger when it was tried last, and why; empty when nobody has said so."""
        node = await self._store.get(paths.problem_path(ledger_id), watch=False)
        return "" if node is None else node.value.decode("utf-8", "replace")

    async def lock_any(self) -> tuple[UnderreplicatedLedger, ReplicationLock] | None:
        """A marked ledger that nobody works on, in random order, and its lock; None when there is none.

        It does not ask whether AutoRecovery is enabled."""
        await self.prepare()
        async with self._one_walk:
            walked_all = self._walk is None
            while True:
                if self._walk is None:
                    self._walk = self._ledger_ids(shuffled=True)
                async for ledger_id in self._walk:
                    found = await self._try(ledger_id)
                    if found is not None:
                        return found
                # This walk is over. If it began in an earlier call, what was marked since is looked for once more.
                self._walk = None
                if walked_all:
                    return None
                walked_all = True

    async def replicated(self, task: UnderreplicatedLedger, lock: ReplicationLock) -> None:
        """The ledger has all its replicas: remove the mark unless it has changed since, then the lock.

        When the lock was lost the mark stays: its next holder will find nothing to do."""
        try:
            if not lock.lost:
                await self._remove_mark(task)
        finally:
            await lock.release()

    async def enabled(self) -> bool:
        """Whether AutoRecovery may work."""
        return not await self._store.exists(paths.DISABLED)

    async def enable(self) -> bool:
        """Switch AutoRecovery on in the whole cluster; False if it was on."""
        try:
            await self._store.delete(paths.DISABLED)
        except NodeNotFound:
            return False
        return True

    async def disable(self) -> bool:
        """Switch AutoRecovery off in the whole cluster: what is under way is finished, nothing new begins. False if
        it was off."""
        await self.prepare()
        return await self._create(paths.DISABLED, b"")

    def watch_changes(self) -> ChangeSignal:
        """News to wait for: `await signal.wait()`. It promises news only of what was looked at before."""
        return ChangeSignal(self._signals)

    async def lost_bookie_recovery_delay_seconds(self) -> int | None:
        """How long a lost bookie may take to come back; None if nobody has set it in this cluster."""
        node = await self._store.get(paths.LOST_BOOKIE_RECOVERY_DELAY)
        return None if node is None else parse_delay(node.value)

    async def set_lost_bookie_recovery_delay_seconds(self, seconds: int) -> None:
        """Set it for the whole cluster. Setting the value that it has makes the auditor audit at once (Apache's
        auditors too, which is how BookKeeper's `triggeraudit` works)."""
        await self.prepare()
        await self._store.put(paths.LOST_BOOKIE_RECOVERY_DELAY, str(seconds).encode("ascii"))

    async def initialize_lost_bookie_recovery_delay(self, seconds: int) -> int:
        """Set the delay unless it is set; returns the one that is in force."""
        await self.prepare()
        await self._create(paths.LOST_BOOKIE_RECOVERY_DELAY, str(seconds).encode("ascii"))
        set_before = await self.lost_bookie_recovery_delay_seconds()
        return seconds if set_before is None else set_before

    async def request_audit(self) -> None:
        """Ask the auditor, wherever it is, to look for lost bookies now: the delay is written again as it is."""
        seconds = await self.lost_bookie_recovery_delay_seconds()
        await self.set_lost_bookie_recovery_delay_seconds(seconds or 0)

    async def last_check(self, kind: CheckKind) -> int | None:
        """When a check ended last, in ms since 1970; None if it never did."""
        node = await self._store.get(paths.LAST_CHECKS[kind])
        return None if node is None else decode_last_check(kind, node.value)

    async def set_last_check(self, kind: CheckKind, time_ms: int) -> None:
        """Say when a check ended."""
        await self.prepare()
        await self._store.put(paths.LAST_CHECKS[kind], encode_last_check(kind, time_ms))

    async def request_check(self, kind: CheckKind) -> None:
        """Ask the auditor, wherever it is, for a check now: its mark says that it ran long ago. Ours hears of it;
        Apache's, and one that is elected later, find out when they begin."""
        await self.set_last_check(kind, CHECK_ASKED_FOR_MS)

    async def _create(self, path: str, value: bytes, *, ephemeral: bool = False) -> bool:
        try:
            await self._store.put(path, value, MUST_NOT_EXIST, ephemeral=ephemeral)
        except VersionConflict:
            return False
        return True

    async def _get_all(self, ledger_ids: list[int]) -> list[UnderreplicatedLedger]:
        results = await asyncio.gather(*map(self._get_or_log, ledger_ids))
        return [mark for mark in results if mark is not None]

    async def _get_or_log(self, ledger_id: int) -> UnderreplicatedLedger | None:
        try:
            return await self.get(ledger_id)
        except PeerError as error:
            logger.warning("the mark of ledger %d cannot be read: %s", ledger_id, error)
            return None

    async def _try(self, ledger_id: int) -> tuple[UnderreplicatedLedger, ReplicationLock] | None:
        if await self._get_or_log(ledger_id) is None:
            # Workers that die, and some versions of Pulsar's driver, leave the folders of what they have repaired;
            # they would be looked into for ever.
            await self._remove_folders(ledger_id)
            return None
        lock = await self._locks.acquire(ledger_id)
        if lock is None:
            return None
        try:
            # Read again: another may have finished it before we got the lock, and it may be marked anew with the
            # same version.
            task = await self._get_or_log(ledger_id)
        except BaseException:
            await lock.release()
            raise
        if task is None:
            await lock.release()
            return None
        return task, lock

    async def _ledger_ids(self, *, shuffled: bool) -> AsyncGenerator[int, None]:
        """Ids of ledgers that may be marked: of every mark's folder."""
        async for folder in self._folders(paths.MARKS, paths.LEVELS, shuffled=shuffled):
            ledger_id = paths.ledger_id_of_folder(folder)
            if ledger_id is not None:
                yield ledger_id

    async def _folders(self, path: str, levels: int, *, shuffled: bool) -> AsyncIterator[str]:
        if levels == 0:
            yield path
            return
        names = await self._store.children(path)
        if shuffled:
            self._rng.shuffle(names)
        for name in names:
            async for folder in self._folders(f"{path}/{name}", levels - 1, shuffled=shuffled):
                yield folder

    async def _remove_mark(self, task: UnderreplicatedLedger) -> None:
        with contextlib.suppress(NodeNotFound):
            await self._store.delete(paths.problem_path(task.ledger_id))
        try:
            await self._store.delete(paths.mark_path(task.ledger_id), task.version)
        except VersionConflict:
            logger.info("ledger %d was marked again while it was replicated", task.ledger_id)
            return
        except NodeNotFound:
            logger.info("the mark of ledger %d is gone already", task.ledger_id)
        await self._remove_folders(task.ledger_id)

    async def _remove_folders(self, ledger_id: int) -> None:
        folder = paths.mark_folder(ledger_id)
        with contextlib.suppress(NodeHasChildren):  # Another ledger's marks stand there.
            for _ in range(paths.LEVELS):
                with contextlib.suppress(NodeNotFound):
                    await self._store.delete(folder)
                folder = folder.rpartition("/")[0]

    def _take_notification(self, notification: Notification) -> None:
        path, change = notification.path, notification.change
        if not path.startswith(paths.BASE):
            return
        marked = path.startswith(paths.MARKS) and change in (NodeChange.CREATED, NodeChange.CHILDREN_CHANGED)
        released = path.startswith(paths.LOCKS) and change is NodeChange.DELETED
        if marked or released or path == paths.DISABLED:
            self._tell()

    def _take_session_event(self, event: SessionEvent) -> None:
        if event in (SessionEvent.RECONNECTED, SessionEvent.SESSION_RESTARTED):
            self._tell()

    def _tell(self) -> None:
        for signal in self._signals:
            signal.set()


def parse_delay(value: bytes) -> int:
    """The seconds that the node says. Raises `PeerError`."""
    try:
        return int(value)
    except ValueError:
        raise PeerError(f"{paths.LOST_BOOKIE_RECOVERY_DELAY} is not a number: {value[:100]!r}") from None
