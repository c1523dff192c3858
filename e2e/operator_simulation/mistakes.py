"""Known mistakes, planted in the operator's real code for a run: the simulator must find each of them.

Each is a patch of a function or method where it is used, undone afterwards.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import msgspec
from magnetar.operator import apply, custom, observe, reconcile
from magnetar.operator.children.context import ClusterContext
from magnetar.operator.kubernetes import errors
from magnetar.operator.kubernetes.kinds import Manifest
from magnetar.operator.plan import actions
from magnetar.operator.plan.cluster import broker_drains as cluster_broker_drains
from magnetar.operator.plan.cluster import deletion as cluster_deletion
from magnetar.operator.plan.cluster import events as cluster_events
from magnetar.operator.plan.cluster import plan as cluster
from magnetar.operator.plan.cluster import zookeeper as cluster_zookeeper
from magnetar.operator.plan.facts import BrokerFacts, ClusterSeen, PodFacts, PoolSeen
from magnetar.operator.plan.pool import members as pool_members
from magnetar.operator.plan.pool import plan as pool
from magnetar.operator.plan.pool import repair as pool_repair
from magnetar.operator.plan.pool import rollout as pool_rollout
from magnetar.operator.plan.pool import scale as pool_scale
from magnetar.operator.plan.pool import status as pool_status
from magnetar.operator.resources.bookie import BookieStatus
from magnetar.operator.resources.cluster import PulsarClusterSpec, PulsarClusterStatus

from e2e.operator_simulation.fates import Rates
from e2e.operator_simulation.parameters import Parameters
from e2e.simulation.planting import Patch


@dataclass(frozen=True, slots=True)
class Mistake:
    """One of them."""

    patches: Callable[[], list[Patch]]
    where: Callable[[Parameters], Parameters]
    """Makes any run one in which it is met soon; what is not said here stays as the seed has it."""


def _where(*actions: str, **changes: Any) -> Callable[[Parameters], Parameters]:
    """A cluster of usual size without any trouble but these actions."""
    calm: dict[str, Any] = {
        "actions": actions,
        "steps": 6,
        "pause_seconds": 20.0,
        "rates": Rates(),
        "watch_loses": 0.0,
        "bookies": 4,
        "bookies_max": 6,
        "ensemble_size": 2,
        "driver": "Leader",
        "begins_ready": True,
        "deleted_at_the_end": False,
        "idle_seconds": 600.0,
    }

    def changed(run: Parameters) -> Parameters:
        return replace(run, **calm | changes)

    return changed


def sorts_names_as_text() -> list[Patch]:
    """Who goes is found by the order of the pods' names, where 10 comes before 9."""

    def leaving(self: pool_members.PoolView) -> list[pool_members.Member]:
        return sorted(self.members, key=lambda member: member.name)[self.wanted :]

    return [(pool_members.PoolView, "leaving", property(leaving))]


def shrinks_before_drained() -> list[Patch]:
    """The StatefulSet is cut at once to what is wanted."""
    return [(pool_scale, "allowed_replicas", lambda view: view.wanted)]


def takes_silence_for_drained() -> list[Patch]:
    """Who does not answer has nothing to lose."""
    right: Any = pool_members.Member.__dict__["drained"]

    def drained(self: pool_members.Member) -> bool:
        return self.facts is None or bool(right.fget(self))

    return [(pool_members.Member, "drained", property(drained))]


def believes_old_drains() -> list[Patch]:
    """What an earlier pass has written down about a drain is as good as what is."""
    right = pool_members.view_of

    def view_of(seen: PoolSeen, cluster: ClusterContext) -> pool_members.PoolView:
        view = right(seen, cluster)
        done = {member.name for member in seen.status.members if member.state in ("Draining", "Drained")}

        def believed(member: pool_members.Member) -> pool_members.Member:
            if member.name not in done or member.facts is None:
                return member
            return replace(member, facts=_drained(member.facts))

        return replace(view, members=tuple(believed(member) for member in view.members))

    return [(pool, "view_of", view_of)]


def _drained(facts: Any) -> Any:
    return replace(facts, drain="Done", writable=False)


