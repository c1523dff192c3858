"""Load management of one broker, by the rules of Pulsar's `ModularLoadManagerImpl`, so that Apache's brokers and ours
share one cluster: this broker's registration and report, the election, and placement."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from magnetar.broker.bundles.statistics import Bundle, BundleStatistics, bundle_metrics
from magnetar.broker.load.broker_directory import BrokerDirectory
from magnetar.broker.load.broker_report import LOAD_MANAGER_CLASS, BrokerReport
from magnetar.broker.load.host_usage import HostUsage, HostUsageMeter
from magnetar.broker.load.registration import DRAINING_PATH, Registration, draining_brokers
from magnetar.broker.load.reporter import Reporter, report_due
from magnetar.broker.peers.addresses import BrokerAddresses
from magnetar.broker.settings.load import LoadSettings
from magnetar.broker.states import MEMBERSHIP_TRANSITIONS, MembershipState
from magnetar.core.bundle import BundleName
from magnetar.core.clock import Clock
from magnetar.core.errors import MagnetarError, SettingError
from magnetar.metadata.coordination import LeaderElection, LeaderState
from magnetar.metadata.store import MetadataStore, StoreUnavailable

if TYPE_CHECKING:
    from magnetar.balance.settings import BalanceSettings
    from magnetar.broker.load.cluster_policies import ClusterPolicies
    from magnetar.broker.load.execution import BrokerCalls
    from magnetar.broker.load.history_writer import LoadHistoryWriter
    from magnetar.broker.load.leader import Balancing
    from magnetar.client.client import PulsarClient

logger: Final = logging.getLogger(__name__)

LEADER_PATH: Final = "/loadbalance/leader"

OWNERS_PATH: Final = "/namespace"
"""Where the nodes of bundles' owners stand, for error texts."""

MEASURE_SECONDS: Final = 15.0
"""How old what is told of CPU and network may be: so often the operator asks while it scales. Ten small reads."""
ALONE_SECONDS: Final = 60.0
"""How often the report of a broker that is alone is looked at: nobody decides by it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadParts:
    """What load management of a broker stands on."""

    settings: LoadSettings
    addresses: BrokerAddresses
    cluster: str
    version: str
    """The version of Pulsar that load reports name."""
    store: MetadataStore
    configuration_store: MetadataStore
    clock: Clock
    peers: BrokerCalls
    owned: Callable[[], Mapping[BundleName, Bundle]]
    """What this broker serves, with its topics that are loaded."""
    find_owner: Callable[[BundleName], Awaitable[str | None]]
    """The id of the broker that owns a bundle."""
    host_root: Path = Path("/")
    """Where the system's own files are that tell how full the host is."""
    client: Callable[[], PulsarClient] | None = None
    """This broker's own client, for the load history; None: there is no history."""
    balance: BalanceSettings | None = None
    """None: the defaults, read when there are several brokers, as nobody else needs them."""


