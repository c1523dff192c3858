"""Passes that something keeps from going on: what is refused, what stays in the way, what takes too long."""

from __future__ import annotations

import base64
from typing import Any

import pytest
from magnetar.core.errors import SettingError
from magnetar.operator.kubernetes.errors import AlreadyExists, Conflict, Refused, ServerUnavailable
from magnetar.operator.plan.actions import Apply, Create, EmitEvent, StartBookieDrain
from magnetar.operator.plan.facts import BrokerFacts
from magnetar.operator.reconcile import INTERRUPTIONS_MAX, LOOK_AGAIN_SECONDS
from operator_fakes.stage import BLUE, COLD, MOVE, SPLIT, ReconcilerStage, small_stage


@pytest.fixture
def stage() -> ReconcilerStage:
    return small_stage()


def condition(stage: ReconcilerStage, type_: str) -> dict[str, Any]:
    found = stage.api.objects["PulsarCluster", "here", "blue"]["status"]["conditions"]
    return next(one for one in found if one["type"] == type_)


async def test_what_may_not_be_looked_at_stands_in_the_conditions(stage: ReconcilerStage) -> None:
    """A right that is taken away: the status of the last pass would say Ready for ever."""
    usual = {"reason": "AsWished", "message": "", "lastTransitionTime": "2025-10-09T08:00:00Z", "observedGeneration": 1}
    stage.status = {
        "phase": "Ready",
        "observedGeneration": 1,
        "conditions": [{"type": "Ready", "status": "True", **usual}, {"type": "Paused", "status": "False", **usual}],
    }
    await stage.reconciler.reconcile(BLUE)
    stage.api.failures["list", "NetworkPolicy"] = [Refused("list NetworkPolicy: it is forbidden (403)")]
    with pytest.raises(Refused):
        await stage.reconciler.reconcile(BLUE)
    assert (condition(stage, "Ready")["status"], condition(stage, "Stalled")["status"]) == ("False", "True")
    assert "it is forbidden" in condition(stage, "Stalled")["message"]
    assert condition(stage, "Paused") == {"type": "Paused", "status": "False", **usual}
    assert stage.api.objects["PulsarCluster", "here", "blue"]["status"]["observedGeneration"] == 1
    await stage.reconciler.reconcile(BLUE)
    assert condition(stage, "Ready") == {"type": "Ready", "status": "True", **usual}


async def test_a_status_of_another_version_is_no_obstacle_to_saying_so(stage: ReconcilerStage) -> None:
    stage.put("PulsarCluster", "blue", spec={}, status={"conditions": [{"type": "Ready", "status": "Perhaps"}]})
    stage.api.failures["list", "Pod"] = [Refused("list Pod: it is forbidden (403)")]
    with pytest.raises(Refused):
        await stage.reconciler.reconcile(BLUE)
    assert condition(stage, "Ready")["reason"] == "Refused"


async def test_what_stays_in_the_way_is_told(stage: ReconcilerStage) -> None:
    """Somebody else's StatefulSet has the name: a pass a second, for ever, of which nobody hears."""
    stateful = {"kind": "StatefulSet", "metadata": {"name": "cold-bookie", "namespace": "here"}}
    stage.put_pool()
    stage.api.put(stateful)
    stage.actions = [Create(stateful)]
    for _ in range(INTERRUPTIONS_MAX - 1):
        assert await stage.reconciler.reconcile(COLD) == LOOK_AGAIN_SECONDS
    assert not stage.told.events
    for _ in range(2):
        with pytest.raises(Refused, match="delete or rename it"):
            await stage.reconciler.reconcile(COLD)
    assert {event.reason for event in stage.told.events} == {"Refused"}
    conditions = stage.api.objects["Bookie", "here", "cold"]["status"]["conditions"]
    assert [one["type"] for one in conditions if "delete or rename it" in one["message"]] == ["Ready", "Stalled"]
    stage.actions = []
    assert await stage.reconciler.reconcile(COLD) == 30
    stage.actions = [Create(stateful)]
    assert await stage.reconciler.reconcile(COLD) == LOOK_AGAIN_SECONDS


