"""What brokers and proxies have in common: Deployments that start, and get new templates, after others have."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from magnetar.operator.kubernetes.kinds import Manifest
from magnetar.operator.plan.actions import Action, DryRun, Scale
from magnetar.operator.plan.cluster.parts import (
    HIBERNATED,
    POD_FAILING,
    ROLLOUT_FAILED,
    SCALING,
    STOPPING,
    UPDATE_WAITS,
    UPDATING,
    WAITING,
    applied,
    failures,
    judge_pods,
    one_of,
    template_hash,
)
from magnetar.operator.plan.conditions import NewCondition
from magnetar.operator.plan.facts import PodFacts, WorkloadFacts
from magnetar.operator.plan.rollout import broken


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutGate:
    """What a Deployment waits for, in words; empty: for nothing."""

    start: str
    """Asked only while it has no pods."""
    update: str
    """Asked only while its pods run, and are of an older template."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployment:
    """One that is looked at."""

    type: str
    """The type of its condition."""
    manifests: Sequence[Manifest]
    """The Deployment, and what its pods need."""
    found: WorkloadFacts | None
    pods: Sequence[PodFacts]
    gate: RolloutGate
    hibernated: bool
    now_seconds: float

    @property
    def wanted_hash(self) -> str:
        """The digest of the template that pods should have."""
        return template_hash(one_of(self.manifests, "Deployment"))

    @property
    def sleeps(self) -> bool:
        """Whether the component has no pods, and none are being made."""
        return self.found is None or self.found.desired == 0

    @property
    def held(self) -> bool:
        """It keeps its older template for now. Not if there is nothing to lose: then the newer one may repair it."""
        if self.found is None or self.sleeps or not self.gate.update or self.found.template_hash == self.wanted_hash:
            return False
        return any(pod.ready for pod in self.pods) or not any(broken(pod) for pod in self.pods)

    def actions(self, replicas: int) -> list[Action]:
        """Make it be as it may be by now, with so many pods."""
        deployment = one_of(self.manifests, "Deployment")
        before = applied(manifest for manifest in self.manifests if manifest is not deployment)
        if self.found is not None and self.found.deleting:
            return before
        if self.sleeps and replicas and self.gate.start:
            if self.found is None:
                return [*before, DryRun(_with_number(deployment, replicas))]
            replicas = 0
        if self.held:
            assert self.found is not None
            check = DryRun(_with_number(deployment, replicas))
            if self.found.desired == replicas:
                return [*before, check]
            return [*before, Scale(self.found.kind, self.found.name, self.found.uid, replicas), check]
        deployment["spec"]["replicas"] = replicas
        return [*before, *applied([deployment])]

    def condition(self, wanted: int, replicas: int) -> NewCondition:
        """What is to be said of it, where `wanted` pods should be and `replicas` are asked for by now."""
        if self.hibernated:
            if not self.pods:
                return NewCondition(self.type, False, HIBERNATED, "no pod runs")
            return NewCondition(self.type, False, STOPPING, f"{len(self.pods)} pods stop")
        if self.sleeps and wanted and self.gate.start:
            return NewCondition(self.type, False, WAITING, self.gate.start)
        if self.held:
            words = failures(self.pods, self.now_seconds)
            waits = NewCondition(self.type, False, UPDATE_WAITS, self.gate.update)
            return NewCondition(self.type, False, POD_FAILING, words) if words else waits
        current = judge_pods(self.type, self.pods, replicas, self.wanted_hash, self.now_seconds)
        if self.found is not None and self.found.stalled_message and not current.holds:
            words = self.found.stalled_message
            if current.reason in (POD_FAILING, ROLLOUT_FAILED):
                words = f"{current.message} ({words})"
            return NewCondition(self.type, False, ROLLOUT_FAILED, words)
        if current.holds and self.found is not None and self.found.template_hash != self.wanted_hash:
            return NewCondition(self.type, False, UPDATING, "the newest template has only been written")
        if current.holds and wanted != replicas:
            return NewCondition(self.type, False, SCALING, f"{replicas} pods of {wanted} that there should be")
        return current


def _with_number(deployment: Manifest, replicas: int) -> Manifest:
    return deployment | {"spec": deployment["spec"] | {"replicas": replicas}}
