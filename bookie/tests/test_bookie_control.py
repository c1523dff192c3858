"""The bookie's gRPC service over a real port, through its client: health, reflection, streams, errors, TLS, token."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Final

import grpc
import grpc.aio
import pytest
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc  # type: ignore[import-untyped]
from magnetar.bookie.admin.control import SERVICE, serve_bookie
from magnetar.bookie.admin.testing import DAMAGED, FakeOperations
from magnetar.bookie.operations import BookieDrainStep, LostBookie, StoredLedger, UnderreplicatedEntry
from magnetar.control import server as control_server
from magnetar.control.client import BookieControl
from magnetar.control.errors import ControlRefused, ControlUnavailable, RefusalReason
from magnetar.control.generated import bookie_pb2 as messages
from magnetar.control.server import ControlServer
from magnetar.control.settings import ControlClientTls, ControlServerTls, ControlSettings
from magnetar.core.errors import Misuse, SettingError
from magnetar.metadata.store import StoreUnavailable

HOST: Final = "127.0.0.1"


@pytest.fixture
def operations() -> FakeOperations:
    return FakeOperations()


@asynccontextmanager
async def serving(operations: FakeOperations, settings: ControlSettings | None = None) -> AsyncIterator[ControlServer]:
    server = ControlServer(settings or ControlSettings(host=HOST, stop_grace_seconds=0.5))
    await serve_bookie(server, operations.all())
    try:
        yield server
    finally:
        await server.close()


@pytest.fixture
async def server(operations: FakeOperations) -> AsyncIterator[ControlServer]:
    async with serving(operations) as server:
        yield server


@pytest.fixture
async def bookie(server: ControlServer) -> AsyncIterator[BookieControl]:
    async with BookieControl.to(f"{HOST}:{server.port}") as bookie:
        yield bookie


async def test_storage_state(bookie: BookieControl, operations: FakeOperations) -> None:
    state = await bookie.storage_state()
    assert (state.bookie_id, state.running, state.read_only, state.entries) == ("127.0.0.1:3181", True, False, 17)
    assert [(place.directory, place.free_bytes) for place in state.directories] == [
        ("/data/ledgers/current", 250),
        ("/data/journal", 900),
    ]
    assert state.journal_marks[0].offset == 4202496
    state = await bookie.set_read_only(read_only=True)
    assert (state.read_only, state.read_only_manual, operations.now.read_only) == (True, True, True)


async def test_half_connections_have_a_part_of_the_files(
    operations: FakeOperations, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control_server, "CONNECTIONS_MAX", 8)
    async with serving(operations) as server:
        halves = [await asyncio.open_connection(HOST, server.port) for _ in range(20)]
        reads = [asyncio.create_task(reader.read()) for reader, _ in halves]
        async with asyncio.timeout(30):
            while sum(read.done() for read in reads) < 12:
                await asyncio.sleep(0.01)
        for _, writer in halves:
            writer.close()
        await asyncio.gather(*reads, return_exceptions=True)
        assert await _running(server.port)


async def _running(port: int) -> bool:
    """What the bookie says of itself, as soon as it can be asked."""
    async with asyncio.timeout(30):
        while True:
            async with BookieControl.to(f"{HOST}:{port}") as bookie:
                try:
                    return (await bookie.storage_state()).running
                except ControlUnavailable:
                    await asyncio.sleep(0.05)


async def test_limbo_is_part_of_the_state(bookie: BookieControl, operations: FakeOperations) -> None:
    assert not (await bookie.storage_state()).limbo.in_limbo
    operations.lacks = DAMAGED
    limbo = (await bookie.storage_state()).limbo
    told = {field: getattr(limbo, field) for field in ("in_limbo", "since_ms", "ledgers", "ledgers_total")}
    assert told == {field: getattr(DAMAGED, field) for field in told}
    assert (limbo.ledgers_unhealed, limbo.entries_lost, limbo.entries_fetched) == (1, 40, 700)
    assert [(problem.ledger_id, problem.reason) for problem in limbo.problems] == list(DAMAGED.problems)
    assert list(limbo.damage) == list(DAMAGED.damage)


async def test_refusals_say_what_to_do(bookie: BookieControl, operations: FakeOperations) -> None:
    operations.now = replace(operations.now, read_only=True, read_only_forced=True)
    with pytest.raises(ControlRefused, match="take forceReadOnlyBookie out") as refused:
        await bookie.set_read_only(read_only=False)
    assert refused.value.reason is RefusalReason.FAILED_PRECONDITION
    operations.drain_state = replace(operations.drain_state, step=BookieDrainStep.DONE)
    with pytest.raises(ControlRefused, match="the cookie is removed: stop the bookie") as refused:
        await bookie.cancel_drain()
    assert refused.value.reason is RefusalReason.FAILED_PRECONDITION
    with pytest.raises(ControlRefused, match="interval_ms is 0") as refused:
        async for _ in bookie.watch_drain(interval_ms=1):
            pass
    assert refused.value.reason is RefusalReason.INVALID_ARGUMENT
    with pytest.raises(ControlRefused, match="page_size is 0"):
        _ = [ledger async for ledger in bookie.ledgers(page_size=99_999)]


async def test_an_unreachable_store_may_be_tried_again(bookie: BookieControl, operations: FakeOperations) -> None:
    operations.failure = StoreUnavailable("no answer from ZooKeeper")
    with pytest.raises(ControlUnavailable, match=r"no answer from ZooKeeper \(try again\)"):
        await bookie.auto_recovery()
    with pytest.raises(ControlUnavailable, match="no answer"):
        async for _ in bookie.watch_auto_recovery():
            pass


async def test_an_error_of_ours_is_told_and_logged(
    bookie: BookieControl, operations: FakeOperations, caplog: pytest.LogCaptureFixture
) -> None:
    operations.usages = [None]  # type: ignore[list-item]  # What a bug of ours may look like.
    with pytest.raises(ControlRefused, match="AttributeError") as refused:
        await bookie.storage_state()
    assert refused.value.reason is RefusalReason.INTERNAL
    assert "/magnetar.control.v1.Bookie/GetStorageState failed" in caplog.text


async def test_a_drain_is_watched_to_its_end(bookie: BookieControl, operations: FakeOperations) -> None:
    assert (await bookie.drain()).step == messages.DRAIN_STEP_NONE
    assert (await bookie.start_drain()).step == messages.DRAIN_STEP_READ_ONLY
    seen: list[tuple[int, int]] = []
    async for state in bookie.watch_drain(interval_ms=100):
        seen.append((state.step, state.ledgers_left))
        if state.step == messages.DRAIN_STEP_READ_ONLY:
            operations.drain_state = replace(
                operations.drain_state,
                step=BookieDrainStep.REPLICATE,
                ledgers_left=2,
                blockers=((7, "no bookie is free"),),
            )
        else:
            if state.blockers:
                assert (state.blockers[0].ledger_id, state.blockers[0].reason) == (7, "no bookie is free")
            operations.drain_state = replace(
                operations.drain_state, step=BookieDrainStep.DONE, ledgers_left=0, blockers=()
            )
    assert seen == [
        (messages.DRAIN_STEP_READ_ONLY, 5),
        (messages.DRAIN_STEP_REPLICATE, 2),
        (messages.DRAIN_STEP_DONE, 0),
    ]


async def test_a_lost_bookie_is_retired_step_by_step(bookie: BookieControl, operations: FakeOperations) -> None:
    def found(state: messages.LostBookie) -> tuple[str, bool, bool, int]:
        return state.bookie_id, state.registered, state.has_cookie, state.ledgers_left

    assert found(await bookie.lost_bookie("unknown:3181")) == ("unknown:3181", False, False, 0)
    lost = operations.lost["lost:3181"] = LostBookie(
        bookie_id="lost:3181", registered=True, has_cookie=True, ledgers_left=1
    )
    with pytest.raises(ControlRefused, match="is registered") as refused:
        await bookie.retire_lost_bookie("lost:3181")
    assert refused.value.reason is RefusalReason.FAILED_PRECONDITION
    operations.lost["lost:3181"] = replace(lost, registered=False)
    state = await bookie.retire_lost_bookie("lost:3181")
    assert found(state) == ("lost:3181", False, True, 0)
    assert state.waits_for == "AutoRecovery copies 0 ledgers that name it"
    assert found(await bookie.retire_lost_bookie("lost:3181")) == ("lost:3181", False, False, 0)
    assert found(await bookie.lost_bookie("lost:3181")) == ("lost:3181", False, False, 0)
    for wrong in ("", "a/b"):
        with pytest.raises(ControlRefused, match="is no bookie id") as refused:
            await bookie.retire_lost_bookie(wrong)
        assert refused.value.reason is RefusalReason.INVALID_ARGUMENT


async def test_ledgers_come_in_pages(bookie: BookieControl, operations: FakeOperations) -> None:
    operations.stored = [StoredLedger(ledger_id=at, fenced=at == 3, last_entry_id=at - 1) for at in range(2500)]
    everything = [ledger async for ledger in bookie.ledgers()]
    assert [ledger.ledger_id for ledger in everything] == list(range(2500))
    assert [ledger.ledger_id for ledger in everything if ledger.fenced] == [3]
    assert everything[0].last_entry_id == -1
    some = [ledger.ledger_id async for ledger in bookie.ledgers(after_ledger_id=9, count_max=5, page_size=2)]
    assert some == [10, 11, 12, 13, 14]
    assert [ledger.ledger_id async for ledger in bookie.ledgers(after_ledger_id=2499)] == []
    request = messages.ListLedgersRequest(page_size=1000)
    stub = bookie._stub
    assert [len(page.ledgers) async for page in stub.ListLedgers(request)] == [1000, 1000, 500]


async def test_collections(bookie: BookieControl, operations: FakeOperations) -> None:
    await bookie.collect_garbage()
    await bookie.collect_garbage(force_major=True, force_minor=False)
    assert operations.collected == [(None, None), (True, False)]


async def test_auto_recovery(bookie: BookieControl, operations: FakeOperations) -> None:
    operations.marked = [UnderreplicatedEntry(ledger_id=1, missing_replicas=("b:1",))]
    operations.recovery = replace(operations.recovery, bytes_per_second=12.5, current_ledger_ids=(1, 2))
    state = await bookie.auto_recovery()
    assert (state.enabled, state.auditor_bookie_id, state.ledgers_left) == (True, "127.0.0.1:3181", 1)
    assert (state.bytes_per_second, list(state.current_ledger_ids)) == (12.5, [1, 2])
    assert not (await bookie.enable_auto_recovery(enabled=False)).enabled
    assert (await bookie.enable_auto_recovery(enabled=True)).enabled
    async for state in bookie.watch_auto_recovery():
        assert state.ledgers_left == 1
        break


async def test_health(bookie: BookieControl, server: ControlServer) -> None:
    assert await bookie.channel.healthy()
    assert await bookie.channel.healthy(SERVICE)
    assert not await bookie.channel.healthy("magnetar.control.v1.Broker")
    await server.set_serving(SERVICE, serving=False)
    assert not await bookie.channel.healthy()
    assert not await bookie.channel.healthy(SERVICE)
    with pytest.raises(Misuse, match="none of this port's services"):
        await server.set_serving("other", serving=True)


async def test_reflection_names_the_services(bookie: BookieControl) -> None:
    request = reflection_pb2.ServerReflectionRequest(list_services="")
    stub = reflection_pb2_grpc.ServerReflectionStub(bookie.channel.channel)
    call = stub.ServerReflectionInfo(iter([request]))
    answer = await call.read()
    names = [service.name for service in answer.list_services_response.service]
    assert sorted(names) == [
        "grpc.health.v1.Health",
        "grpc.reflection.v1alpha.ServerReflection",
        "magnetar.control.v1.Bookie",
    ]
    call.cancel()


async def test_closing_ends_watches_at_once(operations: FakeOperations) -> None:
    settings = ControlSettings(host=HOST, stop_grace_seconds=30)
    async with serving(operations, settings) as server, BookieControl.to(f"{HOST}:{server.port}") as bookie:
        await bookie.start_drain()
        watch = bookie.watch_drain()
        assert (await anext(watch)).step == messages.DRAIN_STEP_READ_ONLY
        async with asyncio.timeout(30):
            await server.close()
        with pytest.raises(ControlUnavailable, match="the bookie is stopping"):
            await anext(watch)
        with pytest.raises(ControlUnavailable):
            await bookie.storage_state()


async def test_a_call_that_hangs_is_cut_off_after_the_grace(operations: FakeOperations) -> None:
    hangs = asyncio.Event()

    class Hanging(FakeOperations):
        async def set_read_only(self, *, read_only: bool) -> None:
            del read_only
            hangs.set()
            await asyncio.Event().wait()

    settings = ControlSettings(host=HOST, stop_grace_seconds=0.1)
    async with serving(Hanging(), settings) as server, BookieControl.to(f"{HOST}:{server.port}") as bookie:
        call = asyncio.ensure_future(bookie.set_read_only(read_only=True))
        await hangs.wait()
        async with asyncio.timeout(30):
            await server.close()
        with pytest.raises(ControlUnavailable):
            await call


async def test_a_token_is_asked_for_but_not_by_health(operations: FakeOperations) -> None:
    settings = ControlSettings(host=HOST, token="secret", stop_grace_seconds=0.1)
    async with serving(operations, settings) as server:
        address = f"{HOST}:{server.port}"
        async with BookieControl.to(address, token="secret") as bookie:
            assert (await bookie.storage_state()).running
        async with BookieControl.to(address) as bookie:
            assert await bookie.channel.healthy()
            with pytest.raises(ControlRefused, match="authorization: Bearer") as refused:
                await bookie.storage_state()
            assert refused.value.reason is RefusalReason.UNAUTHENTICATED
            with pytest.raises(ControlRefused, match="authorization: Bearer"):
                await anext(bookie.watch_drain())
            stub = reflection_pb2_grpc.ServerReflectionStub(bookie.channel.channel)
            call = stub.ServerReflectionInfo(iter([reflection_pb2.ServerReflectionRequest(list_services="")]))
            with pytest.raises(grpc.aio.AioRpcError, match="authorization: Bearer"):
                await call.read()
        async with BookieControl.to(address, token="wrong") as bookie:
            with pytest.raises(ControlRefused, match="the token is not"):
                await bookie.storage_state()


async def test_a_token_in_a_file_is_exchanged_while_the_port_is_open(
    operations: FakeOperations, tmp_path: Path
) -> None:
    file, another = tmp_path / "token", tmp_path / "another"
    file.write_text("first\n")
    settings = ControlSettings(host=HOST, token_file=file, stop_grace_seconds=0.1)
    async with serving(operations, settings) as server:
        address = f"{HOST}:{server.port}"
        async with BookieControl.to(address, token="first") as old, BookieControl.to(address, token="second") as new:
            assert (await old.storage_state()).running
            with pytest.raises(ControlRefused, match="the token is not"):
                await new.storage_state()
            another.write_text("second\n")
            another.replace(file)
            assert (await new.storage_state()).running
            with pytest.raises(ControlRefused, match="the token is not"):
                await old.storage_state()


def make_certificate(directory: Path) -> tuple[Path, Path]:
    """(certificate, key): an authority of its own, for the server name `bookie`."""
    certificate, key = directory / "tls.crt", directory / "tls.key"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    command += ["-days", "36500", "-subj", "/CN=bookie", "-addext", "subjectAltName=DNS:bookie"]
    subprocess.run([*command, "-keyout", str(key), "-out", str(certificate)], check=True, capture_output=True)
    return certificate, key


async def test_tls_and_a_renewed_certificate(operations: FakeOperations, tmp_path: Path) -> None:
    certificate, key = make_certificate(tmp_path)
    settings = ControlSettings(
        host=HOST, tls=ControlServerTls(certificate_file=certificate, key_file=key), stop_grace_seconds=0.1
    )
    async with serving(operations, settings) as server:
        address = f"{HOST}:{server.port}"
        for _ in range(2):
            tls = ControlClientTls(authority_file=certificate, server_name="bookie")
            async with BookieControl.to(address, tls=tls) as bookie:
                assert (await bookie.storage_state()).running
            make_certificate(tmp_path)


async def test_a_client_without_the_wanted_certificate_is_not_served(
    operations: FakeOperations, tmp_path: Path
) -> None:
    certificate, key = make_certificate(tmp_path)
    server_tls = ControlServerTls(certificate_file=certificate, key_file=key, client_authority_file=certificate)
    settings = ControlSettings(host=HOST, tls=server_tls, stop_grace_seconds=0.1)
    async with serving(operations, settings) as server:
        address = f"{HOST}:{server.port}"
        tls = ControlClientTls(authority_file=certificate, server_name="bookie")
        async with BookieControl.to(address, tls=tls) as bookie:
            with pytest.raises(ControlUnavailable):
                await bookie.storage_state()
        tls = replace(tls, certificate_file=certificate, key_file=key)
        async with BookieControl.to(address, tls=tls) as bookie:
            assert (await bookie.storage_state()).running


async def test_what_cannot_be_served_is_said(operations: FakeOperations, tmp_path: Path, server: ControlServer) -> None:
    taken = ControlServer(ControlSettings(host=HOST, port=server.port))
    with pytest.raises(OSError, match="cannot be had"):
        await serve_bookie(taken, operations.all())
    missing = ControlServerTls(certificate_file=tmp_path / "none", key_file=tmp_path / "none")
    with pytest.raises(SettingError, match="cannot be read"):
        await serve_bookie(ControlServer(ControlSettings(host=HOST, tls=missing)), operations.all())
    with pytest.raises(SettingError, match="ASCII"):
        ControlSettings(token="é")


async def test_nobody_there() -> None:
    async with BookieControl.to(f"{HOST}:1") as bookie:
        with pytest.raises(ControlUnavailable):
            await bookie.storage_state()


def test_settings_load_no_grpc() -> None:
    code = (
        "import sys, magnetar.control.settings, magnetar.control.errors\n"
        "print([name for name in ('grpc', 'google.protobuf') if name in sys.modules])"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout == "[]\n"
