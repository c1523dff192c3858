"""A pool of bookies: a StatefulSet, its Service and its configuration; and the cluster's default pool."""

from __future__ import annotations

from typing import Any, Final

import msgspec
from magnetar.operator.children.configuration import settings_file, settings_map
from magnetar.operator.children.context import BOOKIE_CONTROL_PORT, BOOKIE_METRICS_PORT, BOOKIE_PORT, ClusterContext
from magnetar.operator.children.naming import BOOKIE, OwnerResource, child, labels, selector
from magnetar.operator.children.pods import field_variable
from magnetar.operator.children.policies import budget
from magnetar.operator.children.servers import Server, server_template
from magnetar.operator.children.volumes import claim_templates, volume_names
from magnetar.operator.kubernetes.kinds import KINDS, Manifest
from magnetar.operator.resources.bookie import BookieSpec
from magnetar.operator.resources.common import Scalar
from magnetar.operator.resources.quantities import size_bytes

RESOURCES: Final[dict[str, Any]] = {"requests": {"cpu": "200m", "memory": "512Mi"}, "limits": {"memory": "2Gi"}}

FILE: Final = "bookkeeper.conf"

GRACE_SECONDS: Final = 60
"""To write out what is cached; killed earlier, a bookie replays its journal."""

LOST_DELAY_SECONDS: Final = 300
"""How long a bookie may be away before its ledgers are copied; while a second one is away, no longer."""

JOURNAL_FILE_MEGABYTES: Final = 256
"""A file is trimmed as a whole, once a checkpoint is behind it: two or three are there at a time, which leaves room on
the smallest volume. BookKeeper's own 2048, and the five files that it keeps beside for inspection, fill 12 GB."""

JOURNAL: Final = "journal"
LEDGERS: Final = "ledgers"

CRASHES: Final = "crashes"
"""The folder of a bookie's crashes, on its first volume for ledgers: it outlives pods. No name of a bookie's own."""

_OF_THE_POOL: Final = (
    *("image", "settings", "resources", "pod"),
    *("autoscaling", "replicas", "drainBytesPerSecondMax"),
)
"""What the cluster's own pool has from the cluster's spec."""


def default_pool(cluster: ClusterContext) -> Manifest:
    """The `Bookie` that the cluster makes. Its number is not set when the cluster does not set it: then it is the
    user's or the autoscaler's."""
    wanted = cluster.spec.bookkeeper
    spec: dict[str, Any] = {"clusterName": cluster.name, "storage": msgspec.to_builtins(wanted.storage)}
    given = msgspec.to_builtins(wanted)
    spec |= {name: given[name] for name in _OF_THE_POOL if name in given}
    return child(cluster.owner, "Bookie", cluster.name, labels(cluster.name, BOOKIE, pool=cluster.name), spec=spec)


def default_pool_number(cluster: ClusterContext, uid: str) -> Manifest | None:
    """The number alone, of the default pool that is there, if the cluster says it. Applied under a name of its own it
    stays what it is once the cluster says it no more: as the operator's alone it would go, and become the default."""
    if cluster.spec.bookkeeper.replicas is None:
        return None
    metadata = {"name": cluster.name, "namespace": cluster.owner.namespace, "uid": uid}
    spec = {"replicas": cluster.spec.bookkeeper.replicas}
    return {"apiVersion": KINDS["Bookie"].api_version, "kind": "Bookie", "metadata": metadata, "spec": spec}


