"""Whether a cluster does what it is for: messages go in, and the same ones come out in the same order."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import ssl
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from magnetar.broker.settings.access import PeerSettings
from magnetar.cli.tools.credentials import shown_by
from magnetar.cli.tools.errors import SmokeTestFailed
from magnetar.client.client import PulsarClient
from magnetar.client.consumer import ClientConsumer, ConsumerOptions
from magnetar.client.errors import is_final
from magnetar.client.message import OutgoingMessage
from magnetar.client.producer import ClientProducer
from magnetar.client.settings import ClientSettings
from magnetar.core.clock import Clock
from magnetar.core.errors import MagnetarError, Unavailable
from magnetar.core.topic_name import TopicName
from magnetar.net.tls import TlsSettings
from magnetar.wire.pulsar.errors import PulsarError, ServerError

MESSAGES_AT_ONCE: Final = 100
"""Sent before the first of them must have its receipt; no more than that are on their way."""
RETRY_SECONDS: Final = 0.5
FAREWELL_SECONDS_MAX: Final = 5.0
"""For taking the subscription away after a failure."""

_CREDENTIALS: Final = "Show who you are: --auth-plugin and --auth-params."
_RIGHTS: Final = "The role needs the rights to produce to the topic and to consume from it, or try another --topic."
_ADDRESS: Final = (
    "Check the URL, and that brokers (and proxies) run and are ready: pulsar+ssl:// is for ports with TLS, pulsar:// "
    "for others."
)
_TRUST: Final = "Name the file of its authority by --trust-certificates, and a host that the certificate is for."
_REMEDIES: Final = {
    ServerError.AUTHENTICATION_ERROR: _CREDENTIALS,
    ServerError.AUTHORIZATION_ERROR: _RIGHTS,
    ServerError.TOPIC_NOT_FOUND: "The tenant and the namespace of --topic must be there, and topics must be allowed "
    "to come into being by being used.",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceAccess:
    """Where the cluster is and what is shown there."""

    url: str
    """`pulsar://host:port` or `pulsar+ssl://host:port`, of brokers or a proxy."""
    plugin: str = ""
    parameters: str = ""
    trust_certificates_file: Path | None = None
    """The authorities that the server's certificate must come from, as a PEM file; None: the system's."""
    verify_host_name: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class SmokeTest:
    """A smoke test of a cluster: what is tried."""

    topic: TopicName
    messages: int = 10
    size_bytes: int = 100
    """The size of each message, at least what tells it from others."""
    timeout_seconds: float = 30.0
    """The limit of each step: subscribe, open the producer, publish, read back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SmokeTestResult:
    """How a smoke test went."""

    topic: str
    messages: int
    open_ms: int
    """Until the topic was there, with a subscription and a producer."""
    publish_ms: int
    """Until every message had its receipt."""
    read_ms: int
    """After that, until every message had come."""


@contextlib.asynccontextmanager
async def open_client(access: ServiceAccess, clock: Clock, timeout_seconds: float) -> AsyncIterator[PulsarClient]:
    """A client; nothing is connected before it is used. `SettingError`."""
    tls = access.url.startswith("pulsar+ssl:")
    files = TlsSettings(
        trust_certificates_file=access.trust_certificates_file, verify_host_name=access.verify_host_name
    )
    peer = shown_by(PeerSettings(plugin=access.plugin, parameters=access.parameters, tls_enabled=tls, tls=files))
    settings = ClientSettings(
        connect_timeout_seconds=min(10.0, timeout_seconds),
        operation_timeout_seconds=timeout_seconds,
        send_timeout_seconds=timeout_seconds,
        backoff_seconds_max=2.0,
    )
    client = PulsarClient(
        lambda: access.url,
        clock,
        settings,
        authentication=peer.credentials.shown if access.plugin else None,
        connect_tls=peer.connect_tls,
    )
    try:
        yield client
    finally:
        await client.close()


