"""Settings of dispatch that change while a broker runs: what subscriptions that are there do then."""

from __future__ import annotations

from typing import Any, Final

import pytest
from magnetar.broker.policies.model import EffectivePolicies
from magnetar.broker.settings.broker import DispatchSettings
from magnetar.broker.testing.sessions import MemoryBroker, ProtocolClient
from magnetar.managed.settings import ManagedLedgerSettings
from magnetar.wire.pulsar.enums import SubscriptionType
from magnetar.wire.pulsar.generated import pulsar_api_pb2 as pb

from broker.tests.subscription_stage import Stage, stored_message

TOPIC: Final = "persistent://public/default/t"


def failing_stage(failures: int) -> Stage:
    """A subscription with one entry, of which so many reads fail."""
    stage = Stage(SubscriptionType.SHARED)
    stage.cursor.append(stored_message())
    stage.cursor.cached_from, stage.cursor.failures = 1, failures
    return stage


def pauses_ms(stage: Stage) -> list[int]:
    """How long the subscription waited before each read but the first."""
    stage.reads.finish()
    found, waited = [], 0
    while stage.cursor.next_entry == 0:
        before = stage.cursor.background_reads
        stage.timers.advance(10)
        stage.reads.finish()
        waited += 10
        if stage.cursor.background_reads > before:
            found.append(waited)
            waited = 0
    return found


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (DispatchSettings(), [100, 200, 400, 800, 1_600, 3_200, 6_400, 12_800, 15_000]),
        (DispatchSettings(read_retry_ms_min=1_000, read_retry_ms_max=3_000), [1_000, 2_000, 3_000, 3_000]),
        (DispatchSettings(read_retry_ms_min=500, read_retry_ms_max=10), [500, 500, 500]),
        (
            DispatchSettings(read_retry_ms_min=1_000, read_retry_ms_max=60_000, read_retry_surely_ms=5_000),
            [1_000, 2_000, 2_000, 8_000],
        ),
    ],
)
def test_reads_that_fail_are_tried_again_after_the_pauses_of_the_settings(
    settings: DispatchSettings, expected: list[int]
) -> None:
    stage = failing_stage(len(expected))
    stage.subscription.follow(EffectivePolicies(ledger=ManagedLedgerSettings(), dispatch=settings), None)
    stage.join("a")
    assert pauses_ms(stage) == expected
    assert stage.received("a") == [0]


def test_a_subscription_that_waits_goes_by_other_pauses_from_the_next_failure_on() -> None:
    stage = failing_stage(4)
    stage.join("a")
    stage.reads.finish()
    settings = DispatchSettings(read_retry_ms_min=3_000)
    stage.subscription.follow(EffectivePolicies(ledger=ManagedLedgerSettings(), dispatch=settings), None)
    assert pauses_ms(stage) == [100, 3_000, 6_000, 12_000]


async def test_pauses_of_subscriptions_that_are_there() -> None:
    async with MemoryBroker() as broker:
        client = await broker.connect()
        await client.consumer(TOPIC, subType=1)
        dynamic = broker.running.context.dynamic
        (subscription,) = broker.service.topics[TOPIC].subscriptions.values()
        backoff = subscription._pump.reader.read_backoff
        await dynamic.set("dispatcherReadFailureBackoffInitialTimeInMs", "7000")
        await dynamic.set("dispatcherReadFailureBackoffMaxTimeInMs", "8000")
        await dynamic.set("dispatcherReadFailureBackoffMandatoryStopTimeInMs", "9000")
        settings = backoff._settings
        found = (settings.read_retry_ms_min, settings.read_retry_ms_max, settings.read_retry_surely_ms)
        assert found == (7_000, 8_000, 9_000)
        await dynamic.remove("dispatcherReadFailureBackoffInitialTimeInMs")
        assert backoff._settings.read_retry_ms_min == 100


async def redelivered(client: ProtocolClient) -> int:
    """Have the one message sent again; how often the broker says that it was."""
    client.send(pb.BaseCommand.REDELIVER_UNACKNOWLEDGED_MESSAGES, consumer_id=1)
    (found,) = await client.messages(1, permits=1)
    return int(found.body.redelivery_count)


async def test_how_often_a_message_was_delivered_is_told_or_not() -> None:
    async with MemoryBroker() as broker:
        client = await broker.connect()
        await client.consumer(TOPIC, subType=1)
        await client.producer(TOPIC)
        await client.publish(1)
        (first,) = await client.messages(1, permits=1)
        assert first.body.redelivery_count == 0
        assert await redelivered(client) == 1
        dynamic: Any = broker.running.context.dynamic
        await dynamic.set("subscriptionRedeliveryTrackerEnabled", "false")
        assert [await redelivered(client) for _ in range(2)] == [0, 0]
        await dynamic.remove("subscriptionRedeliveryTrackerEnabled")
        assert await redelivered(client) == 4
