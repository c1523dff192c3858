"""The one bundle of a broker that only reads: what operators can do with it."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from magnetar.broker.load.drain import BrokerDrainStep, DrainRefused
from magnetar.broker.load.operations import NotOwned
from magnetar.broker.read_only.bundles import EVERYTHING
from magnetar.broker.testing.clusters import until
from magnetar.wire.pulsar.generated import pulsar_api_pb2 as pb

from broker.tests.test_broker_read_only import TOPIC, Stage


@pytest.fixture
async def stage() -> AsyncIterator[Stage]:
    async with Stage() as cluster:
        yield cluster


async def test_operators_cannot_unload_cut_or_hand_over_the_bundle_of_everything(stage: Stage) -> None:
    await stage.producer()
    reader = await stage.reader()
    client = await reader.connect()
    await client.consumer(TOPIC)
    operations = reader.running.context.operations
    with pytest.raises(NotOwned):
        await operations.unload(EVERYTHING)
    with pytest.raises(NotOwned):
        await operations.split(EVERYTHING, "", [], unload=False)
    with pytest.raises(NotOwned):
        await operations.transfer(EVERYTHING, stage.writer.running.settings.broker_id)
    await client.consumer(TOPIC, "other", 2)


async def test_a_drain_is_refused_to_the_last_one(stage: Stage) -> None:
    await stage.producer()
    reader = await stage.reader()
    with pytest.raises(DrainRefused, match="read-only"):
        await reader.running.context.operations.drain()
    await (await reader.connect()).consumer(TOPIC)


async def test_a_drain_sends_consumers_away_and_ends(stage: Stage) -> None:
    await stage.producer()
    first, second = await stage.reader(), await stage.reader()
    client = await first.connect()
    await client.consumer(TOPIC)
    operations = first.running.context.operations
    await operations.drain()
    await until(lambda: operations.drain_state().step is BrokerDrainStep.DONE)
    assert await stage.lookup(second, TOPIC) is second
    await (await second.connect()).consumer(TOPIC)
    assert not await stage.writer.store.exists("/namespace/magnetar/read-only")
    await operations.cancel_drain()
    await client.consumer(TOPIC, "other", 2)
    # Once more, as if it had never been drained.
    client.inbox.clear()
    await operations.drain()
    assert (await client.expect(pb.BaseCommand.CLOSE_CONSUMER)).body.consumer_id == 2
    await until(lambda: operations.drain_state().step is BrokerDrainStep.DONE)
