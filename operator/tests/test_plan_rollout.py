from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from magnetar.operator.plan.facts import PodFacts
from magnetar.operator.plan.rollout import failed_update, failing, next_restart, trouble
from operator_fakes.plan_builders import NOW, WANTED, make_pod

OLD: dict[str, Any] = {"template_hash": "old"}
DOWN: dict[str, Any] = {"ready": False}
CRASHED: dict[str, Any] = {"ready": False, "waiting_reason": "CrashLoopBackOff", "exit_code": 1}


def server(number: int, *facts: dict[str, Any]) -> PodFacts:
    merged: dict[str, Any] = {}
    for layer in facts:
        merged |= layer
    return make_pod(f"blue-zookeeper-{number}", "zookeeper", **merged)


@pytest.mark.parametrize(
    ("pods", "leader", "may_restart", "restarted"),
    [
        pytest.param([server(0), server(1)], 1, True, None, id="all as they should be"),
        pytest.param([server(0, OLD), server(1, OLD), server(2, OLD)], 2, True, 1, id="highest first, leader not yet"),
        pytest.param([server(0, OLD), server(1), server(2, OLD)], 2, True, 0, id="one after the other"),
        pytest.param([server(0), server(1), server(2, OLD)], 2, True, 2, id="the leader at the end"),
        pytest.param([server(0, OLD), server(1, OLD)], 0, False, None, id="gates are closed"),
        pytest.param([server(0, OLD), server(1, DOWN)], 0, True, None, id="the new one is not ready yet"),
        pytest.param([server(0, OLD), server(1, CRASHED)], 0, True, None, id="the new one fails: stop"),
        pytest.param([server(0, OLD), server(1, {"deleting": True})], 0, True, None, id="one is going"),
        pytest.param([server(0, OLD), server(1, OLD, CRASHED)], 1, False, 1, id="what does not work goes first"),
        pytest.param([server(0, OLD, DOWN), server(1, OLD)], 1, False, 0, id="not ready, and nothing is starting"),
        pytest.param([server(0, OLD, DOWN), server(1, DOWN), server(2)], 2, True, None, id="wait for who starts"),
        pytest.param([server(0, OLD, CRASHED), server(1, DOWN), server(2)], 2, True, 0, id="broken does not wait"),
        pytest.param([server(0, OLD, DOWN), server(1, OLD, DOWN), server(2, DOWN)], 0, False, 1, id="nothing to lose"),
        pytest.param([], 0, True, None, id="none"),
    ],
)
def test_which_pod_is_restarted_next(
    pods: list[PodFacts], leader: int, may_restart: bool, restarted: int | None
) -> None:
    found = next_restart(pods, WANTED, last=f"blue-zookeeper-{leader}", may_restart=may_restart)
    assert (found.ordinal if found else None) == restarted


def test_a_pod_without_room_fails_only_after_a_while() -> None:
    waiting = server(0, DOWN, {"waiting_reason": "Unschedulable", "created_seconds": NOW})
    assert not failing(waiting, NOW + 5)
    assert failing(waiting, NOW + 60)


@pytest.mark.parametrize(
    ("facts", "fails"),
    [
        ({}, False),
        (DOWN, False),
        (CRASHED, True),
        ({"ready": False, "waiting_reason": "ContainerCreating"}, False),
        ({"ready": False, "restarts": 1, "exit_code": 1}, False),
        ({"ready": False, "restarts": 2, "exit_code": 1}, True),
        ({"ready": False, "restarts": 2, "exit_code": 0}, False),
        ({"ready": False, "restarts": 4, "exit_code": 1}, True),
        ({"ready": True, "restarts": 4, "exit_code": 1}, False),
        ({"ready": False, "waiting_reason": "ImagePullBackOff", "deleting": True}, False),
    ],
)
def test_what_counts_as_failing(facts: dict[str, Any], fails: bool) -> None:
    assert failing(server(0, facts), NOW) is fails


def test_a_rollout_fails_by_pods_of_the_new_template_only() -> None:
    broken_old, broken_new = server(0, OLD, CRASHED), server(1, CRASHED)
    assert failed_update([broken_old], WANTED, NOW) is None
    assert failed_update([broken_old, broken_new], WANTED, NOW) == broken_new


@pytest.mark.parametrize(
    ("facts", "said"),
    [
        (DOWN, "blue-zookeeper-0 is not ready"),
        (
            CRASHED | {"exit_message": "zoo.cfg: no such setting\n"},
            "blue-zookeeper-0: CrashLoopBackOff: its last words: zoo.cfg: no such setting",
        ),
        (
            DOWN | {"waiting_reason": "ImagePullBackOff", "waiting_message": "not found"},
            "blue-zookeeper-0: ImagePullBackOff: not found: check version, imageRepository and imagePullSecrets",
        ),
        (DOWN | {"exit_code": 137}, "blue-zookeeper-0: its container ended with code 137"),
    ],
)
def test_what_is_said_of_a_pod(facts: dict[str, Any], said: str) -> None:
    assert trouble(server(0, facts)) == said


@pytest.mark.parametrize(
    ("message", "hint"),
    [
        ("0/3 nodes are available: 3 Insufficient cpu.", "lower resources.requests"),
        ("0/3 nodes are available: pod has unbound immediate PersistentVolumeClaims.", "storageClassName"),
        ('persistentvolumeclaim "ledgers-blue-bookie-0" not found', "kubectl describe pvc"),
        ("0/3 nodes are available: 3 node(s) had volume node affinity conflict.", "delete the pod and its claims"),
    ],
)
def test_what_is_not_placed_says_whether_room_or_a_volume_is_lacking(message: str, hint: str) -> None:
    pod = make_pod("blue-bookie-0", "bookie", ready=False, waiting_reason="Unschedulable", waiting_message=message)
    assert hint in trouble(pod)


def test_a_pod_whose_node_is_lost_is_a_persons_to_solve() -> None:
    """Kubernetes keeps it for ever, and a StatefulSet makes no other one in its place."""
    pod = make_pod("blue-bookie-0", "bookie", node="n7", ready=False, deleting=True, stops_by_seconds=NOW - 90)
    assert failing(pod, NOW)
    assert "n7" in trouble(pod)
    assert "kubectl delete node" in trouble(pod)
    assert not failing(replace(pod, stops_by_seconds=NOW - 30), NOW)
    assert not failing(replace(pod, stops_by_seconds=0), NOW)
