"""How many large answers are waited for at once, from each broker and from all: any of them may not answer.

Any broker may be asked for one, so it is one that is asked for few just then. Thus a broker that hangs keeps those who
asked it, and nobody else.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from itertools import islice
from typing import Final

from magnetar.proxy.discovery import BrokerChoice, NoBroker

OF_ONE_BROKER: Final = 4
"""A broker makes two at once; the others may be of what it has to wait for itself. Lookups go over the same
connections, and are not kept waiting by so few."""

OF_ALL_BROKERS: Final = 32
"""Answers that may come at the same time, of 5 MiB at most. Eight brokers have to hang before anybody waits for them
who did not ask them."""

LOOKED_AT_MAX: Final = 100
"""Waiting requests that are tried when a broker has a place: when all of these have tried it in vain, it does not
answer others."""


class BrokerPlaces:
    """Shared by all clients, who come in the order in which they asked."""

    def __init__(self, brokers: BrokerChoice) -> None:
        self._brokers = brokers
        self._asked: Counter[str] = Counter()
        """How many each has, by URL; without those that have none."""
        self._count = 0
        self._waiting: dict[asyncio.Future[str], Collection[str]] = {}
        """Who waits, with the brokers that it has tried."""

    @asynccontextmanager
    async def place(self, tried: Collection[str]) -> AsyncIterator[str]:
        """The URL of a broker to ask, where there is a place to the end. Not one of those that were tried, if there
        are others. `NoBroker`."""
        url = await self._take(tried)
        try:
            yield url
        finally:
            self._leave(url)

    async def _take(self, tried: Collection[str]) -> str:
        given: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._waiting[given] = tried
        self._give()
        try:
            return await given
        except asyncio.CancelledError:
            self._waiting.pop(given, None)
            if not given.cancelled() and given.exception() is None:
                self._leave(given.result())
            raise

    def _leave(self, url: str) -> None:
        self._count -= 1
        self._asked[url] -= 1
        if not self._asked[url]:
            del self._asked[url]
        self._give()

    def _give(self) -> None:
        """To those who wait, as far as there are places."""
        if not self._waiting:
            return  # Asked in vain, brokers would miss their turn.
        try:
            offered = self._brokers.service_urls_in_turn()
        except NoBroker:
            self._tell_nobody_is_there()
            return
        free = [url for url in offered if self._asked[url] < OF_ONE_BROKER]
        if not free:
            return
        for given, tried in list(islice(self._waiting.items(), LOOKED_AT_MAX)):
            if not free or self._count >= OF_ALL_BROKERS:
                return
            others = tried and [url for url in offered if url not in tried]
            url = next((url for url in free if not others or url in others), None)
            if url is None or given.done():
                continue
            del self._waiting[given]
            given.set_result(url)
            self._count += 1
            self._asked[url] += 1
            if self._asked[url] >= OF_ONE_BROKER:
                free.remove(url)

    def _tell_nobody_is_there(self) -> None:
        waiting, self._waiting = self._waiting, {}
        for given in waiting:
            if not given.done():
                given.set_exception(NoBroker("No active broker is available"))
