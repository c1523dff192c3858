"""What every metadata backend must do, as tests that any of them can be put through.

A test module makes a subclass of `MetadataStoreContract` whose name begins with `Test` and gives two fixtures:
`store`, a `MetadataStore` on an empty tree, and `other_session`, a second session on the same tree, as another process
would have. Both are closed by the fixtures.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Final

import pytest
from magnetar.core.errors import Misuse
from magnetar.metadata.store import (
    MUST_NOT_EXIST,
    MetadataStore,
    Node,
    NodeChange,
    NodeHasChildren,
    NodeNotFound,
    NodeTooLarge,
    Notification,
    SessionEvent,
    StoreClosed,
    StoreUnavailable,
    VersionConflict,
)

PATIENCE_SECONDS: Final = 120.0
"""How long a test waits for what must happen; only a broken backend waits this long."""

WEIRD_PATHS: Final = (
    "/weird/with%2Fslash",
    "/weird/with space",
    "/weird/persistent%3A%2F%2Fpublic%2Fdefault%2Ft",
    "/weird/Grüße-日本語",
    "/weird/...",
    "/weird/.hidden",
    "/weird/a:b{c}[d]?e=f&g#h\"i'j\\k",
)

BAD_PATHS: Final = ("", "relative", "/a/", "//a", "/a//b", "/a/./b", "/a/..", "/a\x00b", "/a\nb", "/\ud800", "/😀")


async def value_of(store: MetadataStore, path: str) -> bytes | None:
    """The value at a path, None when there is no node."""
    node = await store.get(path)
    return None if node is None else node.value


class RecordedNotifications:
    """A listener that keeps what it is told."""

    def __init__(self, store: MetadataStore) -> None:
        self.notifications: list[Notification] = []
        self.stop = store.watch(self._hear)
        self._news = asyncio.Event()

    async def until(self, change: NodeChange, path: str) -> None:
        """Wait until this notification has come."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            while Notification(change, path) not in self.notifications:
                self._news.clear()
                await self._news.wait()

    def _hear(self, notification: Notification) -> None:
        self.notifications.append(notification)
        self._news.set()


