"""Read-only brokers of a `PulsarCluster`, and the cluster of others that they may be attached to."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from magnetar.operator.resources.common import Component, ComponentStatus, Part, SecretName, ServiceSpec, Time
from magnetar.operator.resources.markers import Rule, keyed_by, says


class ReadOnlyAutoscaling(Part, kw_only=True, frozen=True):
    """When the operator adds read-only brokers by itself, and takes them away again."""

    min_replicas: Annotated[int, msgspec.Meta(ge=1), says("Never fewer.")] = 2
    max_replicas: Annotated[int, msgspec.Meta(ge=1), says("Never more.")]
    connections_per_broker_max: Annotated[
        int, msgspec.Meta(ge=1), says("As many are wanted as have this many connections of clients each, at most.")
    ] = 1000
    lag_seconds_max: Annotated[
        int,
        msgspec.Meta(ge=1),
        says("One more is wanted while the topic that is the furthest behind its writer is more than this behind."),
    ] = 30
    stabilization_seconds: Annotated[
        int,
        msgspec.Meta(ge=0),
        says("How long it must stay so before one is taken away, and between two that are added for their lag."),
    ] = 300


class ReadOnlyBrokersSpec(Component, kw_only=True, frozen=True):
    """The read-only brokers, a Deployment and a Service of their own."""

    replicas: Annotated[
        int | None,
        msgspec.Meta(extra_json_schema={"minimum": 0, "maximum": 500}),
        says("How many. Left out: two, or what the autoscaling or whoever scales the Deployment makes of it."),
    ] = None
    autoscaling: Annotated[ReadOnlyAutoscaling | None, says("The operator sets the number by itself.")] = None
    service: Annotated[ServiceSpec, says("What their clients connect to.")] = ServiceSpec()


class AttachCredentials(SecretName, kw_only=True, frozen=True):
    """What is shown to the brokers of the cluster that is there."""

    plugin: Annotated[
        str | None,
        msgspec.Meta(extra_json_schema={"minLength": 1}),
        says(
            "Pulsar's name of the plugin, such as org.apache.pulsar.client.impl.auth.AuthenticationBasic; the Secret "
            "has its parameters as `parameters`. Left out: the Secret has a token as `token`."
        ),
    ] = None


class AttachSpec(Part, kw_only=True, frozen=True):
    """A Pulsar cluster that others run. All of it may be left out."""

    cluster_name: Annotated[
        str | None,
        msgspec.Meta(extra_json_schema={"minLength": 1}),
        says("What that cluster is called; by default as this resource."),
    ] = None
    credentials: Annotated[
        AttachCredentials | None,
        says("What its brokers and their admin API ask for: whoever that is may consume, and read topics' statistics."),
    ] = None
    broker_tls: Annotated[
        SecretName | None,
        says("Its brokers are reached with TLS; the Secret has the authority of their certificates as ca.crt."),
    ] = None


class ReadOnlyBrokerMember(Part, kw_only=True, frozen=True):
    """One read-only broker."""

    name: Annotated[str, says("Its pod.")]
    state: Annotated[str, says("Ready, Starting, Stopping, Down.")] = "Starting"
    connections: Annotated[int | None, says("Of clients, that are open.")] = None
    lag_seconds: Annotated[int | None, says("By which its worst topic is behind the writer.")] = None
    message: Annotated[str, says("What is the matter.")] = ""


class ReadOnlyLoadStatus(Part, kw_only=True, frozen=True):
    """What autoscaling goes by."""

    connections: Annotated[int, says("Of clients, with all of them together.")] = 0
    lag_seconds: Annotated[int, says("Of the topic that is the furthest behind.")] = 0
    advice: Annotated[Literal["Keep", "Grow", "Shrink"], says("What that calls for.")] = "Keep"
    since: Annotated[Time, says("Since when it has.")]
    scaled_at: Annotated[Time | None, says("When the number was last changed.")] = None
    reason: Annotated[str, says("Why the number is what it is, or is about to change.")] = ""


class ScaleChange(Part, kw_only=True, frozen=True):
    """One change of a number of pods."""

    time: Annotated[Time, says("When.")]
    before: Annotated[int, says("How many there were to be.")]
    after: Annotated[int, says("How many there are to be.")]
    reason: Annotated[str, says("Why.")] = ""


class ReadOnlyBrokersStatus(ComponentStatus, kw_only=True, frozen=True):
    """The read-only brokers."""

    version: Annotated[str, says("That all of them run, once they do.")] = ""
    service_url: Annotated[str, says("What their clients connect to.")] = ""
    members: Annotated[list[ReadOnlyBrokerMember], keyed_by("name"), says("Each of them.")] = msgspec.field(
        default_factory=list
    )
    load: Annotated[ReadOnlyLoadStatus | None, says("What autoscaling saw, and since when.")] = None
    last_scale: Annotated[ScaleChange | None, says("How their number was last changed, and why.")] = None
    hibernated_replicas: Annotated[
        int | None, says("How many there were before hibernation, where the spec does not say.")
    ] = None


_ATTACHED_TO = "(has({0}.spec.attach) && has({0}.spec.attach.clusterName) ? {0}.spec.attach.clusterName : '')"
_SERVICE = "self.spec.readOnlyBrokers.service"

READ_ONLY_RULES = (
    Rule(
        "!has(self.spec.readOnlyBrokers) || !has(self.spec.readOnlyBrokers.replicas) || "
        "!has(self.spec.readOnlyBrokers.autoscaling)",
        "leave readOnlyBrokers.replicas out where readOnlyBrokers.autoscaling sets it",
        ".spec.readOnlyBrokers.replicas",
    ),
    Rule(
        "!has(self.spec.readOnlyBrokers) || !has(self.spec.readOnlyBrokers.autoscaling) || "
        "self.spec.readOnlyBrokers.autoscaling.minReplicas <= self.spec.readOnlyBrokers.autoscaling.maxReplicas",
        "readOnlyBrokers.autoscaling.minReplicas must not exceed maxReplicas",
        ".spec.readOnlyBrokers.autoscaling.minReplicas",
    ),
    Rule(
        f"!has(self.spec.readOnlyBrokers) || {_SERVICE}.type == 'LoadBalancer' || "
        f"(!has({_SERVICE}.loadBalancerSourceRanges) && !has({_SERVICE}.loadBalancerClass))",
        "readOnlyBrokers.service.loadBalancerSourceRanges and loadBalancerClass have an effect with type LoadBalancer "
        "only",
        ".spec.readOnlyBrokers.service",
    ),
    Rule(
        f"!has(self.spec.readOnlyBrokers) || {_SERVICE}.type != 'ClusterIP' || !has({_SERVICE}.externalTrafficPolicy)",
        "readOnlyBrokers.service.externalTrafficPolicy may be set with the types NodePort and LoadBalancer only",
        ".spec.readOnlyBrokers.service.externalTrafficPolicy",
    ),
    Rule(
        "!has(self.spec.attach) || (has(self.spec.metadata.url) && has(self.spec.readOnlyBrokers))",
        "attach needs metadata.url, the store of the cluster that is there, and readOnlyBrokers, which is all that "
        "runs",
        ".spec.attach",
    ),
    Rule(
        "!has(self.spec.attach) || !(has(self.spec.broker.replicas) || has(self.spec.broker.autoscaling) || "
        "has(self.spec.bookkeeper.replicas) || has(self.spec.bookkeeper.autoscaling))",
        "a cluster that is attached has no brokers and bookies of its own: leave numbers of them out, and set "
        "readOnlyBrokers.replicas",
        ".spec.attach",
    ),
    Rule(
        "has(self.spec.attach) == has(oldSelf.spec.attach) && "
        f"{_ATTACHED_TO.format('self')} == {_ATTACHED_TO.format('oldSelf')}",
        "whether a cluster is attached, and to which, cannot be changed: make another PulsarCluster",
        ".spec.attach",
    ),
)
"""Rules of the whole resource about read-only brokers."""
