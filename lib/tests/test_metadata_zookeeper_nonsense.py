"""A ZooKeeper that says what it should not: the connection ends, and the next one is as good as any."""

from __future__ import annotations

import asyncio
import errno
import socket
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from magnetar.metadata import zookeeper_session
from magnetar.metadata.store import SessionEvent, StoreUnavailable
from magnetar.metadata.zookeeper import ZookeeperMetadataStore
from magnetar.metadata.zookeeper_session import ZookeeperSession

AUTH, WATCH_EVENT = -4, -1
CLOSE, DELETE, GET_DATA, MULTI = -11, 2, 4, 14
HEADER = struct.Struct(">iqi")
DATA_MISSING = b"\0\0\0\x09x"
"""A value of nine bytes of which one is there."""

Answers = Callable[[int], bytes]
"""What a server says to the request of this number, frames and all."""


def frame(body: bytes) -> bytes:
    return len(body).to_bytes(4, "big") + body


def answer(number: int, error: int = 0, body: bytes = b"") -> bytes:
    return frame(HEADER.pack(number, 1, error) + body)


class Server:
    """Answers requests as it is told on its first connection, and well on all others."""

    def __init__(self, nonsense: Answers) -> None:
        self.connections = 0
        self._nonsense = nonsense

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        first = self.connections == 1
        try:
            await self._read(reader)
            writer.write(frame(struct.pack(">iiqi16s?", 0, 3000, 7, 16, b"p" * 16, False)))
            while True:
                number, kind = struct.unpack_from(">ii", await self._read(reader))
                if kind in (CLOSE, DELETE, GET_DATA, MULTI) and first:
                    writer.write(self._nonsense(number))
                else:
                    writer.write(answer(number))
        except (asyncio.IncompleteReadError, ConnectionError):
            pass  # The client has left.
        finally:
            writer.close()

    async def _read(self, reader: asyncio.StreamReader) -> bytes:
        size = int.from_bytes(await reader.readexactly(4), "big")
        return await reader.readexactly(size)


@asynccontextmanager
async def serving(nonsense: Answers) -> AsyncIterator[tuple[str, Server]]:
    """Where a server is, and the server."""
    peer = Server(nonsense)
    listening = await asyncio.start_server(peer.serve, "127.0.0.1")
    yield f"127.0.0.1:{listening.sockets[0].getsockname()[1]}", peer
    listening.close()


@asynccontextmanager
async def connected(
    nonsense: Answers, operation_timeout_ms: int = 30_000
) -> AsyncIterator[tuple[ZookeeperSession, list[Any], Server]]:
    """A session, what it tells of itself, and its server."""
    heard: list[Any] = []
    async with serving(nonsense) as (hosts, peer):
        session = ZookeeperSession(
            hosts,
            session_timeout_ms=30_000,
            operation_timeout_ms=operation_timeout_ms,
            on_notification=heard.append,
            on_session_event=heard.append,
        )
        try:
            await session.open()
            yield session, heard, peer
        finally:
            await session.close()


def delete(client: Any) -> Any:
    return client.delete_async("/node", -1)


async def reconnected(heard: list[Any]) -> None:
    while SessionEvent.RECONNECTED not in heard:
        await asyncio.sleep(0.01)


@pytest.mark.parametrize(
    "nonsense",
    [
        pytest.param(lambda number: answer(number + 1), id="the answer to a later request"),
        pytest.param(lambda number: answer(number - 1), id="the answer to an earlier request"),
        pytest.param(lambda number: answer(number, -7777), id="an error that nobody knows"),
        pytest.param(lambda _: frame(b"abc"), id="half a header"),
        pytest.param(lambda _: frame(b""), id="nothing"),
        pytest.param(lambda _: b"\xff\xff\xff\xff", id="a negative length"),
        pytest.param(lambda _: answer(AUTH), id="the credentials are good"),
        pytest.param(lambda _: answer(AUTH, -115), id="the credentials are bad"),
        pytest.param(lambda _: frame(HEADER.pack(WATCH_EVENT, 1, 0) + b"\0"), id="half a watch event"),
    ],
)
async def test_a_connection_with_nonsense_is_left_for_another_one(nonsense: Answers) -> None:
    async with connected(nonsense) as (session, heard, peer), asyncio.timeout(30):
        with pytest.raises(StoreUnavailable, match="went away under a write"):
            await session.call(delete)
        await reconnected(heard)
        await session.call(delete)
        assert heard == [SessionEvent.CONNECTION_LOST, SessionEvent.RECONNECTED]
        assert peer.connections == 2


async def test_an_answer_that_nobody_could_hold_is_not_waited_for(caplog: pytest.LogCaptureFixture) -> None:
    async with connected(lambda _: b"\x7f\xff\xff\xff") as (session, heard, _), asyncio.timeout(30):
        with pytest.raises(StoreUnavailable, match="went away under a write"):
            await session.call(delete)
        await reconnected(heard)
    assert "the server announces 2147483647 bytes" in caplog.text