class MetadataStoreContract:
    """The promises of `magnetar.metadata.store`, one test each."""

    keeps_times = True
    """Whether stats say when; where they do not, they say 0."""

    async def test_no_node_reads_as_none(self, store: MetadataStore) -> None:
        assert await store.get("/nothing") is None
        assert not await store.exists("/nothing")
        assert await store.children("/nothing") == []

    async def test_an_unwatched_read_reads_the_same(self, store: MetadataStore) -> None:
        assert await store.get("/a", watch=False) is None
        stat = await store.put("/a", b"one")
        assert await store.get("/a", watch=False) == Node(b"one", stat)
        assert await store.exists("/a", watch=False)
        assert not await store.exists("/b", watch=False)
        assert await store.children("/", watch=False) == await store.children("/")
        heard = RecordedNotifications(store)
        await store.get("/a")
        await store.get("/a", watch=False)
        await store.put("/a", b"two")
        assert Notification(NodeChange.MODIFIED, "/a") in heard.notifications

    async def test_a_new_node_has_version_zero_and_its_value(self, store: MetadataStore) -> None:
        stat = await store.put("/a", b"one")
        assert (stat.path, stat.version, stat.ephemeral, stat.owned_by_this_session) == ("/a", 0, False, False)
        assert stat.created_ms == stat.modified_ms
        assert stat.created_ms > 1_600_000_000_000 if self.keeps_times else stat.created_ms == 0
        assert await store.get("/a") == Node(b"one", stat)
        assert await store.exists("/a")

    async def test_each_change_counts_one_version(self, store: MetadataStore) -> None:
        first = await store.put("/a", b"one")
        second = await store.put("/a", b"two")
        assert second.version == 1
        assert second.created_ms == first.created_ms <= second.modified_ms
        assert await store.get("/a") == Node(b"two", second)

    async def test_a_node_is_told_from_one_that_was_made_there_before(self, store: MetadataStore) -> None:
        first = await store.put("/a", b"one")
        assert (await store.put("/a", b"two")).made == first.made
        await store.delete("/a")
        if self.keeps_times:
            await asyncio.sleep(0.005)
        again = await store.put("/a", b"one")
        assert again.made > first.made > 0
        assert await store.get("/a") == Node(b"one", again)

    async def test_an_empty_value_is_kept(self, store: MetadataStore) -> None:
        await store.put("/empty", b"")
        assert await value_of(store, "/empty") == b""

    async def test_a_write_with_the_right_version_succeeds(self, store: MetadataStore) -> None:
        stat = await store.put("/a", b"one", MUST_NOT_EXIST)
        stat = await store.put("/a", b"two", stat.version)
        assert stat.version == 1
        assert await value_of(store, "/a") == b"two"

    @pytest.mark.parametrize("expected_version", [MUST_NOT_EXIST, 0, 2])
    async def test_a_write_with_another_version_changes_nothing(
        self, store: MetadataStore, expected_version: int
    ) -> None:
        await store.put("/a", b"one")
        await store.put("/a", b"two")
        with pytest.raises(VersionConflict):
            await store.put("/a", b"three", expected_version)
        assert await value_of(store, "/a") == b"two"

    async def test_a_version_cannot_be_expected_of_no_node(self, store: MetadataStore) -> None:
        with pytest.raises(VersionConflict):
            await store.put("/a", b"one", 0)
        assert not await store.exists("/a")

    async def test_a_write_happens_only_while_others_are_there(
        self, store: MetadataStore, other_session: MetadataStore
    ) -> None:
        await store.put("/others/a", b"")
        await other_session.put("/others/b", b"", ephemeral=True)
        others = ["/others/a", "/others/b"]
        heard = RecordedNotifications(other_session)
        assert not await other_session.exists("/deep/below/node")
        assert await store.put_while_there("/deep/below/node", b"one", MUST_NOT_EXIST, others) == 0
        await heard.until(NodeChange.CREATED, "/deep/below/node")
        assert await store.put_while_there("/deep/below/node", b"two", 0, others) == 1
        with pytest.raises(VersionConflict):
            await store.put_while_there("/deep/below/node", b"three", 0, others)
        with pytest.raises(VersionConflict):
            await store.put_while_there("/deep/below/node", b"three", MUST_NOT_EXIST, others)
        with pytest.raises(VersionConflict):
            await store.put_while_there("/deep/below/none", b"three", 0, others)
        await other_session.delete("/others/b")
        # Nobody has read it since: what counts is how it is, not what a session has heard.
        with pytest.raises(NodeNotFound, match=r"^/others/b$"):
            await store.put_while_there("/deep/below/node", b"three", 1, others)
        with pytest.raises(NodeNotFound, match=r"^/others/b$"):
            await store.put_while_there("/deep/below/new", b"three", MUST_NOT_EXIST, others)
        assert await value_of(store, "/deep/below/node") == b"two"
        assert not await store.exists("/deep/below/new")
        assert await store.put_while_there("/deep/below/new", b"four", MUST_NOT_EXIST, ["/others/a"]) == 0
        assert await value_of(store, "/deep/below/new") == b"four"

    async def test_only_one_of_many_creators_wins(self, store: MetadataStore, other_session: MetadataStore) -> None:
        results = await asyncio.gather(
            *(s.put("/race", str(i).encode(), MUST_NOT_EXIST) for i in range(10) for s in (store, other_session)),
            return_exceptions=True,
        )
        assert sum(not isinstance(result, BaseException) for result in results) == 1
        assert sum(isinstance(result, VersionConflict) for result in results) == 19

    async def test_parents_are_made_on_demand_and_stay(self, store: MetadataStore) -> None:
        await store.put("/a/b/c", b"deep", ephemeral=True)
        assert await value_of(store, "/a/b") == b""
        assert await store.children("/a") == ["b"]
        await store.delete("/a/b/c")
        assert await store.exists("/a/b")
        parent = await store.get("/a/b")
        assert parent is not None
        assert not parent.stat.ephemeral

    async def test_the_root_is_always_there(self, store: MetadataStore) -> None:
        assert await store.exists("/")
        await store.put("/a", b"")
        assert "a" in await store.children("/")
        with pytest.raises(Misuse):
            await store.delete("/")

    async def test_children_are_direct_and_sorted(self, store: MetadataStore) -> None:
        for path in ("/p/b", "/p/a/deep", "/p/c", "/p/B", "/p/a-1", "/p/é", "/q/x", "/p2/y"):
            await store.put(path, b"")
        assert await store.children("/p") == ["B", "a", "a-1", "b", "c", "é"]
        assert await store.children("/p/c") == []

    async def test_delete_removes_one_node(self, store: MetadataStore) -> None:
        await store.put("/a", b"one")
        await store.delete("/a")
        assert await store.get("/a") is None
        assert (await store.put("/a", b"again")).version == 0

    async def test_delete_demands_a_node(self, store: MetadataStore) -> None:
        with pytest.raises(NodeNotFound):
            await store.delete("/a")
        with pytest.raises(NodeNotFound):
            await store.delete("/a", 0)

    async def test_delete_demands_the_version(self, store: MetadataStore) -> None:
        await store.put("/a", b"one")
        await store.put("/a", b"two")
        with pytest.raises(VersionConflict):
            await store.delete("/a", 0)
        await store.delete("/a", 1)
        assert not await store.exists("/a")

    async def test_delete_spares_parents_of_others(self, store: MetadataStore) -> None:
        await store.put("/a/b", b"")
        with pytest.raises(NodeHasChildren):
            await store.delete("/a")
        assert await store.exists("/a/b")

    async def test_delete_recursively_takes_all_below(self, store: MetadataStore) -> None:
        for path in ("/a/b/c", "/a/b/d", "/a/e", "/ab"):
            await store.put(path, b"")
        await store.delete_recursively("/a")
        assert not await store.exists("/a")
        assert not await store.exists("/a/b/c")
        assert await store.exists("/ab")
        await store.delete_recursively("/a")

    async def test_sequential_nodes_get_ten_rising_digits(self, store: MetadataStore) -> None:
        stats = [await store.put("/s/n-", str(i).encode(), sequential=True) for i in range(3)]
        names = [stat.path.removeprefix("/s/n-") for stat in stats]
        assert all(len(name) == 10 and name.isdecimal() for name in names)
        assert names == sorted(set(names))
        assert [await value_of(store, stat.path) for stat in stats] == [b"0", b"1", b"2"]

    async def test_a_sequence_never_goes_back(self, store: MetadataStore) -> None:
        first = await store.put("/s/n-", b"", sequential=True)
        await store.delete(first.path)
        second = await store.put("/s/n-", b"", sequential=True)
        assert second.path > first.path

    async def test_a_sequential_name_may_be_digits_only(self, store: MetadataStore) -> None:
        stat = await store.put("/s/", b"", sequential=True)
        assert await store.children("/s") == [stat.path.removeprefix("/s/")]
        assert len(stat.path) == len("/s/") + 10

    async def test_sequential_nodes_of_two_sessions_differ(
        self, store: MetadataStore, other_session: MetadataStore
    ) -> None:
        stats = await asyncio.gather(
            *(s.put("/s/n-", b"", ephemeral=True, sequential=True) for _ in range(10) for s in (store, other_session))
        )
        assert len({stat.path for stat in stats}) == 20

    async def test_a_sequential_put_expects_no_version(self, store: MetadataStore) -> None:
        with pytest.raises(Misuse):
            await store.put("/s/n-", b"", 3, sequential=True)

    async def test_an_ephemeral_node_names_its_owner(self, store: MetadataStore, other_session: MetadataStore) -> None:
        stat = await store.put("/e", b"mine", ephemeral=True)
        assert stat.ephemeral
        assert stat.owned_by_this_session
        seen = await other_session.get("/e")
        assert seen is not None
        assert seen.stat.ephemeral
        assert not seen.stat.owned_by_this_session

    async def test_an_ephemeral_node_vanishes_with_its_session(
        self, store: MetadataStore, other_session: MetadataStore
    ) -> None:
        await other_session.put("/dir/e", b"", ephemeral=True)
        await other_session.put("/dir/s-", b"", ephemeral=True, sequential=True)
        await other_session.put("/dir/kept", b"")
        heard = RecordedNotifications(store)
        assert len(await store.children("/dir")) == 3
        assert await store.exists("/dir/e")
        await other_session.close()
        await heard.until(NodeChange.DELETED, "/dir/e")
        assert await store.children("/dir") == ["kept"]

    async def test_a_replaced_ephemeral_node_keeps_its_owner(
        self, store: MetadataStore, other_session: MetadataStore
    ) -> None:
        await store.put("/e", b"1", ephemeral=True)
        stat = await other_session.put("/e", b"2")
        assert stat.ephemeral
        assert not stat.owned_by_this_session
        kept = await store.put("/kept", b"1")
        kept = await store.put("/kept", b"2", kept.version, ephemeral=True)
        assert not kept.ephemeral

    async def test_an_ephemeral_node_has_no_children(self, store: MetadataStore) -> None:
        await store.put("/e", b"", ephemeral=True)
        with pytest.raises(Misuse):
            await store.put("/e/child", b"")

    async def test_a_watcher_hears_of_a_creation(self, store: MetadataStore, other_session: MetadataStore) -> None:
        heard = RecordedNotifications(store)
        await store.put("/w", b"")
        assert not await store.exists("/w/new")
        assert await store.children("/w") == []
        await other_session.put("/w/new", b"1")
        await heard.until(NodeChange.CREATED, "/w/new")
        await heard.until(NodeChange.CHILDREN_CHANGED, "/w")
        assert await value_of(store, "/w/new") == b"1"

    async def test_a_watcher_hears_of_a_creation_below_no_node(
        self, store: MetadataStore, other_session: MetadataStore
    ) -> None:
        heard = RecordedNotifications(store)
        assert await store.children("/w") == []
        await other_session.put("/w/new", b"1")
        await heard.until(NodeChange.CREATED, "/w")
        assert await store.children("/w") == ["new"]

    async def test_a_watcher_hears_of_each_change_that_it_reads(
        self, store: MetadataStore, other_session: MetadataStore
    ) -> None:
        await store.put("/w", b"0")
        heard = RecordedNotifications(store)
        for value in (b"1", b"2", b"3"):
            await store.get("/w")
            heard.notifications.clear()
            await other_session.put("/w", value)
            await heard.until(NodeChange.MODIFIED, "/w")
            assert await value_of(store, "/w") == value

    async def test_a_watcher_hears_of_its_own_changes_before_they_return(self, store: MetadataStore) -> None:
        heard = RecordedNotifications(store)
        await store.get("/w")
        await store.put("/w", b"1")
        assert Notification(NodeChange.CREATED, "/w") in heard.notifications
        await store.get("/w")
        await store.put("/w", b"2")
        assert Notification(NodeChange.MODIFIED, "/w") in heard.notifications
        await store.get("/w")
        await store.delete("/w")
        assert Notification(NodeChange.DELETED, "/w") in heard.notifications

    async def test_a_watcher_hears_of_a_deletion(self, store: MetadataStore, other_session: MetadataStore) -> None:
        await store.put("/w/gone", b"")
        heard = RecordedNotifications(store)
        await store.get("/w/gone")
        await store.children("/w")
        await other_session.delete("/w/gone")
        await heard.until(NodeChange.DELETED, "/w/gone")
        await heard.until(NodeChange.CHILDREN_CHANGED, "/w")
        assert await store.get("/w/gone") is None

    async def test_a_watcher_may_stop(self, store: MetadataStore, other_session: MetadataStore) -> None:
        stopped, heard = RecordedNotifications(store), RecordedNotifications(store)
        stopped.stop()
        stopped.stop()
        await store.get("/w")
        await other_session.put("/w", b"")
        await heard.until(NodeChange.CREATED, "/w")
        assert stopped.notifications == []

    async def test_a_large_value_comes_back(self, store: MetadataStore, other_session: MetadataStore) -> None:
        value = bytes(range(256)) * 2800
        heard = RecordedNotifications(other_session)
        assert not await other_session.exists("/large")
        await store.put("/large", value)
        assert await value_of(store, "/large") == value
        await heard.until(NodeChange.CREATED, "/large")
        assert await value_of(other_session, "/large") == value

    async def test_what_no_backend_takes_is_refused_and_nothing_else_suffers(self, store: MetadataStore) -> None:
        events: list[SessionEvent] = []
        stop = store.watch_session(events.append)
        long_path = "/" + "x" * 2_000_000
        for refused in (
            lambda: store.put("/large", b"x" * 2_000_000),
            lambda: store.put("/large", b"x" * 2_000_000, MUST_NOT_EXIST),
            lambda: store.put("/large-", b"x" * 2_000_000, sequential=True),
            lambda: store.put(long_path, b""),
            lambda: store.get(long_path),
            lambda: store.exists(long_path),
            lambda: store.children(long_path),
            lambda: store.delete(long_path),
            lambda: store.delete_recursively(long_path),
        ):
            with pytest.raises(NodeTooLarge):
                await refused()
        await store.put("/small", b"here")
        assert await value_of(store, "/small") == b"here"
        assert not await store.exists("/large")
        assert events == []
        stop()

    async def test_names_may_be_weird(self, store: MetadataStore) -> None:
        for path in WEIRD_PATHS:
            await store.put(path, path.encode())
        for path in WEIRD_PATHS:
            assert await value_of(store, path) == path.encode()
        assert await store.children("/weird") == sorted(path.removeprefix("/weird/") for path in WEIRD_PATHS)
        await store.delete_recursively("/weird")
        assert not await store.exists("/weird")

    @pytest.mark.parametrize("path", BAD_PATHS)
    async def test_bad_paths_are_misuse(self, store: MetadataStore, path: str) -> None:
        with pytest.raises(Misuse):
            await store.get(path)
        with pytest.raises(Misuse):
            await store.put(path, b"")
        with pytest.raises(Misuse):
            await store.delete(path)
        with pytest.raises(Misuse):
            await store.children(path)

    async def test_many_puts_at_once_all_arrive(self, store: MetadataStore) -> None:
        async def put_and_get(name: str) -> bytes | None:
            # A server on a busy machine may answer too late, or the connection be lost: then it is tried once more.
            while True:
                with contextlib.suppress(StoreUnavailable):
                    await store.put(f"/many/{name}", name.encode())
                    return await value_of(store, f"/many/{name}")

        names = [f"{i:04d}" for i in range(1000)]
        assert await asyncio.gather(*map(put_and_get, names)) == [name.encode() for name in names]
        assert await store.children("/many") == names

    async def test_many_changes_of_one_node_all_count(self, store: MetadataStore) -> None:
        stats = await asyncio.gather(*(store.put("/hot", str(i).encode()) for i in range(100)))
        assert sorted(stat.version for stat in stats) == list(range(100))

    async def test_a_closed_store_says_so(self, store: MetadataStore, other_session: MetadataStore) -> None:
        await other_session.close()
        await other_session.close()
        with pytest.raises(StoreClosed):
            await other_session.get("/a")
        with pytest.raises(StoreClosed):
            await other_session.put("/a", b"")
        await store.put("/a", b"")
