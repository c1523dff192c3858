"""What every caller of the admin API relies on; who is let follow where is tested with the callers."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path

import pytest
from aiohttp import web
from magnetar.admin_client import client as module
from magnetar.admin_client.client import AdminAnswer, AdminClient, AdminLimits
from magnetar.admin_client.errors import AdminElsewhere, AdminRefused, AdminUnreachable, AdminUntrusted
from magnetar.net.testing import TestAuthority

LIMITS = AdminLimits(connections_max=2)


async def answering(response: web.Response) -> tuple[web.ServerRunner, str]:
    async def handler(request: web.BaseRequest) -> web.Response:
        del request
        return response

    runner = web.ServerRunner(web.Server(handler))
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    return runner, f"http://127.0.0.1:{runner.addresses[0][1]}"


async def test_an_answer_without_an_end_is_given_up() -> None:
    runner, url = await answering(web.Response(text="x" * 1001))
    client = AdminClient(AdminLimits(connections_max=2, answer_bytes_max=1000))
    try:
        with pytest.raises(AdminUnreachable, match="more than 1000 bytes") as raised:
            await client.call("GET", f"{url}/")
        assert not raised.value.may_pass
    finally:
        await client.close()
        await runner.cleanup()


@pytest.mark.parametrize("reason", ["", "no such topic"])
async def test_a_refusal_says_why(reason: str) -> None:
    runner, url = await answering(web.json_response({"reason": reason}, status=404))
    client = AdminClient(LIMITS)
    try:
        with pytest.raises(AdminRefused, match=reason or "Not Found") as raised:
            await client.call("GET", f"{url}/")
        assert raised.value.status == 404
    finally:
        await client.close()
        await runner.cleanup()


@pytest.mark.parametrize("status", [300, 303, 304])
async def test_what_only_points_elsewhere_is_no_success(status: int) -> None:
    """Such as the page of a proxy where people log in: a change that nobody made would be told as done."""
    runner, url = await answering(web.Response(status=status, headers={"Location": "/login"}))
    client = AdminClient(LIMITS)
    try:
        with pytest.raises(AdminRefused) as raised:
            await client.call("PUT", f"{url}/")
        assert raised.value.status == status
    finally:
        await client.close()
        await runner.cleanup()


@pytest.mark.parametrize("body", [b"[" * 100_000, b'{"reason": ' * 100_000])
def test_an_answer_that_is_too_deep_is_no_mistake_of_ours(body: bytes) -> None:
    answer = AdminAnswer(500, body)
    assert answer.reason == body[: module.REASON_CHARACTERS_MAX].decode()
    with pytest.raises(ValueError, match="too deep"):
        answer.json()


async def test_an_address_that_names_a_user_is_nobodys() -> None:
    class Answers(AdminClient):
        async def send(self, method: str, address: str, query: object = None, data: object = None) -> AdminAnswer | str:
            return "http://b@elsewhere:8080/" if address.startswith("http://a@") else AdminAnswer(200, b"")

    client = Answers(LIMITS)
    with pytest.raises(AdminElsewhere, match="which is no broker of this cluster"):
        await client.ask("PUT", "http://a@here:8080/")
    await client.close()


async def test_a_certificate_that_nobody_trusts_is_an_error_of_its_own(tmp_path: Path) -> None:
    made = TestAuthority(tmp_path).issue("broker", "IP:127.0.0.1")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(made.certificate_file, made.key_file)
    server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0, ssl=context)
    client = AdminClient(LIMITS)
    async with server:
        with pytest.raises(AdminUntrusted, match="certificate verify failed") as raised:
            await client.call("GET", f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}/")
    assert not raised.value.may_pass
    await client.close()


async def test_credentials_are_not_shown_to_who_is_plain() -> None:
    class Answers(AdminClient):
        async def send(self, method: str, address: str, query: object = None, data: object = None) -> AdminAnswer | str:
            return "http://b:8080/" if address.startswith("https:") else AdminAnswer(200, b"")

    client = Answers(LIMITS)
    with pytest.raises(AdminUnreachable, match="seen by others"):
        await client.ask("GET", "https://b:8080/")
    await client.close()
