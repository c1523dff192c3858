"""Connections between simulated hosts."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest
from magnetar.sim.disk import Platter
from magnetar.sim.loop import SimulatedLoop
from magnetar.sim.trace import Trace

from e2e.simulation.network import Network, NetworkSettings
from e2e.simulation.node import SimulatedHost

PORT = 7


class Peer(asyncio.Protocol):
    """Keeps what it hears."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        self.data = b""
        self.chunks = 0
        self.lost: list[Exception | None] = []
        self.writable = True

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.data += data
        self.chunks += 1

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost.append(exc)

    def pause_writing(self) -> None:
        self.writable = False

    def resume_writing(self) -> None:
        self.writable = True

    def write(self, data: bytes) -> None:
        assert self.transport is not None
        self.transport.write(data)


class Stage:
    """Two hosts, and a server on one of them."""

    def __init__(self, seed: int = 1) -> None:
        self.trace = Trace()
        self.loop = SimulatedLoop(random.Random(seed), self.trace, steps_max=100_000, seconds_max=10_000.0)
        self.network = Network(self.loop, random.Random(seed), NetworkSettings(split_share=0.5))
        self.loop.wires = self.network
        self.nodes = {name: self._node(name) for name in ("a", "b")}
        self.accepted: list[Peer] = []

    def _node(self, name: str) -> SimulatedHost:
        return SimulatedHost(name, self.loop, self.network, Platter(name, random.Random(1), self.trace))

    def accept(self) -> Peer:
        self.accepted.append(Peer())
        return self.accepted[-1]

    async def serve(self) -> None:
        self.nodes["b"].start()
        self.nodes["b"].run(self.loop.create_server(self.accept, "b", PORT))
        await asyncio.sleep(0.01)

    async def on_a(self, work: Coroutine[Any, Any, Any]) -> Any:
        process = self.nodes["a"].process or self.nodes["a"].start()
        return await process.start(work)

    async def connect(self) -> Peer:
        _, protocol = await self.on_a(self.loop.create_connection(Peer, "b", PORT))
        assert isinstance(protocol, Peer)
        return protocol

    def play(self, scene: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self.loop.run(scene())
        assert self.loop.problems == []


@pytest.fixture
def stage() -> Iterator[Stage]:
    made = Stage()
    yield made
    made.loop.bury()


def test_bytes_arrive_in_order_and_in_pieces(stage: Stage) -> None:
    async def scene() -> None:
        await stage.serve()
        peer = await stage.connect()
        for number in range(100):
            peer.write(b"%03d" % number)
        await asyncio.sleep(1.0)
        server = stage.accepted[0]
        assert server.data == b"".join(b"%03d" % number for number in range(100))
        assert server.chunks > 100
        server.write(b"answer")
        await asyncio.sleep(1.0)
        assert peer.data == b"answer"

    stage.play(scene)


def test_a_port_that_nobody_listens_on_refuses(stage: Stage) -> None:
    async def scene() -> None:
        stage.nodes["b"].start()
        with pytest.raises(ConnectionRefusedError):
            await stage.connect()

    stage.play(scene)


def test_a_port_that_is_taken_refuses_until_it_is_served(stage: Stage) -> None:
    async def run() -> None:
        stage.nodes["b"].start()
        servers: list[Any] = []

        async def take() -> None:
            servers.append(await stage.loop.create_server(stage.accept, "b", PORT, start_serving=False))

        stage.nodes["b"].run(take())
        stage.nodes["a"].start()
        await asyncio.sleep(0.01)
        with pytest.raises(ConnectionRefusedError):
            await stage.on_a(stage.loop.create_connection(Peer, "b", PORT))
        await servers[0].start_serving()
        await stage.on_a(stage.loop.create_connection(Peer, "b", PORT))
        assert len(stage.accepted) == 1

    stage.loop.run(run())


def test_a_host_that_is_down_does_not_answer(stage: Stage) -> None:
    async def scene() -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(5.0):
                await stage.connect()

    stage.play(scene)


def test_a_blocked_path_holds_bytes_back_until_it_heals(stage: Stage) -> None:
    async def scene() -> None:
        await stage.serve()
        peer = await stage.connect()
        heal = stage.network.block(["a"], ["b"])
        peer.write(b"held")
        stage.accepted[0].write(b"heard")
        await asyncio.sleep(30.0)
        assert stage.accepted[0].data == b""
        assert peer.data == b"heard"
        peer.write(b" back")
        heal()
        await asyncio.sleep(1.0)
        assert stage.accepted[0].data == b"held back"

    stage.play(scene)


@pytest.mark.parametrize("seed", range(20))
def test_what_was_held_back_is_not_overtaken_by_what_is_on_its_way(seed: int) -> None:
    stage = Stage(seed)

    async def scene() -> None:
        await stage.serve()
        peer = await stage.connect()
        heal = stage.network.block(["b"], ["a"])
        written = b""
        for number in range(200):
            if number % 3 == 0:
                heal = stage.network.block(["a"], ["b"])
            chunk = b"%d " % number
            peer.write(chunk)
            written += chunk
            await asyncio.sleep(0.0002)
            if number % 3 == 2:
                heal()
        heal()
        await asyncio.sleep(1.0)
        assert stage.accepted[0].data == written

    stage.play(scene)
    stage.loop.bury()


def test_a_killed_process_closes_its_connections_and_what_it_wrote_arrives(stage: Stage) -> None:
    async def scene() -> None:
        await stage.serve()
        peer = await stage.connect()
        stage.accepted[0].write(b"last words")
        stage.nodes["b"].kill()
        await asyncio.sleep(1.0)
        assert peer.data == b"last words"
        assert peer.lost == [None]
        assert stage.accepted[0].lost == []

    stage.play(scene)


def test_a_host_without_power_is_silent_until_it_is_up_again(stage: Stage) -> None:
    async def scene() -> None:
        await stage.serve()
        peer = await stage.connect()
        stage.nodes["b"].lose_power()
        peer.write(b"anybody?")
        await asyncio.sleep(60.0)
        assert peer.lost == []
        await stage.serve()
        await asyncio.sleep(1.0)
        assert len(peer.lost) == 1
        assert isinstance(peer.lost[0], ConnectionResetError)

    stage.play(scene)


def test_a_writer_who_was_idle_hears_of_the_reset_when_it_writes(stage: Stage) -> None:
    async def scene() -> None:
        await stage.serve()
        peer = await stage.connect()
        stage.nodes["b"].lose_power()
        await stage.serve()
        await asyncio.sleep(60.0)
        assert peer.lost == []
        peer.write(b"anybody?")
        await asyncio.sleep(1.0)
        assert isinstance(peer.lost[0], ConnectionResetError)

    stage.play(scene)


def test_a_reset_ends_both_sides(stage: Stage) -> None:
    async def scene() -> None:
        await stage.serve()
        peer = await stage.connect()
        assert stage.network.reset("b", "a") == 1
        await asyncio.sleep(1.0)
        assert isinstance(peer.lost[0], ConnectionResetError)
        assert isinstance(stage.accepted[0].lost[0], ConnectionResetError)
        peer.write(b"too late")

    stage.play(scene)


def test_a_close_lets_what_was_written_through(stage: Stage) -> None:
    async def scene() -> None:
        await stage.serve()
        peer = await stage.connect()
        peer.write(b"good")
        peer.write(b"bye")
        assert peer.transport is not None
        peer.transport.close()
        await asyncio.sleep(1.0)
        assert stage.accepted[0].data == b"goodbye"
        assert (peer.lost, stage.accepted[0].lost) == ([None], [None])

    stage.play(scene)


def test_a_slow_reader_stops_the_writer(stage: Stage) -> None:
    async def scene() -> None:
        await stage.serve()
        peer = await stage.connect()
        await asyncio.sleep(0.1)
        server = stage.accepted[0]
        assert server.transport is not None
        server.transport.pause_reading()
        for _ in range(30):
            peer.write(bytes(10_000))
        assert not peer.writable
        await asyncio.sleep(10.0)
        assert server.data == b""
        assert not peer.writable
        server.transport.resume_reading()
        await asyncio.sleep(1.0)
        assert len(server.data) == 300_000
        assert peer.writable

    stage.play(scene)


def test_the_same_seed_gives_the_same_trace() -> None:
    def digest(seed: int) -> str:
        stage = Stage(seed)

        async def scene() -> None:
            await stage.serve()
            peer = await stage.connect()
            for number in range(50):
                peer.write(bytes([number]) * 100)
                await asyncio.sleep(0.001)
            await asyncio.sleep(1.0)

        stage.play(scene)
        stage.loop.bury()
        return stage.trace.digest

    assert digest(3) == digest(3)
    assert digest(3) != digest(4)
