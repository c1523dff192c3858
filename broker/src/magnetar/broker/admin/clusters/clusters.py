"""`/admin/v2/clusters`: what the clusters of an instance know of each other."""

from __future__ import annotations

from typing import Final
from urllib.parse import urlsplit

from aiohttp import web
from magnetar.broker.admin.web.documents import Change, cluster_data, require_writable, with_value
from magnetar.broker.admin.web.handlers import Handlers
from magnetar.broker.admin.web.responses import (
    BAD_REQUEST,
    CONFLICT,
    NOT_FOUND,
    PRECONDITION_FAILED,
    AdminError,
    json,
    no_content,
    node_name,
)
from magnetar.broker.admin.web.shapes import Shape, body_of, boolean, required_body, set_of, text
from magnetar.broker.context import BrokerContext
from magnetar.broker.migration.migration import tell_if_unchecked
from magnetar.broker.resources import Document, Resources
from magnetar.core.topic_name import is_valid_name_part
from magnetar.metadata.store import NodeNotFound, VersionConflict

BASE: Final = "/admin/v2/clusters"
ONE: Final = BASE + "/{cluster}"

SWITCHES: Final = ("brokerClientTlsEnabled", "tlsAllowInsecureConnection", "brokerClientTlsEnabledWithKeyStore")

MIGRATED_URL: Final = Shape(
    {
        "serviceUrl": (text, None),
        "serviceUrlTls": (text, None),
        "brokerServiceUrl": (text, None),
        "brokerServiceUrlTls": (text, None),
    }
)

CLUSTER_DATA: Final = Shape(
    {
        "serviceUrl": (text, None),
        "serviceUrlTls": (text, None),
        "brokerServiceUrl": (text, None),
        "brokerServiceUrlTls": (text, None),
        "proxyServiceUrl": (text, None),
        "authenticationPlugin": (text, None),
        "authenticationParameters": (text, None),
        "proxyProtocol": (text, None),
        "peerClusterNames": (set_of(text), None),
        "brokerClientTlsEnabled": (boolean, False),
        "tlsAllowInsecureConnection": (boolean, False),
        "brokerClientTlsEnabledWithKeyStore": (boolean, False),
        "brokerClientTlsTrustStoreType": (text, None),
        "brokerClientTlsTrustStore": (text, None),
        "brokerClientTlsTrustStorePassword": (text, None),
        "brokerClientTlsKeyStoreType": (text, None),
        "brokerClientTlsKeyStore": (text, None),
        "brokerClientTlsKeyStorePassword": (text, None),
        "brokerClientTrustCertsFilePath": (text, None),
        "brokerClientKeyFilePath": (text, None),
        "brokerClientCertificateFilePath": (text, None),
        "brokerClientSslFactoryPlugin": (text, None),
        "brokerClientSslFactoryPluginParams": (text, None),
        "listenerName": (text, None),
        "migrated": (boolean, None),
        "migratedClusterUrl": (MIGRATED_URL, None),
    }
)
"""The members of a cluster's record, with what each may be (Pulsar `ClusterDataImpl`)."""

DOTTED_NAME: Final = (
    "Cluster name is not valid: it has a dot. The cursor that replicates to a cluster is called pulsar.repl.<cluster>, "
    "and what follows its last dot is taken for the cluster. Use a name without dots"
)
"""Apache's brokers take such a name, and replicate to another cluster, or none, later."""

URL_SCHEMES: Final = {
    "serviceUrl": (("http",), "Illegal service url, example: http://pulsar.example.com:8080"),
    "serviceUrlTls": (("https",), "Illegal service tls url, example: https://pulsar.example.com:8443"),
    "brokerServiceUrl": (("pulsar",), "Illegal broker service url, example: pulsar://pulsar.example.com:6650"),
    "brokerServiceUrlTls": (
        ("pulsar+ssl",),
        "Illegal broker service tls url, example: pulsar+ssl://pulsar.example.com:6651",
    ),
    "proxyServiceUrl": (
        ("pulsar", "pulsar+ssl"),
        "Illegal proxy service url, example: pulsar+ssl://ats-proxy.example.com:4443 "
        "or pulsar://ats-proxy.example.com:4080",
    ),
}


def routes(context: BrokerContext) -> list[web.RouteDef]:
    """What this file serves."""
    handlers = ClusterHandlers(context)
    return [
        web.get(BASE, handlers.names),
        web.get(ONE, handlers.get),
        web.put(ONE, handlers.create),
        web.post(ONE, handlers.update),
        web.delete(ONE, handlers.delete),
        web.get(ONE + "/peers", handlers.peers),
        web.post(ONE + "/peers", handlers.set_peers),
        web.get(ONE + "/migrate", handlers.migration),
        web.post(ONE + "/migrate", handlers.migrate),
    ]


