from __future__ import annotations

import re
from typing import Any

import pytest
from magnetar.operator.children.naming import OwnerResource
from magnetar.operator.events import BURST, MESSAGE_BYTES_MAX, REMEMBERED_SECONDS, ApiEvents
from magnetar.operator.kubernetes.errors import NamespaceTerminating, NotFound, Refused, ServerUnavailable
from magnetar.operator.plan.actions import EmitEvent
from operator_fakes.small_kubernetes import SettableClock, SmallApiServer

OWNER = OwnerResource(kind="Bookie", name="cold", namespace="here", uid="owner-uid")
DRAIN = EmitEvent("Normal", "DrainStarted", "cold-bookie-3 hands its ledgers over")


@pytest.fixture
def api() -> SmallApiServer:
    return SmallApiServer()


@pytest.fixture
def clock() -> SettableClock:
    return SettableClock()


@pytest.fixture
def events(api: SmallApiServer, clock: SettableClock) -> ApiEvents:
    return ApiEvents(api, clock, "operator-0")


def written(api: SmallApiServer) -> list[dict[str, Any]]:
    return [manifest for (kind, _, _), manifest in api.objects.items() if kind == "Event"]


async def test_an_event_names_its_resource(api: SmallApiServer, events: ApiEvents) -> None:
    await events.tell(OWNER, DRAIN)
    (found,) = written(api)
    assert found["involvedObject"] == {
        "apiVersion": "pulsar.magnetar.dev/v1alpha1",
        "kind": "Bookie",
        "name": "cold",
        "namespace": "here",
        "uid": "owner-uid",
    }
    assert (found["type"], found["reason"], found["message"], found["count"]) == (
        *("Normal", DRAIN.reason),
        DRAIN.message,
        1,
    )
    assert found["firstTimestamp"] == "2025-10-09T08:53:20Z"
    assert re.fullmatch(r"cold\.[0-9a-f]{16}", found["metadata"]["name"])


async def test_the_same_again_is_counted_up(api: SmallApiServer, clock: SettableClock, events: ApiEvents) -> None:
    for _ in range(3):
        await events.tell(OWNER, DRAIN)
        clock.advance(40)
    (found,) = written(api)
    assert (found["count"], found["lastTimestamp"]) == (3, "2025-10-09T08:54:40Z")


async def test_what_comes_often_is_counted_without_being_written(
    api: SmallApiServer, clock: SettableClock, events: ApiEvents
) -> None:
    for _ in range(100):
        await events.tell(OWNER, DRAIN)
        clock.advance(1)
    assert sum(kind == "Event" for _, kind, _ in api.calls) == 4
    assert written(api)[0]["count"] == 91


async def test_one_that_is_gone_is_told_anew(api: SmallApiServer, clock: SettableClock, events: ApiEvents) -> None:
    await events.tell(OWNER, DRAIN)
    api.objects.clear()
    clock.advance(60)
    await events.tell(OWNER, DRAIN)
    assert written(api)[0]["count"] == 1
    clock.advance(REMEMBERED_SECONDS + 1)
    await events.tell(OWNER, DRAIN)
    assert len(written(api)) == 2


async def test_a_flood_is_cut_off_for_one_resource_only(
    api: SmallApiServer, clock: SettableClock, events: ApiEvents
) -> None:
    for number in range(200):
        await events.tell(OWNER, EmitEvent("Warning", "Odd", f"number {number}"))
    assert len(written(api)) == BURST
    await events.tell(OwnerResource(kind="Bookie", name="hot", namespace="here", uid="2"), DRAIN)
    assert len(written(api)) == BURST + 1
    clock.advance(25)
    for number in range(200, 210):
        await events.tell(OWNER, EmitEvent("Warning", "Odd", f"number {number}"))
    assert len(written(api)) == BURST + 3


@pytest.mark.parametrize(
    ("error", "level"),
    [
        (ServerUnavailable("down"), "WARNING"),
        (Refused("no rights"), "WARNING"),
        (NamespaceTerminating("here is being terminated"), "DEBUG"),
        (NotFound("there is no namespace here"), "DEBUG"),
    ],
)
async def test_a_failure_is_nobody_elses(
    api: SmallApiServer, events: ApiEvents, caplog: pytest.LogCaptureFixture, error: Exception, level: str
) -> None:
    caplog.set_level("DEBUG", "magnetar.operator.events")
    api.failures["create", "Event"] = [error]
    await events.tell(OWNER, DRAIN)
    assert written(api) == []
    assert [record.levelname for record in caplog.records] == [level]
    await events.tell(OWNER, DRAIN)
    assert len(written(api)) == 1


async def test_long_messages_are_cut(api: SmallApiServer, events: ApiEvents) -> None:
    await events.tell(OWNER, EmitEvent("Warning", "Long", "x" * 5000))
    assert len(written(api)[0]["message"]) == MESSAGE_BYTES_MAX


async def test_messages_are_measured_as_the_api_server_does(api: SmallApiServer, events: ApiEvents) -> None:
    await events.tell(OWNER, EmitEvent("Warning", "Long", "€" * 990))
    message = written(api)[0]["message"]
    assert MESSAGE_BYTES_MAX - 3 <= len(message.encode()) <= MESSAGE_BYTES_MAX
    assert message.endswith("€ ...")


async def test_a_clock_that_is_set_back_silences_nobody(api: SmallApiServer) -> None:
    """An hour back would have used up the allowance of an hour."""

    class Set(SettableClock):
        back_ms = 0

        def now_ms(self) -> int:
            return super().now_ms() - self.back_ms

    clock = Set()
    events = ApiEvents(api, clock, "operator-0")
    await events.tell(OWNER, DRAIN)
    clock.back_ms = 3_600_000
    clock.advance(60)
    await events.tell(OWNER, EmitEvent("Normal", "DrainDone", "cold-bookie-3"))
    await events.tell(OWNER, DRAIN)
    assert [(found["reason"], found["count"]) for found in written(api)] == [("DrainStarted", 2), ("DrainDone", 1)]


async def test_a_resource_that_is_gone_is_forgotten(api: SmallApiServer, events: ApiEvents) -> None:
    for number in range(BURST + 1):
        await events.tell(OWNER, EmitEvent("Warning", "Odd", f"number {number}"))
    events.forget("here", "Bookie", "cold")
    await events.tell(OWNER, DRAIN)
    assert len(written(api)) == BURST + 1
