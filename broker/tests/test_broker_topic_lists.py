"""Watchers of topic lists, over a store in memory that may be out of reach."""

from __future__ import annotations

import asyncio
import time
import tracemalloc
from collections.abc import Coroutine
from typing import Any, cast

import pytest
from magnetar.broker import slices
from magnetar.broker.resources import Resources
from magnetar.broker.slices import TimeSlice
from magnetar.broker.topics import listings
from magnetar.broker.topics import lists as topic_lists
from magnetar.broker.topics.listings import ENCODED_AT_ONCE, Listing, Listings
from magnetar.broker.topics.lists import TopicLists
from magnetar.broker.topics.patterns import TopicPattern
from magnetar.core.topic_name import NamespaceName
from magnetar.metadata.memory import MemoryMetadataStore, MemoryTree
from magnetar.metadata.store import StoreUnavailable
from magnetar.wire.pulsar.errors import PulsarError
from magnetar.wire.pulsar.topic_lists import encode_topics

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


async def test_what_was_missed_is_told_with_a_new_session() -> None:
    """Its watches begin anew: what changed between the two nobody has told."""
    watched = Watched()
    await watched.watch()
    watched.store.changes.clear()
    await watched.make("missed")
    await watched.settle()
    assert watched.told == []
    watched.store.expire_session()
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
    return [f"persistent://{namespace}/{index}" for index in range(50_000)]


async def test_watchers_of_one_pattern_share_one_list() -> None:
    watched = Watched()
    await watched.make("a")
    first, second = [await watched.lists.watch(NAMESPACE, ".*", lambda *_: None) for _ in range(2)]
    assert first.known is second.known == [PREFIX + "a"]
    assert watched.lists.watched_names == 1
    await watched.make("b")
    await watched.settle()
    assert first.known is second.known == [PREFIX + "a", PREFIX + "b"]
    assert watched.lists.watched_names == 2
    watched.lists.unwatch(first)
    watched.lists.unwatch(second)
    assert watched.lists.watched_names == 0
    await watched.close()


async def test_watchers_know_no_more_names_than_a_broker_has_memory_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topic_lists, "WATCHED_NAMES_MAX", 3)
    watched = Watched()
    for name in ("a", "b"):
        await watched.make(name)
    watcher = await watched.lists.watch(NAMESPACE, ".*", lambda *_: None)
    with pytest.raises(PulsarError, match="too many topics"):
        await watched.lists.watch(NAMESPACE, "public.*", lambda *_: None)
    watched.lists.unwatch(watcher)
    await watched.lists.watch(NAMESPACE, "public.*", lambda *_: None)
    await watched.close()


class Counted(Watched):
    """Counts the readings; each takes a turn of the loop."""

    def __init__(self) -> None:
        super().__init__()
        self.readings = 0

    async def _topics(self, namespace: NamespaceName, domain: str) -> list[str]:
        self.readings += 1
        await asyncio.sleep(0)
        return await super()._topics(namespace, domain)

    async def ask(self, pattern: str | None, ticket: int) -> Listing:
        return await self.lists.topics(NAMESPACE, "persistent", pattern, ticket)


async def test_those_who_ask_at_the_same_time_share_one_list() -> None:
    watched = Counted()
    await watched.make("a")
    tickets = [watched.lists.ticket() for _ in range(1_000)]
    found = [await watched.ask(".*" if index % 2 else None, ticket) for index, ticket in enumerate(tickets)]
    assert watched.readings == 1
    assert {id(one) for one in found} == {id(found[0]), id(found[1])}
    assert found[0].names == found[1].names == [PREFIX + "a"]
    await watched.close()


async def test_who_asks_later_sees_what_came_meanwhile() -> None:
    watched = Counted()
    await watched.make("a")
    first = await watched.ask(".*", watched.lists.ticket())
    same = await watched.ask(".*", watched.lists.ticket())
    assert same is first
    assert watched.readings == 2, "but what was found is shared while nothing has changed"
    await watched.make("b")
    await watched.make("__change_events")
    later = await watched.ask(".*", watched.lists.ticket())
    assert later.names == [PREFIX + "a", PREFIX + "b"]
    await watched.close()


async def test_lists_that_are_kept_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listings, "KEPT_BYTES_MAX", 3_000)
    watched = Counted()
    await watched.make("a" * 300)
    for index in range(20):
        assert (await watched.ask(f".*a{{{index}}}.*", watched.lists.ticket())).names
        assert watched.lists.kept_bytes <= 3_000
    await watched.make("b" * 900)
    await watched.make("c" * 900)
    assert len((await watched.ask(None, watched.lists.ticket())).names) == 3
    assert watched.lists.kept_bytes == 0
    await watched.close()


