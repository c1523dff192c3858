"""What pods answer to the operator: the `Controls` of the simulation, where calls go wrong as they do to the API."""

from __future__ import annotations

import base64
from collections.abc import Callable, Sequence
from typing import TypeVar

from magnetar.balance.model import BrokerLoad, BundleLoad, LoadSnapshot, ResourceUsages
from magnetar.control.errors import ControlRefused, ControlUnavailable, RefusalReason
from magnetar.core.bundle import BundleName
from magnetar.operator.children.control import TOKEN_KEY, token_secret_name
from magnetar.operator.children.naming import INSTANCE_LABEL
from magnetar.operator.control.controls import ASK_SECONDS_MAX, COUNT_SECONDS_MAX, Driver
from magnetar.operator.plan.facts import (
    BookieFacts,
    BrokerFacts,
    EnsembleFacts,
    LostBookieFacts,
    ReadOnlyBrokerFacts,
    ZookeeperFacts,
)
from magnetar.operator.resources.cluster import BundleMove

from e2e.operator_simulation.brokers import BUNDLES, Broker
from e2e.operator_simulation.fates import READS_SHARE, pass_began
from e2e.operator_simulation.kubelet import Running
from e2e.operator_simulation.objects.admission import ORIGIN_SECONDS
from e2e.operator_simulation.programs import BookieProgram, BrokerProgram, Zookeeper
from e2e.operator_simulation.storage import Bookie
from e2e.operator_simulation.world import World

T = TypeVar("T")


