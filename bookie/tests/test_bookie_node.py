"""A bookie with all that it does beside storing, in one process."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from magnetar.bookie import app
from magnetar.bookie.autorecovery.replication.settings import ReplicationSettings
from magnetar.bookie.autorecovery.settings import AutoRecoverySettings
from magnetar.bookie.cookie import COOKIES_PATH
from magnetar.bookie.disk_watch import WriteMode
from magnetar.bookie.drain.paths import intention_path
from magnetar.bookie.drain.service import DrainService, ModeSwitch
from magnetar.bookie.drain.state import Intention, Phase, encode_intention
from magnetar.bookie.node import NodeSettings, RunningNode, start_node
from magnetar.bookie.settings import BookieSettings
from magnetar.core.clock import SystemClock
from magnetar.core.errors import PeerError
from magnetar.ledger.ledger_paths import AVAILABLE_PATH, READ_ONLY_PATH
from magnetar.metadata.memory import MemoryMetadataStore
from magnetar.metadata.store import Notification, Stat

BOOKIE = "127.0.0.1:3181"


async def start(settings: BookieSettings, store: MemoryMetadataStore) -> RunningNode:
    node = NodeSettings(bookie=settings, recovery_enabled=False, http=None, control=None)
    return await start_node(node, store, SystemClock())


def intention(phase: Phase, cookie_created_ms: int) -> bytes:
    leaving = Intention(bookie_id=BOOKIE, phase=phase, started_ms=1, cookie_created_ms=cookie_created_ms)
    return encode_intention(leaving)


@pytest.mark.parametrize(("own", "in_force"), [(0, 1_000), (500, 500), (2_000, 2_000)])
async def test_drains_may_have_a_rate_of_their_own(
    settings: BookieSettings, store: MemoryMetadataStore, own: int, in_force: int
) -> None:
    recovery = AutoRecoverySettings(replication=ReplicationSettings(bytes_per_second=1_000, entry_batch_size=7))
    node = NodeSettings(
        bookie=settings,
        recovery=recovery,
        recovery_enabled=False,
        drain_bytes_per_second=own,
        http=None,
        control=None,
    )
    running = await start_node(node, store, SystemClock())
    assert running.recovery is not None
    assert running.drain_parts is not None
    replicator, shared = running.drain_parts.replicator, running.recovery.daemon.replicator
    assert (replicator.settings.bytes_per_second, replicator.settings.entry_batch_size) == (in_force, 7)
    assert (replicator is shared) == (own == 0)
    assert replicator.counters is shared.counters
    assert shared.settings.bytes_per_second == 1_000
    await running.close()
    await store.close()


@pytest.mark.parametrize("phase", [Phase.DRAINING, Phase.REMOVING])
async def test_a_bookie_whose_drain_goes_on_is_never_seen_as_writable(
    settings: BookieSettings, store: MemoryMetadataStore, phase: Phase
) -> None:
    await (await start(settings, store)).close()
    cookie = await store.get(f"{COOKIES_PATH}/{BOOKIE}")
    assert cookie is not None
    await store.put(intention_path(BOOKIE), intention(phase, cookie.stat.created_ms))
    seen: list[Notification] = []
    store.watch(seen.append)
    node = await start(settings, store)
    assert await store.exists(f"{READ_ONLY_PATH}/{BOOKIE}")
    assert not [heard for heard in seen if heard.path == f"{AVAILABLE_PATH}/{BOOKIE}"]
    await node.close()
    await store.close()


async def test_a_bookie_whose_drain_nobody_can_read_is_read_only_until_it_is_taken_back(
    settings: BookieSettings, store: MemoryMetadataStore, caplog: pytest.LogCaptureFixture
) -> None:
    await (await start(settings, store)).close()
    await store.put(intention_path(BOOKIE), b"{")
    seen: list[Notification] = []
    store.watch(seen.append)
    node = await start(settings, store)
    assert await store.exists(f"{READ_ONLY_PATH}/{BOOKIE}")
    assert not [heard for heard in seen if heard.path == f"{AVAILABLE_PATH}/{BOOKIE}"]
    assert f"bookie {BOOKIE} stays read-only: the intention to drain a bookie cannot be read" in caplog.text
    drains = DrainService(node.drain_parts, BOOKIE, ModeSwitch(node.bookie.mode)) if node.drain_parts else None
    assert drains is not None
    with pytest.raises(PeerError):
        await drains.start_drain()
    assert "take the drain back" in drains.drain().blockers[0][1]
    await drains.cancel_drain()
    async with asyncio.timeout(30):
        while not await store.exists(f"{AVAILABLE_PATH}/{BOOKIE}"):
            await asyncio.sleep(0.001)
    assert not await store.exists(intention_path(BOOKIE))
    await node.close()
    await store.close()


async def test_a_bookie_that_turns_read_only_while_it_registers_is_registered_so(
    settings: BookieSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    modes: list[WriteMode] = []

    class KeptMode(WriteMode):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            modes.append(self)

    class RegistrationStore(MemoryMetadataStore):
        async def put(self, path: str, *arguments: Any, **more: Any) -> Stat:
            if path == f"{AVAILABLE_PATH}/{BOOKIE}":
                modes[0].add_reason("a disk has failed")
            return await super().put(path, *arguments, **more)

    monkeypatch.setattr(app, "WriteMode", KeptMode)
    store = RegistrationStore()
    bookie = await app.start_bookie(settings, store, SystemClock())
    async with asyncio.timeout(30):
        while await store.exists(f"{AVAILABLE_PATH}/{BOOKIE}"):
            await asyncio.sleep(0.001)
    assert await store.exists(f"{READ_ONLY_PATH}/{BOOKIE}")
    await bookie.close()
    await store.close()


async def test_a_drain_that_is_cancelled_during_the_start_leaves_the_bookie_writable(
    settings: BookieSettings, store: MemoryMetadataStore
) -> None:
    class CancelledStore(MemoryMetadataStore):
        async def exists(self, path: str, *, watch: bool = True) -> bool:
            # The first look after the intention was read: that of the registration.
            if await super().exists(intention_path(BOOKIE)) and path.startswith(AVAILABLE_PATH):
                await self.delete(intention_path(BOOKIE))
            return await super().exists(path)

    cancelled = CancelledStore()
    await cancelled.put(intention_path(BOOKIE), intention(Phase.DRAINING, 1))
    node = await start(settings, cancelled)
    async with asyncio.timeout(30):
        while not await cancelled.exists(f"{AVAILABLE_PATH}/{BOOKIE}"):
            await asyncio.sleep(0.001)
    assert not node.bookie.mode.read_only
    await node.close()
    await cancelled.close()
    await store.close()
