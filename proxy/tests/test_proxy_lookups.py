"""What a lookup connection answers, and what brokers are asked for it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from magnetar.proxy.app import RunningProxy
from magnetar.proxy.settings import BrokerClientSettings, FixedBrokers
from magnetar.wire.pulsar.generated import pulsar_api_pb2 as pb

from proxy.tests.wires import ScriptedBroker, Wire

StartProxy = Callable[..., Awaitable[RunningProxy]]
Kind = pb.CommandLookupTopicResponse


def lookup(request_id: int, topic: str = "t", **more: object) -> pb.BaseCommand:
    command = pb.BaseCommand(type=pb.BaseCommand.LOOKUP)
    command.lookupTopic.MergeFrom(pb.CommandLookupTopic(topic=topic, request_id=request_id, **more))  # type: ignore[arg-type]
    return command


def located(command: pb.BaseCommand, url: str, kind: Kind.LookupType = Kind.Connect) -> pb.BaseCommand:
    return pb.BaseCommand(
        type=pb.BaseCommand.LOOKUP_RESPONSE,
        lookupTopicResponse=Kind(
            request_id=command.lookupTopic.request_id,
            response=kind,
            brokerServiceUrl=url,
            brokerServiceUrlTls="pulsar+ssl://tls:1",
            authoritative=kind == Kind.Redirect,
        ),
    )


def port_of(proxy: RunningProxy) -> int:
    assert proxy.settings.service_port is not None
    return proxy.settings.service_port


async def test_the_handshake_of_a_lookup_connection(start: StartProxy) -> None:
    proxy = await start("pulsar://nowhere:1")
    wire = await Wire.open(port_of(proxy))
    command = pb.BaseCommand(type=pb.BaseCommand.CONNECT)
    command.connect.client_version = "old"
    command.connect.protocol_version = 12
    answer = await wire.ask(command)
    connected = answer.connected
    assert (connected.protocol_version, connected.HasField("max_message_size")) == (12, False)
    assert connected.server_version.startswith("Pulsar Server")
    assert not connected.feature_flags.supports_topic_watchers
    ping = pb.BaseCommand(type=pb.BaseCommand.PING, ping=pb.CommandPing())
    assert (await wire.ask(ping)).type == pb.BaseCommand.PONG
    wire.close()


async def test_a_lookup_names_the_broker_and_the_way_through_the_proxy(start: StartProxy) -> None:
    async with ScriptedBroker(lambda command: located(command, "pulsar://owner:6650")) as broker:
        proxy = await start(broker.service_url)
        wire = await Wire.connected(port_of(proxy))
        answer = await wire.ask(
            lookup(7, authoritative=True, advertised_listener_name="external", original_principal="admin")
        )
        response = answer.lookupTopicResponse
        assert (response.request_id, response.response) == (7, Kind.Connect)
        assert response.brokerServiceUrl == response.brokerServiceUrlTls == "pulsar://owner:6650"
        assert response.authoritative
        assert response.proxy_through_service_url
        asked = broker.commands[0].lookupTopic
        assert (asked.topic, asked.authoritative) == ("t", False)
        assert not asked.HasField("advertised_listener_name")
        assert not asked.HasField("original_principal")
        connect = broker.connects[0]
        assert (connect.protocol_version, connect.auth_method_name, bool(connect.proxy_version)) == (21, "none", True)
        assert not connect.HasField("original_principal")
        wire.close()


async def test_redirects_are_followed_but_not_for_ever(start: StartProxy) -> None:
    async with ScriptedBroker() as first, ScriptedBroker(lambda command: located(command, "pulsar://c:3")) as second:
        first._answer = lambda command: located(command, second.service_url, Kind.Redirect)
        proxy = await start(first.service_url)
        wire = await Wire.connected(port_of(proxy))
        assert (await wire.ask(lookup(1))).lookupTopicResponse.brokerServiceUrl == "pulsar://c:3"
        assert second.commands[0].lookupTopic.authoritative
        second._answer = lambda command: located(command, first.service_url, Kind.Redirect)
        response = (await wire.ask(lookup(2))).lookupTopicResponse
        assert response.response == Kind.Failed
        assert response.error == pb.ServiceNotReady
        assert response.message == "Reached max number of redirections"
        assert len(first.commands) + len(second.commands) == 2 + 10
        wire.close()


async def test_many_requests_go_over_one_connection_and_come_back_in_any_order(start: StartProxy) -> None:
    kept: list[pb.BaseCommand] = []

    def answer(command: pb.BaseCommand) -> None:
        kept.append(command)
        if len(kept) == 50:
            for one in reversed(kept):
                broker.open_wires[-1].send(located(one, f"pulsar://{one.lookupTopic.topic}:1"))

    async with ScriptedBroker(answer) as broker:
        proxy = await start(broker.service_url)
        wires = [await Wire.connected(port_of(proxy)) for _ in range(5)]
        for number in range(10):
            for index, wire in enumerate(wires):
                wire.send(lookup(number, f"t{index}x{number}"))
        for index, wire in enumerate(wires):
            answers = [await wire.receive() for _ in range(10)]
            found = {one.lookupTopicResponse.request_id: one.lookupTopicResponse for one in answers if one is not None}
            assert [found[number].brokerServiceUrl for number in range(10)] == [
                f"pulsar://t{index}x{number}:1" for number in range(10)
            ]
            wire.close()
        assert len(broker.connects) == 1


async def test_other_requests_and_their_answers_pass_as_they_are(start: StartProxy) -> None:
    def answer(command: pb.BaseCommand) -> pb.BaseCommand:
        if command.type == pb.BaseCommand.PARTITIONED_METADATA:
            request = command.partitionMetadata
            assert not request.HasField("original_principal")
            body = pb.CommandPartitionedTopicMetadataResponse(
                request_id=request.request_id, partitions=int(request.metadata_auto_creation_enabled) + 3
            )
            return pb.BaseCommand(type=pb.BaseCommand.PARTITIONED_METADATA_RESPONSE, partitionMetadataResponse=body)
        if command.type == pb.BaseCommand.GET_SCHEMA:
            text = command.getSchema.schema_version.decode()
            failure = pb.CommandError(request_id=command.getSchema.request_id, error=pb.TopicNotFound, message=text)
            return pb.BaseCommand(type=pb.BaseCommand.ERROR, error=failure)
        listed = pb.CommandGetTopicsOfNamespaceResponse(
            request_id=command.getTopicsOfNamespace.request_id,
            topics=[command.getTopicsOfNamespace.topics_pattern],
            filtered=True,
        )
        return pb.BaseCommand(type=pb.BaseCommand.GET_TOPICS_OF_NAMESPACE_RESPONSE, getTopicsOfNamespaceResponse=listed)

    async with ScriptedBroker(answer) as broker:
        proxy = await start(broker.service_url)
        wire = await Wire.connected(port_of(proxy))
        counting = pb.BaseCommand(type=pb.BaseCommand.PARTITIONED_METADATA)
        counting.partitionMetadata.topic = "t"
        counting.partitionMetadata.request_id = 1
        counting.partitionMetadata.metadata_auto_creation_enabled = False
        counting.partitionMetadata.original_principal = "admin"
        metadata = (await wire.ask(counting)).partitionMetadataResponse
        assert (metadata.request_id, metadata.partitions) == (1, 3)
        schema = pb.BaseCommand(type=pb.BaseCommand.GET_SCHEMA)
        schema.getSchema.topic = "t"
        schema.getSchema.request_id = 2
        schema.getSchema.schema_version = b"v"
        error = (await wire.ask(schema)).error
        assert (error.request_id, error.error, error.message) == (2, pb.TopicNotFound, "v")
        topics = pb.BaseCommand(type=pb.BaseCommand.GET_TOPICS_OF_NAMESPACE)
        topics.getTopicsOfNamespace.namespace = "public/default"
        topics.getTopicsOfNamespace.request_id = 3
        topics.getTopicsOfNamespace.topics_pattern = "a.*"
        listed = (await wire.ask(topics)).getTopicsOfNamespaceResponse
        assert (listed.request_id, list(listed.topics), listed.filtered) == (3, ["a.*"], True)
        counters = proxy.service.counters
        asked = counters.requests
        assert (asked[pb.BaseCommand.PARTITIONED_METADATA], asked[pb.BaseCommand.GET_SCHEMA]) == (1, 1)
        wire.close()


async def test_brokers_that_cannot_be_reached_or_die(start: StartProxy) -> None:
    async with ScriptedBroker() as broker:
        proxy = await start(broker.service_url)
        wire = await Wire.connected(port_of(proxy))
        wire.send(lookup(1))
        async with asyncio.timeout(30):
            while not broker.commands:
                await asyncio.sleep(0.005)
        broker.stop()
        for request_id in (1, 2):
            if request_id == 2:
                wire.send(lookup(2))
            answer = await wire.receive()
            assert answer is not None
            response = answer.lookupTopicResponse
            assert (response.request_id, response.response, response.error) == (
                request_id,
                Kind.Failed,
                pb.ServiceNotReady,
            )
        wire.close()


async def test_a_broker_that_comes_back_is_found_again(start: StartProxy) -> None:
    async with ScriptedBroker(lambda command: located(command, "pulsar://a:1")) as broker:
        proxy = await start(broker.service_url)
        wire = await Wire.connected(port_of(proxy))
        await wire.ask(lookup(1))
        broker.open_wires[0].close()
        # Until the proxy has noticed.
        async with asyncio.timeout(30):
            while not all(link.closed for link in proxy.service._links._links.values()):
                await asyncio.sleep(0.001)
        assert (await wire.ask(lookup(2))).lookupTopicResponse.response == Kind.Connect
        assert len(broker.connects) == 2
        wire.close()


async def test_more_lookups_than_allowed_are_refused(start: StartProxy) -> None:
    async with ScriptedBroker() as broker:
        proxy = await start(broker.service_url, lookups_max=2)
        wire = await Wire.connected(port_of(proxy))
        for request_id in (1, 2):
            wire.send(lookup(request_id))
        response = (await wire.ask(lookup(3))).lookupTopicResponse
        assert (response.request_id, response.error) == (3, pb.ServiceNotReady)
        assert response.message == "Too many concurrent lookup and partitionsMetadata requests"
        assert proxy.service.counters.rejected_requests[pb.BaseCommand.LOOKUP] == 1
        assert proxy.service.lookups.under_way == 2
        wire.close()


async def test_brokers_that_answer_with_nonsense(start: StartProxy) -> None:
    for url in ("", "nonsense", "pulsar://host", "pulsar://[:1"):
        async with ScriptedBroker(lambda command, url=url: located(command, url)) as broker:  # type: ignore[misc]
            proxy = await start(broker.service_url)
            wire = await Wire.connected(port_of(proxy))
            response = (await wire.ask(lookup(1))).lookupTopicResponse
            assert (response.response, response.error) == (Kind.Failed, pb.ServiceNotReady)
            wire.close()


async def test_no_broker_is_known(start: StartProxy) -> None:
    from magnetar.metadata.memory import MemoryMetadataStore

    store = MemoryMetadataStore()
    proxy = await start(store=store)
    wire = await Wire.connected(port_of(proxy))
    response = (await wire.ask(lookup(1))).lookupTopicResponse
    assert response.message == "No active broker is available"
    wire.close()
    await store.close()


async def test_credentials_are_forwarded_where_wanted_each_on_its_own_connection(start: StartProxy) -> None:
    async with ScriptedBroker(lambda command: located(command, "pulsar://a:1")) as broker:
        client = BrokerClientSettings(
            forward_credentials=True,
            authentication_plugin="org.apache.pulsar.client.impl.auth.AuthenticationToken",
            authentication_parameters="token:proxy's own",
        )
        proxy = await start(broker_client=client, fixed_brokers=FixedBrokers(service_url=broker.service_url))
        for name in ("one", "two", "one"):
            wire = await Wire.connected(port_of(proxy), auth_method_name="token", auth_data=name.encode())
            await wire.ask(lookup(1))
            wire.close()
        seen = [(one.auth_method_name, one.auth_data, one.original_auth_data) for one in broker.connects]
        assert seen == [("token", b"proxy's own", "one"), ("token", b"proxy's own", "two")]


async def test_a_broker_that_is_gone_is_passed_over(start: StartProxy) -> None:
    async with ScriptedBroker(lambda command: located(command, "pulsar://owner:6650")) as broker:
        gone = "127.0.0.1:1"
        proxy = await start(f"{broker.service_url},{gone}")
        wire = await Wire.connected(port_of(proxy))
        for request_id in range(4):
            answer = await wire.ask(lookup(request_id))
            assert answer.lookupTopicResponse.response == Kind.Connect
        wire.close()


async def test_when_no_broker_answers_the_client_is_told(start: StartProxy) -> None:
    proxy = await start("pulsar://127.0.0.1:1,127.0.0.1:2")
    wire = await Wire.connected(port_of(proxy))
    answer = await wire.ask(lookup(1))
    assert (answer.lookupTopicResponse.response, answer.lookupTopicResponse.error) == (Kind.Failed, pb.ServiceNotReady)
    wire.close()
