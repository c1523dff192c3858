"""One listener for all who follow single nodes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from magnetar.metadata.listeners import PathWatches
from magnetar.metadata.memory import MemoryMetadataStore
from magnetar.metadata.store import SessionEvent


class ToldStore(MemoryMetadataStore):
    """A store whose session fares as it is told."""

    def fares(self, event: SessionEvent) -> None:
        self._take_session_event(event)


@pytest.fixture
async def store() -> AsyncIterator[ToldStore]:
    opened = ToldStore()
    yield opened
    await opened.close()


async def test_each_hears_of_its_own_node(store: ToldStore) -> None:
    watches = PathWatches(store)
    told: list[str] = []
    stop = watches.add("/a", lambda: told.append("a"))
    watches.add("/a", lambda: told.append("another"))
    watches.add("/b", lambda: told.append("b"))
    await store.get("/a")
    await store.put("/a", b"1")
    await asyncio.sleep(0)
    assert told == ["a", "another"]
    stop()
    stop()
    await store.put("/a", b"2")
    await asyncio.sleep(0)
    assert told == ["a", "another", "another"]
    watches.close()
    await store.put("/a", b"3")
    await asyncio.sleep(0)
    assert told == ["a", "another", "another"]


@pytest.mark.parametrize(
    ("lost", "back"),
    [
        (SessionEvent.CONNECTION_LOST, SessionEvent.RECONNECTED),
        (SessionEvent.SESSION_LOST, SessionEvent.SESSION_RESTARTED),
    ],
)
async def test_all_hear_when_the_store_is_back(store: ToldStore, lost: SessionEvent, back: SessionEvent) -> None:
    watches = PathWatches(store)
    told: list[str] = []
    watches.add("/a", lambda: told.append("a"))
    watches.add("/b", lambda: told.append("b"))
    connected = [watches.connected]
    for event in (lost, back):
        before = list(told)
        store.fares(event)
        await asyncio.sleep(0)
        connected.append(watches.connected)
        assert before == []
    assert told == ["a", "b"]
    assert connected == [True, False, True]


async def test_who_comes_after_all_have_gone_is_connected(store: ToldStore) -> None:
    watches = PathWatches(store)
    stop = watches.add("/a", lambda: None)
    store.fares(SessionEvent.CONNECTION_LOST)
    await asyncio.sleep(0)
    stop()
    store.fares(SessionEvent.RECONNECTED)  # Nobody listens.
    await asyncio.sleep(0)
    watches.add("/a", lambda: None)
    assert watches.connected
