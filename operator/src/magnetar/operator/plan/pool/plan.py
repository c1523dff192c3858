"""The plan of a Bookie, a pool of bookies: what one pass does, and what is said of it, by what was seen. Pure.

What holds at any time, whatever is cut off, carried out unseen or seen late: **no bookie is taken away for good, and no
volume is deleted, while the cluster needs what is on it.**

What is proven. A member is *drained* (`Member.drained`) if it says itself that its drain is done: then it takes no
writes, its cookie is gone, and it could not start again with its volumes. Or if it does not run and another bookie says
that it is not registered, has no cookie, and no ledger names it. Silence proves nothing; nor does an answer under
another bookie's name, which an address reused by another pod gives; nor what an earlier pass has written down. Answers
are asked for after the pods were listed, so they are of the pod that was seen or of nobody.

Why each step keeps it, though what is seen may be seconds old and of different moments:

* The StatefulSet's number. It never goes below a member that is not drained, by number (`allowed_replicas`); a pod
  that was seen beyond the number counts, since the StatefulSet may have been seen before it grew. It is only applied to
  the very object that was seen (uid and resourceVersion): had anybody changed it meanwhile, the server refuses. Where
  none was seen it is created, which fails if there is one. A drained pod that restarts in between ends as retired
  (`EXIT_RETIRED`) and has nothing either.
* Should a bookie be stopped undrained after all (by a person, or because it was started the moment it was taken for
  one that never ran), its claims are still there, and the cluster has its cookie: the number is raised to it again, it
  comes back with its data, and is drained.
* Claims of numbers that are gone. Deleted only without a pod, with the proof of another bookie found anew, and after
  the StatefulSet was applied in the same pass to the very object that was seen: nothing can start on them.
* Claims of a bookie that starts anew. Its pod is drained: it would not start with these volumes. A claim younger than
  the pod is not its own but the next pod's, seen earlier than that pod itself: it is kept. Claims go before the pod.
* A lost disk. Nothing is deleted: the others copy what they have of it (`RetireLostBookie`; that ends only when no
  ledger names it), then the bookie starts with the empty volume that it has. If an old volume is left beside, it ends
  as retired, is drained by the proof above, and gets fresh ones.
* A wrong volume is never touched.
* Restarts. A pod is deleted by its uid, one a pass, for whatever reason. For a new template it waits until all bookies
  answer and no ledger lacks a replica; which is next depends on the facts alone, so an old view deletes none more.
* A pool that is hibernated keeps all claims; when it wakes, all members with claims come back, also those that were on
  their way out.
* A pool that is deleted drains to nothing before it is let go, unless its cluster goes too, which takes its pools with
  it; then claims stay, or the cluster's own end deletes them.
"""

from __future__ import annotations

from magnetar.core.errors import Misuse
from magnetar.operator.children.naming import BOOKIE, FINALIZER
from magnetar.operator.plan.actions import Action, Apply, Create, Delete, DryRun, Plan, SetFinalizer
from magnetar.operator.plan.conditions import READY, holds, was_refused, written
from magnetar.operator.plan.facts import PoolSeen
from magnetar.operator.plan.pool.autoscale import UsageHistory, plan_autoscaling
from magnetar.operator.plan.pool.builder import REQUEUE_IDLE_SECONDS, PlanBuilder, named
from magnetar.operator.plan.pool.children import PoolChildren, leftovers, pool_children, to_apply
from magnetar.operator.plan.pool.members import PoolView, view_of
from magnetar.operator.plan.pool.repair import plan_fresh_starts, plan_lost, plan_replacements
from magnetar.operator.plan.pool.rollout import outdated_pods, plan_rollout, plan_troubles
from magnetar.operator.plan.pool.scale import claims_to_delete, plan_drains, replicas_to_apply, tell_scaling
from magnetar.operator.plan.pool.status import StatusFacts, pool_status, simple_status, transitions
from magnetar.operator.plan.pool.volumes import (
    may_be_made_anew,
    plan_growth,
    templates_differ,
    wanted_sizes,
    with_sizes,
)
from magnetar.operator.resources.common import API_VERSION


