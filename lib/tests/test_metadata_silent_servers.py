"""Stores whose server has gone, or says nothing, and the process that stops."""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from struct import pack, unpack

import pytest
from magnetar.metadata import zookeeper_session
from magnetar.metadata.etcd import EtcdMetadataStore
from magnetar.metadata.store import MetadataStore, SessionEvent, StoreClosed, StoreUnavailable
from magnetar.metadata.testing import EtcdServer, ZookeeperServer
from magnetar.metadata.zookeeper import ZookeeperMetadataStore
from magnetar.metadata.zookeeper_session import CLOSE_SECONDS_MAX, LEAVE_SECONDS_MAX
from magnetar.net.testing import close_server

zookeeper = (pytest.mark.zookeeper, pytest.mark.slow)
etcd = (
    pytest.mark.etcd,
    pytest.mark.slow,
    pytest.mark.skipif(not EtcdServer.available(), reason="etcd is not installed: apt-get install etcd-server"),
)
SLACK_SECONDS = 8.0
"""For a machine that does a lot else."""

Server = ZookeeperServer | EtcdServer


@pytest.fixture(
    params=[pytest.param(ZookeeperServer, marks=zookeeper), pytest.param(EtcdServer, marks=etcd)],
    ids=["zookeeper", "etcd"],
)
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Server]:
    with request.param(tmp_path) as started:
        yield started


async def open_store(server: Server) -> MetadataStore:
    """With the time-outs that processes have."""
    if isinstance(server, ZookeeperServer):
        return await ZookeeperMetadataStore.open(server.url)
    return await EtcdMetadataStore.open(server.url)


@pytest.mark.parametrize("pause", [False, True], ids=["gone", "silent"])
async def test_a_stop_waits_once_for_a_store_that_says_nothing(server: Server, *, pause: bool) -> None:
    store = await open_store(server)
    await store.put("/a", b"1")
    if pause:
        server.pause()
    else:
        server.kill()
    early = [asyncio.ensure_future(store.get("/a")) for _ in range(3)]
    await asyncio.sleep(0.1)
    began = time.monotonic()
    store.limit_waiting(0.8)
    for request in early:
        with pytest.raises(StoreClosed, match="this process stops"):
            await request
    for _ in range(10):
        with pytest.raises(StoreClosed):
            await store.put("/a", b"2", 0)
    await store.close()
    assert 0.7 < time.monotonic() - began < 0.8 + SLACK_SECONDS


async def test_a_store_that_answers_is_waited_for(server: Server) -> None:
    store = await open_store(server)
    store.limit_waiting(0.3)
    for number in range(10):
        await store.put("/a", b"%d" % number)
        await asyncio.sleep(0.1)
    await store.close()


@pytest.mark.zookeeper
@pytest.mark.slow
@pytest.mark.parametrize("pause", [False, True], ids=["gone", "silent"])
async def test_closing_waits_no_longer_than_it_says(tmp_path: Path, *, pause: bool) -> None:
    with ZookeeperServer(tmp_path) as server:
        store = await ZookeeperMetadataStore.open(server.url)
        if pause:
            server.pause()
        else:
            server.kill()
            await asyncio.sleep(0.3)
        began = time.monotonic()
        await store.close()
        assert time.monotonic() - began < CLOSE_SECONDS_MAX + LEAVE_SECONDS_MAX + SLACK_SECONDS


@pytest.mark.zookeeper
@pytest.mark.slow
async def test_an_end_that_nobody_answered_still_arrives(tmp_path: Path) -> None:
    with ZookeeperServer(tmp_path, tick_ms=2_000) as server:
        store, other = await open_store(server), await open_store(server)
        await store.put("/mine", b"", ephemeral=True)
        server.pause()
        await store.close()
        server.resume()
        began = time.monotonic()
        while await other.exists("/mine", watch=False):
            # Its session would last for 30 s.
            assert time.monotonic() - began < 10
            await asyncio.sleep(0.05)
        await other.close()


@pytest.mark.slow
async def test_a_client_that_hangs_is_left_alone(caplog: pytest.LogCaptureFixture) -> None:
    """Connections to an address that takes no packets; kazoo's thread cannot be woken from that."""
    caplog.set_level(logging.INFO, "magnetar.metadata.zookeeper_session")
    with socket.socket() as full:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        waiting = [socket.socket() for _ in range(4)]
        for one in waiting:
            one.setblocking(False)
            one.connect_ex(full.getsockname())
        port = full.getsockname()[1]
        began = time.monotonic()
        with pytest.raises(StoreUnavailable, match="no ZooKeeper answers"):
            await ZookeeperMetadataStore.open(
                f"zk:127.0.0.1:{port}", session_timeout_ms=24_000, operation_timeout_ms=500
            )
        assert time.monotonic() - began < 0.5 + LEAVE_SECONDS_MAX + SLACK_SECONDS
        assert "its client hangs" in caplog.text
        for one in waiting:
            one.close()


@asynccontextmanager
async def slow_to_greet(
    silent: int, seconds: float, granted_ms: int = 60_000, hangs_up: bool = False
) -> AsyncIterator[tuple[str, list[int]]]:
    """A server that says nothing on its first connections, and greets the others after some time. Gives its URL, and
    the length of each first packet that came. If it hangs up, it does so after the first greeting, and greets no
    more."""
    came: list[int] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            (length,) = unpack(">i", await reader.readexactly(4))
            await reader.readexactly(length)
            came.append(length)
            if hangs_up and len(came) > 1:
                return
            if len(came) > silent:
                await asyncio.sleep(seconds)
                # A ConnectResponse: version, timeout in ms, session, password.
                writer.write(pack(">iiiqi16s?", 37, 0, granted_ms, 7, 16, b"", False))
            if not hangs_up:
                await reader.read()
        except asyncio.IncompleteReadError:
            pass  # The client has gone.
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"zk:127.0.0.1:{server.sockets[0].getsockname()[1]}", came
    finally:
        await close_server(server)


@pytest.mark.slow
async def test_a_server_that_accepts_and_says_nothing_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A ZooKeeper that starts never answers some connections; kazoo waits on them as long as the session lives."""
    monkeypatch.setattr(zookeeper_session, "FIRST_REPLY_SECONDS_MAX", 0.05)
    async with slow_to_greet(silent=2, seconds=0) as (url, came):
        store = await ZookeeperMetadataStore.open(url, session_timeout_ms=200_000, operation_timeout_ms=60_000)
        await store.close()
    assert len(came) >= 3


@pytest.mark.slow
async def test_a_slow_server_is_given_more_time_after_each_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zookeeper_session, "FIRST_REPLY_SECONDS_MAX", 0.05)
    async with slow_to_greet(silent=0, seconds=0.2) as (url, came):
        store = await ZookeeperMetadataStore.open(url, session_timeout_ms=200_000, operation_timeout_ms=60_000)
        await store.close()
    assert len(came) >= 2


@pytest.mark.slow
async def test_a_session_that_lives_shorter_than_asked_for_is_lost_in_its_own_time() -> None:
    """The server ends it after six seconds, so its owner must know after two; a third of what was asked for is 200."""
    async with slow_to_greet(silent=0, seconds=0, granted_ms=6_000, hangs_up=True) as (url, _):
        store = await ZookeeperMetadataStore.open(url, session_timeout_ms=600_000, operation_timeout_ms=60_000)
        lost = asyncio.Event()
        store.watch_session(lambda event: lost.set() if event is SessionEvent.SESSION_LOST else None)
        async with asyncio.timeout(60):
            await lost.wait()
        await store.close()
