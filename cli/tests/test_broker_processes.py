"""`magnetar broker run --processes`: real processes over a real ZooKeeper, and a stock client."""

from __future__ import annotations

import os
import re
import signal
import socket
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pulsar
import pytest
from magnetar.control.client import ControlChannel
from magnetar.control.errors import ControlUnavailable
from magnetar.net.free_ports import free_port

pytestmark = [pytest.mark.slow, pytest.mark.zookeeper]

Start = Callable[..., Any]
ONE_COPY = tuple(
    word for name in ("EnsembleSize", "WriteQuorum", "AckQuorum") for word in ("--set", f"managedLedgerDefault{name}=1")
)
ROOMY = ("--set", "diskUsageThreshold=0.99", "--set", "prometheusStatsHttpPort=0", "--set", "controlPort=0")
"""The disk that tests run on may be fuller than a bookie likes, and its ports may be taken."""
TOPICS = 16
"""Over sixteen bundles, of which each of two brokers has some: who has fewer gets the next one."""
SECONDS_MAX = 90.0


def broker_arguments(metadata_url: str, *more: object) -> tuple[object, ...]:
    """A broker of two processes, at any ports."""
    return (
        *("broker", "run", "-m", metadata_url, "--cluster", "here", "--advertised-address", "127.0.0.1"),
        *("--address", "127.0.0.1", "--port", 0, "--http-port", 0, *ONE_COPY, "--processes", 2),
        *("--processes-metrics-port", 0, "--set", "controlPort=0", "--set", "metadataStoreSessionTimeoutMillis=8000"),
        *more,
    )


def start_cluster(start_service: Start, metadata_url: str, folder: Path) -> None:
    """A prepared cluster with one bookie."""
    given = ("--cluster", "here", "-m", metadata_url, "--web-service-url", "http://here:8080")
    assert start_service("init-metadata", *given).wait() == 0
    start_service(
        *("bookie", "run", "--metadata-store", metadata_url, "--advertised-address", "127.0.0.1"),
        *("--port", free_port(), "--journal", folder / "journal", "--ledgers", folder / "ledgers", *ROOMY),
    ).wait_until_ready()


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in ("Z", "X")
    except OSError:
        return False


def wait_until(holds: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + SECONDS_MAX
    while not holds():
        assert time.monotonic() < deadline, what
        time.sleep(0.1)


def metrics_of(broker: Any) -> str:
    port = re.search(r"metrics at port (\d+)", broker.output)
    assert port is not None, broker.output
    with urllib.request.urlopen(f"http://127.0.0.1:{port[1]}/metrics", timeout=30) as answer:
        text: str = answer.read().decode()
        return text


def topics_of(broker: Any) -> list[int]:
    """How many of the topics each process has, by the joined metrics."""
    text = metrics_of(broker)
    line = r'^pulsar_subscription_back_log\{process="%d",[^}]*topic="[^"]*/t\d+"'
    return [len(re.findall(line % number, text, re.MULTILINE)) for number in (1, 2)]


async def healthy(broker: Any) -> bool:
    port = re.search(r"control port (\d+)", broker.output)
    assert port is not None, broker.output
    deadline = time.monotonic() + SECONDS_MAX
    while True:
        channel = ControlChannel(f"127.0.0.1:{port[1]}")
        try:
            return await channel.healthy()
        except ControlUnavailable:  # No answer is none: on a busy machine a call may fail.
            assert time.monotonic() < deadline, broker.errors
        finally:
            await channel.close()


@pytest.mark.clients
async def test_two_brokers_serve_at_one_address_and_one_that_is_killed_comes_back(
    start_service: Start, metadata_url: str, tmp_path: Path
) -> None:
    start_cluster(start_service, metadata_url, tmp_path)
    broker = start_service(*broker_arguments(metadata_url)).wait_until_ready()
    first, second = children(broker.process.pid)
    wait_until(lambda: metrics_of(broker).count('magnetar_process_up{process="2"} 1') == 1, "process 2 is not up")
    client = pulsar.Client(broker.output.split()[2], logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    names = [f"persistent://public/default/t{index}" for index in range(TOPICS)]
    consumers = [client.subscribe(n, "all", initial_position=pulsar.InitialPosition.Earliest) for n in names]
    producers = [client.create_producer(name) for name in names]
    for producer in producers:
        producer.send(b"before")

    wait_until(lambda: sum(topics_of(broker)) == TOPICS, "metrics do not tell of every topic")
    assert min(topics_of(broker)) > 0, topics_of(broker)
    text = metrics_of(broker)
    assert len(re.findall(r"^# TYPE pulsar_subscription_back_log ", text, re.MULTILINE)) == 1

    os.kill(second, signal.SIGKILL)
    for producer in producers:
        producer.send(b"after")
    for consumer in consumers:
        # Whoever connects again gets again what it has not acknowledged.
        missing = {b"before", b"after"}
        while missing:
            missing.discard(consumer.receive(60_000).data())
    # Once, or again: on a busy machine the next one may lose its session.
    restarted = re.compile(r'^magnetar_process_restarts_total\{process="2"\} [1-9]', re.MULTILINE)
    wait_until(lambda: restarted.search(metrics_of(broker)) is not None, "it was not restarted")
    wait_until(lambda: 'magnetar_process_up{process="2"} 1' in metrics_of(broker), "it does not serve again")
    assert alive(first)
    client.close()

    left = children(broker.process.pid)
    assert len(left) == 2
    assert broker.stop() == 0
    assert not any(map(alive, left))
    assert "Traceback" not in broker.errors


async def test_health_is_that_of_all_and_nobody_outlives_a_killed_supervisor(
    start_service: Start, metadata_url: str, tmp_path: Path
) -> None:
    start_cluster(start_service, metadata_url, tmp_path)
    broker = start_service(*broker_arguments(metadata_url)).wait_until_ready()
    both = children(broker.process.pid)
    deadline = time.monotonic() + SECONDS_MAX
    while not await healthy(broker):
        assert time.monotonic() < deadline, broker.errors
    os.kill(both[0], signal.SIGSTOP)
    try:
        # A process that hangs has no health; its port is asked, and does not answer.
        os.kill(both[1], signal.SIGKILL)
        while await healthy(broker):
            assert time.monotonic() < deadline, broker.errors
    finally:
        os.kill(both[0], signal.SIGCONT)
    everybody = children(broker.process.pid)
    broker.kill()
    wait_until(lambda: not any(map(alive, everybody)), "somebody outlives the supervisor")


def test_a_process_that_cannot_start_ends_all(start_service: Start, metadata_url: str) -> None:
    group = start_service(*broker_arguments(metadata_url))
    # Nobody prepared the cluster.
    assert group.wait() == 2
    assert "knows no cluster 'here'" in group.errors
    assert "before it served; its own lines say why" in group.errors
    assert " ready: " not in group.output


def test_a_shared_port_that_is_taken_is_told(start_service: Start, metadata_url: str) -> None:
    with socket.create_server(("127.0.0.1", free_port())) as taken:
        group = start_service(*broker_arguments(metadata_url, "--port", taken.getsockname()[1]))
        assert group.wait() == 1
    assert "The port is taken" in group.errors


def test_addresses_that_would_be_those_of_all_are_refused(start_service: Start, metadata_url: str) -> None:
    listeners = "advertisedListeners=a:pulsar://here:6650"
    group = start_service(*broker_arguments(metadata_url, "--set", listeners, "--check"))
    assert group.wait() == 2
    assert "advertisedListeners is set" in group.errors
