"""What the operator goes by is what a broker that only reads serves."""

from __future__ import annotations

from dataclasses import replace

from aiohttp import ClientSession
from magnetar.broker.settings.broker import BrokerSettings
from magnetar.broker.settings.read_only import ReadOnlySettings
from magnetar.broker.testing.clusters import MemoryCluster
from magnetar.core.clock import SystemClock
from magnetar.operator.control.calls import ControlCalls
from magnetar.operator.control.metrics_page import CONNECTIONS, LAG

SETTINGS = BrokerSettings(cluster_name="memory")


async def test_the_operator_reads_the_page_of_a_read_only_broker() -> None:
    calls = ControlCalls(SystemClock())
    async with MemoryCluster(1, SETTINGS) as cluster:
        reader = await cluster.add(replace(SETTINGS, read_only=ReadOnlySettings(enabled=True)))
        clients = [await reader.connect() for _ in range(3)]
        found = await calls.read_only_broker(reader.admin_url.removeprefix("http://"))
        assert (found.connections, found.lag_seconds) == (len(clients), 0)
        async with ClientSession(reader.admin_url) as http, http.get("/metrics") as answer:
            names = {line.partition("{")[0] for line in (await answer.text()).splitlines()}
        assert {CONNECTIONS, LAG} <= names
    await calls.close()
