"""Which broker of another cluster serves a topic, asked over HTTP: for clusters whose record has no other address.

Facts: Pulsar `HttpLookupService`, `BrokerService.getReplicationClient`.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final

from magnetar.admin_client.client import AdminClient, AdminLimits
from magnetar.admin_client.errors import AdminRefused
from magnetar.client.addresses import parse_service_url
from magnetar.client.errors import ConnectionFailed
from magnetar.client.lookup import LookupService
from magnetar.core.errors import SettingError
from magnetar.core.limits import KIB
from magnetar.core.topic_name import java_url_encode
from magnetar.wire.pulsar.errors import PulsarError, ServerError

if TYPE_CHECKING:
    from magnetar.broker.replication.remote_admin import RemoteAdmin
    from magnetar.client.addresses import BrokerAddress
    from magnetar.client.pool import ConnectionPool
    from magnetar.client.settings import ClientSettings
    from magnetar.core.topic_name import TopicName

logger: Final = logging.getLogger(__name__)

CALL_SECONDS_MAX: Final = 30.0
"""A lookup takes no longer over HTTP than by the binary protocol."""

CONNECTIONS_MAX: Final = 16
"""To the other cluster at a time; further lookups wait."""

ANSWER_BYTES_MAX: Final = 64 * KIB
"""Of another cluster, which is not trusted with memory: an answer has some addresses, or why it refuses."""

CODES: Final = {
    401: ServerError.AUTHENTICATION_ERROR,
    403: ServerError.AUTHORIZATION_ERROR,
    404: ServerError.TOPIC_NOT_FOUND,
}
"""What a refusal means; others may pass."""


class HttpLookup(LookupService):
    """Asks the admin API; topics that were sent on to yet another cluster are looked up there as ever."""

    def __init__(self, remote: RemoteAdmin, pool: ConnectionPool, settings: ClientSettings, *, tls: bool) -> None:
        """`tls`: brokers are connected to by TLS."""
        super().__init__(self._nowhere, pool, settings)
        self._url = remote.url
        self._cluster = remote.cluster
        self._tls = tls
        limits = AdminLimits(
            connections_max=CONNECTIONS_MAX, call_seconds=CALL_SECONDS_MAX, answer_bytes_max=ANSWER_BYTES_MAX
        )
        self._client = AdminClient(limits, remote.credentials, remote.tls, _within_cluster)

    async def broker_of(self, topic: TopicName) -> BrokerAddress:
        """Where to connect for a topic. Raises `PulsarError`, `ConnectionFailed` or another `Unavailable`."""
        if self.has_moved(topic):
            return await super().broker_of(topic)
        path = f"{topic.domain}/{topic.namespace_name}/{java_url_encode(topic.local_name)}"
        found = await self._ask_for(f"/lookup/v2/topic/{path}", {})
        name = "brokerUrlTls" if self._tls else "brokerUrl"
        url = found.get(name)
        if not isinstance(url, str) or not url:
            raise ConnectionFailed(f"cluster {self._cluster} names a broker for {topic} without a {name}")
        try:
            address = parse_service_url(url)[0]
        except SettingError as error:
            raise ConnectionFailed(f"cluster {self._cluster} names a strange broker for {topic}: {error}") from None
        if address.tls is not self._tls:
            raise ConnectionFailed(f"cluster {self._cluster} leads to {url}, where our credentials are not shown")
        return address

    async def partitions_of(self, topic: TopicName, *, create: bool) -> int:
        """How many partitions; 0 for a topic that is not partitioned. `PulsarError` when it is not there."""
        path = f"{topic.domain}/{topic.namespace_name}/{java_url_encode(topic.local_name)}"
        query = {"checkAllowAutoCreation": "true" if create else "false"}
        count = (await self._ask_for(f"/admin/v2/{path}/partitions", query)).get("partitions")
        return count if isinstance(count, int) else 0

    async def close(self) -> None:
        """Ask nobody any more."""
        await self._client.close()

    async def _ask_for(self, path: str, query: dict[str, str]) -> dict[str, Any]:
        try:
            answer = await self._client.call("GET", self._url + path, query=query)
        except AdminRefused as error:
            code = CODES.get(error.status, ServerError.SERVICE_NOT_READY)
            raise PulsarError(code, f"cluster {self._cluster}: {error}") from None
        try:
            document = answer.json()
        except ValueError:
            document = None
        if not isinstance(document, dict):
            raise ConnectionFailed(f"cluster {self._cluster} answers {path} with something else than JSON")
        return document

    def _nowhere(self) -> str:
        raise ConnectionFailed(f"cluster {self._cluster} is looked up over HTTP alone")


async def _within_cluster(asked: str, url: str) -> None:
    """The brokers of a cluster have one another's trust, and the credentials are that cluster's."""
    logger.debug("%s redirects to %s", asked, url)
