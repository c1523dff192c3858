"""`PulsarCluster`: metadata, bookies, brokers and proxies of one cluster, or read-only brokers of one that is there."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from magnetar.operator.resources.bookie import BookieAutoscaling, BookieStorage
from magnetar.operator.resources.common import (
    CLASS_STAYS,
    Component,
    ComponentStatus,
    Conditions,
    Part,
    Quantity,
    SecretName,
    ServiceSpec,
    Settings,
    Time,
    Volume,
)
from magnetar.operator.resources.markers import Rule, keyed_by, says, unchangeable
from magnetar.operator.resources.read_only import (
    READ_ONLY_RULES,
    AttachSpec,
    ReadOnlyBrokersSpec,
    ReadOnlyBrokersStatus,
)


class ZookeeperSpec(Component, kw_only=True, frozen=True):
    """The ZooKeeper ensemble that the operator runs."""

    replicas: Annotated[
        int,
        msgspec.Meta(ge=1, le=9),
        says(
            "One, three or five. One is for trying things out: the cluster stands still while it restarts.",
            Rule(
                "self % 2 == 1",
                "an even number of ZooKeeper servers survives no more failures than one less: use 1, 3 or 5",
            ),
            unchangeable("the number of ZooKeeper servers", "make another cluster, or run ZooKeeper by yourself"),
        ),
    ] = 3
    storage: Annotated[Volume, says("The volume of each server.", CLASS_STAYS)] = Volume(size="10Gi")


class MetadataSpec(Part, kw_only=True, frozen=True):
    """Where the cluster keeps its metadata."""

    url: Annotated[
        str | None,
        msgspec.Meta(extra_json_schema={"pattern": "^(zk|etcd):.+"}),
        says(
            "Of a ZooKeeper or etcd that is there already, such as zk:zookeeper:2181/pulsar or etcd:https://etcd:2379; "
            "the operator runs none then.",
        ),
    ] = None
    configuration_url: Annotated[
        str | None, says("Of a store that several clusters share for tenants and namespaces.")
    ] = None
    zookeeper: Annotated[ZookeeperSpec | None, says("The ensemble that the operator runs; not with url.")] = None


class BookkeeperSpec(Component, kw_only=True, frozen=True):
    """How entries are stored, and the default pool of bookies."""

    ensemble_size: Annotated[
        int, msgspec.Meta(ge=1, le=50), says("Over how many bookies the entries of a ledger are spread.")
    ] = 2
    write_quorum: Annotated[int, msgspec.Meta(ge=1, le=50), says("How many copies of each entry.")] = 2
    ack_quorum: Annotated[
        int, msgspec.Meta(ge=1, le=50), says("How many copies are durable before a producer has its receipt.")
    ] = 2
    replicas: Annotated[
        int | None,
        msgspec.Meta(extra_json_schema={"minimum": 0, "maximum": 500}),
        says(
            "Bookies of the default pool. Left out: three, or what `kubectl scale bk` or the autoscaling make of it.",
        ),
    ] = None
    storage: Annotated[BookieStorage, says("The volumes of each bookie.")] = BookieStorage()
    autoscaling: Annotated[BookieAutoscaling | None, says("The operator sets the number by itself.")] = None
    drain_bytes_per_second_max: Annotated[
        Quantity | None, says("How fast a drain may copy; by default as fast as AutoRecovery's own limit.")
    ] = None


class BrokerAutoscaling(Part, kw_only=True, frozen=True):
    """When the operator adds brokers by itself, and takes them away again."""

    min_replicas: Annotated[int, msgspec.Meta(ge=1), says("Never fewer.")] = 2
    max_replicas: Annotated[int, msgspec.Meta(ge=1), says("Never more.")]
    load_percent_max: Annotated[
        int,
        msgspec.Meta(ge=10, le=95),
        says("A broker is added when the mean of the brokers' fullest resources stays above this."),
    ] = 70
    load_percent_min: Annotated[
        int, msgspec.Meta(ge=0, le=90), says("A broker is taken away when the rest would stay below this.")
    ] = 35
    bundles_per_broker_max: Annotated[int, msgspec.Meta(ge=1), says("A broker is added above this, too.")] = 2000
    stabilization_seconds: Annotated[
        int, msgspec.Meta(ge=0), says("How long the load must stay so before a broker is taken away.")
    ] = 300


class BrokerSpec(Component, kw_only=True, frozen=True):
    """The brokers, a Deployment."""

    replicas: Annotated[
        int | None,
        msgspec.Meta(extra_json_schema={"minimum": 0, "maximum": 500}),
        says("How many. Left out: two, or what `kubectl scale` or the autoscaling make of it."),
    ] = None
    autoscaling: Annotated[BrokerAutoscaling | None, says("The operator sets the number by itself.")] = None


class ProxySpec(Component, kw_only=True, frozen=True):
    """The proxies, a Deployment and the Service that clients connect to."""

    replicas: Annotated[
        int,
        msgspec.Meta(ge=0, le=500),
        says("How many; 0: none, clients reach the brokers by a Service of theirs."),
    ] = 2
    service: Annotated[ServiceSpec, says("What clients connect to.")] = ServiceSpec()


class BalanceSpec(Part, kw_only=True, frozen=True):
    """How bundles are split and moved."""

    driver: Annotated[
        Literal["Operator", "Leader", "None"],
        says("Who decides: the operator, by what it sees here; the brokers' elected leader; or nobody."),
    ] = "Leader"
    splits: Annotated[bool, says("Whether bundles are split.")] = True
    moves_per_round_max: Annotated[int, msgspec.Meta(ge=0), says("How many bundles are moved at once.")] = 10
    interval_seconds: Annotated[int, msgspec.Meta(ge=10), says("Between two rounds.")] = 60


class TlsSpec(SecretName, kw_only=True, frozen=True):
    """A certificate as cert-manager and `kubectl create secret tls` make them: tls.crt, tls.key, ca.crt."""

    require_client_certificates: Annotated[bool, says("Whether clients must show one of ca.crt.")] = False
    plain_ports: Annotated[bool, says("Whether clients may come without TLS, too.")] = True


class TokenSpec(SecretName, kw_only=True, frozen=True):
    """Keys of JSON web tokens, and the tokens that brokers and proxies show."""

    key: Annotated[
        Literal["Secret", "Public"],
        says("Whether tokens are checked by the Secret's secret.key, or by its public.key."),
    ] = "Secret"
    broker_role: Annotated[str, says("Whom the Secret's `broker-token` names; a super user.")] = "broker"
    proxy_role: Annotated[
        str,
        says(
            "Whom the Secret's `proxy-token` names; a super user, who speaks for clients.",
        ),
    ] = "proxy"


class AuthenticationSpec(Part, kw_only=True, frozen=True):
    """Who may come in."""

    token: Annotated[
        TokenSpec,
        says(
            "A Secret with `secret.key` or `public.key` as `magnetar tokens` makes them, `broker-token`, `proxy-token`."
        ),
    ]
    super_user_roles: Annotated[list[str] | None, says("Who may do everything, beside brokers and proxies.")] = None
    authorization: Annotated[bool, says("Whether others need grants.")] = True


class MonitoringSpec(Part, kw_only=True, frozen=True):
    """What is made for Prometheus."""

    pod_monitors: Annotated[
        Literal["Auto", "Always", "Never"], says("Auto: when the Kubernetes cluster knows PodMonitors.")
    ] = "Auto"
    labels: Annotated[dict[str, str] | None, says("Of the PodMonitors, for Prometheus to find them by.")] = None


class PulsarClusterSpec(Part, kw_only=True, frozen=True):
    """What is wanted of a cluster. All of it may be left out."""

    version: Annotated[str | None, says("Of the images; by default the operator's own.")] = None
    image_repository: Annotated[
        str | None, says("What images' names begin with; by default where the operator's own came from.")
    ] = None
    image_pull_policy: Annotated[Literal["Always", "IfNotPresent", "Never"], says("As pods have it.")] = "IfNotPresent"
    image_pull_secrets: Annotated[list[str] | None, says("Names of Secrets.")] = None
    paused: Annotated[bool, says("The operator looks, and touches nothing.")] = False
    hibernated: Annotated[
        bool, says("No pods run, and all volumes stay. How many of each there were is remembered.")
    ] = False
    deletion_policy: Annotated[
        Literal["Retain", "Delete"], says("What becomes of the volumes when the cluster is deleted.")
    ] = "Retain"
    settings: Annotated[
        Settings | None,
        says("Settings of brokers and proxies alike."),
    ] = None
    metadata: Annotated[MetadataSpec, says("Where the cluster keeps its metadata.")] = MetadataSpec()
    bookkeeper: Annotated[BookkeeperSpec, says("How entries are stored, and the default pool of bookies.")] = (
        BookkeeperSpec()
    )
    broker: Annotated[BrokerSpec, says("The brokers.")] = BrokerSpec()
    proxy: Annotated[ProxySpec, says("The proxies.")] = ProxySpec()
    read_only_brokers: Annotated[
        ReadOnlyBrokersSpec | None, says("Further brokers, for consumers and readers only; left out: none.")
    ] = None
    attach: Annotated[
        AttachSpec | None,
        says(
            "The Pulsar cluster is there already, as metadata.url says: only readOnlyBrokers are run, and nothing is "
            "written into its topics. Bookies, brokers and proxies of this resource are not made."
        ),
    ] = None
    balance: Annotated[BalanceSpec, says("How bundles are split and moved.")] = BalanceSpec()
    tls: Annotated[TlsSpec | None, says("The certificate that clients see.")] = None
    authentication: Annotated[AuthenticationSpec | None, says("Who may come in; left out: everybody.")] = None
    network_policies: Annotated[bool, says("Whether only the cluster's own pods may reach its inner ports.")] = True
    monitoring: Annotated[MonitoringSpec, says("What is made for Prometheus.")] = MonitoringSpec()


class BrokerMember(Part, kw_only=True, frozen=True):
    """One broker."""

    name: Annotated[str, says("Its pod.")]
    state: Annotated[str, says("Ready, Starting, Draining, Drained, Down.")] = "Starting"
    bundles: Annotated[int, says("That it owns.")] = 0
    load_percent: Annotated[int | None, says("Of its fullest resource.")] = None
    message: Annotated[str, says("What is the matter.")] = ""


class BundleMove(Part, kw_only=True, frozen=True):
    """A decision about a bundle."""

    time: Annotated[Time, says("When.")]
    kind: Annotated[str, says("unload, split, place.")]
    bundle: Annotated[str, says("Which.")]
    source: Annotated[str, says("From which broker.")] = ""
    destination: Annotated[str, says("To which.")] = ""
    reason: Annotated[str, says("Why.")] = ""


class BrokerLoadStatus(Part, kw_only=True, frozen=True):
    """What autoscaling goes by."""

    percent: Annotated[int, says("The mean of the brokers' fullest resources.")] = 0
    advice: Annotated[Literal["Keep", "Grow", "Shrink"], says("What that calls for.")] = "Keep"
    since: Annotated[Time, says("Since when it has.")]
    scaled_at: Annotated[Time | None, says("When the number was last changed.")] = None


class PulsarClusterStatus(Part, kw_only=True, frozen=True):
    """What was found."""

    observed_generation: Annotated[int, says("Of which generation this is said.")] = 0
    phase: Annotated[str, says("In a word or two, for people.")] = ""
    version: Annotated[str, says("That all pods run, once they do.")] = ""
    service_url: Annotated[str, says("What clients connect to.")] = ""
    web_service_url: Annotated[str, says("What tools connect to.")] = ""
    zookeeper: Annotated[ComponentStatus, says("The ensemble.")] = ComponentStatus()
    bookies: Annotated[ComponentStatus, says("All pools together.")] = ComponentStatus()
    brokers: Annotated[ComponentStatus, says("The brokers.")] = ComponentStatus()
    proxies: Annotated[ComponentStatus, says("The proxies.")] = ComponentStatus()
    read_only_brokers: Annotated[
        ReadOnlyBrokersStatus | None, says("The read-only brokers, where there are to be any.")
    ] = None
    broker_replicas: Annotated[int, says("For the scale subresource.")] = 0
    broker_selector: Annotated[str, says("For the scale subresource.")] = ""
    broker_members: Annotated[list[BrokerMember], keyed_by("name"), says("Each broker.")] = msgspec.field(
        default_factory=list
    )
    last_moves: Annotated[list[BundleMove], says("Of bundles, the latest first, ten at most.")] = msgspec.field(
        default_factory=list
    )
    hibernated_replicas: Annotated[
        int | None, says("How many brokers there were before hibernation, where the spec does not say.")
    ] = None
    metadata_digest: Annotated[
        str, says("Of what was last written into the metadata store: where the cluster is to be reached.")
    ] = ""
    broker_load: Annotated[BrokerLoadStatus | None, says("What autoscaling saw, and since when.")] = None
    conditions: Annotated[Conditions, says("As kstatus reads them.")] = msgspec.field(default_factory=list)


_ZOOKEEPERS = "(has({0}.spec.metadata.zookeeper) ? {0}.spec.metadata.zookeeper.replicas : 3)"
_ZOOKEEPERS_CLASS = (
    "(has({0}.spec.metadata.zookeeper) && has({0}.spec.metadata.zookeeper.storage.storageClassName) ? "
    "{0}.spec.metadata.zookeeper.storage.storageClassName : '')"
)
"""A field's own rules are asked only where it was there before and still is: these are of the whole."""

