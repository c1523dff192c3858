"""Large answers that wait for brokers or clients which do not answer: nobody else waits for these."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import Any

import pytest
from magnetar.auth.settings import TOKEN_PROVIDER, AuthenticationSettings, TokenSettings
from magnetar.auth.testing import SECRET, token_of
from magnetar.core.clock import SystemClock
from magnetar.net.connection import Connection
from magnetar.net.requests import ConnectionRequests, Place
from magnetar.net.testing import freed, until
from magnetar.proxy import client_access
from magnetar.proxy.app import RunningProxy
from magnetar.proxy.broker_places import OF_ONE_BROKER
from magnetar.proxy.client_access import ClientAccess
from magnetar.proxy.session import ProxySession
from magnetar.proxy.settings import BrokerClientSettings, ProxyAccessSettings
from magnetar.wire.pulsar.generated import pulsar_api_pb2 as pb

from proxy.tests.wires import ScriptedBroker, Wire

StartProxy = Callable[..., Awaitable[RunningProxy]]
HOURS = 7_200.0
FORWARDING = BrokerClientSettings(
    authentication_plugin="token", authentication_parameters="token:own", forward_credentials=True
)
CHECKED = ProxyAccessSettings(
    authentication=AuthenticationSettings(
        enabled=True,
        providers=(TOKEN_PROVIDER,),
        refresh_check_seconds=HOURS,
        token=TokenSettings(secret_key=SECRET),
    )
)


class ShiftedClock(SystemClock):
    """Goes on by itself, and further when told."""

    ahead_ms = 0

    def now_ms(self) -> int:
        return super().now_ms() + self.ahead_ms


def list_request() -> pb.BaseCommand:
    request = pb.CommandGetTopicsOfNamespace(request_id=1, namespace="public/default")
    return pb.BaseCommand(type=pb.BaseCommand.GET_TOPICS_OF_NAMESPACE, getTopicsOfNamespace=request)


def listed(command: pb.BaseCommand) -> pb.BaseCommand:
    """A broker's answer."""
    answer = pb.CommandGetTopicsOfNamespaceResponse(
        request_id=command.getTopicsOfNamespace.request_id, topics=["persistent://public/default/topic"]
    )
    return pb.BaseCommand(type=pb.BaseCommand.GET_TOPICS_OF_NAMESPACE_RESPONSE, getTopicsOfNamespaceResponse=answer)


def port_of(proxy: RunningProxy) -> int:
    assert proxy.settings.service_port is not None
    return proxy.settings.service_port


def url_of(*brokers: ScriptedBroker) -> str:
    return "pulsar://" + ",".join(broker.host_and_port for broker in brokers)


async def connected(port: int, count: int, **connect: Any) -> list[Wire]:
    return [await Wire.connected(port, **connect) for _ in range(count)]


async def list_of(wire: Wire) -> list[str]:
    """What the proxy answers to whoever asks now."""
    answer = await wire.ask(list_request())
    assert answer.type == pb.BaseCommand.GET_TOPICS_OF_NAMESPACE_RESPONSE, answer
    return list(answer.getTopicsOfNamespaceResponse.topics)


def close(wires: Iterable[Wire]) -> None:
    for wire in wires:
        wire.close()


@pytest.mark.parametrize("tokens", [False, True])
async def test_a_broker_that_hangs_keeps_nobody_from_an_answer_of_another(start: StartProxy, *, tokens: bool) -> None:
    """However many ask, and whether or not they share the connections with brokers."""
    async with ScriptedBroker() as hung, ScriptedBroker(listed) as one, ScriptedBroker(listed) as another:
        proxy = await start(url_of(hung, one, another))
        wires = []
        for number in range(30):
            shown = {"auth_method_name": "token", "auth_data": b"%d" % number} if tokens else {}
            wires += await connected(port_of(proxy), 1, **shown)
        for wire in wires:
            wire.send(list_request())
        await until(lambda: len(hung.commands) == OF_ONE_BROKER)
        late = await Wire.connected(port_of(proxy))
        assert await list_of(late) == ["persistent://public/default/topic"]
        await until(lambda: proxy.service.lookups.under_way == OF_ONE_BROKER)
        assert len(one.commands) + len(another.commands) == len(wires) + 1 - OF_ONE_BROKER
        assert len(hung.commands) == OF_ONE_BROKER
        # What they asked for is answered by others once the broker is known to be gone.
        hung.stop()
        for wire in wires:
            answer = await wire.receive()
            assert answer is not None
            assert answer.getTopicsOfNamespaceResponse.topics
        close([*wires, late])


async def test_while_all_brokers_hang_requests_wait_in_the_proxy(start: StartProxy) -> None:
    """Thus a broker's connections are free for lookups. Nothing is asked for a client that has gone meanwhile."""
    async with ScriptedBroker() as one, ScriptedBroker() as another:
        proxy = await start(url_of(one, another))
        first = await connected(port_of(proxy), 2 * OF_ONE_BROKER)
        for wire in first:
            wire.send(list_request())
        await until(lambda: len(one.commands) == len(another.commands) == OF_ONE_BROKER)
        gone = await connected(port_of(proxy), 10)
        for wire in gone:
            wire.send(list_request())
        await until(lambda: proxy.service.requests.count == len(first) + len(gone))
        close(gone)
        await until(lambda: proxy.service.active_connections == len(first))
        last = await Wire.connected(port_of(proxy))
        last.send(list_request())
        await until(lambda: proxy.service.requests.count == len(first) + len(gone) + 1)
        for broker in (one, another):
            broker._answer = listed
            for command in list(broker.commands):
                broker.open_wires[-1].send(listed(command))
        for wire in [*first, last]:
            answer = await wire.receive()
            assert answer is not None
            assert answer.getTopicsOfNamespaceResponse.topics
        await until(lambda: not proxy.service.requests.count)
        assert len(one.commands) + len(another.commands) == len(first) + 1
        close([*first, last])


