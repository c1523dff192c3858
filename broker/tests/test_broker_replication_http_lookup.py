"""Clusters whose record has an address of HTTP alone: replicators look topics up there."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest
from aiohttp import web
from magnetar.broker.replication.http_lookup import HttpLookup
from magnetar.broker.replication.remote_admin import RemoteAdmin
from magnetar.broker.replication.remote_clusters import CLIENT_SETTINGS
from magnetar.broker.resources import Resources
from magnetar.broker.testing.clusters import until
from magnetar.broker.testing.sessions import MemoryBroker
from magnetar.client.addresses import BrokerAddress
from magnetar.client.errors import ConnectionFailed
from magnetar.core.topic_name import TopicName
from magnetar.wire.pulsar.errors import PulsarError, ServerError

from broker.tests.two_clusters import TOPIC, caught_up, numbers, publish, replicate, stored, topic_of, two_clusters

NAME = TopicName.parse(TOPIC)


async def name_by_http(at: MemoryBroker, cluster: str, url: str) -> None:
    resources = Resources(at.store)
    await resources.documents.create(resources.cluster_path(cluster), {"serviceUrl": url})


@pytest.mark.parametrize("partitions", [0, 2])
async def test_a_cluster_with_an_address_of_http_alone_is_replicated_to(partitions: int) -> None:
    async with two_clusters() as (east, west):
        await name_by_http(east[0], "west", west[0].admin_url)
        if not partitions:
            await publish(east[0], 0, 20)
            await replicate(east[0], "east", "west")
            await caught_up(east[0])
            assert numbers(await stored(west[0])) == list(range(20))
            return
        name = TopicName.parse("persistent://public/default/parted")
        await replicate(east[0], "east", "west")
        await east[0].service.partitioned.create(name, partitions)
        client = await east[0].connect()
        await client.producer(str(name.partition(1)), producer_name="p")
        await client.publish(3)
        topic = east[0].service.topics[str(name.partition(1))]
        await until(lambda: topic.replicators.running and not topic.replicators.behind)
        assert await Resources(west[0].store).partitions(name) == partitions


async def test_a_cluster_that_moves_is_found_at_its_new_address() -> None:
    async with two_clusters() as (east, west):
        await name_by_http(east[0], "west", "http://127.0.0.1:1")
        await publish(east[0], 0, 3)
        await replicate(east[0], "east", "west")
        topic = await topic_of(east[0])
        await until(lambda: topic.replicators and (one := topic.replicators.running.get("west")) and one.detail)
        assert topic.replicators is not None
        assert topic.replicators.stats()["west"]["reason"] == "unreachable"
        resources = Resources(east[0].store)
        url = west[0].admin_url
        await resources.documents.update(resources.cluster_path("west"), lambda record: {**record, "serviceUrl": url})
        await caught_up(east[0])
        assert numbers(await stored(west[0])) == [0, 1, 2]


@asynccontextmanager
async def answering(answer: Any, status: int = 200, *, tls: bool = False) -> AsyncIterator[HttpLookup]:
    """A lookup at a server that gives one answer to everything."""

    async def give(request: web.Request) -> web.Response:
        del request
        return web.json_response(answer, status=status) if not isinstance(answer, str) else web.Response(text=answer)

    app = web.Application()
    app.router.add_get("/{path:.*}", give)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    lookup = HttpLookup(RemoteAdmin("west", url, None, None), cast(Any, None), CLIENT_SETTINGS, tls=tls)
    try:
        yield lookup
    finally:
        await lookup.close()
        await runner.cleanup()


BOTH = {"brokerUrl": "pulsar://a:1", "brokerUrlTls": "pulsar+ssl://a:2"}


@pytest.mark.parametrize(("tls", "wanted"), [(False, BrokerAddress("a", 1)), (True, BrokerAddress("a", 2, True))])
async def test_the_address_with_tls_is_taken_where_tls_is_wanted(tls: bool, wanted: BrokerAddress) -> None:
    async with answering(BOTH, tls=tls) as lookup:
        assert await lookup.broker_of(NAME) == wanted


@pytest.mark.parametrize(
    ("answer", "tls", "reason"),
    [
        ({"brokerUrl": "pulsar://a:1"}, True, "without a brokerUrlTls"),
        ({"brokerUrlTls": "pulsar://a:1"}, True, "our credentials are not shown"),
        ({"brokerUrl": 7}, False, "without a brokerUrl"),
        ({"brokerUrl": "http://a:1"}, False, "strange broker"),
        ([], False, "something else than JSON"),
        ("no JSON", False, "something else than JSON"),
    ],
)
async def test_an_answer_that_leads_nowhere_is_told(answer: Any, tls: bool, reason: str) -> None:
    async with answering(answer, tls=tls) as lookup:
        with pytest.raises(ConnectionFailed, match=reason):
            await lookup.broker_of(NAME)


@pytest.mark.parametrize(
    ("status", "code"),
    [
        (401, ServerError.AUTHENTICATION_ERROR),
        (403, ServerError.AUTHORIZATION_ERROR),
        (404, ServerError.TOPIC_NOT_FOUND),
        (503, ServerError.SERVICE_NOT_READY),
    ],
)
async def test_a_refusal_has_the_code_that_the_binary_protocol_would_give(status: int, code: ServerError) -> None:
    async with answering({"reason": "staged"}, status) as lookup:
        for asking in (lookup.broker_of(NAME), lookup.partitions_of(NAME, create=False)):
            with pytest.raises(PulsarError, match="west: staged") as raised:
                await asking
            assert raised.value.code == code
