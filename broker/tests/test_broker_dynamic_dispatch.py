"""Settings of dispatch that change while a broker runs: what subscriptions that are there do then."""

from __future__ import annotations

from typing import Any, Final

import pytest
from magnetar.broker.policies.model import EffectivePolicies
from magnetar.broker.settings.broker import DispatchSettings
from magnetar.broker.subscriptions.unsticking import unstick
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


def follow(stage: Stage, *, pauses: bool) -> None:
    """The policy holds from now on, or no longer."""
    settings = DispatchSettings(pauses_on_ack_state=pauses)
    stage.subscription.follow(EffectivePolicies(ledger=ManagedLedgerSettings(), dispatch=settings), None)


@pytest.mark.parametrize("kind", [SubscriptionType.SHARED, SubscriptionType.KEY_SHARED])
def test_nothing_new_is_sent_while_not_all_acknowledgements_can_be_stored(kind: SubscriptionType) -> None:
    stage = Stage(kind)
    stage.cursor.ranges_max = 2
    follow(stage, pauses=True)
    stage.join("a")
    stage.publish(8)
    assert stage.received("a") == list(range(8))
    stage.ack("a", 1, 3)
    stage.publish()
    assert stage.received("a") == [8], "two stretches are stored"
    stage.ack("a", 5)
    stage.publish(2)
    assert stage.received("a") == []
    stage.redeliver("a", 4)
    assert stage.received("a") == [4], "what is sent again makes it no worse"
    stage.ack("a", 7)
    assert stage.received("a") == []
    stage.ack("a", 4)
    assert stage.received("a") == []
    stage.ack("a", 6)
    assert stage.received("a") == [9, 10]
    stage.validate()


def test_who_waits_for_acknowledgements_to_be_stored_goes_on_without_the_policy() -> None:
    stage = Stage(SubscriptionType.SHARED)
    stage.cursor.ranges_max = 0
    stage.join("a")
    stage.publish(3)
    stage.ack("a", 1)
    stage.publish()
    assert stage.received("a") == [0, 1, 2, 3], "it is off as a rule"
    follow(stage, pauses=True)
    stage.publish()
    assert stage.received("a") == []
    follow(stage, pauses=False)
    assert stage.received("a") == [4]


def test_one_receiver_does_not_wait_for_acknowledgements_to_be_stored() -> None:
    stage = Stage(SubscriptionType.EXCLUSIVE)
    stage.cursor.ranges_max = 0
    follow(stage, pauses=True)
    stage.join("a")
    stage.publish(3)
    stage.ack("a", 1)
    stage.publish()
    assert stage.received("a") == [0, 1, 2, 3]


def test_a_subscription_that_sends_what_it_can_is_not_stuck() -> None:
    stage = Stage(SubscriptionType.SHARED)
    assert not unstick(stage.subscription)
    stage.join("a", permits=3)
    assert not unstick(stage.subscription)
    stage.publish(5)
    assert not unstick(stage.subscription), "its consumer takes no more"
    assert stage.received("a") == [0, 1, 2]
    stage.consumers["a"].allow(1)
    assert unstick(stage.subscription), "nobody has told it"
    assert stage.received("a") == [3]
    stage.cursor.cached_from = 9
    stage.consumers["a"].allow(1)
    assert unstick(stage.subscription)
    assert not unstick(stage.subscription), "it reads by now"
    assert stage.received("a") == [4]


async def test_subscriptions_that_are_stuck_are_looked_for_where_that_is_wanted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with MemoryBroker() as broker:
        client = await broker.connect()
        await client.consumer(TOPIC)
        await client.producer(TOPIC)
        await client.publish(3)
        topic, dynamic = broker.service.topics[TOPIC], broker.running.context.dynamic
        (consumer,) = topic.subscriptions["s"].consumers

        async def look() -> int:
            """Room for one message that nobody tells the subscription of; what comes after the look."""
            consumer.allow(1)
            broker.service.upkeep._update_rates(topic)
            return await sent(client)

        assert await look() == 0
        await dynamic.set("unblockStuckSubscriptionEnabled", "true")
        assert await look() >= 1
        assert f"{TOPIC} / s could send something and did not" in caplog.text
        await dynamic.remove("unblockStuckSubscriptionEnabled")
        before = caplog.text
        consumer.permits = 0
        await look()
        assert caplog.text.count("did not") == before.count("did not")


PAUSES: Final = "dispatcherPauseOnAckStatePersistent"


async def sent(client: ProtocolClient) -> int:
    """How many messages came meanwhile."""
    return len([one for one in await client.round_trip() if one.name == "MESSAGE"])


async def test_topic_namespace_and_broker_say_whether_acknowledgements_must_be_stored(admin: Any) -> None:
    broker = admin.broker
    client = await broker.connect()
    await client.consumer(TOPIC, subType=1)
    await client.producer(TOPIC)
    topic = broker.service.topics[TOPIC]
    topic.ledger.settings.unacked_ranges_max = 0
    client.send(pb.BaseCommand.FLOW, consumer_id=1, messagePermits=1_000)
    await client.publish(3)
    messages = await client.messages(3, permits=0)
    await client.request(pb.BaseCommand.ACK, consumer_id=1, ack_type=0, message_id=[messages[1].body.message_id])
    namespace = "/admin/v2/namespaces/public/default/" + PAUSES
    of_topic = "/admin/v2/persistent/public/default/t/" + PAUSES
    dynamic = broker.running.context.dynamic

    async def pauses() -> bool:
        (subscription,) = topic.subscriptions.values()
        return bool(subscription._pump._settings.pauses_on_ack_state)

    assert not await pauses()
    await dynamic.set(PAUSES + "Enabled", "true")
    topic.ledger.settings.unacked_ranges_max = 0
    await client.publish(1, first=3)
    assert (await pauses(), await sent(client)) == (True, 0)
    await admin.check(("GET", of_topic, None, 200, False), ("GET", of_topic + "?applied=true", None, 200, True))
    await dynamic.remove(PAUSES + "Enabled")
    assert (await pauses(), await sent(client)) == (False, 1)
    await admin.check(("POST", namespace, None, 204, None))
    assert await pauses()
    await admin.check(("DELETE", namespace, None, 204, None))
    assert not await pauses()
    await admin.check(("POST", of_topic, None, 204, None))
    assert await pauses()
    await admin.check(("GET", of_topic, None, 200, True), ("DELETE", of_topic, None, 204, None))
    assert not await pauses()
    await dynamic.set(PAUSES + "Enabled", "true")
    assert not await pauses(), "what the namespace was told counts"