def plan_pool(seen: PoolSeen) -> Plan:
    """What is to be done about a pool. Never raises.

    Objects first, what is asked of bookies last: they may refuse, and a pass ends with the first that fails.
    """
    cluster, resource = seen.cluster, seen.cluster_resource
    if cluster is None or (resource is not None and resource.deleting):
        return _without_cluster(seen)
    view, builder = view_of(seen, cluster), PlanBuilder()
    if seen.resource.deleting and _is_empty(view):
        builder.do(SetFinalizer(False))
        return Plan(groups=builder.groups, status=written(seen.status), requeue_after_seconds=REQUEUE_IDLE_SECONDS)
    facts = _work(view, builder)
    status = pool_status(view, builder, facts)
    told = transitions(seen.status, status)
    if cluster.spec.paused:
        return Plan(told=told, status=written(status), requeue_after_seconds=REQUEUE_IDLE_SECONDS)
    first, *groups = builder.groups
    return Plan(
        first=first,
        groups=groups,
        told=told,
        asked=builder.controls,
        status=written(status),
        requeue_after_seconds=builder.requeue_after_seconds,
    )


def _belonging(view: PoolView) -> list[Action]:
    """A pool goes when its cluster goes. The default one is the cluster's own to make."""
    owner, cluster = view.seen.owner, view.cluster.owner
    if view.seen.resource.deleting or owner.name == cluster.name or cluster.uid in view.seen.resource.owner_uids:
        return []
    reference = {"apiVersion": API_VERSION, "kind": cluster.kind, "name": cluster.name, "uid": cluster.uid}
    metadata = {"name": owner.name, "namespace": owner.namespace, "uid": owner.uid, "ownerReferences": [reference]}
    return [Apply({"apiVersion": API_VERSION, "kind": owner.kind, "metadata": metadata})]


def _without_cluster(seen: PoolSeen) -> Plan:
    """Nothing can be made, nobody could take entries over, and volumes stay."""
    builder, held = PlanBuilder(), FINALIZER in seen.resource.finalizers
    if seen.resource.deleting:
        if held:
            builder.do(*_left_alone(seen), SetFinalizer(False))
    elif seen.cluster is not None:
        builder.waiting("ClusterDeleting", f"PulsarCluster {seen.spec.cluster_name} is being deleted")
    else:
        builder.waiting(
            "ClusterMissing",
            f"there is no PulsarCluster {seen.spec.cluster_name} in the namespace: make it, or correct clusterName by "
            "making another Bookie",
        )
    status = simple_status(seen, builder)
    return Plan(groups=builder.groups, status=written(status), requeue_after_seconds=builder.requeue_after_seconds)


def _left_alone(seen: PoolSeen) -> list[Delete]:
    """Bookies whose StatefulSet was just being made anew: nothing else would ever stop them."""
    if any(kind == "StatefulSet" for kind, _ in seen.children.workloads):
        return []
    pods = seen.children.of(BOOKIE, seen.owner.name)
    return [Delete("Pod", pod.name, pod.uid, reason="the cluster is deleted") for pod in pods if not pod.deleting]


def _is_empty(view: PoolView) -> bool:
    """Nothing is left of a pool that is deleted. Where the StatefulSet is not seen, a status that tells of pods makes
    the pass look twice."""
    if any(member.pod is not None or member.claims for member in view.members):
        return False
    if view.stateful is None:
        return view.seen.status.replicas == 0
    return view.stateful.desired == 0 and view.stateful.replicas == 0


def _work(view: PoolView, builder: PlanBuilder) -> StatusFacts:
    """All parts, the most telling first: the first note is the pool's phase."""
    resource, status = view.seen.resource, view.seen.status
    usage = UsageHistory(history=status.usage_history, scaled_at=status.scaled_at)
    replicas, wanted_hash = None, ""
    if not resource.deleting and FINALIZER not in resource.finalizers:
        builder.do(SetFinalizer(True))
    builder.do(*_belonging(view))
    try:
        wanted_sizes(view.seen.spec)
        pool_children(view, 0)
    except Misuse as error:
        builder.stalled("InvalidSpec", f"a value cannot be read: {error}. Correct the Bookie or the PulsarCluster")
    else:
        replicas = replicas_to_apply(view, builder)
        children = pool_children(view, replicas or 0)
        wanted_hash = children.template_hash
        builder.do(*to_apply(view, children))
        builder.go_on()
        _plan_stateful(view, children, replicas, builder)
        builder.go_on()
        if view.hibernated:
            _say_hibernated(view, builder)
        else:
            _plan_bookies(view, children, view.desired if replicas is None else replicas, builder)
            plan_growth(view, builder)
            usage = plan_autoscaling(view, builder)
    return StatusFacts(
        wanted_hash=wanted_hash, replicas=replicas, usage_history=usage.history, scaled_at=usage.scaled_at
    )


