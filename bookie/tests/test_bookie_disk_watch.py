"""Full disks, the reserve, and read-only modes that somebody asked for."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from magnetar.bookie.app import RunningBookie, pending_bytes
from magnetar.bookie.bookie_status import SavedBookieStatus, decode_status, encode_status, read_status
from magnetar.bookie.disk_watch import REASON_DISK_FULL, REASON_MANUAL, REASON_WRITE_FAILED, DiskState, WriteMode
from magnetar.bookie.settings import BookieSettings, DiskSettings, standalone_settings
from magnetar.core.disk import SystemDisk
from magnetar.core.text import human_bytes
from magnetar.metadata.memory import MemoryMetadataStore

StartBookie = Callable[..., Awaitable[RunningBookie]]

FIRST, SECOND = Path("/first"), Path("/second")
SETTINGS = DiskSettings(usage_threshold=0.9, usage_warn_threshold=0.85, usage_low_water=0.8, free_bytes_min=10)


class Disks:
    """Two disks of 1000 bytes."""

    def __init__(self) -> None:
        self.free = {FIRST: 1000, SECOND: 1000}
        self.failing = False

    def look(self) -> list[tuple[Path, int, int]]:
        if self.failing:
            raise OSError("no such device")
        return [(directory, 1000, free) for directory, free in self.free.items()]


def is_read_only(mode: WriteMode) -> bool:
    """Asked anew each time: a type checker would take the first answer for the last."""
    return mode.read_only


def test_one_full_disk_is_enough_and_room_below_the_low_water_mark_ends_it() -> None:
    disks = Disks()
    mode = WriteMode(SETTINGS, disks.look)
    told: list[bool] = []
    mode.watch(told.append)
    mode.check()
    assert not is_read_only(mode)
    disks.free[SECOND] = 140
    mode.check()
    assert (mode.read_only, mode.disk_state(SECOND)) == (False, DiskState.ALMOST_FULL)
    disks.free[SECOND] = 90
    mode.check()
    assert (mode.read_only, mode.recovery_writes, mode.reasons) == (True, True, (REASON_DISK_FULL,))
    assert (mode.disk_state(FIRST), mode.disk_state(SECOND)) == (DiskState.USABLE, DiskState.FULL)
    disks.free[SECOND] = 190
    mode.check()
    assert is_read_only(mode)
    disks.free[SECOND] = 201
    mode.check()
    assert not is_read_only(mode)
    assert told[-1] is False
    assert mode.spaces == ((FIRST, 1000, 1000), (SECOND, 1000, 201))


def test_the_page_says_how_much_is_kept_by_default() -> None:
    page = " ".join((Path(__file__).parents[2] / "docs" / "bookies.md").read_text().split())
    alone = BookieSettings(journal_directories=(FIRST,), ledger_directories=(FIRST,))
    separate, standalone = [
        human_bytes(settings.disk.free_bytes_min + pending_bytes(settings))
        for settings in (alone, standalone_settings(FIRST))
    ]
    assert f"64 MiB more ({separate} by default, {standalone} in a standalone)" in page


def test_the_log_says_how_much_is_free_and_how_much_is_kept(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    disks = Disks()
    mode = WriteMode(SETTINGS, disks.look, pending_bytes=300)
    disks.free[SECOND] = 305
    mode.check()
    disks.free[SECOND] = 1000
    mode.check()
    mode.add_reason(REASON_MANUAL, manual=True)
    mode.remove_manual_reasons()
    mode.add_reason("it is being drained")
    mode.remove_reason("it is being drained")
    full, *_, again = [text for text in caplog.messages if "the disk of" in text]
    assert full == "the disk of /second is full: 305 B are free, 310 B are kept for checkpoints and deletions"
    assert again.startswith("the disk of /second has room again: 1000 B are free")
    assert [text.partition(": ")[2] for text in caplog.messages if "takes writes again" in text] == [
        "its disks have room again",
        "somebody has asked for that",
        'no longer "it is being drained"',
    ]


def test_recoveries_stop_at_the_reserve_and_whoever_listens_hears_of_it() -> None:
    disks = Disks()
    mode = WriteMode(SETTINGS, disks.look, pending_bytes=30)
    seen: list[tuple[bool, bool]] = []
    mode.watch(lambda read_only: seen.append((read_only, mode.recovery_writes)))
    mode.check()
    disks.free[FIRST] = 50
    mode.check()
    disks.free[FIRST] = 39
    mode.check()
    assert seen[-2:] == [(True, True), (True, False)]


def test_after_a_failed_write_recoveries_are_not_taken_either() -> None:
    """Whatever room there seems to be: what they write would fail as well."""
    mode = WriteMode(SETTINGS, Disks().look)
    mode.check()
    mode.write_failed(OSError("no space left"))
    assert (mode.read_only, mode.recovery_writes) == (True, False)
    mode.check()
    assert (is_read_only(mode), mode.recovery_writes) == (False, True)


def test_a_disk_that_cannot_be_looked_at_has_failed() -> None:
    disks = Disks()
    mode = WriteMode(SETTINGS, disks.look)
    disks.failing = True
    mode.check()
    assert (mode.reasons, mode.recovery_writes) == ((REASON_WRITE_FAILED,), False)
    disks.failing = False
    mode.check()
    assert not is_read_only(mode)


def test_manual_reasons_end_by_hand_only() -> None:
    disks = Disks()
    mode = WriteMode(SETTINGS, disks.look)
    mode.add_reason("maintenance", manual=True)
    mode.add_reason("drain")
    mode.check()
    assert list(mode.reasons) == ["maintenance", "drain"]
    mode.remove_manual_reasons()
    assert (mode.reasons, mode.manual) == (("drain",), False)
    mode.remove_reason("drain")
    mode.remove_reason("drain")
    assert not is_read_only(mode)


@pytest.mark.parametrize("status", [SavedBookieStatus(True, True, 17), SavedBookieStatus(False, False, 0)])
def test_the_status_line_is_bookkeepers(status: SavedBookieStatus) -> None:
    assert decode_status(encode_status(status)) == status


@pytest.mark.parametrize(
    ("content", "status"),
    [
        (b"1,READ_ONLY,5,true\n", SavedBookieStatus(True, True, 5)),
        (b"1,READ_ONLY,5,false\n", SavedBookieStatus(True, False, 5)),
        (b"1,READ_ONLY,5\n", SavedBookieStatus(True, True, 5)),
        (b"1,READ_WRITE, 5 ,true", SavedBookieStatus(False, True, 5)),
        (b"", None),
        (b"2,READ_ONLY,5,true\n", None),
        (b"1,SOMETHING,5,true\n", None),
        (b"1,READ_ONLY,x,true\n", None),
        (b"\xff\xfe", None),
    ],
)
def test_status_lines_that_bookkeeper_or_an_accident_wrote(content: bytes, status: SavedBookieStatus | None) -> None:
    assert decode_status(content) == status


def test_the_newest_status_counts(tmp_path: Path) -> None:
    for name, content in (("a", b"1,READ_WRITE,7,false\n"), ("b", b"1,READ_ONLY,9,true\n"), ("c", b"rubbish")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "BOOKIE_STATUS").write_bytes(content)
    (tmp_path / "d").mkdir()
    found = read_status(SystemDisk(), [tmp_path / name for name in "abcd"])
    assert found == SavedBookieStatus(True, True, 9)


async def test_a_manual_read_only_mode_outlasts_a_restart(
    start: StartBookie, settings: BookieSettings, store: MemoryMetadataStore
) -> None:
    running = await start()
    await running.set_read_only("maintenance", manual=True)
    file = settings.ledger_directories[0] / "current" / "BOOKIE_STATUS"
    fields = file.read_text().split(",")
    assert (fields[:2], fields[3]) == (["1", "READ_ONLY"], "true\n")
    await running.close()
    running = await start()
    assert (running.mode.read_only, running.mode.manual) == (True, True)
    assert await store.children("/ledgers/available/readonly") == ["127.0.0.1:3181"]
    running.mode.check()
    assert running.bookie.adds.read_only
    await running.set_writable()
    assert file.read_text().startswith("1,READ_WRITE,")
    await running.close()
    running = await start()
    assert not running.mode.read_only


async def test_another_read_only_mode_does_not(start: StartBookie) -> None:
    running = await start()
    await running.set_read_only("drain", manual=False)
    assert running.bookie.adds.read_only
    await running.close()
    running = await start()
    assert not running.mode.read_only
    await running.set_read_only("drain", manual=False)
    await running.set_writable("drain")
    assert not running.mode.read_only


async def test_a_status_need_not_be_stored(start: StartBookie, settings: BookieSettings) -> None:
    changes = {"disk": dataclasses.replace(settings.disk, persist_status=False)}
    running = await start(**changes)
    await running.set_read_only("maintenance", manual=True)
    assert running.bookie.adds.read_only
    await running.close()
    assert not (await start(**changes)).mode.read_only
