"""What was read from a metadata store, read again after each change there."""

from __future__ import annotations

import asyncio

import pytest
from magnetar.core.errors import MagnetarError, PeerError
from magnetar.metadata import kept_current
from magnetar.metadata.kept_current import KeptCurrent
from magnetar.metadata.memory import MemoryMetadataStore
from magnetar.metadata.store import StoreUnavailable


@pytest.mark.parametrize("error", [StoreUnavailable("away"), PeerError("ZooKeeper refused a request: throttled")])
async def test_a_list_that_cannot_be_read_now_is_read_again(
    error: MagnetarError, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(kept_current, "RETRY_SECONDS", 0.01)
    store = MemoryMetadataStore()
    seen: list[list[str]] = []
    failures: list[MagnetarError] = []

    async def refresh() -> None:
        names = await store.children("/list")
        if failures:
            raise failures.pop()
        seen.append(names)

    kept = KeptCurrent(store, "names", refresh, lambda _: True)
    await kept.start()
    failures.append(error)
    await store.put("/list/one", b"")
    async with asyncio.timeout(30):
        while seen[-1] != ["one"]:
            await asyncio.sleep(0.005)
        assert f"the list of names cannot be read: {error}" in caplog.text
        await store.put("/list/two", b"")
        while seen[-1] != ["one", "two"]:
            await asyncio.sleep(0.005)
    await kept.stop()
    await store.close()