async def test_watchers_that_come_together_share_one_reading() -> None:
    watched = Counted()
    await watched.make("a")
    watchers = [await watched.lists.watch(NAMESPACE, ".*", lambda *_: None) for _ in range(100)]
    assert watched.readings == 1
    await watched.make("b")
    await watched.settle()
    assert all(one.known == [PREFIX + "a", PREFIX + "b"] for one in watchers)
    await watched.close()


@pytest.mark.slow
async def test_one_turn_of_the_loop_stays_short_whatever_is_watched() -> None:
    """10 000 topics, 1 000 watchers with 50 patterns: what is asked for, and a topic that comes and goes."""
    watched = Watched()
    many = sorted(f"{PREFIX}topic-{index}" for index in range(10_000))
    with_new = sorted([*many, PREFIX + "new"])
    listed = many

    async def topics(namespace: NamespaceName) -> list[str]:
        del namespace
        return list(listed)

    watched.resources.persistent_topics = topics  # type: ignore[method-assign]
    turns = Turns()
    beginning = asyncio.get_running_loop().create_task(turns.measure())
    pattern = "public/default/(topic-9999|new|watched-{}.*)"
    told: list[tuple[list[str], list[str]]] = []
    for index in range(1_000):
        await watched.lists.watch(NAMESPACE, pattern.format(index % 50), lambda new, gone, _: told.append((new, gone)))
    for _ in range(ATTEMPTS):
        turns.longest_seconds = 0.0
        listed = list(listed[::-1])  # Another list: nothing is shared.
        await watched.lists.topics(NAMESPACE, "persistent", ".*[0-9].*[0-9]", watched.lists.ticket())
        if turns.longest_seconds < TURN_SECONDS_MAX:
            break
    assert turns.longest_seconds < TURN_SECONDS_MAX
    for attempt in range(ATTEMPTS):
        turns.longest_seconds = 0.0
        told.clear()
        listed = with_new if attempt % 2 == 0 else many
        await watched.make(f"changed-{attempt}")
        while len(told) < 1_000:
            await asyncio.sleep(0.01)
        if turns.longest_seconds < TURN_SECONDS_MAX:
            break
    assert turns.longest_seconds < TURN_SECONDS_MAX
    assert told[0] == ([PREFIX + "new"], []) if attempt % 2 == 0 else told[0] == ([], [PREFIX + "new"])
    beginning.cancel()
    await watched.close()


ATTEMPTS = 5
TURN_SECONDS_MAX = 0.05


class Turns:
    """The longest turn of the loop, by the processor's time."""

    def __init__(self) -> None:
        self.longest_seconds = 0.0

    async def measure(self) -> None:
        while True:
            begun = time.thread_time()
            await asyncio.sleep(0)
            self.longest_seconds = max(self.longest_seconds, time.thread_time() - begun)


class Gated(Watched):
    """Each reading sees the topics of its moment, and answers when it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.readings: list[asyncio.Event] = []
        self.open = True

    async def _topics(self, namespace: NamespaceName, domain: str) -> list[str]:
        found = await super()._topics(namespace, domain)
        if not self.open:
            self.readings.append(asyncio.Event())
            await self.readings[-1].wait()
        return found

    async def until_read(self, number: int) -> None:
        """That many readings have seen the topics."""
        async with asyncio.timeout(30):
            while len(self.readings) < number:
                await asyncio.sleep(0)


async def test_a_topic_that_comes_while_the_list_is_read_is_told() -> None:
    watched = Gated()
    await watched.watch()
    watched.open = False
    await watched.make("a")
    await watched.until_read(1)
    await watched.make("b")
    watched.open = True
    watched.readings[0].set()
    await watched.settle()
    assert watched.told == [([PREFIX + "a"], []), ([PREFIX + "b"], [])]
    await watched.close()


async def test_who_begins_to_watch_while_others_are_told_misses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where lists are too large to be kept for those who ask next."""
    monkeypatch.setattr(listings, "KEPT_BYTES_MAX", 0)
    watched = Gated()
    await watched.lists.watch(NAMESPACE, ".*", lambda *_: None)
    watched.open = False
    await watched.make("a")
    await watched.until_read(1)
    told: list[str] = []
    beginning = asyncio.create_task(watched.lists.watch(NAMESPACE, "public.*", lambda new, *_: told.extend(new)))
    await watched.until_read(2)
    await watched.make("b")
    watched.open = True
    watched.readings[0].set()
    await watched.settle()
    watched.readings[1].set()
    watcher = await beginning
    await watched.settle()
    assert watcher.known == [PREFIX + "a", PREFIX + "b"]
    await watched.close()


