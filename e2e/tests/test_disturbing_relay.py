"""The relay in front of ZooKeeper: what is applied without an answer is applied, and who asked is not told."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest
from magnetar.metadata.factory import open_store
from magnetar.metadata.store import MetadataStore, StoreUnavailable
from magnetar.metadata.testing import ZookeeperServer

from e2e.disturbing.relay import Relay, Way

pytestmark = [pytest.mark.slow, pytest.mark.zookeeper]

SESSION_MS = 20_000
HELD_SECONDS = 0.5


@pytest.fixture(scope="module")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZookeeperServer]:
    with ZookeeperServer(tmp_path_factory.mktemp("zookeeper"), tick_ms=2_000) as server:
        yield server


@pytest.fixture
def relay(zookeeper: ZookeeperServer) -> Iterator[Relay]:
    with Relay([zookeeper.address]) as relay:
        yield relay


@pytest.fixture
async def store(relay: Relay) -> AsyncIterator[MetadataStore]:
    store = await open_store(f"zk:{relay.address}", session_timeout_ms=SESSION_MS)
    yield store
    await store.close()


async def test_a_swallowed_answer_is_that_of_a_write_which_was_applied(store: MetadataStore, relay: Relay) -> None:
    await store.put("/swallowed", b"1")
    relay.swallow(1)
    assert relay.waits
    assert (await store.get("/swallowed")) is not None, "reads are answered"
    with pytest.raises(StoreUnavailable):
        await store.put("/swallowed", b"2", expected_version=0)
    node = await store.get("/swallowed")
    assert node is not None
    assert (node.value, node.stat.version) == (b"2", 1)
    assert relay.writes >= 2
    assert (relay.swallowed, relay.waits) == (1, False)


async def test_half_a_request_is_not_applied(store: MetadataStore, relay: Relay) -> None:
    await store.put("/half", b"1")
    relay.halve(Way.REQUESTS)
    with pytest.raises(StoreUnavailable):
        await store.put("/half", b"2", expected_version=0)
    node = await store.get("/half")
    assert node is not None
    assert node.value == b"1"
    assert relay.halved == 1


async def test_half_an_answer_is_none(store: MetadataStore, relay: Relay) -> None:
    await store.put("/answered", b"1")
    relay.halve(Way.ANSWERS)
    with pytest.raises(StoreUnavailable):
        await store.put("/answered", b"2", expected_version=0)
    node = await store.get("/answered")
    assert node is not None
    assert node.value == b"2"
    assert relay.halved == 1


@pytest.mark.parametrize("way", list(Way))
async def test_what_is_held_comes_later(store: MetadataStore, relay: Relay, way: Way) -> None:
    relay.hold(way, HELD_SECONDS)
    loop = asyncio.get_running_loop()
    before = loop.time()
    await store.put(f"/held/{way.value}", b"1")
    assert loop.time() - before >= HELD_SECONDS * 0.9


async def test_who_is_refused_comes_again(store: MetadataStore, relay: Relay) -> None:
    relay.refuse(HELD_SECONDS)
    while True:
        try:
            await store.put("/refused", b"1")
            break
        except StoreUnavailable:
            await asyncio.sleep(0.05)
    relay.swallow(1)
    relay.relieve()
    await store.put("/refused", b"2")
    assert relay.swallowed == 0
