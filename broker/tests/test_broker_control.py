"""The broker's gRPC service over a real port, through its client: health, reports, bundles, drains, refusals."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable
from typing import Any, Final

import pytest
from magnetar.broker.admin.brokers.control import SERVICE, BrokerControlPort
from magnetar.control.broker_client import BrokerControl
from magnetar.control.errors import ControlRefused, RefusalReason
from magnetar.control.generated import broker_pb2 as messages
from magnetar.control.server import ControlServer
from magnetar.control.settings import ControlSettings

from broker.tests.fake_cluster import FakeCluster, bundles, owned_bundle, until

HOST: Final = "127.0.0.1"


class Stage:
    """Three brokers; the first one has the control port that the client is connected to."""

    def __init__(self, cluster: FakeCluster, port: BrokerControlPort, client: BrokerControl) -> None:
        self.cluster = cluster
        self.one, self.two, self.three = cluster.by_id.values()
        self.port = port
        self.client = client


@pytest.fixture
async def stage() -> AsyncIterator[Stage]:
    cluster = FakeCluster()
    one, *_ = await cluster.start(1, 2, 3)
    port = BrokerControlPort(ControlServer(ControlSettings(host=HOST, stop_grace_seconds=0.5)), one.operations)
    await port.start()
    async with BrokerControl.to(f"{HOST}:{port.port}") as client:
        yield Stage(cluster, port, client)
    await port.close()
    await cluster.close()


async def test_the_load_report(stage: Stage) -> None:
    stage.one.bundles[bundles(1)[0]] = owned_bundle()
    report = await stage.client.load_report()
    assert (report.broker_id, report.registered, report.leading, report.leader_broker_id) == (
        "b1:1", True, True, "b1:1",
    )  # fmt: skip
    assert (report.bundles, report.topics, report.version) == (1, 0, "4.0.8")
    assert '"loadReportType": "LocalBrokerData"' in report.local_broker_data_json


async def test_bundles_are_listed_split_and_handed_over(stage: Stage) -> None:
    first, second, third = bundles(3)
    stage.one.bundles.update({first: owned_bundle(), second: owned_bundle()})
    assert [(row.bundle, row.state) for row in await stage.client.bundles()] == [
        (str(first), "ACTIVE"),
        (str(second), "ACTIVE"),
    ]
    await stage.client.split_bundle(str(first), algorithm="specified_positions_divide", boundaries=[16], unload=True)
    assert stage.one.splits == [(first, "specified_positions_divide", [16], True)]
    await stage.client.unload_bundle(str(first))
    await stage.client.transfer_bundle(str(second), "b3:3")
    assert (dict(stage.one.bundles), list(stage.three.bundles)) == ({}, [second])
    await refused(stage.client.unload_bundle(str(third)), RefusalReason.NOT_FOUND, "b1:1 does not own")
    await refused(stage.client.unload_bundle("nonsense"), RefusalReason.INVALID_ARGUMENT, "no bundle's name")
    await refused(stage.client.transfer_bundle(str(first), "b3:3"), RefusalReason.NOT_FOUND, "does not own")


async def refused(call: Awaitable[Any], reason: RefusalReason, text: str) -> None:
    with pytest.raises(ControlRefused, match=text) as caught:
        await call
    assert caught.value.reason is reason


async def test_a_drain_tells_how_far_it_is_and_turns_the_health(stage: Stage) -> None:
    assert await stage.client.channel.healthy(SERVICE)
    assert (await stage.client.drain_state()).step == messages.BROKER_DRAIN_STEP_NONE
    stuck = bundles(5)[0]
    stage.one.bundles.update((bundle, owned_bundle()) for bundle in bundles(5))
    stage.one.stuck.add(stuck)
    seen: list[tuple[int, int]] = []
    async for state in stage.client.drain(interval_ms=50):
        seen.append((state.bundles_total, state.bundles_left))
        if state.blockers:
            assert (state.blockers[0].bundle, state.blockers[0].reason) == (str(stuck), "it is stuck")
            stage.one.stuck.clear()
    assert seen[0] == (5, 5)
    assert seen[-1] == (5, 0)
    assert (await stage.client.drain_state()).step == messages.BROKER_DRAIN_STEP_DONE
    assert not await stage.client.channel.healthy(SERVICE)
    assert (await stage.client.cancel_drain()).step == messages.BROKER_DRAIN_STEP_NONE
    async with asyncio.timeout(30):
        while not await stage.client.channel.healthy(SERVICE):
            await asyncio.sleep(0.01)


async def test_the_last_broker_is_not_drained(stage: Stage) -> None:
    await stage.two.load.unregister()
    await stage.three.load.unregister()
    await until(lambda: len(stage.one.load.brokers()) == 1)
    with pytest.raises(ControlRefused, match="no other broker") as caught:
        async for _ in stage.client.drain():
            pass
    assert caught.value.reason is RefusalReason.FAILED_PRECONDITION


async def test_decisions_and_their_driver(stage: Stage) -> None:
    placed = await stage.one.load.place(bundles(1)[0])
    assert placed is not None
    decisions = await stage.client.decisions()
    assert [(one.kind, one.destination_broker_id, one.outcome) for one in decisions.placements] == [
        ("place", placed.broker_id, "done")
    ]
    assert decisions.placements[0].reason
    await refused(stage.client.decisions(count_max=5_000), RefusalReason.INVALID_ARGUMENT, "count_max")
    assert await stage.client.driver() == "leader"
    assert await stage.client.set_driver("control") == "control"
    await refused(stage.client.set_driver("me"), RefusalReason.FAILED_PRECONDITION, "leader, control")


async def test_the_largest_ensemble(stage: Stage) -> None:
    found = await stage.client.largest_ensemble()
    assert (found.ensemble_size, found.wanted_by) == (4, "namespace a/b")
