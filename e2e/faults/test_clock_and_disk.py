"""A real process whose disk hangs and whose wall clock jumps: nothing is lost, nobody is sent away."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

import pulsar
import pytest

from e2e import processes
from e2e.disturbing import building
from e2e.disturbing.control import Disturbance, build
from e2e.faults.support import FaultyServer, assert_kept, client_of, new_publisher, read_all, running, subscribe
from e2e.processes import wait_for

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(building.compiler() is None, reason="there is no C compiler"),
]

TOPIC = "persistent://public/default/disturbed"
JUMP_S = 600.0
LONG_S = 120.0
"""A stall that the test ends."""


class DisturbedServer(FaultyServer):
    """The standalone with a clock and a disk of its own."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder / "data")
        (folder / "data").mkdir()
        self.disturbance = Disturbance(build(folder), folder / "control", folder / "data")

    def environment(self) -> dict[str, str]:
        return self.disturbance.environment


def test_a_stalled_disk_holds_receipts_back_and_loses_nothing(tmp_path: Path) -> None:
    server = DisturbedServer(tmp_path)
    disturbance = server.disturbance
    with running(tmp_path, server), client_of(server) as client, ThreadPoolExecutor(1) as aside:
        publisher = new_publisher(client, TOPIC, "p")
        publisher.send(100)
        publisher.settle()
        disturbance.stall(LONG_S)
        publisher.send(100)
        wait_for(lambda: disturbance.hanging_calls > 0, 30, "the journal does not hang")
        # What waits for a disk waits in a thread: others are served.
        wait_for(lambda: processes.answers(f"{server.admin_url}/status.html"), 30, "the loop hangs as well")
        assert len(publisher.acknowledged) == 100
        disturbance.stall(0.0)
        publisher.settle()
        disturbance.stall(LONG_S, syncs_only=True)
        made = aside.submit(client.create_producer, f"{TOPIC}-new")
        wait_for(lambda: disturbance.hanging_calls > 0, 30, "the metadata's sync does not hang")
        wait_for(lambda: processes.answers(f"{server.admin_url}/status.html"), 30, "the loop hangs as well")
        assert not made.done()
        disturbance.stall(0.0)
        assert made.result(30) is not None
        disturbance.stall(LONG_S)
        publisher.send(100)
        wait_for(lambda: disturbance.hanging_calls > 0, 30, "the journal does not hang")
        server.kill()
        disturbance.stall(0.0)
        server.start()
        publisher.settle()
        assert_kept([publisher], read_all(client, TOPIC, publisher.acknowledged))


INDEX = """
import sys, threading, time
from pathlib import Path
from magnetar.bookie.index import Index

folder, beats = Path(sys.argv[1]), Path(sys.argv[2])
folder.mkdir()
index = Index(folder, 1 << 20)
(beats / "ready").touch()
sys.stdin.readline()
work = {"states": lambda: index.put_ledgers([(1, b"state")]), "deletion": lambda: index.delete_ledgers([1]),
        "places": lambda: (index.put_locations(1, [1], [1 << 32]), index.sync())}[sys.argv[3]]
thread = threading.Thread(target=work)
thread.start()
number = 0
while thread.is_alive():
    (beats / str(number)).touch()
    number += 1
    time.sleep(0.02)
index.close()
"""


@pytest.mark.parametrize("work", ["states", "deletion", "places"])
def test_the_index_syncs_without_the_interpreter_lock(tmp_path: Path, work: str) -> None:
    """Else a bookie answers nobody, and loses its session, while the disk syncs a checkpoint."""
    beats = tmp_path / "beats"
    beats.mkdir()
    disturbance = Disturbance(build(tmp_path), tmp_path / "control", tmp_path / "index")
    command = [sys.executable, "-c", INDEX, str(tmp_path / "index"), str(beats), work]
    environment = {**os.environ, **disturbance.environment}
    with subprocess.Popen(command, env=environment, stdin=subprocess.PIPE) as process:
        try:
            wait_for((beats / "ready").exists, 30, "the index is not opened")
            disturbance.stall(LONG_S, syncs_only=True)
            assert process.stdin is not None
            process.stdin.write(b"go\n")
            process.stdin.flush()
            wait_for(lambda: disturbance.hanging_calls > 0, 30, "no sync hangs")
            before = len(list(beats.iterdir()))
            wait_for(lambda: len(list(beats.iterdir())) > before + 2, 30, "nothing else runs while the index syncs")
            assert disturbance.hanging_calls > 0
            disturbance.stall(0.0)
            assert process.wait(30) == 0
        finally:
            process.kill()


def test_nobody_notices_a_clock_that_jumps(tmp_path: Path) -> None:
    server = DisturbedServer(tmp_path)
    with running(tmp_path, server), client_of(server) as client:
        publisher = new_publisher(client, TOPIC, "p")
        later = client.create_producer(f"{TOPIC}-later")
        delayed = subscribe(client, f"{TOPIC}-later", "s", consumer_type=pulsar.ConsumerType.Shared)
        for ahead_s in (JUMP_S, -JUMP_S, JUMP_S, 0.0):
            server.disturbance.set_clock(ahead_s)
            publisher.send(100)
            publisher.settle()
        assert server.disturbance.clock_reads > 0
        server.disturbance.set_clock(JUMP_S)
        later.send(b"early by the jump", deliver_after=timedelta(seconds=JUMP_S / 2))
        assert delayed.receive(30_000).data() == b"early by the jump"
        server.disturbance.set_clock(0.0)
        received = read_all(client, TOPIC, publisher.acknowledged)
        assert_kept([publisher], received)
        assert len(received) == publisher.sent, "a message was sent twice, so a connection was cut"
