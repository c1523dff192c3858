"""The proxies: a Deployment, the Service that clients connect to, and the configuration."""

from __future__ import annotations

from typing import Any, Final

from magnetar.operator.children.access import (
    access_mounts,
    access_volumes,
    client_ports,
    proxy_access_settings,
    service_ports,
)
from magnetar.operator.children.configuration import digest, settings_file, settings_map
from magnetar.operator.children.context import LIVENESS, PROXY_CONTROL_PORT, ClusterContext
from magnetar.operator.children.control import control_environment, control_mount, control_volume
from magnetar.operator.children.naming import PROXY, TEMPLATE_ANNOTATION, child, labels, selector
from magnetar.operator.children.pods import CRASH_DIRECTORY, Container, Pod, pod_template
from magnetar.operator.kubernetes.kinds import Manifest
from magnetar.operator.resources.common import Scalar

RESOURCES: Final[dict[str, Any]] = {"requests": {"cpu": "100m", "memory": "256Mi"}, "limits": {"memory": "1Gi"}}

DRAIN_SECONDS: Final = 30
"""How long connections may go on once a proxy is to stop: clients that are closed connect again to another one."""
GRACE_SECONDS: Final = DRAIN_SECONDS + 15


def proxy_children(cluster: ClusterContext, replicas: int) -> list[Manifest]:
    """Everything of the proxies; nothing if there are to be none for good."""
    if not cluster.spec.proxy.replicas:
        return []
    its_labels = labels(cluster.name, PROXY, version=cluster.version)
    configuration = settings_map(cluster.owner, cluster.proxy, its_labels, {"proxy.conf": _settings(cluster)})
    found = selector(cluster.name, PROXY)
    spec = {
        "replicas": replicas,
        "minReadySeconds": 2,
        "progressDeadlineSeconds": 180,
        "revisionHistoryLimit": 3,
        "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 0, "maxSurge": 1}},
        "selector": {"matchLabels": found},
        "template": _template(cluster, its_labels, configuration["metadata"]["name"]),
    }
    return [
        configuration,
        _service(cluster, its_labels, found),
        child(cluster.owner, "Deployment", cluster.proxy, its_labels, spec=spec),
    ]


def _service(cluster: ClusterContext, its_labels: dict[str, str], found: dict[str, str]) -> Manifest:
    wanted = cluster.spec.proxy.service
    optional = {
        "loadBalancerSourceRanges": wanted.load_balancer_source_ranges,
        "loadBalancerClass": wanted.load_balancer_class,
        "externalTrafficPolicy": wanted.external_traffic_policy,
    }
    spec = {
        "type": wanted.type,
        "selector": found,
        "ports": service_ports(cluster),
        **{name: value for name, value in optional.items() if value is not None},
    }
    service = child(cluster.owner, "Service", cluster.proxy, its_labels, spec=spec)
    if wanted.annotations:
        service["metadata"]["annotations"] = dict(wanted.annotations)
    return service


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


def _template(cluster: ClusterContext, its_labels: dict[str, str], configuration: str) -> dict[str, Any]:
    spec = cluster.spec.proxy
    serves = {"grpc": {"port": PROXY_CONTROL_PORT}, "timeoutSeconds": 5}
    lives = {"grpc": {"port": PROXY_CONTROL_PORT, "service": LIVENESS}, "timeoutSeconds": 10}
    container = Container(
        name=PROXY,
        image=cluster.image(PROXY, spec),
        pull_policy=cluster.spec.image_pull_policy,
        arguments=["proxy", "run", "--conf", "/conf/proxy.conf"],
        ports={**client_ports(cluster), "control": PROXY_CONTROL_PORT},
        readiness=serves | {"periodSeconds": 2},
        liveness=lives | {"periodSeconds": 20, "failureThreshold": 6},
        startup=serves | {"periodSeconds": 1, "failureThreshold": 300},
        environment=control_environment(),
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
        selector=selector(cluster.name, PROXY),
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
