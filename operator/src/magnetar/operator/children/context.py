"""One cluster as all of its children need it: names, addresses, images."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from magnetar.operator.children.naming import BOOKIE, BROKER, PROXY, READ_ONLY_BROKER, ZOOKEEPER, OwnerResource
from magnetar.operator.resources.cluster import PulsarClusterSpec
from magnetar.operator.resources.common import Component

ZOOKEEPER_PORT: Final = 2181
BOOKIE_PORT: Final = 3181
BOOKIE_CONTROL_PORT: Final = 3182
BOOKIE_METRICS_PORT: Final = 8000
BROKER_CONTROL_PORT: Final = 3183
PROXY_CONTROL_PORT: Final = 3184
SERVICE_PORT: Final = 6650
SERVICE_PORT_TLS: Final = 6651
WEB_PORT: Final = 8080
WEB_PORT_TLS: Final = 8443
LIVENESS: Final = "liveness"
"""The name by which the control ports' health tells whether the process still answers (`magnetar.control.server`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Defaults:
    """What the operator's own installation says about images."""

    image_repository: str
    version: str
    domain: str = "cluster.local"
    operator_namespace: str = "magnetar-system"
    """Where the operator's own pods run: network policies let it in."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterContext:
    """A PulsarCluster and who it is."""

    owner: OwnerResource
    spec: PulsarClusterSpec
    defaults: Defaults

    @property
    def name(self) -> str:
        """Also Pulsar's name of the cluster, unless it is one of others."""
        return self.owner.name

    @property
    def attached(self) -> bool:
        """Whether the cluster is one of others: only read-only brokers of it are ours."""
        return self.spec.attach is not None

    @property
    def pulsar_name(self) -> str:
        """Pulsar's name of the cluster."""
        return (self.spec.attach.cluster_name if self.spec.attach is not None else None) or self.name

    @property
    def version(self) -> str:
        """The version that all images have."""
        return self.spec.version or self.defaults.version

    def image(self, name: str, component: Component) -> str:
        """A component's image."""
        repository = self.spec.image_repository or self.defaults.image_repository
        return component.image or f"{repository.rstrip('/')}/{name}:{self.version}"

    @property
    def zookeeper(self) -> str:
        """The ensemble's StatefulSet and Service."""
        return f"{self.name}-{ZOOKEEPER}"

    @property
    def broker(self) -> str:
        """The brokers' Deployment and Service."""
        return f"{self.name}-{BROKER}"

    @property
    def proxy(self) -> str:
        """The proxies' Deployment and Service."""
        return f"{self.name}-{PROXY}"

    @property
    def read_only_broker(self) -> str:
        """The read-only brokers' Deployment and Service."""
        return f"{self.name}-{READ_ONLY_BROKER}"

    def bookie(self, pool: str) -> str:
        """A pool's StatefulSet and Service."""
        return f"{pool}-{BOOKIE}"

    @property
    def runs_zookeeper(self) -> bool:
        """Whether the ensemble is the operator's."""
        return self.spec.metadata.url is None

    @property
    def metadata_url(self) -> str:
        """Where brokers and bookies find the metadata."""
        if self.spec.metadata.url is not None:
            return self.spec.metadata.url
        return f"zk:{self.zookeeper}:{ZOOKEEPER_PORT}"

    @property
    def configuration_url(self) -> str:
        """Where tenants and namespaces are."""
        return self.spec.metadata.configuration_url or self.metadata_url

    def address(self, service: str) -> str:
        """A Service's name for those inside the Kubernetes cluster."""
        return f"{service}.{self.owner.namespace}.svc.{self.defaults.domain}"

    @property
    def entrance(self) -> str:
        """The Service that clients connect to."""
        if self.attached:
            return self.read_only_broker
        return self.proxy if self.spec.proxy.replicas else self.broker
