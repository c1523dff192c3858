"""`magnetar smoke-test` against a broker in memory."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from magnetar.auth.testing import token_of
from magnetar.broker.testing.auth import ADMIN, broker_settings
from magnetar.broker.testing.sessions import MemoryBroker
from magnetar.cli.command_line import application
from magnetar.cli.tools.errors import SmokeTestFailed
from magnetar.cli.tools.smoke_test import ServiceAccess, SmokeTest, open_client, smoke_test
from magnetar.client.message import OutgoingMessage
from magnetar.core.clock import SystemClock
from magnetar.core.topic_name import TopicName
from magnetar.net.free_ports import free_port
from magnetar.net.testing import TestAuthority
from typer.testing import CliRunner, Result

TOPIC = TopicName.parse("persistent://public/default/smoke-test")

Run = Callable[..., Coroutine[Any, Any, Result]]


async def run(*arguments: object, code: int = 0) -> Result:
    """The command, in a thread of its own as the broker is on this one's loop."""
    words = ["smoke-test", *map(str, arguments)]
    result = await asyncio.to_thread(CliRunner().invoke, application, words, env={"NO_COLOR": "1"})
    assert result.exit_code == code, result.output
    return result


@pytest.fixture
async def broker() -> AsyncIterator[MemoryBroker]:
    async with MemoryBroker() as made:
        yield made


def url_of(broker: MemoryBroker) -> str:
    found: str = broker.running.settings.service_url
    return found


@pytest.mark.slow
async def test_everything_comes_back_and_the_subscription_goes(broker: MemoryBroker) -> None:
    said = json.loads((await run(url_of(broker), "-n", 250, "--size", 2000, "--json")).stdout)
    assert (said["topic"], said["messages"]) == (str(TOPIC), 250)
    assert "10 messages were published" in (await run(url_of(broker))).stdout
    topic = await broker.service.topic(TOPIC, create=False)
    assert not topic.subscriptions


@pytest.mark.slow
async def test_messages_of_others_are_passed_over(broker: MemoryBroker) -> None:
    clock = SystemClock()
    async with open_client(ServiceAccess(url=url_of(broker)), clock, 10.0) as client:
        other = await client.producer(TOPIC)

        async def disturb() -> None:
            while True:
                await other.send(OutgoingMessage(b"of another run"))

        task = asyncio.get_running_loop().create_task(disturb())
        result = await smoke_test(client, SmokeTest(topic=TOPIC, messages=300), clock)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    assert result.messages == 300


@pytest.mark.slow
async def test_nobody_there_is_told_in_time() -> None:
    clock = SystemClock()
    wish = SmokeTest(topic=TOPIC, timeout_seconds=0.6)
    async with open_client(ServiceAccess(url=f"pulsar://127.0.0.1:{free_port()}"), clock, 0.6) as client:
        with pytest.raises(SmokeTestFailed, match=r"opening the topic: 127\.0\.0\.1.*cannot be reached") as failed:
            await smoke_test(client, wish, clock)
    assert "brokers (and proxies) run" in failed.value.remedy
    assert "pulsar+ssl:// is for ports with TLS" in failed.value.remedy


async def test_a_certificate_of_a_strange_authority_is_told_with_what_to_do(tmp_path: Path) -> None:
    made = TestAuthority(tmp_path).issue("broker", "IP:127.0.0.1")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(made.certificate_file, made.key_file)
    server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0, ssl=context)
    async with server:
        url = f"pulsar+ssl://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        refused = await run(url, "--timeout", 1, code=1)
    assert "certificate verify failed" in refused.stderr
    assert "--trust-certificates" in refused.stderr


@pytest.mark.slow
async def test_credentials_and_rights() -> None:
    async with MemoryBroker(broker_settings()) as broker:
        url = url_of(broker)
        nobody = await run(url, code=1)
        assert "AUTHENTICATION_ERROR" in nobody.stderr
        assert "--auth-plugin" in nobody.stderr
        somebody = await run(url, "--auth-plugin", "token", "--auth-params", token_of("somebody"), code=1)
        assert "AUTHORIZATION_ERROR" in somebody.stderr
        assert "needs the rights" in somebody.stderr
        await run(url, "--auth-plugin", "token", "--auth-params", token_of(ADMIN))
        unknown = await run(url, "--auth-plugin", "kerberos", code=2)
        assert "--auth-plugin kerberos is not known" in unknown.stderr


@pytest.mark.slow
async def test_wrong_options() -> None:
    assert "must begin with pulsar://" in (await run("http://x:1", code=2)).stderr
    assert "--topic a/b" in (await run("pulsar://x:1", "--topic", "a/b", code=2)).stderr