def deletes_claims_too_early() -> list[Patch]:
    """Claims go as soon as their bookie is to go."""

    def claims_to_delete(view: pool_members.PoolView, replicas: int) -> list[actions.Delete]:
        return [
            actions.Delete("PersistentVolumeClaim", claim.name, claim.uid)
            for member in view.leaving
            for claim in member.claims_kept
        ]

    return [(pool, "claims_to_delete", claims_to_delete)]


def empties_lost_disks_at_once() -> list[Patch]:
    """A bookie with an empty volume gets rid of all of them before the others have its ledgers."""

    def starts_empty(member: pool_members.Member) -> bool:
        return member.drained or member.volume_code is not None

    return [(pool_repair, "_starts_empty", starts_empty)]


def ignores_uids() -> list[Patch]:
    """What has the name is taken for what was seen."""
    right = apply.ActionExecutor.carry_out

    async def carry_out(self: apply.ActionExecutor, action: Any, make_token: Callable[[], str]) -> Any:
        if isinstance(action, actions.Delete):
            action = replace(action, uid="")
        return await right(self, action, make_token)

    return [(apply.ActionExecutor, "carry_out", carry_out)]


def applies_to_whatever_is_there() -> list[Patch]:
    """A StatefulSet is cut whether or not it is as it was seen."""
    right = apply.ActionExecutor.carry_out

    async def carry_out(self: apply.ActionExecutor, action: Any, make_token: Callable[[], str]) -> Any:
        if isinstance(action, actions.Apply):
            metadata = dict(action.manifest["metadata"])
            metadata.pop("resourceVersion", None)
            metadata.pop("uid", None)
            action = replace(action, manifest=action.manifest | {"metadata": metadata})
        return await right(self, action, make_token)

    return [(apply.ActionExecutor, "carry_out", carry_out)]


def restarts_two_at_once() -> list[Patch]:
    """The next pod of an older template is restarted without waiting for the last one."""

    def next_restart(pods: Sequence[PodFacts], wanted_hash: str, **_: Any) -> PodFacts | None:
        outdated = [pod for pod in pods if pod.template_hash != wanted_hash and not pod.deleting]
        return outdated[-1] if outdated else None

    return [(pool_rollout, "next_restart", next_restart), (cluster_zookeeper, "next_restart", next_restart)]


def scales_brokers_undrained() -> list[Patch]:
    """Brokers that are to go have nothing to give away."""

    def gone(pod: PodFacts, facts: BrokerFacts | None) -> bool:
        return True

    return [(cluster_broker_drains, "_gone", gone), (cluster_broker_drains, "_gives_away", lambda *_: False)]


def works_while_paused() -> list[Patch]:
    """A paused cluster is worked on."""
    right = custom.cluster_spec

    def unpaused(manifest: Manifest) -> PulsarClusterSpec:
        return msgspec.structs.replace(right(manifest), paused=False)

    return [(custom, "cluster_spec", unpaused)]


def ends_in_no_order() -> list[Patch]:
    """A cluster that is deleted with its volumes stops all at once."""
    right: Any = cluster_deletion.__dict__["_steps"]

    def steps(seen: ClusterSeen) -> tuple[list[actions.Action], str]:
        found = seen.children.workloads.values()
        at_once = [actions.Delete(each.kind, each.name, each.uid) for each in found if not each.deleting]
        ordered, words = right(seen)
        return [*at_once, *ordered], words

    return [(cluster_deletion, "_steps", steps)]


def sleeps_in_no_order() -> list[Patch]:
    """Bookies of a cluster that is to sleep stop at once."""
    return [(pool_scale, "_replicas_hibernated", lambda view, _: None if view.stateful is None else 0)]


def forgets_wishes() -> list[Patch]:
    """That a bookie is to be replaced is known only from the pod that says so."""
    right: Any = pool_members.Member.__dict__["replacement"]

    def replacement(self: pool_members.Member) -> Any:
        return right.fget(replace(self, remembered=None))

    return [(pool_members.Member, "replacement", property(replacement))]


def lets_go_early() -> list[Patch]:
    """A pool that is deleted is let go of before it is drained."""
    return [(pool, "_is_empty", lambda view: True)]


