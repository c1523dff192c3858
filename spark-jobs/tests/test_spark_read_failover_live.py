"""Streams over a cluster of processes whose metadata store, or bookies, go away between two micro-batches.

The store is reached through a relay: cut, it is away for Spark alone. It is killed, too, for all."""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from magnetar.net.free_ports import free_port
from magnetar.spark import cluster as cluster_module
from magnetar.spark.bookies import access as cluster_access
from magnetar.spark.bookies import catalog as direct_catalog
from magnetar.spark.errors import ClusterUnreachable
from spark_fakes.data_source import Checkpoint, Driver, forget_clusters, planned, read_planned
from spark_fakes.topics import Topics, wait_until

from e2e.cluster.local import LocalCluster, Size

pytestmark = [pytest.mark.clients, pytest.mark.slow, pytest.mark.timeout(180)]

AWAY_SECONDS = 8.0
"""Longer than brokers' sessions last."""

ADMIN_URL = pytest.mark.parametrize("admin_url", [True, False], ids=["admin.url", "no admin.url"])


class Relay:
    """Passes bytes on to a port of this machine, until it is cut."""

    def __init__(self, target: int) -> None:
        self.port = free_port()
        self._target = target
        self._listening: socket.socket | None = None
        self._open: list[socket.socket] = []
        self._lock = threading.Lock()

    def join(self) -> None:
        """Take connections."""
        if self._listening is not None:
            return
        self._listening = socket.create_server(("127.0.0.1", self.port))
        threading.Thread(target=self._accept, args=(self._listening,), daemon=True).start()

    def cut(self) -> None:
        """Drop all connections; new ones are refused."""
        with self._lock:
            listening, self._listening = self._listening, None
            dropped, self._open = self._open, []
        for each in [*dropped, *([listening] if listening else [])]:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def _accept(self, listening: socket.socket) -> None:
        while True:
            try:
                near, _ = listening.accept()
            except OSError:
                return
            try:
                far = socket.create_connection(("127.0.0.1", self._target))
            except OSError:
                near.close()
                continue
            with self._lock:
                joined = self._listening is listening
                if joined:
                    self._open += [near, far]
            if not joined:
                # Cut while this one was on its way.
                near.close()
                far.close()
                return
            for one, other in ((near, far), (far, near)):
                threading.Thread(target=self._pass_on, args=(one, other), daemon=True).start()

    @staticmethod
    def _pass_on(one: socket.socket, other: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := one.recv(1 << 16):
                other.sendall(data)
        with contextlib.suppress(OSError):
            other.shutdown(socket.SHUT_RDWR)


class World:
    """The cluster and what a stream of a topic needs."""

    def __init__(self, cluster: LocalCluster) -> None:
        self.cluster = cluster
        self.relay = Relay(int(cluster.settings.metadata_url.rpartition(":")[2]))
        self.topics = Topics(cluster.service_url, cluster.admin_url)

    def options(self, topic: str, *, admin_url: bool = True, **more: str) -> dict[str, str]:
        urls = dict(self.topics.urls)
        if not admin_url:
            del urls["admin.url"]
        return {
            **urls,
            "metadata.url": f"zk:127.0.0.1:{self.relay.port}",
            "topic": topic,
            "pollInterval": "10ms",
            **more,
        }


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = Path(tmp_path_factory.mktemp("cluster"))
    with LocalCluster(folder, Size(bookies=1, brokers=1, proxies=0)) as cluster:
        cluster.start()
        made = World(cluster)
        yield made
        forget_clusters()
        made.topics.close()
        made.relay.cut()


@pytest.fixture
def world(running: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> Iterator[World]:
    # Users wait longer than tests.
    monkeypatch.setattr(cluster_access, "STORE_SECONDS", 2.0)
    monkeypatch.setattr(direct_catalog, "SILENT_SECONDS", 1.0)
    caplog.set_level(logging.WARNING, "magnetar.spark.planning.read_failover")
    running.relay.join()
    yield running
    forget_clusters()


def numbered(first: int, end: int) -> list[bytes]:
    return [b"%d" % number for number in range(first, end)]


def is_direct(driver: Driver) -> bool:
    """Of the tasks that were planned last."""
    (found,) = {partition.value.direct for partition in driver.partitions}
    assert isinstance(found, bool)
    return found


def run_until(driver: Driver, holds: Callable[[], bool]) -> None:
    """Topics are not looked at each time."""

    def ran() -> bool:
        driver.run()
        return holds()

    wait_until(ran)


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [one.message for one in caplog.records if one.name == "magnetar.spark.planning.read_failover"]


def a_minute_passes() -> None:
    for cluster in cluster_module._clusters.values():
        cluster._look_at_seconds, cluster._refused = 0.0, None


def bookies_are_back() -> bool:
    a_minute_passes()
    return any(cluster.opened_direct for cluster in cluster_module._clusters.values())


@ADMIN_URL
def test_a_stream_outlives_the_store(world: World, admin_url: bool, caplog: pytest.LogCaptureFixture) -> None:
    topics, topic = world.topics, world.topics.new("store-away")
    options = world.options(topic, admin_url=admin_url, startingOffsets="earliest")
    checkpoint = Checkpoint()
    topics.send(topic, numbered(0, 10))
    driver = Driver(options, checkpoint)
    driver.run_until(10)
    assert is_direct(driver)
    # The ledger is closed at the place where the stream is; an empty one follows, and the stream goes there.
    topics.roll(topic)
    run_until(driver, lambda: checkpoint.planned[-1][topic].endswith(":0"))

    world.relay.cut()
    begun = time.monotonic()
    run_until(driver, lambda: bool(told(caplog)))
    assert 2 <= time.monotonic() - begun < 60
    (line,) = told(caplog)
    assert line.startswith(
        "reading through brokers from here on: topics cannot be looked up directly: no connection to"
    )
    assert "trying again: the metadata store" in line
    topics.send(topic, numbered(10, 20))
    driver.run_until(20)
    assert not is_direct(driver)
    # Another driver reads what this one has planned.
    topics.send(topic, numbered(20, 25))
    wait_until(driver.plan)
    driver.die()
    driver = Driver(options, checkpoint)
    driver.run_until(25)
    topics.roll(topic)

    world.relay.join()
    caplog.clear()
    run_until(driver, bookies_are_back)
    topics.send(topic, numbered(25, 30))
    driver.run_until(30)
    assert is_direct(driver)
    assert told(caplog) == ["reading from bookies again: metadata store and bookies can be reached again"]
    assert checkpoint.values() == numbered(0, 30)


def test_a_batch_outlives_the_store(world: World) -> None:
    topic = world.topics.new("batch")
    world.topics.send(topic, numbered(0, 5))
    options = world.options(topic)
    reader, tasks = planned(options)
    assert [task.value.direct for task in tasks] == [True]
    world.relay.cut()
    try:
        assert [row["value"] for row in read_planned(*planned(options))] == numbered(0, 5)
        text = r"no connection to ZooKeeper .* \(given up after 2\.. s\); with readMode=bookies nobody else is asked"
        a_minute_passes()
        world.relay.join()
        planned({**options, "readMode": "bookies"})
        world.relay.cut()
        with pytest.raises(ClusterUnreachable, match=text):
            planned({**options, "readMode": "bookies"})
    finally:
        world.relay.join()
    # What was planned before is read as it was planned.
    assert [row["value"] for row in read_planned(reader, tasks)] == numbered(0, 5)


def test_a_stream_outlives_the_bookies(world: World, caplog: pytest.LogCaptureFixture) -> None:
    topics, topic = world.topics, world.topics.new("bookies-away")
    checkpoint = Checkpoint()
    topics.send(topic, numbered(0, 10))
    driver = Driver(world.options(topic, startingOffsets="earliest"), checkpoint)
    driver.run_until(10)
    assert is_direct(driver)
    topics.send(topic, numbered(10, 15))
    (bookie,) = world.cluster.bookies
    bookie.kill()
    try:
        wait_until(driver.plan)
        assert not is_direct(driver)
        assert "none of the bookies" in told(caplog)[0]
    finally:
        bookie.start()
    driver.read()
    driver.commit()
    run_until(driver, bookies_are_back)
    topics.send(topic, numbered(15, 20))
    driver.run_until(20)
    assert is_direct(driver)
    assert checkpoint.values() == numbered(0, 20)


def test_a_stream_waits_for_a_store_that_brokers_need_as_well(world: World) -> None:
    topics, topic = world.topics, world.topics.new("store-killed")
    checkpoint = Checkpoint()
    topics.send(topic, numbered(0, 10))
    driver = Driver(world.options(topic, startingOffsets="earliest", operationTimeout="3s"), checkpoint)
    driver.run_until(10)
    topics.send(topic, numbered(10, 15))
    store = world.cluster.metadata
    assert store is not None
    store.kill()
    starting = threading.Timer(AWAY_SECONDS, store.start)
    starting.start()
    try:
        run_until(driver, lambda: len(checkpoint.values()) == 15)
    finally:
        starting.join()
    run_until(driver, bookies_are_back)
    topics.send(topic, numbered(15, 20))
    driver.run_until(20)
    assert checkpoint.values() == numbered(0, 20)
