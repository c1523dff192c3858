"""What every component's part of a resource has: image, settings, resources, pod, volumes, and what status tells."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal, TypeAlias

import msgspec
from magnetar.operator.resources.markers import Rule, keyed_by, says
from magnetar.operator.resources.quantities import PATTERN

GROUP: Final = "pulsar.magnetar.dev"
VERSION: Final = "v1alpha1"
API_VERSION: Final = f"{GROUP}/{VERSION}"

NAME_LENGTH_MAX: Final = 40
"""Pods' names add a component and numbers, and a label ends at 63."""

Free: TypeAlias = Annotated[
    dict[str, Any], msgspec.Meta(extra_json_schema={"x-kubernetes-preserve-unknown-fields": True})
]
"""An object of Kubernetes' own, which is checked where it is used: its schema would make the CRD several times as
large."""

Quantity: TypeAlias = Annotated[
    str | int, msgspec.Meta(extra_json_schema={"x-kubernetes-int-or-string": True, "pattern": PATTERN})
]

Time: TypeAlias = Annotated[str, msgspec.Meta(extra_json_schema={"format": "date-time"})]

Scalar: TypeAlias = Annotated[
    str | int | float | bool, msgspec.Meta(extra_json_schema={"maxItems": 0, "maxProperties": 0})
]
"""A schema of Kubernetes' has one type or any: lists and objects are refused by how many members they may have."""

Settings: TypeAlias = dict[str, Scalar]
"""Settings under Pulsar's own names. Who writes YAML writes true and 8 without quotes."""


class Part(msgspec.Struct, rename="camel", kw_only=True, frozen=True, omit_defaults=True):
    """A part of a resource. What the API server knows and this version does not is left alone."""


class ResourceRequirements(Part, kw_only=True, frozen=True):
    """What a container asks for, and what it may not exceed."""

    requests: Annotated[dict[str, Quantity] | None, says("What the scheduler reserves: cpu, memory.")] = None
    limits: Annotated[dict[str, Quantity] | None, says("What may not be exceeded: memory; rarely cpu.")] = None


class PodTemplate(Part, kw_only=True, frozen=True):
    """What people set on pods. Lists are added to the operator's own; labels and annotations may not be the
    operator's."""

    labels: Annotated[dict[str, str] | None, says("Further labels.")] = None
    annotations: Annotated[dict[str, str] | None, says("Further annotations.")] = None
    node_selector: Annotated[dict[str, str] | None, says("Labels that a node must have.")] = None
    affinity: Annotated[
        Free | None,
        says("Instead of the operator's own, which keeps a component's pods on different nodes if it can."),
    ] = None
    tolerations: Annotated[list[Free] | None, says("Taints of nodes that do not keep the pods away.")] = None
    topology_spread_constraints: Annotated[
        list[Free] | None, says("How pods spread over zones and nodes; a missing labelSelector is the component's.")
    ] = None
    priority_class_name: Annotated[str | None, says("Priority among all pods of the Kubernetes cluster.")] = None
    scheduler_name: Annotated[str | None, says("Another scheduler than Kubernetes' own.")] = None
    runtime_class_name: Annotated[str | None, says("Another way to run containers, such as gvisor.")] = None
    service_account_name: Annotated[
        str | None, says("An account made by you; by default pods have one without any rights.")
    ] = None
    security_context: Annotated[Free | None, says("Merged over the operator's: the restricted profile.")] = None
    termination_grace_period_seconds: Annotated[
        Annotated[int, msgspec.Meta(ge=1)] | None, says("How long a pod may take to stop in good order.")
    ] = None
    env: Annotated[list[Free] | None, says("Further environment variables of the component's container.")] = None
    volumes: Annotated[list[Free] | None, says("Further volumes.")] = None
    volume_mounts: Annotated[list[Free] | None, says("Where they are mounted in the component's container.")] = None
    init_containers: Annotated[list[Free] | None, says("Further containers that run first.")] = None
    sidecars: Annotated[list[Free] | None, says("Further containers that run beside it.")] = None


