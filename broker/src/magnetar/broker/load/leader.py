"""What the elected leader broker does: it looks at the whole cluster now and then, decides, and has it done."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final

from magnetar.balance.balancer import Balancer
from magnetar.balance.model import LoadSnapshot, Placement
from magnetar.balance.settings import BalanceSettings
from magnetar.broker.load.averages import BundleAverages, LoadAverages
from magnetar.broker.load.broker_report import BrokerReport
from magnetar.broker.load.cluster_policies import ClusterPolicies
from magnetar.broker.load.decisions import DecisionLog
from magnetar.broker.load.execution import BrokerCalls, Executor
from magnetar.broker.load.snapshot import FindOwner, take_snapshot
from magnetar.broker.settings.load import LEADER, LoadSettings, switched
from magnetar.core.bundle import BundleName
from magnetar.core.clock import Clock
from magnetar.core.errors import MagnetarError
from magnetar.metadata.store import MetadataStore, StoreClosed

logger: Final = logging.getLogger(__name__)

PREFERENCE_SECONDS_MIN: Final = 60.0
"""How long a moved bundle that nobody owns goes where it was meant to; longer where unloads may take longer."""

SNAPSHOT_SECONDS_MAX: Final = 5.0
"""Policies may change without a report that makes a new snapshot; they count after this at the latest."""


class Balancing:
    """Snapshots, placement and rounds of one broker. Placement works on any broker, as one without a leader has to
    place by itself; rounds run while this one leads."""

    def __init__(
        self,
        settings: LoadSettings,
        balance: BalanceSettings,
        policies: ClusterPolicies,
        store: MetadataStore,
        clock: Clock,
        peers: BrokerCalls,
        reports: Callable[[], Mapping[str, BrokerReport]],
        find_owner: FindOwner,
    ) -> None:
        self.log = DecisionLog()
        self.settings = settings
        """Under the cluster's dynamic settings, as of the last round."""
        self._configured = settings
        self._balance = balance
        self._policies = policies
        self._averages = LoadAverages(store)
        self._clock = clock
        self._reports = reports
        self._find_owner = find_owner
        self._executor = Executor(peers, self.log, clock, reports, self.prefer)
        self._balancer = Balancer(balance)
        self._preferences: dict[BundleName, tuple[str, float]] = {}
        """Broker id, and until when it counts. Bounded by time: there is one for each move."""
        self._snapshot: LoadSnapshot | None = None
        self._snapshot_taken_seconds = 0.0
        self._generation = 0
        self._rounds: asyncio.Task[None] | None = None

    def use_settings(self, settings: LoadSettings) -> None:
        """Other ones hold, for the next round at the latest."""
        self._configured = settings

    def use_balance(self, balance: BalanceSettings) -> None:
        """Use other settings of how bundles are placed, moved and split; placements follow them at once."""
        self._balance = balance
        self._balancer.settings = self._balance_in_force()

    def _balance_in_force(self) -> BalanceSettings:
        """Under the switches of the cluster."""
        settings, balance = self.settings, self._balance
        split = replace(balance.split, enabled=settings.auto_split, unload_parts=settings.unload_after_split)
        return replace(balance, shedding_enabled=settings.shedding_enabled, split=split)

    @property
    def outlook(self) -> list[str]:
        """What the last round saw, for people."""
        return list(self._balancer.outlook())

    def reports_changed(self) -> None:
        """The next snapshot is a new one."""
        self._generation += 1
        self._snapshot = None

    def prefer(self, bundle: BundleName, broker_id: str) -> None:
        """The coming placement of a bundle ends at this broker, if that is alive then."""
        now_seconds = self._clock.monotonic_seconds()
        self._preferences[bundle] = (
            broker_id,
            now_seconds + max(PREFERENCE_SECONDS_MIN, self._balance.unloading_timeout_ms / 1000),
        )
        for old in [one for one, (_, until) in self._preferences.items() if until < now_seconds]:
            del self._preferences[old]

    async def place(self, bundle: BundleName) -> Placement:
        """Where a bundle that nobody owns should go."""
        preferred = self._preferred(bundle)
        if preferred is not None:
            placement = Placement(bundle=bundle, broker_id=preferred, reason="it was moved there")
        else:
            snapshot = await self._with_namespace(await self.snapshot(), bundle)
            placement = self._balancer.place(bundle, snapshot)
        self.log.placed_bundle(placement, self._clock.now_ms())
        return placement

    async def snapshot(self) -> LoadSnapshot:
        """The cluster now: the same object until a report or, at the latest, some seconds change it."""
        now_seconds = self._clock.monotonic_seconds()
        if self._snapshot is not None and now_seconds - self._snapshot_taken_seconds < SNAPSHOT_SECONDS_MAX:
            return self._snapshot
        generation = self._generation
        taken = await take_snapshot(
            dict(self._reports()),
            self._policies,
            self._averages.bundles,
            int(now_seconds * 1000),
            failure_domains=self._configured.failure_domains,
            find_owner=self._find_owner,
        )
        if generation == self._generation:
            self._snapshot, self._snapshot_taken_seconds = taken, now_seconds
        return taken

    def _preferred(self, bundle: BundleName) -> str | None:
        broker_id, until_seconds = self._preferences.get(bundle, ("", 0.0))
        alive = self._reports().get(broker_id)
        if alive is None or alive.draining or until_seconds < self._clock.monotonic_seconds():
            self._preferences.pop(bundle, None)
            return None
        return broker_id

    async def _with_namespace(self, snapshot: LoadSnapshot, bundle: BundleName) -> LoadSnapshot:
        """The snapshot with what is known of a namespace that has no bundles yet, and so was not asked about."""
        name = str(bundle.namespace)
        if name in snapshot.bundle_counts:
            return snapshot
        facts = await self._policies.namespace(name)
        if facts.anti_affinity_group is None:
            # The same snapshot, as the balancer keeps what it summed up for it. Its dictionary was made here.
            assert isinstance(snapshot.bundle_counts, dict)
            snapshot.bundle_counts[name] = facts.bundle_count
            return snapshot
        extended = replace(
            snapshot,
            bundle_counts={**snapshot.bundle_counts, name: facts.bundle_count},
            anti_affinity_groups={**snapshot.anti_affinity_groups, name: facts.anti_affinity_group},
        )
        if self._snapshot is snapshot:
            self._snapshot = extended
        return extended

    # --- rounds

    def lead(self) -> None:
        """Begin with the rounds."""
        if self._rounds is None:
            # A leader before may have moved what this one remembers otherwise.
            self._balancer = Balancer(self._balance)
            self._rounds = asyncio.get_running_loop().create_task(self._run(), name="load-rounds")

    async def follow(self) -> None:
        """No more rounds."""
        rounds, self._rounds = self._rounds, None
        if rounds is not None:
            rounds.cancel()
            await asyncio.wait([rounds])

    async def _run(self) -> None:
        stored_seconds = self._clock.monotonic_seconds()
        while True:
            await asyncio.sleep(self._configured.round_seconds)
            try:
                await self.round()
                if self._clock.monotonic_seconds() - stored_seconds >= self._configured.averages_seconds:
                    stored_seconds = self._clock.monotonic_seconds()
                    await self.store_averages()
            except StoreClosed:
                return
            except MagnetarError as error:
                logger.warning("a round of load management failed, the next one tries again: %s", error)
            except Exception:
                logger.exception("a round of load management failed, the next one tries again")

    async def round(self) -> None:
        """One round: decide, and have it done."""
        settings = self.settings = switched(self._configured, await self._policies.dynamic_settings())
        reports = dict(self._reports())
        await self._averages.sample(reports)
        if not settings.enabled or settings.driver != LEADER or len(reports) < 2:
            return
        self._balancer.settings = self._balance_in_force()
        decisions = self._balancer.decide(await self.snapshot())
        if decisions:
            await self._executor.carry_out(decisions, self._balancer.failed, unload_parts=settings.unload_after_split)

    async def store_averages(self) -> None:
        """Write averages for whoever leads next. `StoreUnavailable`."""
        await self._averages.store_all(dict(self._reports()), self._configured.averaged_bundles_per_broker_max)

    @property
    def averages(self) -> Mapping[str, BundleAverages]:
        """The averages of bundles, by bundle."""
        return self._averages.bundles
