"""What the parts of a cluster's plan share: one component each, what is said of it and what is done about it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from magnetar.operator.children.naming import TEMPLATE_ANNOTATION
from magnetar.operator.kubernetes.kinds import Manifest
from magnetar.operator.plan.actions import Action, Apply
from magnetar.operator.plan.conditions import NewCondition
from magnetar.operator.plan.facts import PodFacts
from magnetar.operator.plan.rollout import failing, trouble
from magnetar.operator.resources.common import ComponentStatus

METADATA_READY: Final = "MetadataReady"
ZOOKEEPER_READY: Final = "ZookeeperReady"
BOOKIES_READY: Final = "BookiesReady"
BROKERS_READY: Final = "BrokersReady"
PROXIES_READY: Final = "ProxiesReady"
READ_ONLY_BROKERS_READY: Final = "ReadOnlyBrokersReady"

ALL_READY: Final = "AllReady"
ATTACHED: Final = "Attached"
HIBERNATED: Final = "Hibernated"
POD_FAILING: Final = "PodFailing"
PODS_NOT_READY: Final = "PodsNotReady"
ROLLOUT_FAILED: Final = "RolloutFailed"
SCALING: Final = "Scaling"
STARTING: Final = "Starting"
STOPPING: Final = "Stopping"
UPDATE_WAITS: Final = "UpdateWaits"
UPDATING: Final = "Updating"
WAITING: Final = "Waiting"
"""The reasons that components' conditions may give."""

UNDER_WAY: Final = frozenset({SCALING, STOPPING, UPDATING})
"""Those of work that goes on only when it is looked at."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ComponentPlan:
    """What is to be done about one component, and what its condition is."""

    condition: NewCondition
    """Whether it is as it should be: all pods there, up to date and ready."""
    status: ComponentStatus = field(default_factory=ComponentStatus)
    actions: Sequence[Action] = ()
    stalled: NewCondition | None = None
    """What a person has to do something about. Its `type` and `holds` do not matter."""
    serving: bool = False
    """What others need of it to start is there."""
    busy: bool = False
    """Something is under way that goes on when it is looked at: look again soon."""

    @property
    def complete(self) -> bool:
        """Whether the component is as it should be."""
        return self.condition.holds is True


def applied(manifests: Iterable[Manifest]) -> list[Action]:
    """All objects that are applied."""
    return [Apply(manifest) for manifest in manifests]


def one_of(manifests: Iterable[Manifest], kind: str) -> Manifest:
    """The only one of its kind."""
    (found,) = (manifest for manifest in manifests if manifest["kind"] == kind)
    return found


def template_hash(workload: Manifest) -> str:
    """The digest of the pods that a StatefulSet's or a Deployment's manifest wants."""
    found = workload["spec"]["template"]["metadata"]["annotations"][TEMPLATE_ANNOTATION]
    assert isinstance(found, str)
    return found


def alive(pods: Iterable[PodFacts]) -> list[PodFacts]:
    """Without those that have ended and are never started again: evicted pods of Deployments stay for long."""
    return [pod for pod in pods if pod.phase not in ("Failed", "Succeeded")]


def component_status(pods: Sequence[PodFacts], wanted_hash: str, desired: int, message: str) -> ComponentStatus:
    """How many pods there are, those that are going too."""
    return ComponentStatus(
        replicas=len(pods),
        ready_replicas=sum(pod.ready and not pod.deleting for pod in pods),
        updated_replicas=sum(pod.template_hash == wanted_hash and not pod.deleting for pod in pods),
        desired_replicas=desired,
        message=message,
    )


def failures(pods: Sequence[PodFacts], now_seconds: float) -> str:
    """The words of the pods that fail; empty if none does."""
    bad = [pod for pod in pods if failing(pod, now_seconds)]
    if not bad:
        return ""
    return trouble(bad[0]) + (f" (and {len(bad) - 1} more)" if len(bad) > 1 else "")


def judge_pods(
    type_: str, pods: Sequence[PodFacts], desired: int, wanted_hash: str, now_seconds: float, not_made: str = ""
) -> NewCondition:
    """What is to be said of pods that should all be there, of one template and ready, in plain words. `not_made`: why
    Kubernetes does not make those that are not there."""
    staying = [pod for pod in pods if not pod.deleting]
    updated = sum(pod.template_hash == wanted_hash for pod in staying)
    unready = [pod for pod in staying if not pod.ready]
    if words := failures([pod for pod in staying if pod.template_hash == wanted_hash], now_seconds):
        return NewCondition(type_, False, ROLLOUT_FAILED if updated < len(staying) else POD_FAILING, words)
    if updated < len(staying):
        words = f"{updated} of {desired} pods are up to date"
        # Older pods that fail are replaced: what they say is of the past, but may be what is being repaired.
        old_words = failures(staying, now_seconds)
        return NewCondition(type_, False, UPDATING, f"{words}; {old_words}" if old_words else words)
    if len(staying) < desired:
        if words := failures([pod for pod in pods if pod.deleting], now_seconds):
            return NewCondition(type_, False, POD_FAILING, words)
        if not_made:
            return NewCondition(type_, False, POD_FAILING, f"{len(staying)} of {desired} pods are there: {not_made}")
        return NewCondition(type_, False, STARTING, f"{len(staying)} of {desired} pods are there")
    if unready:
        words = f"{len(staying) - len(unready)} of {desired} pods are ready: {trouble(unready[0])}"
        return NewCondition(type_, False, PODS_NOT_READY, words)
    if len(staying) > desired:
        return NewCondition(type_, False, SCALING, f"{len(staying) - desired} pods too many are going")
    return NewCondition(type_, True, ALL_READY, f"{desired} of {desired} pods are ready and up to date")


def stall_of(current: NewCondition) -> NewCondition | None:
    """A condition about pods that fail calls for a person."""
    return current if current.holds is False and current.reason in (ROLLOUT_FAILED, POD_FAILING) else None


def under_way(current: NewCondition) -> bool:
    """Whether to look again soon."""
    return current.holds is False and current.reason in UNDER_WAY
