"""The metadata store in ZooKeeper, which Apache's brokers and bookies share with ours."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from functools import partial
from typing import Any, Final

from kazoo.client import KazooClient
from kazoo.exceptions import (
    BadVersionError,
    KazooException,
    NoChildrenForEphemeralsError,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
)
from kazoo.protocol.states import ZnodeStat
from magnetar.core.errors import Misuse, PeerError, SettingError
from magnetar.metadata.listeners import ListenedStore
from magnetar.metadata.paths import ROOT, check_node, check_path, join, parent_of
from magnetar.metadata.store import (
    ANY_VERSION,
    MUST_NOT_EXIST,
    Node,
    NodeHasChildren,
    NodeNotFound,
    Notification,
    Stat,
    StoreUnavailable,
    VersionConflict,
)
from magnetar.metadata.zookeeper_session import REQUESTS_IN_FLIGHT_MAX, Watch, WatchKind, ZookeeperSession

SESSION_TIMEOUT_MS: Final = 30_000
"""Pulsar's metadataStoreSessionTimeoutMillis. The server grants no more than its maxSessionTimeout (20 ticks, 40 s by
default)."""

OPERATION_TIMEOUT_MS: Final = 30_000
"""How long an operation waits for a connection, as Pulsar's metadataStoreOperationTimeoutSeconds."""

_ATTEMPTS_MAX: Final = 20
"""How often an operation of several requests starts again because others changed the node meanwhile."""


