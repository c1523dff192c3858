"""The stock client at a broker that wants to know who is there."""

from __future__ import annotations

import asyncio
import base64
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import pulsar
import pytest
from magnetar.auth.settings import BASIC_PROVIDER, TLS_PROVIDER, TOKEN_PROVIDER, AuthenticationSettings
from magnetar.auth.testing import PASSWORDS, token_of
from magnetar.broker.settings.access import PeerSettings
from magnetar.broker.settings.broker import BrokerSettings
from magnetar.broker.testing.auth import TOPIC, access_settings, broker_settings, grants, make_namespace
from magnetar.broker.testing.sessions import MemoryBroker
from magnetar.net.testing import TestAuthority
from magnetar.net.tls import ClientTls, TlsSettings

pytestmark = [pytest.mark.slow, pytest.mark.clients]

QUIET = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
NOT_LET_IN = "AuthenticationError"
"""What this client says of credentials that are not good. At Apache's brokers it tries again until it may not."""
GRANTS = grants({"maker": ["produce"], "reader": ["consume"], "both": ["produce", "consume"]})


PATIENCE_SECONDS = 30
"""For what must go well."""
IMPATIENT: dict[str, Any] = {"patience_seconds": 2}


def client_at(service_url: str, patience_seconds: int = PATIENCE_SECONDS, **options: Any) -> pulsar.Client:
    return pulsar.Client(service_url, logger=QUIET, operation_timeout_seconds=patience_seconds, **options)


def talk(service_url: str, **options: Any) -> bytes:
    """Send one message to oneself; blocking, for a thread."""
    client = client_at(service_url, **options)
    try:
        consumer = client.subscribe(TOPIC, "s")
        client.create_producer(TOPIC).send(b"hello")
        message = consumer.receive(PATIENCE_SECONDS * 1000)
        consumer.acknowledge(message)
        content: bytes = message.data()
        return content
    finally:
        client.close()


def open_producer(service_url: str, **options: Any) -> str:
    """What the client says of it."""
    client = client_at(service_url, **options)
    try:
        client.create_producer(TOPIC)
        return "ok"
    except pulsar.PulsarException as error:
        return str(error)
    finally:
        client.close()


async def test_tokens() -> None:
    async with MemoryBroker(broker_settings()) as broker:
        await make_namespace(broker, auth_policies=GRANTS)
        url = broker.running.settings.service_url

        async def outcome(subject: str) -> str:
            shown = pulsar.AuthenticationToken(token_of(subject))
            return await asyncio.to_thread(open_producer, url, authentication=shown)

        both = pulsar.AuthenticationToken(token_of("both"))
        assert await asyncio.to_thread(talk, url, authentication=both) == b"hello"
        assert await outcome("maker") == "ok"
        assert "AuthorizationError" in await outcome("reader")
        assert "AuthorizationError" in await outcome("nobody")
        bad = pulsar.AuthenticationToken("bad")
        assert NOT_LET_IN in await asyncio.to_thread(open_producer, url, authentication=bad)


async def test_a_client_renews_its_token_and_goes_on() -> None:
    made: list[str] = []

    def fresh() -> str:
        made.append(token_of("both", exp=int(time.time()) + 2))
        return made[-1]

    def send_for_seconds(url: str) -> int:
        client = client_at(url, authentication=pulsar.AuthenticationToken(fresh))
        try:
            producer = client.create_producer(TOPIC, send_timeout_millis=PATIENCE_SECONDS * 1000)
            sent = 0
            while sent < 20 or len(made) < 3:
                producer.send(b"%d" % sent)
                sent += 1
                time.sleep(0.15)
            return sent
        finally:
            client.close()

    settings = broker_settings(refresh_check_seconds=1.0)
    async with MemoryBroker(settings) as broker:
        await make_namespace(broker, auth_policies=GRANTS)
        before = 0

        def connections() -> int:
            return len(broker.running._ports.connections)

        sending = asyncio.create_task(asyncio.to_thread(send_for_seconds, broker.running.settings.service_url))
        while not sending.done():
            before = max(before, connections())
            await asyncio.sleep(0.05)
        assert await sending >= 20
        assert before == 1, "it never connected anew"


