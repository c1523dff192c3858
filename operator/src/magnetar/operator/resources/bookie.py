"""`Bookie`: a pool of bookies, which is one StatefulSet."""

from __future__ import annotations

from typing import Annotated

import msgspec
from magnetar.operator.resources.common import CLASS_STAYS, Component, Conditions, Part, Quantity, Time, Volume
from magnetar.operator.resources.markers import Rule, keyed_by, says, unchangeable


class BookieStorage(Part, kw_only=True, frozen=True):
    """The volumes of each bookie."""

    journal: Annotated[Volume, says("Where writes are made durable: small and fast.", CLASS_STAYS)] = Volume(
        size="10Gi"
    )
    ledgers: Annotated[Volume, says("Where entries are kept: as large as what is kept.", CLASS_STAYS)] = Volume(
        size="50Gi"
    )


class BookieAutoscaling(Part, kw_only=True, frozen=True):
    """When the operator adds bookies by itself, and takes them away again."""

    min_replicas: Annotated[int, msgspec.Meta(ge=1), says("Never fewer.")] = 3
    max_replicas: Annotated[int, msgspec.Meta(ge=1), says("Never more.")]
    disk_usage_percent_max: Annotated[
        int, msgspec.Meta(ge=10, le=95), says("A bookie is added once every bookie's disks are fuller than this.")
    ] = 80
    disk_usage_percent_min: Annotated[
        int,
        msgspec.Meta(ge=0, le=90),
        says("A bookie is drained away once the rest would still be below this with its share; 0: never."),
    ] = 0
    forecast_hours: Annotated[
        int,
        msgspec.Meta(ge=0, le=720),
        says("Grow already if the disks will be that full in so many hours; 0: no forecast."),
    ] = 24
    writable_min: Annotated[
        int | None, says("Grow when fewer bookies take writes; by default the ensemble size of the cluster.")
    ] = None
    stabilization_seconds: Annotated[
        int, msgspec.Meta(ge=0), says("How long to leave the pool alone after it has changed.")
    ] = 300


class BookieSpec(Component, kw_only=True, frozen=True):
    """What is wanted of a pool."""

    cluster_name: Annotated[
        str,
        msgspec.Meta(min_length=1),
        says(
            "The PulsarCluster of the same namespace that the pool belongs to.",
            unchangeable("the cluster of a pool", "its disks belong to that cluster; make another pool"),
        ),
    ]
    replicas: Annotated[
        int,
        msgspec.Meta(ge=0, le=500),
        says(
            "How many bookies. Fewer: each that goes is drained first, and its volumes go when all is stored elsewhere."
        ),
    ] = 3
    storage: Annotated[BookieStorage, says("The volumes of each bookie.")] = BookieStorage()
    autoscaling: Annotated[BookieAutoscaling | None, says("The operator sets the number by itself.")] = None
    drain_bytes_per_second_max: Annotated[
        Quantity | None, says("How fast a drain may copy; by default as fast as AutoRecovery's own limit.")
    ] = None


class DrainProgress(Part, kw_only=True, frozen=True):
    """How far the drain of one bookie is."""

    step: Annotated[str, says("ReadOnly, Replicate, Verify, RemoveCookie, Done.")]
    ledgers_total: Annotated[int, says("That it held when the drain began.")] = 0
    ledgers_left: Annotated[int, says("That are still to be moved.")] = 0
    bytes_per_second: Annotated[int, says("How fast it goes.")] = 0
    message: Annotated[str, says("What holds it up, if anything.")] = ""


class Replacement(Part, kw_only=True, frozen=True):
    """The wish to replace a bookie, kept for when the pod whose annotation said it is gone."""

    pod_uid: Annotated[str, says("Of the pod on which the annotation was seen last.")]
    claim_uids: Annotated[list[str], says("Of the volumes that are to go: without them it is done.")]


class BookieMember(Part, kw_only=True, frozen=True):
    """One bookie of a pool."""

    name: Annotated[str, says("Its pod.")]
    bookie_id: Annotated[str, says("Its name in the metadata.")] = ""
    state: Annotated[str, says("Writable, ReadOnly, Draining, Drained, Starting, Down, DeadDisk or WrongVolume.")] = (
        "Starting"
    )
    disk_usage_percent: Annotated[int | None, says("Of its fullest ledger volume.")] = None
    message: Annotated[str, says("What is the matter.")] = ""
    limbo_ledgers: Annotated[int, says("Ledgers of which it may have lost entries, which it fetches again.")] = 0
    drain: Annotated[DrainProgress | None, says("While it is drained.")] = None
    replacement: Annotated[
        Replacement | None,
        says("It is to be drained and to start again with empty volumes, whatever becomes of its pod."),
    ] = None


class UsageSample(Part, kw_only=True, frozen=True):
    """How full the pool's disks were at a time."""

    time: Annotated[Time, says("When.")]
    used_bytes: Annotated[int, says("Of all ledger volumes together.")]
    total_bytes: Annotated[int, says("Their size together.")]


class BookieStatus(Part, kw_only=True, frozen=True):
    """What was found."""

    observed_generation: Annotated[int, says("Of which generation this is said.")] = 0
    replicas: Annotated[int, says("Pods.")] = 0
    ready_replicas: Annotated[int, says("Pods that are ready.")] = 0
    updated_replicas: Annotated[int, says("Pods as they should be by now.")] = 0
    writable_replicas: Annotated[int, says("Bookies that take writes.")] = 0
    cluster_generation: Annotated[int, says("Of the cluster: what of it is in these pods' template.")] = 0
    scaled_at: Annotated[
        str | None,
        msgspec.Meta(extra_json_schema={"format": "date-time"}),
        says("When autoscaling last changed the number."),
    ] = None
    usage_history: Annotated[
        list[UsageSample], says("How full the disks were, the oldest first: what the forecast goes by.")
    ] = msgspec.field(default_factory=list)
    selector: Annotated[str, says("Of the pods, for autoscalers.")] = ""
    members: Annotated[list[BookieMember], keyed_by("name"), says("Each bookie.")] = msgspec.field(default_factory=list)
    phase: Annotated[str, says("In a word or two, for people.")] = ""
    conditions: Annotated[Conditions, says("As kstatus reads them.")] = msgspec.field(default_factory=list)


BOOKIE_RULES = (
    Rule(
        "!has(self.spec.autoscaling) || self.spec.autoscaling.minReplicas <= self.spec.autoscaling.maxReplicas",
        "autoscaling.minReplicas must not exceed maxReplicas",
        ".spec.autoscaling.minReplicas",
    ),
    Rule(
        "self.metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$') && size(self.metadata.name) <= 40",
        "the name may have 40 characters, a to z, 0 to 9 and -, and begins with a letter: pods, volumes and a Service "
        "are named after it",
    ),
)
"""Rules of the whole resource."""
