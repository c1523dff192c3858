"""A bookie that was killed between its cookie's removal, the last step of its drain, and the note of it."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Awaitable, Callable
from contextlib import suppress

import pytest
from magnetar.bookie.app import RunningBookie
from magnetar.bookie.cookie import COOKIES_PATH, CookieProblem, InvalidCookie
from magnetar.bookie.drain.departed import finish_departure
from magnetar.bookie.drain.drain import is_leaving
from magnetar.bookie.drain.paths import intention_path
from magnetar.bookie.drain.state import Intention, Phase, decode_intention, encode_intention
from magnetar.bookie.settings import BookieSettings
from magnetar.metadata.memory import MemoryMetadataStore
from magnetar.metadata.store import MUST_NOT_EXIST, Node

StartBookie = Callable[..., Awaitable[RunningBookie]]
BOOKIE = "127.0.0.1:3181"
COOKIE = f"{COOKIES_PATH}/{BOOKIE}"
REMOVING = Intention(bookie_id=BOOKIE, phase=Phase.REMOVING, started_ms=1, cookie_created_ms=2)


async def phase(store: MemoryMetadataStore) -> Phase:
    node = await store.get(intention_path(BOOKIE))
    assert node is not None
    return decode_intention(node.value).phase


async def note(store: MemoryMetadataStore, intention: Intention) -> None:
    await store.put(intention_path(BOOKIE), encode_intention(intention), MUST_NOT_EXIST)


async def test_it_has_left_though_it_does_not_start(start: StartBookie, store: MemoryMetadataStore) -> None:
    await (await start()).close()
    await note(store, REMOVING)
    await store.delete(COOKIE)
    with pytest.raises(InvalidCookie) as refused:
        await start()
    assert refused.value.problem is CookieProblem.RETIRED
    assert await phase(store) is Phase.DONE


async def test_a_new_bookie_of_its_name_is_not_leaving(
    start: StartBookie, settings: BookieSettings, store: MemoryMetadataStore
) -> None:
    await (await start()).close()
    await note(store, REMOVING)
    await store.delete(COOKIE)
    for directory in (*settings.journal_directories, *settings.ledger_directories):
        shutil.rmtree(directory)
    await start()
    assert not await is_leaving(store, BOOKIE)
    assert await store.exists(COOKIE)


async def test_a_new_bookie_that_starts_while_the_cookie_is_removed_is_not_leaving(
    start: StartBookie, store: MemoryMetadataStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its cookie is removed by `magnetar bookie decommission`, which is killed right after that: between the start's
    look at it and whatever follows."""
    await store.put(COOKIE, b"", MUST_NOT_EXIST)
    old = await store.get(COOKIE)
    assert old is not None
    await note(store, dataclasses.replace(REMOVING, cookie_created_ms=old.stat.created_ms))
    look = store.get

    async def removed_after(path: str, *, watch: bool = True) -> Node | None:
        node = await look(path, watch=watch)
        if path == COOKIE:
            monkeypatch.undo()
            await store.delete(COOKIE)
        return node

    monkeypatch.setattr(store, "get", removed_after)
    # What it has seen is a cookie that its directories lack. (Whatever runs it starts it again.)
    with suppress(InvalidCookie):
        await start()
    if not await store.exists(COOKIE):
        await start()
    assert await store.exists(COOKIE)
    assert not await is_leaving(store, BOOKIE)


async def test_a_bookie_whose_cookie_is_a_later_one_is_not_leaving(
    start: StartBookie, store: MemoryMetadataStore
) -> None:
    """Somebody gave it a new cookie, or it made one itself, before the removal of the old one was noted."""
    await (await start()).close()
    await note(store, REMOVING)
    await start()
    assert not await is_leaving(store, BOOKIE)


@pytest.mark.parametrize("phase_before", [Phase.DRAINING, Phase.DONE])
async def test_other_phases_stay(store: MemoryMetadataStore, phase_before: Phase) -> None:
    await note(store, dataclasses.replace(REMOVING, phase=phase_before))
    await finish_departure(store, BOOKIE, None, now_ms=5)
    assert await phase(store) is phase_before


async def test_one_whose_cookie_is_there_has_not_left(store: MemoryMetadataStore) -> None:
    await store.put(COOKIE, b"", MUST_NOT_EXIST)
    found = await store.get(COOKIE)
    assert found is not None
    await note(store, dataclasses.replace(REMOVING, cookie_created_ms=found.stat.created_ms))
    await finish_departure(store, BOOKIE, found, now_ms=5)
    assert await phase(store) is Phase.REMOVING


class ChangedMeanwhile(MemoryMetadataStore):
    """Somebody else notes something while we look."""

    noted = False

    async def get(self, path: str, *, watch: bool = True) -> Node | None:
        node = await super().get(path, watch=watch)
        if path == intention_path(BOOKIE) and not self.noted:
            self.noted = True
            done = dataclasses.replace(REMOVING, phase=Phase.DONE, finished_ms=3)
            await self.put(path, encode_intention(done))
        return node


async def test_what_another_has_noted_stays() -> None:
    store = ChangedMeanwhile()
    await note(store, REMOVING)
    await finish_departure(store, BOOKIE, None, now_ms=5)
    node = await store.get(intention_path(BOOKIE))
    assert node is not None
    assert decode_intention(node.value).finished_ms == 3
    await store.close()


async def test_a_damaged_note_keeps_no_bookie_from_starting(start: StartBookie, store: MemoryMetadataStore) -> None:
    """What it means is decided in one place: `is_leaving`."""
    await store.put(intention_path(BOOKIE), b"{", MUST_NOT_EXIST)
    await start()
    assert await store.exists(COOKIE)
    assert await is_leaving(store, BOOKIE)
