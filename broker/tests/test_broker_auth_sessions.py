"""Who is let in, and what he may do then, as clients of the protocol see it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from magnetar.auth.testing import token_of
from magnetar.broker.testing.auth import (
    ADMIN,
    NAMESPACE,
    PROXY,
    TENANT_ADMIN,
    TOPIC,
    broker_settings,
    connected_as,
    grants,
    make_namespace,
    say,
)
from magnetar.broker.testing.sessions import MemoryBroker, ProtocolClient, ShiftedClock
from magnetar.wire.pulsar.errors import ServerError
from magnetar.wire.pulsar.generated import pulsar_api_pb2 as pb

Command = pb.BaseCommand
TOKEN_METHOD: dict[str, Any] = {"auth_method_name": "token"}
GRANTS = grants({"maker": ["produce"], "reader": ["consume"]}, {TOPIC + "-1": {"one": ["produce", "consume"]}})


async def refusal(broker: MemoryBroker, subject: str | None, **connect: Any) -> tuple[int, str]:
    client, answer = await say(broker, subject, **connect)
    assert answer is not None
    assert answer.name == "ERROR", answer
    assert answer.body.request_id == 2**64 - 1
    assert await client.end() == []
    return answer.body.error, answer.body.message


async def test_only_good_credentials_let_in() -> None:
    async with MemoryBroker(broker_settings()) as broker:
        await connected_as(broker, "somebody")
        expired = token_of("somebody", exp=1).encode()
        failed = (ServerError.AUTHENTICATION_ERROR, "Failed to authenticate")
        for connect in (
            {},
            {"auth_method_name": "none"},
            {"auth_method": pb.AuthMethodAthens},
            TOKEN_METHOD,
            {**TOKEN_METHOD, "auth_data": b"x"},
            {**TOKEN_METHOD, "auth_data": expired},
            {"auth_method_name": "basic", "auth_data": b"a:b"},
        ):
            assert await refusal(broker, None, **connect) == failed


async def test_the_anonymous_have_a_role_where_it_is_set() -> None:
    async with MemoryBroker(broker_settings(anonymous="guest")) as broker:
        await make_namespace(broker, auth_policies=grants({"guest": ["produce"]}))
        client, answer = await say(broker, None)
        assert answer is not None
        assert answer.name == "CONNECTED"
        await client.producer(TOPIC)
        error, _ = await refusal(broker, None, **TOKEN_METHOD, auth_data=b"x")
        assert error == ServerError.AUTHENTICATION_ERROR


async def test_nothing_goes_before_connected() -> None:
    async with MemoryBroker(broker_settings()) as broker:
        client = await broker.open()
        client.send(Command.CONNECT, client_version="x", **TOKEN_METHOD, auth_data=token_of(ADMIN).encode())
        client.send(Command.LOOKUP, topic=TOPIC, request_id=1)
        assert [received.name for received in await client.end()] == []
        unasked = await broker.open()
        unasked.send(Command.AUTH_RESPONSE)
        assert await unasked.end() == []


async def test_proxies_speak_for_others(caplog: pytest.LogCaptureFixture) -> None:
    async with MemoryBroker(broker_settings()) as broker:
        await make_namespace(broker, auth_policies=grants({"maker": ["produce"], PROXY: ["produce", "consume"]}))
        invalid = (ServerError.AUTHORIZATION_ERROR, "Invalid roles.")
        assert await refusal(broker, PROXY) == invalid
        assert await refusal(broker, PROXY, original_principal=PROXY) == invalid
        assert await refusal(broker, "maker", original_principal="other") == invalid
        assert await refusal(broker, "maker", proxy_version="4.0.8") == (
            ServerError.AUTHORIZATION_ERROR,
            "Must not set proxyVersion without connecting as a ProxyRole.",
        )
        client = await connected_as(broker, PROXY, original_principal="maker", proxy_version="4.0.8")
        await client.producer(TOPIC)
        assert await denied(client, Command.SUBSCRIBE) == "Client is not authorized to subscribe"
        await make_namespace(broker, auth_policies=grants({"maker": ["produce"]}))
        weak = await connected_as(broker, PROXY, original_principal="maker")
        assert await denied(weak, Command.PRODUCER) == "Client is not authorized to Produce"
        assert f"({PROXY} for maker; {PROXY} lacks the right) on topic {TOPIC}: Client is not" in caplog.messages[-1]
        assert await denied(weak, Command.SUBSCRIBE) == "Client is not authorized to subscribe"
        assert f"({PROXY} for maker; {PROXY} lacks the right; maker lacks the right)" in caplog.messages[-1]
        assert await denied(weak, Command.GET_TOPICS_OF_NAMESPACE) != ""
        assert f"{PROXY} lacks the right) on namespace" in caplog.messages[-1]


async def test_the_clients_own_credentials_may_be_wanted_behind_a_proxy() -> None:
    async with MemoryBroker(broker_settings(authenticate_original_data=True)) as broker:
        await make_namespace(broker, auth_policies=grants({"maker": ["produce"], PROXY: ["produce"]}))
        own = {"original_auth_data": token_of("maker"), "original_auth_method": "token"}
        client = await connected_as(broker, PROXY, original_principal="liar", **own)
        await client.producer(TOPIC)
        bad = {**own, "original_auth_data": "x"}
        # Nor is a proxy's word enough when it brings nothing of the client's.
        for shown in (bad, {}):
            error, _ = await refusal(broker, PROXY, original_principal="maker", **shown)
            assert error == ServerError.AUTHENTICATION_ERROR


OPENING: dict[Any, dict[str, Any]] = {
    Command.LOOKUP: {"topic": TOPIC},
    Command.PARTITIONED_METADATA: {"topic": TOPIC},
    Command.PRODUCER: {"topic": TOPIC, "producer_id": 1},
    Command.SUBSCRIBE: {"topic": TOPIC, "subscription": "s", "consumer_id": 1, "subType": 0},
    Command.GET_TOPICS_OF_NAMESPACE: {"namespace": str(NAMESPACE)},
    Command.WATCH_TOPIC_LIST: {"namespace": str(NAMESPACE), "watcher_id": 1, "topics_pattern": ".*"},
    Command.GET_SCHEMA: {"topic": TOPIC},
    Command.GET_OR_CREATE_SCHEMA: {
        "topic": TOPIC,
        "schema": pb.Schema(name="", schema_data=b"", type=pb.Schema.String),
    },
}
REFUSALS = {
    Command.LOOKUP: "Client is not authorized to Lookup",
    Command.PARTITIONED_METADATA: "Client is not authorized to Get Partition Metadata",
    Command.PRODUCER: "Client is not authorized to Produce",
    Command.SUBSCRIBE: "Client is not authorized to subscribe",
    Command.GET_TOPICS_OF_NAMESPACE: "Client is not authorized to GetTopicsOfNamespace",
    Command.WATCH_TOPIC_LIST: "Proxy Client is not authorized to watchTopicList",
    Command.GET_SCHEMA: "Client is not authorized to Get Schema",
    Command.GET_OR_CREATE_SCHEMA: "Client is not authorized to Create Schema",
}
ALL = set(OPENING)


def outcome(body: Any) -> tuple[int, str]:
    """Error code, 0 for none, and text, however the answer calls them."""
    names = [field.name for field, _ in body.ListFields()]
    code = next((getattr(body, name) for name in ("error", "error_code") if name in names), 0)
    text = next((getattr(body, name) for name in ("message", "error_message") if name in names), "")
    return code, text


async def denied(client: ProtocolClient, kind: Any, **fields: Any) -> str | None:
    """The text of the refusal for want of a right; None when there was none."""
    code, text = outcome((await client.request(kind, **{**OPENING[kind], **fields})).body)
    return text if code == ServerError.AUTHORIZATION_ERROR else None


@pytest.mark.parametrize(
    ("role", "forbidden"),
    [
        (ADMIN, set[Any]()),
        (TENANT_ADMIN, set[Any]()),
        ("maker", {Command.SUBSCRIBE}),
        ("reader", {Command.PRODUCER, Command.GET_OR_CREATE_SCHEMA}),
        ("one", ALL),
        ("nobody", ALL),
    ],
)
async def test_rights(role: str, forbidden: set[Any]) -> None:
    async with MemoryBroker(broker_settings()) as broker:
        await make_namespace(broker, auth_policies=GRANTS)
        client = await connected_as(broker, role)
        for kind in OPENING:
            assert await denied(client, kind) == (REFUSALS[kind] if kind in forbidden else None)


async def test_lookups_of_what_is_in_memory_are_checked_too() -> None:
    async with MemoryBroker(broker_settings()) as broker:
        await make_namespace(broker, auth_policies=GRANTS)
        maker, nobody = await connected_as(broker, "maker"), await connected_as(broker, "nobody")
        await maker.producer(TOPIC)
        for _ in range(3):
            for kind in (Command.LOOKUP, Command.PARTITIONED_METADATA):
                assert await denied(maker, kind) is None
                assert await denied(nobody, kind) == REFUSALS[kind]
        assert await denied(nobody, Command.LOOKUP, topic="persistent://nowhere/x/y") == REFUSALS[Command.LOOKUP]


async def test_a_missing_tenant_is_told_where_partitions_are_asked_for() -> None:
    """As Apache's broker: PARTITIONED_METADATA, which clients send first, says TopicNotFound; the rest is not allowed.
    A missing namespace is told only to those who might have made it."""
    async with MemoryBroker(broker_settings()) as broker:
        await make_namespace(broker, auth_policies=GRANTS)
        nobody, chief = await connected_as(broker, "nobody"), await connected_as(broker, TENANT_ADMIN)
        missing = "persistent://nowhere/x/y"
        for client in (nobody, chief):
            body = (await client.request(Command.PARTITIONED_METADATA, topic=missing)).body
            told = (ServerError.TOPIC_NOT_FOUND, "Tenant or namespace or topic does not exist: nowhere/x")
            assert outcome(body) == told
            assert await denied(client, Command.PRODUCER, topic=missing) == REFUSALS[Command.PRODUCER]
        elsewhere = "persistent://acme/none/y"
        asking = Command.PARTITIONED_METADATA
        assert await denied(nobody, asking, topic=elsewhere) == REFUSALS[asking]
        assert outcome((await chief.request(asking, topic=elsewhere)).body)[0] == ServerError.TOPIC_NOT_FOUND


async def test_subscriptions_reserved_and_named_after_roles() -> None:
    async with MemoryBroker(broker_settings()) as broker:
        reserved = grants({"a": ["consume"], "b": ["consume", "produce"]}, subscriptions={"mine": ["a"]})
        await make_namespace(broker, auth_policies=reserved)
        a, b = await connected_as(broker, "a"), await connected_as(broker, "b")
        assert await denied(a, Command.SUBSCRIBE, subscription="mine") is None
        assert await denied(b, Command.SUBSCRIBE, subscription="mine") == REFUSALS[Command.SUBSCRIBE]
        assert await denied(b, Command.PRODUCER, initial_subscription_name="mine") == REFUSALS[Command.SUBSCRIBE]
        await make_namespace(broker, auth_policies=reserved, subscription_auth_mode="Prefix")
        # The broker hears of it a moment later.
        text, consumer_id = None, 100
        while text is None:
            consumer_id += 1
            text = await denied(b, Command.SUBSCRIBE, subscription=f"x{consumer_id}", consumer_id=consumer_id)
        assert text.startswith("Failed to create consumer - The subscription name needs to be prefixed")
        assert await denied(b, Command.SUBSCRIBE, subscription="b-x", consumer_id=3) is None
        assert await denied(await connected_as(broker, TENANT_ADMIN), Command.SUBSCRIBE, subscription="y") is None


async def test_rights_taken_away_end_producers_and_consumers() -> None:
    async with MemoryBroker(broker_settings()) as broker:
        await make_namespace(broker, auth_policies=GRANTS)
        maker, reader, chief = [await connected_as(broker, role) for role in ("maker", "reader", TENANT_ADMIN)]
        await maker.producer(TOPIC)
        await chief.producer(TOPIC)
        await reader.consumer(TOPIC)
        await make_namespace(broker, auth_policies=grants({"reader": ["consume"]}))
        assert (await maker.expect(Command.CLOSE_PRODUCER)).body.producer_id == 1
        assert await denied(maker, Command.PRODUCER) == REFUSALS[Command.PRODUCER]
        assert await reader.round_trip() == []
        await make_namespace(broker, auth_policies=grants())
        assert (await reader.expect(Command.CLOSE_CONSUMER)).body.consumer_id == 1
        assert await denied(reader, Command.SUBSCRIBE) == REFUSALS[Command.SUBSCRIBE]
        assert await chief.round_trip() == []
        assert len(await chief.publish()) == 1


async def test_nobody_writes_topic_policies_by_a_grant_to_produce() -> None:
    events = "persistent://acme/shop/__change_events"
    async with MemoryBroker(broker_settings()) as broker:
        await make_namespace(broker, auth_policies=GRANTS)
        maker, reader, chief = [await connected_as(broker, role) for role in ("maker", "reader", TENANT_ADMIN)]
        await chief.producer(events)
        assert await denied(maker, Command.PRODUCER, topic=events) == REFUSALS[Command.PRODUCER]
        create = Command.GET_OR_CREATE_SCHEMA
        assert await denied(maker, create, topic=events) == REFUSALS[create]
        assert await denied(reader, Command.SUBSCRIBE, topic=events) is None
        other = {**OPENING[Command.SUBSCRIBE], "topic": events, "consumer_id": 2}
        refused = await denied(reader, Command.SUBSCRIBE, **{**other, "subscription": "__system_reader-1"})
        assert refused == REFUSALS[Command.SUBSCRIBE]
        answer = await reader.request(Command.SUBSCRIBE, **{**other, "subscription": "__compaction"})
        assert outcome(answer.body)[0] == ServerError.NOT_ALLOWED_ERROR, "it is nobody's"


async def test_authentication_alone_lets_everybody_do_everything() -> None:
    async with MemoryBroker(broker_settings(authorization_enabled=False)) as broker:
        await make_namespace(broker)
        client = await connected_as(broker, "anybody", proxy_version="1")
        for kind in OPENING:
            await client.request(kind, **OPENING[kind])
        assert len(await client.publish()) == 1


# --- credentials that expire

CHECK_SECONDS = 0.2
"""A client has this long to renew its credentials, however busy the machine is."""
REFRESH: dict[str, Any] = {"feature_flags": {"supports_auth_refresh": True}}


def response(token: str) -> dict[str, Any]:
    return {"response": {"auth_method_name": "token", "auth_data": token.encode()}, "protocol_version": 21}


async def expiring(broker: MemoryBroker, clock: ShiftedClock, role: str = ADMIN, **connect: Any) -> ProtocolClient:
    token = token_of(role, exp=clock.now_ms() // 1000 + 100)
    client, answer = await say(broker, None, **TOKEN_METHOD, auth_data=token.encode(), **connect)
    assert answer is not None
    assert answer.name == "CONNECTED"
    return client


@pytest.mark.slow
async def test_credentials_are_renewed() -> None:
    clock = ShiftedClock()
    async with MemoryBroker(broker_settings(refresh_check_seconds=CHECK_SECONDS), clock=clock) as broker:
        client = await expiring(broker, clock, **REFRESH)
        await asyncio.sleep(2.2 * CHECK_SECONDS)
        assert await client.round_trip() == []
        for _ in range(2):
            clock.advance(101)
            challenge = (await client.expect(Command.AUTH_CHALLENGE)).body
            assert (challenge.challenge.auth_method_name, challenge.challenge.auth_data) == (
                "token",
                b"PulsarAuthRefresh",
            )
            assert challenge.protocol_version == 21
            client.send(Command.AUTH_RESPONSE, **response(token_of(ADMIN, exp=clock.now_ms() // 1000 + 100)))
            await asyncio.sleep(2.2 * CHECK_SECONDS)
            assert await client.round_trip() == []


@pytest.mark.slow
async def test_who_does_not_renew_is_sent_away() -> None:
    clock = ShiftedClock()
    async with MemoryBroker(broker_settings(refresh_check_seconds=CHECK_SECONDS), clock=clock) as broker:
        silent, old = await expiring(broker, clock, **REFRESH), await expiring(broker, clock)
        late, other = await expiring(broker, clock, **REFRESH), await expiring(broker, clock, **REFRESH)
        behind_proxy = await expiring(broker, clock, PROXY, original_principal=ADMIN, **REFRESH)
        clock.advance(101)
        for client in (silent, late, other):
            await client.expect(Command.AUTH_CHALLENGE)
        late.send(Command.AUTH_RESPONSE, **response(token_of(ADMIN, exp=1)))
        other.send(Command.AUTH_RESPONSE, **response(token_of("other")))
        failed = await late.end()
        assert [(received.name, received.body.message) for received in failed] == [("ERROR", "Failed to authenticate")]
        for client in (silent, old, other, behind_proxy):
            assert await client.end() == []


async def test_an_empty_response_closes() -> None:
    async with MemoryBroker(broker_settings()) as broker:
        client = await connected_as(broker, ADMIN)
        client.send(Command.AUTH_RESPONSE)
        assert await client.end() == []
