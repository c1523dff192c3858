"""The parts of a cluster's plan about metadata and bookies, and what brokers and proxies wait for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from magnetar.operator.children.bookies import default_pool, default_pool_number
from magnetar.operator.children.metadata_job import metadata_digest, metadata_job
from magnetar.operator.children.naming import INIT, NUMBER_MANAGER
from magnetar.operator.kubernetes.kinds import Manifest
from magnetar.operator.plan.actions import Action, Apply
from magnetar.operator.plan.cluster.leftovers import deletion_of
from magnetar.operator.plan.cluster.parts import (
    ALL_READY,
    BOOKIES_READY,
    BROKERS_READY,
    HIBERNATED,
    METADATA_READY,
    PROXIES_READY,
    STARTING,
    STOPPING,
    UPDATING,
    WAITING,
    ComponentPlan,
    failures,
    under_way,
)
from magnetar.operator.plan.conditions import READY, STALLED, NewCondition, condition, holds
from magnetar.operator.plan.facts import ClusterSeen, PoolFacts
from magnetar.operator.resources.common import ComponentStatus

METADATA_INIT_FAILED: Final = "MetadataInitFailed"
TOO_FEW_BOOKIES: Final = "TooFewBookies"
TOO_FEW_WRITABLE: Final = "TooFewWritable"


def plan_metadata(seen: ClusterSeen, zookeeper: ComponentPlan) -> ComponentPlan:
    """Written by a Job; that it is done is never taken back, though the Job runs again where it would write something
    else."""
    jobs = seen.children.jobs()
    done = holds(seen.status.conditions, METADATA_READY) or any(_succeeded(job) for job in jobs)
    if done:
        words = "the metadata store knows the cluster"
        actions: Sequence[Action] = ()
        stalled = None
        if metadata_written(seen) != metadata_digest(seen.cluster):
            trouble = failures(seen.children.of(INIT), seen.now_seconds)
            words += f", and will know where it is to be reached by now{f': {trouble}' if trouble else ''}"
            stalled = NewCondition(METADATA_READY, False, METADATA_INIT_FAILED, words) if trouble else None
            actions = _run_job(seen, jobs)[0] if _urls_hold(seen, zookeeper) else ()
        current = NewCondition(METADATA_READY, True, "Initialized", words)
        return ComponentPlan(condition=current, actions=actions, stalled=stalled, serving=True)
    if seen.cluster.spec.hibernated:
        return ComponentPlan(condition=NewCondition(METADATA_READY, False, HIBERNATED, "the cluster was never started"))
    if not zookeeper.serving:
        words = "the metadata is written once all ZooKeeper servers are ready"
        return ComponentPlan(condition=NewCondition(METADATA_READY, False, WAITING, words))
    actions, words = _run_job(seen, jobs)
    if words:
        current = NewCondition(METADATA_READY, False, METADATA_INIT_FAILED, words)
        return ComponentPlan(condition=current, actions=actions, stalled=current)
    current = NewCondition(
        METADATA_READY, False, STARTING, "a Job writes what brokers and bookies expect in the metadata"
    )
    return ComponentPlan(condition=current, actions=actions)


def metadata_written(seen: ClusterSeen) -> str:
    """The digest of what the metadata store was told last; empty: nobody knows."""
    name = metadata_job(seen.cluster)["metadata"]["name"]
    job = seen.children.objects.get(("Job", name))
    return metadata_digest(seen.cluster) if job is not None and _succeeded(job) else seen.status.metadata_digest


def _urls_hold(seen: ClusterSeen, zookeeper: ComponentPlan) -> bool:
    """Whether the cluster is to be reached as its spec says: all pods are of it."""
    status = seen.status
    seen_so = status.observed_generation == seen.resource.generation
    serve = holds(status.conditions, BROKERS_READY) and holds(status.conditions, PROXIES_READY)
    return seen_so and serve and zookeeper.serving and not seen.cluster.spec.hibernated


def _run_job(seen: ClusterSeen, jobs: Sequence[Manifest]) -> tuple[list[Action], str]:
    """What has to be done for it to run, and why it fails, if it does."""
    wanted = metadata_job(seen.cluster)
    actions: list[Action] = [deletion_of(job, "another one takes its place") for job in _others(jobs, wanted)]
    found = seen.children.objects.get(("Job", wanted["metadata"]["name"]))
    words = failures(seen.children.of(INIT), seen.now_seconds)
    words = words or seen.children.warnings.get(("Job", wanted["metadata"]["name"]), "")
    if found is not None and (gave_up := _condition(found, "Failed")) is not None:
        # Its pods are gone with it: the condition keeps their words until another one fails.
        words = words or _last_words(seen) or str(gave_up.get("message", "the Job gave up"))
        actions.append(deletion_of(found, "it gave up; another one tries again"))
    elif found is None or not found.get("metadata", {}).get("deletionTimestamp"):
        actions.append(Apply(wanted))
    return actions, words


def _others(jobs: Sequence[Manifest], wanted: Manifest) -> list[Manifest]:
    return [job for job in jobs if job["metadata"]["name"] != wanted["metadata"]["name"]]


def _last_words(seen: ClusterSeen) -> str:
    found = condition(seen.status.conditions, METADATA_READY)
    return found.message if found is not None and found.reason == METADATA_INIT_FAILED else ""


def _succeeded(job: Mapping[str, Any]) -> bool:
    return bool(job.get("status", {}).get("succeeded")) or _condition(job, "Complete") is not None


def _condition(job: Mapping[str, Any], type_: str) -> Mapping[str, Any] | None:
    found = job.get("status", {}).get("conditions") or ()
    return next((one for one in found if one.get("type") == type_ and one.get("status") == "True"), None)


def plan_bookies(seen: ClusterSeen, metadata: ComponentPlan) -> ComponentPlan:
    """The default pool is made once the metadata is there; each pool looks after itself."""
    pools = [pool for pool in seen.pools if not pool.deleting]
    hibernated = seen.cluster.spec.hibernated
    current, stalled = _judge_pools(seen, pools, metadata)
    return ComponentPlan(
        condition=current,
        status=ComponentStatus(
            replicas=sum(pool.status.replicas for pool in seen.pools),
            ready_replicas=sum(pool.status.ready_replicas for pool in seen.pools),
            updated_replicas=sum(pool.status.updated_replicas for pool in seen.pools),
            desired_replicas=0 if hibernated else sum(pool.replicas for pool in pools),
            message="" if current.holds else current.message,
        ),
        actions=_default_pool(seen) if metadata.serving and not _is_of_an_earlier(seen) else (),
        stalled=stalled,
        serving=writable(seen) >= seen.cluster.spec.bookkeeper.ensemble_size,
        busy=under_way(current),
    )


def _default_pool(seen: ClusterSeen) -> list[Action]:
    """Its number first: it must have a second owner before the first may leave it out."""
    found = next((pool for pool in seen.pools if pool.name == seen.cluster.name), None)
    number = default_pool_number(seen.cluster, found.uid) if found is not None else None
    actions: list[Action] = [Apply(number, manager=NUMBER_MANAGER)] if number is not None else []
    return [*actions, Apply(default_pool(seen.cluster))]


def _is_of_an_earlier(seen: ClusterSeen) -> bool:
    """Whether the default pool is still that of an earlier cluster of this name. It is about to go: taken over in its
    last moments, it would go alone, and be drained first."""
    owner = seen.cluster.owner
    return any(pool.name == owner.name and pool.cluster_uid not in ("", owner.uid) for pool in seen.pools)


def writable(seen: ClusterSeen) -> int:
    """Bookies that take writes, as the pools say."""
    return sum(pool.status.writable_replicas for pool in seen.pools)


def _judge_pools(
    seen: ClusterSeen, pools: Sequence[PoolFacts], metadata: ComponentPlan
) -> tuple[NewCondition, NewCondition | None]:
    def no(reason: str, message: str) -> NewCondition:
        return NewCondition(BOOKIES_READY, False, reason, message)

    if seen.cluster.spec.hibernated:
        running = sum(pool.status.replicas for pool in seen.pools)
        if running:
            return no(STOPPING, f"{running} bookies stop once no broker runs"), None
        return no(HIBERNATED, "no bookie runs"), None
    if not metadata.serving:
        return no(WAITING, "bookies start once the metadata is written"), None
    if not pools:
        going = ", ".join(f"Bookie {pool.name}" for pool in seen.pools)
        return no(STARTING, f"{going} is being deleted" if going else "the default pool is being made"), None
    ensemble_size = seen.cluster.spec.bookkeeper.ensemble_size
    wanted = sum(pool.replicas for pool in pools)
    for pool in pools:
        stalled = condition(pool.status.conditions, STALLED)
        if stalled is not None and stalled.status == "True":
            current = no(stalled.reason, f"Bookie {pool.name}: {stalled.message}")
            return current, current
    if wanted < ensemble_size:
        current = no(
            TOO_FEW_BOOKIES,
            f"bookkeeper.ensembleSize {ensemble_size} needs as many bookies, and all pools together want {wanted}: "
            "raise bookkeeper.replicas, or add a pool",
        )
        return current, current
    for pool in pools:
        if (unready := _pool_trouble(seen, pool)) is not None:
            return unready, None
    if writable(seen) < ensemble_size:
        words = f"{writable(seen)} bookies take writes, and every ledger needs {ensemble_size}"
        return no(TOO_FEW_WRITABLE, words), None
    return NewCondition(BOOKIES_READY, True, ALL_READY, f"{writable(seen)} of {wanted} bookies take writes"), None


def _pool_trouble(seen: ClusterSeen, pool: PoolFacts) -> NewCondition | None:
    if (waits := update_waits_for(seen, pool)) and pool.status.replicas:
        return NewCondition(BOOKIES_READY, False, UPDATING, waits)
    ready = condition(pool.status.conditions, READY)
    if ready is None or pool.status.observed_generation != pool.generation:
        return NewCondition(BOOKIES_READY, False, STARTING, f"Bookie {pool.name} has not been looked at yet")
    if ready.status != "True":
        return NewCondition(BOOKIES_READY, False, ready.reason, f"Bookie {pool.name}: {ready.message}")
    return None


def update_waits_for(seen: ClusterSeen, pool: PoolFacts) -> str:
    """Why brokers must not get a newer template yet, for this pool's bookies come first; empty: they may."""
    if pool.status.cluster_generation != seen.resource.generation:
        return f"Bookie {pool.name} does not have the cluster's newest version yet"
    if pool.status.updated_replicas < pool.status.replicas:
        return f"Bookie {pool.name}: {pool.status.updated_replicas} of {pool.status.replicas} bookies are up to date"
    return ""


def brokers_start_waits_for(
    seen: ClusterSeen, zookeeper: ComponentPlan, metadata: ComponentPlan, bookies: ComponentPlan
) -> str:
    """Why there can be no brokers yet. It is asked only while there are none."""
    if not zookeeper.serving:
        return "brokers start once all ZooKeeper servers are ready"
    if not metadata.serving:
        return "brokers start once the metadata is written"
    if not bookies.serving:
        wanted = seen.cluster.spec.bookkeeper.ensemble_size
        return f"brokers start once {wanted} bookies take writes; {writable(seen)} do"
    return ""


def brokers_update_waits_for(seen: ClusterSeen, zookeeper: ComponentPlan) -> str:
    """What is updated before the brokers and is not done yet."""
    if not zookeeper.complete:
        return f"brokers are updated after ZooKeeper: {zookeeper.condition.message}"
    for pool in seen.pools:
        if not pool.deleting and (words := update_waits_for(seen, pool)):
            return f"brokers are updated after the bookies: {words}"
    return ""
