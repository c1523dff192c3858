"""Where the proxy's brokers come from."""

from __future__ import annotations

import asyncio
import json

import pytest
from magnetar.core.errors import SettingError
from magnetar.metadata.memory import MemoryMetadataStore
from magnetar.proxy.discovery import BROKERS_PATH, BrokerChoice, NamedBrokers, NoBroker, WatchedBrokers
from magnetar.proxy.settings import FixedBrokers


def registration(port: int, **more: object) -> bytes:
    document = {
        "pulsarServiceUrl": f"pulsar://b:{port}",
        "webServiceUrl": f"http://b:{port}/",
        "pulsarServiceUrlTls": None,
    }
    return json.dumps({**document, **more}).encode()


async def until(watched: WatchedBrokers, count: int) -> None:
    async with asyncio.timeout(30):
        while len(watched.all()) != count:
            await asyncio.sleep(0.005)


async def test_brokers_come_and_go() -> None:
    store = MemoryMetadataStore()
    watched = WatchedBrokers(store)
    choice = BrokerChoice(watched, watched, tls=False)
    await watched.start()
    with pytest.raises(NoBroker, match="No active broker is available"):
        choice.service_url()
    for port in (1, 2):
        await store.put(f"{BROKERS_PATH}/b:{port}", registration(port), ephemeral=True)
    await until(watched, 2)
    assert {choice.service_url() for _ in range(2)} == {"pulsar://b:1", "pulsar://b:2"}
    assert choice.web_service_url() in ("http://b:1", "http://b:2")
    assert choice.is_active("b:1")
    assert not choice.is_active("b:3")
    with pytest.raises(NoBroker):
        BrokerChoice(watched, watched, tls=True).service_url()
    await store.delete(f"{BROKERS_PATH}/b:1")
    await until(watched, 1)
    await store.put(f"{BROKERS_PATH}/bad", b"no JSON")
    await store.put(f"{BROKERS_PATH}/list", b"[]")
    await store.put(f"{BROKERS_PATH}/b:3", registration(3))
    await until(watched, 2)
    await watched.close()
    await store.delete(f"{BROKERS_PATH}/b:3")
    await asyncio.sleep(0.01)
    assert len(watched.all()) == 2
    await store.close()


async def test_load_that_brokers_write_is_not_read_again() -> None:
    store = MemoryMetadataStore()
    await store.put(f"{BROKERS_PATH}/b:1", registration(1))
    watched = WatchedBrokers(store)
    await watched.start()
    before = watched.all()
    await store.put(f"{BROKERS_PATH}/b:1", registration(1, msgRateIn=5.0))
    await asyncio.sleep(0.01)
    assert watched.all() is before
    await watched.close()
    await store.close()


class SlowFirstAnswer(MemoryMetadataStore):
    """The list of brokers comes late at the first of two requests, as it was when it was asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = 0
        self.held = asyncio.Event()

    async def children(self, path: str, *, watch: bool = True) -> list[str]:
        found = await super().children(path, watch=watch)
        self.asked += 1
        if self.asked == 1:
            await self.held.wait()
        return found


async def test_an_older_list_does_not_take_the_place_of_a_newer_one() -> None:
    """Whoever asks for an unknown broker reads beside the one that follows changes. The older reading could end last,
    and nothing changed its list any more: no client was served until the next broker came or went."""
    store = SlowFirstAnswer()
    watched = WatchedBrokers(store)
    store.asked = 1
    await watched.start()
    store.asked = 0
    async with asyncio.timeout(30):
        rereading = asyncio.create_task(watched.reread())
        while not store.asked:
            await asyncio.sleep(0.01)
        await store.put(f"{BROKERS_PATH}/b:1", registration(1))
        for _ in range(20):
            await asyncio.sleep(0)
        store.held.set()
        await rereading
    await until(watched, 1)
    await watched.close()
    await store.close()


def test_brokers_that_are_named() -> None:
    named = NamedBrokers(FixedBrokers(service_url="pulsar://a:1,b:2", web_service_url_tls="https://c:3/"))
    plain, tls = BrokerChoice(named, named, tls=False), BrokerChoice(named, named, tls=True)
    assert {plain.service_url() for _ in range(2)} == {"pulsar://a:1", "pulsar://b:2"}
    assert tls.web_service_url() == "https://c:3"
    with pytest.raises(NoBroker):
        plain.web_service_url()


@pytest.mark.parametrize("url", ["http://a:1", "pulsar://", "pulsar://a", "pulsar://a:1,b", "a:1", "pulsar://a:x"])
def test_urls_that_are_none(url: str) -> None:
    with pytest.raises(SettingError):
        NamedBrokers(FixedBrokers(service_url=url))