class SimulatedControls:
    """What one operator holds. See `magnetar.operator.control.controls.Controls`."""

    def __init__(self, world: World, name: str, kill: Callable[[], None]) -> None:
        self._server = world.server
        self._kubelet = world.kubelet
        self._software = world.software
        self._network = world.network
        self._name = name
        self._kill = kill

    async def bookie(self, address: str, token: str) -> BookieFacts:
        """See `Controls`."""
        return await self._ask(lambda: self._software.storage.facts(self._bookie(address, token)))

    async def start_bookie_drain(self, address: str, token: str) -> None:
        """See `Controls`."""
        await self._tell(address, token, "start_drain", self._software.storage.start_drain)

    async def cancel_bookie_drain(self, address: str, token: str) -> None:
        """See `Controls`."""
        await self._tell(address, token, "cancel_drain", self._software.storage.cancel_drain)

    async def lost_bookie(self, address: str, token: str, bookie_id: str) -> LostBookieFacts:
        """See `Controls`."""

        def work() -> LostBookieFacts:
            self._bookie(address, token)
            return self._software.storage.lost(bookie_id)

        return await self._ask(work, COUNT_SECONDS_MAX)

    async def retire_lost_bookie(self, address: str, token: str, bookie_id: str) -> LostBookieFacts:
        """See `Controls`."""
        began = pass_began.get()

        def work() -> LostBookieFacts:
            pod = self._pod(address, token)
            self._bookie(address, token)
            self._asked(pod, f"retire {bookie_id}", began)
            return self._software.storage.retire(bookie_id)

        return await self._ask(work, COUNT_SECONDS_MAX)

    async def under_replicated_ledgers(self, address: str, token: str) -> int:
        """See `Controls`."""

        def work() -> int:
            self._bookie(address, token)
            return self._software.storage.under_replicated()

        return await self._ask(work, COUNT_SECONDS_MAX)

    async def broker(self, address: str, token: str) -> BrokerFacts:
        """See `Controls`."""
        return await self._ask(lambda: self._software.brokers.facts(self._broker(address, token)))

    async def largest_ensemble(self, address: str, token: str) -> EnsembleFacts:
        """See `Controls`."""

        def work() -> EnsembleFacts:
            self._broker(address, token)
            return EnsembleFacts(size=self._software.storage.ensemble_size, wanted_by="the brokers' settings")

        return await self._ask(work, COUNT_SECONDS_MAX)

    async def start_broker_drain(self, address: str, token: str) -> None:
        """See `Controls`."""
        await self._tell_broker(address, token, "start_drain", self._software.brokers.start_drain)

    async def cancel_broker_drain(self, address: str, token: str) -> None:
        """See `Controls`."""
        await self._tell_broker(address, token, "cancel_drain", self._software.brokers.cancel_drain)

    async def moves(self, address: str, token: str) -> Sequence[BundleMove]:
        """See `Controls`."""

        def work() -> Sequence[BundleMove]:
            self._broker(address, token)
            return []

        return await self._ask(work)

    async def driver(self, address: str, token: str) -> Driver:
        """See `Controls`."""

        def work() -> Driver:
            self._broker(address, token)
            metadata = self._software.storage.metadata
            if metadata is None:
                raise ControlUnavailable("the metadata store is not there")
            return "control" if metadata.driver == "control" else "leader"

        return await self._ask(work)

    async def set_driver(self, address: str, token: str, driver: Driver) -> None:
        """See `Controls`."""
        began = pass_began.get()

        def work() -> None:
            self._broker(address, token)
            self._asked(self._pod(address, token), f"set_driver {driver}", began)
            metadata = self._software.storage.metadata
            if metadata is None:
                raise ControlUnavailable("the metadata store is not there")
            metadata.driver = driver

        await self._ask(work)

    async def load_snapshot(self, addresses: Sequence[str], token: str) -> LoadSnapshot:
        """See `Controls`."""

        def work() -> LoadSnapshot:
            brokers = [self._broker(address, token) for address in addresses]
            now_ms = int((ORIGIN_SECONDS + self._software.now()) * 1000)
            return LoadSnapshot(
                now_ms=now_ms,
                brokers={broker.broker_id: _load(broker) for broker in brokers},
                bundle_counts={"public/default": BUNDLES},
            )

        return await self._ask(work)

    async def transfer_bundle(self, address: str, token: str, bundle: str, destination_broker_id: str) -> None:
        """See `Controls`."""
        number = int(bundle.rpartition("/")[2].partition("_")[0], 16) * BUNDLES >> 32
        await self._tell_broker(
            address,
            token,
            f"transfer {bundle}",
            lambda broker: self._software.brokers.transfer(broker, number, destination_broker_id),
        )

    async def split_bundle(
        self, address: str, token: str, bundle: str, *, algorithm: str, boundaries: Sequence[int] = ()
    ) -> None:
        """See `Controls`."""
        await self._tell_broker(address, token, f"split {bundle}", lambda broker: None)

    async def read_only_broker(self, address: str) -> ReadOnlyBrokerFacts:
        """See `Controls`. No cluster here has any."""
        raise ControlUnavailable(f"no read-only broker answers at {address}")

    async def zookeeper(self, address: str) -> ZookeeperFacts:
        """See `Controls`."""

        def work() -> ZookeeperFacts:
            pod = self._kubelet.at(_host(address))
            if pod is None or not isinstance(pod.program, Zookeeper):
                raise ControlUnavailable(f"{address} does not answer")
            leader = self._software.leader
            if leader is None:
                raise ControlUnavailable("This ZooKeeper instance is not currently serving requests")
            if pod.program.ensemble == 1:
                return ZookeeperFacts(mode="standalone")
            return ZookeeperFacts(mode="leader" if pod.name == leader else "follower")

        return await self._ask(work)

    # --- whom it asks

    def _pod(self, address: str, token: str) -> Running:
        pod = self._kubelet.at(_host(address))
        if pod is None:
            raise ControlUnavailable(f"{address} does not answer")
        manifest = self._server.store.get("Pod", pod.namespace, pod.name)
        cluster = manifest["metadata"]["labels"][INSTANCE_LABEL] if manifest is not None else ""
        secret = self._server.store.get("Secret", pod.namespace, token_secret_name(cluster))
        if secret is None or base64.b64decode(secret["data"][TOKEN_KEY]).decode() != token:
            raise ControlRefused(RefusalReason.UNAUTHENTICATED, "the token is wrong")
        return pod

    def _bookie(self, address: str, token: str) -> Bookie:
        program = self._pod(address, token).program
        found = None
        if isinstance(program, BookieProgram):
            found = self._software.storage.running.get(program.bookie_id)
        if found is None:
            raise ControlUnavailable(f"no bookie answers at {address}")
        return found

    def _broker(self, address: str, token: str) -> Broker:
        program = self._pod(address, token).program
        if not isinstance(program, BrokerProgram) or program.broker is None:
            raise ControlUnavailable(f"no broker answers at {address}")
        return program.broker

    async def _tell(self, address: str, token: str, what: str, do: Callable[[str], None]) -> None:
        began = pass_began.get()

        def work() -> None:
            bookie = self._bookie(address, token)
            self._asked(self._pod(address, token), what, began)
            do(bookie.bookie_id)

        await self._ask(work, share=1.0)

    async def _tell_broker(self, address: str, token: str, what: str, do: Callable[[Broker], None]) -> None:
        began = pass_began.get()

        def work() -> None:
            broker = self._broker(address, token)
            self._asked(self._pod(address, token), what, began)
            do(broker)

        await self._ask(work, share=1.0)

    def _asked(self, pod: Running, what: str, began: float) -> None:
        manifest = self._server.store.get("Pod", pod.namespace, pod.name)
        cluster = manifest["metadata"]["labels"][INSTANCE_LABEL] if manifest is not None else ""
        self._server.promises.asked(self._name, pod.namespace, cluster, f"{what} at {pod.name}", began)

    async def _ask(
        self, work: Callable[[], T], patience_seconds: float = ASK_SECONDS_MAX, *, share: float = READS_SHARE
    ) -> T:
        calls = self._server.calls
        calls["pods"] = calls.get("pods", 0) + 1
        return await self._network.call(
            work, ControlUnavailable, self._kill, patience_seconds=patience_seconds, share=share
        )


def _host(address: str) -> str:
    return address.rpartition(":")[0]


def _load(broker: Broker) -> BrokerLoad:
    bundles = {}
    for number in broker.bundles:
        low, high = (number << 32) // BUNDLES, ((number + 1) << 32) // BUNDLES
        name = BundleName.parse(f"public/default/0x{low:08x}_0x{min(high, 0xFFFFFFFF):08x}")
        bundles[name] = BundleLoad(msg_rate_in=100.0, msg_throughput_in=100_000.0, topics=4)
    usages = ResourceUsages(cpu=float(min(100, 5 * len(broker.bundles))))
    return BrokerLoad(broker_id=broker.broker_id, usages=usages, bundles=bundles, draining=broker.drain != "None")
