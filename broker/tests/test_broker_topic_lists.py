"""Watchers of topic lists, over a store in memory that may be out of reach."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest
from magnetar.broker.resources import Resources
from magnetar.broker.topic_lists import TopicLists
from magnetar.broker.topic_patterns import NAMES_AT_ONCE
from magnetar.core.topic_name import NamespaceName
from magnetar.metadata.memory import MemoryMetadataStore, MemoryTree
from magnetar.metadata.store import StoreUnavailable

NAMESPACE = NamespaceName("public", "default")
PREFIX = f"persistent://{NAMESPACE}/"


class Watched:
    """A namespace's lists over a session of their own, another session to change the topics, and what was told."""

    def __init__(self) -> None:
        tree = MemoryTree()
        self.store = MemoryMetadataStore(tree)
        self.other = MemoryMetadataStore(tree)
        self.told: list[tuple[list[str], list[str]]] = []
        self.tasks: set[asyncio.Task[None]] = set()
        self.resources = Resources(self.store)
        self.lists = TopicLists(self.store, self.resources, self._topics, self._spawn)

    async def _topics(self, namespace: NamespaceName, domain: str) -> list[str]:
        del domain
        return await self.resources.persistent_topics(namespace)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        self.tasks.add(asyncio.get_running_loop().create_task(work))

    async def watch(self) -> None:
        await self.lists.watch(NAMESPACE, ".*", lambda new, gone, _: self.told.append((new, gone)))

    async def make(self, name: str) -> None:
        await self.other.put(f"{Resources.managed_ledgers_path(NAMESPACE)}/{name}", b"")

    async def settle(self) -> None:
        for _ in range(20):
            await asyncio.sleep(0)
        await asyncio.gather(*self.tasks)

    async def close(self) -> None:
        self.lists.close()
        await self.other.close()
        await self.store.close()


async def test_what_was_missed_is_told_after_a_reconnection() -> None:
    """A remote store tells nothing of what changed while it was out of reach."""
    watched = Watched()
    await watched.watch()
    watched.store.changes.clear()
    watched.store.disconnect()
    await watched.make("missed")
    await watched.settle()
    assert watched.told == []
    watched.store.reconnect()
    await watched.settle()
    assert watched.told == [([PREFIX + "missed"], [])]
    await watched.close()


async def test_a_list_that_cannot_be_read_is_read_after_the_reconnection() -> None:
    watched = Watched()
    await watched.watch()
    watched.store.disconnect()
    await watched.make("new")
    await watched.settle()  # Told of, but not to be read: nobody fails of it.
    watched.store.reconnect()
    await watched.settle()
    assert watched.told == [([PREFIX + "new"], [])]
    await watched.close()


async def test_a_watch_that_cannot_begin_leaves_nothing() -> None:
    watched = Watched()
    watched.store.disconnect()
    with pytest.raises(StoreUnavailable):
        await watched.watch()
    watched.store.reconnect()
    await watched.make("new")
    await watched.settle()
    assert watched.told == []
    await watched.close()


async def test_who_leaves_while_a_long_list_is_matched_is_not_told() -> None:
    watched = Watched()
    watcher = await watched.lists.watch(NAMESPACE, ".*", lambda new, gone, _: watched.told.append((new, gone)))
    watched.resources.persistent_topics = _many  # type: ignore[method-assign]  # Longer than what one turn matches.
    await watched.make("new")
    for _ in range(3):
        await asyncio.sleep(0)
    watched.lists.unwatch(watcher)
    await watched.settle()
    assert watched.told == []
    await watched.close()


async def _many(namespace: NamespaceName) -> list[str]:
    return [f"persistent://{namespace}/{index}" for index in range(5 * NAMES_AT_ONCE)]
