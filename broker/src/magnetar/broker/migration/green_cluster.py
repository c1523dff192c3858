"""What a topic's clients need in the cluster that they are sent to: tenant, namespace, topic, subscriptions.

Facts: Pulsar `PersistentTopic.initMigration`, setting `clusterMigrationAutoResourceCreation`. Apache's broker does not
make the partitioned topic, so that its partitions would be topics of their own there; this one does.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final

from magnetar.admin_client.client import AdminClient, AdminLimits
from magnetar.admin_client.errors import AdminRefused
from magnetar.broker.peers.access import PeerAccess
from magnetar.core.errors import PeerError
from magnetar.core.limits import MIB
from magnetar.core.topic_name import java_url_encode

if TYPE_CHECKING:
    from magnetar.broker.migrated_topics import Destination
    from magnetar.broker.resources import Resources
    from magnetar.broker.settings.broker import BrokerSettings
    from magnetar.core.topic_name import TopicName

logger: Final = logging.getLogger(__name__)

CALL_SECONDS_MAX: Final = 30.0
"""Of a request: a thousand partitions take some seconds."""

CONNECTIONS_MAX: Final = 2
"""At a time for one topic, whose requests follow one another."""

ANSWER_BYTES_MAX: Final = MIB
"""Of another cluster, which is not trusted with memory."""

EARLIEST_ID: Final = {"ledgerId": -1, "entryId": -1, "partitionIndex": -1}
"""As Java's admin client writes `MessageId.earliest`."""

NOT_FOUND: Final = 404
CONFLICT: Final = 409


class GreenCluster:
    """Makes there what is not there yet."""

    def __init__(
        self,
        resources: Resources,
        settings: Callable[[], BrokerSettings],
        make_client: Callable[..., AdminClient] = AdminClient,
    ) -> None:
        """`make_client` takes what `AdminClient` takes."""
        self._resources = resources
        self._settings = settings
        self._make_client = make_client

    async def prepare(self, topic: TopicName, subscriptions: Iterable[str], destination: Destination) -> None:
        """Return once the other cluster has all that the topic's clients need; subscriptions begin at its beginning.
        Raises what the stores and the other cluster's admin API raise."""
        peers = self._settings().access.peers
        base = destination.service_url_tls if peers.tls_enabled else destination.service_url
        if not base.startswith(("http://", "https://")):
            name = "serviceUrlTls" if peers.tls_enabled else "serviceUrl"
            raise PeerError(f"{topic} waits: where its cluster has moved is told without a {name}")
        access = PeerAccess(peers) if peers.plugin or peers.tls_enabled else None
        limits = AdminLimits(
            connections_max=CONNECTIONS_MAX, call_seconds=CALL_SECONDS_MAX, answer_bytes_max=ANSWER_BYTES_MAX
        )
        shown = (None, None) if access is None else (access.credentials, access.tls)
        client = self._make_client(limits, *shown, _within_cluster)
        try:
            await self._make(client, base.rstrip("/") + "/admin/v2", topic, subscriptions)
        except AdminRefused as error:
            raise PeerError(
                f"{topic} waits: {base}, where its cluster has moved, refuses what its clients need: {error} "
                "(each of the two clusters needs the record of the other)"
            ) from error
        finally:
            await client.close()
        logger.info("%s has all it needs at %s", topic, base)

    async def _make(self, client: AdminClient, base: str, topic: TopicName, subscriptions: Iterable[str]) -> None:
        namespace = topic.namespace_name
        tenant = await self._resources.documents.get(self._resources.tenant_path(topic.tenant))
        if tenant is not None:
            await _ensure(client, f"{base}/tenants/{java_url_encode(topic.tenant)}", tenant)
        policies = await self._resources.policies(namespace)
        if policies is not None:
            if policies.get("replication_clusters") == [self._settings().cluster_name]:
                # The other cluster puts itself there: Apache's brokers delete the topics of a list that lacks them.
                policies = {name: value for name, value in policies.items() if name != "replication_clusters"}
            await _ensure(client, f"{base}/namespaces/{namespace}", policies)
        of_namespace = f"{base}/{topic.domain}/{namespace}"
        if topic.partition_index >= 0:
            whole = topic.partitioned_name()
            partitions = await self._resources.partitions(whole)
            await _create(client, f"{of_namespace}/{java_url_encode(whole.local_name)}/partitions", partitions)
        else:
            await _create(client, f"{of_namespace}/{java_url_encode(topic.local_name)}", None)
        for name in subscriptions:
            path = f"{java_url_encode(topic.local_name)}/subscription/{java_url_encode(name)}"
            await _create(client, f"{of_namespace}/{path}", EARLIEST_ID)


async def _ensure(client: AdminClient, url: str, body: object) -> None:
    """Not made where it is: its clusters would be checked first, and be unknown there perhaps."""
    try:
        await client.call("GET", url)
    except AdminRefused as error:
        if error.status != NOT_FOUND:
            raise
        await _create(client, url, body)


async def _create(client: AdminClient, url: str, body: object) -> None:
    try:
        await client.call("PUT", url, body=body)
    except AdminRefused as error:
        if error.status != CONFLICT:
            raise


async def _within_cluster(asked: str, url: str) -> None:
    """The brokers of a cluster have one another's trust."""
    logger.debug("%s redirects to %s", asked, url)
