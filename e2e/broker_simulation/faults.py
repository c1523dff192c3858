"""What goes wrong with brokers and clients, on top of what goes wrong with storage and the network."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Final, cast

from magnetar.broker.app import RunningBroker
from magnetar.broker.bundles.moves import BundleMoves
from magnetar.core.bundle import BundleName
from magnetar.core.errors import MagnetarError

from e2e.broker_simulation.brokers import SimulatedBroker
from e2e.broker_simulation.cluster import Cluster
from e2e.broker_simulation.drawn.read_only import HARMLESS_FAULTS
from e2e.broker_simulation.history import History
from e2e.broker_simulation.proxies import SimulatedProxy
from e2e.broker_simulation.read_only.faults import ReadOnlyFaults
from e2e.simulation.cluster import Cluster as StorageCluster
from e2e.simulation.history import History as StorageHistory
from e2e.simulation.metadata import METADATA_HOST

NAMESPACE: Final = "public/default"
COORDINATORS_NAMESPACE: Final = "pulsar/system"
ARMED_SHARE: Final = 0.5
STEPS_SHARE: Final = 0.7
"""Of the faults that wait, those that wait for a step of a transaction, where there are any."""
STEP_SECONDS: Final = 0.02
"""About what it takes until a transaction's end is there: logged, told to all, and logged again."""
COMPACTIONS_SHARE: Final = 0.6
"""Of the faults that wait, those that wait for a compaction, where there are any."""
COMPACTION_SECONDS: Final = 0.15
"""About what a compaction takes."""
ON_ITS_WAY_SECONDS: Final = 0.003
"""About what a message takes until its receipt is there."""