async def test_users_and_passwords() -> None:
    users = "\n".join(f"{kind}:{encrypted}" for kind, encrypted in PASSWORDS.items())
    authentication = AuthenticationSettings(
        enabled=True,
        providers=(BASIC_PROVIDER,),
        basic_users="data:;base64," + base64.b64encode(users.encode()).decode(),
    )
    access = access_settings(authentication=authentication, peers=PeerSettings())
    async with MemoryBroker(BrokerSettings(access=access)) as broker:
        await make_namespace(broker, auth_policies=grants({kind: ["produce", "consume"] for kind in PASSWORDS}))
        url = broker.running.settings.service_url
        for kind in PASSWORDS:
            shown = pulsar.AuthenticationBasic(kind, "secret")
            assert await asyncio.to_thread(talk, url, authentication=shown) == b"hello"
        wrong = pulsar.AuthenticationBasic("bcrypt", "wrong")
        assert NOT_LET_IN in await asyncio.to_thread(open_producer, url, authentication=wrong)


async def test_client_certificates_and_brokers_that_reach_themselves_by_tls(tmp_path: Path) -> None:
    authority = TestAuthority(tmp_path / "ours")
    names = ("DNS:localhost", "IP:127.0.0.1")
    here, both, admin = (authority.issue(name, *names) for name in ("here", "both", "admin"))
    trust = authority.certificate_file
    stranger = TestAuthority(tmp_path / "others").issue("both", *names)
    authentication = replace(access_settings().authentication, providers=(TLS_PROVIDER, TOKEN_PROVIDER))
    peers = PeerSettings(
        plugin="org.apache.pulsar.client.impl.auth.AuthenticationTls",
        parameters=f"tlsCertFile:{admin.certificate_file},tlsKeyFile:{admin.key_file}",
        tls_enabled=True,
        tls=TlsSettings(trust_certificates_file=trust, verify_host_name=True),
    )
    settings = BrokerSettings(
        broker_service_port_tls=0,
        web_service_port_tls=0,
        tls=TlsSettings(certificate_file=here.certificate_file, key_file=here.key_file, trust_certificates_file=trust),
        access=access_settings(authentication=authentication, peers=peers),
    )
    async with MemoryBroker(settings) as broker:
        await make_namespace(broker, auth_policies=GRANTS)
        url, web_url = broker.running.settings.service_url_tls, broker.running.settings.web_service_url_tls
        assert url is not None
        assert web_url is not None
        common = {"use_tls": True, "tls_trust_certs_file_path": str(trust)}

        def shown(certificate: Any) -> Any:
            return pulsar.AuthenticationTLS(str(certificate.certificate_file), str(certificate.key_file))

        assert await asyncio.to_thread(talk, url, authentication=shown(both), **common) == b"hello"
        refused = await asyncio.to_thread(open_producer, url, authentication=shown(here), **common)
        assert "AuthorizationError" in refused
        assert (
            await asyncio.to_thread(open_producer, url, authentication=shown(stranger), **common, **IMPATIENT) != "ok"
        )
        assert NOT_LET_IN in await asyncio.to_thread(open_producer, url, **common)

        as_both = ClientTls(
            TlsSettings(certificate_file=both.certificate_file, key_file=both.key_file, trust_certificates_file=trust)
        )
        async with aiohttp.ClientSession() as session:
            path = "/admin/v2/persistent/acme/shop/orders/stats"
            async with session.get(web_url + path, ssl=as_both.context) as answer:
                assert answer.status == 200
            async with session.get(web_url + "/admin/v2/tenants", ssl=as_both.context) as answer:
                assert answer.status == 401
        # What the broker asks itself goes by TLS, with its own certificate.
        answered = await broker.running.context.peers.call("GET", "/admin/v2/tenants")
        assert "acme" in answered.json()
        partitions = "/admin/v2/persistent/acme/shop/parts"
        await broker.running.context.peers.call("PUT", partitions + "/partitions", body=2)
        merged = await broker.running.context.peers.call("GET", partitions + "/partitioned-stats")
        assert merged.json()["metadata"]["partitions"] == 2
        # Its own client, too: policies of topics are kept in a topic.
        await broker.running.context.peers.call("POST", partitions + "/maxProducers", body=3)
        assert (await broker.running.context.peers.call("GET", partitions + "/maxProducers")).json() == 3
