"""What the operator goes by is what a broker that only reads serves."""

from __future__ import annotations

from dataclasses import replace

from magnetar.broker.settings.broker import BrokerSettings
from magnetar.broker.settings.read_only import ReadOnlySettings
from magnetar.broker.testing.clusters import MemoryCluster
from magnetar.core.clock import SystemClock
from magnetar.operator.control.calls import ControlCalls

SETTINGS = BrokerSettings(cluster_name="memory")


async def test_the_operator_reads_connections_of_a_read_only_brokers_page() -> None:
    calls = ControlCalls(SystemClock())
    async with MemoryCluster(1, SETTINGS) as cluster:
        reader = await cluster.add(replace(SETTINGS, read_only=ReadOnlySettings(enabled=True)))
        clients = [await reader.connect() for _ in range(3)]
        found = await calls.read_only_broker(reader.admin_url.removeprefix("http://"))
        assert (found.connections, found.lag_seconds) == (len(clients), 0)
    await calls.close()
