"""What the stock client says of a token that is not good, however a proxy stands between it and the broker."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pulsar
import pytest
from magnetar.auth.settings import TOKEN_PROVIDER, AuthenticationSettings, TokenSettings
from magnetar.auth.testing import SECRET, token_of
from magnetar.broker.testing.auth import TOPIC, broker_settings, grants, make_namespace
from magnetar.broker.testing.sessions import MemoryBroker
from magnetar.proxy.app import RunningProxy
from magnetar.proxy.settings import BrokerClientSettings, FixedBrokers, ProxyAccessSettings
from magnetar.wire.pulsar.generated import pulsar_api_pb2 as pb

from proxy.tests.wires import Wire, connect_command

StartProxy = Callable[..., Awaitable[RunningProxy]]
QUIET = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
PATIENCE_SECONDS = 60
"""Far longer than a refusal takes, even on a busy machine."""
GRANTS = grants({"both": ["produce", "consume"]})
OWN = BrokerClientSettings(
    authentication_plugin="token",
    authentication_parameters="token:" + token_of("proxy"),
    forward_credentials=True,
)
CHECKED = ProxyAccessSettings(
    authentication=AuthenticationSettings(
        enabled=True, providers=(TOKEN_PROVIDER,), token=TokenSettings(secret_key=SECRET)
    )
)
ARRANGEMENTS: dict[str, dict[str, Any]] = {
    "the proxy asks who is there": {
        "access": CHECKED,
        "broker_client": OWN,
    },
    "the proxy passes credentials on": {},
}
arranged = pytest.mark.parametrize("arrangement", ARRANGEMENTS)


@asynccontextmanager
async def behind(start: StartProxy, arrangement: str) -> AsyncIterator[tuple[MemoryBroker, RunningProxy]]:
    """A broker that authenticates, and the proxy before it."""
    async with MemoryBroker(broker_settings(super_user_roles=("admin", "proxy"))) as broker:
        await make_namespace(broker, auth_policies=GRANTS)
        fixed = FixedBrokers(service_url=broker.running.settings.service_url)
        yield broker, await start(fixed_brokers=fixed, **ARRANGEMENTS[arrangement])


def client_at(url: str, token: str | Callable[[], str]) -> Any:
    shown = pulsar.AuthenticationToken(token)
    return pulsar.Client(url, logger=QUIET, operation_timeout_seconds=PATIENCE_SECONDS, authentication=shown)


def refused(url: str, token: str | Callable[[], str], open_one: Callable[[Any], object]) -> tuple[str, float]:
    """What the client says, and after how many seconds; blocking, for a thread."""
    client = client_at(url, token)
    began = time.monotonic()
    try:
        open_one(client)
    except pulsar.PulsarException as error:
        return type(error).__name__, time.monotonic() - began
    finally:
        client.close()
    return "none", 0.0


@pytest.mark.slow
@pytest.mark.clients
@arranged
@pytest.mark.parametrize("token", ["nonsense", token_of("both", exp=1)], ids=["nonsense", "expired"])
async def test_a_bad_token_is_an_authentication_error_at_once(start: StartProxy, arrangement: str, token: str) -> None:
    ways: list[Callable[[Any], object]] = [
        lambda client: client.create_producer(TOPIC),
        lambda client: client.subscribe(TOPIC, "s"),
        lambda client: client.get_topic_partitions(TOPIC),
    ]
    async with behind(start, arrangement) as (_, proxy):
        for way in ways:
            said, seconds = await asyncio.to_thread(refused, proxy.service_url, token, way)
            assert said == "AuthenticationError"
            assert seconds < PATIENCE_SECONDS / 2


@pytest.mark.slow
@pytest.mark.clients
@arranged
async def test_a_token_that_is_good_for_the_lookup_alone(start: StartProxy, arrangement: str) -> None:
    """The second connection, which is joined with the broker's, shows another one."""
    tokens = [token_of("both")]

    def shown() -> str:
        return tokens.pop(0) if tokens else "nonsense"

    async with behind(start, arrangement) as (_, proxy):
        said, seconds = await asyncio.to_thread(
            refused, proxy.service_url, shown, lambda client: client.create_producer(TOPIC)
        )
        assert said == "AuthenticationError"
        assert seconds < PATIENCE_SECONDS / 2


@pytest.mark.slow
@pytest.mark.clients
@arranged
async def test_a_producer_outlives_a_token_that_is_bad_for_a_while(start: StartProxy, arrangement: str) -> None:
    good = True
    asked = 0

    def shown() -> str:
        nonlocal asked
        asked += not good
        return token_of("both") if good else "nonsense"

    async with behind(start, arrangement) as (broker, proxy):
        client = await asyncio.to_thread(client_at, proxy.service_url, shown)
        try:
            producer = await asyncio.to_thread(client.create_producer, TOPIC, send_timeout_millis=0)
            await asyncio.to_thread(producer.send, b"before")
            good = False
            for session in list(proxy.service._sessions):
                session.connection.abort()
            for connection in list(broker.running._ports.connections):
                connection.abort()
            async with asyncio.timeout(PATIENCE_SECONDS):
                while asked < 3:
                    await asyncio.sleep(0.05)
            good = True
            async with asyncio.timeout(PATIENCE_SECONDS):
                await asyncio.to_thread(producer.send, b"after")
        finally:
            await asyncio.to_thread(client.close)


@arranged
async def test_who_is_refused_is_served_nothing(start: StartProxy, arrangement: str) -> None:
    async with behind(start, arrangement) as (broker, proxy):
        assert proxy.settings.service_port is not None
        for target in ({}, {"proxy_to_broker_url": broker.running.settings.service_url.partition("://")[2]}):
            for version, at_once in (("Pulsar-CPP-v4.2.0", False), ("Pulsar-Java-v4.0.8", True)):
                wire = await Wire.open(proxy.settings.service_port)
                shown = {"auth_method_name": "token", "auth_data": b"nonsense"}
                answer = await wire.ask(connect_command(client_version=version, **shown, **target))
                if not at_once:
                    assert answer.type == pb.BaseCommand.CONNECTED
                    topics = pb.CommandGetTopicsOfNamespace(namespace="acme/shop", request_id=7)
                    answer = await wire.ask(
                        pb.BaseCommand(type=pb.BaseCommand.GET_TOPICS_OF_NAMESPACE, getTopicsOfNamespace=topics)
                    )
                    assert answer.error.request_id == 7
                assert answer.type == pb.BaseCommand.ERROR
                assert answer.error.error == pb.AuthenticationError
                assert await wire.receive() is None
                wire.close()
        assert proxy.service.lookups.under_way == 0
