"""The recorder sees every way in which a program changes files: what is followed is what is there."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from e2e.disturbing import building
from e2e.power.recording import Kind, Recording, build
from e2e.power.replaying import Beginning, Replay, differences

pytestmark = pytest.mark.skipif(building.compiler() is None, reason="there is no C compiler")

PROGRAM = """
import os, pathlib, shutil, sys, threading
from rocksdict import Options, Rdict

os.chdir(sys.argv[1])
os.makedirs("a/b")
(pathlib.Path("a") / "text").write_text("hello")
file = os.open("a/file", os.O_RDWR | os.O_CREAT | os.O_EXCL)
os.posix_fallocate(file, 0, 10_000)
os.pwrite(file, b"x" * 700, 300)
os.pwritev(file, [b"one", b"two"], 9_998)
os.pwritev(file, [b"durable"], 5_000, os.RWF_DSYNC)
os.lseek(file, 20, os.SEEK_SET)
os.write(file, b"here")
os.writev(file, [b"and", b"there"])
os.ftruncate(file, 9_000)
os.fdatasync(file)
os.close(file)
os.truncate("a/text", 2)
end = os.open("a/text", os.O_WRONLY | os.O_APPEND)
os.write(end, b"appended")
os.close(end)
os.link("a/text", "a/b/other")
os.rename("a/text", "a/renamed")
os.open("a/gone", os.O_WRONLY | os.O_CREAT)
os.unlink("a/gone")
os.mkdir("empty"), os.rmdir("empty"), os.mkdir("tree"), os.mkdir("tree/in")
pathlib.Path("tree/in/file").write_bytes(b"1")
shutil.rmtree("tree")
synced = os.open("a/synced", os.O_WRONLY | os.O_CREAT | os.O_DSYNC)
os.write(synced, b"through")
directory = os.open("a", os.O_RDONLY | os.O_DIRECTORY)
os.fsync(directory)
os.replace("a/renamed", "a/file")

def fill(name):
    with open(name, "wb", 0) as file:
        for number in range(200):
            file.write(b"%d" % number)

threads = [threading.Thread(target=fill, args=(f"thread-{number}",)) for number in range(4)]
[thread.start() for thread in threads], [thread.join() for thread in threads]
options = Options(raw_mode=True)
options.create_if_missing(True)
options.set_write_buffer_size(64 << 10)
database = Rdict("rocksdb", options)
for number in range(3_000):
    database[b"%d" % number] = b"v" * 100
database.flush_wal(True)
database.compact_range(None, None)
database.close()
"""


def recorded(tmp_path: Path, program: str) -> tuple[Recording, Beginning]:
    disk = tmp_path / "disk"
    disk.mkdir()
    beginning = Beginning.of(disk)
    recording = Recording(build(tmp_path), disk, tmp_path / "recording")
    environment = {**os.environ, **recording.environment}
    subprocess.run([sys.executable, "-c", program, str(disk)], env=environment, check=True, timeout=60)
    return recording, beginning


def test_what_is_followed_is_what_is_there(tmp_path: Path) -> None:
    recording, beginning = recorded(tmp_path, PROGRAM)
    events = recording.events()
    recording.close()
    replay = Replay(beginning).until(events, events[-1].end)
    assert differences(replay, recording.root) == []
    kinds = {event.kind for event in events}
    assert kinds == set(Kind) - {Kind.SYNCED_ALL, Kind.UNKNOWN}
    assert {event.data for event in events if event.durable} == {b"durable", b"through"}


def test_what_nobody_follows_is_noticed(tmp_path: Path) -> None:
    """stdio writes past the recorder."""
    program = "import ctypes, sys; libc = ctypes.CDLL(None); libc.fopen.restype = ctypes.c_void_p\n"
    program += "file = ctypes.c_void_p(libc.fopen(f'{sys.argv[1]}/file'.encode(), b'w'))\n"
    program += "libc.fputs(b'unseen', file), libc.fclose(file)"
    recording, beginning = recorded(tmp_path, program)
    events = recording.events()
    recording.close()
    replay = Replay(beginning).until(events, events[-1].end)
    assert differences(replay, recording.root) == [
        f"{recording.root / 'file'} has 6 bytes, and other ones than were followed"
    ]


def test_after_a_freeze_nothing_changes_any_more(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    recording = Recording(build(tmp_path), disk, tmp_path / "recording")
    program = "import itertools, sys\nfor n in itertools.count(): open(f'{sys.argv[1]}/file', 'wb', 0).write(b'%d' % n)"
    environment = {**os.environ, **recording.environment}
    beginning = Beginning.of(disk)
    process = subprocess.Popen([sys.executable, "-c", program, str(disk)], env=environment)
    try:
        while not (disk / "file").exists():
            assert process.poll() is None
        recording.freeze()
    finally:
        process.kill()
        process.wait()
    events = recording.events()
    recording.close()
    assert differences(Replay(beginning).until(events, events[-1].end), disk) == []
