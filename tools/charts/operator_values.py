"""The values of the chart `magnetar-operator`: from these types come its values.yaml, schema and table."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

import msgspec
from magnetar.operator.children.pods import CONTAINER_SECURITY, POD_SECURITY
from magnetar.operator.resources.common import Free, Part, Quantity
from magnetar.operator.resources.markers import says

LABEL_PATTERN: Final = "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"
"""Names of namespaces, accounts and Secrets that people give."""
DIGEST_PATTERN: Final = "^(sha256:[0-9a-f]{64})?$"

Labels = Annotated[dict[str, str], says("Further labels.")]
Annotations = Annotated[dict[str, str], says("Further annotations.")]


class Image(Part, kw_only=True, frozen=True):
    """The operator's own image."""

    repository: Annotated[
        str, msgspec.Meta(min_length=1), says("Its name, with the registry that it is pulled from.")
    ] = "magnetar/operator"
    tag: Annotated[str, says("By default the chart's appVersion.")] = ""
    digest: Annotated[str, msgspec.Meta(pattern=DIGEST_PATTERN), says("Pins it: sha256:… goes before the tag.")] = ""
    pull_policy: Annotated[Literal["Always", "IfNotPresent", "Never"], says("As pods have it.")] = "IfNotPresent"


class SecretReference(Part, kw_only=True, frozen=True):
    """A Secret by its name."""

    name: Annotated[str, msgspec.Meta(min_length=1), says("Its name.")]


class Clusters(Part, kw_only=True, frozen=True):
    """What clusters get that do not say otherwise."""

    image_repository: Annotated[
        str, says("What images' names begin with; by default the operator's own repository without its last part.")
    ] = ""
    version: Annotated[str, says("Of the images; by default the operator's own tag.")] = ""
    domain: Annotated[str, msgspec.Meta(min_length=1), says("The Kubernetes cluster's DNS domain.")] = "cluster.local"


class Crds(Part, kw_only=True, frozen=True):
    """The custom resource definitions. They are ordinary templates, so that `helm upgrade` upgrades them."""

    install: Annotated[bool, says("Whether this release has them; one of several operators is enough.")] = True
    annotations: Annotations = msgspec.field(default_factory=dict)


class Rbac(Part, kw_only=True, frozen=True):
    """Rights."""

    create: Annotated[bool, says("Whether the operator's roles and bindings are made.")] = True
    aggregate_roles: Annotated[
        bool,
        says("Whether Kubernetes' own roles view, edit and admin are given rights on the custom resources."),
    ] = True


class ServiceAccount(Part, kw_only=True, frozen=True):
    """Who the operator is."""

    create: Annotated[bool, says("Whether it is made.")] = True
    name: Annotated[str, says("By default the release's full name, or `default` where it is not made.")] = ""
    annotations: Annotations = msgspec.field(default_factory=dict)


class Probe(Part, kw_only=True, frozen=True):
    """How often it is asked, and what is made of it."""

    period_seconds: Annotated[int, msgspec.Meta(ge=1), says("Between two questions.")]
    timeout_seconds: Annotated[int, msgspec.Meta(ge=1), says("How long an answer may take.")] = 5
    failure_threshold: Annotated[int, msgspec.Meta(ge=1), says("How many failures in a row count.")]


class Budget(Part, kw_only=True, frozen=True):
    """What may be evicted; only with more than one replica."""

    enabled: Annotated[bool, says("Whether it is made.")] = True
    max_unavailable: Annotated[int, msgspec.Meta(ge=1), says("How many pods at a time.")] = 1


class Egress(Part, kw_only=True, frozen=True):
    """Where the operator may connect to."""

    restricted: Annotated[
        bool, says("Whether only to DNS, the API server's ports and the ports of clusters' pods that it asks.")
    ] = False
    api_server_ports: Annotated[
        list[Annotated[int, msgspec.Meta(ge=1, le=65535)]],
        says("Where the API server listens.", default=[443, 6443]),
    ] = msgspec.field(default_factory=lambda: [443, 6443])
    further: Annotated[list[Free], says("Further egress rules, as NetworkPolicies have them.")] = msgspec.field(
        default_factory=list
    )


class NetworkPolicy(Part, kw_only=True, frozen=True):
    """Who reaches the operator."""

    enabled: Annotated[bool, says("Whether it is made: nobody reaches anything but the metrics' port.")] = True
    metrics_from: Annotated[
        list[Free], says("Who reads the metrics, as NetworkPolicies' `from` has it; empty: everybody.")
    ] = msgspec.field(default_factory=list)
    egress: Annotated[Egress, says("Where the operator may connect to.")] = Egress()


class MetricsService(Part, kw_only=True, frozen=True):
    """The Service of the metrics."""

    enabled: Annotated[bool, says("Whether it is made.")] = True
    annotations: Annotations = msgspec.field(default_factory=dict)


class Monitor(Part, kw_only=True, frozen=True):
    """What tells the Prometheus operator where metrics are; its CRDs must be there."""

    enabled: Annotated[bool, says("Whether it is made.")] = False
    labels: Annotated[dict[str, str], says("For Prometheus to find it by.")] = msgspec.field(default_factory=dict)
    interval: Annotated[str, msgspec.Meta(pattern="^([0-9]+(ms|s|m|h))?$"), says("By default Prometheus' own.")] = ""


