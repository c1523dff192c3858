"""A stock client through the proxy to a real broker."""

from __future__ import annotations

import asyncio
import contextlib
import re
import socket
import ssl
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import pulsar
import pytest
from magnetar.net import accepting
from magnetar.net.refused_connections import LimitKind
from magnetar.net.testing import HALF_HANDSHAKE, Certificate, TestAuthority, until
from magnetar.net.tls import TlsSettings
from magnetar.proxy.app import RunningProxy
from magnetar.proxy.settings import BrokerClientSettings, FixedBrokers
from magnetar.standalone import cluster
from magnetar.standalone.cluster import RunningCluster, start_cluster
from magnetar.standalone.settings import StandaloneSettings
from magnetar.wire.pulsar.generated.pulsar_api_pb2 import BaseCommand

pytestmark = [pytest.mark.slow, pytest.mark.clients]

StartProxy = Callable[..., Awaitable[RunningProxy]]
QUIET = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)


@asynccontextmanager
async def running_cluster(
    folder: Path, monkeypatch: pytest.MonkeyPatch, **broker: Any
) -> AsyncIterator[RunningCluster]:
    """A standalone cluster on free ports, its broker set up as told."""
    plain = cluster.broker_settings
    monkeypatch.setattr(cluster, "broker_settings", lambda settings: replace(plain(settings), **broker))
    settings = StandaloneSettings(data_directory=folder, broker_service_port=0, web_service_port=0, journal_sync=False)
    running = await start_cluster(settings)
    try:
        yield running
    finally:
        await running.close()


def talk(service_url: str, count: int, topic: str, **options: Any) -> list[bytes]:
    """Publish and receive; blocking, for a thread."""
    client = pulsar.Client(
        service_url, logger=QUIET, operation_timeout_seconds=60, connection_timeout_ms=60_000, **options
    )
    try:
        consumer = client.subscribe(topic, "all", consumer_type=pulsar.ConsumerType.Shared)
        producer = client.create_producer(topic, batching_enabled=True, block_if_queue_full=True)
        for number in range(count):
            producer.send_async(b"%06d" % number, lambda *_: None)
        producer.flush()
        received = []
        for _ in range(count):
            message = consumer.receive(30_000)
            consumer.acknowledge(message)
            received.append(message.data())
        return received
    finally:
        client.close()


def expected(count: int) -> list[bytes]:
    return [b"%06d" % number for number in range(count)]