async def test_what_gets_in_the_way_now_and_then_is_not_told(stage: ReconcilerStage) -> None:
    for _ in range(3 * INTERRUPTIONS_MAX):
        stage.actions = [Apply({"kind": "Service", "metadata": {"name": "blue-proxy", "namespace": "here"}})]
        stage.api.failures["apply", "Service"] = [Conflict("changed"), AlreadyExists("there")]
        await stage.reconciler.reconcile(BLUE)
        stage.actions = []
        await stage.reconciler.reconcile(BLUE)
    assert not stage.told.events


@pytest.mark.parametrize("content", [b"secret", b"secret\n", b" secret\r\n"])
async def test_a_token_that_people_wrote_is_read_as_pods_read_it(stage: ReconcilerStage, content: bytes) -> None:
    """gRPC sends no line's end, and says so with an error of its own; pods leave it out."""
    stage.put("Secret", "blue-control", data={"token": base64.b64encode(content).decode()})
    stage.put_pool()
    stage.put_pod("cold-bookie-0", "bookie", "10.0.0.1", "cold")
    stage.actions = [StartBookieDrain("cold-bookie-0")]
    await stage.reconciler.reconcile(COLD)
    assert ("start_bookie_drain", "10.0.0.1:3182", "secret") in stage.controls.calls


@pytest.mark.parametrize("content", ["sécret".encode(), b"\xff\xfe", b"two\nlines"])
async def test_a_token_that_cannot_be_sent_is_told(stage: ReconcilerStage, content: bytes) -> None:
    stage.put("Secret", "blue-control", data={"token": base64.b64encode(content).decode()})
    with pytest.raises(SettingError, match="blue-control"):
        await stage.reconciler.reconcile(BLUE)
    (event,) = stage.told.events
    assert "printable" in event.message


async def test_a_mistake_of_the_operators_own_is_told(stage: ReconcilerStage, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail(*_: object) -> None:
        raise KeyError("storage")

    monkeypatch.setattr(stage.api, "knows", fail)
    with pytest.raises(KeyError):
        await stage.reconciler.reconcile(BLUE)
    (event,) = stage.told.events
    assert (event.type, event.reason) == ("Warning", "PassFailed")
    assert "KeyError: 'storage'" in event.message


async def test_who_does_not_lead_any_more_does_nothing(stage: ReconcilerStage) -> None:
    """A process that was stopped for a minute goes on in the middle of a pass."""
    stage.put_pool()
    stage.put_pod("cold-bookie-0", "bookie", "10.0.0.1", "cold")
    stage.actions = [StartBookieDrain("cold-bookie-0"), EmitEvent("Normal", "DrainStarted", "cold-bookie-0")]
    stage.leads = False
    with pytest.raises(ServerUnavailable, match="lead"):
        await stage.reconciler.reconcile(COLD)
    assert not [call for call in stage.controls.calls if call[0].startswith("start")]
    assert not stage.told.events


async def test_moves_that_take_too_long_leave_the_pass_its_time(
    stage: ReconcilerStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ten brokers that hang take 30 s each, and a pass that is given up says nothing of it."""
    stage.put_cluster(balance={"driver": "Operator"})
    stage.put_pod("blue-broker-a", "broker", "10.0.0.1")
    stage.controls.brokers["10.0.0.1:3183"] = BrokerFacts(broker_id="broker-a", registered=True)

    async def slow(*_: object) -> None:
        stage.clock.advance(61)

    monkeypatch.setattr(stage.controls, "transfer_bundle", slow)
    await stage.reconciler.reconcile(BLUE)
    assert stage.balancings[0].failures == [SPLIT]
    assert MOVE in stage.moves_now
    assert stage.did("apply_status") == [("PulsarCluster", "blue")]


async def test_balancing_without_brokers_does_not_keep_the_operator_busy(stage: ReconcilerStage) -> None:
    """A cluster that sleeps: a pass each second, for nothing."""
    stage.put_cluster(balance={"driver": "Operator"}, hibernated=True)
    assert await stage.reconciler.reconcile(BLUE) == 60
    assert not stage.balancings
    stage.put_pod("blue-broker-a", "broker", "10.0.0.1")
    stage.controls.brokers["10.0.0.1:3183"] = BrokerFacts(broker_id="broker-a", registered=True)
    assert await stage.reconciler.reconcile(BLUE) == 60
    stage.controls.brokers.clear()
    stage.clock.advance(61)
    assert await stage.reconciler.reconcile(BLUE) == 60