def tells_again_and_again() -> list[Patch]:
    """Events are told in each pass."""
    of_pool, of_cluster = pool_status.transitions, cluster_events.transitions
    return [
        (pool, "transitions", lambda previous, status: of_pool(BookieStatus(), status)),
        (cluster, "transitions", lambda previous, status: of_cluster(PulsarClusterStatus(), status)),
    ]


def writes_status_always() -> list[Patch]:
    """The status is written in each pass."""
    right: Any = reconcile.__dict__["_status"]
    numbers = itertools.count()

    def never_the_same(key: reconcile.Key, status: Any) -> Any:
        found = right(key, status)
        return found if found is None else msgspec.structs.replace(found, phase=f"{next(numbers)}")

    return [(reconcile, "_status", never_the_same)]


def adopts_the_predecessors_pool() -> list[Patch]:
    """A pool of a cluster that is gone belongs to the next one of its name."""
    return [(observe, "_is_of_an_earlier", lambda pool, cluster: False)]


def takes_refusals_for_outages() -> list[Patch]:
    """What its kind has no field for is answered with 500, as an outage is."""
    return [(errors, "_NOT_OF_THE_SCHEMA", "never")]


_QUICK: Final = {
    "steps": 25,
    "delay_seconds": 0.1,
    "start_seconds": 1.0,
    "copies_per_second": 20,
    "lost_after_seconds": 0.0,
}
"""A cluster that changes so fast that a call which comes late is about something else then."""

MISTAKES: Final[dict[str, Mistake]] = {
    "adopts-the-predecessors-pool": Mistake(
        adopts_the_predecessors_pool,
        _where("recreate", steps=1, delay_seconds=20.0, made_again_seconds=2.0, deletion_policy="Retain"),
    ),
    "applies-to-whatever-is-there": Mistake(
        applies_to_whatever_is_there, _where("scale_pool", "late_apply", pause_seconds=8.0, **_QUICK)
    ),
    "believes-old-drains": Mistake(believes_old_drains, _where("scale_pool", copies_per_second=1)),
    "deletes-claims-too-early": Mistake(deletes_claims_too_early, _where("scale_pool", copies_per_second=1)),
    "empties-lost-disks-at-once": Mistake(
        empties_lost_disks_at_once, _where("lose_volume", steps=15, copies_per_second=1, lost_after_seconds=60.0)
    ),
    "ends-in-no-order": Mistake(ends_in_no_order, _where("recreate", steps=2, deletion_policy="Delete")),
    "forgets-wishes": Mistake(
        forgets_wishes,
        _where(
            "annotate_replace",
            "delete_pod",
            steps=15,
            pause_seconds=6.0,
            zookeepers=1,
            brokers=1,
            proxies=0,
            copies_per_second=1,
        ),
    ),
    "ignores-uids": Mistake(ignores_uids, _where("annotate_replace", "new_version", "late_delete", **_QUICK)),
    "lets-go-early": Mistake(lets_go_early, _where("second_pool", pause_seconds=40.0)),
    "restarts-two-at-once": Mistake(restarts_two_at_once, _where("new_version", "change_settings", zookeepers=3)),
    "scales-brokers-undrained": Mistake(scales_brokers_undrained, _where("scale_brokers", brokers=3)),
    "shrinks-before-drained": Mistake(shrinks_before_drained, _where("scale_pool", copies_per_second=1)),
    "sleeps-in-no-order": Mistake(sleeps_in_no_order, _where("hibernate", "wake", pause_seconds=60.0)),
    "sorts-names-as-text": Mistake(sorts_names_as_text, _where("scale_pool", bookies=12, bookies_max=14)),
    "takes-silence-for-drained": Mistake(
        takes_silence_for_drained, _where("scale_pool", "hang_bookie", steps=25, pause_seconds=5.0, copies_per_second=1)
    ),
    "takes-refusals-for-outages": Mistake(
        takes_refusals_for_outages, _where("misspell", steps=4, pause_seconds=120.0, proxies=1)
    ),
    "tells-again-and-again": Mistake(tells_again_and_again, _where("scale_pool", steps=1)),
    "works-while-paused": Mistake(works_while_paused, _where("pause", "delete_pod", "new_version", steps=10)),
    "writes-status-always": Mistake(writes_status_always, _where("scale_pool", steps=1)),
}
