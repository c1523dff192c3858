from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import ConnectionLoss
from magnetar.core.errors import Misuse, SettingError
from magnetar.metadata import zookeeper_session
from magnetar.metadata.store import MetadataStore, NodeChange, Notification, SessionEvent, StoreUnavailable
from magnetar.metadata.testing import ZookeeperServer
from magnetar.metadata.zookeeper import ZookeeperMetadataStore
from magnetar.metadata.zookeeper_session import TURNS, SessionInput, ZookeeperSession, ZookeeperSessionState

from lib.tests.metadata_contract import PATIENCE_SECONDS, MetadataStoreContract, RecordedNotifications, value_of

pytestmark = pytest.mark.zookeeper

numbers = itertools.count()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZookeeperServer]:
    with ZookeeperServer(tmp_path_factory.mktemp("zookeeper")) as started:
        yield started


@pytest.fixture
def url(server: ZookeeperServer) -> str:
    return f"zk:{server.address}/test-{next(numbers)}/chroot"


@asynccontextmanager
async def opened(url: str, session_timeout_ms: int, operation_timeout_ms: int) -> AsyncIterator[ZookeeperMetadataStore]:
    """A store that is closed also when the test fails: kazoo's thread would go on into the next ones."""
    store = await ZookeeperMetadataStore.open(
        url, session_timeout_ms=session_timeout_ms, operation_timeout_ms=operation_timeout_ms
    )
    try:
        yield store
    finally:
        await store.close()


@pytest.fixture
async def store(url: str) -> AsyncIterator[ZookeeperMetadataStore]:
    async with opened(url, 3000, 8000) as store:
        yield store


@pytest.fixture
async def other_session(store: MetadataStore, url: str) -> AsyncIterator[MetadataStore]:
    opened = await ZookeeperMetadataStore.open(url)
    yield opened
    await opened.close()


class SessionEvents:
    def __init__(self, store: MetadataStore) -> None:
        self.seen: list[SessionEvent] = []
        store.watch_session(self.seen.append)

    async def until(self, event: SessionEvent) -> None:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while event not in self.seen:
                await asyncio.sleep(0.01)


class TestZookeeperContract(MetadataStoreContract):
    pass


async def test_paths_and_values_are_what_others_see(store: MetadataStore, url: str, server: ZookeeperServer) -> None:
    await store.put("/admin/clusters/standalone", b'{"serviceUrl":"x"}')
    chroot = url.removeprefix(f"zk:{server.address}")

    def look() -> tuple[bytes, list[str]]:
        client = KazooClient(server.address)
        client.start()
        try:
            value, _ = client.get(f"{chroot}/admin/clusters/standalone")
            client.create(f"{chroot}/theirs", None)
            return value, client.get_children(f"{chroot}/admin")
        finally:
            client.stop()
            client.close()

    assert await asyncio.to_thread(look) == (b'{"serviceUrl":"x"}', ["clusters"])
    assert await value_of(store, "/theirs") == b""


@pytest.mark.slow
async def test_an_ended_session_is_told_and_a_new_one_stands(
    store: ZookeeperMetadataStore, other_session: MetadataStore, server: ZookeeperServer
) -> None:
    events = SessionEvents(store)
    heard = RecordedNotifications(other_session)
    await store.put("/e", b"", ephemeral=True)
    await store.put("/kept", b"1")
    assert await other_session.exists("/e")
    await asyncio.to_thread(server.end_session, store._session._client.client_id)
    await events.until(SessionEvent.SESSION_RESTARTED)
    assert events.seen[-2:] == [SessionEvent.SESSION_LOST, SessionEvent.SESSION_RESTARTED]
    await heard.until(NodeChange.DELETED, "/e")
    assert not await store.exists("/e")
    assert await value_of(store, "/kept") == b"1"
    stat = await store.put("/e", b"", ephemeral=True)
    assert stat.owned_by_this_session


@pytest.mark.slow
async def test_a_restarted_server_finds_the_same_session(tmp_path: Path) -> None:
    # A slow machine may take long to start Java: a session that lives for 200 s counts as lost after a third of that.
    with ZookeeperServer(tmp_path, tick_ms=10_000) as server:
        async with opened(server.url, 200_000, 120_000) as store:
            await restart_under_a_session(server, store)