class ModularLoadManager:
    """A `LoadManager`. `start` comes last when a broker starts, `unregister` first when it stops."""

    def __init__(self, parts: LoadParts) -> None:
        self.parts = parts
        self.settings = parts.settings
        self._balance = parts.balance
        self.directory = BrokerDirectory(parts.store, self._brokers_changed, parts.clock)
        self.statistics = BundleStatistics(parts.owned, parts.clock)
        self._meter = HostUsageMeter(
            parts.clock,
            nic_speed_gbps=parts.settings.nic_speed_gbps,
            root=parts.host_root,
            window_seconds=parts.settings.host_usage_seconds,
        )
        self._host = HostUsage()
        self._measured_seconds = float("-inf")
        self._reporter = Reporter(parts.addresses, parts.version, parts.clock.now_ms())
        self._registration = Registration(parts.store, self._registration_changed)
        self._leaving = Registration(parts.store, self._leaving_changed, folder=DRAINING_PATH)
        self._on_registered: list[Callable[[bool], None]] = []
        self._election = self._new_election()
        self._policies: ClusterPolicies | None = None
        self._balancing: Balancing | None = None
        self._history: LoadHistoryWriter | None = None
        self._warned_of: set[str] = set()
        self._membership = MembershipState.JOINING
        self.several = False
        """Whether there is any other broker; before that there is nothing to decide."""
        self._report_wanted = asyncio.Event()
        self._reports: asyncio.Task[None] | None = None
        self._turning: asyncio.Task[None] | None = None

    # --- what lookups and the admin API ask

    @property
    def leading(self) -> bool:
        """Whether this broker is the leader."""
        return self._election.state is LeaderState.LEADING

    @property
    def taking_part(self) -> bool:
        """Whether bundles may come as far as this broker is concerned: from `register` to `unregister`."""
        return self._membership is MembershipState.TAKING_PART

    @property
    def registered(self) -> bool:
        """Whether this broker counts as alive: then bundles may come."""
        return self._registration.registered

    def leader(self) -> BrokerAddresses | None:
        """The leader, as far as known and alive."""
        return self._named(self._election.leader)

    async def leader_now(self) -> BrokerAddresses | None:
        """The leader, also to a broker that takes no part in the election. `StoreUnavailable`."""
        return self.leader()

    def _named(self, leader: bytes | None) -> BrokerAddresses | None:
        """Whom the node of the election names, if that broker is alive."""
        if leader is None:
            return None
        try:
            broker_id = json.loads(leader).get("brokerId")
        except (ValueError, AttributeError):
            return None
        return self.brokers().get(broker_id)

    def brokers(self) -> Mapping[str, BrokerAddresses]:
        """The brokers that are alive, by id; this one among them once it is registered."""
        return {broker_id: report.addresses for broker_id, report in self.directory.reports.items()}

    @property
    def lag_seconds(self) -> float | None:
        """How far a broker that only reads is behind, at its worst topic; None: this one writes."""
        return None

    def owner_to_ask(self) -> BrokerAddresses | None:
        """Whom this broker asks about what it does not own, and for the topics of brokers. None: itself."""
        return None

    async def readers_now(self) -> dict[str, BrokerReport]:
        """The brokers that only read, with their last reports, by id; those that write do not look for them.
        `StoreUnavailable`."""
        return {}

    async def brokers_now(self) -> list[BrokerAddresses]:
        """Those that are alive or drain, read at once. `StoreUnavailable`."""
        await self.directory.refresh()
        draining = await draining_brokers(self.parts.store)
        return [report.addresses for report in (*self.directory.reports.values(), *draining.values())]

    async def place(self, bundle: BundleName) -> BrokerAddresses | None:
        """The broker that should own a bundle which nobody owns; None when none may take it."""
        reports = self.directory.reports
        if len(reports) == 1 and self.registered and not await self.policies.isolation_policies():
            return self.parts.addresses
        placement = await self.balancing.place(bundle)
        report = self.directory.reports.get(placement.broker_id or "")
        return None if report is None else report.addresses

    def set_affinity(self, bundle: BundleName, broker_id: str) -> None:
        """The coming placement of a bundle ends at this broker, if that is alive then. For the leader only: it is what
        `unload` with a destination asks of it."""
        self.balancing.prefer(bundle, broker_id)

    def transfers(self, broker_id: str) -> bool:
        """Whether a broker hands a bundle to another by itself when told where it is to go.

        Apache's send who asks for that to the leader, who is to remember it (`set_affinity`) and then have the owner
        just let the bundle go."""
        report = self.directory.reports.get(broker_id)
        return report is not None and report.ours

    @property
    def driver(self) -> str:
        """Who drives load management, as of the last round seen here."""
        return self.settings.driver if self._balancing is None else self._balancing.settings.driver

    async def load_report(self) -> dict[str, Any]:
        """This broker's report as of now, as its node would have it (`GET /admin/v2/broker-stats/load-report`)."""
        return (await self.report(at_once=True)).document()

    async def report(self, *, at_once: bool = False) -> BrokerReport:
        """What this broker does now; `at_once` sums its topics up however long ago that was done."""
        stats = await self.statistics.collect(at_once=at_once)
        draining = self._membership is MembershipState.LEAVING
        return self._reporter.report(self.host_usage(), stats, self.parts.clock.now_ms(), draining=draining)

    def load_balancing_metrics(self) -> list[dict[str, Any]]:
        """What `GET /admin/v2/broker-stats/metrics` tells of load balancing: Pulsar's names and groups."""
        host = self.host_usage()
        advertised = self.parts.addresses.broker_id.rpartition(":")[0]
        usages = {
            "brk_lb_cpu_usage": host.cpu.percent,
            "brk_lb_memory_usage": host.memory.percent,
            "brk_lb_directMemory_usage": host.direct_memory.percent,
            "brk_lb_bandwidth_in_usage": host.bandwidth_in.percent,
            "brk_lb_bandwidth_out_usage": host.bandwidth_out.percent,
        }
        groups: list[dict[str, Any]] = [
            {"dimensions": {"broker": advertised, "metric": "loadBalancing"}, "metrics": usages}
        ]
        # A dashboard wants a zero where nothing was decided yet.
        log = self._balancing.log if self._balancing is not None else None
        unloads = {
            "brk_lb_unload_broker_total": log.unloading_brokers if log else 0,
            "brk_lb_unload_bundle_total": log.unloads if log else 0,
        }
        splits = {"brk_lb_bundles_split_total": log.splits if log else 0}
        groups.append({"dimensions": {"metric": "bundleUnloading"}, "metrics": unloads})
        groups.append({"dimensions": {"metric": "bundlesSplit"}, "metrics": splits})
        if self.settings.bundle_metrics:
            groups += bundle_metrics(advertised, self.statistics.last())
        return groups

    def host_usage(self) -> HostUsage:
        """The last measurement; a new one when that is too old. Averages are over `host_usage_seconds` all the same:
        what starting a broker costs says nothing about its load."""
        now_seconds = self.parts.clock.monotonic_seconds()
        age_seconds = now_seconds - self._measured_seconds
        if age_seconds >= min(MEASURE_SECONDS, self.settings.host_usage_seconds):
            self._host, self._measured_seconds = self._meter.measure(), now_seconds
        return self._host

    @property
    def policies(self) -> ClusterPolicies:
        """What the metadata says about where bundles may be."""
        if self._policies is None:
            from magnetar.broker.load.cluster_policies import ClusterPolicies

            self._policies = ClusterPolicies(self.parts.store, self.parts.configuration_store, self.parts.cluster)
        return self._policies

    @property
    def balance_settings(self) -> BalanceSettings:
        """How bundles are placed, split and moved."""
        if self._balance is None:
            from magnetar.balance.settings import BalanceSettings

            self._balance = BalanceSettings()
        return self._balance

    def use_settings(self, settings: LoadSettings) -> None:
        """Go on with other settings, of which only those differ that may change while a broker runs."""
        self.settings = settings
        self._meter.average_over(settings.host_usage_seconds)
        if self._balancing is not None:
            self._balancing.use_settings(settings)

    def use_balance(self, settings: BalanceSettings) -> None:
        """Use other settings of how bundles are placed, split and moved."""
        self._balance = settings
        if self._balancing is not None:
            self._balancing.use_balance(settings)

    @property
    def balancing(self) -> Balancing:
        """Rounds and placement; made when there are several brokers."""
        if self._balancing is None:
            from magnetar.broker.load.leader import Balancing

            parts = self.parts
            self._balancing = Balancing(
                self.settings,
                self.balance_settings,
                self.policies,
                parts.store,
                parts.clock,
                parts.peers,
                lambda: self.directory.reports,
                parts.find_owner,
            )
        return self._balancing

    @property
    def history(self) -> LoadHistoryWriter | None:
        """What writes the load history while this broker leads; None where that is switched off."""
        parts = self.parts
        if self._history is None and parts.client is not None and self.settings.history_enabled:
            from magnetar.broker.load.history_writer import LoadHistoryWriter

            interval_seconds = self.settings.history_interval_seconds
            self._history = LoadHistoryWriter(
                parts.cluster, interval_seconds, parts.clock, parts.client, lambda: self.directory.reports
            )
        return self._history

    # --- life

    async def start(self) -> None:
        """Register, and take part in the election. `StoreUnavailable`, `LockTaken` (another broker has our name),
        `SettingError` beside brokers that do not go by owners' nodes."""
        self.host_usage()
        await self.directory.start()
        self._require_owners_nodes()
        await self.register()
        await self.directory.refresh()
        self._reports = asyncio.get_running_loop().create_task(self._report_on(), name="load-reports")

    async def register(self) -> None:
        """Be alive for others, and ready to lead."""
        self._become(MembershipState.JOINING)
        report = await self.report(at_once=True)
        await self._registration.register(report)
        await self._leaving.unregister()
        self._become(MembershipState.TAKING_PART)
        self._wrote(report)
        self._election = self._new_election()
        await self._election.start()

    async def unregister(self) -> None:
        """Get no more bundles and lead no more; what this broker owns it still serves. Safe in any state."""
        self._become(MembershipState.LEAVING)
        await self._registration.unregister()
        await self._election.close()
        await self._turned()

    async def leave(self) -> None:
        """Get no more bundles and lead no more, for a drain or a stop: this broker is then among those that drain,
        until it registers or ends. Leaving twice is no error."""
        await self.unregister()
        if self._leaving.registered:
            return
        report = await self.report(at_once=True)
        try:
            await self._leaving.register(report)
        except MagnetarError as error:
            logger.warning("the drain goes on, though it is not shown to others: %s", error)
            return
        self._wrote(report)

    async def close(self) -> None:
        """Stop; unregisters if that was not done."""
        reports, self._reports = self._reports, None
        if reports is not None:
            reports.cancel()
            await asyncio.wait([reports])
        await self.unregister()
        await self._leaving.unregister()
        await self.directory.close()
        if self._balancing is not None:
            await self._balancing.follow()
        if self._history is not None:
            await self._history.end()
        if self._policies is not None:
            self._policies.close()

    def watch_registration(self, listener: Callable[[bool], None]) -> None:
        """Be told whether this broker counts as alive, after each change."""
        self._on_registered.append(listener)

    # --- reports

    def renew_report(self) -> None:
        """Look at once whether the report is to be renewed."""
        self._report_wanted.set()

    async def _report_on(self) -> None:
        while True:
            try:
                async with asyncio.timeout(self._pause_seconds):
                    await self._report_wanted.wait()
            except TimeoutError:
                pass
            self._report_wanted.clear()
            try:
                await self._renew_if_due()
            except StoreUnavailable as error:
                logger.info("the load report is not renewed now: %s", error)
            except Exception:
                logger.exception("the load report is not renewed now")

    @property
    def _pause_seconds(self) -> float:
        """Between two looks at whether the report is to be renewed."""
        return self.settings.report_interval_ms_min / 1000 if self.several else ALONE_SECONDS

    async def _renew_if_due(self) -> None:
        leaving = self._membership is MembershipState.LEAVING
        node = self._leaving if leaving else self._registration
        if not node.registered:
            return
        report = await self.report(at_once=leaving)
        # Of one that drains, people want to know at once that nothing is left.
        emptied = leaving and report.bundles != self._reporter.written.bundles
        age_seconds = self.parts.clock.monotonic_seconds() - self._reporter.written_seconds
        if emptied or report_due(self._reporter.written, report, self.settings, age_seconds):
            await node.update(report)
            self._wrote(report)

    def _wrote(self, report: BrokerReport) -> None:
        self._reporter.wrote(report, self.parts.clock.monotonic_seconds())

    def _become(self, state: MembershipState) -> None:
        self._membership = MEMBERSHIP_TRANSITIONS.step(self._membership, state)

    # --- what changes

    def _require_owners_nodes(self) -> None:
        """Two brokers would own a bundle, each by its own way of telling."""
        other = next((report for report in self.directory.reports.values() if report.owns_by_channel), None)
        if other is not None:
            raise SettingError(
                f"{other.broker_id} of this cluster runs {other.load_manager_class}, which does not keep owners of "
                f"bundles in {OWNERS_PATH}: brokers of both kinds would serve the same topics. Run all of Apache's "
                f"brokers with loadManagerClassName={LOAD_MANAGER_CLASS}, then start this one"
            )

    def _warn_of_other_owners(self) -> None:
        others = {one.broker_id for one in self.directory.reports.values() if one.owns_by_channel}
        for broker_id in sorted(others - self._warned_of):
            name = self.directory.reports[broker_id].load_manager_class
            logger.error(
                "%s runs %s, which does not see who owns bundles here: stop it, both may serve a topic", broker_id, name
            )
        self._warned_of = others

    def _brokers_changed(self) -> None:
        if self.taking_part:
            self._warn_of_other_owners()
        if self._balancing is not None:
            self._balancing.reports_changed()
        own_id = self.parts.addresses.broker_id
        several = any(broker_id != own_id for broker_id in self.directory.reports)
        if several != self.several:
            self.several = several
            self._turn_soon()
            # Somebody looks at it from now on.
            self.renew_report()

    def _registration_changed(self, registered: bool) -> None:
        logger.info("%s is %s", self.parts.addresses.broker_id, "registered" if registered else "not registered")
        for listener in self._on_registered:
            listener(registered)

    def _leaving_changed(self, shown: bool) -> None:
        logger.info("%s is %s", self.parts.addresses.broker_id, "shown as draining" if shown else "not draining")

    def _new_election(self) -> LeaderElection:
        addresses = self.parts.addresses
        web_url = addresses.web_service_url or addresses.web_service_url_tls
        value = json.dumps({"brokerId": addresses.broker_id, "serviceUrl": web_url}, separators=(",", ":"))
        return LeaderElection(self.parts.store, LEADER_PATH, value.encode(), self._leadership_changed)

    def _leadership_changed(self, state: LeaderState) -> None:
        logger.info("%s: %s", self.parts.addresses.broker_id, state.name.lower())
        self._turn_soon()

    def _turn_soon(self) -> None:
        before = self._turning
        self._turning = asyncio.get_running_loop().create_task(self._turn(before), name="leadership")

    async def _turn(self, before: asyncio.Task[None] | None) -> None:
        """Begin or end the rounds, after an earlier turn is done."""
        if before is not None:
            await asyncio.wait([before])
        if self.leading and self.several:
            self.balancing.lead()
        elif self._balancing is not None:
            await self._balancing.follow()
        # Last: it may take a moment to end, and two brokers are not to balance meanwhile.
        if self.leading and self.history is not None:
            self.history.begin()
        elif self._history is not None:
            await self._history.end()

    async def _turned(self) -> None:
        turning, self._turning = self._turning, None
        if turning is not None:
            await asyncio.wait([turning])
            if not turning.cancelled() and (error := turning.exception()) is not None:
                raise MagnetarError(f"leadership did not change well: {error}") from error