class ZookeeperMetadataStore(ListenedStore):
    """A `MetadataStore` on one ZooKeeper session after the other. Made by `open`.

    Reads leave a one-shot watch, unless they say that they want none. After a reconnection, and when there are more
    watches than the session keeps, a change may have been missed: MODIFIED or CHILDREN_CHANGED is told for the paths
    concerned, whether or not there was one."""

    def __init__(
        self,
        url: str,
        *,
        session_timeout_ms: int = SESSION_TIMEOUT_MS,
        operation_timeout_ms: int = OPERATION_TIMEOUT_MS,
    ) -> None:
        hosts, slash, chroot = url.removeprefix("zk:").partition("/")
        self._root = slash + chroot.rstrip("/") if chroot else ""
        if self._root:
            try:
                check_path(self._root)
            except Misuse as error:
                raise SettingError(f"the chroot of metadata URL {url!r} is not a path") from error
        super().__init__()
        self._closed = False
        self._session = ZookeeperSession(
            hosts,
            session_timeout_ms=session_timeout_ms,
            operation_timeout_ms=operation_timeout_ms,
            on_notification=self._take_notification,
            on_session_event=self._take_session_event,
        )

    @staticmethod
    async def open(
        url: str,
        *,
        session_timeout_ms: int = SESSION_TIMEOUT_MS,
        operation_timeout_ms: int = OPERATION_TIMEOUT_MS,
        make_root: bool = True,
    ) -> ZookeeperMetadataStore:
        """Connect to `h1:2181,h2:2181/chroot` (a leading `zk:` is fine) and make the chroot if it is not there.

        Without `make_root` nothing is written: for those who only read, whatever was typed.
        `SettingError` for a URL that is none, `StoreUnavailable` if nobody answers."""
        store = ZookeeperMetadataStore(
            url, session_timeout_ms=session_timeout_ms, operation_timeout_ms=operation_timeout_ms
        )
        await store._session.open()
        try:
            if store._root and make_root:
                await store._make_node_and_parents(store._root)
        except BaseException:
            await store.close()
            raise
        return store

    async def get(self, path: str, *, watch: bool = True) -> Node | None:
        """The node, or None when there is none. Reads see every write this client has finished. Without `watch` this
        read promises no notification: for whoever reads more nodes than could be watched."""
        full = self._full(path)
        for _ in range(_ATTEMPTS_MAX):
            try:
                value, stat = await self._read("get_async", full, WatchKind.DATA if watch else None)
            except NoNodeError:
                if not watch:
                    return None
                # Only a look at the missing node leaves a watch for its creation.
                if await self._read("exists_async", full, WatchKind.DATA) is None:
                    return None
            else:
                return Node(value or b"", self._stat(path, stat))
        raise _contended(path)

    async def exists(self, path: str, *, watch: bool = True) -> bool:
        """Whether there is a node at the path. `watch` as for `get`."""
        return await self._read("exists_async", self._full(path), WatchKind.DATA if watch else None) is not None

    async def children(self, path: str, *, watch: bool = True) -> list[str]:
        """Names (not paths) of the direct children, sorted; empty when there is no such node. `watch` as for `get`."""
        full = self._full(path)
        for _ in range(_ATTEMPTS_MAX):
            try:
                names: list[str] = await self._read("get_children_async", full, WatchKind.CHILDREN if watch else None)
            except NoNodeError:
                if not watch:
                    return []
                if await self._read("exists_async", full, WatchKind.DATA) is None:
                    return []
            else:
                return sorted(names)
        raise _contended(path)

    async def put(
        self,
        path: str,
        value: bytes,
        expected_version: int | None = ANY_VERSION,
        *,
        ephemeral: bool = False,
        sequential: bool = False,
    ) -> Stat:
        """Create or replace. With a version: compare and set, `VersionConflict` otherwise. When the connection fails,
        only a put with `ANY_VERSION` is tried again."""
        if sequential:
            if expected_version not in (ANY_VERSION, MUST_NOT_EXIST):
                raise Misuse("a sequential put always creates: there is no version to expect")
            check_node(path + "0", value)
            return await self._create(path, value, ephemeral=ephemeral, sequential=True)
        check_node(path, value)
        if expected_version is ANY_VERSION:
            return await self._create_or_replace(path, value, ephemeral=ephemeral)
        try:
            if expected_version == MUST_NOT_EXIST:
                return await self._create(path, value, ephemeral=ephemeral)
            return await self._replace(path, value, expected_version)
        except (BadVersionError, NodeExistsError, NoNodeError) as error:
            raise VersionConflict(f"{path}: version {expected_version} was expected ({_said(error)})") from error

    async def put_while_there(self, path: str, value: bytes, expected_version: int, others: Collection[str]) -> int:
        """Compare and set one node while all the others are there, in one transaction. Returns the new version.
        `VersionConflict`, `NodeNotFound`. Never tried again when the connection fails."""
        check_node(path, value)
        full, others = self._root + path, list(others)
        fulls = [self._full(other) for other in others]

        def request(client: KazooClient) -> Any:
            transaction = client.transaction()
            for other in fulls:
                transaction.check(other, -1)
            if expected_version == MUST_NOT_EXIST:
                transaction.create(full, value)
            else:
                transaction.set_data(full, value, expected_version)
            return transaction.commit_async()

        for _ in range(_ATTEMPTS_MAX):
            answers = await self._call(request)
            if len(answers) != len(others) + 1:
                raise StoreUnavailable(f"ZooKeeper answers a transaction with {len(answers)} results: {answers}")
            *found, result = answers
            for other, answer in zip(others, found, strict=True):
                if isinstance(answer, NoNodeError):
                    raise NodeNotFound(other)
            if isinstance(result, ZnodeStat):
                version: int = result.version
                return version
            if isinstance(result, NoNodeError) and expected_version == MUST_NOT_EXIST:
                await self._make_node_and_parents(parent_of(full))
            elif isinstance(result, (BadVersionError, NodeExistsError, NoNodeError)):
                raise VersionConflict(f"{path}: version {expected_version} was expected ({_said(result)})")
            elif isinstance(result, KazooException):
                raise PeerError(f"ZooKeeper refused a transaction: {_said(result)}")
            else:
                return 0
        raise _contended(path)

    async def delete(self, path: str, expected_version: int | None = ANY_VERSION) -> None:
        """Remove one node. `NodeNotFound`, `VersionConflict`, `NodeHasChildren`."""
        full = self._full(path)
        _check_not_root(path)
        version = -1 if expected_version is ANY_VERSION else expected_version
        try:
            await self._call(lambda client: client.delete_async(full, version))
        except NoNodeError as error:
            raise NodeNotFound(path) from error
        except BadVersionError as error:
            raise VersionConflict(f"{path}: version {expected_version} was expected") from error
        except NotEmptyError as error:
            raise NodeHasChildren(path) from error

    async def delete_recursively(self, path: str) -> None:
        """Remove the node and all below it; nothing there is no error. Children go before their parents."""
        full = self._full(path)
        _check_not_root(path)
        await self._delete_tree(full)

    def limit_waiting(self, seconds: float) -> None:
        """Once a server that is asked has said nothing for so many seconds, fail all requests with `StoreClosed`. For a
        process that stops: it waits once, and not in each step."""
        self._session.limit_waiting(seconds)

    async def close(self) -> None:
        """End the session; its ephemeral nodes vanish at once, or by its timeout if the server does not answer. May be
        called twice."""
        if self._closed:
            return
        self._closed = True
        self._tell_nobody()
        await self._session.close()

    async def _create_or_replace(self, path: str, value: bytes, *, ephemeral: bool) -> Stat:
        create_first = ephemeral
        for _ in range(_ATTEMPTS_MAX):
            try:
                if create_first:
                    return await self._create(path, value, ephemeral=ephemeral, repeatable=True)
                return await self._replace(path, value, -1, repeatable=True)
            except NodeExistsError:
                create_first = False
            except NoNodeError:
                create_first = True
        raise _contended(path)

    async def _replace(self, path: str, value: bytes, version: int | None, *, repeatable: bool = False) -> Stat:
        full = self._full(path)
        stat = await self._call(lambda client: client.set_async(full, value, version), repeatable=repeatable)
        return self._stat(path, stat)

    async def _create(
        self, path: str, value: bytes, *, ephemeral: bool, sequential: bool = False, repeatable: bool = False
    ) -> Stat:
        full = self._root + path
        request = partial(
            KazooClient.create_async,
            path=full,
            value=value,
            ephemeral=ephemeral,
            sequence=sequential,
            include_data=True,
        )
        for _ in range(_ATTEMPTS_MAX):
            try:
                created, stat = await self._call(request, repeatable=repeatable)
            except NoNodeError:
                await self._make_node_and_parents(parent_of(full))
            except NoChildrenForEphemeralsError as error:
                raise Misuse(f"{parent_of(path)} is ephemeral and cannot have children") from error
            else:
                return self._stat(created.removeprefix(self._root), stat)
        raise _contended(path)

    async def _make_node_and_parents(self, full: str) -> None:
        missing = [full]
        while missing:
            try:
                await self._call(partial(KazooClient.create_async, path=missing[-1]), repeatable=True)
            except NodeExistsError:
                missing.pop()
            except NoNodeError:
                missing.append(parent_of(missing[-1]))
            except NoChildrenForEphemeralsError as error:
                raise Misuse(f"{parent_of(missing[-1])} is ephemeral and cannot have children") from error
            else:
                missing.pop()

    async def _delete_tree(self, full: str) -> None:
        for _ in range(_ATTEMPTS_MAX):
            try:
                names: list[str] = await self._call(lambda client: client.get_children_async(full), repeatable=True)
                for at in range(0, len(names), REQUESTS_IN_FLIGHT_MAX):
                    some = names[at : at + REQUESTS_IN_FLIGHT_MAX]
                    await asyncio.gather(*(self._delete_tree(join(full, name)) for name in some))
                await self._call(lambda client: client.delete_async(full), repeatable=True)
            except NoNodeError:
                return
            except NotEmptyError:
                continue
            else:
                return
        raise _contended(full)

    async def _read(self, verb: str, full: str, kind: WatchKind | None) -> Any:
        if kind is None:
            return await self._call(lambda client: getattr(client, verb)(full), repeatable=True)
        watcher = self._session.watcher(kind)
        return await self._call(
            lambda client: getattr(client, verb)(full, watcher), watch=Watch(kind, full), repeatable=True
        )

    async def _call(
        self, request: Callable[[KazooClient], Any], *, watch: Watch | None = None, repeatable: bool = False
    ) -> Any:
        try:
            return await self._session.call(request, watch=watch, repeatable=repeatable)
        except (BadVersionError, NoChildrenForEphemeralsError, NodeExistsError, NoNodeError, NotEmptyError):
            raise
        except KazooException as error:
            raise PeerError(f"ZooKeeper refused a request: {_said(error)}") from error

    def _full(self, path: str) -> str:
        check_path(path)
        return self._root + path if path != ROOT else self._root or ROOT

    def _stat(self, path: str, stat: ZnodeStat) -> Stat:
        owner = stat.ephemeralOwner
        owned = owner == self._session.session_id != 0
        return Stat(path, stat.version, stat.ctime, stat.mtime, owner != 0, owned)

    def _take_notification(self, notification: Notification) -> None:
        path = notification.path.removeprefix(self._root) or ROOT
        self.changes.tell([Notification(notification.change, path)])


def _check_not_root(path: str) -> None:
    if path == ROOT:
        raise Misuse("the root cannot be deleted")


def _contended(path: str) -> StoreUnavailable:
    return StoreUnavailable(f"{path} changed under {_ATTEMPTS_MAX} attempts")


def _said(error: KazooException) -> str:
    return str(error) or type(error).__name__
