"""Locks on ledgers that are replicated: ephemeral nodes, of which nobody ever holds the same twice."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from magnetar.bookie.autorecovery import paths
from magnetar.core.errors import Misuse
from magnetar.metadata.store import (
    MUST_NOT_EXIST,
    MetadataStore,
    NodeChange,
    NodeNotFound,
    Notification,
    SessionEvent,
    StoreUnavailable,
    VersionConflict,
)
from magnetar.wire.bookkeeper.under_replication import decode_lock, encode_lock

logger: Final = logging.getLogger(__name__)


class ReplicationLock:
    """One ledger is ours to replicate until `release`, unless the lock is lost before."""

    def __init__(self, table: LockTable, ledger_id: int) -> None:
        self.ledger_id = ledger_id
        self._table = table
        self._lost = asyncio.Event()

    @property
    def lost(self) -> bool:
        """Whether the session ended or somebody removed the node: another may be at work, so stop writing."""
        return self._lost.is_set()

    async def wait_until_lost(self) -> None:
        """Return when it is lost; never, if it is released."""
        await self._lost.wait()

    async def release(self) -> None:
        """Give it back. Releasing twice, or a lost one, is no error; nor is a store that cannot be reached: the
        table tries again later, and the end of the session does the rest."""
        await self._table.release(self)

    def lose(self) -> None:
        """The table: it is ours no more."""
        self._lost.set()


class LockTable:
    """The locks that one session holds or may hold. There must be one table per session."""

    def __init__(self, store: MetadataStore, holder: str) -> None:
        self._store = store
        self._value = encode_lock(holder)
        # Bounded by the ledgers that are replicated at a time.
        self._held: dict[int, ReplicationLock] = {}
        # Nodes that may stand in our session without anybody holding them, as the store failed during a request.
        self._leftovers: set[int] = set()
        # A node that one request is about to remove must not be another request's new one.
        self._one_request = asyncio.Lock()
        self._sessions_lost = 0
        self._creating: int | None = None
        """The ledger whose node a request is making. News of its deletion mean the holder's before us: what the request
        reads at its end is newer."""
        self._stops: list[Callable[[], None]] = [
            store.watch(self._take_notification),
            store.watch_session(self._take_session_event),
        ]

    async def acquire(self, ledger_id: int) -> ReplicationLock | None:
        """The lock, or None when it is held, be it here or elsewhere."""
        if not self._stops:
            raise Misuse("the locks are closed")
        async with self._one_request:
            await self._remove_leftovers()
            if ledger_id in self._held:
                return None
            sessions_lost = self._sessions_lost
            lock = self._held[ledger_id] = ReplicationLock(self, ledger_id)
            created = False
            self._creating = ledger_id
            try:
                created = await self._create(ledger_id)
            except BaseException:
                self._leftovers.add(ledger_id)
                raise
            finally:
                self._creating = None
                if not created:
                    self._held.pop(ledger_id, None)
            if created and self._sessions_lost != sessions_lost:
                # Whose session made the node is not known: leave it alone.
                self._leftovers.add(ledger_id)
                created = False
            return lock if created and not lock.lost else None

    async def holder(self, ledger_id: int) -> str | None:
        """What the holder's node says; None if there is none."""
        node = await self._store.get(paths.lock_path(ledger_id))
        return None if node is None else decode_lock(node.value)

    async def release(self, lock: ReplicationLock) -> None:
        """Give it back. Releasing twice, or a lost one, is no error; nor is a store that cannot be reached: the table
        tries again later, and the end of the session does the rest."""
        if self._held.get(lock.ledger_id) is lock:
            del self._held[lock.ledger_id]
            self._leftovers.add(lock.ledger_id)
        elif lock.ledger_id not in self._leftovers:
            return
        # Also of a lost one the node may stand, and nobody may ask for a lock here for long.
        try:
            async with self._one_request:
                await self._remove_leftovers()
        except StoreUnavailable as error:
            logger.warning("the lock of ledger %d is not released yet: %s", lock.ledger_id, error)

    async def close(self) -> None:
        """Release all locks of this table."""
        for lock in list(self._held.values()):
            await lock.release()
        for stop in self._stops:
            stop()
        self._stops = []

    async def _create(self, ledger_id: int) -> bool:
        path = paths.lock_path(ledger_id)
        try:
            await self._store.put(path, self._value, MUST_NOT_EXIST, ephemeral=True)
        except VersionConflict:
            # The look leaves a watch, so that whoever waits for work hears of the release.
            await self._store.exists(path)
            return False
        # So that we hear of it if somebody removes the node.
        node = await self._store.get(path)
        return node is not None and node.stat.owned_by_this_session

    async def _remove_leftovers(self) -> None:
        for ledger_id in list(self._leftovers):
            await self._remove(ledger_id)
            self._leftovers.discard(ledger_id)

    async def _remove(self, ledger_id: int) -> None:
        path = paths.lock_path(ledger_id)
        node = await self._store.get(path)
        if node is not None and node.stat.owned_by_this_session:
            try:
                await self._store.delete(path, node.stat.version)
            except (NodeNotFound, VersionConflict) as error:
                logger.info("the lock of ledger %d is gone already: %s", ledger_id, error)

    def _take_notification(self, notification: Notification) -> None:
        if notification.change is NodeChange.DELETED and notification.path.startswith(f"{paths.LOCKS}/"):
            for ledger_id in list(self._held):
                if ledger_id != self._creating and paths.lock_path(ledger_id) == notification.path:
                    self._lose(ledger_id)

    def _take_session_event(self, event: SessionEvent) -> None:
        if event is SessionEvent.SESSION_LOST:
            self._sessions_lost += 1
            for ledger_id in list(self._held):
                self._lose(ledger_id)

    def _lose(self, ledger_id: int) -> None:
        logger.warning("the lock of ledger %d is lost", ledger_id)
        self._held.pop(ledger_id).lose()
        # The node may be ours all the same: a notification may have meant that of the holder before us.
        self._leftovers.add(ledger_id)
