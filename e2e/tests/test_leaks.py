"""What a test leaves behind is found, and what ends in time is not."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
from dataclasses import replace

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


def _without_threads() -> Possessions:
    """Whatever an earlier test has left in this process to keep its connections."""
    return replace(Possessions.now(), threads=frozenset())


def test_a_socket_is_found_until_it_is_closed() -> None:
    before = _without_threads()
    with socket.socket() as forgotten:
        assert len(_without_threads().lasting(before)) == 1
        assert forgotten.fileno() >= 0
    assert _without_threads().lasting(before) == []


def test_a_socket_beside_one_who_keeps_connections_is_none() -> None:
    end = threading.Event()
    keeper = threading.Thread(target=end.wait, name="Thread-1 (_poll_wrapper)")
    keeper.start()
    before = Possessions.now()
    with socket.socket():
        assert left_behind(before, 0) == []
    end.set()
    keeper.join()


def test_sockets_need_not_count() -> None:
    before = Possessions.now()
    with socket.socket():
        assert left_behind(before, 0, sockets_count=False) == []
