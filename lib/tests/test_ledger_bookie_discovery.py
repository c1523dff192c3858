"""How old the list of bookies may be when the metadata store is slow or fails, and that it is whole."""

from __future__ import annotations

import asyncio

from magnetar.ledger.bookie_client.tcp_connections import READS_AT_ONCE, TcpBookieConnections
from magnetar.ledger.ledger_paths import AVAILABLE_PATH, READ_ONLY_PATH
from magnetar.metadata.faulty import FaultyStore, RequestFate
from magnetar.metadata.kept_current import RETRY_SECONDS
from magnetar.metadata.memory import MemoryMetadataStore
from magnetar.sim.virtual_time import VirtualTimeLoop
from magnetar.wire.bookkeeper.service_info import Endpoint, encode_service_info

new_event_loop = VirtualTimeLoop

ANSWER_SECONDS = 0.5
LISTS = 3
"""Reads of lists, one after the other."""
THERE_AND_BACK = 2


async def test_the_list_of_bookies_is_current_soon_however_many_there_are() -> None:
    tree = MemoryMetadataStore()
    for number in range(40):
        await tree.put(f"{AVAILABLE_PATH}/bookie{number}:3181", b"")
    slow = FaultyStore(tree, lambda verb, path: RequestFate.DONE, delay_seconds=lambda: ANSWER_SECONDS / THERE_AND_BACK)
    bookies = TcpBookieConnections(slow)
    await bookies.start()
    await tree.delete(f"{AVAILABLE_PATH}/bookie7:3181")
    await asyncio.sleep(ANSWER_SECONDS * (LISTS + 0.5))
    assert "bookie7:3181" not in bookies.writable_bookies()
    assert len(bookies.writable_bookies()) == 39
    await tree.put(f"{AVAILABLE_PATH}/new:3181", b"")
    await asyncio.sleep(ANSWER_SECONDS * (LISTS + 4))
    assert "new:3181" in bookies.writable_bookies()
    await bookies.close()
    await slow.close()


async def test_every_bookie_is_reached_where_it_is_registered_however_many_there_are() -> None:
    tree = MemoryMetadataStore()
    names = [f"bookie{number}" for number in range(2 * READS_AT_ONCE + 1)]
    for port, name in enumerate(names, 1):
        endpoint = encode_service_info([Endpoint(id="bookie", host=f"{name}.example", port=port)])
        await tree.put(f"{READ_ONLY_PATH if port % 3 == 0 else AVAILABLE_PATH}/{name}", endpoint)
    bookies = TcpBookieConnections(tree)
    await bookies.start()
    assert [bookies.address(name) for name in names] == [
        (f"{name}.example", port) for port, name in enumerate(names, 1)
    ]
    await bookies.close()
    await tree.close()


async def test_a_list_of_bookies_that_could_not_be_read_is_read_again() -> None:
    """Nothing else may change for hours."""
    tree = MemoryMetadataStore()
    await tree.put(f"{AVAILABLE_PATH}/old:3181", b"")
    fates: list[RequestFate] = []
    store = FaultyStore(tree, lambda verb, path: fates.pop() if fates and verb == "children" else RequestFate.DONE)
    bookies = TcpBookieConnections(store)
    await bookies.start()
    fates += [RequestFate.REFUSED] * 3
    await tree.put(f"{AVAILABLE_PATH}/new:3181", b"")
    await asyncio.sleep(4 * RETRY_SECONDS)
    assert bookies.writable_bookies() == ["new:3181", "old:3181"]
    assert not fates
    await bookies.close()
    await store.close()


async def test_the_list_is_read_as_soon_as_the_store_is_back() -> None:
    """Without its pause, for which the list would be as old as when the store went away (the simulator's seed 8270)."""
    tree = MemoryMetadataStore()
    others = tree.another_session()
    for name in ("left:3181", "stays:3181"):
        await others.put(f"{AVAILABLE_PATH}/{name}", b"")
    bookies = TcpBookieConnections(tree)
    await bookies.start()
    tree.disconnect()
    tree.reconnect()
    tree.disconnect()
    await asyncio.sleep(RETRY_SECONDS / 10)
    await others.delete(f"{AVAILABLE_PATH}/left:3181")
    tree.reconnect()
    await asyncio.sleep(RETRY_SECONDS / 10)
    assert bookies.writable_bookies() == ["stays:3181"]
    await bookies.close()
    await tree.close()
    await others.close()


async def test_however_many_look_again_two_looks_answer_all() -> None:
    tree = MemoryMetadataStore()
    asked: list[str] = []

    def fate(verb: str, path: str) -> RequestFate:
        asked.append(path)
        return RequestFate.DONE

    slow = FaultyStore(tree, fate, delay_seconds=lambda: ANSWER_SECONDS / THERE_AND_BACK)
    bookies = TcpBookieConnections(slow)
    await bookies.start()
    first = asyncio.ensure_future(bookies.look_again())
    await asyncio.sleep(ANSWER_SECONDS * LISTS)
    await tree.put(f"{AVAILABLE_PATH}/new:3181", b"")
    asked.clear()
    await asyncio.gather(*(bookies.look_again() for _ in range(50)))
    assert bookies.writable_bookies() == ["new:3181"]
    # The one that was under way, theirs, and the one that the news have brought.
    assert asked.count(READ_ONLY_PATH) <= 2
    await first
    await bookies.close()
    await slow.close()
