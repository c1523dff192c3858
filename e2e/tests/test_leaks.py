"""What a test leaves behind is found, and what ends in time is not."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading

from e2e.leaks import Possessions, left_behind


def test_nothing_is_left_of_nothing() -> None:
    assert left_behind(Possessions.now()) == []


def test_a_thread_is_found_until_it_ends() -> None:
    before = Possessions.now()
    end = threading.Event()
    thread = threading.Thread(target=end.wait, name="forgotten")
    thread.start()
    assert left_behind(before, 0) == ["thread forgotten"]
    end.set()
    assert left_behind(before) == []


def test_a_process_is_found_until_it_ends() -> None:
    before = Possessions.now()
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        assert [found.split()[:2] for found in left_behind(before, 0)] == [["process", str(process.pid)]]
        process.communicate(b"\n")
    assert left_behind(before) == []


def test_a_socket_is_found_until_it_is_closed() -> None:
    before = Possessions.now()
    with socket.socket() as forgotten:
        assert len(left_behind(before, 0)) == 1
        assert forgotten.fileno() >= 0
    assert left_behind(before) == []
