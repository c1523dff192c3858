"""A bookie refuses to start when it is not who the cluster thinks it is."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from magnetar.bookie.app import RunningBookie, start_bookie
from magnetar.bookie.cookie import CookieProblem, InvalidCookie, decode_cookie, encode_cookie
from magnetar.bookie.settings import BookieSettings
from magnetar.core.clock import SystemClock
from magnetar.core.errors import SettingError
from magnetar.metadata.memory import MemoryMetadataStore
from magnetar.metadata.store import Stat
from magnetar.wire.bookkeeper.generated.bookie_service_info_pb2 import BookieServiceInfoFormat

StartBookie = Callable[..., Awaitable[RunningBookie]]
COOKIE = "/ledgers/cookies/127.0.0.1:3181"
AVAILABLE = "/ledgers/available/127.0.0.1:3181"


def test_the_text_is_bookkeepers(settings: BookieSettings) -> None:
    content = encode_cookie(settings, "host:3181", "id-1").decode()
    assert content.splitlines() == [
        "5",
        'bookieHost: "host:3181"',
        f'journalDir: "{settings.journal_directories[0]}"',
        f'ledgerDirs: "1\\t{settings.ledger_directories[0]}"',
        'instanceId: "id-1"',
    ]
    assert decode_cookie(content.encode()).bookieHost == "host:3181"


@pytest.mark.parametrize("content", [b"", b"5\nnonsense", b"3\n", b"x\n"])
def test_damaged_cookies(content: bytes) -> None:
    with pytest.raises(InvalidCookie):
        decode_cookie(content)


async def test_a_new_bookie_is_stamped_and_registered(start: StartBookie, store: MemoryMetadataStore) -> None:
    await start()
    node = await store.get(COOKIE)
    assert node is not None
    assert node.value.startswith(b"5\n")
    layout = await store.get("/ledgers/LAYOUT")
    assert layout is not None
    assert layout.value == b"2\norg.apache.bookkeeper.meta.HierarchicalLedgerManagerFactory:1"
    available = await store.get("/ledgers/available/127.0.0.1:3181")
    assert available is not None
    assert available.stat.ephemeral
    info = BookieServiceInfoFormat.FromString(available.value)
    assert [(point.host, point.protocol) for point in info.endpoints] == [("127.0.0.1", "bookie-rpc")]


async def test_a_lost_directory_is_refused(start: StartBookie, settings: BookieSettings) -> None:
    await (await start()).close()
    shutil.rmtree(settings.ledger_directories[0])
    with pytest.raises(InvalidCookie, match=r"holds no cookie.*right disk.*bookie decommission") as refused:
        await start()
    assert refused.value.problem is CookieProblem.EMPTY_VOLUME


async def test_without_other_bookies_nobody_is_sent_to_them(start: StartBookie, settings: BookieSettings) -> None:
    folder = settings.journal_directories[0].parent
    await (await start(movable_folder=folder)).close()
    shutil.rmtree(settings.ledger_directories[0])
    with pytest.raises(InvalidCookie, match=r"no other bookie has it.*cookie get.*--accept-loss.*--fresh") as refused:
        await start(movable_folder=folder)
    assert "decommission" not in str(refused.value)
    assert refused.value.problem is CookieProblem.EMPTY_VOLUME


async def test_data_without_a_cookie_is_for_people_to_look_at(start: StartBookie, settings: BookieSettings) -> None:
    await (await start()).close()
    (settings.journal_directories[0] / "current" / "VERSION").unlink()
    with pytest.raises(InvalidCookie, match=r"journal/current holds data but no cookie.*cookie get 127") as refused:
        await start()
    assert refused.value.problem is CookieProblem.WRONG_VOLUME


@pytest.mark.parametrize(("url", "options"), [("", ""), ("zk://one:2181", " -m zk://one:2181")])
async def test_the_command_asks_the_store_that_the_bookie_has(
    start: StartBookie, settings: BookieSettings, url: str, options: str
) -> None:
    await (await start(metadata_url=url)).close()
    (settings.journal_directories[0] / "current" / "VERSION").unlink()
    with pytest.raises(InvalidCookie, match=rf"`magnetar bookie cookie get 127\.0\.0\.1:3181{options}`"):
        await start(metadata_url=url)


async def test_a_damaged_copy_is_named(start: StartBookie, settings: BookieSettings) -> None:
    await (await start()).close()
    (settings.ledger_directories[0] / "current" / "VERSION").write_bytes(b"5\nnonsense")
    with pytest.raises(InvalidCookie, match=r"holds a damaged cookie.*`magnetar bookie cookie get 127") as refused:
        await start()
    assert refused.value.problem is CookieProblem.WRONG_VOLUME


class StoreOfOneTakenOut(MemoryMetadataStore):
    """Somebody takes the bookie out while it registers."""

    async def put(self, path: str, value: bytes, *arguments: Any, **options: Any) -> Stat:
        stat = await super().put(path, value, *arguments, **options)
        if path == AVAILABLE:
            await self.delete(COOKIE)
        return stat


async def test_a_bookie_that_is_taken_out_while_it_starts_stops(settings: BookieSettings) -> None:
    store = StoreOfOneTakenOut()
    with pytest.raises(InvalidCookie, match=r"taken out.*while it started") as refused:
        await start_bookie(settings, store, SystemClock())
    assert refused.value.problem is CookieProblem.RETIRED
    assert not await store.exists(AVAILABLE)
    await store.close()


async def test_data_of_an_unknown_bookie_is_refused(start: StartBookie, store: MemoryMetadataStore) -> None:
    await (await start()).close()
    await store.delete(COOKIE)
    with pytest.raises(InvalidCookie, match="does not know") as refused:
        await start()
    assert refused.value.problem is CookieProblem.RETIRED


async def test_another_cluster_is_refused(start: StartBookie, store: MemoryMetadataStore) -> None:
    await (await start()).close()
    await store.put("/ledgers/INSTANCEID", b"another")
    with pytest.raises(InvalidCookie, match="instanceId") as refused:
        await start()
    assert refused.value.problem is CookieProblem.WRONG_VOLUME


async def test_a_store_that_is_no_clusters_stays_as_it_was(start: StartBookie, settings: BookieSettings) -> None:
    """Pointed at a wrong path, a bookie with data refuses, and leaves nothing there that looks like a cluster."""
    await (await start()).close()
    elsewhere = MemoryMetadataStore()
    with pytest.raises(InvalidCookie, match=r"no /ledgers/INSTANCEID.*Check the metadata store's address") as refused:
        await start_bookie(settings, elsewhere, SystemClock())
    assert refused.value.problem is CookieProblem.WRONG_VOLUME
    assert await elsewhere.children("/") == []
    for directory in (*settings.journal_directories, *settings.ledger_directories):
        (directory / "current" / "VERSION").unlink()
    with pytest.raises(InvalidCookie, match="no /ledgers/INSTANCEID"):
        await start_bookie(settings, elsewhere, SystemClock())
    assert await elsewhere.children("/") == []
    await elsewhere.close()


async def test_another_id_is_refused(start: StartBookie) -> None:
    await (await start()).close()
    with pytest.raises(InvalidCookie, match="bookieHost"):
        await start(bookie_id="127.0.0.1:3182")


async def test_a_stamp_that_was_broken_off_is_finished(
    start: StartBookie, store: MemoryMetadataStore, settings: BookieSettings
) -> None:
    running = await start()
    await running.close()
    await store.delete(COOKIE)
    made = [*settings.journal_directories[0].rglob("*.txn"), *settings.journal_directories[0].rglob("newestJournal")]
    for file in [*made, *settings.ledger_directories[0].rglob("*.log")]:
        file.unlink()
    await start()
    assert await store.exists(COOKIE)


async def test_a_free_port_needs_an_id(settings: BookieSettings, store: MemoryMetadataStore) -> None:
    with pytest.raises(SettingError, match="bookieId"):
        await start_bookie(dataclasses.replace(settings, bookie_id="", port=0), store, SystemClock())
