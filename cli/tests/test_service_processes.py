"""`magnetar bookie run`, `broker run` and `autorecovery run` as processes over a real ZooKeeper."""

from __future__ import annotations

import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pulsar
import pytest
from magnetar.core.crashes import DIRECTORY_VARIABLE, TRACE_FILE
from magnetar.metadata.testing import ZookeeperServer
from magnetar.net.free_ports import free_port

pytestmark = [pytest.mark.slow, pytest.mark.zookeeper]

Start = Callable[..., Any]
ONE_COPY = tuple(
    word for name in ("EnsembleSize", "WriteQuorum", "AckQuorum") for word in ("--set", f"managedLedgerDefault{name}=1")
)
ROOMY = ("--set", "diskUsageThreshold=0.99", "--set", "prometheusStatsHttpPort=0", "--set", "controlPort=0")
"""The disk that tests run on may be fuller than a bookie likes, and its ports may be taken."""


def magnetar(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "magnetar.cli", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


def bookie_arguments(folder: Path, metadata_url: str, port: int = 0) -> list[object]:
    directories = ["--journal", folder / "journal", "--ledgers", folder / "ledgers"]
    return [
        *("bookie", "run", "--metadata-store", metadata_url, "--advertised-address", "127.0.0.1"),
        *("--port", port or free_port(), *directories, *ROOMY),
    ]


def prepare(metadata_url: str) -> None:
    made = magnetar("init-metadata", "--cluster", "here", "-m", metadata_url, "--web-service-url", "http://here:8080")
    assert made.returncode == 0, made.stderr
    assert made.stdout.startswith("cluster here is prepared; instance ")


@pytest.mark.clients
def test_a_cluster_of_processes_keeps_messages(start_service: Start, metadata_url: str, tmp_path: Path) -> None:
    prepare(metadata_url)
    port = free_port()
    conf = tmp_path / "bookkeeper.conf"
    conf.write_text(
        "# as Apache's bookies read it\n"
        f"metadataServiceUri=metadata-store:{metadata_url}\nbookiePort={port}\nadvertisedAddress=127.0.0.1\n"
        f"journalDirectory={tmp_path}/j\nledgerDirectories={tmp_path}/l1,{tmp_path}/l2\n"
        "diskUsageThreshold=0.99\nprometheusStatsHttpPort=0\ncontrolPort=0\nuseV2WireProtocol=true\ndbStorage_rocksDB_blockCacheSize=\n"
    )
    broker_arguments = (
        *("broker", "run", "-m", metadata_url, "--cluster", "here", "--advertised-address", "127.0.0.1"),
        *("--address", "127.0.0.1", "--port", 0, "--http-port", 0, *ONE_COPY),
    )
    for round_number in range(2):
        bookie = start_service("bookie", "run", "--conf", conf).wait_until_ready()
        assert bookie.output.startswith(f"bookie ready: 127.0.0.1:{port} on port {port}")
        assert "settings without effect here: " in bookie.errors
        assert "useV2WireProtocol" in bookie.errors
        broker = start_service(*broker_arguments).wait_until_ready()
        service_url = broker.output.split()[2]
        client = pulsar.Client(service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
        consumer = client.subscribe("kept", "all", initial_position=pulsar.InitialPosition.Earliest)
        client.create_producer("kept").send(b"%d" % round_number)
        assert [consumer.receive(30_000).data() for _ in range(round_number + 1)] == [b"0", b"1"][: round_number + 1]
        client.close()
        assert broker.stop() == 0
        assert bookie.stop() == 0
        assert "Traceback" not in bookie.errors + broker.errors


@pytest.mark.clients
def test_a_broker_whose_bookies_have_another_store(start_service: Start, metadata_url: str, tmp_path: Path) -> None:
    """bookkeeperMetadataServiceUri, in BookKeeper's own form: ledgers are there, topics where the broker's store is."""
    bookies, brokers = f"{metadata_url}/bookies", f"{metadata_url}/brokers"
    uri = "zk+hierarchical://" + bookies.removeprefix("zk:") + "/ledgers"
    bookie = start_service(*bookie_arguments(tmp_path, bookies)).wait_until_ready()
    given = ("--cluster", "here", "-m", brokers, "--web-service-url", "http://here:8080")
    prepared = magnetar("init-metadata", *given, "--existing-bk-metadata-service-uri", uri)
    assert prepared.returncode == 0, prepared.stderr
    arguments = (
        *("broker", "run", "-m", brokers, "--cluster", "here", "--advertised-address", "127.0.0.1"),
        *("--address", "127.0.0.1", "--port", 0, "--http-port", 0, *ONE_COPY, "--set", "controlPort=0"),
    )
    wrong = start_service(*arguments, "--check", "--set", "bookkeeperMetadataServiceUri=oxia://x")
    assert wrong.wait() == 2
    assert "metadata URL 'oxia://x' is not one of" in wrong.errors
    broker = start_service(*arguments, "--set", f"bookkeeperMetadataServiceUri={uri}").wait_until_ready()
    client = pulsar.Client(broker.output.split()[2], logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    consumer = client.subscribe("kept", "all", initial_position=pulsar.InitialPosition.Earliest)
    client.create_producer("kept").send(b"x")
    assert consumer.receive(30_000).data() == b"x"
    client.close()
    assert broker.stop() == 0
    assert len(magnetar("bookie", "list-ledgers", "-m", bookies).stdout.splitlines()) >= 1
    assert magnetar("bookie", "list-bookies", "-m", brokers, "--json", "--no-usage").stdout in ("", "[]\n")
    assert bookie.stop() == 0
    assert "Traceback" not in bookie.errors + broker.errors


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signals_stop_a_bookie_cleanly(
    start_service: Start, metadata_url: str, tmp_path: Path, number: signal.Signals
) -> None:
    arguments = bookie_arguments(tmp_path, metadata_url)
    bookie = start_service(*arguments).wait_until_ready()
    listed = magnetar("bookie", "list-bookies", "-m", metadata_url, "--json").stdout
    assert '"mode": "writable"' in listed
    assert bookie.stop(number) == 0
    # Its session ended with it: nobody waits for a timeout to learn that it is gone.
    assert magnetar("bookie", "list-bookies", "-m", metadata_url, "--json").stdout == "[]\n"


def test_a_crash_is_told_and_counted_by_the_next_process(
    start_service: Start, metadata_url: str, tmp_path: Path
) -> None:
    arguments = bookie_arguments(tmp_path, metadata_url)
    # The operator has it so: beside `current`, on the volume for ledgers.
    crashes = tmp_path / "ledgers" / "crashes"
    environment = {DIRECTORY_VARIABLE: str(crashes)}
    bookie = start_service(*arguments, environment=environment).wait_until_ready()
    assert bookie.stop(signal.SIGSEGV) == -signal.SIGSEGV
    assert "Segmentation fault" in (crashes / TRACE_FILE).read_text()
    # A check of the settings is no life of the server.
    assert start_service(*arguments, "--check", environment=environment).wait() == 0
    bookie = start_service(*arguments, environment=environment).wait_until_ready()
    assert "crashed, number 1 here" in bookie.errors
    assert "Segmentation fault" in bookie.errors
    assert bookie.stop() == 0


def test_a_signal_while_starting_gives_the_start_up(start_service: Start, tmp_path: Path) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        bookie = start_service(*bookie_arguments(tmp_path, f"zk:127.0.0.1:{silent.getsockname()[1]}"))
        connection, _ = silent.accept()
        with connection:
            assert bookie.stop() == 0
    assert " ready: " not in bookie.output


def test_a_taken_port_is_named(start_service: Start, metadata_url: str, tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("0.0.0.0", 0))
        taken.listen()
        port = taken.getsockname()[1]
        bookie = start_service(*bookie_arguments(tmp_path, metadata_url, port))
        assert bookie.wait() == 1
    assert str(port) in bookie.errors
    assert "The port is taken" in bookie.errors
    assert "Traceback" not in bookie.errors


def test_exit_codes_tell_what_is_wrong_with_the_directories(
    start_service: Start, metadata_url: str, tmp_path: Path
) -> None:
    def ends_with(code: int, said: str) -> None:
        bookie = start_service(*arguments, "--set", "bookieId=one")
        assert bookie.wait() == code
        # The lines are as wide as the terminal.
        assert said in " ".join(bookie.errors.split())
        assert "Traceback" not in bookie.errors

    arguments = bookie_arguments(tmp_path, metadata_url)
    ledgers, away, cookie = tmp_path / "ledgers", tmp_path / "away", tmp_path / "cookie"
    start_service(*arguments, "--set", "bookieId=one").wait_until_ready().stop()
    ledgers.rename(away)
    ends_with(3, "Is the right disk mounted?")
    shutil.rmtree(ledgers)
    away.rename(ledgers)
    version = ledgers / "current" / "VERSION"
    version.write_text(version.read_text().replace('"one"', '"two"'))
    ends_with(4, "has bookieHost 'two', this bookie 'one'")
    version.write_text(version.read_text().replace('"two"', '"one"'))
    cookie.write_bytes(version.read_bytes())
    assert magnetar("bookie", "cookie", "delete", "one", "--yes", "-m", metadata_url).returncode == 0
    ends_with(5, "was taken out of the cluster on purpose, empty the directories")
    assert magnetar("bookie", "cookie", "create", "one", cookie, "-m", metadata_url).returncode == 0
    start_service(*arguments, "--set", "bookieId=one").wait_until_ready()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--set", "journalMaxSizeMb=5"], "there is no setting 'journalMaxSizeMb'; did you mean 'journalMaxSizeMB'?"),
        (["--set", "journalMaxSizeMB=many"], "journalMaxSizeMB is 'many', and not a whole number of MIB"),
        (["--set", "journalMaxSizeMB"], "it must be NAME=VALUE"),
        (["--set", "diskUsageThreshold=1.5"], "diskUsageThreshold is '1.5', and not a number from 0.01 to 1"),
        (["--set", "listeningInterface=none0"], "listeningInterface 'none0' has no address"),
        (["--conf", "/nowhere/bookkeeper.conf"], "cannot be read: No such file"),
        (["--metadata-store", "zk+flat://h:1/ledgers"], "laid out as 'flat'"),
        (["--set", "tlsProviderFactoryClass=x.Y"], "tlsProviderFactoryClass is x.Y; there is"),
        (["--port", "0"], "bookiePort 0 needs a bookieId"),
    ],
)
def test_bad_settings_are_named(
    start_service: Start, metadata_url: str, tmp_path: Path, arguments: list[str], said: str
) -> None:
    bookie = start_service(*bookie_arguments(tmp_path, metadata_url), *arguments)
    assert bookie.wait() == 2
    assert said in bookie.errors
    assert "Traceback" not in bookie.errors


def test_settings_come_from_the_environment_too(start_service: Start, tmp_path: Path) -> None:
    arguments = ("bookie", "run", "--check", "--set", "advertisedAddress=10.0.0.1")
    good = start_service(*arguments, environment={"PULSAR_PREFIX_bookieId": "x", "gcWaitTime": "1000"})
    assert good.wait() == 0
    assert good.output == "bookie: the settings are valid\n"
    bad = start_service(*arguments, environment={"flushInterval": "soon"})
    assert bad.wait() == 2
    assert "environment variable flushInterval: flushInterval is 'soon'" in bad.errors
    unknown = start_service(*arguments, environment={"PULSAR_PREFIX_bookieID": "x"})
    assert unknown.wait() == 2
    assert "PULSAR_PREFIX_bookieID: there is no setting 'bookieID'; did you mean 'bookieId'?" in unknown.errors


def test_a_bookie_that_others_could_not_reach_does_not_start(start_service: Start) -> None:
    loopback = ("--set", "listeningInterface=lo")
    refused = start_service("bookie", "run", "--check", *loopback)
    assert refused.wait() == 2
    assert "set advertisedAddress, or allowLoopback=true" in refused.errors
    assert start_service("bookie", "run", "--check", *loopback, "--set", "allowLoopback=true").wait() == 0


def test_a_broker_wants_a_prepared_cluster(start_service: Start, metadata_url: str) -> None:
    arguments = ("broker", "run", "-m", metadata_url, "--port", 0, "--http-port", 0)
    nameless = start_service(*arguments)
    assert nameless.wait() == 2
    assert "clusterName is not set" in nameless.errors
    unprepared = start_service(*arguments, "--cluster", "nowhere")
    assert unprepared.wait() == 2
    assert "magnetar init-metadata --cluster nowhere" in unprepared.errors
    open_door = start_service(*arguments, "--cluster", "x", "--check", "--set", "tlsEnabledWithKeyStore=true")
    assert open_door.wait() == 2
    assert "tlsEnabledWithKeyStore=true asks for a protection" in open_door.errors
    quorums = start_service(*arguments, "--cluster", "x", "--check", "--set", "managedLedgerDefaultAckQuorum=3")
    assert quorums.wait() == 2
    assert "managedLedgerDefaultWriteQuorum 2 >= managedLedgerDefaultAckQuorum 3" in quorums.errors
    rate = start_service(*arguments, "--cluster", "x", "--check", "--set", "managedLedgerDefaultMarkDeleteRateLimit=0")
    assert rate.wait() == 0, "without a bound, as with Apache's"


def test_a_read_only_broker_is_not_told_to_prepare_a_second_cluster(start_service: Start, metadata_url: str) -> None:
    arguments = ("broker", "run", "-m", metadata_url, "--port", 0, "--http-port", 0, "--cluster", "elsewhere")
    prepare(metadata_url)
    refused = start_service(*arguments, "--set", "readOnlyBrokerEnabled=true")
    assert refused.wait() == 2
    assert "knows no cluster 'elsewhere', but here" in refused.errors
    assert "init-metadata" not in refused.errors


def test_autorecovery_runs_by_itself(start_service: Start, metadata_url: str) -> None:
    prepare(metadata_url)
    recovery = start_service("autorecovery", "run", "-m", metadata_url).wait_until_ready()
    deadline = time.monotonic() + 60
    while (found := magnetar("autorecovery", "who-is-auditor", "-m", metadata_url)).returncode != 0:
        assert time.monotonic() < deadline, found.stderr
    assert recovery.output.split()[-1] in found.stdout
    assert recovery.stop() == 0
    assert magnetar("autorecovery", "who-is-auditor", "-m", metadata_url).returncode == 1


def test_a_bookie_outlives_zookeepers_restart(start_service: Start, tmp_path: Path) -> None:
    with ZookeeperServer(tmp_path / "own-zookeeper") as server:
        url = f"zk:{server.address}"
        bookie = start_service(*bookie_arguments(tmp_path, url), "--set", "zkTimeout=2000").wait_until_ready()
        server.kill()
        time.sleep(3)
        server.start()
        deadline = time.monotonic() + 60
        while magnetar("bookie", "list-bookies", "-m", url, "--json", "--no-usage").stdout == "[]\n":
            assert bookie.process.poll() is None, bookie.errors
            assert time.monotonic() < deadline, bookie.errors
        assert bookie.stop() == 0


def test_init_metadata_makes_what_apaches_tool_makes(metadata_url: str, zookeeper_server: ZookeeperServer) -> None:
    prepare(metadata_url)
    prepare(metadata_url)
    from kazoo.client import KazooClient

    client = KazooClient(zookeeper_server.address + metadata_url.removeprefix(f"zk:{zookeeper_server.address}"))
    client.start()
    try:
        for path in (
            "/ledgers/INSTANCEID",
            "/ledgers/available/readonly",
            "/ledgers/LAYOUT",
            "/bookies",
            "/admin/clusters/here",
            "/admin/clusters/global",
            "/admin/policies/public/default",
            "/admin/policies/pulsar/system",
            "/admin/partitioned-topics/pulsar/system/persistent/transaction_coordinator_assign",
        ):
            assert client.exists(path), path
    finally:
        client.stop()
        client.close()
