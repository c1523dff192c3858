"""The store whose answers get lost is a store like any other while none does, and loses what it is told to."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from magnetar.metadata.faulty import FaultyStore, RequestFate
from magnetar.metadata.memory import MemoryMetadataStore
from magnetar.metadata.store import MetadataStore, StoreUnavailable

from lib.tests.metadata_contract import MetadataStoreContract, value_of


@pytest.fixture
async def tree() -> AsyncIterator[MemoryMetadataStore]:
    opened = MemoryMetadataStore()
    yield opened
    await opened.close()


@pytest.fixture
async def store(tree: MemoryMetadataStore) -> AsyncIterator[MetadataStore]:
    opened = FaultyStore(tree, lambda verb, path: RequestFate.DONE, lambda: 0.0)
    yield opened
    await opened.close()


@pytest.fixture
async def other_session(tree: MemoryMetadataStore) -> AsyncIterator[MetadataStore]:
    opened = tree.another_session()
    yield opened
    await opened.close()


class TestFaultyStoreContract(MetadataStoreContract):
    pass


async def test_what_becomes_of_writes(tree: MemoryMetadataStore) -> None:
    fates = [RequestFate.REFUSED, RequestFate.LOST, RequestFate.LATE, RequestFate.DONE, RequestFate.DONE]
    store = FaultyStore(tree, lambda verb, path: fates.pop(0))
    for name in ("refused", "lost", "late"):
        with pytest.raises(StoreUnavailable):
            await store.put(f"/{name}", b"x")
    assert await store.children("/") == ["lost"]
    await store.put("/done", b"x")
    assert await tree.children("/") == ["done", "late", "lost"]


async def test_a_late_write_happens_by_itself(tree: MemoryMetadataStore) -> None:
    store = FaultyStore(tree, lambda verb, path: RequestFate.LATE, late_seconds=0.0)
    with pytest.raises(StoreUnavailable):
        await store.put("/late", b"x")
    while await value_of(tree, "/late") is None:
        await asyncio.sleep(0)
    assert store.late_writes == []


async def test_a_copy_of_a_tree_goes_its_own_way() -> None:
    store = MemoryMetadataStore()
    await store.put("/a/b", b"1")
    copied = MemoryMetadataStore(store.copy_of_tree())
    await copied.put("/a/b", b"2", 0)
    await copied.put("/c", b"")
    assert await value_of(store, "/a/b") == b"1"
    assert await store.children("/") == ["a"]
    await copied.delete("/a/b")
    assert await value_of(store, "/a/b") == b"1"
