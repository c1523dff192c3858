"""How old the list of bookies may be when the metadata store is slow."""

from __future__ import annotations

import asyncio

from magnetar.ledger.ledger_paths import AVAILABLE_PATH
from magnetar.ledger.tcp_connections import TcpBookieConnections
from magnetar.metadata.faulty import Fate, FaultyStore
from magnetar.metadata.memory import MemoryMetadataStore
from magnetar.sim.virtual_time import VirtualTimeLoop

new_event_loop = VirtualTimeLoop

ANSWER_SECONDS = 0.5
LISTS = 3
"""Reads of lists, one after the other."""
THERE_AND_BACK = 2


async def test_the_list_of_bookies_is_current_soon_however_many_there_are() -> None:
    tree = MemoryMetadataStore()
    for number in range(40):
        await tree.put(f"{AVAILABLE_PATH}/bookie{number}:3181", b"")
    slow = FaultyStore(tree, lambda verb, path: Fate.DONE, delay_seconds=lambda: ANSWER_SECONDS / THERE_AND_BACK)
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
