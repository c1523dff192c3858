"""The proxies: a Deployment, the Service that clients connect to, and the configuration."""

from __future__ import annotations

from typing import Any, Final

from magnetar.operator.children.access import client_ports, proxy_access_settings
from magnetar.operator.children.configuration import settings_file, settings_map
from magnetar.operator.children.context import PROXY_CONTROL_PORT, ClusterContext
from magnetar.operator.children.naming import PROXY, labels
from magnetar.operator.children.servers import Server, client_service, server_deployment
from magnetar.operator.kubernetes.kinds import Manifest
from magnetar.operator.resources.common import Scalar

RESOURCES: Final[dict[str, Any]] = {"requests": {"cpu": "100m", "memory": "256Mi"}, "limits": {"memory": "1Gi"}}

FILE: Final = "proxy.conf"

DRAIN_SECONDS: Final = 30
"""How long connections may go on once a proxy is to stop: clients that are closed connect again to another one."""
GRACE_SECONDS: Final = DRAIN_SECONDS + 15


def proxy_children(cluster: ClusterContext, replicas: int) -> list[Manifest]:
    """Everything of the proxies; nothing if there are to be none for good."""
    if not cluster.spec.proxy.replicas:
        return []
    its_labels = labels(cluster.name, PROXY, version=cluster.version)
    server = Server(
        component=PROXY,
        spec=cluster.spec.proxy,
        labels=its_labels,
        configuration=settings_map(cluster.owner, cluster.proxy, its_labels, {FILE: _settings(cluster)}),
        file=FILE,
        ports={**client_ports(cluster), "control": PROXY_CONTROL_PORT},
        resources=RESOURCES,
        grace_seconds=GRACE_SECONDS,
    )
    service = client_service(cluster, PROXY, its_labels, cluster.spec.proxy.service)
    return [server.configuration, service, server_deployment(cluster, server, replicas)]


def owned_settings(cluster: ClusterContext) -> dict[str, Scalar]:
    """What people cannot set of proxies."""
    return proxy_access_settings(cluster) | {
        "clusterName": cluster.name,
        "metadataStoreUrl": cluster.metadata_url,
        "configurationMetadataStoreUrl": cluster.configuration_url,
        "controlPort": PROXY_CONTROL_PORT,
        # Clients name their broker, and the proxy shows it the proxies' token.
        "checkActiveBrokers": True,
    }


def _settings(cluster: ClusterContext) -> str:
    # Brokers' metrics are open, too: who may scrape is the network policies' business.
    defaults: dict[str, Scalar] = {"drainTimeoutSeconds": DRAIN_SECONDS, "authenticateMetricsEndpoint": False}
    return settings_file(defaults, cluster.spec.settings, cluster.spec.proxy.settings, owned_settings(cluster))
