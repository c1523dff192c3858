"""What an operator can see and do on one broker, whichever way it is asked."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

from magnetar.broker.bundles.owned_bundles import OwnedBundle
from magnetar.broker.load.drain import BrokerDrainProgress, Drains
from magnetar.broker.load.registration import draining_brokers
from magnetar.broker.settings.load import DRIVER_SETTING, DRIVERS, switched
from magnetar.core.bundle import BundleName
from magnetar.core.errors import MagnetarError, PeerError
from magnetar.metadata.store import NodeNotFound, VersionConflict

if TYPE_CHECKING:
    from magnetar.broker.bundles.statistics import BundleStats
    from magnetar.broker.load.broker_report import BrokerReport
    from magnetar.broker.load.manager import ModularLoadManager
    from magnetar.broker.policies.ensembles import Ensemble
    from magnetar.broker.resources import Documents

DYNAMIC_PATH: Final = "/admin/configuration"


class NotOwned(PeerError):
    """This broker does not own the bundle."""


class UnknownBroker(PeerError):
    """No broker of this id is alive."""


class BundleCommands(Protocol):
    """What is asked of bundle moves."""

    async def unload(self, bundle: BundleName, *, destination: str | None = None) -> object: ...
    async def split(
        self, bundle: BundleName, algorithm: str, *, boundaries: list[int] | None = None, unload: bool = False
    ) -> object: ...


@dataclass(frozen=True, slots=True)
class BundleRow:
    """One owned bundle."""

    name: str
    state: str
    stats: BundleStats


class BrokerOperations:
    """What can be seen and done of one broker: its load, its bundles, its drain."""

    def __init__(
        self,
        load: ModularLoadManager,
        owned: Callable[[], Mapping[BundleName, OwnedBundle]],
        moves: BundleCommands,
        drains: Drains,
        documents: Documents,
        largest_ensemble: Callable[[], Awaitable[Ensemble]],
    ) -> None:
        """`documents` are those of the local store, where the cluster's dynamic settings are."""
        self.load = load
        self._owned = owned
        self._moves = moves
        self._drains = drains
        self._documents = documents
        self._largest_ensemble = largest_ensemble

    @property
    def broker_id(self) -> str:
        """Whose operations these are."""
        return self.load.parts.addresses.broker_id

    async def report(self) -> BrokerReport:
        """This broker's load report, measured now."""
        return await self.load.report(at_once=True)

    async def bundles(self) -> list[BundleRow]:
        """What is owned, by name."""
        sums = await self.load.statistics.collect(at_once=True)
        rows = [
            BundleRow(str(bundle), owned.state.name, sums[str(bundle)])
            for bundle, owned in self._owned().items()
            if str(bundle) in sums
        ]
        return sorted(rows, key=lambda row: row.name)

    async def split(self, bundle: BundleName, algorithm: str, boundaries: Sequence[int], *, unload: bool) -> None:
        """Cut a bundle. `NotOwned`; what the move raises."""
        self._require_owned(bundle)
        chosen = list(boundaries) or None
        await self._moves.split(
            bundle, algorithm or self.load.balance_settings.split.algorithm, boundaries=chosen, unload=unload
        )

    async def unload(self, bundle: BundleName) -> None:
        """Let a bundle go. `NotOwned`; what the move raises."""
        self._require_owned(bundle)
        await self._moves.unload(bundle)

    async def transfer(self, bundle: BundleName, destination: str) -> None:
        """Hand a bundle over. `NotOwned`, `UnknownBroker`; what the move raises."""
        self._require_owned(bundle)
        if destination not in self.load.brokers():
            raise UnknownBroker(f"no broker {destination} is alive: {', '.join(sorted(self.load.brokers()))} are")
        if destination != self.broker_id:
            await self._moves.unload(bundle, destination=destination)

    async def brokers(self) -> list[BrokerReport]:
        """The last reports of all brokers that are alive or drain, by id. `StoreUnavailable`."""
        draining = await draining_brokers(self.load.parts.store)
        reports = {**draining, **self.load.directory.reports}
        return [reports[broker_id] for broker_id in sorted(reports)]

    def drain_state(self) -> BrokerDrainProgress:
        """How far the drain is."""
        return self._drains.state()

    async def drain(self) -> BrokerDrainProgress:
        """Begin, or go on. `DrainRefused`."""
        return await self._drains.start(own_id=self.broker_id)

    async def cancel_drain(self) -> BrokerDrainProgress:
        """Keep what is left."""
        return await self._drains.cancel()

    async def largest_ensemble(self) -> Ensemble:
        """How many bookies must take writes, and who wants so many. `StoreUnavailable`, `PeerError`."""
        return await self._largest_ensemble()

    async def hand_over(self) -> None:
        """Give all bundles to other brokers, as far as that goes at the first attempt: the broker stops."""
        await self._drains.hand_over()

    async def close(self) -> None:
        """Drain no more: the broker stops."""
        await self._drains.close()

    def decisions(self) -> dict[str, Any]:
        """What was decided here, as JSON has it (`GET /admin/v2/brokers/load-decisions`)."""
        leader = self.load.leader()
        document: dict[str, Any] = {
            "broker": self.broker_id,
            "leader": leader.broker_id if leader is not None else None,
            "driver": self.load.driver,
            "decisions": [],
            "placements": [],
            "outlook": [],
        }
        if self.load.several:
            balancing = self.load.balancing
            document["decisions"] = [entry.document() for entry in balancing.log.decisions]
            document["placements"] = [entry.document() for entry in balancing.log.placements]
            document["outlook"] = balancing.outlook
        return document

    async def driver(self) -> str:
        """Who drives load management in this cluster."""
        dynamic = await self._documents.get(DYNAMIC_PATH) or {}
        return switched(self.load.settings, dynamic).driver

    async def set_driver(self, driver: str) -> None:
        """Change that for the whole cluster, from the leader's next round on. `PeerError` for an unknown one."""
        if driver not in DRIVERS:
            raise PeerError(f"the driver is one of {', '.join(DRIVERS)}, not {driver!r}")
        for _ in range(2):
            try:
                await self._documents.update(DYNAMIC_PATH, lambda before: {**before, DRIVER_SETTING: driver})
                return
            except NodeNotFound:
                try:
                    await self._documents.create(DYNAMIC_PATH, {DRIVER_SETTING: driver})
                    return
                except VersionConflict:
                    continue  # Made by another just now: change that one.
        raise MagnetarError(f"{DYNAMIC_PATH} comes and goes")

    def _require_owned(self, bundle: BundleName) -> None:
        if bundle not in self._owned():
            raise NotOwned(f"{self.broker_id} does not own {bundle}: ask the broker that does")