async def smoke_test(client: PulsarClient, wish: SmokeTest, clock: Clock) -> SmokeTestResult:
    """Publish, read back, compare. The subscription goes afterwards, and so does the topic, where topics that nobody
    uses are deleted. Raises `SmokeTestFailed`, which says in which step."""
    run = secrets.token_hex(6)
    began = clock.monotonic_seconds()
    async with _step("opening the topic", wish):
        topic = await _first_partition(client, wish, clock)
    async with _step("subscribing", wish):
        consumer = await client.consumer(topic, ConsumerOptions(subscription=f"smoke-test-{run}"))
    try:
        async with _step("opening a producer", wish):
            producer = await client.producer(topic)
        opened = clock.monotonic_seconds()
        payloads = _payloads(run, wish)
        async with _step("publishing", wish):
            await _publish(producer, payloads)
        published = clock.monotonic_seconds()
        async with _step("reading back", wish):
            await _read_back(consumer, payloads, run)
    finally:
        await _unsubscribe(consumer)
    return SmokeTestResult(
        topic=str(topic),
        messages=wish.messages,
        open_ms=round(1000 * (opened - began)),
        publish_ms=round(1000 * (published - opened)),
        read_ms=round(1000 * (clock.monotonic_seconds() - published)),
    )


@contextlib.asynccontextmanager
async def _step(name: str, wish: SmokeTest) -> AsyncIterator[None]:
    """Bounds a step, and names it where it fails."""
    try:
        # The client gives up first and says why; this is for what waits without an end.
        async with asyncio.timeout(wish.timeout_seconds + 1):
            yield
    except TimeoutError:
        raise SmokeTestFailed(f"{name}: not done within {wish.timeout_seconds:g} s", _ADDRESS) from None
    except PulsarError as error:
        raise SmokeTestFailed(f"{name}: {error}", _REMEDIES.get(error.code, "The broker's log says more.")) from None
    except Unavailable as error:
        untrusted = isinstance(error.__cause__, ssl.SSLCertVerificationError)
        raise SmokeTestFailed(f"{name}: {error}", _TRUST if untrusted else _ADDRESS) from None


async def _first_partition(client: PulsarClient, wish: SmokeTest, clock: Clock) -> TopicName:
    """The topic, or its first partition. A cluster that is just starting is waited for."""
    deadline = clock.monotonic_seconds() + wish.timeout_seconds - RETRY_SECONDS
    while True:
        try:
            return (await client.topics(wish.topic, create=True))[0]
        except MagnetarError as error:
            # Given up in time to say what is wrong, which a step that is cut off could not.
            if is_final(error, was_open=False) or clock.monotonic_seconds() >= deadline:
                raise
        await asyncio.sleep(RETRY_SECONDS)


def _payloads(run: str, wish: SmokeTest) -> list[bytes]:
    """All different, and different from those of any other run."""
    return [f"{run}:{number}:".encode().ljust(wish.size_bytes, b".") for number in range(wish.messages)]


async def _publish(producer: ClientProducer, payloads: list[bytes]) -> None:
    for at in range(0, len(payloads), MESSAGES_AT_ONCE):
        await producer.send_all([OutgoingMessage(payload) for payload in payloads[at : at + MESSAGES_AT_ONCE]])


async def _read_back(consumer: ClientConsumer, payloads: list[bytes], run: str) -> None:
    """Messages of other runs are passed over, and those that come again after a reconnection."""
    count = 0
    own = run.encode()
    while count < len(payloads):
        message = await consumer.receive()
        await consumer.acknowledge([message.id])
        payload = bytes(message.payload)
        if payload == payloads[count]:
            count += 1
        elif payload.startswith(own) and payload not in payloads[:count]:
            raise SmokeTestFailed(
                f"reading back: message {count} of {len(payloads)} was due and something else came: {payload[:60]!r}",
                "Keep the topic's ledgers and the brokers' logs: acknowledged messages are lost, mixed up or damaged.",
            )


async def _unsubscribe(consumer: ClientConsumer) -> None:
    """A subscription that nobody reads would keep messages for good."""
    with contextlib.suppress(MagnetarError, TimeoutError):
        async with asyncio.timeout(FAREWELL_SECONDS_MAX):
            await consumer.unsubscribe()
