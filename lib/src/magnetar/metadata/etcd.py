"""The metadata store in etcd, with the keys that Apache's brokers use there (Pulsar `EtcdMetadataStore`).

A node is the key of its path; ephemeral nodes hang on the session's lease; a node's version is etcd's, less one. etcd
has no parents and no times: parents are made as in ZooKeeper, times are 0, and stats have revisions.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import Final

from magnetar.core.errors import Misuse
from magnetar.metadata.etcd_access import read_access
from magnetar.metadata.etcd_client import EtcdClient
from magnetar.metadata.etcd_session import EtcdSession
from magnetar.metadata.etcd_transactions import (
    after_subtree,
    below,
    delete_transaction,
    delete_tree_transaction,
    number_transaction,
    put_transaction,
    put_while_there_transaction,
)
from magnetar.metadata.generated import etcd_pb2 as pb
from magnetar.metadata.listeners import ListenedStore
from magnetar.metadata.paths import ROOT, check_node, check_path, parent_of, sequential_path
from magnetar.metadata.store import (
    ANY_VERSION,
    MUST_NOT_EXIST,
    Node,
    NodeChange,
    NodeHasChildren,
    NodeNotFound,
    Notification,
    Stat,
    StoreUnavailable,
    VersionConflict,
)

SESSION_TIMEOUT_MS: Final = 30_000
OPERATION_TIMEOUT_MS: Final = 30_000
"""How long one operation may take, in milliseconds (Pulsar: metadataStoreOperationTimeoutSeconds); the session's lease
lives as long as metadataStoreSessionTimeoutMillis says."""

KEYS_PER_PAGE: Final = 10_000
"""Keys of one answer to a listing: some megabytes of names."""

_ATTEMPTS_MAX: Final = 20
"""How often a put starts again because its parent came or went meanwhile."""

_ROOT_NODE: Final = Node(b"", Stat(ROOT, 0, 0, 0, ephemeral=False, owned_by_this_session=False))


class EtcdMetadataStore(ListenedStore):
    """A `MetadataStore` on an etcd cluster. Made by `open`. Listeners hear of every change in the tree, of changes of
    this process twice."""

    def __init__(self, url: str, *, session_timeout_ms: int, operation_timeout_ms: int) -> None:
        super().__init__()
        self._client = EtcdClient(read_access(url), operation_timeout_ms)
        self._session = EtcdSession(self._client, session_timeout_ms, self._take_event, self._take_session_event)
        self._closed = False

    @staticmethod
    async def open(
        url: str,
        *,
        session_timeout_ms: int = SESSION_TIMEOUT_MS,
        operation_timeout_ms: int = OPERATION_TIMEOUT_MS,
    ) -> EtcdMetadataStore:
        """Begin a session with `etcd:http://h1:2379,http://h2:2379`, with `?config=FILE` as `etcd_access` has it.
        `SettingError`, `StoreUnavailable`."""
        store = EtcdMetadataStore(url, session_timeout_ms=session_timeout_ms, operation_timeout_ms=operation_timeout_ms)
        try:
            await store._session.start()
        except BaseException:
            await store.close()
            raise
        return store

    async def get(self, path: str, *, watch: bool = True) -> Node | None:
        """The node, or None when there is none. Reads see every write this client has finished. Without `watch` this
        read promises no notification: for whoever reads more nodes than could be watched. Whoever listens hears of this
        node in any case."""
        check_path(path)
        if path == ROOT:
            self._client.check_open()
            return _ROOT_NODE
        found = (await self._client.range(pb.RangeRequest(key=path.encode()))).kvs
        return self._node(path, found[0]) if found else None

    async def exists(self, path: str, *, watch: bool = True) -> bool:
        """Whether there is a node at the path. `watch` as for `get`."""
        check_path(path)
        if path == ROOT:
            self._client.check_open()
            return True
        return bool((await self._client.range(pb.RangeRequest(key=path.encode(), keys_only=True))).kvs)

    async def children(self, path: str, *, watch: bool = True) -> list[str]:
        """Names (not paths) of the direct children, sorted; empty when there is no such node. `watch` as for `get`.
        Whole subtrees below a child are passed over, not read."""
        check_path(path)
        first, end = below(path)
        names: set[str] = set()
        key = first
        while True:
            request = pb.RangeRequest(key=key, range_end=end, limit=KEYS_PER_PAGE, keys_only=True)
            page = await self._client.range(request)
            names.update(found.key[len(first) :].partition(b"/")[0].decode() for found in page.kvs)
            if not page.more:
                return sorted(names)
            key = after_subtree(first, page.kvs[-1].key)

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
        if sequential:
            check_node(path + "0", value)
            if expected_version not in (ANY_VERSION, MUST_NOT_EXIST):
                raise Misuse("a sequential put always creates, no version can be expected")
            path = sequential_path(path, await self._next_number(parent_of(path + "0")))
            expected_version = MUST_NOT_EXIST
        else:
            check_node(path, value)
        if path == ROOT:
            raise Misuse("the root cannot be written")
        self._client.check_open()
        lease = self._lease() if ephemeral else 0
        for _ in range(_ATTEMPTS_MAX):
            request = put_transaction(path, value, expected_version, lease)
            answer = await self._client.transact(request)
            if answer.succeeded:
                revision = answer.header.revision
                return await self._stored(path, answer.responses[0].response_txn, lease, revision)
            await self._make_parent(path, answer.responses[0].response_range)
        raise StoreUnavailable(f"the parent of {path} vanished under {_ATTEMPTS_MAX} attempts to write")

    async def put_while_there(self, path: str, value: bytes, expected_version: int, others: Collection[str]) -> int:
        """Compare and set one node while all the others are there, in one transaction. Returns the new version.
        `VersionConflict`, `NodeNotFound`."""
        check_node(path, value)
        for other in others:
            check_path(other)
        self._client.check_open()
        for _ in range(_ATTEMPTS_MAX):
            answer = await self._client.transact(put_while_there_transaction(path, value, expected_version, others))
            if not answer.succeeded:
                found = {kv.key.decode() for response in answer.responses for kv in response.response_range.kvs}
                raise NodeNotFound(next(other for other in others if other not in found))
            put = answer.responses[0].response_txn
            if put.succeeded:
                return (await self._stored(path, put.responses[0].response_txn, 0, answer.header.revision)).version
            await self._make_parent(path, put.responses[0].response_range)
        raise StoreUnavailable(f"{path} could not be written in {_ATTEMPTS_MAX} attempts")

    async def delete(self, path: str, expected_version: int | None = ANY_VERSION) -> None:
        """Remove one node. `NodeNotFound`, `VersionConflict`, `NodeHasChildren`."""
        check_path(path)
        if path == ROOT:
            raise Misuse("the root cannot be deleted")
        answer = await self._client.transact(delete_transaction(path, expected_version))
        if answer.succeeded:
            await self._tell_deleted([path])
            return
        node, child = (response.response_range.kvs for response in answer.responses)
        if not node:
            raise NodeNotFound(path)
        if expected_version is not ANY_VERSION and node[0].version != expected_version + 1:
            raise VersionConflict(f"{path} has version {node[0].version - 1}, not {expected_version}")
        if child:
            raise NodeHasChildren(path)
        raise VersionConflict(f"{path} changed while it was being deleted")

    async def delete_recursively(self, path: str) -> None:
        """Remove the node and all below it; nothing there is no error."""
        check_path(path)
        gone = [] if path == ROOT else [path]
        first, end = below(path)
        key = first
        while True:
            request = pb.RangeRequest(key=key, range_end=end, limit=KEYS_PER_PAGE, keys_only=True)
            page = await self._client.range(request)
            gone += [found.key.decode() for found in page.kvs]
            if not page.more:
                break
            key = page.kvs[-1].key + b"\0"
        await self._client.transact(delete_tree_transaction(path))
        await self._tell_deleted(gone)

    def limit_waiting(self, seconds: float) -> None:
        """Once a server that is asked has said nothing for so many seconds, fail all requests with `StoreClosed`. For a
        process that stops: it waits once, and not in each step."""
        self._client.limit_waiting(seconds)

    async def close(self) -> None:
        """End the session; its ephemeral nodes vanish at once, or by its timeout if the server does not answer. May be
        called twice."""
        if self._closed:
            return
        self._closed = True
        self._tell_nobody()
        await self._session.close()
        await self._client.close()

    def _lease(self) -> int:
        if not self._session.lease:
            raise StoreUnavailable("the session with etcd is lost and no new one stands yet")
        return self._session.lease

    async def _next_number(self, parent: str) -> int:
        """Each number of a parent is given once: it is how often the parent's key was written (as Apache counts)."""
        if parent == ROOT:
            raise Misuse("sequential nodes need a parent other than the root")
        for _ in range(_ATTEMPTS_MAX):
            answer = await self._client.transact(number_transaction(parent))
            if answer.succeeded:
                version: int = answer.responses[0].response_put.prev_kv.version
                return version
            await self._make(parent)
        raise StoreUnavailable(f"{parent} vanished under {_ATTEMPTS_MAX} attempts to count")

    async def _make_parent(self, path: str, found: pb.RangeResponse) -> None:
        parent = parent_of(path)
        if found.kvs:
            if found.kvs[0].lease:
                raise Misuse(f"{parent} is ephemeral and has no children")
            return
        await self._make(parent)

    async def _make(self, path: str) -> None:
        try:
            await self.put(path, b"", MUST_NOT_EXIST)
        except VersionConflict:
            return  # Another was quicker, which is as good.

    async def _stored(self, path: str, answer: pb.TxnResponse, lease: int, revision: int) -> Stat:
        """What a put has done: the stat of the new version, which came with this revision."""
        if not answer.responses:
            raise VersionConflict(f"{path} has not the expected version")
        put = answer.responses[0].response_put
        replaced = put.HasField("prev_kv")
        version = put.prev_kv.version if replaced else 0
        holder = put.prev_kv.lease if replaced else lease
        created = put.prev_kv.create_revision if replaced else revision
        if replaced:
            self.changes.tell([Notification(NodeChange.MODIFIED, path)])
        else:
            parent = Notification(NodeChange.CHILDREN_CHANGED, parent_of(path))
            self.changes.tell([Notification(NodeChange.CREATED, path), parent])
        await asyncio.sleep(0)  # Listeners hear of a write before it returns.
        return self._stat(path, version, holder, created)

    async def _tell_deleted(self, paths: list[str]) -> None:
        for path in paths:
            parent = Notification(NodeChange.CHILDREN_CHANGED, parent_of(path))
            self.changes.tell([Notification(NodeChange.DELETED, path), parent])
        await asyncio.sleep(0)

    def _node(self, path: str, found: pb.KeyValue) -> Node:
        return Node(found.value, self._stat(path, found.version - 1, found.lease, found.create_revision))

    def _stat(self, path: str, version: int, lease: int, created: int) -> Stat:
        ours = lease != 0 and lease == self._session.lease
        return Stat(path, version, 0, 0, ephemeral=lease != 0, owned_by_this_session=ours, revision=created)

    def _take_event(self, event: pb.Event) -> None:
        path = event.kv.key.decode(errors="replace")
        deleted = event.type == pb.Event.DELETE
        if not deleted and event.kv.version > 1:
            self.changes.tell([Notification(NodeChange.MODIFIED, path)])
        elif path != ROOT:
            change = NodeChange.DELETED if deleted else NodeChange.CREATED
            parent = Notification(NodeChange.CHILDREN_CHANGED, parent_of(path))
            self.changes.tell([Notification(change, path), parent])