async def test_names_that_cannot_be_looked_up_now_are_looked_up_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where the process has no file left to open."""
    look_up, left = socket.getaddrinfo, [errno.EMFILE, errno.ENOMEM]

    def without_files(*arguments: Any) -> Any:
        if left:
            raise OSError(left.pop(), "cannot be had")
        return look_up(*arguments)

    async with connected(lambda _: frame(b"")) as (session, heard, _), asyncio.timeout(30):
        monkeypatch.setattr(socket, "getaddrinfo", without_files)
        with pytest.raises(StoreUnavailable):
            await session.call(delete)
        await reconnected(heard)
        assert not left


async def test_what_no_host_can_be_called_is_told_without_a_trace() -> None:
    """A thread that ends by an error fails this test."""
    with pytest.raises(StoreUnavailable, match=r"no ZooKeeper answers at a\.\.b:2181"):
        await ZookeeperMetadataStore.open("zk:a..b:2181", operation_timeout_ms=100)


async def test_what_may_be_repeated_is_asked_again_elsewhere() -> None:
    async with connected(lambda number: answer(number + 1)) as (session, _, peer), asyncio.timeout(30):
        await session.call(delete, repeatable=True)
        assert peer.connections == 2


async def test_requests_behind_the_one_that_was_left_out_are_as_uncertain() -> None:
    async with (
        connected(lambda number: b"" if number == 1 else answer(number)) as (session, heard, _),
        asyncio.timeout(30),
    ):
        calls = [asyncio.ensure_future(session.call(delete)) for _ in range(3)]
        results = await asyncio.gather(*calls, return_exceptions=True)
        assert [type(one) for one in results] == [StoreUnavailable] * 3
        await reconnected(heard)
        await session.call(delete)


async def test_an_answer_that_nobody_asked_for_ends_the_connection() -> None:
    async with connected(lambda number: answer(number) + answer(number + 1)) as (session, heard, peer):
        async with asyncio.timeout(30):
            await session.call(delete)
            await reconnected(heard)
            await session.call(delete)
        assert peer.connections == 2


async def test_an_answer_that_cannot_be_read_is_told_and_the_connection_stays() -> None:
    async with connected(lambda number: answer(number, body=DATA_MISSING)) as (session, heard, peer):
        async with asyncio.timeout(30):
            with pytest.raises(StoreUnavailable, match="cannot be read"):
                await session.call(lambda client: client.get_async("/node"), repeatable=True)
        assert (heard, peer.connections) == ([], 1)


async def test_a_request_that_is_refused_each_time_ends_with_its_time() -> None:
    asked: list[int] = []

    def busy(number: int) -> bytes:
        asked.append(number)
        return answer(number, -122)

    async with connected(busy, operation_timeout_ms=200) as (session, heard, peer), asyncio.timeout(30):
        with pytest.raises(StoreUnavailable, match="fails each attempt: RequestTimeoutError"):
            await session.call(delete, repeatable=True)
        assert len(asked) > 1
        assert (heard, peer.connections) == ([], 1)


async def test_what_a_server_has_no_time_for_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also what changes something: it was not looked at."""
    monkeypatch.setattr(zookeeper_session, "_THROTTLED_DELAY_SECONDS", 0.01)
    asked: list[int] = []

    def throttle(number: int) -> bytes:
        asked.append(number)
        return answer(number, -127 if len(asked) < 3 else 0)

    async with connected(throttle) as (session, heard, peer), asyncio.timeout(30):
        await session.call(delete)
        assert (len(asked), heard, peer.connections) == (3, [], 1)


async def test_a_server_that_never_has_time_is_unavailable() -> None:
    async with connected(lambda number: answer(number, -127), operation_timeout_ms=100) as (session, heard, peer):
        async with asyncio.timeout(30):
            with pytest.raises(StoreUnavailable, match="has too much to do"):
                await session.call(delete)
        assert (heard, peer.connections) == ([], 1)


@pytest.mark.parametrize("count", [0, 1, 3])
async def test_a_transaction_with_too_few_or_too_many_results_is_uncertain(count: int) -> None:
    results = (struct.pack(">i?i", -1, False, -1) + struct.pack(">i", -101)) * count + struct.pack(">i?i", -1, True, -1)
    async with serving(lambda number: answer(number, body=results)) as (hosts, _), asyncio.timeout(30):
        store = await ZookeeperMetadataStore.open(f"zk:{hosts}")
        with pytest.raises(StoreUnavailable, match=f"answers a transaction with {count} results"):
            await store.put_while_there("/node", b"", 1, ["/other"])
        await store.close()
