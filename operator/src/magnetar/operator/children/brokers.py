"""The brokers: a Deployment, its Service and its configuration."""

from __future__ import annotations

from typing import Any, Final

from magnetar.operator.children.access import broker_access_settings, client_ports, service_ports
from magnetar.operator.children.configuration import settings_file, settings_map
from magnetar.operator.children.context import BROKER_CONTROL_PORT, SERVICE_PORT, WEB_PORT, ClusterContext
from magnetar.operator.children.naming import BROKER, child, labels, selector
from magnetar.operator.children.pods import field_variable
from magnetar.operator.children.servers import Server, server_deployment
from magnetar.operator.kubernetes.kinds import Manifest
from magnetar.operator.resources.common import Scalar

RESOURCES: Final[dict[str, Any]] = {"requests": {"cpu": "200m", "memory": "512Mi"}, "limits": {"memory": "2Gi"}}

FILE: Final = "broker.conf"

HAND_OVER_SECONDS: Final = 60
"""`brokerShutdownTimeoutMs`: how long a broker that stops may take to give its bundles to others."""
GRACE_SECONDS: Final = HAND_OVER_SECONDS + 15


def broker_children(cluster: ClusterContext, replicas: int | None) -> list[Manifest]:
    """Everything of the brokers. Without `replicas` their number is not the operator's to set."""
    its_labels = labels(cluster.name, BROKER, version=cluster.version)
    configuration = settings_map(cluster.owner, cluster.broker, its_labels, {FILE: _settings(cluster)})
    server = Server(
        component=BROKER,
        spec=cluster.spec.broker,
        labels=its_labels,
        configuration=configuration,
        file=FILE,
        ports={"pulsar": SERVICE_PORT, "http": WEB_PORT, **client_ports(cluster), "control": BROKER_CONTROL_PORT},
        resources=RESOURCES,
        grace_seconds=GRACE_SECONDS,
        environment=[
            field_variable("POD_IP", "status.podIP"),
            {"name": "PULSAR_PREFIX_advertisedAddress", "value": "$(POD_IP)"},
        ],
    )
    service = {"selector": selector(cluster.name, BROKER), "ports": service_ports(cluster)}
    return [
        configuration,
        child(cluster.owner, "Service", cluster.broker, its_labels, spec=service),
        server_deployment(cluster, server, replicas),
    ]


def owned_settings(cluster: ClusterContext) -> dict[str, Scalar]:
    """What people cannot set of brokers."""
    return broker_access_settings(cluster) | {
        "clusterName": cluster.name,
        "metadataStoreUrl": cluster.metadata_url,
        "configurationMetadataStoreUrl": cluster.configuration_url,
        "controlPort": BROKER_CONTROL_PORT,
        "loadBalancerAutoBundleSplitEnabled": cluster.spec.balance.splits,
    }


def _settings(cluster: ClusterContext) -> str:
    bookkeeper = cluster.spec.bookkeeper
    defaults: dict[str, Scalar] = {
        "brokerShutdownTimeoutMs": HAND_OVER_SECONDS * 1000,
        "managedLedgerDefaultEnsembleSize": bookkeeper.ensemble_size,
        "managedLedgerDefaultWriteQuorum": bookkeeper.write_quorum,
        "managedLedgerDefaultAckQuorum": bookkeeper.ack_quorum,
        # A pod that is gone is known to be: its bundles need not wait for long.
        "metadataStoreSessionTimeoutMillis": 10_000,
    }
    return settings_file(defaults, cluster.spec.settings, cluster.spec.broker.settings, owned_settings(cluster))
