"""The disk that forgets, tears, fills and fails."""

from __future__ import annotations

import asyncio
import errno
import random
from pathlib import Path

import pytest
from magnetar.sim.disk import Platter, SimulatedDisk, SimulatedDiskSettings
from magnetar.sim.inode import Inode
from magnetar.sim.process import Process, SimulatedCrash
from magnetar.sim.trace import Trace

ROOT = Path("/d")
FILE = ROOT / "file"


def new_platter(seed: int = 1, capacity_bytes: int = 1 << 30) -> Platter:
    return Platter("disk", random.Random(seed), Trace(), SimulatedDiskSettings(capacity_bytes=capacity_bytes))


def mounted(platter: Platter) -> SimulatedDisk:
    disk = platter.mount(Process("p", "p"))
    disk.make_directory(ROOT)
    return disk


def test_a_file_is_written_and_read() -> None:
    disk = mounted(new_platter())
    file = disk.create(FILE)
    assert file.pwritev([b"ab", b"cd"], 0) == 4
    assert file.pwritev([b"X"], 6) == 1
    assert file.pread(100, 0) == b"abcd\0\0X"
    assert file.pread(2, 1) == b"bc"
    assert file.size_bytes() == 7
    file.truncate(3)
    assert file.pread(100, 0) == b"abc"
    file.allocate(0, 10)
    assert file.pread(100, 0) == b"abc" + bytes(7)
    assert sorted(disk.list_names(ROOT)) == ["file"]
    file.close()
    with pytest.raises(OSError, match="closed"):
        file.pread(1, 0)
    with pytest.raises(FileExistsError):
        disk.create(FILE)
    with pytest.raises(FileNotFoundError):
        disk.open(ROOT / "nothing")


def test_what_was_synced_survives_a_power_failure() -> None:
    for seed in range(30):
        platter = new_platter(seed)
        disk = mounted(platter)
        file = disk.create(FILE)
        file.pwritev([b"synced"], 0)
        file.sync()
        file.pwritev([b"durable"], 100, durable=True)
        file.allocate(0, 4096)
        file.pwritev([b"beyond"], 4090, durable=True)
        file.pwritev([b"later"], 50)
        disk.sync_directory(ROOT)
        platter.lose_power()
        after = mounted(platter).open(FILE)
        assert after.pread(6, 0) == b"synced"
        assert after.pread(7, 100) == b"durable"
        assert after.pread(6, 4090) == b"beyond"


def test_what_was_not_synced_is_lost_kept_or_torn_by_the_sector() -> None:
    kinds = set()
    for seed in range(60):
        platter = new_platter(seed)
        disk = mounted(platter)
        file = disk.create(FILE)
        file.allocate(0, 4096)
        file.sync()
        disk.sync_directory(ROOT)
        file.pwritev([b"x" * 2048], 0)
        platter.lose_power()
        content = mounted(platter).open(FILE).pread(2048, 0)
        sectors = {content[at : at + 512] for at in range(0, 2048, 512)}
        assert sectors <= {b"x" * 512, bytes(512)}
        kinds.add("torn" if len(sectors) == 2 else "kept" if b"x" * 512 in sectors else "lost")
    assert kinds == {"torn", "kept", "lost"}


def test_names_are_durable_after_their_directory_was_synced() -> None:
    created, deleted = set(), set()
    for seed in range(30):
        platter = new_platter(seed)
        disk = mounted(platter)
        disk.create(ROOT / "old").pwritev([b"old"], 0, durable=True)
        disk.sync_directory(ROOT)
        disk.create(ROOT / "new").pwritev([b"new"], 0, durable=True)
        disk.delete(ROOT / "old")
        platter.lose_power()
        names = mounted(platter).list_names(ROOT)
        created.add("new" in names)
        deleted.add("old" in names)
    assert created == deleted == {True, False}


def test_a_small_file_is_replaced_whole() -> None:
    platter = new_platter()
    disk = mounted(platter)
    assert disk.read_whole(FILE) is None
    disk.replace_whole(FILE, b"one")
    disk.replace_whole(FILE, b"two")
    platter.lose_power()
    assert mounted(platter).read_whole(FILE) == b"two"


def test_a_second_name_keeps_the_content() -> None:
    disk = mounted(new_platter())
    disk.create(FILE).pwritev([b"content"], 0)
    disk.link(FILE, ROOT / "another")
    disk.link(FILE, ROOT / "another")
    disk.delete(FILE)
    assert disk.read_whole(ROOT / "another") == b"content"
    disk.rename(ROOT / "another", FILE)
    assert disk.list_names(ROOT) == ["file"]


