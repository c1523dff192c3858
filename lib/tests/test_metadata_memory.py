from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from magnetar.metadata.memory import MemoryMetadataStore
from magnetar.metadata.store import MetadataStore, NodeChange, SessionEvent, StoreUnavailable

from lib.tests.metadata_contract import MetadataStoreContract, RecordedNotifications


@pytest.fixture
async def store() -> AsyncIterator[MemoryMetadataStore]:
    opened = MemoryMetadataStore()
    yield opened
    await opened.close()


@pytest.fixture
async def other_session(store: MemoryMetadataStore) -> AsyncIterator[MetadataStore]:
    opened = store.another_session()
    yield opened
    await opened.close()


class TestMemoryContract(MetadataStoreContract):
    pass


async def test_an_expired_session_loses_its_nodes_and_is_told(store: MemoryMetadataStore) -> None:
    other = store.another_session()
    events: list[SessionEvent] = []
    store.watch_session(events.append)
    heard = RecordedNotifications(other)
    await store.put("/e", b"", ephemeral=True)
    await store.put("/kept", b"")
    store.expire_session()
    await heard.until(NodeChange.DELETED, "/e")
    assert await other.children("/") == ["kept"]
    assert events == [SessionEvent.SESSION_LOST, SessionEvent.SESSION_RESTARTED]
    assert (await store.put("/e", b"", ephemeral=True)).owned_by_this_session
    await other.close()


async def test_a_disconnected_store_is_unavailable_and_keeps_its_nodes(store: MemoryMetadataStore) -> None:
    events: list[SessionEvent] = []
    store.watch_session(events.append)
    await store.put("/e", b"", ephemeral=True)
    store.disconnect()
    for verb in (store.get("/e"), store.put("/e", b""), store.delete("/e"), store.children("/")):
        with pytest.raises(StoreUnavailable):
            await verb
    store.reconnect()
    assert await store.exists("/e")
    await asyncio.sleep(0)
    assert events == [SessionEvent.CONNECTION_LOST, SessionEvent.RECONNECTED]


async def test_a_failing_listener_keeps_nobody_from_being_told(
    store: MemoryMetadataStore, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(_: object) -> None:
        raise ValueError("listener")

    store.watch(fail)
    heard = RecordedNotifications(store)
    await store.put("/a", b"")
    await heard.until(NodeChange.CREATED, "/a")
    assert "a listener failed" in caplog.text
