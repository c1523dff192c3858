from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from magnetar.ledger.bookie_client.addressed_bookies import address_of_id
from magnetar.ledger.bookie_client.tcp_connections import TcpBookieConnections
from magnetar.metadata.memory import MemoryMetadataStore
from magnetar.wire.bookkeeper.service_info import (
    MACHINE_PROPERTY,
    Endpoint,
    decode_service_info,
    encode_service_info,
    machine_of,
)


@pytest.fixture
async def store() -> AsyncIterator[MemoryMetadataStore]:
    opened = MemoryMetadataStore()
    yield opened
    await opened.close()


@pytest.fixture
async def bookies(store: MemoryMetadataStore) -> AsyncIterator[TcpBookieConnections]:
    opened = TcpBookieConnections(store)
    await store.put("/ledgers/available/b1:3181", b"", ephemeral=True)
    await store.put("/ledgers/available/readonly", b"")
    await opened.start()
    yield opened
    await opened.close()


async def until(bookies: TcpBookieConnections, writable: list[str], readable: list[str]) -> None:
    async with asyncio.timeout(30):
        while (bookies.writable_bookies(), bookies.readable_bookies()) != (writable, readable):
            await asyncio.sleep(0.001)


async def test_bookies_come_turn_read_only_and_go(store: MemoryMetadataStore, bookies: TcpBookieConnections) -> None:
    assert bookies.writable_bookies() == bookies.readable_bookies() == ["b1:3181"]
    await store.put("/ledgers/available/b0:3181", b"", ephemeral=True)
    await until(bookies, ["b0:3181", "b1:3181"], ["b0:3181", "b1:3181"])
    await store.delete("/ledgers/available/b1:3181")
    await store.put("/ledgers/available/readonly/b1:3181", b"", ephemeral=True)
    await until(bookies, ["b0:3181"], ["b0:3181", "b1:3181"])
    await store.delete("/ledgers/available/readonly/b1:3181")
    await until(bookies, ["b0:3181"], ["b0:3181"])


@pytest.mark.parametrize("look", [1, 2])
@pytest.mark.parametrize(("here", "there"), [("", "readonly/"), ("readonly/", "")])
async def test_a_bookie_that_changes_its_mode_is_never_missed(here: str, there: str, look: int) -> None:
    """AutoRecovery would take it for lost, and a bookie with a name of its own would have no address."""

    class ModeChangingStore(MemoryMetadataStore):
        looks = 0

        async def children(self, path: str, *, watch: bool = True) -> list[str]:
            found = await super().children(path, watch=watch)
            self.looks += 1
            if self.looks == look:
                await self.put(f"/ledgers/available/{there}b1:3181", b"", ephemeral=True)
                await self.delete(f"/ledgers/available/{here}b1:3181")
            return found

    store = ModeChangingStore()
    await store.put("/ledgers/available/readonly", b"")
    await store.put(f"/ledgers/available/{here}b1:3181", b"", ephemeral=True)
    bookies = TcpBookieConnections(store)
    await bookies.start()
    assert bookies.readable_bookies() == ["b1:3181"]
    await until(bookies, ["b1:3181"] if not there else [], ["b1:3181"])
    await bookies.close()
    await store.close()


async def test_connections_are_shared(bookies: TcpBookieConnections) -> None:
    assert bookies.connection("b1:3181") is bookies.connection("b1:3181")


async def test_a_registered_endpoint_is_where_the_bookie_is_reached(
    store: MemoryMetadataStore, bookies: TcpBookieConnections
) -> None:
    accepted = asyncio.Event()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        accepted.set()
        writer.close()
        await writer.wait_closed()

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    port: int = server.sockets[0].getsockname()[1]
    endpoints = [
        Endpoint(id="http", host="127.0.0.1", port=1, protocol="http"),
        Endpoint(id="bookie", host="127.0.0.1", port=port),
    ]
    await store.put("/ledgers/available/named-bookie", encode_service_info(endpoints), ephemeral=True)
    await until(bookies, ["b1:3181", "named-bookie"], ["b1:3181", "named-bookie"])
    read = asyncio.ensure_future(bookies.connection("named-bookie").read_entry(1, 1))
    async with asyncio.timeout(30):
        await accepted.wait()
    await asyncio.gather(read, return_exceptions=True)
    server.close()
    await server.wait_closed()


def test_addresses_of_ids() -> None:
    assert address_of_id("host-1:3181") == ("host-1", 3181)
    for bad in ("name", ":1", "host:", "host:x", "host:70000"):
        assert address_of_id(bad) is None


def test_registrations_that_say_nothing() -> None:
    assert decode_service_info(b"") == decode_service_info(b"\xff\xff") == []
    endpoints = [Endpoint(id="bookie", host="h", port=1, auth=("a",), extensions=("tls",))]
    assert decode_service_info(encode_service_info(endpoints)) == endpoints


def test_a_registration_may_name_a_machine() -> None:
    endpoints = [Endpoint(id="bookie", host="h", port=1)]
    registration = encode_service_info(endpoints, {MACHINE_PROPERTY: "here"})
    assert machine_of(registration) == "here"
    assert decode_service_info(registration) == endpoints
    assert machine_of(encode_service_info(endpoints)) == machine_of(b"") == machine_of(b"\xff\xff") == ""


async def test_machines_are_followed_and_known_of_bookies_that_are_gone(
    store: MemoryMetadataStore, bookies: TcpBookieConnections
) -> None:
    def registration(machine: str) -> bytes:
        return encode_service_info([Endpoint(id="bookie", host="h", port=1)], {MACHINE_PROPERTY: machine})

    for path, machine in (("b2:3181", "one"), ("readonly/b3:3181", "one"), ("b4:3181", "two")):
        await store.put(f"/ledgers/available/{path}", registration(machine), ephemeral=True)
    await bookies.look_again()
    assert bookies.places().machines == {"b2:3181": "one", "b3:3181": "one", "b4:3181": "two"}
    await store.put("/bookies", b"no JSON")
    await store.delete("/ledgers/available/readonly/b3:3181")
    await store.delete("/ledgers/available/b4:3181")
    await store.put("/ledgers/available/b4:3181", encode_service_info([]), ephemeral=True)
    await bookies.look_again()
    assert bookies.places().machines == {"b2:3181": "one", "b3:3181": "one"}


async def test_places_are_followed(
    store: MemoryMetadataStore, bookies: TcpBookieConnections, caplog: pytest.LogCaptureFixture
) -> None:
    async def until_rack(rack: str) -> None:
        async with asyncio.timeout(30):
            while bookies.places().rack_of("b1:3181") != rack:
                await asyncio.sleep(0.001)

    await until_rack("/default-rack")
    await store.put("/bookies", b'{"default": {"b1:3181": {"rack": "/east/one"}}}')
    await until_rack("/east/one")
    await store.put("/bookies", b"no JSON")
    async with asyncio.timeout(30):
        while "stay as they were" not in caplog.text:
            await asyncio.sleep(0.001)
    assert bookies.places().rack_of("b1:3181") == "/east/one"
    await store.delete("/bookies")
    await until_rack("/default-rack")
