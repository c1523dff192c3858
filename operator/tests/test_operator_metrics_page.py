"""What is read of read-only brokers' metrics."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from aiohttp import web
from magnetar.control.errors import ControlUnavailable
from magnetar.operator.control import metrics_page as module
from magnetar.operator.control.calls import ControlCalls
from magnetar.operator.control.metrics_page import CONNECTIONS, FRESH_SECONDS, LAG, read_only_facts
from magnetar.operator.plan.facts import ReadOnlyBrokerFacts
from operator_fakes.small_kubernetes import SettableClock

PAGE = f"""\
# TYPE {CONNECTIONS} gauge
# HELP {CONNECTIONS} Connections of clients that are open.
{CONNECTIONS}{{cluster="a b",metric="broker_connection"}} 17
{CONNECTIONS}_other 3
# TYPE {LAG} gauge
{LAG}{{cluster="a b"}} 2.5
"""


class Page:
    """Serves one, and counts who reads it."""

    def __init__(self) -> None:
        self.parts = [PAGE.encode()]
        self.status = 200
        self.asked = 0
        self.endless = False
        self.answers = asyncio.Event()
        self.answers.set()

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.asked += 1
        await self.answers.wait()
        response = web.StreamResponse(status=self.status)
        await response.prepare(request)
        try:
            for part in self.parts:
                await response.write(part)
            while self.endless:
                await response.write(b"pulsar_topics_count 1\n" * 1000)
        except ConnectionError:
            self.endless = False
        return response


@asynccontextmanager
async def served(page: Page) -> AsyncIterator[str]:
    application = web.Application()
    application.router.add_get("/metrics", page.answer)
    runner = web.AppRunner(application)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    [(host, port)] = runner.addresses
    try:
        yield f"{host}:{port}"
    finally:
        await runner.cleanup()


@pytest.mark.parametrize(
    ("page", "expected"),
    [
        (PAGE, ReadOnlyBrokerFacts(connections=17, lag_seconds=2.5)),
        (f"{CONNECTIONS} 4\n", ReadOnlyBrokerFacts(connections=4)),
        (
            f'{CONNECTIONS} 4 1760000000\n{LAG}{{a="1"}} 1\n{LAG}{{a="2"}} 9\n',
            ReadOnlyBrokerFacts(connections=4, lag_seconds=9.0),
        ),
        (f"{CONNECTIONS} 4\n{LAG} NaN\n", ReadOnlyBrokerFacts(connections=4)),
        (f"{CONNECTIONS} 4\n{LAG} +Inf\n", ReadOnlyBrokerFacts(connections=4)),
        (f"{LAG} 4\n", None),
        ("", None),
        ("<html>", None),
    ],
)
def test_what_a_page_says(page: str, expected: ReadOnlyBrokerFacts | None) -> None:
    assert read_only_facts(page) == expected


async def test_a_page_is_asked_for_once_in_a_while() -> None:
    page, clock = Page(), SettableClock()
    calls = ControlCalls(clock)
    async with served(page) as address:
        found = await calls.read_only_broker(address)
        assert found == ReadOnlyBrokerFacts(connections=17, lag_seconds=2.5)
        clock.advance(FRESH_SECONDS - 1)
        assert await calls.read_only_broker(address) == found
        assert page.asked == 1
        clock.advance(1)
        await calls.read_only_broker(address)
        assert page.asked == 2
    await calls.close()


@pytest.mark.parametrize("first", [PAGE.encode(), b""], ids=["what matters comes first", "what matters does not come"])
async def test_no_more_of_a_large_page_is_read_than_is_needed(first: bytes) -> None:
    page = Page()
    page.parts, page.endless = [first] if first else [b"# large\n"], True
    calls = ControlCalls(SettableClock())
    async with served(page) as address:
        if first:
            assert (await calls.read_only_broker(address)).connections == 17
        else:
            with pytest.raises(ControlUnavailable, match="its metrics have no pulsar_active_connections"):
                await calls.read_only_broker(address)
    await calls.close()


async def test_who_does_not_answer_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    page, calls = Page(), ControlCalls(SettableClock())
    async with served(page) as address:
        page.status = 401
        with pytest.raises(ControlUnavailable, match="401"):
            await calls.read_only_broker(address)
    with pytest.raises(ControlUnavailable, match=address):
        await calls.read_only_broker(address)
    monkeypatch.setattr(module, "PAGE_SECONDS_MAX", 0.05)
    page.answers.clear()
    async with served(page) as address:
        with pytest.raises(ControlUnavailable, match="no metrics in time"):
            await calls.read_only_broker(address)
        page.answers.set()
    await calls.close()
