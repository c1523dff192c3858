from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest
from magnetar.core.crashes import CRASHES, METRIC_NAME
from magnetar.core.slow_turns import SLOW_TURNS
from magnetar.operator import probe
from magnetar.operator.metrics import Metrics
from magnetar.operator.plan.actions import Apply, StartBookieDrain
from magnetar.operator.probe import CONNECTIONS_MAX, TEXT, Pages
from magnetar.operator.reconcile import Key
from magnetar.operator.resources.bookie import BookieMember, BookieStatus, DrainProgress
from magnetar.operator.resources.cluster import PulsarClusterStatus
from magnetar.operator.resources.common import Condition

COLD = Key("Bookie", "here", "cold")


@pytest.fixture
async def port() -> AsyncIterator[int]:
    pages = Pages({"/healthz": lambda: (200, TEXT, b"ok\n"), "/readyz": lambda: (503, TEXT, b"not yet\n")})
    yield await pages.start("127.0.0.1", 0)
    await pages.close()


async def ask(port: int, request: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request)
    answer = await reader.read()
    writer.close()
    return answer


async def test_pages(port: int) -> None:
    answer = await ask(port, b"GET /healthz?verbose HTTP/1.1\r\nHost: x\r\n\r\n")
    assert answer == (
        b"HTTP/1.1 200 OK\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: 3\r\n"
        b"Connection: close\r\n\r\nok\n"
    )
    assert (await ask(port, b"GET /readyz HTTP/1.1\r\n\r\n")).startswith(b"HTTP/1.1 503 Service Unavailable\r\n")
    assert (await ask(port, b"HEAD /healthz HTTP/1.1\r\n\r\n")).endswith(b"\r\n\r\n")


async def test_what_is_not_there(port: int) -> None:
    assert (await ask(port, b"GET / HTTP/1.1\r\n\r\n")).endswith(b"/healthz /readyz\n")
    assert b" 405 " in await ask(port, b"POST /healthz HTTP/1.1\r\n\r\n")
    assert b" 400 " in await ask(port, b"hello\r\n\r\n")


async def test_endless_heads_are_not_kept(port: int) -> None:
    assert await ask(port, b"GET /healthz HTTP/1.1\r\n" + b"a: b\r\n" * 5000) == b""


async def test_who_says_nothing_keeps_nobody_out(port: int) -> None:
    silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(2 * CONNECTIONS_MAX)]
    assert (await ask(port, b"GET /healthz HTTP/1.1\r\n\r\n")).endswith(b"ok\n")
    for reader, _ in silent[: CONNECTIONS_MAX + 1]:
        with contextlib.suppress(ConnectionError):
            assert await reader.read() == b""
    for _, writer in silent:
        writer.close()


@pytest.mark.slow
async def test_an_answer_that_nobody_reads_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "SECONDS_MAX", 0.3)
    pages = Pages({"/metrics": lambda: (200, TEXT, bytes(40 << 20))})
    port = await pages.start("127.0.0.1", 0)
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1024)
    writer.write(b"GET /metrics HTTP/1.1\r\n\r\n")
    async with asyncio.timeout(30):
        while not pages.open_count:
            await asyncio.sleep(0.01)
        while pages.open_count:
            await asyncio.sleep(0.01)
    writer.transport.abort()
    del reader
    await pages.close()


def condition(type_: str, status: str) -> Condition:
    return Condition(
        type=type_,
        status=status,  # type: ignore[arg-type]  # A test's own words.
        reason="R",
        message="m",
        last_transition_time="2026-01-01T00:00:00Z",
        observed_generation=1,
    )


def lines(metrics: Metrics) -> set[str]:
    return {line for line in metrics.render().decode().splitlines() if line.startswith("magnetar_operator_")}


def test_metrics_count() -> None:
    metrics = Metrics()
    metrics.api_call("list", "Pod")
    metrics.api_call("list", "Pod")
    metrics.passed(COLD, 0.2, "")
    metrics.passed(COLD, 0.2, "ServerUnavailable")
    metrics.carried_out(COLD, StartBookieDrain("cold-bookie-3"))
    metrics.carried_out(COLD, Apply({}))
    metrics.leads(leading=True)
    assert {
        'magnetar_operator_api_calls_total{kind="Pod",verb="list"} 2.0',
        'magnetar_operator_passes_total{failure="none",kind="Bookie"} 1.0',
        'magnetar_operator_passes_total{failure="ServerUnavailable",kind="Bookie"} 1.0',
        'magnetar_operator_pass_seconds_count{kind="Bookie"} 2.0',
        'magnetar_operator_drains_total{component="bookie",step="started"} 1.0',
        'magnetar_operator_actions_total{action="Apply",kind="Bookie"} 1.0',
        "magnetar_operator_leads 1.0",
    } <= lines(metrics)


def test_crashes_before_this_process_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CRASHES, "count", 3)
    assert f"{METRIC_NAME} 3.0" in Metrics().render().decode().splitlines()


def test_slow_turns_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SLOW_TURNS, "count", 4)
    monkeypatch.setattr(SLOW_TURNS, "longest_seconds", 1.5)
    found = Metrics().render().decode().splitlines()
    assert {"magnetar_event_loop_slow_turns_total 4.0", "magnetar_event_loop_longest_turn_seconds 1.5"} <= set(found)


def test_metrics_of_a_resource_go_with_it() -> None:
    metrics = Metrics()
    drain = DrainProgress(step="Replicate", ledgers_left=7)
    members = [BookieMember(name="cold-bookie-0"), BookieMember(name="cold-bookie-1", drain=drain)]
    metrics.found(COLD, BookieStatus(conditions=[condition("Ready", "False")], members=members))
    blue = Key("PulsarCluster", "here", "blue")
    metrics.found(blue, PulsarClusterStatus(conditions=[condition("Stalled", "Unknown")]))
    assert {
        'magnetar_operator_condition{kind="Bookie",name="cold",namespace="here",type="Ready"} 0.0',
        'magnetar_operator_condition{kind="PulsarCluster",name="blue",namespace="here",type="Stalled"} -1.0',
        'magnetar_operator_draining{kind="Bookie",name="cold",namespace="here"} 1.0',
        'magnetar_operator_drain_ledgers_left{kind="Bookie",name="cold",namespace="here"} 7.0',
    } <= lines(metrics)
    metrics.found(COLD, None)
    assert not any('name="cold"' in line for line in lines(metrics))
