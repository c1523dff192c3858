"""The admin API over its real HTTP server: subscriptions and peeking."""

from __future__ import annotations

import json
from typing import Any

import aiohttp
import pytest
from magnetar.broker.admin.topics.subscription_positions import ack_set
from magnetar.broker.settings.broker import BrokerSettings, DispatchSettings
from magnetar.broker.testing.sessions import MemoryBroker, ProtocolClient, Received, message
from magnetar.core.limits import ACK_SET_WORDS_MAX, BATCH_MESSAGES_MAX
from magnetar.wire.pulsar.generated import pulsar_api_pb2 as pb

Command = pb.BaseCommand
PERSISTENT = "/admin/v2/persistent/public/default"
TOPIC = PERSISTENT + "/topic"
SUBSCRIPTION = TOPIC + "/subscription/s"
PARTS = PERSISTENT + "/parts"


async def backlog(admin: Any) -> int:
    """Of the subscription."""
    _, stats = await admin("GET", TOPIC + "/stats")
    return int(stats["subscriptions"]["s"]["msgBacklog"])


async def test_subscriptions(admin: Any, client: ProtocolClient) -> None:
    await client.producer("topic")
    (first, second, *_) = await client.publish(3)
    position = {"ledgerId": second.ledgerId, "entryId": second.entryId}
    await admin.check(
        ("GET", TOPIC + "/subscriptions", None, 200, []),
        ("GET", PERSISTENT + "/none/subscriptions", None, 404, "not found"),
        ("PUT", SUBSCRIPTION, position, 204, None),
        ("PUT", SUBSCRIPTION, None, 409, "already exists"),
        ("PUT", TOPIC + "/subscription/a%2Fb", {"ledgerId": -1, "entryId": -1}, 204, None),
        ("PUT", TOPIC + "/subscription/latest", None, 204, None),
        ("PUT", TOPIC + "/subscription/x", {"ledgerId": "a", "entryId": 0}, 412, "whole numbers"),
        ("PUT", TOPIC + "/subscription/x", b"nonsense", 400, "JSON"),
        ("PUT", TOPIC + "/subscription/x", [], 400, "object"),
        ("GET", TOPIC + "/subscriptions", None, 200, ["a/b", "latest", "s"]),
    )
    assert await backlog(admin) == 2
    await client.consumer("topic")
    await admin.check(
        ("DELETE", SUBSCRIPTION, None, 412, "active connected consumers"),
        ("DELETE", SUBSCRIPTION + "?force=true", None, 204, None),
        ("DELETE", SUBSCRIPTION, None, 404, "not found"),
        ("DELETE", PERSISTENT + "/none/subscription/s", None, 404, "not found"),
        ("GET", TOPIC + "/subscriptions", None, 200, ["a/b", "latest"]),
    )
    await client.expect(Command.CLOSE_CONSUMER)
    assert first.entryId == 0


@pytest.mark.parametrize(
    ("name", "refusal"),
    [("pulsar.dedup", "reserved"), ("pulsar.repl.b", "reserved"), (".", "called '.'"), ("..", "called '..'")],
)
async def test_names_of_no_subscription(admin: Any, client: ProtocolClient, name: str, refusal: str) -> None:
    """Cursors of the broker itself are no subscriptions, which somebody could remove; a step of a path is no node."""
    await client.producer("topic")
    await admin.check(
        ("PUT", f"{TOPIC}/subscription/{name.replace('.', '%252E')}", None, 412, refusal),
        ("GET", TOPIC + "/subscriptions", None, 200, []),
    )
    answer = await client.request(Command.SUBSCRIBE, topic="topic", subscription=name, consumer_id=1, subType=0)
    assert (answer.name, answer.body.error) == ("ERROR", pb.ProducerBusy)
    assert refusal in answer.body.message


