"""The brokers: a Deployment, its Service and its configuration."""

from __future__ import annotations

from typing import Any, Final

from magnetar.operator.children.access import (
    access_mounts,
    access_volumes,
    broker_access_settings,
    client_ports,
    service_ports,
)
from magnetar.operator.children.configuration import digest, settings_file, settings_map
from magnetar.operator.children.context import BROKER_CONTROL_PORT, LIVENESS, SERVICE_PORT, WEB_PORT, ClusterContext
from magnetar.operator.children.control import control_environment, control_mount, control_volume
from magnetar.operator.children.naming import BROKER, TEMPLATE_ANNOTATION, child, labels, selector
from magnetar.operator.children.pods import CRASH_DIRECTORY, Container, Pod, field_variable, pod_template
from magnetar.operator.kubernetes.kinds import Manifest
from magnetar.operator.resources.common import Scalar

RESOURCES: Final[dict[str, Any]] = {"requests": {"cpu": "200m", "memory": "512Mi"}, "limits": {"memory": "2Gi"}}

HAND_OVER_SECONDS: Final = 60
"""`brokerShutdownTimeoutMs`: how long a broker that stops may take to give its bundles to others."""
GRACE_SECONDS: Final = HAND_OVER_SECONDS + 15


def broker_children(cluster: ClusterContext, replicas: int | None) -> list[Manifest]:
    """Everything of the brokers. Without `replicas` their number is not the operator's to set."""
    its_labels = labels(cluster.name, BROKER, version=cluster.version)
    files = {"broker.conf": _settings(cluster)}
    configuration = settings_map(cluster.owner, cluster.broker, its_labels, files)
    found = selector(cluster.name, BROKER)
    spec: dict[str, Any] = {
        "minReadySeconds": 2,
        "progressDeadlineSeconds": 180,
        "revisionHistoryLimit": 3,
        # A new broker serves before an old one goes, which gives its bundles away first.
        "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 0, "maxSurge": 1}},
        "selector": {"matchLabels": found},
        "template": _template(cluster, its_labels, configuration["metadata"]["name"]),
    }
    if replicas is not None:
        spec["replicas"] = replicas
    return [
        configuration,
        child(
            cluster.owner,
            "Service",
            cluster.broker,
            its_labels,
            spec={"selector": found, "ports": service_ports(cluster)},
        ),
        child(cluster.owner, "Deployment", cluster.broker, its_labels, spec=spec),
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


def _template(cluster: ClusterContext, its_labels: dict[str, str], configuration: str) -> dict[str, Any]:
    spec = cluster.spec.broker
    # What Services go by: not while it drains, nor before it takes part.
    serves = {"grpc": {"port": BROKER_CONTROL_PORT}, "timeoutSeconds": 5}
    lives = {"grpc": {"port": BROKER_CONTROL_PORT, "service": LIVENESS}, "timeoutSeconds": 10}
    container = Container(
        name=BROKER,
        image=cluster.image(BROKER, spec),
        pull_policy=cluster.spec.image_pull_policy,
        arguments=["broker", "run", "--conf", "/conf/broker.conf"],
        ports={"pulsar": SERVICE_PORT, "http": WEB_PORT, **client_ports(cluster), "control": BROKER_CONTROL_PORT},
        readiness=serves | {"periodSeconds": 2},
        liveness=lives | {"periodSeconds": 20, "failureThreshold": 6},
        startup=serves | {"periodSeconds": 1, "failureThreshold": 300},
        environment=[
            field_variable("POD_IP", "status.podIP"),
            {"name": "PULSAR_PREFIX_advertisedAddress", "value": "$(POD_IP)"},
            *control_environment(),
        ],
        mounts=[
            {"name": "configuration", "mountPath": "/conf", "readOnly": True},
            control_mount(),
            *access_mounts(cluster),
        ],
        resources=RESOURCES,
        crash_directory=CRASH_DIRECTORY,
    )
    pod = Pod(
        container=container,
        labels=its_labels,
        selector=selector(cluster.name, BROKER),
        volumes=[
            {"name": "configuration", "configMap": {"name": configuration}},
            control_volume(cluster.name),
            *access_volumes(cluster),
        ],
        grace_seconds=GRACE_SECONDS,
        pull_secrets=cluster.spec.image_pull_secrets or (),
    )
    template = pod_template(pod, spec.pod, spec.resources)
    template["metadata"]["annotations"][TEMPLATE_ANNOTATION] = digest(template)
    return template
