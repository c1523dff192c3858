"""Against real control ports with small services behind them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from magnetar.balance.model import BundleLoad
from magnetar.control.client import BookieControl
from magnetar.control.errors import ControlRefused, ControlUnavailable, RefusalReason
from magnetar.control.generated import bookie_pb2, broker_pb2
from magnetar.control.generated.bookie_pb2_grpc import BookieServicer, add_BookieServicer_to_server
from magnetar.control.generated.broker_pb2_grpc import BrokerServicer, add_BrokerServicer_to_server
from magnetar.control.server import ControlServer, ControlService
from magnetar.control.settings import ControlSettings
from magnetar.core.bundle import BundleName
from magnetar.operator.control import calls as module
from magnetar.operator.control.calls import ControlCalls
from magnetar.operator.plan.facts import BookieFacts, BrokerFacts, EnsembleFacts, LostBookieFacts, ZookeeperFacts
from magnetar.operator.resources.cluster import BundleMove
from operator_fakes.small_kubernetes import SettableClock

TOKEN = "secret"
BUNDLE = "public/default/0x00000000_0x40000000"


class SmallBookie(BookieServicer):
    def __init__(self) -> None:
        self.calls: list[str] = []
        self.answers = asyncio.Event()
        self.answers.set()

    async def GetStorageState(self, request: Any, context: Any) -> bookie_pb2.StorageState:  # noqa: N802
        await self.answers.wait()
        directory = bookie_pb2.Directory
        return bookie_pb2.StorageState(
            bookie_id="b1:3181",
            running=True,
            read_only=True,
            read_only_reasons=["full"],
            ledgers=7,
            directories=[
                directory(kind="journal", total_bytes=100, free_bytes=1),
                directory(kind="ledgers", total_bytes=1000, free_bytes=250),
                directory(kind="ledgers", total_bytes=1000, free_bytes=900),
                directory(kind="ledgers"),
            ],
            limbo=bookie_pb2.Limbo(in_limbo=True, ledgers=5, ledgers_unhealed=2, entries_lost=40),
        )

    async def GetDrain(self, request: Any, context: Any) -> bookie_pb2.Drain:  # noqa: N802
        blockers = [bookie_pb2.DrainBlocker(ledger_id=3, reason="too few bookies")]
        return bookie_pb2.Drain(
            step=bookie_pb2.DRAIN_STEP_REPLICATE,
            ledgers_total=9,
            ledgers_left=4,
            bytes_per_second=12.6,
            blockers=blockers,
        )

    async def StartDrain(self, request: Any, context: Any) -> bookie_pb2.Drain:  # noqa: N802
        self.calls.append("StartDrain")
        return bookie_pb2.Drain()

    async def CancelDrain(self, request: Any, context: Any) -> bookie_pb2.Drain:  # noqa: N802
        raise ControlRefused(RefusalReason.FAILED_PRECONDITION, "the cookie is gone")

    async def GetAutoRecovery(self, request: Any, context: Any) -> bookie_pb2.AutoRecovery:  # noqa: N802
        return bookie_pb2.AutoRecovery(ledgers_left=11)

    async def GetLostBookie(self, request: Any, context: Any) -> bookie_pb2.LostBookie:  # noqa: N802
        return bookie_pb2.LostBookie(bookie_id=request.bookie_id, has_cookie=True, ledgers_left=2)

    async def RetireLostBookie(self, request: Any, context: Any) -> bookie_pb2.LostBookie:  # noqa: N802
        self.calls.append(f"RetireLostBookie {request.bookie_id}")
        return bookie_pb2.LostBookie(bookie_id=request.bookie_id)


class SmallBroker(BrokerServicer):
    def __init__(self) -> None:
        self.calls: list[str] = []

    async def GetLargestEnsemble(self, request: Any, context: Any) -> broker_pb2.LargestEnsemble:  # noqa: N802
        return broker_pb2.LargestEnsemble(ensemble_size=4, wanted_by="namespace a/b")

    async def GetLoadReport(self, request: Any, context: Any) -> broker_pb2.LoadReport:  # noqa: N802
        return broker_pb2.LoadReport(
            broker_id="broker-a:8080",
            registered=True,
            leading=True,
            bundles=2,
            started_ms=5,
            usages=broker_pb2.ResourceUsages(cpu=20.4, memory=61.7),
        )

    async def GetDrain(self, request: Any, context: Any) -> broker_pb2.BrokerDrain:  # noqa: N802
        return broker_pb2.BrokerDrain(
            step=broker_pb2.BROKER_DRAIN_STEP_RUNNING,
            bundles_left=1,
            blockers=[broker_pb2.BrokerDrainBlocker(bundle=BUNDLE, reason="busy")],
        )

    async def Drain(self, request: Any, context: Any) -> AsyncIterator[broker_pb2.BrokerDrain]:  # noqa: N802
        self.calls.append("Drain")
        yield broker_pb2.BrokerDrain()
        await asyncio.sleep(60)

    async def CancelDrain(self, request: Any, context: Any) -> broker_pb2.BrokerDrain:  # noqa: N802
        self.calls.append("CancelDrain")
        return broker_pb2.BrokerDrain()

    async def ListBundles(self, request: Any, context: Any) -> broker_pb2.ListBundlesResponse:  # noqa: N802
        return broker_pb2.ListBundlesResponse(
            bundles=[broker_pb2.OwnedBundle(bundle=BUNDLE, topics=3, msg_rate_in=1.5, msg_throughput_out=9)]
        )

    async def GetDecisions(self, request: Any, context: Any) -> broker_pb2.Decisions:  # noqa: N802
        decision = broker_pb2.BalanceDecision
        return broker_pb2.Decisions(
            decisions=[
                decision(kind="split", bundle=BUNDLE, broker_id="a", reason="hot", decided_ms=1_000),
                decision(
                    kind="unload",
                    bundle=BUNDLE,
                    broker_id="a",
                    destination_broker_id="b",
                    reason="busy",
                    decided_ms=2_000,
                    outcome="failed",
                    error="gone",
                ),
            ]
        )

    async def GetDriver(self, request: Any, context: Any) -> broker_pb2.Driver:  # noqa: N802
        return broker_pb2.Driver(driver="control")

    async def SetDriver(self, request: Any, context: Any) -> broker_pb2.Driver:  # noqa: N802
        self.calls.append(f"SetDriver {request.driver}")
        return broker_pb2.Driver(driver=request.driver)

    async def TransferBundle(self, request: Any, context: Any) -> broker_pb2.TransferBundleResponse:  # noqa: N802
        self.calls.append(f"TransferBundle {request.bundle} {request.destination_broker_id}")
        return broker_pb2.TransferBundleResponse()

    async def SplitBundle(self, request: Any, context: Any) -> broker_pb2.SplitBundleResponse:  # noqa: N802
        self.calls.append(f"SplitBundle {request.bundle} {request.algorithm} {list(request.boundaries)}")
        return broker_pb2.SplitBundleResponse()


@pytest.fixture
def bookie() -> SmallBookie:
    return SmallBookie()


@pytest.fixture
def broker() -> SmallBroker:
    return SmallBroker()


@pytest.fixture
async def server(bookie: SmallBookie, broker: SmallBroker) -> AsyncIterator[ControlServer]:
    found = ControlServer(ControlSettings(host="127.0.0.1", token=TOKEN, stop_grace_seconds=0))
    services = [
        ControlService("magnetar.control.v1.Bookie", lambda into: add_BookieServicer_to_server(bookie, into)),
        ControlService("magnetar.control.v1.Broker", lambda into: add_BrokerServicer_to_server(broker, into)),
    ]
    await found.start(services)
    yield found
    await found.close()


@pytest.fixture
def address(server: ControlServer) -> str:
    return f"127.0.0.1:{server.port}"


@pytest.fixture
def clock() -> SettableClock:
    return SettableClock()


@pytest.fixture
async def calls(clock: SettableClock, server: ControlServer) -> AsyncIterator[ControlCalls]:
    found = ControlCalls(clock)
    yield found
    await found.close()


async def test_a_bookie(calls: ControlCalls, address: str, bookie: SmallBookie) -> None:
    assert await calls.bookie(address, TOKEN) == BookieFacts(
        bookie_id="b1:3181",
        writable=False,
        read_only_reasons=("full",),
        used_bytes=850,
        total_bytes=2000,
        disk_usage_percent=75,
        ledgers=7,
        drain="Replicate",
        ledgers_total=9,
        ledgers_left=4,
        bytes_per_second=13,
        blockers=("ledger 3: too few bookies",),
        limbo_ledgers=5,
        limbo_ledgers_unhealed=2,
        limbo_entries_lost=40,
    )
    await calls.start_bookie_drain(address, TOKEN)
    assert await calls.under_replicated_ledgers(address, TOKEN) == 11
    lost = LostBookieFacts(bookie_id="b2:3181", registered=False, has_cookie=True, ledgers_left=2)
    assert await calls.lost_bookie(address, TOKEN, "b2:3181") == lost
    assert not (await calls.retire_lost_bookie(address, TOKEN, "b2:3181")).has_cookie
    assert bookie.calls == ["StartDrain", "RetireLostBookie b2:3181"]


async def test_a_broker(calls: ControlCalls, address: str, broker: SmallBroker) -> None:
    assert await calls.largest_ensemble(address, TOKEN) == EnsembleFacts(size=4, wanted_by="namespace a/b")
    assert await calls.broker(address, TOKEN) == BrokerFacts(
        broker_id="broker-a:8080",
        registered=True,
        leading=True,
        bundles=2,
        load_percent=62,
        drain="Running",
        bundles_left=1,
        blockers=(f"{BUNDLE}: busy",),
    )
    await calls.start_broker_drain(address, TOKEN)
    await calls.cancel_broker_drain(address, TOKEN)
    assert await calls.driver(address, TOKEN) == "control"
    await calls.set_driver(address, TOKEN, "leader")
    await calls.transfer_bundle(address, TOKEN, BUNDLE, "b")
    await calls.split_bundle(address, TOKEN, BUNDLE, algorithm="range_equally_divide", boundaries=(1, 2))
    assert broker.calls == [
        "Drain",
        "CancelDrain",
        "SetDriver leader",
        f"TransferBundle {BUNDLE} b",
        f"SplitBundle {BUNDLE} range_equally_divide [1, 2]",
    ]


async def test_decisions_are_moves_the_latest_first(calls: ControlCalls, address: str) -> None:
    assert await calls.moves(address, TOKEN) == [
        BundleMove(
            time="1970-01-01T00:00:02Z",
            kind="unload",
            bundle=BUNDLE,
            source="a",
            destination="b",
            reason="busy; it failed: gone",
        ),
        BundleMove(time="1970-01-01T00:00:01Z", kind="split", bundle=BUNDLE, source="a", reason="hot"),
    ]


async def test_the_load_of_all_brokers_that_answer(calls: ControlCalls, address: str, clock: SettableClock) -> None:
    found = await calls.load_snapshot([address, "127.0.0.1:1"], TOKEN)
    assert found.now_ms == clock.now_ms()
    (load,) = found.brokers.values()
    assert (load.broker_id, round(load.usages.memory, 1), load.draining) == ("broker-a:8080", 61.7, True)
    expected = BundleLoad(topics=3, msg_rate_in=1.5, msg_throughput_out=9)
    assert dict(load.bundles) == {BundleName.parse(BUNDLE): expected}
    assert dict(found.bundle_counts) == {"public/default": 1}


async def test_refusals(calls: ControlCalls, address: str) -> None:
    with pytest.raises(ControlRefused, match="cookie is gone"):
        await calls.cancel_bookie_drain(address, TOKEN)
    with pytest.raises(ControlRefused):
        await calls.bookie(address, "another")


async def test_one_that_hangs_is_given_up_and_dialled_anew(
    calls: ControlCalls, address: str, bookie: SmallBookie, monkeypatch: pytest.MonkeyPatch
) -> None:
    bookie.answers.clear()
    key = (address, TOKEN)
    with pytest.raises(ControlUnavailable, match="no answer within"):
        async with calls._line(address, TOKEN, 0.05) as channel:
            await BookieControl(channel).storage_state()
    assert key not in calls._lines
    bookie.answers.set()
    assert (await calls.bookie(address, TOKEN)).ledgers == 7
    assert key in calls._lines


async def test_one_that_is_not_there(calls: ControlCalls) -> None:
    with pytest.raises(ControlUnavailable):
        await calls.bookie("127.0.0.1:1", TOKEN)
    assert not calls._lines


async def test_channels_are_kept_while_they_are_used_and_no_longer(
    calls: ControlCalls, address: str, clock: SettableClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    await calls.driver(address, TOKEN)
    kept = calls._lines[address, TOKEN]
    await calls.driver(address, TOKEN)
    assert calls._lines[address, TOKEN] is kept
    clock.advance(module.CHANNEL_IDLE_SECONDS + 1)
    with pytest.raises(ControlUnavailable):
        await calls.driver("127.0.0.1:1", TOKEN)
    assert not calls._lines
    monkeypatch.setattr(module, "CHANNELS_MAX", 1)
    await calls.driver(address, TOKEN)
    with pytest.raises(ControlRefused):
        await calls.driver(address, "another")
    assert list(calls._lines) == [(address, "another")]


async def serve_word(answer: bytes) -> asyncio.Server:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert await reader.readexactly(4) == b"srvr"
        writer.write(answer)
        writer.close()

    return await asyncio.start_server(serve, "127.0.0.1", 0)


async def test_zookeeper(calls: ControlCalls) -> None:
    async with await serve_word(b"Zookeeper version: 3.9\nOutstanding: 0\nMode: follower\nNode count: 5\n") as server:
        address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        assert await calls.zookeeper(address) == ZookeeperFacts(mode="follower")


async def test_a_zookeeper_that_does_not_serve(calls: ControlCalls) -> None:
    async with await serve_word(b"This ZooKeeper instance is not currently serving requests\n") as server:
        with pytest.raises(ControlUnavailable, match="not currently serving"):
            await calls.zookeeper(f"127.0.0.1:{server.sockets[0].getsockname()[1]}")
    with pytest.raises(ControlUnavailable):
        await calls.zookeeper("127.0.0.1:1")
