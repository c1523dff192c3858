"""What kazoo's thread waits for and reads."""

from __future__ import annotations

import os
import resource
import socket
import threading
import time
from collections.abc import Iterator

import pytest
from kazoo.handlers.threading import SequentialThreadingHandler
from magnetar.metadata.zookeeper_handler import BufferedSocket, ZookeeperHandler

Pair = tuple[socket.socket, BufferedSocket]


@pytest.fixture
def pair() -> Iterator[Pair]:
    theirs, ours = socket.socketpair()
    buffered = BufferedSocket(ours)
    buffered.setblocking(False)
    yield theirs, buffered
    theirs.close()
    buffered.close()


@pytest.fixture
def handler() -> ZookeeperHandler:
    return ZookeeperHandler(lambda _: None, first_reply_seconds=10.0)


def test_replies_are_received_together_and_read_one_by_one(pair: Pair) -> None:
    theirs, ours = pair
    theirs.sendall(b"firstsecond")
    assert ours.pending() == 0
    assert ours.recv(5) == b"first"
    assert ours.pending() == 6
    assert ours.recv(100) == b"second"
    assert ours.pending() == 0
    with pytest.raises(BlockingIOError):
        ours.recv(1)
    theirs.close()
    assert ours.recv(1) == b""


def test_waits_until_something_can_be_read_or_written(pair: Pair, handler: ZookeeperHandler) -> None:
    theirs, ours = pair
    assert handler.select([], [ours], [], 1.0) == ([], [ours], [])
    began = time.monotonic()
    assert handler.select([ours], [], [], 0.01) == ([], [], [])
    assert 0.01 <= time.monotonic() - began < 5.0
    theirs.sendall(b"x")
    assert handler.select([ours, theirs], [], [], None) == ([ours], [], [])


def test_what_is_buffered_is_ready_and_does_not_hide_the_others(pair: Pair, handler: ZookeeperHandler) -> None:
    theirs, ours = pair
    theirs.sendall(b"two")
    assert ours.recv(1) == b"t"
    assert handler.select([ours, theirs], [], [], 60.0) == ([ours], [], [])
    ours.send(b"a wake-up")
    assert handler.select([ours, theirs], [], [], 60.0) == ([ours, theirs], [], [])


def test_a_closed_connection_is_found(pair: Pair, handler: ZookeeperHandler) -> None:
    theirs, ours = pair
    theirs.close()
    assert handler.select([ours], [], [], 60.0) == ([ours], [], [])
    assert handler.select([], [ours], [], 60.0) == ([], [ours], [])
    ours.close()
    with pytest.raises(ValueError, match="file descriptor"):
        handler.select([ours], [], [], 60.0)


def test_files_of_any_number(handler: ZookeeperHandler) -> None:
    high = min(resource.getrlimit(resource.RLIMIT_NOFILE)[0], 4_000) - 1
    theirs, ours = socket.socketpair()
    moved = socket.socket(fileno=os.dup2(ours.fileno(), high))
    with theirs, ours, moved:
        theirs.sendall(b"x")
        assert handler.select([moved], [], [], 1.0) == ([moved], [], [])


def test_hanging_up_wakes_who_waits_and_what_was_sent_arrives(pair: Pair, handler: ZookeeperHandler) -> None:
    theirs, reader = pair
    woken: list[list[object]] = []
    thread = threading.Thread(target=lambda: woken.append([*handler.select([reader], [], [], 10)[0]]))
    thread.start()
    reader.send(b"the end")
    reader.hang_up()
    thread.join(5)
    assert woken == [[reader]]
    assert theirs.recv(100) == b"the end"
    assert theirs.recv(100) == b""
    reader.close()
    reader.hang_up()


def test_a_handler_that_hung_up_waits_no_longer(handler: ZookeeperHandler) -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        first = handler.create_connection(server.getsockname(), timeout=1)
        handler.hang_up()
        second = handler.create_connection(server.getsockname(), timeout=1)
        assert first.recv(1) == b""
        assert second.recv(1) == b""
        first.close()
        second.close()
    began = time.monotonic()
    handler.sleep_func(10)
    assert time.monotonic() - began < 5