CLUSTER_RULES = (
    Rule(
        "self.spec.bookkeeper.writeQuorum <= self.spec.bookkeeper.ensembleSize",
        "bookkeeper.writeQuorum copies need as many bookies: raise bookkeeper.ensembleSize to it at least",
        ".spec.bookkeeper.writeQuorum",
    ),
    Rule(
        "self.spec.bookkeeper.ackQuorum <= self.spec.bookkeeper.writeQuorum",
        "bookkeeper.ackQuorum receipts cannot come from fewer copies: lower it to bookkeeper.writeQuorum at most",
        ".spec.bookkeeper.ackQuorum",
    ),
    Rule(
        "!has(self.spec.bookkeeper.replicas) || self.spec.bookkeeper.replicas >= self.spec.bookkeeper.ensembleSize",
        "bookkeeper.replicas must be bookkeeper.ensembleSize at least, else no ledger can be made; to stop everything, "
        "set hibernated",
        ".spec.bookkeeper.replicas",
    ),
    Rule(
        "!has(self.spec.bookkeeper.replicas) || !has(self.spec.bookkeeper.autoscaling)",
        "leave bookkeeper.replicas out where bookkeeper.autoscaling sets it",
        ".spec.bookkeeper.replicas",
    ),
    Rule(
        "!has(self.spec.bookkeeper.autoscaling) || "
        "(self.spec.bookkeeper.autoscaling.minReplicas <= self.spec.bookkeeper.autoscaling.maxReplicas && "
        "self.spec.bookkeeper.autoscaling.minReplicas >= self.spec.bookkeeper.ensembleSize)",
        "bookkeeper.autoscaling.minReplicas must be bookkeeper.ensembleSize at least and maxReplicas at most",
        ".spec.bookkeeper.autoscaling.minReplicas",
    ),
    Rule(
        "!has(self.spec.broker.replicas) || !has(self.spec.broker.autoscaling)",
        "leave broker.replicas out where broker.autoscaling sets it",
        ".spec.broker.replicas",
    ),
    Rule(
        "!has(self.spec.broker.autoscaling) || "
        "self.spec.broker.autoscaling.minReplicas <= self.spec.broker.autoscaling.maxReplicas",
        "broker.autoscaling.minReplicas must not exceed maxReplicas",
        ".spec.broker.autoscaling.minReplicas",
    ),
    Rule(
        "!has(self.spec.metadata.url) || !has(self.spec.metadata.zookeeper)",
        "metadata.url names a store that is there; leave metadata.zookeeper out",
        ".spec.metadata.zookeeper",
    ),
    Rule(
        f"{_ZOOKEEPERS.format('self')} == {_ZOOKEEPERS.format('oldSelf')}",
        "the number of ZooKeeper servers, three where metadata.zookeeper does not say, cannot be changed: make another "
        "cluster, or run ZooKeeper by yourself",
        ".spec.metadata.zookeeper",
    ),
    Rule(
        f"{_ZOOKEEPERS_CLASS.format('self')} == {_ZOOKEEPERS_CLASS.format('oldSelf')}",
        "the storage class of ZooKeeper's volumes, which exist, cannot be changed: make another cluster, or run "
        "ZooKeeper by yourself",
        ".spec.metadata.zookeeper",
    ),
    Rule(
        "has(self.spec.metadata.url) == has(oldSelf.spec.metadata.url) && "
        "(!has(self.spec.metadata.url) || self.spec.metadata.url == oldSelf.spec.metadata.url)",
        "metadata.url cannot be changed: the ledgers' whereabouts are in that store; make another cluster",
        ".spec.metadata.url",
    ),
    Rule(
        "!has(self.spec.proxy.service.loadBalancerSourceRanges) || self.spec.proxy.service.type == 'LoadBalancer'",
        "proxy.service.loadBalancerSourceRanges has an effect with type LoadBalancer only",
        ".spec.proxy.service.loadBalancerSourceRanges",
    ),
    Rule(
        "!has(self.spec.proxy.service.loadBalancerClass) || self.spec.proxy.service.type == 'LoadBalancer'",
        "proxy.service.loadBalancerClass may be set with type LoadBalancer only",
        ".spec.proxy.service.loadBalancerClass",
    ),
    Rule(
        "!has(self.spec.proxy.service.externalTrafficPolicy) || self.spec.proxy.service.type != 'ClusterIP'",
        "proxy.service.externalTrafficPolicy may be set with the types NodePort and LoadBalancer only",
        ".spec.proxy.service.externalTrafficPolicy",
    ),
    Rule(
        "self.metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$') && size(self.metadata.name) <= 40",
        "the name may have 40 characters, a to z, 0 to 9 and -, and begins with a letter: Services are named after it",
    ),
    *READ_ONLY_RULES,
)
"""Rules of the whole resource."""