async def found_in(names: list[str], questions: list[tuple[str, str | None]]) -> tuple[int, int]:
    """What memory these questions take that are answered from a namespace's list, and what of it is counted."""

    async def list_topics(*_: object) -> list[str]:
        return [bytes(name, "utf-8").decode() for name in names]

    lists = Listings(list_topics)
    tracemalloc.start()
    try:
        for namespace, pattern in questions:
            expression = None if pattern is None else cast(TopicPattern, FindsNothing(pattern))
            await (
                await lists.find(NamespaceName.parse(namespace), "all", expression, lists.ticket() - 1, None)
            ).encode()
        return tracemalloc.get_traced_memory()[0], lists.kept_bytes
    finally:
        tracemalloc.stop()


class FindsNothing:
    """A pattern that is kept nowhere else."""

    def __init__(self, text: str) -> None:
        self.text = text

    async def filter(self, names: list[str], turn: TimeSlice | None = None) -> list[str]:
        del names, turn
        return []


@pytest.mark.parametrize("letter", ["a", "é", "語", "😀"])
async def test_names_in_any_letters_are_counted_as_what_they_take(letter: str) -> None:
    taken, counted = await found_in(
        [f"{PREFIX}{letter * 40}{index}" for index in range(2_000)], [(str(NAMESPACE), None)]
    )
    assert taken * 0.8 < counted < taken * 1.5


@pytest.mark.parametrize("length", [10, 50_000])
async def test_namespaces_that_are_not_there_are_counted_as_what_they_take(length: int) -> None:
    """Anybody may ask for as many as he likes."""
    count = 1_000 if length < 100 else 50
    taken, counted = await found_in([], [(f"public/{index:0{length}}", None) for index in range(count)])
    assert taken * 0.8 < counted < taken * 2


async def test_patterns_that_find_nothing_are_counted_as_what_they_take() -> None:
    taken, counted = await found_in(["x"], [(str(NAMESPACE), f"{index}" * 20) for index in range(2_000)])
    assert taken * 0.8 < counted < taken * 2


async def test_the_list_that_was_asked_for_longest_ago_goes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    async def list_topics(namespace: NamespaceName, domain: str) -> list[str]:
        return [f"{domain}://{namespace}/{'x' * 1_000}"]

    lists = Listings(list_topics)
    first, second, third = [NamespaceName("public", name) for name in ("first", "second", "third")]
    for namespace in (first, second):
        await lists.find(namespace, "persistent", None, lists.ticket(), None)
    await lists.find(first, "persistent", TopicPattern("public/.*"), 0, None)
    monkeypatch.setattr(listings, "KEPT_BYTES_MAX", lists.kept_bytes)
    await lists.find(third, "persistent", None, lists.ticket(), None)
    assert [namespace for namespace, _ in lists._kept] == [first, third]


async def test_long_lists_are_encoded_in_many_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slices, "TURN_SECONDS_MAX", 0.0)
    listing = Listing([f"{PREFIX}{index}" for index in range(5 * ENCODED_AT_ONCE + 1)])
    encoding = [asyncio.create_task(listing.encode()) for _ in range(2)]
    turns = 0
    while not encoding[0].done():
        turns += 1
        await asyncio.sleep(0)
    assert turns >= 6
    first, second = await asyncio.gather(*encoding)
    assert first == encode_topics(listing.names)
    assert second is first, "answers share it"
    assert await listing.encode() is first


async def test_what_was_found_in_a_list_that_was_replaced_meanwhile_is_not_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    watched = Watched()
    await watched.make("a")
    matching, go = asyncio.Event(), asyncio.Event()
    match = TopicPattern.filter

    async def slowly(self: TopicPattern, names: list[str], turn: TimeSlice | None = None) -> list[str]:
        matching.set()
        await go.wait()
        return await match(self, names, turn)

    monkeypatch.setattr(TopicPattern, "filter", slowly)
    asking = asyncio.create_task(watched.lists.topics(NAMESPACE, "persistent", ".*", watched.lists.ticket()))
    await matching.wait()
    await watched.make("b")
    assert (await watched.lists.topics(NAMESPACE, "persistent", None, watched.lists.ticket())).names
    kept_bytes = watched.lists.kept_bytes
    go.set()
    assert (await asking).names == [PREFIX + "a"]
    assert watched.lists.kept_bytes == kept_bytes
    await watched.close()