class Component(Part, kw_only=True, frozen=True):
    """What all components share."""

    image: Annotated[str | None, says("Another image than `imageRepository`/COMPONENT:`version` of the cluster.")] = (
        None
    )
    settings: Annotated[
        Settings | None,
        says(
            "Settings under Pulsar's own names, as in its .conf files. A name that the component does not know keeps "
            "new pods from starting; the condition quotes what they said.",
        ),
    ] = None
    resources: Annotated[ResourceRequirements | None, says("Processor and memory.")] = None
    pod: Annotated[PodTemplate | None, says("Everything else about the pods.")] = None


class SecretName(Part, kw_only=True, frozen=True):
    """A Secret of the same namespace."""

    secret_name: Annotated[str, msgspec.Meta(min_length=1), says("Its name.")]


class ServiceSpec(Part, kw_only=True, frozen=True):
    """The Kubernetes Service in front."""

    type: Annotated[Literal["ClusterIP", "NodePort", "LoadBalancer"], says("Who can reach it.")] = "ClusterIP"
    annotations: Annotated[dict[str, str] | None, says("Of the Service, for load balancers.")] = None
    load_balancer_source_ranges: Annotated[
        list[str] | None, says("From which addresses a LoadBalancer may be reached.")
    ] = None
    load_balancer_class: Annotated[str | None, says("Which controller makes the load balancer.")] = None
    external_traffic_policy: Annotated[
        Literal["Cluster", "Local"] | None,
        says("Local keeps clients' addresses, and goes to nodes with such a pod only."),
    ] = None


class Volume(Part, kw_only=True, frozen=True):
    """One kind of volume of a StatefulSet's pods."""

    size: Annotated[
        Quantity,
        says(
            "How large each is. It may grow, where the storage class allows it; never shrink.",
            Rule(
                "quantity(string(self)).compareTo(quantity(string(oldSelf))) >= 0",
                "a volume cannot shrink: replace the pods one by one in a new pool of bookies instead",
            ),
        ),
    ]
    storage_class_name: Annotated[
        str | None,
        says(
            "The Kubernetes cluster's default class if it is not given.",
            Rule(
                "self == oldSelf",
                "the storage class of volumes that exist cannot be changed: make another pool of bookies",
            ),
        ),
    ] = None
    count: Annotated[
        int,
        msgspec.Meta(ge=1, le=16),
        says(
            "How many of these each pod has, on different disks.",
            Rule("self == oldSelf", "the number of volumes cannot be changed: make another pool of bookies"),
        ),
    ] = 1


CLASS_STAYS: Final = Rule(
    "has(self.storageClassName) == has(oldSelf.storageClassName)",
    "the storage class of volumes that exist cannot be set or taken away: make another pool of bookies",
    ".storageClassName",
)
"""The rule of a `Volume` as a whole: the field's own rule is asked only where it was there before and still is."""


class ComponentStatus(Part, kw_only=True, frozen=True):
    """One component."""

    replicas: Annotated[int, says("Pods that there are.")] = 0
    ready_replicas: Annotated[int, says("Pods that are ready.")] = 0
    updated_replicas: Annotated[int, says("Pods as they should be by now.")] = 0
    desired_replicas: Annotated[int, says("Pods that there should be.")] = 0
    message: Annotated[str, says("What is the matter, or under way.")] = ""


ConditionStatus: TypeAlias = Literal["True", "False", "Unknown"]


class Condition(Part, kw_only=True, frozen=True):
    """One condition, as kstatus reads them."""

    type: Annotated[str, says("Ready, Reconciling, Stalled, and more.")]
    status: Annotated[ConditionStatus, says("Whether it holds.")]
    reason: Annotated[str, says("Why, in one word for programs.")]
    message: Annotated[str, says("Why, and what to do, for people.")]
    last_transition_time: Annotated[Time, says("Since when.")]
    observed_generation: Annotated[int, says("Of which generation of the resource this is said.")]


Conditions: TypeAlias = Annotated[list[Condition], keyed_by("type")]