class Faults(ReadOnlyFaults):
    """Makes faults happen, and undoes them at the end."""

    def __init__(self, cluster: Cluster, history: History) -> None:
        super().__init__(cast(StorageCluster, cluster), StorageHistory(staleness_seconds=0.0))
        self._brokers = cluster.brokers
        self._all = cluster
        self._history = history
        self.reading = cluster.reading
        self.writing_hosts = cluster.broker_names
        self._armed: list[str] = []
        """Faults that wait for a client to do something."""
        self._armed_for_transactions: list[str] = []
        """Those that wait for a step of a transaction."""
        self._armed_for_compactions: list[str] = []
        """Those that wait until somebody asks for a compaction."""
        self._transactions = cluster.parameters.transactions is not None
        self._compaction = cluster.parameters.compaction is not None
        history.on_moment = lambda: self._moment(self._armed, ON_ITS_WAY_SECONDS)
        history.on_compaction = lambda: self._moment(self._armed_for_compactions, COMPACTION_SECONDS)
        history.on_transaction_step = lambda: self._moment(self._armed_for_transactions, STEP_SECONDS)

    async def run(self) -> None:
        """All faults of the schedule; returns when the time for them is over. Half of them wait until a client has
        just sent something: then it is on its way, or its answer is."""
        parameters, chance, loop = self._parameters, self._chance, self._world.loop
        begin = loop.time()
        for moment in sorted(chance.uniform(0, parameters.active_seconds) for _ in range(parameters.faults)):
            await asyncio.sleep(max(0.0, begin + moment - loop.time()))
            kind = chance.choice(parameters.fault_kinds)
            if chance.random() < ARMED_SHARE:
                self._arm(kind)
            else:
                self._make(kind)
        await asyncio.sleep(max(0.0, begin + parameters.active_seconds - loop.time()))

    def _arm(self, kind: str) -> None:
        chance, armed = self._chance, self._armed
        if self._transactions and chance.random() < STEPS_SHARE:
            armed = self._armed_for_transactions
        if self._compaction and chance.random() < COMPACTIONS_SHARE:
            armed = self._armed_for_compactions
        armed.append(kind)

    def _moment(self, armed: list[str], seconds_max: float) -> None:
        """A client has sent something, or is about to."""
        if armed and self._running:
            kind = armed.pop(0)
            # On behalf of the scenario, not of the client.
            context = self._world.service.context.copy()
            self._world.loop.call_later(self._chance.uniform(0.0, seconds_max), self._make, kind, context=context)

    def _make(self, kind: str) -> None:
        if self._running:
            self._world.loop.trace.note("fault", kind)
            if kind not in HARMLESS_FAULTS:
                self._history.harmed(self._world.loop.time())
            getattr(self, kind)()

    def heal(self) -> None:
        """From here on nothing goes wrong; brokers that are down come back."""
        super().heal()
        for broker in self._brokers:
            broker.start()
        for proxy in self._all.proxies:
            proxy.start()
        for reading in self._all.reading:
            reading.start()
        for client in self._all.clients:
            client.start()

    # --- brokers

    def kill_broker(self) -> None:
        """SIGKILL."""
        broker = self._some_broker()
        broker.kill()
        self._broker_later(broker)

    def broker_power_loss(self) -> None:
        """Its host goes off, and nobody is told."""
        broker = self._some_broker()
        broker.lose_power()
        self._broker_later(broker)

    def restart_broker(self) -> None:
        """An orderly stop, and a start after it."""
        self._some_broker().stop()

    def pause_broker(self) -> None:
        """A broker stands still for a while, maybe for longer than its session lasts, and notices nothing of it."""
        self._pause(self._some_broker().node)

    def expire_broker_session(self) -> None:
        """The metadata service ends its session; it hears of that a while later."""
        self._some_broker().lose_session()

    def usurp_broker(self) -> None:
        """The session of an owner ends, and before it hears of that some client looks for another one."""
        owners = [broker for broker in self._brokers if broker.serving and self._bundles(broker)]
        if owners:
            self._chance.choice(owners).lose_session()
            self.reset_client()

    def split_broker_from_metadata(self) -> None:
        """A broker and the metadata service do not hear each other, but everybody else does."""
        name = self._some_broker().node.name
        self._later(2 * self._duration(), self._world.network.partition([name], [METADATA_HOST]))

    def unload_bundle(self) -> None:
        """Somebody unloads a bundle."""
        self._on_some_bundle(lambda moves, bundle: moves.unload(bundle))

    def transfer_bundle(self) -> None:
        """Somebody hands a bundle to another broker."""
        brokers = self._chance.sample(self._brokers, len(self._brokers))

        def transfer(moves: BundleMoves, bundle: BundleName) -> Coroutine[Any, Any, object]:
            others = [each.broker_id for each in brokers if not _owns(each, bundle)]
            return moves.unload(bundle, destination=others[0] if others else None)

        self._on_some_bundle(transfer)

    def split_bundle(self) -> None:
        """Somebody splits a bundle."""
        unload = self._chance.random() < 0.5
        self._on_some_bundle(lambda moves, bundle: moves.split(bundle, "range_equally_divide", unload=unload))

    # --- proxies

    def kill_proxy(self) -> None:
        """SIGKILL."""
        proxy = self._some_proxy()
        proxy.kill()
        self._later(self._duration(), proxy.start)

    def restart_proxy(self) -> None:
        """An orderly stop, and a start after it."""
        self._some_proxy().stop()

    def pause_proxy(self) -> None:
        """A proxy stands still for a while."""
        self._pause(self._some_proxy().node)

    def cut_off_proxy(self) -> None:
        """All connections of a proxy with brokers break, or it hears nothing of them for a while."""
        name = self._some_proxy().node.name
        if self._chance.random() < 0.5:
            for broker in self._all.broker_names:
                self._world.network.reset(name, broker)
        else:
            self._later(self._duration(), self._world.network.partition([name], self._all.broker_names))

    # --- clients

    def cut_off_client(self) -> None:
        """All connections of a client break, or it hears nothing for a while."""
        alive = [client for client in self._all.clients if client.node.running]
        if self._chance.random() < 0.5:
            self.reset_client()
        elif alive:
            name = self._chance.choice(alive).node.name
            self._later(self._duration(), self._world.network.partition([name], self._entrances()))

    def reset_client(self) -> None:
        """All connections of a client break."""
        alive = [client for client in self._all.clients if client.node.running]
        if alive:
            name = self._chance.choice(alive).node.name
            for entrance in self._entrances():
                self._world.network.reset(name, entrance)

    def restart_client(self) -> None:
        """SIGKILL, and a start after it: it remembers nothing but what it has written down."""
        alive = [client for client in self._all.clients if client.node.running and not client.done.is_set()]
        if alive:
            client = self._chance.choice(alive)
            client.node.kill()
            self._later(self._duration(), client.start)

    # --- help

    def _entrances(self) -> list[str]:
        return [*self._all.broker_names, *self._all.proxy_names, *self._all.reading_names]

    def _some_proxy(self) -> SimulatedProxy:
        return self._chance.choice(self._all.proxies)

    def _some_broker(self) -> SimulatedBroker:
        return self._chance.choice(self._brokers)

    def _broker_later(self, broker: SimulatedBroker) -> None:
        self._later(self._chance.choice((0.02, 0.2, 1.0, 3.0)) * (0.5 + self._chance.random()), broker.start)

    def _on_some_bundle(self, act: Callable[[BundleMoves, BundleName], Coroutine[Any, Any, object]]) -> None:
        owned: list[tuple[SimulatedBroker, RunningBroker, BundleName]] = [
            (broker, broker.running, bundle)
            for broker in self._brokers
            if broker.serving and broker.running is not None
            for bundle in self._bundles(broker)
        ]
        if owned:
            broker, running, bundle = self._chance.choice(owned)
            broker.node.run(self._attempt(act(running.context.moves, bundle)), "move")

    def _bundles(self, broker: SimulatedBroker) -> list[BundleName]:
        if broker.running is None:
            return []
        namespaces = (NAMESPACE, COORDINATORS_NAMESPACE) if self._transactions else (NAMESPACE,)
        return [bundle for bundle in broker.running.context.ownership.owned() if str(bundle.namespace) in namespaces]

    async def _attempt(self, move: Coroutine[Any, Any, object]) -> None:
        try:
            await move
        except MagnetarError as error:
            self._world.loop.trace.note("fault", f"the move fails: {type(error).__name__}")
            self._world.loop.trace.remark("fault", str(error))


def _owns(broker: SimulatedBroker, bundle: BundleName) -> bool:
    return broker.running is not None and bundle in broker.running.context.ownership.owned()