async def test_a_stock_client_works_through_the_proxy(
    start: StartProxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running_cluster(tmp_path, monkeypatch) as running:
        fixed = FixedBrokers(service_url=running.service_url, web_service_url=running.admin_url)
        proxy = await start(fixed_brokers=fixed, web_service_port=0)
        assert await asyncio.to_thread(talk, proxy.service_url, 2_000, "plain") == expected(2_000)
        async with aiohttp.ClientSession() as session:
            partitioned = "/admin/v2/persistent/public/default/parts/partitions"
            async with session.put(proxy.web_service_url + partitioned, json=3) as answer:
                assert answer.status == 204
            async with session.get(proxy.web_service_url + "/admin/v2/persistent/public/default/partitioned") as answer:
                assert await answer.json() == ["persistent://public/default/parts"]
        received = await asyncio.to_thread(talk, proxy.service_url, 300, "parts")
        assert sorted(received) == expected(300)
        counters = proxy.service.counters
        assert counters.requests[BaseCommand.LOOKUP] >= 4
        assert counters.requests[BaseCommand.PARTITIONED_METADATA] >= 2


def certificates(folder: Path) -> tuple[TestAuthority, Certificate]:
    authority = TestAuthority(folder)
    return authority, authority.issue("here", "DNS:localhost", "IP:127.0.0.1")


async def test_tls_on_both_sides(start: StartProxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    authority, certificate = certificates(tmp_path / "tls")
    own = TlsSettings(certificate_file=certificate.certificate_file, key_file=certificate.key_file)
    towards_broker = BrokerClientSettings(
        tls_enabled=True, tls=TlsSettings(trust_certificates_file=authority.certificate_file, verify_host_name=True)
    )
    ports = {"broker_service_port_tls": 0, "web_service_port_tls": 0, "tls": own}
    async with running_cluster(tmp_path / "data", monkeypatch, **ports) as running:
        broker = running.broker.settings
        assert broker.service_url_tls is not None
        assert broker.web_service_url_tls is not None
        proxy = await start(
            fixed_brokers=FixedBrokers(
                service_url_tls=broker.service_url_tls, web_service_url_tls=broker.web_service_url_tls
            ),
            service_port=None,
            service_port_tls=0,
            web_service_port=0,
            tls=own,
            broker_client=towards_broker,
        )
        assert proxy.service_url.startswith("pulsar+ssl://")
        options = {"tls_trust_certs_file_path": str(authority.certificate_file), "tls_validate_hostname": True}
        assert await asyncio.to_thread(talk, proxy.service_url, 2_000, "secret", **options) == expected(2_000)
        assert await asyncio.to_thread(talk, broker.service_url_tls, 10, "direct", **options) == expected(10)
        with pytest.raises(pulsar.PulsarException):
            await asyncio.to_thread(talk, proxy.service_url, 1, "untrusted")
        url = proxy.web_service_url + "/admin/v2/clusters"
        async with aiohttp.ClientSession() as session, session.get(url) as answer:
            assert await answer.json() == ["standalone"]


async def test_half_handshakes_keep_no_client_out(
    start: StartProxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At all four ports with TLS, from the client's own address."""
    monkeypatch.setattr(accepting, "handshakes_max", lambda: 32)
    authority, certificate = certificates(tmp_path / "tls")
    own = TlsSettings(certificate_file=certificate.certificate_file, key_file=certificate.key_file)
    trusting = TlsSettings(trust_certificates_file=authority.certificate_file)
    ports = {"broker_service_port_tls": 0, "web_service_port_tls": 0, "tls": own}
    async with running_cluster(tmp_path / "data", monkeypatch, **ports) as running:
        broker = running.broker.settings
        assert broker.service_url_tls is not None
        assert broker.web_service_url_tls is not None
        proxy = await start(
            fixed_brokers=FixedBrokers(
                service_url_tls=broker.service_url_tls, web_service_url_tls=broker.web_service_url_tls
            ),
            service_port=None,
            service_port_tls=0,
            web_service_port_tls=0,
            tls=own,
            broker_client=BrokerClientSettings(tls_enabled=True, tls=trusting),
        )
        urls = (broker.service_url_tls, proxy.service_url, broker.web_service_url_tls, proxy.web_service_url)
        attacked = [int(url.rpartition(":")[2]) for url in urls]
        options = {"tls_trust_certs_file_path": str(authority.certificate_file)}
        context = ssl.create_default_context(cafile=authority.certificate_file)
        counts = (running.broker.context.service.limits.connections.refused.counts, proxy.service.refused.counts)
        with contextlib.ExitStack() as halves:
            for port in attacked * 60:
                halves.enter_context(socket.create_connection(("127.0.0.1", port))).sendall(HALF_HANDSHAKE)
            for number, url in enumerate(urls[:2]):
                assert await asyncio.to_thread(talk, url, 10, f"topic-{number}", **options) == expected(10)
            async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=context)) as session:
                for url in urls[2:]:
                    async with session.get(url + "/admin/v2/clusters") as answer:
                        assert await answer.json() == ["standalone"]
            await until(lambda: all(count[LimitKind.HANDSHAKES] >= 2 * (60 - 32) for count in counts))
        async with (
            aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=context)) as session,
            session.get(proxy.web_service_url + "/metrics") as answer,
        ):
            text = await answer.text()
        (line,) = re.findall(r"^pulsar_proxy_rejected_connections_total{.*handshakes\"} .*", text, re.MULTILINE)
        assert float(line.split()[-1]) == counts[1][LimitKind.HANDSHAKES]


async def test_brokers_behind_the_proxy_see_who_the_client_is(
    start: StartProxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running_cluster(tmp_path, monkeypatch, proxy_protocol=True) as running:
        proxy = await start(running.service_url, proxy_protocol=True)

        def subscribe() -> None:
            client = pulsar.Client(proxy.service_url, logger=QUIET)
            client.subscribe("seen", "one")
            done.wait(60)
            client.close()

        done = threading.Event()
        talking = asyncio.get_running_loop().create_task(asyncio.to_thread(subscribe))
        try:
            async with asyncio.timeout(30), aiohttp.ClientSession() as session:
                url = running.admin_url + "/admin/v2/persistent/public/default/seen/stats"
                address = ""
                while not address:
                    await asyncio.sleep(0.05)
                    async with session.get(url) as answer:
                        if answer.status == 200:
                            consumers = (await answer.json())["subscriptions"].get("one", {}).get("consumers", [])
                            address = consumers[0]["address"] if consumers else ""
            assert address == proxy.service.joined[0].client_address
            assert address != proxy.service.joined[0].splice.far_address
        finally:
            done.set()
            await talking