async def restart_under_a_session(server: ZookeeperServer, store: MetadataStore) -> None:
    events = SessionEvents(store)
    heard = RecordedNotifications(store)
    await store.put("/a", b"1")
    await store.put("/e", b"", ephemeral=True)
    await store.get("/a")
    await store.children("/dir")
    await asyncio.to_thread(server.kill)
    await events.until(SessionEvent.CONNECTION_LOST)
    async with asyncio.TaskGroup() as waiting:
        waiting.create_task(store.put("/a", b"2"))
        waiting.create_task(store.exists("/e"))
        await asyncio.to_thread(server.start)
    await events.until(SessionEvent.RECONNECTED)
    assert events.seen == [SessionEvent.CONNECTION_LOST, SessionEvent.RECONNECTED]
    assert await value_of(store, "/a") == b"2"
    node = await store.get("/e")
    assert node is not None
    assert node.stat.owned_by_this_session
    assert Notification(NodeChange.MODIFIED, "/a") in heard.notifications
    heard.notifications.clear()
    await store.put("/a", b"3")
    await heard.until(NodeChange.MODIFIED, "/a")


@pytest.mark.slow
async def test_a_server_that_is_silent_for_long_ends_ownership_before_it_can(url: str, server: ZookeeperServer) -> None:
    async with opened(url, 1000, 500) as store:
        await silence_under_a_session(server, store)


async def silence_under_a_session(server: ZookeeperServer, store: MetadataStore) -> None:
    events = SessionEvents(store)
    await store.put("/e", b"", ephemeral=True)
    server.pause()
    try:
        write = asyncio.ensure_future(store.put("/e", b"", 0))
        await events.until(SessionEvent.SESSION_LOST)
        assert events.seen == [SessionEvent.CONNECTION_LOST, SessionEvent.SESSION_LOST]
        with pytest.raises(StoreUnavailable, match="went away under a write"):
            await write
        with pytest.raises(StoreUnavailable, match="no connection"):
            await store.get("/e")
    finally:
        server.resume()
    await events.until(SessionEvent.SESSION_RESTARTED)
    await store.put("/f", b"", ephemeral=True)


@pytest.mark.slow
async def test_nobody_at_home_is_unavailable() -> None:
    with pytest.raises(StoreUnavailable, match=r"no ZooKeeper answers at 127\.0\.0\.1:1"):
        await ZookeeperMetadataStore.open("zk:127.0.0.1:1", operation_timeout_ms=200)


@pytest.mark.parametrize("url", ["zk:127.0.0.1:2181/a//b", "zk:127.0.0.1:port/a", "zk:/chroot"])
async def test_a_bad_url_is_a_setting_error(url: str) -> None:
    with pytest.raises(SettingError):
        await ZookeeperMetadataStore.open(url)


