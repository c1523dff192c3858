"""When a process that stops gives its metadata store up."""

from __future__ import annotations

import asyncio

from magnetar.metadata.silence_limit import LOOK_SECONDS, SilenceLimit
from magnetar.sim.virtual_time import VirtualTimeLoop

new_event_loop = VirtualTimeLoop


class Server:
    """Says when it was given up."""

    def __init__(self) -> None:
        self.patience = SilenceLimit(self._given_up)
        self.given_up_after: list[float] = []

    def _given_up(self) -> None:
        self.given_up_after.append(asyncio.get_running_loop().time())


async def test_without_a_limit_it_never_ends() -> None:
    server = Server()
    server.patience.requests = 1
    await asyncio.sleep(1_000)
    assert not server.patience.ended


async def test_silence_under_a_request_ends_it_once() -> None:
    server = Server()
    server.patience.requests = 3
    server.patience.limit(2.0)
    await asyncio.sleep(60)
    assert server.patience.ended
    [after] = server.given_up_after
    assert 2.0 <= after <= 2.0 + 2 * LOOK_SECONDS
    server.patience.limit(2.0)
    await asyncio.sleep(60)
    assert len(server.given_up_after) == 1


async def test_silence_counts_from_the_last_answer_and_the_first_request() -> None:
    server = Server()
    server.patience.limit(2.0)
    await asyncio.sleep(30)
    server.patience.requests = 1
    for _ in range(30):
        await asyncio.sleep(1.9)
        server.patience.answered()
    assert not server.patience.ended
    began = asyncio.get_running_loop().time()
    await asyncio.sleep(30)
    assert 2.0 <= server.given_up_after[0] - began <= 2.0 + 3 * LOOK_SECONDS


async def test_closed_it_ends_no_more() -> None:
    server = Server()
    server.patience.requests = 1
    server.patience.limit(2.0)
    server.patience.close()
    await asyncio.sleep(60)
    assert not server.patience.ended
