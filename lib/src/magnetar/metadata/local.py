"""Sessions on a tree that this process keeps itself: what the memory and the RocksDB backend share."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection
from typing import Final

from magnetar.core.clock import Clock
from magnetar.metadata.listeners import ListenedStore
from magnetar.metadata.store import (
    ANY_VERSION,
    Node,
    Notification,
    SessionEvent,
    Stat,
    StoreClosed,
    StoreUnavailable,
)
from magnetar.metadata.tree import NodeTable, Outcome, TreeRules

logger: Final = logging.getLogger(__name__)


class LocalTree:
    """One tree and the sessions that are open on it. Every change is told to every session's listeners."""

    def __init__(self, table: NodeTable, clock: Clock) -> None:
        self.rules = TreeRules(table, clock)
        self._table = table
        self._sessions: set[LocalStore] = set()
        self._last_session_id = 0

    def new_session_id(self) -> int:
        """A number that no other session of this tree had."""
        self._last_session_id += 1
        return self._last_session_id

    def join(self, session: LocalStore) -> None:
        """A session begins."""
        self._sessions.add(session)

    async def leave(self, session: LocalStore) -> None:
        """A session has ended; with the last one the tree itself is closed."""
        self._sessions.discard(session)
        if not self._sessions:
            await self.close()

    def commit(self, outcome: Outcome) -> asyncio.Future[None] | None:
        """Apply; returns what to wait for until the outcome is safe (shield it, others wait too), None if it is."""
        self._table.apply(outcome)
        self.tell(outcome.notifications)
        return None

    def check(self) -> None:
        """`StoreUnavailable` while the tree can be neither read nor written."""

    def unsettled(self, path: str) -> asyncio.Future[None] | None:
        """What to wait for before a read of this path may be told to anybody; None if there is nothing."""
        return None

    def tell(self, notifications: list[Notification]) -> None:
        """Tell the listeners of all sessions."""
        for session in self._sessions:
            session.changes.tell(notifications)

    def expire_sessions(self) -> None:
        """Expire all sessions at once, whatever the tree refuses: after a recovery their ephemeral nodes are gone
        already."""
        for session in list(self._sessions):
            if session.closed:
                continue
            try:
                session.expire_session()
            except StoreUnavailable as error:
                logger.warning("a session begins anew, but the store refused to end the one before: %s", error)
                session.begin_anew()

    async def close(self) -> None:
        """Let go of what the tree is kept in."""