async def test_the_oldest_watch_makes_room_and_is_told_as_a_change(
    store: ZookeeperMetadataStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(zookeeper_session, "WATCHES_MAX", 2)
    heard = RecordedNotifications(store)
    await store.put("/dir/c", b"")
    await store.exists("/a")
    await store.children("/dir")
    await store.exists("/b")
    await heard.until(NodeChange.MODIFIED, "/a")
    await store.exists("/d")
    await heard.until(NodeChange.CHILDREN_CHANGED, "/dir")
    await store.put("/a", b"")
    await store.put("/dir/x", b"")
    await store.put("/d", b"")
    await heard.until(NodeChange.CREATED, "/d")
    told = [(notification.change, notification.path) for notification in heard.notifications]
    assert told == [(NodeChange.MODIFIED, "/a"), (NodeChange.CHILDREN_CHANGED, "/dir"), (NodeChange.CREATED, "/d")]
    await store.exists("/a")
    await store.put("/a", b"2")
    await heard.until(NodeChange.MODIFIED, "/a")


async def test_an_unwatched_read_leaves_no_watch(store: ZookeeperMetadataStore, other_session: MetadataStore) -> None:
    for path in ("/a", "/b"):
        await store.put(path, b"")
    heard = RecordedNotifications(store)
    await store.get("/a", watch=False)
    await store.get("/missing", watch=False)
    assert await store.exists("/a", watch=False)
    assert not await store.exists("/missing", watch=False)
    assert await store.children("/a", watch=False) == []
    assert await store.children("/missing", watch=False) == []
    await store.get("/b")
    for path in ("/a", "/a/child", "/missing", "/b"):
        await other_session.put(path, b"1")
    await heard.until(NodeChange.MODIFIED, "/b")
    assert [notification.path for notification in heard.notifications] == ["/b"]


async def test_a_result_and_the_next_change_come_in_the_servers_order(
    store: ZookeeperMetadataStore, other_session: MetadataStore
) -> None:
    """Whoever keeps what it read until it hears of a change must never keep what is old."""
    await store.put("/hot", b"0")
    kept: dict[str, bytes | None] = {}

    def forget(notification: Notification) -> None:
        kept.pop(notification.path, None)

    store.watch(forget)

    async def write() -> None:
        for number in range(200):
            await other_session.put("/hot", str(number).encode())

    writing = asyncio.ensure_future(write())
    while not writing.done():
        node = await store.get("/hot")
        kept["/hot"] = None if node is None else node.value
        await asyncio.sleep(0)
    await writing
    await store.put("/fence", b"")
    await asyncio.sleep(0.05)
    assert kept.get("/hot", b"199") == b"199"


def session_alone(heard: list[object]) -> ZookeeperSession:
    """One that has no server and is told what happens."""
    return ZookeeperSession(
        "127.0.0.1:1",
        session_timeout_ms=300,
        operation_timeout_ms=500,
        on_notification=heard.append,
        on_session_event=heard.append,
    )


async def test_what_is_asked_while_the_session_ends_is_not_waited_for_without_end() -> None:
    """kazoo keeps what it is given between the break of a connection and our hearing of it until another one stands."""
    heard: list[object] = []
    session = session_alone(heard)
    session._take_turn(SessionInput.CONNECTED, 1)
    write = asyncio.ensure_future(session.call(lambda client: client.handler.async_result()))
    await asyncio.sleep(0)
    for turn in (SessionInput.SUSPENDED, SessionInput.OVERDUE):
        session._take_turn(turn, 0)
    with pytest.raises(StoreUnavailable, match="went away under a write"):
        async with asyncio.timeout(10):
            await write
    assert heard == [SessionEvent.CONNECTION_LOST, SessionEvent.SESSION_LOST]
    await session.close()


async def test_a_session_that_is_connected_in_time_is_never_overdue() -> None:
    heard: list[object] = []
    session = session_alone(heard)
    for turn in (SessionInput.CONNECTED, SessionInput.SUSPENDED, SessionInput.CONNECTED):
        session._take_turn(turn, 1)
    await asyncio.sleep(0.3)
    assert heard == [SessionEvent.CONNECTION_LOST, SessionEvent.RECONNECTED]
    sent = asyncio.Event()

    def request(client: KazooClient) -> object:
        sent.set()
        return client.handler.async_result()

    asking = asyncio.ensure_future(session.call(request))
    async with asyncio.timeout(10):
        await sent.wait()
    await session.close()
    with pytest.raises(StoreUnavailable):
        await asking


@pytest.mark.parametrize("verb", ["put", "delete"])
async def test_what_asks_for_a_version_is_sent_once(
    store: ZookeeperMetadataStore, monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    """It may have happened: sent again, it would meet what somebody has made since."""
    await store.put("/a", b"")
    sent = 0

    async def lost(*_: object) -> object:
        nonlocal sent
        sent += 1
        raise ConnectionLoss

    with monkeypatch.context() as patched:
        patched.setattr(store._session, "_send", lost)
        with pytest.raises(StoreUnavailable, match="went away under a write"):
            async with asyncio.timeout(10):
                await (store.put("/a", b"", 0) if verb == "put" else store.delete("/a", 0))
    assert sent == 1


def test_every_event_follows_from_the_table() -> None:
    assert {event for _, event in TURNS.values()} == set(SessionEvent)
    assert all(fate is not ZookeeperSessionState.NEW for fate, _ in TURNS)
    assert (ZookeeperSessionState.LOST, SessionInput.SUSPENDED) not in TURNS


def test_missing_java_is_said_and_not_skipped(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(Misuse, match="apt-get install"):
        ZookeeperServer(tmp_path).start()