def _plan_stateful(view: PoolView, children: PoolChildren, replicas: int | None, builder: PlanBuilder) -> None:
    """The StatefulSet, and the claims that none of its pods will have again."""
    stateful, manifest = view.stateful, children.stateful
    if replicas is None:
        if not view.hibernated and not view.seen.resource.deleting:
            builder.do(DryRun(manifest))
        return
    if stateful is None:
        builder.do(Create(manifest))
        tell_scaling(view, replicas, builder)
        builder.waiting("Starting", f"{replicas} bookies are being made", busy=True)
        return
    if stateful.deleting:
        builder.waiting("Starting", "the StatefulSet is being deleted, and is made again", busy=True)
        return
    if templates_differ(view):
        if may_be_made_anew(view, replicas):
            builder.do(Delete("StatefulSet", stateful.name, stateful.uid, orphan=True, reason="new sizes of volumes"))
            builder.tell("StatefulSetRenewed", "it is made again for the new sizes of volumes; its bookies run on")
            builder.waiting("Starting", "the StatefulSet is made again for the new sizes of volumes", busy=True)
            return
        manifest = with_sizes(manifest, stateful.claim_sizes)
    claims = claims_to_delete(view, replicas)
    differs = replicas != stateful.desired or stateful.template_hash != children.template_hash
    # When all is well also without a difference that can be seen: others may have changed something in it. If that was
    # refused, it is not well before it is taken.
    if differs or claims or holds(view.seen.status.conditions, READY) or was_refused(view.seen.status.conditions):
        metadata = manifest["metadata"] | {"uid": stateful.uid}
        if stateful.resource_version:
            metadata["resourceVersion"] = stateful.resource_version
        builder.do(Apply(manifest | {"metadata": metadata}, checked=bool(claims)))
    tell_scaling(view, replicas, builder)
    if replicas > view.desired:
        builder.waiting("ScalingOut", f"from {view.desired} to {replicas} bookies", busy=True)
    if stateful.template_hash != children.template_hash:
        builder.tell("RolloutStarted", "bookies are restarted one by one to match the spec")
    builder.do(*claims)
    if claims:
        builder.tell("VolumesDeleted", f"{named([claim.name for claim in claims])}: their bookies were drained")


def _plan_bookies(view: PoolView, children: PoolChildren, replicas: int, builder: PlanBuilder) -> None:
    plan_fresh_starts(view, builder)
    plan_drains(view, replicas, builder)
    plan_replacements(view, builder)
    plan_lost(view, replicas, builder)
    plan_rollout(view, children.template_hash, builder)
    plan_troubles(view, replicas, builder)
    _say_gone(view, replicas, builder)
    if view.seen.resource.deleting:
        volumes = sum(len(member.claims) for member in view.members)
        builder.waiting(
            "Deleting",
            f"{len(view.pods)} pods and {volumes} volumes are left; volumes go when another bookie "
            "says that the cluster does not need them",
        )
    elif view.pods and not outdated_pods(view.pods, children.template_hash):
        builder.do(*leftovers(view, children))


def _say_gone(view: PoolView, replicas: int, builder: PlanBuilder) -> None:
    gone = [member for member in view.members if member.ordinal >= max(replicas, view.wanted)]
    if gone:
        claims = sum(len(member.claims) for member in gone)
        words = f"{gone[0].name} is going" if len(gone) == 1 else f"{len(gone)} bookies are going"
        waits = ", which go when another bookie says that the cluster does not need them"
        builder.waiting(
            "ScalingIn", f"{words} with {claims} volumes{waits if claims else ''}", busy=bool(view.writable)
        )


def _say_hibernated(view: PoolView, builder: PlanBuilder) -> None:
    if view.seen.resource.deleting:
        builder.stalled(
            "HibernatedPool",
            "a pool is drained before it is deleted, and its cluster is hibernated: set hibernated to false, or delete "
            "the PulsarCluster, which takes its pools with it",
        )
    elif view.pods and view.desired == 0:
        builder.waiting("Hibernating", f"{len(view.pods)} bookies are stopping", busy=True)
