"""Watchers of topic lists, over a store in memory that may be out of reach."""

from __future__ import annotations

import asyncio
import time
import warnings
from collections.abc import Coroutine
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from magnetar.broker.resources import Resources
from magnetar.broker.topic_lists import TopicLists, TopicPattern, may_take_long
from magnetar.core.topic_name import NamespaceName
from magnetar.metadata.memory import MemoryMetadataStore, MemoryTree
from magnetar.metadata.store import StoreUnavailable
from magnetar.wire.pulsar.errors import PulsarError

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


@pytest.mark.parametrize("pattern", ["(", "a{99999999999999999999}", "(?<x>a)", "*"])
def test_patterns_that_are_none(pattern: str) -> None:
    with pytest.raises(PulsarError, match="regular expression"):
        TopicPattern(pattern)


@pytest.mark.parametrize(
    "pattern",
    [
        "public/default/(a+)+b",
        "(a|a)*b",
        "((a*)x)+",
        "(?:a|ab)+",
        "(?P<n>a+){9}",
        ".*.*.*b",
        "(.+?)*",
        "[)](a*)*",
        "\\((a*)*",
        "[]](a*)*",
        "[^]](a*)*",
        "a{1,50}b{1,50}c{1,50}",
    ],
)
def test_patterns_that_clients_have_to_match_themselves(pattern: str) -> None:
    assert may_take_long(pattern)


@pytest.mark.parametrize(
    "pattern",
    [
        "persistent://public/default/.*",
        "public/default/(orders|invoices)-.*",
        "public/default/orders-[0-9]+-v[0-9]+",
        "public/default/(a)+(b|c)",
        "public/default/(a+)?b",
        "[(*+{]+x",
        "\\(\\*\\+\\{a*",
        ".*?x",
        "a++b",
        ")",
        "[",
        "\\",
        "",
    ],
)
def test_patterns_that_brokers_match(pattern: str) -> None:
    assert not may_take_long(pattern)


@given(st.text(alphabet="a(|)*+?{}[]^.\\2,", max_size=12))
@settings(max_examples=300, deadline=None)
def test_what_brokers_match_they_match_at_once(pattern: str) -> None:
    """However unlucky the name."""
    if may_take_long(pattern):
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Of the engine, about sets that may mean something else one day.
        try:
            topics = TopicPattern(pattern)
        except PulsarError:
            return
    start = time.perf_counter()
    topics.matches(PREFIX + "a" * 60 + "!")
    assert time.perf_counter() - start < 0.5
