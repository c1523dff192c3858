"""What the operator asks of its pods: by their control ports, by metrics, by ZooKeeper's four-letter words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal, Protocol

from magnetar.balance.model import LoadSnapshot
from magnetar.operator.plan.facts import (
    BookieFacts,
    BrokerFacts,
    EnsembleFacts,
    LostBookieFacts,
    ReadOnlyBrokerFacts,
    ZookeeperFacts,
)
from magnetar.operator.resources.cluster import BundleMove

ASK_SECONDS_MAX: Final = 3.0
"""How long a call may take: a pass asks many pods, and one that hangs must not hold up what the others need."""
COUNT_SECONDS_MAX: Final = 30.0
"""How long a call may take that walks through the ledgers' metadata."""
ASKED_AT_ONCE_MAX: Final = 16
"""How many pods are asked at a time: enough for a pool to be asked in a few round trips, few enough for one process."""

Driver = Literal["leader", "control"]


class Controls(Protocol):
    """One call to one pod each. Addresses are `host:port`; the token is the cluster's (`children.control`), empty if
    there is none yet.

    Every call may raise `ControlRefused` (the pod says no, and why) and `ControlUnavailable` (no answer in time).
    """

    async def bookie(self, address: str, token: str) -> BookieFacts:
        """What a bookie says of itself."""
        ...

    async def start_bookie_drain(self, address: str, token: str) -> None:
        """Begin; no error while it runs."""
        ...

    async def cancel_bookie_drain(self, address: str, token: str) -> None:
        """Take writes again. `ControlRefused` once the cookie is removed."""
        ...

    async def lost_bookie(self, address: str, token: str, bookie_id: str) -> LostBookieFacts:
        """What the bookie at the address says of another one that does not run. Walks the metadata."""
        ...

    async def retire_lost_bookie(self, address: str, token: str, bookie_id: str) -> LostBookieFacts:
        """Have that one's ledgers marked as lacking replicas, and its cookie dropped once none names it.
        `ControlRefused` if it is up. Walks the metadata."""
        ...

    async def under_replicated_ledgers(self, address: str, token: str) -> int:
        """How many ledgers of the whole cluster lack replicas, as the bookie at the address counts. Walks the
        metadata."""
        ...

    async def broker(self, address: str, token: str) -> BrokerFacts:
        """What a broker says of itself."""
        ...

    async def largest_ensemble(self, address: str, token: str) -> EnsembleFacts:
        """The largest ensemble that the broker at the address knows of. It may have to read many policies."""
        ...

    async def start_broker_drain(self, address: str, token: str) -> None:
        """Begin; no error while it runs. It goes on without us. `ControlRefused` if there is no other broker."""
        ...

    async def cancel_broker_drain(self, address: str, token: str) -> None:
        """Keep what is left, take bundles again."""
        ...

    async def moves(self, address: str, token: str) -> Sequence[BundleMove]:
        """What the broker at the address decided as the leader, the latest first, ten at most."""
        ...

    async def driver(self, address: str, token: str) -> Driver:
        """Who moves and splits bundles in the whole cluster."""
        ...

    async def set_driver(self, address: str, token: str, driver: Driver) -> None:
        """Choose who moves and splits bundles in the whole cluster."""
        ...

    async def load_snapshot(self, addresses: Sequence[str], token: str) -> LoadSnapshot:
        """What all brokers do now; those that do not answer are missing in it."""
        ...

    async def transfer_bundle(self, address: str, token: str, bundle: str, destination_broker_id: str) -> None:
        """Hand a bundle of the broker at the address to another one. `ControlRefused` if it does not own it."""
        ...

    async def split_bundle(
        self, address: str, token: str, bundle: str, *, algorithm: str, boundaries: Sequence[int] = ()
    ) -> None:
        """Cut a bundle of the broker at the address, which keeps the parts. `ControlRefused` if it does not own it."""
        ...

    async def read_only_broker(self, address: str) -> ReadOnlyBrokerFacts:
        """What the metrics of a read-only broker say, some seconds old perhaps. The address is of its web port."""
        ...

    async def zookeeper(self, address: str) -> ZookeeperFacts:
        """What a ZooKeeper server answers to `srvr`."""
        ...
