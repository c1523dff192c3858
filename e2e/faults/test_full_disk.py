"""The disk is full: publishing stops with an error, nothing acknowledged is lost, and room brings it back by itself."""

from __future__ import annotations

import contextlib
import os
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e.faults.support import FaultyServer, Publisher, assert_kept, client_of, new_publisher, read_all, running
from e2e.processes import wait_for

TOPIC = "persistent://public/default/full-disk"
MIB = 1 << 20
DISK_BYTES = 384 * MIB
BALLAST_BYTES = 192 * MIB
"""Its room must bring the bookie back, which wants 112 MiB (reserve, caches, a step of the journal) beside its data."""
MESSAGE_BYTES = 64 * 1024
SEND_TIMEOUT_MS = 3_000


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "none", str(folder)], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip(f"mounting is not permitted here: {mounted.stderr.decode().strip()}")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


@pytest.mark.slow
def test_publishing_stops_on_a_full_disk_and_goes_on_when_there_is_room(tmp_path: Path, small_disk: Path) -> None:
    server = FaultyServer(small_disk / "data")
    server.log = tmp_path / "server.log"
    with running(tmp_path, server), client_of(server) as client:
        ballast = small_disk / "ballast"
        write_ballast(ballast)
        first = new_publisher(client, TOPIC, "first", MESSAGE_BYTES, send_timeout_millis=SEND_TIMEOUT_MS)
        publish_until_refused(first)
        assert len(first.acknowledged) * MESSAGE_BYTES < DISK_BYTES
        first.settle(SEND_TIMEOUT_MS / 1000 + 20)
        ballast.unlink()
        second = new_publisher(client, TOPIC, "second", 1000, send_timeout_millis=60_000)
        second.send(100)
        second.settle()
        assert not second.failed
        assert_kept([first, second], read_all(client, TOPIC, first.acknowledged + second.acknowledged))
        said = server.log_text()
        assert "the bookie turns read-only: " in said
        assert "the bookie takes writes again: " in said


@pytest.mark.slow
def test_a_disk_without_a_single_free_byte_is_ridden_out_as_well(tmp_path: Path, small_disk: Path) -> None:
    """Somebody else took all of it, the reserve too: metadata cannot be written either, for a while."""
    server = FaultyServer(small_disk / "data")
    server.log = tmp_path / "server.log"
    with running(tmp_path, server), client_of(server) as client:
        publisher = new_publisher(client, TOPIC, "p", MESSAGE_BYTES)
        publisher.send(300)
        publisher.settle()
        take_everything(small_disk / "ballast")
        publisher.send(300)
        wait_for(lambda: "No space left" in server.log_text(), 60, "the full disk is not noticed")
        statuses = [create_namespace(server, f"full-disk-{number}") for number in range(50)]
        assert any(status >= 500 for status in statuses), "metadata found room"
        (small_disk / "ballast").unlink()
        wait_for(lambda: create_namespace(server, "full-disk-after") in (204, 409), 60, "metadata does not recover")
        for number, status in enumerate(statuses):
            # What was confirmed is there; what failed may be there or not, and can be made in either case.
            assert create_namespace(server, f"full-disk-{number}") in ((409,) if status == 204 else (204, 409))
        publisher.settle()
        assert not publisher.failed
        new_publisher(client, f"{TOPIC}-another", "another").send(1)
        assert_kept([publisher], read_all(client, TOPIC, publisher.acknowledged))


@pytest.mark.slow
def test_what_was_acknowledged_before_the_disk_was_full_survives_a_kill(tmp_path: Path, small_disk: Path) -> None:
    server = FaultyServer(small_disk / "data")
    server.log = tmp_path / "server.log"
    with running(tmp_path, server), client_of(server) as client:
        ballast = small_disk / "ballast"
        write_ballast(ballast)
        publisher = new_publisher(client, TOPIC, "p", MESSAGE_BYTES, send_timeout_millis=SEND_TIMEOUT_MS)
        publish_until_refused(publisher)
        publisher.settle(SEND_TIMEOUT_MS / 1000 + 20)
        server.kill()
        ballast.unlink()
        server.start()
        assert_kept([publisher], read_all(client, TOPIC, publisher.acknowledged))


def write_ballast(path: Path) -> None:
    with path.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, BALLAST_BYTES)


def create_namespace(server: FaultyServer, name: str) -> int:
    """The status of the admin API's answer."""
    url = f"{server.admin_url}/admin/v2/namespaces/public/{name}"
    try:
        with urllib.request.urlopen(urllib.request.Request(url, method="PUT"), timeout=10) as answer:
            status: int = answer.status
            return status
    except urllib.error.HTTPError as refused:
        return refused.code


def take_everything(path: Path) -> None:
    with path.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(4096))


def publish_until_refused(publisher: Publisher) -> None:
    """Sends a few messages at a time until some of them failed."""
    while not publisher.failed:
        publisher.send(20)
        wait_for(lambda: len(publisher.acknowledged) + len(publisher.failed) > publisher.sent - 500, 60, "stuck")
        assert publisher.sent * MESSAGE_BYTES < 2 * DISK_BYTES, "more was taken than fits"
