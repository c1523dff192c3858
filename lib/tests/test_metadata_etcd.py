from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from magnetar.core.errors import SettingError
from magnetar.metadata.coordination import ResourceLock
from magnetar.metadata.etcd import EtcdMetadataStore
from magnetar.metadata.etcd_access import parse_endpoints
from magnetar.metadata.etcd_transactions import after_subtree
from magnetar.metadata.store import MetadataStore, NodeChange, SessionEvent, StoreUnavailable
from magnetar.metadata.testing import EtcdServer

from lib.tests.metadata_contract import MetadataStoreContract, RecordedNotifications

pytestmark = [
    pytest.mark.etcd,
    pytest.mark.skipif(not EtcdServer.available(), reason="etcd is not installed: apt-get install etcd-server"),
]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdServer]:
    with EtcdServer(tmp_path_factory.mktemp("etcd")) as started:
        yield started


@pytest.fixture
async def store(server: EtcdServer) -> AsyncIterator[EtcdMetadataStore]:
    opened = await EtcdMetadataStore.open(server.url, session_timeout_ms=3_000, operation_timeout_ms=8_000)
    await opened.delete_recursively("/")
    yield opened
    await opened.close()


@pytest.fixture
async def other_session(server: EtcdServer) -> AsyncIterator[EtcdMetadataStore]:
    opened = await EtcdMetadataStore.open(server.url, session_timeout_ms=3_000, operation_timeout_ms=8_000)
    yield opened
    await opened.close()


class TestEtcd(MetadataStoreContract):
    keeps_times = False

    async def test_children_of_a_wide_and_deep_tree(
        self, store: EtcdMetadataStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("magnetar.metadata.etcd.KEYS_PER_PAGE", 3)
        for path in ("/p/a", "/p/a-1", "/p/a/1", "/p/a/2", "/p/a/3", "/p/a/4/x", "/p/a0", "/p/b/1", "/p/c"):
            await store.put(path, b"")
        assert await store.children("/p") == ["a", "a-1", "a0", "b", "c"]
        assert await store.children("/p/a") == ["1", "2", "3", "4"]
        await store.delete_recursively("/p/a")
        assert await store.children("/p") == ["a-1", "a0", "b", "c"]


async def test_a_server_that_stops_and_comes_back_keeps_the_session(tmp_path: Path) -> None:
    with EtcdServer(tmp_path) as server:
        store = await EtcdMetadataStore.open(server.url, session_timeout_ms=6_000, operation_timeout_ms=8_000)
        await store.put("/e", b"mine", ephemeral=True)
        server.restart()
        node = await store.get("/e")
        assert node is not None
        assert node.stat.owned_by_this_session
        heard = RecordedNotifications(store)
        await store.put("/f", b"")
        await heard.until(NodeChange.CREATED, "/f")
        await store.close()


async def test_a_pause_longer_than_the_lease_loses_the_session(tmp_path: Path) -> None:
    with EtcdServer(tmp_path) as server:
        store = await EtcdMetadataStore.open(server.url, session_timeout_ms=2_000, operation_timeout_ms=1_000)
        events: list[SessionEvent] = []
        again = asyncio.Event()

        def heard(event: SessionEvent) -> None:
            events.append(event)
            if event is SessionEvent.SESSION_RESTARTED:
                again.set()

        store.watch_session(heard)
        await store.put("/e", b"mine", ephemeral=True)
        server.pause()
        with pytest.raises(StoreUnavailable):
            await store.get("/e")
        while SessionEvent.SESSION_LOST not in events:
            await asyncio.sleep(0.05)
        with pytest.raises(StoreUnavailable):
            await store.put("/e2", b"", ephemeral=True)
        server.resume()
        async with asyncio.timeout(30):
            await again.wait()
        await store.put("/e3", b"", ephemeral=True)
        assert events[0] is SessionEvent.CONNECTION_LOST
        await store.close()


async def test_a_lock_goes_to_the_next_when_its_holder_is_gone(
    store: MetadataStore, other_session: MetadataStore
) -> None:
    lock = ResourceLock(other_session, "/locks/x", b"other", lambda _: None)
    await lock.acquire()
    heard = RecordedNotifications(store)
    await store.get("/locks/x")
    await other_session.close()
    await heard.until(NodeChange.DELETED, "/locks/x")
    mine = ResourceLock(store, "/locks/x", b"mine", lambda _: None)
    await mine.acquire()
    await mine.release()
    await lock.release()


def test_endpoints_are_read() -> None:
    assert parse_endpoints("etcd:http://a:1,https://b") == [("a:1", False), ("b:2379", True)]
    assert parse_endpoints("etcd:a:1,b:2") == [("a:1", False), ("b:2", False)]
    for url in ("etcd:", "etcd:ftp://a:1", "etcd:http://a:1/chroot"):
        with pytest.raises(SettingError):
            parse_endpoints(url)


def test_a_listing_skips_what_is_below_a_child() -> None:
    assert after_subtree(b"/p/", b"/p/a/1") == b"/p/a0"
    assert after_subtree(b"/p/", b"/p/a") == b"/p/a\0"