class ClusterHandlers(Handlers):
    """The handlers, over one broker."""

    async def names(self, _: web.Request) -> web.Response:
        """Names of the clusters."""
        return json(sorted(name for name in await self._resources.clusters() if name != "global"))

    async def get(self, request: web.Request) -> web.Response:
        """What is known of a cluster."""
        data = await cluster_data(self._context, node_name(request, "cluster"))
        return json({**data, **{name: data.get(name, False) for name in SWITCHES}})

    async def create(self, request: web.Request) -> web.Response:
        """Make a cluster known."""
        cluster = node_name(request, "cluster")
        data = await body_of(request, cluster_data_of)
        if data is None:
            raise AdminError(BAD_REQUEST, "cluster data is required")
        await require_writable(self._context)
        if not is_valid_name_part(cluster):
            raise AdminError(PRECONDITION_FAILED, "Cluster name is not valid")
        if "." in cluster:
            raise AdminError(PRECONDITION_FAILED, DOTTED_NAME)
        try:
            await self._documents.create(Resources.cluster_path(cluster), data)
        except VersionConflict:
            raise AdminError(CONFLICT, "Cluster already exists") from None
        return web.Response()

    async def update(self, request: web.Request) -> web.Response:
        """Replace what is known of a cluster."""
        data = await required_body(request, cluster_data_of)
        await self._change(node_name(request, "cluster"), lambda _: data)
        return web.Response()

    async def delete(self, request: web.Request) -> web.Response:
        """Forget a cluster that no namespace is in, and its failure domains."""
        cluster = node_name(request, "cluster")
        await require_writable(self._context)
        path = Resources.cluster_path(cluster)
        if await self._is_used(cluster) or await self._documents.get(f"{path}/namespaceIsolationPolicies"):
            raise AdminError(PRECONDITION_FAILED, "Cluster not empty")
        await cluster_data(self._context, cluster)
        await self._resources.configuration_store.delete_recursively(path)
        return no_content()

    async def peers(self, request: web.Request) -> web.Response:
        """The clusters that namespaces may be in instead of this one, but not along with it."""
        peers = (await cluster_data(self._context, node_name(request, "cluster"))).get("peerClusterNames")
        return web.Response() if peers is None else json(peers)

    async def set_peers(self, request: web.Request) -> web.Response:
        """Choose the peer clusters, which namespaces may be in instead of this one."""
        cluster = node_name(request, "cluster")
        peers: list[str] | None = await body_of(request, set_of(text))
        known = await self._resources.clusters()
        for peer in peers or []:
            if peer == cluster:
                raise AdminError(PRECONDITION_FAILED, f"{peer} itself can't be part of peer-list")
            if peer not in known:
                raise AdminError(PRECONDITION_FAILED, f"Peer cluster {peer} does not exist")
        await self._change(cluster, with_value("peerClusterNames", peers))
        return no_content()

    async def migration(self, request: web.Request) -> web.Response:
        """Where a cluster that was migrated has gone to."""
        found: Document | None = await self._documents.get(
            Resources.cluster_policies_path(node_name(request, "cluster"))
        )
        if found is None:
            raise AdminError(NOT_FOUND, "Cluster does not exist")
        urls = found.get("migratedClusterUrl") or {}
        return json({**found, "migratedClusterUrl": {**urls, "empty": not any(urls.values())}})

    async def migrate(self, request: web.Request) -> web.Response:
        """Say where a cluster goes to, and with `migrated` whether it has gone."""
        cluster = node_name(request, "cluster")
        urls = await required_body(request, MIGRATED_URL)
        migrated = request.query.get("migrated", "false").lower() == "true"
        if migrated and not any(urls.values()):
            # Else the address of a migration under way would be lost, and its clients wait.
            raise AdminError(BAD_REQUEST, "Cluster url must not be empty")
        check_urls(urls)
        await require_writable(self._context)
        await cluster_data(self._context, cluster)
        await self._documents.put(
            Resources.cluster_policies_path(cluster), {"migrated": migrated, "migratedClusterUrl": urls}
        )
        if migrated and cluster == self._service.settings.cluster_name:
            tell_if_unchecked(self._service.settings.policies, f"the cluster {cluster}")
        return web.Response()

    async def _change(self, cluster: str, change: Change) -> None:
        await require_writable(self._context)
        try:
            await self._documents.update(Resources.cluster_path(cluster), change)
        except NodeNotFound:
            raise AdminError(NOT_FOUND, "Cluster does not exist") from None

    async def _is_used(self, cluster: str) -> bool:
        for tenant in await self._resources.tenants():
            for name in await self._resources.namespaces(tenant):
                policies = await self._documents.get(f"/admin/policies/{name}") or {}
                if cluster in policies.get("replication_clusters", []):
                    return True
        return False


def cluster_data_of(value: object) -> Document:
    """What a body says of a cluster. Raises 400."""
    data = CLUSTER_DATA(value)
    check_urls(data)
    return data


def check_urls(data: Document) -> None:
    """Raises 400 for an address whose scheme is not that of its member."""
    for name, (schemes, reason) in URL_SCHEMES.items():
        for url in str(data.get(name) or "").split(","):
            try:
                parts = urlsplit(url.strip())
                wrong = bool(url.strip()) and (parts.scheme not in schemes or not parts.hostname)
            except ValueError:
                wrong = True
            if wrong:
                raise AdminError(BAD_REQUEST, reason)
