"""What bookies, brokers and proxies have in common: pods of our own servers, and Deployments of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from magnetar.operator.children.access import access_mounts, access_volumes, service_ports
from magnetar.operator.children.context import LIVENESS, ClusterContext
from magnetar.operator.children.control import control_environment, control_mount, control_volume
from magnetar.operator.children.naming import BOOKIE, child, selector
from magnetar.operator.children.pods import CRASH_DIRECTORY, Container, Pod, hashed_template
from magnetar.operator.kubernetes.kinds import Manifest
from magnetar.operator.resources.common import Component, ServiceSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """One kind of them. `configuration` is the ConfigMap with its `file`."""

    component: str
    program: str = ""
    """Its image and its command where they are not called as the component."""
    spec: Component
    labels: dict[str, str]
    configuration: Manifest
    file: str
    ports: Mapping[str, int]
    """The control port among them."""
    resources: Mapping[str, Any]
    grace_seconds: int
    environment: Sequence[Mapping[str, Any]] = ()
    data_mounts: Sequence[Mapping[str, Any]] = ()
    volumes: Sequence[Mapping[str, Any]] = ()
    """Further ones, beside its configuration and its access."""
    crash_directory: str = CRASH_DIRECTORY
    ready_every_seconds: int = 2
    start_seconds_max: int = 300
    pool: str = ""
    """The pool's name where the server is a bookie; empty for others."""


def server_template(cluster: ClusterContext, server: Server) -> dict[str, Any]:
    """Of their pods. Health is what Services go by: not while it drains, nor before it takes part."""
    with_access = server.component != BOOKIE
    port, program = server.ports["control"], server.program or server.component
    serves = {"grpc": {"port": port}, "timeoutSeconds": 5}
    lives = {"grpc": {"port": port, "service": LIVENESS}, "timeoutSeconds": 10}
    container = Container(
        name=server.component,
        image=cluster.image(program, server.spec),
        pull_policy=cluster.spec.image_pull_policy,
        arguments=[program, "run", "--conf", f"/conf/{server.file}"],
        ports=server.ports,
        readiness=serves | {"periodSeconds": server.ready_every_seconds},
        liveness=lives | {"periodSeconds": 20, "failureThreshold": 6},
        startup=serves | {"periodSeconds": 1, "failureThreshold": server.start_seconds_max},
        environment=[*server.environment, *control_environment()],
        mounts=[
            *server.data_mounts,
            {"name": "configuration", "mountPath": "/conf", "readOnly": True},
            control_mount(),
            *(access_mounts(cluster) if with_access else ()),
        ],
        resources=server.resources,
        crash_directory=server.crash_directory,
    )
    pod = Pod(
        container=container,
        labels=server.labels,
        selector=selector(cluster.name, server.component, server.pool),
        volumes=[
            {"name": "configuration", "configMap": {"name": server.configuration["metadata"]["name"]}},
            control_volume(cluster.name),
            *(access_volumes(cluster) if with_access else ()),
            *server.volumes,
        ],
        grace_seconds=server.grace_seconds,
        pull_secrets=cluster.spec.image_pull_secrets or (),
    )
    return hashed_template(pod, server.spec)


def server_deployment(cluster: ClusterContext, server: Server, replicas: int | None) -> Manifest:
    """A Deployment of them. Without `replicas` their number is not the operator's to set."""
    spec = {
        "minReadySeconds": 2,
        "progressDeadlineSeconds": 180,
        "revisionHistoryLimit": 3,
        # A new broker serves before an old one goes, which gives its bundles away first.
        "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 0, "maxSurge": 1}},
        "selector": {"matchLabels": selector(cluster.name, server.component)},
        "template": server_template(cluster, server),
    } | ({"replicas": replicas} if replicas is not None else {})
    return child(cluster.owner, "Deployment", f"{cluster.name}-{server.component}", server.labels, spec=spec)


def client_service(
    cluster: ClusterContext, component: str, its_labels: dict[str, str], wanted: ServiceSpec
) -> Manifest:
    """A component's Service for clients, as people want it."""
    optional = {
        "loadBalancerSourceRanges": wanted.load_balancer_source_ranges,
        "loadBalancerClass": wanted.load_balancer_class,
        "externalTrafficPolicy": wanted.external_traffic_policy,
    }
    spec = {
        "type": wanted.type,
        "selector": selector(cluster.name, component),
        "ports": service_ports(cluster),
        **{name: value for name, value in optional.items() if value is not None},
    }
    service = child(cluster.owner, "Service", f"{cluster.name}-{component}", its_labels, spec=spec)
    if wanted.annotations:
        service["metadata"]["annotations"] = dict(wanted.annotations)
    return service
