"""A process that hangs under a supervisor: what is told of the others, and of it."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any, Final, cast

import aiohttp
import pytest
from magnetar.control.settings import ControlSettings
from magnetar.net.testing import until
from magnetar.process.supervision import health, metrics_port
from magnetar.process.supervision.child import Child, ChildState, ProcessPlan, ProcessStart
from magnetar.process.supervision.health import GroupHealth
from magnetar.process.supervision.metrics_port import ANSWER_SECONDS_MAX, SCRAPE_SECONDS, MetricsPort

HANGING: Final[list[asyncio.StreamWriter]] = []
"""Whoever waits for an answer."""


async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readuntil(b"\r\n\r\n")
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\nConnection: close\r\n\r\na 1\n")
    writer.close()


def hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    del reader
    HANGING.append(writer)


@pytest.fixture
async def ports() -> AsyncIterator[list[int]]:
    """Of one that answers, and of one that does not."""
    servers = [await asyncio.start_server(each, "127.0.0.1", 0) for each in (serve, hang)]
    yield [server.sockets[0].getsockname()[1] for server in servers]
    for server in servers:
        server.close()
    while HANGING:
        HANGING.pop().close()


def process(number: int, port: int) -> Child:
    start = ProcessStart(command=(sys.executable,))
    url = f"http://127.0.0.1:{port}/metrics"
    child = Child(ProcessPlan(number=number, start=start, control_port=port, metrics_url=url))
    child.state = ChildState.SERVING
    return child


async def test_the_metrics_of_the_others_are_told_before_the_scrape_is_given_up(
    ports: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert ANSWER_SECONDS_MAX <= SCRAPE_SECONDS / 2
    monkeypatch.setattr(metrics_port, "ANSWER_SECONDS_MAX", 0.2)
    told = MetricsPort([process(number, port) for number, port in enumerate(ports, 1)])
    await told.start("127.0.0.1", 0)
    async with aiohttp.ClientSession() as session, session.get(f"http://127.0.0.1:{told.port}/metrics") as answer:
        text = await answer.text()
    assert 'a{process="1"} 1' in text
    assert 'a{process="2"}' not in text
    await told.close()


async def test_one_that_hangs_is_not_healthy(ports: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "ANSWER_SECONDS_MAX", 0.2)
    told: list[bool] = []

    async def set_serving(name: str, *, serving: bool) -> None:
        del name
        told.append(serving)

    group = GroupHealth([process(1, ports[1])], ControlSettings(host="127.0.0.1"))
    monkeypatch.setattr(group, "_server", cast(Any, SimpleNamespace(set_serving=set_serving)))
    looking = asyncio.create_task(group._look())
    await until(lambda: told)
    assert told == [False]
    looking.cancel()
    await asyncio.wait([looking])
    for channel in group._channels.values():
        await channel.close()
