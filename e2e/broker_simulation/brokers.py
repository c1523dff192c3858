"""Real brokers on simulated hosts."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, Final

from magnetar.balance.settings import BalanceSettings
from magnetar.broker.app import RunningBroker, start_broker
from magnetar.broker.broker_parts import BrokerEnvironment, BrokerParts
from magnetar.broker.resources import Resources, cluster_data, initialize_cluster_metadata
from magnetar.broker.settings.broker import BrokerSettings, DispatchSettings
from magnetar.broker.settings.load import LoadSettings
from magnetar.broker.settings.policies import PolicySettings
from magnetar.broker.settings.transactions import TransactionSettings
from magnetar.broker.transactions.initialization import initialize_coordinators
from magnetar.ledger.bookie_client.tcp_connections import TcpBookieConnections
from magnetar.ledger.client import BookKeeperClient
from magnetar.managed.settings import ManagedLedgerSettings

from e2e.broker_simulation.admin import ADMIN_PORT, SimulatedAdminClient, SimulatedAdminPort
from e2e.broker_simulation.hosts import ServiceHost
from e2e.broker_simulation.parameters import Parameters
from e2e.broker_simulation.protocol import BROKER_PORT
from e2e.simulation.cluster import CONNECTION_SETTINGS, World, client_settings
from e2e.simulation.metadata import SimulatedMetadata
from e2e.simulation.watched import WatchedClient, WatchedConnections

CLUSTER: Final = "simulated"
NOWHERE: Final = Path("/nowhere")
"""How full this machine is must not decide anything."""
UNLOAD_SECONDS_MAX: Final = 4
STOP_SECONDS_MAX: Final = 6


def broker_settings(name: str, parameters: Parameters) -> BrokerSettings:
    transactions = parameters.transactions
    retention = 0 if parameters.trims else -1
    return BrokerSettings(
        cluster_name=parameters.region or CLUSTER,
        bind_address=name,
        advertised_address=name,
        broker_service_port=BROKER_PORT,
        web_service_port=ADMIN_PORT,
        keep_alive_seconds=3.0,
        connection_liveness_check_seconds=1.0,
        known_after_seconds=0.02,
        default_namespace_bundles=parameters.bundles,
        dispatch=DispatchSettings(
            read_entries_max=parameters.read_entries_max,
            round_robin_messages_max=parameters.round_robin_messages_max,
            unacked_messages_per_consumer_max=parameters.unacked_messages_max,
            failover_delay_ms=parameters.failover_delay_ms,
        ),
        policies=PolicySettings(
            retention_minutes=retention,
            retention_megabytes=retention,
            backlog_quota_check=False,
            delete_inactive_topics=False,
            deduplication=parameters.deduplication,
            deduplication_snapshot_entries=parameters.snapshot_entries,
            deduplication_snapshot_seconds=3,
            deduplication_snapshot_check_seconds=1.0,
            **_compaction_policies(parameters),
            **_replication_policies(parameters),
        ),
        transactions=TransactionSettings() if transactions is None else transactions.settings,
        load=LoadSettings(enabled=False, unload_after_stop_ms_max=UNLOAD_SECONDS_MAX * 1_000),
    )


def _compaction_policies(parameters: Parameters) -> dict[str, Any]:
    compaction = parameters.compaction
    if compaction is None:
        return {}
    return {
        "compaction_threshold_bytes": compaction.threshold_bytes,
        "compaction_check_seconds": 1.0,
        "compaction_read_seconds_max": 5.0,
        "compaction_keeps_null_keys": compaction.keeps_without_key,
    }


def _replication_policies(parameters: Parameters) -> dict[str, Any]:
    regions = parameters.regions
    if regions is None:
        return {}
    return {"replication_start_at": regions.start_at, "replication_queue_entries": regions.queue_entries}


def ledger_settings(parameters: Parameters) -> ManagedLedgerSettings:
    storage = parameters.storage
    retention = 0 if parameters.trims else -1
    return ManagedLedgerSettings(
        ensemble_size=storage.ensemble_size,
        write_quorum=storage.write_quorum,
        ack_quorum=storage.ack_quorum,
        max_entries_per_ledger=parameters.entries_per_ledger,
        minimum_rollover_ms=0,
        retention_time_ms=retention,
        retention_size_bytes=retention,
        mark_delete_rate=parameters.mark_delete_rate,
        cursor_ledger_entries_max=parameters.cursor_ledger_entries,
        unacked_ranges_in_metadata_max=parameters.ranges_in_node,
        persist_acks_as_long_array=parameters.long_arrays,
    )


def host_prefix(parameters: Parameters) -> str:
    """What the names of a cluster's hosts begin with."""
    return f"{parameters.region}-" if parameters.region else ""


async def prepare_cluster(world: World, parameters: Parameters) -> None:
    """What must stand before brokers do; on a host of its own, which is gone afterwards."""
    node = world.node(f"{host_prefix(parameters)}setup")
    process = node.start()
    done = asyncio.Event()

    async def prepare() -> None:
        store = SimulatedMetadata(world.service, node.name, lambda: process.alive)
        first = f"{host_prefix(parameters)}broker0"
        data = cluster_data(f"pulsar://{first}:{BROKER_PORT}", f"http://{first}:{ADMIN_PORT}")
        cluster = parameters.region or CLUSTER
        await initialize_cluster_metadata(Resources(store), cluster, data, parameters.bundles)
        if parameters.transactions is not None:
            await initialize_coordinators(Resources(store), parameters.transactions.coordinators)
        await store.close()
        done.set()

    node.run(prepare())
    await done.wait()
    node.kill()


class SimulatedBroker(ServiceHost[RunningBroker]):
    """One broker's host, and the broker that runs there."""

    def __init__(self, world: World, name: str, parameters: Parameters) -> None:
        super().__init__(world, name, STOP_SECONDS_MAX)
        self.broker_id = f"{name}:{ADMIN_PORT}"
        self._parameters = parameters
        self._settings = broker_settings(name, parameters)

    async def started(self, store: SimulatedMetadata) -> RunningBroker:
        """See `ServiceHost.started`."""
        world, node = self._world, self.node
        connections = TcpBookieConnections(store, node.clock, CONNECTION_SETTINGS)
        chance = world.chance(f"broker {node.name} {node.starts}")
        watched = self.connections(connections)
        settings = client_settings(self._parameters.storage)
        client = BookKeeperClient(store, watched, node.clock, chance, settings, connections.places)
        parts = BrokerParts(
            store,
            WatchedClient(node.name, client, world.witness),
            node.clock,
            ledger_settings(self._parameters),
            balance_settings=BalanceSettings(unloading_timeout_ms=UNLOAD_SECONDS_MAX * 1_000),
            environment=BrokerEnvironment(
                admin_port=SimulatedAdminPort,
                admin_client=SimulatedAdminClient,
                host_root=NOWHERE,
                rng=chance,
            ),
        )
        await connections.start()
        return await start_broker(self._settings, parts)

    def connections(self, inner: TcpBookieConnections) -> WatchedConnections:
        """With bookies, as they are watched."""
        return WatchedConnections(inner, self._world.witness)

    def lose_session(self) -> None:
        """The metadata service ends its session."""
        if self.store is not None and self.node.running:
            self.store.expire()