async def test_subscription_backlogs(admin: Any, client: ProtocolClient) -> None:
    await client.producer("topic", initial_subscription_name="s")
    await client.publish(2, publish_time=1_000)
    await client.publish(3, first=2, publish_time=2**42)
    await admin.check(("POST", SUBSCRIPTION + "/skip/1", None, 204, None))
    assert await backlog(admin) == 4
    await admin.check(("POST", SUBSCRIPTION + "/expireMessages/10", None, 204, None))
    assert await backlog(admin) == 3
    await admin.check(("POST", SUBSCRIPTION + "/resetcursor/0", None, 204, None))
    assert await backlog(admin) == 5
    await admin.check(("POST", TOPIC + "/all_subscription/expireMessages/10", None, 204, None))
    assert await backlog(admin) == 3
    await admin.check(("POST", SUBSCRIPTION + "/skip_all", None, 204, None))
    assert await backlog(admin) == 0
    _, last = await admin("GET", TOPIC + "/lastMessageId")
    for body, expected in (
        ({"ledgerId": -1, "entryId": -1}, 5),
        ({**last, "entryId": 2}, 3),
        ({**last, "entryId": 2, "isExcluded": True}, 2),
        ({**last, "entryId": 99}, 0),
    ):
        await admin.check(("POST", SUBSCRIPTION + "/resetcursor", body, 204, None))
        assert await backlog(admin) == expected, body


async def test_reset_into_a_batch_that_says_too_much(admin: Any, client: ProtocolClient) -> None:
    await client.producer("topic")
    await client.consumer("topic")
    liar = message(b"x", num_messages_in_batch=2**31 - 1)
    client.send(Command.SEND, liar, producer_id=1, sequence_id=0, num_messages=2**31 - 1)
    sent = (await client.expect(Command.SEND_RECEIPT)).body.message_id
    body = {"ledgerId": sent.ledgerId, "entryId": sent.entryId, "batchIndex": 3}
    await admin.check(("POST", SUBSCRIPTION + "/resetcursor", body, 204, None))
    assert await backlog(admin) == 0
    largest = ack_set(3, BATCH_MESSAGES_MAX)
    assert (len(largest), largest[0], set(largest[1:])) == (ACK_SET_WORDS_MAX, ~0b111, {-1})


@pytest.mark.parametrize(
    ("method", "action"),
    [
        ("POST", "skip_all"),
        ("POST", "skip/1"),
        ("POST", "expireMessages/1"),
        ("POST", "resetcursor/0"),
        ("GET", "position/1"),
    ],
)
async def test_subscription_actions_on_nothing(admin: Any, client: ProtocolClient, method: str, action: str) -> None:
    await client.producer("topic")
    await admin.check(
        (method, f"{TOPIC}/subscription/none/{action}", None, 404, "not found"),
        (method, f"{PERSISTENT}/none/subscription/s/{action}", None, 404, "not found"),
    )
    if "/" in action:
        await admin.check((method, f"{SUBSCRIPTION}/{action.partition('/')[0]}/x", None, 400, "whole number"))


async def test_expire_all_of_nothing(admin: Any) -> None:
    path = "/all_subscription/expireMessages/"
    await admin.check(
        ("POST", PERSISTENT + "/none" + path + "1", None, 404, "not found"),
        ("PUT", TOPIC, None, 204, None),
        ("POST", TOPIC + path + "x", None, 400, "whole number"),
        ("POST", TOPIC + path + "1", None, 204, None),
        ("PUT", SUBSCRIPTION, None, 204, None),
        ("POST", TOPIC + path + "1", None, 409, "almost catch"),
    )


async def test_subscriptions_of_partitions(admin: Any, client: ProtocolClient) -> None:
    await admin.check(("PUT", PARTS + "/partitions", 2, 204, None), ("PUT", PARTS + "/subscription/s", None, 204, None))
    for index in range(2):
        await client.producer(f"parts-partition-{index}", index)
        await client.publish(2, producer_id=index)
    await admin.check(
        ("GET", PARTS + "/subscriptions", None, 200, ["s"]),
        ("POST", PARTS + "/subscription/s/skip/1", None, 405, "not allowed"),
        ("GET", PARTS + "/subscription/s/position/1", None, 405, "not allowed"),
        ("POST", PARTS + "/subscription/s/skip_all", None, 204, None),
    )
    _, stats = await admin("GET", PARTS + "/partitioned-stats")
    assert stats["subscriptions"]["s"]["msgBacklog"] == 0
    await admin.check(
        ("DELETE", PARTS + "/subscription/s", None, 204, None),
        ("GET", PARTS + "/subscriptions", None, 200, []),
    )


