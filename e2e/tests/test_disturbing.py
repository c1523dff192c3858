"""The interposer reaches what servers do: Python's clocks and files, compiled modules, RocksDB's threads."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e.disturbing import building
from e2e.disturbing.control import Disturbance, build
from e2e.processes import wait_for

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(building.compiler() is None, reason="there is no C compiler"),
]

AHEAD_S = 600.0
LONG_S = 60.0
"""A stall that the test ends itself."""


@pytest.fixture(scope="module")
def interposer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("interposer"))


@pytest.fixture
def disturbance(tmp_path: Path, interposer: Path) -> Iterator[Disturbance]:
    (tmp_path / "disk").mkdir()
    disturbance = Disturbance(interposer, tmp_path / "control", tmp_path / "disk")
    yield disturbance
    disturbance.close()


def run(disturbance: Disturbance, program: str, *arguments: str) -> str:
    environment = {**os.environ, **disturbance.environment}
    command = [sys.executable, "-c", program, *arguments]
    return subprocess.run(command, env=environment, check=True, timeout=60, capture_output=True, text=True).stdout


CLOCKS = """
import ctypes, datetime, email.utils, time
from magnetar.core.clock import SystemClock
libc = ctypes.CDLL(None)
print(time.time(), time.time_ns() / 1e9, datetime.datetime.now().timestamp(), SystemClock().now_ms() / 1e3,
      libc.time(None), time.clock_gettime(time.CLOCK_REALTIME))
print(time.monotonic(), SystemClock().monotonic_seconds())
"""


@pytest.mark.parametrize("ahead_s", [0.0, AHEAD_S, -AHEAD_S])
def test_every_way_to_the_wall_clock_is_moved_and_none_to_the_steady_one(
    disturbance: Disturbance, ahead_s: float
) -> None:
    disturbance.set_clock(ahead_s)
    wall, steady = (line.split() for line in run(disturbance, CLOCKS).splitlines())
    assert [float(each) - time.time() - ahead_s for each in wall] == pytest.approx([0.0] * len(wall), abs=30.0)
    assert [float(each) - time.monotonic() for each in steady] == pytest.approx([0.0] * len(steady), abs=30.0)
    assert bool(disturbance.clock_reads) == bool(ahead_s)


WAITS = """
import ctypes, threading, time, sys
class Time(ctypes.Structure):
    _fields_ = [("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long)]
libc = ctypes.CDLL(None, use_errno=True)
semaphore, mutex, condition = (ctypes.create_string_buffer(64) for _ in range(3))
libc.sem_init(semaphore, 0, 0), libc.pthread_mutex_init(mutex, None), libc.pthread_cond_init(condition, None)
until = Time(int(time.time()) + 300, 0)
print("waiting", flush=True)
assert libc.sem_timedwait(semaphore, ctypes.byref(until)) == -1
libc.pthread_mutex_lock(mutex)
while not libc.pthread_cond_timedwait(condition, mutex, ctypes.byref(until)):
    pass
word = ctypes.c_int(0)
WAIT_BITSET_BY_THE_WALL_CLOCK = 9 | 256
while libc.syscall(202, ctypes.byref(word), WAIT_BITSET_BY_THE_WALL_CLOCK, 0, ctypes.byref(until), None, -1) == -1:
    if ctypes.get_errno() == 110:
        break
print("over", flush=True)
"""


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="the number of the system call is that of x86-64")
def test_a_jump_ends_waits_until_a_time_of_the_wall_clock(disturbance: Disturbance) -> None:
    environment = {**os.environ, **disturbance.environment}
    process = subprocess.Popen([sys.executable, "-c", WAITS], env=environment, stdout=subprocess.PIPE)
    assert process.stdout is not None
    with process:
        assert process.stdout.readline() == b"waiting\n"
        disturbance.set_clock(AHEAD_S)
        assert process.wait(60) == 0
        assert process.stdout.read() == b"over\n"


WRITES = """
import os, sys
from rocksdict import Options, Rdict, WriteOptions
from magnetar.core.disk import SystemDisk
from pathlib import Path
folder, kind = Path(sys.argv[1]), sys.argv[2]
if kind == "write":
    os.write(os.open(folder / "file", os.O_WRONLY), b"one")
elif kind == "disk":
    SystemDisk().open(folder / "file", writable=True).pwritev([b"one"], 0, durable=True)
elif kind == "sync":
    SystemDisk().open(folder / "file", writable=True).sync()
elif kind == "directory":
    SystemDisk().sync_directory(folder)
elif kind == "whole":
    SystemDisk().replace_whole(folder / "file", b"one")
elif kind == "rocksdb":
    options = Options(raw_mode=True)
    options.create_if_missing(True)
    database = Rdict(str(folder / "rocksdb"), options)
    database[b"key"] = b"value"
    database.flush_wal(True)
    database.close()
print("done")
"""


@pytest.mark.parametrize("kind", ["write", "disk", "sync", "directory", "whole", "rocksdb"])
def test_a_stalled_disk_hangs_whoever_writes_to_it(disturbance: Disturbance, tmp_path: Path, kind: str) -> None:
    (tmp_path / "disk" / "file").write_bytes(b"")
    disturbance.stall(LONG_S)
    environment = {**os.environ, **disturbance.environment}
    command = [sys.executable, "-c", WRITES, str(tmp_path / "disk"), kind]
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE)
    with process:
        wait_for(lambda: disturbance.hanging_calls > 0, 30, "nothing hangs")
        assert process.poll() is None
        disturbance.stall(0.0)
        assert process.wait(60) == 0
    assert disturbance.hanging_calls == 0


def test_other_disks_do_not_hang(disturbance: Disturbance, tmp_path: Path) -> None:
    (tmp_path / "disks").mkdir()
    (tmp_path / "disks" / "file").write_bytes(b"")
    disturbance.stall(LONG_S)
    assert run(disturbance, WRITES, str(tmp_path / "disks"), "disk") == "done\n"
    assert disturbance.stalled_calls == 0


def test_a_forgetful_disk_has_nothing_of_what_it_answered(disturbance: Disturbance, tmp_path: Path) -> None:
    file = tmp_path / "disk" / "file"
    file.write_bytes(b"")
    disturbance.forget_writes(True)
    for kind in ("write", "disk"):
        assert run(disturbance, WRITES, str(tmp_path / "disk"), kind) == "done\n"
    assert file.read_bytes() == b""