def test_a_first_reply_is_waited_for_twice_as_long_after_each_silence() -> None:
    handler = ZookeeperHandler(lambda _: None, first_reply_seconds=0.01)
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def connect() -> BufferedSocket:
            return handler.create_connection(address=listening.getsockname(), timeout=10.0)

        def waited_seconds(connection: BufferedSocket) -> float:
            began = time.monotonic()
            assert handler.select([connection], [], [], 10.0) == ([], [], [])
            return time.monotonic() - began

        for least_seconds in (0.01, 0.02, 0.04):
            connection = connect()
            assert least_seconds <= waited_seconds(connection) < 5.0
            connection.close()
            listening.accept()[0].close()
        heard = connect()
        accepted, _ = listening.accept()
        accepted.sendall(b"x")
        assert handler.select([heard], [], [], 10.0) == ([heard], [], [])
        assert heard.recv(1) == b"x"
        began = time.monotonic()
        assert handler.select([heard], [], [], 0.1) == ([], [], [])
        assert time.monotonic() - began >= 0.1, "later replies have kazoo's time"
        accepted.close()
        heard.close()
        again = connect()
        assert 0.01 <= waited_seconds(again) < 5.0
        again.close()


def test_a_server_that_is_slow_to_accept_is_given_more_time_also_after_one_that_answered(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs, ours = pair
    given_seconds: list[float] = []

    def connect(_: ZookeeperHandler, *, timeout: float) -> BufferedSocket:
        given_seconds.append(timeout)
        if len(given_seconds) > 1:
            raise TimeoutError
        return ours

    monkeypatch.setattr(SequentialThreadingHandler, "create_connection", connect)
    handler = ZookeeperHandler(lambda _: None, first_reply_seconds=1.0)
    theirs.sendall(b"x")
    assert handler.create_connection(timeout=10.0).recv(1) == b"x"
    for _ in range(5):
        with pytest.raises(TimeoutError):
            handler.create_connection(timeout=10.0)
    assert given_seconds == [1.0, 1.0, 2.0, 4.0, 8.0, 10.0]


def test_one_that_only_closes_takes_no_patience_from_a_slow_one(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    theirs, ours = pair
    theirs.close()
    monkeypatch.setattr(SequentialThreadingHandler, "create_connection", lambda *_, timeout: ours)
    handler = ZookeeperHandler(lambda _: None, first_reply_seconds=0.01)
    slow, silent = socket.socketpair()
    with slow, silent:
        for _ in range(2):
            assert handler.create_connection(timeout=10.0).recv(1) == b""
            assert handler.select([BufferedSocket(silent)], [], [], 10.0) == ([], [], [])
        began = time.monotonic()
        assert handler.select([BufferedSocket(silent)], [], [], 10.0) == ([], [], [])
        assert time.monotonic() - began >= 0.04


@pytest.mark.parametrize(
    ("greeting_seconds", "given_seconds"), [(0.1, 2.5), (1.0, 2.5), (2.0, 4.0), (4.9, 9.8), (6.0, 10.0), (9.0, 10.0)]
)
def test_a_server_that_greets_slowly_is_waited_for_at_the_next_connection(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, greeting_seconds: float, given_seconds: float
) -> None:
    """A session of 30 s is lost ten after its connection. Attempts of 2.5 s and five leave two and a half: too few for
    a server that always takes six."""
    theirs, ours = pair
    given: list[float] = []
    seconds = 100.0

    def connect(_: ZookeeperHandler, *, timeout: float) -> socket.socket:
        given.append(timeout)
        return ours  # type: ignore[return-value]  # It is read as a socket is.

    monkeypatch.setattr(SequentialThreadingHandler, "create_connection", connect)
    handler = ZookeeperHandler(lambda _: None, 2.5, session_kept_seconds=10.0, now=lambda: seconds)
    connection = handler.create_connection(timeout=20.0)
    seconds += greeting_seconds
    theirs.sendall(b"greeting")
    assert connection.recv(8) == b"greeting"
    seconds += 1_000.0
    theirs.sendall(b"reply")
    assert connection.recv(5) == b"reply"
    handler.create_connection(timeout=20.0)
    assert given == pytest.approx([2.5, given_seconds])