async def test_peeking(admin: Any, client: ProtocolClient) -> None:
    await client.producer("topic", initial_subscription_name="s")
    (first,) = await client.publish(1, properties=[{"key": "k", "value": "v"}], partition_key="key", event_time=7)
    async with aiohttp.ClientSession(admin.broker.admin_url) as session:
        for path in (SUBSCRIPTION + "/position/1", f"{TOPIC}/ledger/{first.ledgerId}/entry/0"):
            async with session.get(path) as answer:
                assert (answer.status, await answer.read()) == (200, b"m0")
                headers = answer.headers
            assert headers["X-Pulsar-Message-ID"] == f"{first.ledgerId}:0"
            assert json.loads(headers["X-Pulsar-PROPERTY"]) == {"k": "v"}
            assert headers["X-Pulsar-partition-key"] == "key"
            assert headers["X-Pulsar-event-time"] == "1970-01-01T00:00:00.007Z"
            assert headers["X-Pulsar-publish-time"] == "1970-01-01T00:00:00.001Z"
            assert headers["X-Pulsar-producer-name"] == "p"
    await admin.check(
        ("GET", SUBSCRIPTION + "/position/2", None, 404, "Message not found"),
        ("GET", f"{TOPIC}/ledger/{first.ledgerId}/entry/9", None, 404, "not found"),
        ("GET", f"{TOPIC}/ledger/999/entry/0", None, 404, "not found"),
        ("GET", f"{TOPIC}/ledger/x/entry/0", None, 400, "whole number"),
        ("GET", f"{PERSISTENT}/none/ledger/0/entry/0", None, 404, "not found"),
    )


async def test_peeking_into_a_subscription_that_is_not_there_makes_it(admin: Any, client: ProtocolClient) -> None:
    """As Apache's broker does; names of the brokers' own ones are not taken."""
    await client.producer("topic")
    await client.publish(2)
    path = f"{TOPIC}/subscription/new/position/"
    async with aiohttp.ClientSession(admin.broker.admin_url) as session:
        for number, payload in ((1, b"m0"), (2, b"m1")):
            async with session.get(f"{path}{number}") as answer:
                assert (answer.status, await answer.read()) == (200, payload)
    await admin.check(
        ("GET", TOPIC + "/subscriptions", None, 200, ["new"]),
        ("GET", f"{TOPIC}/subscription/pulsar.dedup/position/1", None, 404, "Subscription pulsar.dedup not found"),
        ("POST", TOPIC + "/maxSubscriptionsPerTopic", 1, 204, None),
        ("GET", f"{TOPIC}/subscription/other/position/1", None, 404, "Subscription other not found"),
        ("GET", TOPIC + "/subscriptions", None, 200, ["new"]),
    )


CLEAR_NAMESPACE = "/admin/v2/namespaces/public/default/clearBacklog/s"


@pytest.mark.parametrize(("skip", "left"), [("skip/2", [2, 3]), ("skip_all", []), (CLEAR_NAMESPACE, [])])
async def test_what_is_skipped_is_held_by_nobody_any_more(skip: str, left: list[int]) -> None:
    settings = BrokerSettings(dispatch=DispatchSettings(unacked_messages_per_consumer_max=2))
    async with MemoryBroker(settings) as broker, aiohttp.ClientSession(broker.admin_url) as session:
        client = await broker.connect()
        await client.producer("topic")
        await client.consumer("topic", subType=1)
        await client.publish(5)
        assert [entry_id(one) for one in await client.messages(2, permits=10)] == [0, 1]
        (subscription,) = broker.service.topics["persistent://public/default/topic"].subscriptions.values()
        (consumer,) = subscription.consumers
        assert (consumer.unacked_messages, consumer.blocked) == (2, True)
        async with session.post(skip if skip.startswith("/") else f"{SUBSCRIPTION}/{skip}") as answer:
            assert answer.status == 204
        # What nobody has to acknowledge any more keeps nobody from being sent what comes then.
        assert [entry_id(await client.expect(Command.MESSAGE)) for _ in left] == left
        assert (consumer.unacked_messages, subscription.unacked_messages) == (len(left), len(left))
        if not left:
            await client.publish(1, first=5)
            assert entry_id(await client.expect(Command.MESSAGE)) == 5


def entry_id(received: Received) -> int:
    found: int = received.body.message_id.entryId
    return found