def test_a_full_disk_says_so() -> None:
    platter = new_platter(capacity_bytes=20_000)
    disk = mounted(platter)
    file = disk.create(FILE)
    assert file.pwritev([bytes(30_000)], 0) < 20_000
    no_space = pytest.raises(OSError, match=f"Errno {errno.ENOSPC}")
    with no_space:
        file.pwritev([bytes(30_000)], file.size_bytes())
    with no_space:
        file.allocate(0, 1 << 20)
    with no_space:
        disk.create(ROOT / "more")
    assert disk.usage_bytes(ROOT) == (20_000, 0)
    disk.delete(FILE)
    assert disk.usage_bytes(ROOT) == (20_000, 20_000)


def test_a_failing_disk_says_so() -> None:
    platter = new_platter()
    disk = mounted(platter)
    file = disk.create(FILE)
    platter.error_share = 1.0
    with pytest.raises(OSError, match=f"Errno {errno.EIO}"):
        file.pwritev([b"x"], 0)
    assert file.pread(1, 0) == b""
    platter.read_error_share = 1.0
    with pytest.raises(OSError, match=f"Errno {errno.EIO}"):
        file.pread(1, 0)


def test_a_killed_process_leaves_what_it_wrote_whole() -> None:
    platter = new_platter()
    disk = mounted(platter)
    file = disk.create(FILE)
    file.pwritev([b"one"], 0)
    platter.crash_loses_power = False
    platter.crash_after_operations = 0
    with pytest.raises(SimulatedCrash):
        file.pwritev([b"two"], 0, durable=True)
    assert mounted(platter).read_whole(FILE) == b"one"


def test_the_power_fails_in_the_middle_of_an_operation_and_the_dead_change_nothing() -> None:
    platter = new_platter()
    process = Process("p", "p")
    disk = platter.mount(process)
    disk.make_directory(ROOT)
    file = disk.create(FILE)
    disk.sync_directory(ROOT)

    def crash(loses_power: bool) -> None:
        assert loses_power
        process.alive = False
        platter.lose_power()

    platter.on_crash = crash
    platter.crash_after_operations = 1
    file.pwritev([b"one"], 0, durable=True)
    with pytest.raises(SimulatedCrash):
        file.pwritev([b"two"], 0, durable=True)
    with pytest.raises(SimulatedCrash):
        disk.delete(FILE)
    content = mounted(platter).read_whole(FILE)
    assert content in (b"one", b"two")


def test_bits_flip_in_what_is_durable() -> None:
    platter = new_platter()
    disk = mounted(platter)
    disk.create(FILE).pwritev([b"\0\0"], 0, durable=True)
    ((path, inode),) = platter.files()
    assert path == str(FILE)
    inode.flip_bit(1, 3)
    assert disk.read_whole(FILE) == b"\0\x08"


async def test_a_process_can_be_made_anywhere() -> None:
    process = Process("p", "host")
    done = asyncio.Event()

    async def work() -> None:
        done.set()

    await process.start(work())
    assert done.is_set()
    assert process.unfinished() == []


class Watcher:
    """A `PlatterWatcher` that remembers."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def content_settled(self, path: Path, inode: Inode) -> None:
        self.told.append(f"{path.name} {inode.read_durable(100, 0)!r}")

    def names_settled(self) -> None:
        self.told.append("names")

    def power_lost(self) -> None:
        self.told.append("power")


def test_a_watcher_is_told_of_what_becomes_durable() -> None:
    platter = new_platter()
    disk = mounted(platter)
    watcher = platter.watcher = Watcher()
    file = disk.create(FILE)
    file.pwritev([b"ab"], 0)
    assert watcher.told == []
    file.sync()
    file.pwritev([b"c"], 2, durable=True)
    disk.replace_whole(ROOT / "other", b"d")
    disk.sync_directory(ROOT)
    disk.delete(FILE)
    platter.lose_power()
    assert watcher.told == ["file b'ab'", "file b'abc'", "other b'd'", "names", "names", "power"]


def test_what_is_durable_for_certain_is_told_apart() -> None:
    platter = new_platter()
    disk = mounted(platter)
    file = disk.create(FILE)
    file.pwritev([b"ab"], 0, durable=True)
    file.pwritev([b"cd"], 2)
    assert platter.find_durable(FILE) is None
    assert platter.durable_names(ROOT) == []
    disk.sync_directory(ROOT)
    inode = platter.find_durable(FILE)
    assert inode is not None
    assert inode.read_durable(100, 0) == b"ab"
    assert platter.durable_names(ROOT) == ["file"]
    disk.delete(FILE)
    assert platter.find_durable(FILE) is None
    assert platter.durable_names(ROOT) == []
    assert platter.durable_names(Path("/elsewhere")) == []


def test_files_of_one_name_fail() -> None:
    platter = new_platter()
    disk = mounted(platter)
    file, other = disk.create(FILE), disk.create(ROOT / "other")
    platter.failing_name = FILE.name
    for change in (lambda: file.pwritev([b"a"], 0), file.sync, lambda: file.truncate(0)):
        with pytest.raises(OSError, match="failed"):
            change()
    assert file.pread(1, 0) == b""
    other.pwritev([b"a"], 0, durable=True)
