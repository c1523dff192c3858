"""The part of a cluster's plan about ZooKeeper: one server at a time, the leader last, volumes that grow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from magnetar.operator.children.naming import ZOOKEEPER
from magnetar.operator.children.zookeeper import zookeeper_children
from magnetar.operator.kubernetes.kinds import Manifest
from magnetar.operator.plan.actions import VOLUME_GROWN, Action, Delete, EmitEvent, GrowVolume
from magnetar.operator.plan.cluster.hibernation import zookeeper_may_stop
from magnetar.operator.plan.cluster.parts import (
    HIBERNATED,
    STOPPING,
    UPDATING,
    ZOOKEEPER_READY,
    ComponentPlan,
    applied,
    component_status,
    judge_pods,
    one_of,
    stall_of,
    template_hash,
    under_way,
)
from magnetar.operator.plan.conditions import NewCondition
from magnetar.operator.plan.facts import ClaimFacts, ClusterSeen, PodFacts, WorkloadFacts
from magnetar.operator.plan.rollout import next_restart
from magnetar.operator.resources.cluster import ZookeeperSpec
from magnetar.operator.resources.common import ComponentStatus
from magnetar.operator.resources.quantities import format_bytes, size_bytes

VOLUME_NOT_EXPANDABLE: Final = "VolumeNotExpandable"


def plan_zookeeper(seen: ClusterSeen) -> ComponentPlan:
    """The ensemble, or that there is one already."""
    cluster = seen.cluster
    if not cluster.runs_zookeeper:
        words = f"the metadata is in {cluster.metadata_url}, which others run"
        return ComponentPlan(
            condition=NewCondition(ZOOKEEPER_READY, True, "External", words),
            status=ComponentStatus(message=words),
            serving=True,
        )
    manifests = zookeeper_children(cluster)
    wanted = one_of(manifests, "StatefulSet")
    found = seen.children.workloads.get(("StatefulSet", cluster.zookeeper))
    replicas = _replicas(seen, found)
    wanted["spec"]["replicas"] = replicas
    claims = [claim for claim in seen.children.claims if claim.component == ZOOKEEPER]
    growth, stalled, remake = _volumes(claims, wanted, found)
    if stalled is not None and found is not None:
        # The server would refuse the StatefulSet, and with it all that comes after.
        _keep_sizes(wanted, found.claim_sizes)
    pods = seen.children.of(ZOOKEEPER)
    actions: list[Action] = []
    if remake is not None or (found is not None and found.deleting):
        manifests = [manifest for manifest in manifests if manifest is not wanted]
    actions += [*applied(manifests), *growth]
    if remake is not None:
        actions.append(remake)
    restarted = _restart(seen, pods, template_hash(wanted), found)
    if restarted is not None:
        why = "it does not have the newest template"
        actions.append(Delete("Pod", restarted.name, restarted.uid, reason=why))
    current = _condition(
        seen, pods, replicas, template_hash(wanted), found.stalled_message if found is not None else ""
    )
    if restarted is not None and current.reason == UPDATING:
        current = NewCondition(current.type, False, current.reason, f"{current.message}; {restarted.name} restarts")
    return ComponentPlan(
        condition=current,
        status=component_status(
            pods, template_hash(wanted), replicas, "" if current.holds and stalled is None else current.message
        ),
        actions=actions,
        stalled=stall_of(current) or stalled,
        serving=replicas > 0 and sum(pod.ready and not pod.deleting for pod in pods) >= replicas,
        busy=bool(growth) or remake is not None or under_way(current),
    )


def _replicas(seen: ClusterSeen, found: WorkloadFacts | None) -> int:
    """The number that the spec says; while it hibernates: what there is, and none once nobody needs it any more."""
    spec = seen.cluster.spec
    if not spec.hibernated:
        return (spec.metadata.zookeeper or ZookeeperSpec()).replicas
    if zookeeper_may_stop(seen):
        return 0
    if found is None:
        # Never started; or it was being made anew around its pods, and those go last.
        return sum(not pod.deleting for pod in seen.children.of(ZOOKEEPER))
    return found.desired


def _restart(
    seen: ClusterSeen, pods: Sequence[PodFacts], wanted_hash: str, found: WorkloadFacts | None
) -> PodFacts | None:
    # A pod that goes before the StatefulSet has the new template, and its controller knows it, comes back as it was.
    if seen.cluster.spec.hibernated or found is None or found.deleting:
        return None
    if found.template_hash != wanted_hash or not found.settled:
        return None
    leaders = [name for name, facts in seen.zookeeper.items() if facts.mode in ("leader", "standalone")]
    everybody_answers = all(pod.name in seen.zookeeper for pod in pods)
    complete = len(pods) == found.desired and len(leaders) == 1 and everybody_answers
    return next_restart(pods, wanted_hash, last=leaders[0] if leaders else None, may_restart=complete)


def _volumes(
    claims: Sequence[ClaimFacts], wanted: Manifest, found: WorkloadFacts | None
) -> tuple[list[Action], NewCondition | None, Delete | None]:
    """What is asked for, why it cannot be, and the StatefulSet that has to be made anew for its claim templates
    cannot be changed. A claim that somebody has made larger than the spec says stays so."""
    sizes = {
        template["metadata"]["name"]: size_bytes(template["spec"]["resources"]["requests"]["storage"])
        for template in wanted["spec"]["volumeClaimTemplates"]
    }
    small = [claim for claim in claims if not claim.deleting and claim.requested_bytes < sizes.get(claim.volume, 0)]
    fixed = [claim for claim in small if not claim.expandable]
    if fixed:
        words = (
            f"{fixed[0].name} cannot grow to {format_bytes(sizes[fixed[0].volume])}: its storage class "
            f"{fixed[0].storage_class or '(none)'} does not allow it; set allowVolumeExpansion there, if its "
            "storage can do it"
        )
        return [], NewCondition("", False, VOLUME_NOT_EXPANDABLE, words), None
    actions: list[Action] = []
    for claim in small:
        size = sizes[claim.volume]
        actions.append(GrowVolume(claim.name, claim.uid, size))
        actions.append(
            EmitEvent(
                "Normal", VOLUME_GROWN, f"{claim.name}: {format_bytes(claim.requested_bytes)} to {format_bytes(size)}"
            )
        )
    if found is None or found.deleting or not _differ(found.claim_sizes, sizes):
        return actions, None, None
    why = "volumes grow, and its claim templates cannot be changed; its pods go on"
    return actions, None, Delete(found.kind, found.name, found.uid, orphan=True, reason=why)


def _keep_sizes(wanted: Manifest, sizes: Mapping[str, str]) -> None:
    for template in wanted["spec"]["volumeClaimTemplates"]:
        if (size := sizes.get(template["metadata"]["name"])) is not None:
            template["spec"]["resources"]["requests"]["storage"] = size


def _differ(found: Mapping[str, str], wanted: Mapping[str, int]) -> bool:
    return bool(found) and {name: size_bytes(size) for name, size in found.items()} != dict(wanted)


def _condition(
    seen: ClusterSeen, pods: Sequence[PodFacts], replicas: int, wanted_hash: str, not_made: str
) -> NewCondition:
    if seen.cluster.spec.hibernated:
        if not pods:
            return NewCondition(ZOOKEEPER_READY, False, HIBERNATED, "no server runs")
        words = "servers stop once no bookie runs" if replicas else "servers stop"
        return NewCondition(ZOOKEEPER_READY, False, STOPPING, words)
    return judge_pods(ZOOKEEPER_READY, pods, replicas, wanted_hash, seen.now_seconds, not_made)
