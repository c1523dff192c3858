"""What was seen of one resource, trimmed to what plans go by."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from magnetar.balance.model import LoadSnapshot
from magnetar.operator.children.context import ClusterContext
from magnetar.operator.children.naming import OwnerResource
from magnetar.operator.kubernetes.kinds import Manifest
from magnetar.operator.resources.bookie import BookieSpec, BookieStatus
from magnetar.operator.resources.cluster import BundleMove, PulsarClusterStatus

DrainStep: TypeAlias = Literal["None", "ReadOnly", "Replicate", "Verify", "RemoveCookie", "Done"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceFacts:
    """The custom resource itself."""

    generation: int
    deleting: bool = False
    finalizers: Sequence[str] = ()
    owner_uids: Sequence[str] = ()
    """The uids of the resources that it goes with."""
    annotations: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class PodFacts:
    """What is known of one pod."""

    name: str
    uid: str
    component: str
    pool: str = ""
    ordinal: int = -1
    """The number at the end of the name of a StatefulSet's pod, by which they are ordered; -1: none."""
    template_hash: str = ""
    """What it was made from."""
    image: str = ""
    ready: bool = False
    readiness_changed_seconds: float = 0.0
    """Since when it is ready, or is not; 0: nobody says."""
    deleting: bool = False
    stops_by_seconds: float = 0.0
    """When a pod that is deleted must have stopped at the latest; 0: nobody says."""
    phase: str = "Pending"
    node: str = ""
    address: str = ""
    restarts: int = 0
    running: bool = False
    """Its container runs just now, ready or not."""
    waiting_reason: str = ""
    """Why its container or the pod itself waits, such as ImagePullBackOff, CrashLoopBackOff, Unschedulable."""
    waiting_message: str = ""
    exit_code: int | None = None
    """The exit code of the last container that ended; see `magnetar.core.exit_codes`."""
    exit_message: str = ""
    """What the last container that ended said at its end."""
    created_seconds: float = 0.0
    annotations: Mapping[str, str] = field(default_factory=dict)
    config_maps: Sequence[str] = ()
    """Names of those that it mounts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimFacts:
    """One claim of a volume."""

    name: str
    uid: str
    component: str
    pool: str = ""
    volume: str
    """The name of its template."""
    ordinal: int
    requested_bytes: int
    capacity_bytes: int = 0
    deleting: bool = False
    expandable: bool = False
    """Whether its storage class lets volumes grow."""
    storage_class: str = ""
    bound: bool = True
    """Whether the claim is bound: its volume is there."""
    warning: str = ""
    """Why it is not, or does not grow."""
    created_seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadFacts:
    """A StatefulSet or a Deployment."""

    kind: str
    name: str
    uid: str
    desired: int
    replicas: int
    ready: int
    updated: int
    settled: bool
    """Its controller has seen the newest generation."""
    resource_version: str = ""
    """The resource version of the object as it was seen: a plan that depends on it has it changed only if it still is
    that one."""
    deleting: bool = False
    template_hash: str = ""
    """The digest of its template."""
    claim_sizes: Mapping[str, str] = field(default_factory=dict)
    """What the claim templates of a StatefulSet ask for, by their names."""
    stalled_message: str = ""
    """A Deployment that does not get on, or a workload whose pods are refused."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Children:
    """What exists with the resource's labels."""

    objects: Mapping[tuple[str, str], Manifest] = field(default_factory=dict)
    """By kind and name, but for pods, claims and workloads: whole."""
    pods: Sequence[PodFacts] = ()
    claims: Sequence[ClaimFacts] = ()
    workloads: Mapping[tuple[str, str], WorkloadFacts] = field(default_factory=dict)
    """StatefulSets and Deployments, by kind and name."""
    warnings: Mapping[tuple[str, str], str] = field(default_factory=dict)
    """Why Jobs have no pods, by kind and name."""

    def jobs(self) -> list[Manifest]:
        """The Jobs, in the order of their names."""
        return [manifest for (kind, _), manifest in sorted(self.objects.items()) if kind == "Job"]

    def of(self, component: str, pool: str = "") -> list[PodFacts]:
        """A component's pods by number, then name."""
        found = [pod for pod in self.pods if pod.component == component and pod.pool == pool]
        return sorted(found, key=lambda pod: (pod.ordinal, pod.name))


