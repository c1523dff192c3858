"""What protects and watches the pods: disruption budgets, network policies, a PodMonitor."""

from __future__ import annotations

from typing import Any, Final

from magnetar.operator.children.access import client_ports, plain_ports
from magnetar.operator.children.context import (
    BOOKIE_CONTROL_PORT,
    BOOKIE_METRICS_PORT,
    BOOKIE_PORT,
    BROKER_CONTROL_PORT,
    PROXY_CONTROL_PORT,
    SERVICE_PORT,
    WEB_PORT,
    ZOOKEEPER_PORT,
    ClusterContext,
)
from magnetar.operator.children.naming import (
    BOOKIE,
    BROKER,
    INSTANCE_LABEL,
    NAME_LABEL,
    PROXY,
    READ_ONLY_BROKER,
    READER_LABEL,
    ZOOKEEPER,
    OwnerResource,
    child,
    labels,
    selector,
)
from magnetar.operator.children.zookeeper import ELECTION_PORT, METRICS_PORT, PEER_PORT
from magnetar.operator.kubernetes.kinds import Manifest

OPERATOR_LABELS: Final = {NAME_LABEL: "magnetar-operator"}
"""The labels of the operator's own pods, as its chart sets them."""
_NAMESPACE_LABEL: Final = "kubernetes.io/metadata.name"

_ANYBODY: Final[list[dict[str, Any]]] = []
"""The peers of a NetworkPolicy's rule without `from`, which lets anybody in."""


def policy_children(cluster: ClusterContext, *, pod_monitors_known: bool) -> list[Manifest]:
    """The policies of the cluster; each pool has a disruption budget of its own."""
    found = []
    if cluster.runs_zookeeper:
        found.append(budget(cluster.owner, cluster.zookeeper, cluster.name, ZOOKEEPER))
    if not cluster.attached:
        found.append(budget(cluster.owner, cluster.broker, cluster.name, BROKER))
        if cluster.spec.proxy.replicas:
            found.append(budget(cluster.owner, cluster.proxy, cluster.name, PROXY))
    if cluster.spec.read_only_brokers is not None:
        found.append(budget(cluster.owner, cluster.read_only_broker, cluster.name, READ_ONLY_BROKER))
    if cluster.spec.network_policies:
        found += _network_policies(cluster)
    wanted = cluster.spec.monitoring.pod_monitors
    if wanted == "Always" or (wanted == "Auto" and pod_monitors_known):
        found.append(_pod_monitor(cluster))
    return found


def budget(owner: OwnerResource, name: str, cluster: str, component: str, pool: str = "") -> Manifest:
    """One pod of a component at a time may be evicted. Pods that are not ready may always be: they serve nobody."""
    spec = {
        "maxUnavailable": 1,
        "unhealthyPodEvictionPolicy": "AlwaysAllow",
        "selector": {"matchLabels": selector(cluster, component, pool)},
    }
    return child(owner, "PodDisruptionBudget", name, labels(cluster, component, pool=pool), spec=spec)


def _network_policies(cluster: ClusterContext) -> list[Manifest]:
    rules = {} if cluster.attached else _own_rules(cluster)
    if cluster.spec.read_only_brokers is not None:
        # Their number goes by their metrics.
        rules[READ_ONLY_BROKER] = _broker_rules(cluster, BROKER_CONTROL_PORT, WEB_PORT)
    return [_network_policy(cluster, component, found) for component, found in sorted(rules.items())]


def _own_rules(cluster: ClusterContext) -> dict[str, list[dict[str, Any]]]:
    """By component, of all but the read-only brokers."""
    own, operator = _own(cluster), _operator(cluster)
    rules = {
        BOOKIE: [
            _rule([*own, *_readers()], BOOKIE_PORT),
            _rule(operator, BOOKIE_CONTROL_PORT),
            _rule(_ANYBODY, BOOKIE_METRICS_PORT),
        ],
        BROKER: _broker_rules(cluster, BROKER_CONTROL_PORT),
    }
    if cluster.spec.proxy.replicas:
        clients = sorted(client_ports(cluster).values())
        rules[PROXY] = [_rule(_ANYBODY, *clients), _rule(operator, PROXY_CONTROL_PORT)]
    if cluster.runs_zookeeper:
        servers = [{"podSelector": {"matchLabels": selector(cluster.name, ZOOKEEPER)}}]
        rules[ZOOKEEPER] = [
            _rule([*own, *_readers(), *operator], ZOOKEEPER_PORT),
            _rule(servers, PEER_PORT, ELECTION_PORT),
            _rule(_ANYBODY, METRICS_PORT),
        ]
    return rules


def _broker_rules(cluster: ClusterContext, *operator_ports: int) -> list[dict[str, Any]]:
    clients = sorted(client_ports(cluster).values())
    rules = [_rule(_ANYBODY, *clients), _rule(_operator(cluster), *operator_ports)]
    if not plain_ports(cluster):
        rules.append(_rule(_own(cluster), SERVICE_PORT, WEB_PORT))
    return rules


def _own(cluster: ClusterContext) -> list[dict[str, Any]]:
    return [{"podSelector": {"matchLabels": {INSTANCE_LABEL: cluster.name, NAME_LABEL: "magnetar"}}}]


def _operator(cluster: ClusterContext) -> list[dict[str, Any]]:
    namespace = {_NAMESPACE_LABEL: cluster.defaults.operator_namespace}
    return [{"namespaceSelector": {"matchLabels": namespace}, "podSelector": {"matchLabels": OPERATOR_LABELS}}]


def _readers() -> list[dict[str, Any]]:
    """Who reads segments from the bookies themselves, such as Spark's executors."""
    return [{"namespaceSelector": {}, "podSelector": {"matchLabels": {READER_LABEL: "true"}}}]


def _rule(peers: list[dict[str, Any]], *ports: int) -> dict[str, Any]:
    found: dict[str, Any] = {"ports": [{"port": port, "protocol": "TCP"} for port in ports]}
    return found | ({"from": peers} if peers else {})


def _network_policy(cluster: ClusterContext, component: str, rules: list[dict[str, Any]]) -> Manifest:
    spec = {
        "podSelector": {"matchLabels": selector(cluster.name, component)},
        "policyTypes": ["Ingress"],
        "ingress": rules,
    }
    name = f"{cluster.name}-{component}"
    return child(cluster.owner, "NetworkPolicy", name, labels(cluster.name, component), spec=spec)


def _pod_monitor(cluster: ClusterContext) -> Manifest:
    """One for all: pods without a port of that name are left out by Prometheus."""
    brokers: dict[str, Any] = {"port": "http", "path": "/metrics"}
    if not plain_ports(cluster):
        # The certificate names what clients connect to, not pods.
        brokers = {"port": "https", "path": "/metrics", "scheme": "https", "tlsConfig": {"insecureSkipVerify": True}}
    copied = ["app.kubernetes.io/component", INSTANCE_LABEL]
    spec = {
        "selector": {"matchLabels": {NAME_LABEL: "magnetar", INSTANCE_LABEL: cluster.name}},
        "podTargetLabels": copied,
        "podMetricsEndpoints": [{"port": "metrics", "path": "/metrics"}, brokers],
    }
    its_labels = labels(cluster.name, "monitoring") | (cluster.spec.monitoring.labels or {})
    return child(cluster.owner, "PodMonitor", cluster.name, its_labels, spec=spec)
