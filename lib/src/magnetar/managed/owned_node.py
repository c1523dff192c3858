"""A node in the metadata store that one process owns: only it writes, by compare-and-set, so that a version that it did
not make tells of another owner.

A write whose answer is lost may have happened, and may still happen until the next write of the same session. Its value
is remembered until the version settles what came of it: a node with the next version and that value is our own doing.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Collection, Iterable
from typing import Final

from magnetar.managed.paths import cursor_path, ledger_path
from magnetar.metadata.store import MUST_NOT_EXIST, MetadataStore, Node, NodeNotFound, VersionConflict

UNSURE_WRITES_MAX: Final = 16
"""Writes without an answer that are remembered. Each was tried after a read that showed none of those before it, so
that one which is still not there after so many reads never will be."""


class NodeTaken(VersionConflict):
    """Somebody else has changed the node. `value` is what stands there now; None: there is no node."""

    def __init__(self, path: str, value: bytes | None) -> None:
        super().__init__(f"{path} was changed by another owner")
        self.value: bytes | None = value


class OwnedNode:
    """The node of a managed ledger, or of one of its cursors. Hold `lock` from deciding on a change until it returns.

    Ledgers that only a write without an answer names are told by the first write that is sure not to name them: until
    then whoever owns the node next may find them there."""

    __slots__ = ("_in_doubt", "_lock", "_names", "_store", "_unsure", "_version")

    def __init__(self, store: MetadataStore, ledger_name: str, cursor_name: str | None = None) -> None:
        self._store: MetadataStore = store
        self._names: tuple[str, str | None] = (ledger_name, cursor_name)
        self._version: int = MUST_NOT_EXIST
        self._unsure: deque[bytes] | None = None
        self._in_doubt: set[int] | None = None
        self._lock: asyncio.Lock | None = None

    @property
    def path(self) -> str:
        """Made anew each time, as it is seldom wanted and many nodes are kept."""
        ledger_name, cursor_name = self._names
        return ledger_path(ledger_name) if cursor_name is None else cursor_path(ledger_name, cursor_name)

    @property
    def lock(self) -> asyncio.Lock:
        """Changes take turns."""
        if self._lock is None:
            self._lock = asyncio.Lock()
        return self._lock

    @property
    def unsure(self) -> bool:
        """Whether nobody knows what became of a write."""
        return self._unsure is not None

    @property
    def ledgers_in_doubt(self) -> frozenset[int]:
        """Ids of ledgers that only writes without an answer name."""
        return frozenset(self._in_doubt or ())

    def doubt(self, ledger_ids: Iterable[int]) -> None:
        """The node may name these, or may not: the next write that is sure settles it."""
        self._in_doubt = (self._in_doubt or set()).union(ledger_ids)

    async def load(self) -> Node | None:
        """Become the owner of what is stored; None when there is nothing."""
        node = await self._store.get(self.path, watch=False)
        self._settled(node.stat.version if node is not None else MUST_NOT_EXIST)
        return node

    async def look(self) -> Node | None:
        """The node as it is stored now. `NodeTaken` when another owner has written it."""
        node = await self._store.get(self.path, watch=False)
        if node is not None and node.stat.version != self._version:
            if node.stat.version != self._version + 1 or node.value not in (self._unsure or ()):
                raise NodeTaken(self.path, node.value)
            self._settled(node.stat.version)
        return node

    async def put(self, value: bytes, named: Collection[int]) -> list[int]:
        """Replace what is stored by a value that names these ledgers. Returns those that were in doubt and that the
        node does not name, for deletion. `NodeTaken` when somebody else wrote since. After any other error it may have
        happened or not."""
        assert self.lock.locked()
        try:
            await self._put(value)
        except NodeTaken:
            raise
        except BaseException:
            self.doubt(named)
            raise
        return self._leave_doubt(named)

    async def _put(self, value: bytes) -> None:
        if self._unsure is not None:
            await self.look()
        while True:
            unsure = self._remember(value)
            try:
                stat = await self._store.put(self.path, value, self._version)
            except (VersionConflict, NodeNotFound) as error:
                unsure.pop()  # This one did not happen, but one before it may have.
                await self._own_write_or_raise(error)
            else:
                self._settled(stat.version)
                return

    async def delete(self) -> list[int]:
        """Remove the node; one that is gone already is no error. Returns all ledgers that were in doubt, for deletion.
        `NodeTaken`, and other errors, as for `put`; it may be repeated."""
        assert self.lock.locked()
        if self._unsure is not None:
            await self.look()
        while True:
            try:
                # One whose making had no answer has version 0 if it comes after all.
                await self._store.delete(self.path, self._version if self._version >= 0 else 0)
            except NodeNotFound:
                break
            except VersionConflict as error:
                await self._own_write_or_raise(error)
            else:
                break
        self._settled(MUST_NOT_EXIST)
        return self._leave_doubt(())

    async def _own_write_or_raise(self, error: Exception) -> None:
        """After a conflict: go on if the unexpected version is only that of our write which seemed to fail."""
        before = self._version
        node = await self.look()
        if self._version == before:
            raise NodeTaken(self.path, node.value if node is not None else None) from error

    def _remember(self, value: bytes) -> deque[bytes]:
        if self._unsure is None:
            self._unsure = deque(maxlen=UNSURE_WRITES_MAX)
        self._unsure.append(value)
        return self._unsure

    def _settled(self, version: int) -> None:
        """All writes without an answer wanted the version before this one: none of them can happen any more."""
        self._version = version
        self._unsure = None

    def _leave_doubt(self, named: Collection[int]) -> list[int]:
        doubt, self._in_doubt = self._in_doubt, None
        return sorted((doubt or set()).difference(named))
