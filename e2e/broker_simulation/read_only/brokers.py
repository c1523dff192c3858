"""Real brokers that only read, on simulated hosts; whoever writes there is accused."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from magnetar.broker.read_only.paths import ROOT
from magnetar.ledger.bookie_client.bookie_connection import READ_FLAG_FENCE, READ_FLAG_NONE, AddCallback
from magnetar.ledger.bookie_client.tcp_connections import TcpBookieConnections
from magnetar.metadata.tree import Outcome

from e2e.broker_simulation.brokers import SimulatedBroker, broker_settings
from e2e.broker_simulation.drawn.read_only import NAME
from e2e.broker_simulation.parameters import Parameters
from e2e.simulation.cluster import World
from e2e.simulation.watched import WatchedConnection, WatchedConnections
from e2e.simulation.witness import Witness


class ReadingConnection(WatchedConnection):
    """A connection with a bookie on which nothing may be written, and nobody fenced."""

    def add_entries(
        self,
        ledger_id: int,
        master_key: bytes,
        entry_ids: Sequence[int],
        entries: Sequence[bytes],
        flags: int,
        done: AddCallback,
    ) -> None:
        """See `BookieConnection.add_entries`."""
        self.witness.accuse(f"a broker that only reads adds {list(entry_ids)} to ledger {ledger_id}")
        super().add_entries(ledger_id, master_key, entry_ids, entries, flags, done)

    async def read_entry(
        self, ledger_id: int, entry_id: int, flags: int = READ_FLAG_NONE, master_key: bytes = b""
    ) -> bytes:
        """See `BookieConnection.read_entry`."""
        if flags & READ_FLAG_FENCE:
            self.witness.accuse(f"a broker that only reads fences ledger {ledger_id}")
        return await super().read_entry(ledger_id, entry_id, flags, master_key)


class ReadingConnections(WatchedConnections):
    """Of `ReadingConnection`s."""

    connection_class = ReadingConnection


class SimulatedReadOnlyBroker(SimulatedBroker):
    """One broker's host, and the broker that runs there and only reads."""

    def __init__(self, world: World, name: str, parameters: Parameters) -> None:
        super().__init__(world, name, parameters)
        assert parameters.read_only is not None
        self._settings = replace(broker_settings(name, parameters), read_only=parameters.read_only.settings)

    def connections(self, inner: TcpBookieConnections) -> WatchedConnections:
        """See `SimulatedBroker.connections`."""
        return ReadingConnections(inner, self._world.witness)


def check_written(witness: Witness, outcome: Outcome, host: str) -> None:
    """Of the metadata store such a broker changes its own corner, and nothing else."""
    if not host.startswith(NAME):
        return
    for path, _ in (*outcome.saves, *outcome.removals):
        if path != ROOT and not path.startswith(f"{ROOT}/"):
            witness.accuse(f"{host}, which only reads, changes {path}")
