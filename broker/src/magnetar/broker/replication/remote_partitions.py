"""Partitioned topics in other clusters: made there, and enlarged there, as they are here.

A replicator sends each partition to the one of the same name. If that came first, the other cluster would make a topic
of its own of it, which belongs to no partitioned topic. So replicators ask here before they connect. Whoever makes or
enlarges a partitioned topic that is replicated has it made at once, as its consumers may be there.

The other cluster is asked by the binary protocol how many partitions it has, and told by its admin API what to do, and
to tell nobody else (`createLocalTopicOnly`, `updateLocalTopicOnly`).

Facts: Pulsar `PersistentTopicsBase.internalCreatePartitionedTopicToReplicatedClustersInBackground`,
`GeoPersistentReplicator`, setting `createTopicToRemoteClusterForReplication`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final

from magnetar.admin_client.client import AdminClient, AdminLimits
from magnetar.admin_client.errors import AdminRefused
from magnetar.broker.replication.states import NoRemote
from magnetar.core.backoff import Backoff
from magnetar.core.errors import MagnetarError
from magnetar.core.limits import MIB
from magnetar.core.topic_name import PERSISTENT, java_url_encode
from magnetar.wire.pulsar.errors import PulsarError, ServerError

if TYPE_CHECKING:
    from random import Random

    from magnetar.broker.replication.remote_admin import RemoteAdmin
    from magnetar.broker.replication.remote_clusters import RemoteClusters
    from magnetar.broker.resources import Resources
    from magnetar.broker.settings.broker import BrokerSettings
    from magnetar.core.clock import Clock
    from magnetar.core.topic_name import TopicName

logger: Final = logging.getLogger(__name__)

CALL_SECONDS_MAX: Final = 30.0
"""Of a request: a thousand partitions take some seconds."""

CONNECTIONS_MAX: Final = 2

ANSWER_BYTES_MAX: Final = MIB
"""Of another cluster, which is not trusted with memory: it answers with nothing, or with why it refuses."""

ATTEMPTS_MAX: Final = 10
"""Of a topic that was just made or enlarged, over some minutes. Its replicators try for ever, once it is in use."""

PAUSE_SECONDS_MIN: Final = 1.0
PAUSE_SECONDS_MAX: Final = 60.0

AT_ONCE_MAX: Final = 16
"""Topics that are made in other clusters side by side; others wait."""

WAITING_MAX: Final = 10_000
"""Topics that wait for it. Those beyond are left to their replicators."""

KNOWN_MAX: Final = 100_000
"""Topics that are remembered as being there; each that is not costs a request when a replicator connects."""

KNOWN_SECONDS: Final = 60.0
"""Then it is asked again when a replicator connects: the topic may be deleted there, or the cluster be another one."""

CONFLICT: Final = 409


class RemotePartitions:
    """The partitioned topics of other clusters, as far as this broker makes them."""

    def __init__(
        self,
        resources: Resources,
        settings: Callable[[], BrokerSettings],
        remotes: RemoteClusters,
        rng: Random,
        clock: Clock,
        make_client: Callable[..., AdminClient] = AdminClient,
    ) -> None:
        """`make_client` takes what `AdminClient` takes."""
        self._resources = resources
        self._settings = settings
        self._remotes = remotes
        self._rng = rng
        self._make_client = make_client
        self._clock = clock
        self._known: dict[tuple[str, str], tuple[int, float]] = {}
        """Partitions that a cluster was seen to have of a topic, and until when that counts."""
        self._places = asyncio.Semaphore(AT_ONCE_MAX)
        self._waiting = 0
        self._under_way: set[asyncio.Task[None]] = set()
        self._stopped = False

    def stop(self) -> None:
        """The broker is stopping: nothing more is tried, or its pauses would hold that up for minutes."""
        self._stopped = True
        for task in list(self._under_way):
            task.cancel()

    @property
    def enabled(self) -> bool:
        """Whether topics are made in other clusters at all."""
        return self._settings().policies.remote_topics_created

    async def ensure(self, partition: TopicName, cluster: str) -> None:
        """Before a topic is replicated: of a partition, the other cluster has its topic, with as many partitions at
        least.

        Raises `NoRemote` when it cannot be had there, and whatever keeps the other cluster from being asked."""
        if partition.partition_index < 0:
            if partition.domain != PERSISTENT and await self._resources.partitions(partition):
                # It may be loaded all the same, and the other cluster would take its name for that of the partitions.
                raise NoRemote(f"{partition} is a partitioned topic: its partitions are replicated, it is not")
            return
        if not self.enabled:
            return
        topic = partition.partitioned_name()
        count = await self._resources.partitions(topic)
        known, until_seconds = self._known.get((cluster, str(topic)), (0, 0.0))
        if count and (known < count or until_seconds < self._clock.monotonic_seconds()):
            await self.bring(topic, count, cluster)

    async def bring_to(self, topic: TopicName, partitions: int, clusters: Iterable[str]) -> None:
        """A topic was made or enlarged: have the others do so too. Tells the log what they have not done. Run as a
        task, which `stop` ends."""
        task = asyncio.current_task()
        assert task is not None
        self._under_way.add(task)
        try:
            for cluster in clusters:
                if not self.enabled or self._stopped or self._waiting >= WAITING_MAX:
                    return
                self._waiting += 1
                try:
                    async with self._places:
                        await self._try(topic, partitions, cluster)
                finally:
                    self._waiting -= 1
        finally:
            self._under_way.discard(task)

    async def _try(self, topic: TopicName, partitions: int, cluster: str) -> None:
        pauses = Backoff(PAUSE_SECONDS_MIN, PAUSE_SECONDS_MAX, rng=self._rng)
        for attempt in range(ATTEMPTS_MAX):
            if attempt:
                await asyncio.sleep(pauses.next_seconds())
            try:
                await self.bring(topic, partitions, cluster)
            except NoRemote as error:
                logger.warning("%s", error)
                return
            except MagnetarError as error:
                logger.warning(
                    "cluster %s has not got %s with %d partitions yet: %s", cluster, topic, partitions, error
                )
            else:
                return

    async def bring(self, topic: TopicName, partitions: int, cluster: str) -> None:
        """Have one cluster have it with so many partitions; more are as good. Errors as `ensure`."""
        found = await self._found(topic, cluster)
        if found < partitions:
            remote = await self._remotes.admin(cluster)
            client = self._make_client(
                AdminLimits(
                    connections_max=CONNECTIONS_MAX, call_seconds=CALL_SECONDS_MAX, answer_bytes_max=ANSWER_BYTES_MAX
                ),
                remote.credentials,
                remote.tls,
                _within_cluster,
            )
            try:
                await _change(client, remote, topic, found, partitions)
            finally:
                await client.close()
            logger.info("cluster %s has %s with %d partitions now", cluster, topic, partitions)
        elif found > partitions:
            logger.warning("cluster %s has %d partitions of %s: here it has %d", cluster, found, topic, partitions)
        until_seconds = self._clock.monotonic_seconds() + KNOWN_SECONDS
        self._known[cluster, str(topic)] = max(found, partitions), until_seconds
        if len(self._known) > KNOWN_MAX:
            del self._known[next(iter(self._known))]

    async def _found(self, topic: TopicName, cluster: str) -> int:
        """How many partitions a cluster has; 0 when the topic is not partitioned, or not there."""
        client = await self._remotes.client(cluster)
        try:
            return await client.partitions(topic)
        except PulsarError as error:
            if error.code == ServerError.TOPIC_NOT_FOUND:
                return 0
            raise


async def _change(client: AdminClient, remote: RemoteAdmin, topic: TopicName, found: int, partitions: int) -> None:
    path = f"/admin/v2/{topic.domain}/{topic.namespace_name}/{java_url_encode(topic.local_name)}/partitions"
    url = remote.url + path
    try:
        if found:
            await client.call("POST", url, query={"updateLocalTopicOnly": "true"}, body=partitions)
        else:
            await client.call("PUT", url, query={"createLocalTopicOnly": "true"}, body=partitions)
    except AdminRefused as error:
        advice = ""
        if error.status == CONFLICT and not found:
            advice = f": if it has no partitions there, delete it there, or replicate to another topic than {topic}"
        raise NoRemote(
            f"cluster {remote.cluster} refuses to have {topic} with {partitions} partitions ({error}){advice}"
        ) from None


async def _within_cluster(asked: str, url: str) -> None:
    """The brokers of a cluster have one another's trust, and the credentials are that cluster's."""
    logger.debug("%s redirects to %s", asked, url)
