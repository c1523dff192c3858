"""How brokers that only read know each other: each is a node with its report, as other brokers' are, in another
place. They take no part in the election, own no bundles, and are asked for none."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final

from magnetar.broker.load.broker_directory import BrokerDirectory
from magnetar.broker.load.broker_report import BrokerReport
from magnetar.broker.load.manager import LEADER_PATH, LoadParts, ModularLoadManager
from magnetar.broker.load.registration import Registration, draining_brokers
from magnetar.broker.peers.addresses import BrokerAddresses
from magnetar.broker.read_only.followed_topic import FollowedTopic
from magnetar.broker.read_only.paths import BROKERS_PATH, LEAVING_PATH
from magnetar.broker.states import MembershipState
from magnetar.core.errors import Unavailable

REPORT_SECONDS: Final = 5.0
"""How often the report is looked at: lookups go by the brokers' reports."""


class NoOwner(Unavailable):
    """No broker that writes is known."""


class ReadOnlyMembership(ModularLoadManager):
    """`brokers` are those that write; `readers` those that read, this one among them."""

    def __init__(self, parts: LoadParts) -> None:
        super().__init__(parts)
        self._registration = Registration(parts.store, self._registration_changed, folder=BROKERS_PATH)
        self._leaving = Registration(parts.store, self._leaving_changed, folder=LEAVING_PATH)
        self._readers = BrokerDirectory(parts.store, _nothing, parts.clock, folder=BROKERS_PATH)
        self._asked = 0

    @property
    def leading(self) -> bool:
        """Whether this broker is the leader: a broker that only reads never is."""
        return False

    async def leader_now(self) -> BrokerAddresses | None:
        """The one of those that write, read at once. `StoreUnavailable`."""
        node = await self.parts.store.get(LEADER_PATH, watch=False)
        return self._named(node.value) if node is not None else None

    @property
    def readers(self) -> Mapping[str, BrokerReport]:
        """The brokers that only read, with their last reports, by id."""
        return self._readers.reports

    @property
    def lag_seconds(self) -> float:
        """For how long the worst topic has been known to have entries that cannot be shown; 0: none has."""
        topics = [topic for bundle in self.parts.owned().values() for topic in bundle.topics.values()]
        return max((one.lag_seconds for one in topics if isinstance(one, FollowedTopic)), default=0.0)

    async def readers_now(self) -> dict[str, BrokerReport]:
        """Those that serve and those that drain, read at once. `StoreUnavailable`."""
        draining = await draining_brokers(self.parts.store, LEAVING_PATH)
        return {**draining, **self.readers}

    def owner_to_ask(self) -> BrokerAddresses:
        """One of the brokers that write, another one each time: it knows who owns what. `NoOwner`."""
        brokers = sorted(self.brokers().items())
        if not brokers:
            raise NoOwner("no broker of this cluster that writes is registered in the metadata store")
        self._asked += 1
        return brokers[self._asked % len(brokers)][1]

    async def report(self, *, at_once: bool = False) -> BrokerReport:
        """What this broker does now, and how far behind the worst of its topics is."""
        report = await super().report(at_once=at_once)
        report.lag_seconds = self.lag_seconds
        return report

    async def start(self) -> None:
        """Be found by other brokers that read, and know those that write. `StoreUnavailable`, `LockTaken`."""
        self.host_usage()
        await self.directory.start()
        await self._readers.start()
        await self.register()
        await self._readers.refresh()
        self._reports = asyncio.get_running_loop().create_task(self._report_on(), name="load-reports")

    async def register(self) -> None:
        """Be sent clients."""
        self._become(MembershipState.JOINING)
        report = await self.report(at_once=True)
        await self._registration.register(report)
        await self._leaving.unregister()
        self._become(MembershipState.TAKING_PART)
        self._wrote(report)

    async def unregister(self) -> None:
        """Be sent no more clients. Safe in any state."""
        self._become(MembershipState.LEAVING)
        await self._registration.unregister()

    async def close(self) -> None:
        """Stop; unregisters if that was not done."""
        await super().close()
        await self._readers.close()

    @property
    def _pause_seconds(self) -> float:
        return REPORT_SECONDS

    def _brokers_changed(self) -> None:
        """Whoever writes, this broker balances nothing."""


def _nothing() -> None:
    """Lookups read the reports when they are asked."""
