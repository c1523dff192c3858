"""What the broker's tests share."""

from __future__ import annotations

import io
import json
from collections.abc import AsyncIterator
from typing import Any, Final

import aiohttp
import pytest
from magnetar.broker.testing.sessions import MemoryBroker, ProtocolClient

UNAVAILABLE: Final = 503


@pytest.fixture
async def memory_broker() -> AsyncIterator[MemoryBroker]:
    """A broker of this test's own over a store and bookies in memory."""
    async with MemoryBroker() as broker:
        yield broker


class Admin:
    """An HTTP client of one broker."""

    def __init__(self, broker: MemoryBroker, session: aiohttp.ClientSession) -> None:
        self.broker = broker
        self._session = session

    async def __call__(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        """Status and body: JSON decoded, a reason alone as text, nothing as None. Bytes are sent as they are."""
        data = body if body is None or isinstance(body, bytes | io.BytesIO) else json.dumps(body).encode()
        headers = {"Content-Type": "application/json"}
        async with self._session.request(method, self.broker.admin_url + path, data=data, headers=headers) as answer:
            text = await answer.text()
            if answer.content_type != "application/json":
                return answer.status, text or None
            document = json.loads(text)
            if answer.status >= 400:
                assert list(document) == ["reason"]
                return answer.status, document["reason"]
            return answer.status, document

    async def until_answered(self, method: str, path: str, body: Any = None) -> int:
        """Ask again for as long as the broker cannot say what came of it; the status that it answers then."""
        while True:
            status, _ = await self(method, path, body)
            if status != UNAVAILABLE:
                return status

    async def check(self, *steps: tuple[str, str, Any, int, Any]) -> None:
        """Go through requests one after another.

        A step is method, path, body, expected status, expected body (`...`: any; for an error: a part of its reason).
        """
        for method, path, body, status, expected in steps:
            found_status, found = await self(method, path, body)
            assert found_status == status, (method, path, body, found)
            if status >= 400 and expected is not ...:
                assert expected in found, (method, path, body)
            elif expected is not ...:
                assert found == expected, (method, path, body)


@pytest.fixture
async def admin(memory_broker: MemoryBroker) -> AsyncIterator[Admin]:
    """The admin API of `memory_broker`."""
    async with aiohttp.ClientSession() as session:
        yield Admin(memory_broker, session)


@pytest.fixture
async def client(memory_broker: MemoryBroker) -> ProtocolClient:
    """A connection to `memory_broker`, with the handshake done."""
    return await memory_broker.connect()