@dataclass(frozen=True, slots=True, kw_only=True)
class SpecProblem:
    """Something that a resource names is not as it must be; only a person can mend it."""

    reason: str
    """The condition's reason, one CamelCase word."""
    message: str
    """What, which field names it, and what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BookieFacts:
    """What a bookie says of itself; a pod that does not answer has none."""

    bookie_id: str
    writable: bool
    read_only_reasons: Sequence[str] = ()
    used_bytes: int = 0
    """Bytes used on its ledger volumes together."""
    total_bytes: int = 0
    disk_usage_percent: int = 0
    """How full the fullest ledger volume is."""
    ledgers: int = 0
    drain: DrainStep = "None"
    ledgers_total: int = 0
    ledgers_left: int = 0
    bytes_per_second: int = 0
    blockers: Sequence[str] = ()
    limbo_ledgers: int = 0
    """That may lack entries here; it fetches them from the other bookies."""
    limbo_ledgers_unhealed: int = 0
    """Ledgers in limbo that could not be healed at the last attempt."""
    limbo_entries_lost: int = 0
    """Entries in limbo that are lost for certain."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LostBookieFacts:
    """What a bookie that runs says of one that does not."""

    bookie_id: str
    registered: bool
    """It is up after all, or was a moment ago."""
    has_cookie: bool
    ledgers_left: int
    """Ledgers whose metadata names the bookie."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EnsembleFacts:
    """How many bookies ledgers are spread over where it is most, as a broker knows."""

    size: int
    wanted_by: str
    """In words, such as `namespace public/default`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerFacts:
    """What a broker says of itself; a pod that does not answer has none."""

    broker_id: str
    registered: bool
    leading: bool = False
    bundles: int = 0
    load_percent: int = 0
    """The load of its fullest resource."""
    drain: Literal["None", "Running", "Done"] = "None"
    bundles_left: int = 0
    blockers: Sequence[str] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOnlyBrokerFacts:
    """What a read-only broker's metrics say; a pod that does not answer has none."""

    connections: int
    """Connections of clients."""
    lag_seconds: float = 0.0
    """By which the topic that is the furthest behind is behind its writer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ZookeeperFacts:
    """What a ZooKeeper server answers to `srvr`; a pod that does not answer has none."""

    mode: Literal["leader", "follower", "observer", "standalone"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolFacts:
    """A Bookie resource of the cluster, as the cluster's own plan sees it."""

    name: str
    uid: str
    generation: int
    deleting: bool
    replicas: int
    status: BookieStatus
    cluster_uid: str = ""
    """The uid of the PulsarCluster that made it; empty: a person did."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSeen:
    """All that the plan of a PulsarCluster goes by."""

    cluster: ClusterContext
    resource: ResourceFacts
    status: PulsarClusterStatus
    """The cluster's status as it was written last."""
    children: Children
    """The children of the cluster, but for those of pools: pods of zookeeper, broker, proxy, read-only-broker, init;
    all claims of the cluster, those of its pools too."""
    pools: Sequence[PoolFacts] = ()
    zookeeper: Mapping[str, ZookeeperFacts] = field(default_factory=dict)
    """By pod, as the next one."""
    brokers: Mapping[str, BrokerFacts] = field(default_factory=dict)
    read_only_brokers: Mapping[str, ReadOnlyBrokerFacts] = field(default_factory=dict)
    driver: str = ""
    """Who balances, as the brokers have it: leader, control; empty: none answered."""
    moves: Sequence[BundleMove] = ()
    """The leader's latest decisions, the latest first."""
    load: LoadSnapshot | None = None
    """Seen only where the operator balances by itself and it is time for a round."""
    pod_monitors_known: bool = False
    troubles: Sequence[SpecProblem] = ()
    """With Secrets that the spec names."""
    now_seconds: float
    """The time of this look, in seconds since 1970."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolSeen:
    """All that the plan of a Bookie goes by."""

    owner: OwnerResource
    resource: ResourceFacts
    spec: BookieSpec
    status: BookieStatus
    """The pool's status as it was written last."""
    cluster: ClusterContext | None
    """None: there is no PulsarCluster of that name."""
    cluster_resource: ResourceFacts | None = None
    cluster_status: PulsarClusterStatus | None = None
    children: Children
    """The children of the pool: its pods, claims, StatefulSet, Service, configuration."""
    bookies: Mapping[str, BookieFacts] = field(default_factory=dict)
    """What bookies say of themselves, by pod."""
    lost: Mapping[str, LostBookieFacts] = field(default_factory=dict)
    """By pod, of those that do not answer and ended with an exit code about volumes, or that are to go."""
    writable_elsewhere: int = 0
    """Writable bookies of the cluster's other pools."""
    others: Sequence[PoolFacts] = ()
    """The other pools of the cluster."""
    under_replicated_ledgers: int | None = None
    """In the whole cluster. Counted only when a restart, a drain or a scale-in waits for it; None: not counted, or
    nobody could say."""
    largest_ensemble: EnsembleFacts | None = None
    """That settings, namespaces or topics ask for, as far as brokers say. Asked only when a bookie would be drained;
    None: not asked, or none answered."""
    now_seconds: float
