"""More and fewer brokers, and who moves bundles."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest
from magnetar.operator.children.naming import BROKER, DRAIN_ANNOTATION
from magnetar.operator.plan.actions import (
    Action,
    Annotate,
    CancelBrokerDrain,
    Plan,
    SetBalanceDriver,
    SplitBundle,
    StartBrokerDrain,
    TransferBundle,
)
from magnetar.operator.plan.cluster.broker_drains import COST, COST_ANNOTATION
from magnetar.operator.plan.cluster.plan import BUSY_SECONDS, plan_cluster
from magnetar.operator.plan.facts import ClusterSeen
from operator_fakes.cluster_builders import (
    asked,
    condition_of,
    events,
    healthy,
    manifest_of,
    respecified,
    told,
    with_pod,
    with_pods,
    with_workload,
)
from operator_fakes.plan_builders import NOW


def fewer(brokers: int, wanted: int) -> ClusterSeen:
    """So many run, and so many are wanted."""
    return respecified(healthy(brokers=brokers), broker={"replicas": wanted})


def facts(seen: ClusterSeen, name: str, **changes: Any) -> ClusterSeen:
    """One broker says something else."""
    found = replace(seen.brokers[name], **changes)
    return replace(seen, brokers={**seen.brokers, name: found})


def silent(seen: ClusterSeen, name: str) -> ClusterSeen:
    """One does not answer."""
    return replace(seen, brokers={key: found for key, found in seen.brokers.items() if key != name})


def replicas(plan: Plan) -> int:
    manifest = manifest_of(plan, "Deployment", "blue-broker")
    assert manifest is not None
    found = manifest["spec"]["replicas"]
    assert isinstance(found, int)
    return found


def drained(plan: Plan) -> list[str]:
    return [action.pod for action in asked(plan, StartBrokerDrain)]


def test_more_brokers_come_at_once() -> None:
    plan = plan_cluster(fewer(2, 4))
    assert replicas(plan) == 4
    assert "ScaledOut" in events(plan)


def test_those_that_go_give_their_bundles_away_first() -> None:
    seen = fewer(4, 2)
    plan = plan_cluster(seen)
    assert replicas(plan) == 4
    assert drained(plan) == ["blue-broker-a", "blue-broker-b"]
    assert [(one.name, one.annotations) for one in asked(plan, Annotate)] == [
        ("blue-broker-a", ((COST_ANNOTATION, COST),)),
        ("blue-broker-b", ((COST_ANNOTATION, COST),)),
    ]
    assert condition_of(plan, "BrokersReady")[:2] == ("False", "Scaling")
    assert plan.requeue_after_seconds == BUSY_SECONDS
    assert events(plan).count("DrainStarted") == 2
    positions = [index for index, action in enumerate(plan.actions) if isinstance(action, StartBrokerDrain)]
    assert min(positions) > max(index for index, action in enumerate(plan.actions) if hasattr(action, "manifest"))


def test_a_broker_goes_when_it_is_drained_and_the_others_stay() -> None:
    seen = facts(fewer(3, 2), "blue-broker-c", drain="Running", bundles_left=5, blockers=["public/default/0x0_0x1"])
    seen = with_pod(seen, "blue-broker-c", ready=False, annotations={COST_ANNOTATION: COST})
    plan = plan_cluster(seen)
    assert replicas(plan) == 3
    assert drained(plan) == []
    assert "blue-broker-c has 5 bundles left" in condition_of(plan, "BrokersReady")[2]
    assert "public/default/0x0_0x1" in condition_of(plan, "BrokersReady")[2]
    assert [one["state"] for one in plan.status["brokerMembers"]] == ["Ready", "Ready", "Draining"]
    plan = plan_cluster(facts(seen, "blue-broker-c", drain="Done", bundles_left=0))
    assert replicas(plan) == 2
    assert "ScaledIn" in events(plan)
    assert not asked(plan, CancelBrokerDrain)


def test_several_go_together_once_all_of_them_are_drained() -> None:
    """A ReplicaSet would take the one that is being drained, for it is not ready, before one that is drained."""
    seen = facts(fewer(5, 2), "blue-broker-c", drain="Done")
    seen = facts(facts(seen, "blue-broker-d", drain="Done"), "blue-broker-e", drain="Running")
    assert replicas(plan_cluster(seen)) == 5
    assert replicas(plan_cluster(facts(seen, "blue-broker-e", drain="Done"))) == 2


def test_one_that_does_not_work_goes_first_and_needs_no_drain() -> None:
    seen = silent(with_pod(fewer(3, 2), "blue-broker-b", ready=False, restarts=9, exit_code=1), "blue-broker-b")
    plan = plan_cluster(seen)
    assert replicas(plan) == 2
    assert drained(plan) == []


def test_one_that_serves_but_does_not_answer_is_waited_for() -> None:
    seen = fewer(2, 1)
    seen = with_pod(silent(seen, "blue-broker-b"), "blue-broker-b", annotations={COST_ANNOTATION: COST})
    plan = plan_cluster(seen)
    assert replicas(plan) == 2
    assert "blue-broker-b does not answer" in condition_of(plan, "BrokersReady")[2]


def test_nobody_is_drained_when_nobody_can_take_the_bundles() -> None:
    seen = with_pods(fewer(2, 1), lambda pod: replace(pod, ready=False) if pod.component == BROKER else pod)
    plan = plan_cluster(seen)
    assert drained(plan) == []
    assert "no other broker is ready" in condition_of(plan, "BrokersReady")[2]


def test_fewer_brokers_wait_for_a_rollout_unless_it_does_not_get_on() -> None:
    seen = with_workload(fewer(3, 2), "Deployment", "blue-broker", settled=False)
    plan = plan_cluster(seen)
    assert replicas(plan) == 3
    assert drained(plan) == []
    plan = plan_cluster(with_workload(seen, "Deployment", "blue-broker", stalled_message="timed out"))
    assert drained(plan) == ["blue-broker-a"]


def test_a_drain_that_is_not_wanted_any_more_ends() -> None:
    seen = facts(fewer(3, 3), "blue-broker-c", drain="Running")
    seen = with_pod(seen, "blue-broker-c", annotations={COST_ANNOTATION: COST})
    plan = plan_cluster(seen)
    assert [one.pod for one in asked(plan, CancelBrokerDrain)] == ["blue-broker-c"]
    assert [one.annotations for one in asked(plan, Annotate)] == [((COST_ANNOTATION, None),)]
    assert events(plan) == ["DrainCancelled"]


def test_a_drain_that_a_person_asked_for_is_left_to_them() -> None:
    seen = facts(fewer(3, 3), "blue-broker-c", drain="Running")
    seen = with_pod(seen, "blue-broker-c", annotations={DRAIN_ANNOTATION: "true"})
    assert not asked(plan_cluster(seen), CancelBrokerDrain)


def test_a_drained_one_that_is_about_to_go_is_not_taken_back() -> None:
    seen = with_workload(facts(fewer(3, 2), "blue-broker-c", drain="Done"), "Deployment", "blue-broker", desired=2)
    plan = plan_cluster(seen)
    assert not asked(plan, CancelBrokerDrain)
    assert replicas(plan) == 2


def test_no_broker_at_all_needs_no_drain() -> None:
    plan = plan_cluster(fewer(2, 0))
    assert replicas(plan) == 0
    assert drained(plan) == []


def test_without_a_number_in_the_spec_it_is_what_the_deployment_has() -> None:
    seen = with_workload(healthy(), "Deployment", "blue-broker", desired=7)
    assert replicas(plan_cluster(seen)) == 7


AUTOSCALING = {"autoscaling": {"minReplicas": 1, "maxReplicas": 5, "stabilizationSeconds": 0}}


def loaded(percent: int, *, brokers: int = 3) -> ClusterSeen:
    seen = respecified(healthy(brokers=brokers), broker=AUTOSCALING)
    found = {name: replace(one, load_percent=percent) for name, one in seen.brokers.items()}
    return replace(seen, brokers=found)


def passes(seen: ClusterSeen, seconds: float = 400) -> Plan:
    """What the autoscaling says when the load has been so for long."""
    return plan_cluster(told(seen, now_seconds=NOW + seconds))


def test_autoscaling_adds_a_broker_under_load_and_says_why() -> None:
    plan = passes(loaded(75))
    assert replicas(plan) == 4
    assert plan.status["brokerLoad"]["percent"] == 75
    assert "ScaledOut" in events(plan)


def test_autoscaling_takes_one_away_by_a_drain_and_goes_on_with_it() -> None:
    seen = told(loaded(5), now_seconds=NOW + 400)
    plan = plan_cluster(seen)
    (victim,) = drained(plan)
    assert replicas(plan) == 3
    seen = facts(told(seen, now_seconds=NOW + 402), victim, drain="Running", bundles_left=3)
    plan = plan_cluster(with_pod(seen, victim, ready=False, annotations={COST_ANNOTATION: COST}))
    assert not asked(plan, CancelBrokerDrain)
    assert drained(plan) == []


def test_a_paused_cluster_is_not_scaled() -> None:
    seen = respecified(loaded(95), broker=AUTOSCALING, paused=True)
    plan = plan_cluster(told(seen, now_seconds=NOW + 400))
    assert manifest_of(plan, "Deployment", "blue-broker") is None


@pytest.mark.parametrize(
    ("spec", "seen_driver", "set_to"),
    [
        ("Leader", "leader", None),
        ("Leader", "control", "leader"),
        ("Operator", "leader", "control"),
        ("Operator", "control", None),
        ("None", "leader", "control"),
        ("None", "", None),
    ],
)
def test_who_balances_is_told_to_the_brokers(spec: str, seen_driver: str, set_to: str | None) -> None:
    seen = replace(respecified(healthy(), balance={"driver": spec}), driver=seen_driver)
    found = [action.driver for action in asked(plan_cluster(seen), SetBalanceDriver)]
    assert found == ([set_to] if set_to else [])


MOVES: list[Action] = [
    TransferBundle("public/default/0x00000000_0x40000000", "blue-broker-a:8080", "blue-broker-b:8080", "62 % to 31 %"),
    SplitBundle("public/default/0x40000000_0x80000000", "blue-broker-a:8080", "range_equally_divide", "1200 topics"),
]


def test_moves_are_carried_out_told_of_and_remembered() -> None:
    seen = replace(respecified(healthy(), balance={"driver": "Operator"}), driver="control")
    plan = plan_cluster(seen, MOVES)
    assert [action for action in plan.actions if action in MOVES] == MOVES
    assert "Balanced" in events(plan)
    assert [move["kind"] for move in plan.status["lastMoves"]] == ["unload", "split"]
    assert plan.status["lastMoves"][0]["destination"] == "blue-broker-b:8080"
    again = plan_cluster(replace(seen, status=told(seen).status), MOVES)
    assert len(again.status["lastMoves"]) == 2


@pytest.mark.parametrize(
    ("spec", "driver"),
    [
        ({"balance": {"driver": "Operator"}}, "leader"),
        ({"balance": {"driver": "Leader"}}, "control"),
        ({"balance": {"driver": "Operator"}, "paused": True}, "control"),
        ({"balance": {"driver": "Operator"}, "hibernated": True}, "control"),
    ],
)
def test_nothing_is_moved_by_two_or_when_nothing_is_to_be_done(spec: dict[str, Any], driver: str) -> None:
    plan = plan_cluster(replace(respecified(healthy(), **spec), driver=driver), MOVES)
    assert not [action for action in plan.actions if action in MOVES]


def test_what_is_said_of_brokers() -> None:
    seen = healthy(brokers=4)
    seen = facts(seen, "blue-broker-a", load_percent=44)
    seen = with_pod(silent(seen, "blue-broker-b"), "blue-broker-b", ready=False, waiting_reason="CrashLoopBackOff")
    seen = with_pod(silent(seen, "blue-broker-c"), "blue-broker-c", ready=False)
    seen = silent(seen, "blue-broker-d")
    found = told(seen).status.broker_members
    assert [one.state for one in found] == ["Ready", "Down", "Starting", "Ready"]
    assert (found[0].bundles, found[0].load_percent) == (10, 44)
    assert "CrashLoopBackOff" in found[1].message
    assert "does not answer" in found[3].message


def test_brokers_keep_their_places_in_the_status_and_newer_ones_come_last() -> None:
    seen = healthy(brokers=3)
    reordered = [seen.status.broker_members[number] for number in (2, 0)]
    status = msgspec.structs.replace(seen.status, broker_members=reordered)
    found = [member["name"] for member in plan_cluster(replace(seen, status=status)).status["brokerMembers"]]
    assert found == ["blue-broker-c", "blue-broker-a", "blue-broker-b"]


@pytest.mark.parametrize(
    ("spec", "seconds"),
    [
        ({"broker": {"autoscaling": {"maxReplicas": 5}}}, 15),
        ({"broker": {"replicas": 2}}, 60),
        ({"broker": {"autoscaling": {"maxReplicas": 5}}, "paused": True}, 60),
        ({"broker": {"autoscaling": {"maxReplicas": 5}}, "balance": {"driver": "Operator", "intervalSeconds": 10}}, 10),
    ],
)
def test_the_load_is_asked_for_more_often_while_it_decides_the_number(spec: dict[str, Any], seconds: int) -> None:
    assert plan_cluster(healthy(**spec)).requeue_after_seconds == seconds


def test_looks_every_quarter_of_a_minute_scale_out_after_the_same_minute() -> None:
    seen = healthy(broker={"autoscaling": {"maxReplicas": 5}})
    numbers = []
    for look in range(7):
        facts = {name: replace(one, load_percent=90) for name, one in seen.brokers.items()}
        seen = replace(seen, brokers=facts, now_seconds=NOW + 15 * look)
        manifest = manifest_of(plan_cluster(seen), "Deployment", "blue-broker")
        numbers.append(manifest["spec"]["replicas"] if manifest is not None else None)
        seen = told(seen)
    assert numbers[:4] == [2, 2, 2, 2]
    assert numbers[4] == 3