class Metrics(Part, kw_only=True, frozen=True):
    """Metrics are at /metrics of port 8080."""

    service: Annotated[MetricsService, says("The Service of the metrics.")] = MetricsService()
    pod_monitor: Annotated[Monitor, says("A PodMonitor. Either this or the ServiceMonitor.")] = Monitor()
    service_monitor: Annotated[Monitor, says("A ServiceMonitor, of the Service above.")] = Monitor()


class Resources(Part, kw_only=True, frozen=True):
    """Processor and memory."""

    requests: Annotated[dict[str, Quantity], says("What the scheduler reserves.")] = msgspec.field(default_factory=dict)
    limits: Annotated[dict[str, Quantity], says("What may not be exceeded.")] = msgspec.field(default_factory=dict)


_POD_SECURITY: Final[dict[str, Any]] = {
    name: value for name, value in POD_SECURITY.items() if not name.startswith("fsGroup")
}
"""It has no volumes that a group would own."""


class OperatorValues(Part, kw_only=True, frozen=True):
    """All values of the chart."""

    fullname_override: Annotated[
        str,
        msgspec.Meta(max_length=53, pattern="^([a-z]([-a-z0-9]*[a-z0-9])?)?$"),
        says("What objects are called; by default after the release and the chart."),
    ] = ""
    common_labels: Annotated[dict[str, str], says("Labels of all objects.")] = msgspec.field(default_factory=dict)
    replicas: Annotated[
        int, msgspec.Meta(ge=1, le=5), says("Pods. One works, the others wait to take over when it is gone.")
    ] = 1
    image: Annotated[Image, says("The operator's own image.")] = Image()
    image_pull_secrets: Annotated[list[SecretReference], says("Secrets for the registry.")] = msgspec.field(
        default_factory=list
    )
    clusters: Annotated[Clusters, says("What clusters get that do not say otherwise.")] = Clusters()
    watch_namespaces: Annotated[
        list[Annotated[str, msgspec.Meta(max_length=63, pattern=LABEL_PATTERN)]],
        says(
            "Where the operator works, with a Role in each of these namespaces, which must be there. "
            "Empty: everywhere, with a ClusterRole."
        ),
    ] = msgspec.field(default_factory=list)
    log_format: Annotated[Literal["json", "text"], says("For programs or for people.")] = "json"
    log_level: Annotated[Literal["debug", "info", "warning", "error"], says("How much is logged.")] = "info"
    crds: Annotated[Crds, says("The custom resource definitions. They stay when the release goes.")] = Crds()
    rbac: Annotated[Rbac, says("Rights.")] = Rbac()
    service_account: Annotated[ServiceAccount, says("Who the operator is.")] = ServiceAccount()
    resources: Annotated[Resources, says("Processor and memory.")] = Resources(
        requests={"cpu": "50m", "memory": "128Mi"}, limits={"memory": "256Mi"}
    )
    pod_security_context: Annotated[
        Free, says("Of the pod: with the next one, the restricted profile.", default=_POD_SECURITY)
    ] = msgspec.field(default_factory=lambda: dict(_POD_SECURITY))
    security_context: Annotated[Free, says("Of the container.", default=CONTAINER_SECURITY)] = msgspec.field(
        default_factory=lambda: dict(CONTAINER_SECURITY)
    )
    liveness_probe: Annotated[Probe, says("/healthz fails when nothing is reconciled any more.")] = Probe(
        period_seconds=20, failure_threshold=6
    )
    readiness_probe: Annotated[Probe, says("/readyz, of those that wait to take over, too.")] = Probe(
        period_seconds=5, failure_threshold=3
    )
    termination_grace_period_seconds: Annotated[
        int, msgspec.Meta(ge=1), says("For the pass that is under way, and to hand the lease over.")
    ] = 30
    deployment_annotations: Annotated[dict[str, str], says("Annotations of the Deployment.")] = msgspec.field(
        default_factory=dict
    )
    pod_labels: Annotated[dict[str, str], says("Further labels of the pods.")] = msgspec.field(default_factory=dict)
    pod_annotations: Annotated[dict[str, str], says("Annotations of the pods.")] = msgspec.field(default_factory=dict)
    env: Annotated[list[Free], says("Further environment variables.")] = msgspec.field(default_factory=list)
    volumes: Annotated[list[Free], says("Further volumes.")] = msgspec.field(default_factory=list)
    volume_mounts: Annotated[list[Free], says("Where they are mounted.")] = msgspec.field(default_factory=list)
    node_selector: Annotated[dict[str, str], says("Labels that a node must have.")] = msgspec.field(
        default_factory=dict
    )
    affinity: Annotated[Free, says("By default replicas are on different nodes if that can be.")] = msgspec.field(
        default_factory=dict
    )
    tolerations: Annotated[list[Free], says("Taints of nodes that do not keep the pods away.")] = msgspec.field(
        default_factory=list
    )
    topology_spread_constraints: Annotated[
        list[Free], says("How pods spread over zones and nodes; a missing labelSelector is the operator's.")
    ] = msgspec.field(default_factory=list)
    priority_class_name: Annotated[str, says("Priority among all pods of the Kubernetes cluster.")] = ""
    pod_disruption_budget: Annotated[Budget, says("What may be evicted; only with more than one replica.")] = Budget()
    network_policy: Annotated[NetworkPolicy, says("Who reaches the operator, and whom it reaches.")] = NetworkPolicy()
    metrics: Annotated[Metrics, says("What Prometheus reads, at /metrics of port 8080.")] = Metrics()
