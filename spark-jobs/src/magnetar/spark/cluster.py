"""What one process keeps open of a cluster, from one task to the next: connections outlive the tasks they serve."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping
from typing import Final

from magnetar.client.client import PulsarClient
from magnetar.core.backoff import Backoff
from magnetar.core.errors import PeerError, Unavailable
from magnetar.spark.bookies.access import DirectAccess, TaskAccess, open_direct
from magnetar.spark.bookies.catalog import DirectCatalog
from magnetar.spark.brokers.admin_api import AdminApi
from magnetar.spark.brokers.catalog import BrokerCatalog
from magnetar.spark.brokers.client_factory import make_client
from magnetar.spark.brokers.entries import BrokerEntries
from magnetar.spark.entries import EntrySource
from magnetar.spark.errors import ClusterUnreachable
from magnetar.spark.options.connection import ConnectionOptions
from magnetar.spark.topics import TopicCatalog

logger: Final = logging.getLogger(__name__)

CLUSTERS_MAX: Final = 8
"""A process serves one query, or a few. The one unused for longest is closed first."""

TRIED_AGAIN_SECONDS: Final = 60.0
"""How long bookies that could not be reached are not tried again: what keeps them away is mostly there to stay, and
trying takes seconds."""

LOOKED_FOR_AGAIN_SECONDS_MAX: Final = 300.0
"""While reading goes on through brokers, it is looked whether bookies are back after `TRIED_AGAIN_SECONDS`, then after
twice as long each time up to this. An access that lasted longer than this begins with the shortest pause again: one
that comes and goes costs a stream some ten seconds each time it goes."""

CLOSED_SECONDS_MAX: Final = 5.0
"""How long the end of an access that does not answer may take."""


class ClusterConnections:
    """One cluster as one user reaches it. Lives on the process's event loop."""

    def __init__(self, options: ConnectionOptions) -> None:
        self.options = options
        self.loop: Final = asyncio.get_running_loop()
        self.client: PulsarClient = make_client(options)
        self.admin: AdminApi | None = AdminApi(options) if options.admin_url else None
        self.brokers = BrokerCatalog(options, self.client, self.admin)
        """Topics by brokers."""
        self._direct: DirectAccess | None = None
        self._opening = asyncio.Lock()
        self._refused: tuple[float, str] | None = None
        """Until when it is not tried again, and why."""
        self._opened_at_seconds = 0.0
        self._looking: asyncio.Task[None] | None = None
        self._look_at_seconds = time.monotonic() + TRIED_AGAIN_SECONDS
        self._look_pauses = Backoff(TRIED_AGAIN_SECONDS, LOOKED_FOR_AGAIN_SECONDS_MAX)
        self._direct_catalog: DirectCatalog | None = None
        self._tasks: TaskAccess | None = None

    async def direct(self) -> DirectAccess:
        """The metadata store and the bookies. Raises `ClusterUnreachable` with the reason."""
        async with self._opening:
            if self._direct is not None:
                return self._direct
            if self._refused is not None and time.monotonic() < self._refused[0]:
                raise ClusterUnreachable(self._refused[1])
            told = self.admin.internal_configuration if self.admin is not None else None
            try:
                self._direct = await open_direct(self.options, told)
            except ClusterUnreachable as error:
                self._refuse(str(error))
                raise
            self._opened_at_seconds = time.monotonic()
            return self._direct

    @property
    def opened_direct(self) -> DirectAccess | None:
        """What `direct` gives, if it is open."""
        return self._direct

    async def leave_direct(self, access: DirectAccess | None, reason: str, *, refuse: bool) -> None:
        """This access has failed: close it, unless another one has taken its place. `refuse`: none is opened for a
        while."""
        async with self._opening:
            if access is None or access is not self._direct:
                return
            self._direct = None
            if time.monotonic() - self._opened_at_seconds > LOOKED_FOR_AGAIN_SECONDS_MAX:
                self._look_pauses.reset()
            if refuse:
                self._refuse(reason)
        try:
            async with asyncio.timeout(CLOSED_SECONDS_MAX):
                await access.close()
        except (Unavailable, PeerError, TimeoutError) as error:
            logger.info("the access to store and bookies that has failed does not close well: %s", error)

    def direct_is_back(self) -> bool:
        """Whether metadata store and bookies are open. If not, a look at whether they can be is begun, unless the last
        one is too fresh: those who ask go on meanwhile."""
        if self._direct is not None:
            return True
        if self._looking is None and time.monotonic() >= self._look_at_seconds:
            self._looking = self.loop.create_task(self._look(), name="looking for bookies again")
        return False

    async def _look(self) -> None:
        try:
            await self.direct()
        except ClusterUnreachable as error:
            logger.info("still reading through brokers: %s", error)
        finally:
            self._looking = None

    def _refuse(self, reason: str) -> None:
        now = time.monotonic()
        self._refused = now + TRIED_AGAIN_SECONDS, reason
        self._look_at_seconds = now + self._look_pauses.next_seconds()

    async def direct_catalog(self) -> DirectCatalog:
        """Topics by the metadata store. Raises `ClusterUnreachable`."""
        access = await self.direct()
        if self._direct_catalog is None:
            self._direct_catalog = DirectCatalog(access, self.brokers.ends)
        else:
            self._direct_catalog.go_on_with(access)
        return self._direct_catalog

    async def catalog(self, *, direct: bool) -> TopicCatalog:
        """Topics by the metadata store, or by brokers."""
        return await self.direct_catalog() if direct else self.brokers

    def bookie_entries(self, topic: str, addresses: Mapping[str, tuple[str, int]]) -> EntrySource:
        """Entries from bookies, without the metadata store as long as they are where they were planned."""
        if self._tasks is None:
            self._tasks = TaskAccess(addresses, self.direct)
        else:
            self._tasks.add_addresses(addresses)
        return self._tasks.entries(topic)

    def broker_entries(self, topic: str, *, read_compacted: bool = False) -> EntrySource:
        """Entries from brokers."""
        return BrokerEntries(
            self.client,
            topic,
            read_compacted=read_compacted,
            patience_seconds=self.options.operation_timeout_seconds,
            ledger_ids=self.brokers.ledger_ids,
        )

    async def close(self) -> None:
        """Close all connections."""
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.gather(self._looking, return_exceptions=True)
        await self.brokers.close()
        if self._tasks is not None:
            await self._tasks.close()
        if self._direct is not None:
            await self._direct.close()
        if self.admin is not None:
            await self.admin.close()
        await self.client.close()


_clusters: dict[ConnectionOptions, ClusterConnections] = {}
"""The clusters that this process uses, the last used one last. Touched on the event loop alone."""

_of_parents: list[ClusterConnections] = []
"""A fork has them in its memory, and their connections with them: using or closing them would disturb those."""


async def cluster_of(options: ConnectionOptions) -> ClusterConnections:
    """The cluster that these options reach, opened when it is first used."""
    _leave_parents()
    cluster = _clusters.pop(options, None)
    if cluster is None:
        cluster = ClusterConnections(options)
    _clusters[options] = cluster
    while len(_clusters) > CLUSTERS_MAX:
        await _clusters.pop(next(iter(_clusters))).close()
    return cluster


async def close_clusters() -> None:
    """Close all that this process has open; what is used next is opened anew."""
    _leave_parents()
    while _clusters:
        _, cluster = _clusters.popitem()
        await cluster.close()


def _leave_parents() -> None:
    loop = asyncio.get_running_loop()
    foreign = [options for options, cluster in _clusters.items() if cluster.loop is not loop]
    _of_parents.extend(map(_clusters.pop, foreign))