async def test_lists_that_wait_for_a_broker_are_no_lookups_under_way(start: StartProxy) -> None:
    def answer(command: pb.BaseCommand) -> pb.BaseCommand | None:
        if command.type != pb.BaseCommand.PARTITIONED_METADATA:
            return None
        counted = pb.CommandPartitionedTopicMetadataResponse(
            request_id=command.partitionMetadata.request_id,
            partitions=3,
            response=pb.CommandPartitionedTopicMetadataResponse.Success,
        )
        return pb.BaseCommand(type=pb.BaseCommand.PARTITIONED_METADATA_RESPONSE, partitionMetadataResponse=counted)

    async with ScriptedBroker(answer) as broker:
        proxy = await start(broker.service_url, lookups_max=OF_ONE_BROKER + 1)
        wires = await connected(port_of(proxy), 10 * OF_ONE_BROKER)
        for wire in wires:
            wire.send(list_request())
        await until(lambda: len(broker.commands) == OF_ONE_BROKER and proxy.service.requests.count == len(wires))
        other = await Wire.connected(port_of(proxy))
        asked = pb.CommandPartitionedTopicMetadata(topic="t", request_id=1)
        counted = await other.ask(pb.BaseCommand(type=pb.BaseCommand.PARTITIONED_METADATA, partitionMetadata=asked))
        assert counted.partitionMetadataResponse.partitions == 3
        close([*wires, other])


@pytest.mark.usefixtures("no_collector")
async def test_who_went_while_it_waited_leaves_nothing(start: StartProxy) -> None:
    async with ScriptedBroker() as broker:
        proxy = await start(broker.service_url)

        async def work() -> None:
            asked = len(broker.commands)
            wires = await connected(port_of(proxy), OF_ONE_BROKER + 2)
            for wire in wires:
                wire.send(list_request())
            await until(lambda: len(broker.commands) == asked + OF_ONE_BROKER)
            await until(lambda: proxy.service.requests.count == len(wires))
            close(wires)
            await until(lambda: not proxy.service.active_connections)
            for command in broker.commands[asked:]:
                broker.open_wires[-1].send(listed(command))
            await until(lambda: not proxy.service.requests.count)

        await freed((ProxySession, ClientAccess, Connection, ConnectionRequests, Place), work)


async def test_who_does_not_renew_his_credentials_keeps_nobody_from_an_answer(
    start: StartProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_access, "RENEWAL_SECONDS_MAX", HOURS)
    clock = ShiftedClock()
    async with ScriptedBroker(listed) as broker:
        proxy = await start(broker.service_url, clock=clock, access=CHECKED, broker_client=FORWARDING)
        seconds = clock.now_ms() / 1000
        shown = {"auth_method_name": "token", "feature_flags": pb.FeatureFlags(supports_auth_refresh=True)}
        short, long = (token_of("maker", exp=seconds + more).encode() for more in (100, 10_000))
        wires = await connected(port_of(proxy), 10, auth_data=short, **shown)
        other = await Wire.connected(port_of(proxy), auth_data=long, **shown)
        clock.ahead_ms = 200_000
        for wire in wires:
            assert (await asked(wire)).type == pb.BaseCommand.AUTH_CHALLENGE
        assert await list_of(other)
        close([*wires, other])
        await until(lambda: not proxy.service.requests.count)


async def test_who_does_not_renew_what_brokers_refuse_keeps_nobody_from_an_answer(
    start: StartProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_access, "RENEWAL_SECONDS_MAX", HOURS)
    refusal = pb.CommandError(request_id=0, error=pb.AuthenticationError, message="Failed to authenticate")
    async with ScriptedBroker(listed) as broker:
        proxy = await start(broker.service_url)
        shown = {"auth_method_name": "token", "feature_flags": pb.FeatureFlags(supports_auth_refresh=True)}
        wires = await connected(port_of(proxy), 10, auth_data=b"old", **shown)
        other = await Wire.connected(port_of(proxy), auth_data=b"good", **shown)
        broker.greet = lambda connect: (
            broker.connected
            if connect.auth_data != b"old"
            else pb.BaseCommand(type=pb.BaseCommand.ERROR, error=refusal)
        )
        for link in proxy.service._links._links.values():
            link.close()
        await until(lambda: all(link.closed for link in proxy.service._links._links.values()))
        for wire in wires:
            assert (await asked(wire)).type == pb.BaseCommand.AUTH_CHALLENGE
        assert await list_of(other)
        close([*wires, other])
        await until(lambda: not proxy.service.requests.count)


async def asked(wire: Wire) -> pb.BaseCommand:
    """What a client is asked that asks for a list."""
    wire.send(list_request())
    challenge = await wire.receive()
    assert challenge is not None
    return challenge