def bookie_children(cluster: ClusterContext, owner: OwnerResource, spec: BookieSpec, replicas: int) -> list[Manifest]:
    """Everything of one pool. `replicas` is what the plan allows by now, which is more than wanted while a bookie that
    is to go is still being drained."""
    pool = owner.name
    name = cluster.bookie(pool)
    its_labels = labels(cluster.name, BOOKIE, version=cluster.version, pool=pool)
    configuration = settings_map(owner, name, its_labels, {FILE: _settings(cluster, spec)})
    found = selector(cluster.name, BOOKIE, pool)
    ports = [
        {"name": "bookie", "port": BOOKIE_PORT, "targetPort": "bookie"},
        {"name": "control", "port": BOOKIE_CONTROL_PORT, "targetPort": "control"},
    ]
    # A bookie registers under its name before it is ready, and others must find it by then.
    service = {"clusterIP": "None", "publishNotReadyAddresses": True, "selector": found, "ports": ports}
    return [
        configuration,
        child(owner, "Service", name, its_labels, spec=service),
        budget(owner, name, cluster.name, BOOKIE, owner.name),
        child(
            owner,
            "StatefulSet",
            name,
            its_labels,
            spec={
                "replicas": replicas,
                "serviceName": name,
                "podManagementPolicy": "Parallel",
                # The operator restarts them one by one, when nothing is under-replicated.
                "updateStrategy": {"type": "OnDelete"},
                # Claims of bookies that are drained are deleted by the operator, others never.
                "persistentVolumeClaimRetentionPolicy": {"whenDeleted": "Retain", "whenScaled": "Retain"},
                "selector": {"matchLabels": found},
                "template": _template(cluster, owner, spec, its_labels, configuration),
                "volumeClaimTemplates": claim_templates(
                    {JOURNAL: spec.storage.journal, LEDGERS: spec.storage.ledgers}, found
                ),
            },
        ),
    ]


def owned_settings(cluster: ClusterContext, spec: BookieSpec) -> dict[str, Scalar]:
    """What people cannot set of bookies."""
    return {
        "metadataServiceUri": f"metadata-store:{cluster.metadata_url}",
        "bookiePort": BOOKIE_PORT,
        "controlPort": BOOKIE_CONTROL_PORT,
        "prometheusStatsHttpPort": BOOKIE_METRICS_PORT,
        "journalDirectories": ",".join(f"/{name}" for name in volume_names(JOURNAL, spec.storage.journal)),
        "ledgerDirectories": ",".join(f"/{name}" for name in volume_names(LEDGERS, spec.storage.ledgers)),
    }


def _settings(cluster: ClusterContext, spec: BookieSpec) -> str:
    # A pod that restarts is back within seconds; its ledgers need not be copied for that.
    defaults: dict[str, Scalar] = {
        "journalMaxBackups": 0,
        "journalMaxSizeMB": JOURNAL_FILE_MEGABYTES,
        "lostBookieRecoveryDelay": LOST_DELAY_SECONDS,
    }
    if spec.drain_bytes_per_second_max is not None:
        defaults["drainRateByBytes"] = size_bytes(spec.drain_bytes_per_second_max)
    return settings_file(defaults, spec.settings, owned_settings(cluster, spec))


def _template(
    cluster: ClusterContext, owner: OwnerResource, spec: BookieSpec, its_labels: dict[str, str], configuration: Manifest
) -> dict[str, Any]:
    name = cluster.bookie(owner.name)
    ledgers = volume_names(LEDGERS, spec.storage.ledgers)
    directories = [*volume_names(JOURNAL, spec.storage.journal), *ledgers]
    server = Server(
        component=BOOKIE,
        spec=spec,
        labels=its_labels,
        configuration=configuration,
        file=FILE,
        ports={"bookie": BOOKIE_PORT, "control": BOOKIE_CONTROL_PORT, "metrics": BOOKIE_METRICS_PORT},
        resources=RESOURCES,
        grace_seconds=GRACE_SECONDS,
        environment=[
            field_variable("POD_NAME", "metadata.name"),
            {"name": "PULSAR_PREFIX_advertisedAddress", "value": f"$(POD_NAME).{cluster.address(name)}"},
        ],
        data_mounts=[{"name": directory, "mountPath": f"/{directory}"} for directory in directories],
        crash_directory=f"/{ledgers[0]}/{CRASHES}",
        ready_every_seconds=3,
        start_seconds_max=600,
        pool=owner.name,
    )
    return server_template(cluster, server)
