from __future__ import annotations

import asyncio

import msgspec
import pytest
from magnetar.metadata.local import LocalStore
from magnetar.metadata.node_cache import NodeCache
from magnetar.metadata.store import Node


class Policies(msgspec.Struct, frozen=True):
    retention: int = 0


def policies(path: str, node: Node) -> Policies:
    """Decodes a node."""
    del path
    return msgspec.json.decode(node.value, type=Policies)


async def test_the_cache_reads_once_until_the_node_changes(store: LocalStore, other: LocalStore) -> None:
    cache = NodeCache(store, policies)
    await other.put("/p", b'{"retention":1,"unknown":true}')
    first = await cache.get("/p")
    assert first == Policies(1)
    assert await cache.get("/p") is first
    assert cache.peek("/p") is first
    await other.put("/p", b'{"retention":2}')
    await asyncio.sleep(0)
    assert await cache.get_with_version("/p") == (Policies(2), 1)
    await other.delete("/p")
    await asyncio.sleep(0)
    assert await cache.get("/p") is None
    await other.put("/p", b"{}")
    await asyncio.sleep(0)
    assert await cache.get("/p") == Policies()
    cache.close()


async def test_the_cache_never_hides_the_stores_own_write(store: LocalStore) -> None:
    cache = NodeCache(store, policies)
    for number in range(10):
        await store.put("/p", msgspec.json.encode(Policies(number)))
        assert await cache.get("/p") == Policies(number)
    cache.close()


async def test_the_cache_does_not_keep_what_changed_while_it_was_read(store: LocalStore) -> None:
    cache = NodeCache(store, policies)
    await store.put("/p", b"{}")
    reading = [asyncio.ensure_future(cache.get("/p")) for _ in range(2)]
    await store.put("/p", b'{"retention":5}')
    await asyncio.gather(*reading)
    assert await cache.get("/p") == Policies(5)
    cache.close()


async def test_the_cache_is_bounded(store: LocalStore) -> None:
    cache = NodeCache(store, policies, entries_max=2)
    for name in "abc":
        await store.put(f"/{name}", b"{}")
    for name in "abac":
        await cache.get(f"/{name}")
    assert [cache.peek(f"/{name}") for name in "abc"] == [Policies(), None, Policies()]
    cache.close()


async def test_what_cannot_be_decoded_is_not_kept(store: LocalStore) -> None:
    cache = NodeCache(store, policies)
    await store.put("/p", b'{"retention":"x"}')
    for _ in range(2):
        with pytest.raises(msgspec.ValidationError, match="retention"):
            await cache.get("/p")
    await store.put("/p", b'{"retention":1}')
    assert await cache.get("/p") == Policies(1)
    cache.close()


async def test_one_that_gives_up_does_not_take_the_read_from_others(store: LocalStore) -> None:
    cache = NodeCache(store, policies)
    await store.put("/p", b"{}")
    reading = [asyncio.ensure_future(cache.get("/p")) for _ in range(2)]
    await asyncio.sleep(0)
    reading[0].cancel()
    assert await reading[1] == Policies()
    cache.close()


async def test_a_reconnection_empties_the_cache(store: LocalStore) -> None:
    cache = NodeCache(store, policies)
    await store.put("/p", b"{}")
    await cache.get("/p")
    store.disconnect()
    await asyncio.sleep(0)
    assert await cache.get("/p") == Policies()
    store.reconnect()
    await asyncio.sleep(0)
    assert cache.peek("/p") is None
    cache.close()


async def test_nodes_that_are_often_missing_are_looked_for_first(store: LocalStore, other: LocalStore) -> None:
    cache = NodeCache(store, policies, often_missing=True)
    assert await cache.get("/p") is None
    assert cache.knows("/p")
    await other.put("/p", b'{"retention":1}')
    await asyncio.sleep(0)
    assert await cache.get("/p") == Policies(1)
    await other.delete("/p")
    await asyncio.sleep(0)
    assert await cache.get("/p") is None
    cache.close()


async def test_what_changes_while_it_is_read_is_read_again(
    store: LocalStore, other: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those who asked before the change may get what was there; nobody who asks after it."""
    cache = NodeCache(store, policies)
    await other.put("/p", b'{"retention":1}')
    get, read, go_on = store.get, asyncio.Event(), asyncio.Event()

    async def slow_get(path: str, *, watch: bool = True) -> Node | None:
        node = await get(path, watch=watch)
        read.set()
        await go_on.wait()
        return node

    monkeypatch.setattr(store, "get", slow_get)
    asking = asyncio.ensure_future(cache.get("/p"))
    await read.wait()
    await other.put("/p", b'{"retention":2}')
    await asyncio.sleep(0)
    go_on.set()
    assert await asking == Policies(1)
    assert await cache.get("/p") == Policies(2)
    cache.close()
