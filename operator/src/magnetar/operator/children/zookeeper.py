"""The ZooKeeper ensemble: a StatefulSet, its Services and its configuration."""

from __future__ import annotations

from typing import Any, Final

from magnetar.operator.children.configuration import setting_text, settings_map
from magnetar.operator.children.context import ZOOKEEPER_PORT, ClusterContext
from magnetar.operator.children.naming import ZOOKEEPER, child, labels, selector
from magnetar.operator.children.pods import Container, Pod, hashed_template
from magnetar.operator.children.volumes import claim_templates
from magnetar.operator.kubernetes.kinds import Manifest
from magnetar.operator.resources.cluster import ZookeeperSpec

PEER_PORT: Final = 2888
ELECTION_PORT: Final = 3888
METRICS_PORT: Final = 7000

RESOURCES: Final[dict[str, Any]] = {"requests": {"cpu": "100m", "memory": "256Mi"}, "limits": {"memory": "1Gi"}}

# The four-letter word that says whether this server takes part, by the shell alone: a probe runs all the time.
_SERVES: Final = f"exec 3<>/dev/tcp/127.0.0.1/{ZOOKEEPER_PORT} && echo srvr >&3 && grep -q ^Mode <&3"
_ANSWERS: Final = f"exec 3<>/dev/tcp/127.0.0.1/{ZOOKEEPER_PORT} && echo ruok >&3 && grep -q imok <&3"

_START: Final = "echo $((${HOSTNAME##*-} + 1)) > /data/myid && exec zookeeper /conf/zoo.cfg"


def zookeeper_children(cluster: ClusterContext) -> list[Manifest]:
    """Everything of the ensemble; nothing if there is one already."""
    if not cluster.runs_zookeeper:
        return []
    spec = cluster.spec.metadata.zookeeper or ZookeeperSpec()
    its_labels = labels(cluster.name, ZOOKEEPER, version=cluster.version)
    configuration = settings_map(
        cluster.owner, cluster.zookeeper, its_labels, {"zoo.cfg": _configuration(cluster, spec)}
    )
    return [configuration, *_services(cluster, its_labels), _stateful_set(cluster, spec, its_labels, configuration)]


def _configuration(cluster: ClusterContext, spec: ZookeeperSpec) -> str:
    settings = {
        "4lw.commands.whitelist": "ruok,srvr,mntr,conf",
        "admin.enableServer": "false",
        "autopurge.purgeInterval": "1",
        "autopurge.snapRetainCount": "3",
        "clientPort": str(ZOOKEEPER_PORT),
        "dataDir": "/data",
        "initLimit": "10",
        "maxClientCnxns": "0",
        "metricsProvider.className": "org.apache.zookeeper.metrics.prometheus.PrometheusMetricsProvider",
        "metricsProvider.httpPort": str(METRICS_PORT),
        # A server finds itself among the others before its own name is known everywhere.
        "quorumListenOnAllIPs": "true",
        "syncLimit": "5",
        "tickTime": "2000",
    } | {name: setting_text(value) for name, value in (spec.settings or {}).items()}
    lines = [f"{name}={value}" for name, value in sorted(settings.items())]
    headless = cluster.address(f"{cluster.zookeeper}-peers")
    if spec.replicas > 1:
        lines += [
            f"server.{number + 1}={cluster.zookeeper}-{number}.{headless}:{PEER_PORT}:{ELECTION_PORT}"
            for number in range(spec.replicas)
        ]
    return "\n".join(lines) + "\n"


def _services(cluster: ClusterContext, its_labels: dict[str, str]) -> list[Manifest]:
    found = selector(cluster.name, ZOOKEEPER)
    client = {"name": "client", "port": ZOOKEEPER_PORT, "targetPort": "client"}
    peers = [
        {"name": "peers", "port": PEER_PORT, "targetPort": "peers"},
        {"name": "election", "port": ELECTION_PORT, "targetPort": "election"},
    ]
    headless = {"clusterIP": "None", "publishNotReadyAddresses": True, "selector": found, "ports": [client, *peers]}
    return [
        child(cluster.owner, "Service", cluster.zookeeper, its_labels, spec={"selector": found, "ports": [client]}),
        child(cluster.owner, "Service", f"{cluster.zookeeper}-peers", its_labels, spec=headless),
    ]


def _stateful_set(
    cluster: ClusterContext, spec: ZookeeperSpec, its_labels: dict[str, str], configuration: Manifest
) -> Manifest:
    found = selector(cluster.name, ZOOKEEPER)
    volumes = claim_templates({"data": spec.storage}, found)
    name = configuration["metadata"]["name"]
    container = Container(
        name=ZOOKEEPER,
        image=cluster.image(ZOOKEEPER, spec),
        pull_policy=cluster.spec.image_pull_policy,
        command=["bash", "-c"],
        arguments=[_START],
        ports={"client": ZOOKEEPER_PORT, "peers": PEER_PORT, "election": ELECTION_PORT, "metrics": METRICS_PORT},
        readiness={"exec": {"command": ["bash", "-c", _SERVES]}, "periodSeconds": 5, "timeoutSeconds": 5},
        liveness={"exec": {"command": ["bash", "-c", _ANSWERS]}, "periodSeconds": 20, "timeoutSeconds": 10},
        startup={"exec": {"command": ["bash", "-c", _ANSWERS]}, "periodSeconds": 1, "failureThreshold": 120},
        mounts=[
            {"name": "data", "mountPath": "/data"},
            {"name": "configuration", "mountPath": "/conf", "readOnly": True},
        ],
        resources=RESOURCES,
    )
    pod = Pod(
        container=container,
        labels=its_labels,
        selector=found,
        volumes=[{"name": "configuration", "configMap": {"name": name}}],
        grace_seconds=30,
        pull_secrets=cluster.spec.image_pull_secrets or (),
    )
    return child(
        cluster.owner,
        "StatefulSet",
        cluster.zookeeper,
        its_labels,
        spec={
            "replicas": 0 if cluster.spec.hibernated else spec.replicas,
            "serviceName": f"{cluster.zookeeper}-peers",
            "podManagementPolicy": "Parallel",
            # The operator restarts them one by one, the leader last.
            "updateStrategy": {"type": "OnDelete"},
            "selector": {"matchLabels": found},
            "template": hashed_template(pod, spec),
            "volumeClaimTemplates": volumes,
        },
    )