class LocalStore(ListenedStore):
    """One session on a local tree: a `MetadataStore`."""

    def __init__(self, tree: LocalTree) -> None:
        super().__init__()
        self._tree = tree
        self._session = tree.new_session_id()
        self._closed = False
        self._connected = True
        tree.join(self)

    @property
    def closed(self) -> bool:
        """Whether it is closed or closing."""
        return self._closed

    async def get(self, path: str, *, watch: bool = True) -> Node | None:
        """The node, or None when there is none. Reads see every write this client has finished. Without `watch` this
        read promises no notification: for whoever reads more nodes than could be watched. Whoever listens hears of this
        node in any case."""
        await self._settled(path)
        return self._tree.rules.get(path, self._session)

    def next_number(self, parent: str) -> int:
        """The least number that the next sequential child of a node gets; taken by nobody yet."""
        self._check_usable()
        return self._tree.rules.next_number(parent)

    def leave_out_numbers(self, parent: str, first_number: int) -> None:
        """Sequential children of a node get this number or a greater one from now on. As durable as the next write."""
        if first_number > self.next_number(parent):
            self._tree.commit(Outcome(next_sequence=(parent, first_number)))

    async def put(
        self,
        path: str,
        value: bytes,
        expected_version: int | None = ANY_VERSION,
        *,
        ephemeral: bool = False,
        sequential: bool = False,
    ) -> Stat:
        """Create or replace. With a version: compare and set, `VersionConflict` otherwise. A sequential put always
        creates; ten decimal digits are appended to the path (see `Stat.path`)."""
        self._check_usable()
        outcome = self._tree.rules.put(
            path, value, expected_version, self._session, ephemeral=ephemeral, sequential=sequential
        )
        await self._commit(outcome)
        assert outcome.stat is not None
        return outcome.stat

    async def put_while_there(self, path: str, value: bytes, expected_version: int, others: Collection[str]) -> int:
        """Compare and set one node while all the others are there, in one step. Returns the new version.
        `VersionConflict`, `NodeNotFound`."""
        self._check_usable()
        self._tree.rules.check_there(others)
        return (await self.put(path, value, expected_version)).version

    async def delete(self, path: str, expected_version: int | None = ANY_VERSION) -> None:
        """Remove one node. `NodeNotFound`, `VersionConflict`, `NodeHasChildren`."""
        self._check_usable()
        await self._commit(self._tree.rules.delete(path, expected_version))

    async def delete_recursively(self, path: str) -> None:
        """Remove the node and all below it; nothing there is no error."""
        self._check_usable()
        await self._commit(self._tree.rules.delete_recursively(path))

    async def exists(self, path: str, *, watch: bool = True) -> bool:
        """Whether there is a node at the path. `watch` as for `get`."""
        return await self.get(path) is not None

    async def children(self, path: str, *, watch: bool = True) -> list[str]:
        """Names (not paths) of the direct children, sorted; empty when there is no such node. `watch` as for `get`."""
        await self._settled(path)
        return self._tree.rules.children(path)

    def limit_waiting(self, seconds: float) -> None:
        """Do nothing: nobody ever waits for a server here."""

    def expire_session(self) -> None:
        """Lose the session as a remote store may: ephemeral nodes vanish, listeners are told, a new session stands."""
        self._check_not_closed()
        self._tree.commit(self._tree.rules.end_session(self._session))
        self.begin_anew()

    def begin_anew(self) -> None:
        """Stand as another session, the one before being lost, and tell the listeners."""
        self._session = self._tree.new_session_id()
        self._connected = True
        self._session_events.tell([SessionEvent.SESSION_LOST, SessionEvent.SESSION_RESTARTED])

    def disconnect(self) -> None:
        """Be out of reach as a remote store may: every verb raises `StoreUnavailable`."""
        self._check_not_closed()
        if self._connected:
            self._connected = False
            self._session_events.tell([SessionEvent.CONNECTION_LOST])

    def reconnect(self) -> None:
        """Be reachable again, with the same session."""
        self._check_not_closed()
        if not self._connected:
            self._connected = True
            self._session_events.tell([SessionEvent.RECONNECTED])

    async def close(self) -> None:
        """End the session; its ephemeral nodes vanish at once. May be called twice."""
        if self._closed:
            return
        self._closed = True
        self._tell_nobody()
        try:
            await self._commit(self._tree.rules.end_session(self._session))
        except StoreUnavailable as error:
            # Whoever wrote was told already, and what is left of the session vanishes when the tree is opened again.
            logger.warning("a session's ephemeral nodes were not removed: %s", error)
        finally:
            await self._tree.leave(self)

    def _check_not_closed(self) -> None:
        if self._closed:
            raise StoreClosed("the metadata store is closed")

    def _check_usable(self) -> None:
        self._check_not_closed()
        if not self._connected:
            raise StoreUnavailable("the metadata store is out of reach")
        self._tree.check()

    async def _settled(self, path: str) -> None:
        self._check_usable()
        pending = self._tree.unsettled(path)
        if pending is not None:
            await asyncio.shield(pending)

    async def _commit(self, outcome: Outcome) -> None:
        pending = self._tree.commit(outcome)
        if pending is not None:
            await asyncio.shield(pending)
        else:
            await asyncio.sleep(0)  # Listeners hear of a write before it returns.
