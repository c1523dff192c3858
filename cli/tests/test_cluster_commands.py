"""The commands that ask a cluster: three bookie processes on a real ZooKeeper."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from magnetar.cli.command_line import application
from magnetar.cli.tools.cluster import open_cluster
from magnetar.core.errors import MagnetarError
from magnetar.ledger.api import LedgerOptions
from magnetar.metadata.testing import ZookeeperServer
from magnetar.net.free_ports import free_port
from magnetar.net.testing import TestAuthority
from magnetar.process.metadata_settings import MetadataSettings
from typer.testing import CliRunner, Result

pytestmark = [pytest.mark.slow, pytest.mark.zookeeper]

READY_SECONDS_MAX = 60
BOOKIES_MAX = 6


@dataclass
class Bookies:
    """Bookie processes on one ZooKeeper."""

    url: str
    folder: Path
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def start(self, bookie_id: str, *settings: str) -> None:
        port = bookie_id.rpartition(":")[2]
        folder = self.folder / port
        command = [
            *(sys.executable, "-m", "magnetar.cli", "bookie", "run", "--metadata-store", self.url),
            *("--port", port, "--advertised-address", "127.0.0.1", "--set", "diskUsageThreshold=0.99"),
            *(
                "--set",
                "autoRecoveryDaemonEnabled=false",
                "--set",
                "prometheusStatsHttpPort=0",
                "--set",
                "controlPort=0",
            ),
            *("--set", "zkTimeout=2000", "--journal", str(folder / "journal"), "--ledgers", str(folder / "ledgers")),
            *(word for setting in settings for word in ("--set", setting)),
        ]
        output = self.folder / f"{port}.out"
        with output.open("wb") as file:
            self.processes[bookie_id] = subprocess.Popen(command, stdout=file, stderr=file)
        deadline = time.monotonic() + READY_SECONDS_MAX
        while b"bookie ready: " not in output.read_bytes():
            assert time.monotonic() < deadline, output.read_text()
            assert self.processes[bookie_id].poll() is None, output.read_text()
            time.sleep(0.01)

    def control(self, bookie_id: str) -> str:
        """The address of its control port."""
        ready = (self.folder / f"{bookie_id.rpartition(':')[2]}.out").read_text()
        return f"127.0.0.1:{ready.partition(', control port ')[2].split()[0]}"

    def stop(self, bookie_id: str) -> None:
        process = self.processes.pop(bookie_id)
        process.terminate()
        assert process.wait(60) == 0

    def close(self) -> None:
        for process in self.processes.values():
            process.kill()
            process.wait()

    def run(self, *arguments: object, code: int = 0, **environment: str) -> Result:
        variables = {"MAGNETAR_METADATA_STORE": self.url, "NO_COLOR": "1", **environment}
        result = CliRunner().invoke(application, [*map(str, arguments)], env=variables)
        assert result.exit_code == code, result.output
        return result

    def rows(self, *arguments: object, code: int = 0) -> Any:
        return json.loads(self.run(*arguments, "--json", code=code).stdout)


@pytest.fixture(scope="module")
def bookies(tmp_path_factory: pytest.TempPathFactory, zookeeper_server: ZookeeperServer) -> Iterator[Bookies]:
    folder = tmp_path_factory.mktemp("bookies")
    with contextlib.ExitStack() as running:
        cluster = Bookies(f"zk:{zookeeper_server.address}/{folder.name}", folder)
        running.callback(cluster.close)
        cluster.run("init-metadata", "--cluster", "x", "-m", cluster.url, "--web-service-url", "http://x")
        for bookie_id in ids(3):
            cluster.start(bookie_id)
        yield cluster


@functools.cache
def ports() -> list[int]:
    """Of all bookies here, in the order in which commands list them."""
    return sorted(free_port() for _ in range(BOOKIES_MAX))


def ids(count: int) -> list[str]:
    return [f"127.0.0.1:{port}" for port in ports()[:count]]


class Listener:
    def __init__(self) -> None:
        self.heard = asyncio.Event()

    def confirmed(self, ledger_id: int, last_add_confirmed: int) -> None:
        self.heard.set()

    def failed(self, ledger_id: int, error: MagnetarError) -> None:
        raise AssertionError(error)


def write(bookies: Bookies, *, entries: int = 12, close: bool = True, options: LedgerOptions | None = None) -> int:
    """A new ledger's id."""

    async def work() -> int:
        async with open_cluster(MetadataSettings(url=bookies.url)) as cluster:
            listener = Listener()
            writer = await cluster.client.create(
                options or LedgerOptions(ensemble_size=3, write_quorum=2, ack_quorum=2), listener
            )
            writer.append([b"entry %d" % number for number in range(entries)])
            await listener.heard.wait()
            if close:
                await writer.close()
            return writer.ledger_id

    return asyncio.run(work())


def test_list_bookies(bookies: Bookies) -> None:
    found = bookies.rows("bookie", "list-bookies")
    assert [row["bookie_id"] for row in found] == ids(3)
    assert {row["mode"] for row in found} == {"writable"}
    assert all(row["total_bytes"] >= row["free_bytes"] > 0 for row in found)
    assert {row["rack"] for row in found} == {"/default-rack"}
    assert bookies.rows("bookie", "list-bookies", "-ro") == []
    lines = bookies.run("bookie", "list-bookies", "--no-usage").stdout.splitlines()
    assert lines[0].split("\t") == ["bookie", "mode", "address", "rack"]
    assert len(lines) == 4


def test_a_bookie_that_does_not_say_how_full_it_is_has_its_reason(bookies: Bookies, tmp_path: Path) -> None:
    authority = TestAuthority(tmp_path)
    certificate = authority.issue("bookie", "IP:127.0.0.1")
    secured = f"127.0.0.1:{free_port()}"
    bookies.start(
        secured,
        "tlsRequired=true",
        "tlsProviderFactoryClass=org.apache.bookkeeper.tls.TLSContextFactory",
        "tlsKeyStoreType=PEM",
        f"tlsKeyStore={certificate.key_file}",
        f"tlsCertificatePath={certificate.certificate_file}",
        "tlsTrustStoreType=PEM",
        f"tlsTrustStore={authority.certificate_file}",
    )
    told = f"{secured} does not say how full it is: it serves nobody without TLS, or nobody of this role"
    assert told in bookies.run("bookie", "list-bookies").stderr
    assert bookies.run("bookie", "list-bookies", "--no-usage").stderr == ""
    rows = {row["bookie_id"]: row for row in bookies.rows("bookie", "list-bookies")}
    assert [rows[bookie_id]["problem"] for bookie_id in ids(3)] == [""] * 3
    assert (rows[secured]["total_bytes"], rows[secured]["problem"] != "") == (None, True)
    bookies.stop(secured)
    bookies.run("bookie", "cookie", "delete", secured, "--yes")


def test_ledgers_and_their_metadata(bookies: Bookies) -> None:
    password = LedgerOptions(ensemble_size=2, write_quorum=2, ack_quorum=1, password=b"secret", digest_type="HMAC")
    first, second = write(bookies), write(bookies, close=False, options=password)
    assert [row["ledger_id"] for row in bookies.rows("bookie", "list-ledgers")][-2:] == [first, second]
    found = {row["ledger_id"]: row for row in bookies.rows("bookie", "list-ledgers", "--metadata")}
    assert (found[first]["state"], found[first]["last_entry_id"]) == ("CLOSED", 11)
    assert (found[second]["state"], found[second]["ack_quorum"]) == ("OPEN", 1)
    assert set(found[first]["bookies"]) == set(ids(3))
    outsider = (set(ids(3)) - set(found[second]["bookies"])).pop()
    assert second not in [row["ledger_id"] for row in bookies.rows("bookie", "list-ledgers", "--bookie", outsider)]
    document = bookies.rows("bookie", "ledger-metadata", first)[str(first)]
    assert (document["state"], document["closed"], document["ensembleSize"]) == ("CLOSED", True, 3)
    assert "E/Qw/Qa" in bookies.run("bookie", "ledger-metadata", first).stdout
    bookies.run("bookie", "read-ledger", second, "--force-recovery", "--password", "secret")
    missing = bookies.run("bookie", "ledger-metadata", 999_999, code=1)
    assert "there is no ledger 999999" in missing.stderr
    assert "list-ledgers" in missing.stderr


def test_read_ledger(bookies: Bookies) -> None:
    ledger = write(bookies)
    found = bookies.rows("bookie", "read-ledger", ledger, "--from", 2, "--to", 4, "--format", "text")
    assert [(row["entry_id"], row["text"]) for row in found] == [(n, f"entry {n}") for n in (2, 3, 4)]
    assert "65 6e 74 72 79 20 30" in bookies.run("bookie", "read-ledger", ledger, "--to", 0).stdout
    of_one = bookies.rows("bookie", "read-ledger", ledger, "--bookie", ids(3)[0], "--format", "none")
    assert len(of_one) == 8
    assert all(row["problem"] == "" for row in of_one)
    assert "--force-recovery" in bookies.run("bookie", "read-ledger", ledger, "--to", 99, code=1).stderr


def test_force_recovery_closes_an_open_ledger(bookies: Bookies) -> None:
    ledger = write(bookies, close=False)
    bookies.run("bookie", "read-ledger", ledger, "--format", "none")
    assert bookies.rows("bookie", "ledger-metadata", ledger)[str(ledger)]["state"] == "OPEN"
    assert len(bookies.rows("bookie", "read-ledger", ledger, "--force-recovery")) == 12
    assert bookies.rows("bookie", "ledger-metadata", ledger)[str(ledger)]["lastEntryId"] == 11


def test_a_ledgers_password_is_asked_for(bookies: Bookies) -> None:
    options = LedgerOptions(ensemble_size=1, write_quorum=1, ack_quorum=1, password=b"secret")
    ledger = write(bookies, options=options)
    assert "--password" in bookies.run("bookie", "read-ledger", ledger, code=1).stderr
    assert len(bookies.rows("bookie", "read-ledger", ledger, "--password", "secret")) == 12
    bookies.run("bookie", "read-ledger", ledger, MAGNETAR_LEDGER_PASSWORD="secret")
    # Its only copy would be lost when the last test stops a bookie.
    bookies.run("bookie", "delete-ledger", ledger, "--yes")


def test_delete_ledger_asks_first(bookies: Bookies) -> None:
    ledger = write(bookies)
    refused = CliRunner().invoke(
        application, ["bookie", "delete-ledger", str(ledger), "-m", bookies.url], input="n\n", env={"NO_COLOR": "1"}
    )
    assert refused.exit_code == 1
    bookies.run("bookie", "ledger-metadata", ledger)
    bookies.run("bookie", "delete-ledger", ledger, "--yes")
    bookies.run("bookie", "ledger-metadata", ledger, code=1)


def test_sanity_and_simple_test(bookies: Bookies, tmp_path: Path) -> None:
    before = bookies.rows("bookie", "list-ledgers")
    one = bookies.rows("bookie", "sanity-test", ids(3)[1], "--entries", 25)
    assert (one["entries"], one["bookies"]) == (25, [ids(3)[1]])
    host, _, port = ids(3)[2].rpartition(":")
    conf = tmp_path / "bookkeeper.conf"
    conf.write_text(f"advertisedAddress={host}\nbookiePort={port}\nmetadataServiceUri={bookies.url}\n")
    assert bookies.rows("bookie", "sanity-test", "--conf", conf)["bookies"] == [ids(3)[2]]
    every = bookies.rows("bookie", "simple-test", "-e", 3, "-w", 3, "-a", 2, "-n", 250)
    assert (every["entries"], every["bookies"]) == (250, ids(3))
    too_many = bookies.run("bookie", "simple-test", "-e", 9, "-w", 2, "-a", 2, code=1)
    assert "9 bookies are needed" in too_many.stderr
    assert "list-bookies" in too_many.stderr
    assert bookies.run("bookie", "simple-test", "-e", 1, code=2).stderr
    assert bookies.rows("bookie", "list-ledgers") == before


def test_autorecovery_switches_and_marks(bookies: Bookies) -> None:
    bookies.run("autorecovery", "disable")
    assert bookies.rows("autorecovery", "status")["enabled"] is False
    assert "off, as it was" in bookies.run("autorecovery", "disable").stderr
    bookies.run("bookie", "autorecovery", "enable")
    assert bookies.rows("autorecovery", "status")["enabled"] is True
    assert "nobody has set it" in bookies.run("autorecovery", "lost-bookie-recovery-delay").stderr
    assert bookies.run("autorecovery", "lost-bookie-recovery-delay", 60).stdout == "60\n"
    bookies.run("autorecovery", "audit")
    before = bookies.rows("autorecovery", "status")
    assert (before["lost_bookie_recovery_delay_seconds"], before["last_ledgers_check_ms"]) == (60, None)
    bookies.run("autorecovery", "audit", "--entries")
    asked = bookies.rows("autorecovery", "status")
    assert (asked["last_ledgers_check_ms"], asked["last_replicas_check_ms"], asked["last_placement_check_ms"]) == (
        0,
        0,
        None,
    )
    text = bookies.run("autorecovery", "status").stdout
    assert text.count("asked for") == 2
    assert text.count("never") == 1
    assert bookies.rows("bookie", "list-under-replicated") == []
    _mark(bookies, 7, ["a:1", "b:1"])
    _mark(bookies, 8, ["b:1"])
    listed = bookies.rows("autorecovery", "list-under-replicated")
    assert [(row["ledger_id"], row["missing_replicas"]) for row in listed] == [(7, ["a:1", "b:1"]), (8, ["b:1"])]
    some = bookies.rows("bookie", "list-under-replicated", "--exclude-missing-replica", "a:1")
    assert [row["ledger_id"] for row in some] == [8]


def _mark(bookies: Bookies, ledger: int, missing: list[str]) -> None:
    from magnetar.bookie.autorecovery.underreplication import UnderreplicatedLedgers

    async def work() -> None:
        async with open_cluster(MetadataSettings(url=bookies.url)) as cluster:
            marks = UnderreplicatedLedgers(cluster.store, "test")
            await marks.mark(ledger, missing)
            await marks.close()

    asyncio.run(work())


def test_cookies(bookies: Bookies, tmp_path: Path) -> None:
    bookie_id = ids(3)[0]
    cookie = bookies.run("bookie", "cookie", "get", bookie_id).stdout
    assert f'bookieHost: "{bookie_id}"' in cookie
    instance = bookies.run("bookie", "instance-id").stdout.strip()
    assert f'instanceId: "{instance}"' in cookie
    assert "is up" in bookies.run("bookie", "cookie", "delete", bookie_id, "--yes", code=1).stderr
    bookies.run("bookie", "cookie", "get", "nobody:1", code=1)
    file = tmp_path / "VERSION"
    file.write_text(cookie.replace(bookie_id, "other:1"))
    bookies.run("bookie", "cookie", "create", "other:1", file)
    assert "has a cookie already" in bookies.run("bookie", "cookie", "create", "other:1", file, code=1).stderr
    assert "not of third:1" in bookies.run("bookie", "cookie", "create", "third:1", file, code=1).stderr
    down = [row for row in bookies.rows("bookie", "list-bookies", "--all") if row["mode"] == "down"]
    assert [row["bookie_id"] for row in down] == ["other:1"]
    bookies.run("bookie", "cookie", "delete", "other:1", "--yes")
    file.write_text("nonsense")
    assert "damaged cookie" in bookies.run("bookie", "cookie", "create", "other:1", file, code=1).stderr


def test_a_running_bookie_is_steered(bookies: Bookies) -> None:
    bookie_id = ids(3)[0]
    control = bookies.control(bookie_id)
    state = bookies.rows("bookie", "state", control)
    assert (state["bookie_id"], state["running"], state["read_only"]) == (bookie_id, True, False)
    assert {directory["kind"] for directory in state["directories"]} >= {"journal", "ledgers"}
    shown = bookies.run("bookie", "state", control).stdout
    assert "writable" in shown
    assert re.search(r"^limbo +no$", shown, re.MULTILINE)
    assert state["limbo"]["in_limbo"] is False
    assert "is read-only" in bookies.run("bookie", "read-only", control, "on").stderr
    assert [row["bookie_id"] for row in bookies.rows("bookie", "list-bookies", "--read-only")] == [bookie_id]
    assert "is writable" in bookies.run("bookie", "read-only", control, "off").stderr
    assert "has begun" in bookies.run("bookie", "trigger-gc", control, "--no-major").stderr
    assert bookies.rows("bookie", "drain", control, "--status")["step"] == "NONE"


def test_a_running_bookie_drains_itself(bookies: Bookies) -> None:
    extra = ids(6)[5]
    bookies.start(extra)
    ledgers = [write(bookies, options=LedgerOptions(ensemble_size=4, write_quorum=2, ack_quorum=2)) for _ in range(2)]
    refused = bookies.run("bookie", "drain", bookies.control(extra), code=1)
    assert "nobody could take its place" in refused.stderr
    for ledger in ledgers:
        bookies.run("bookie", "delete-ledger", ledger, "--yes")
    state = bookies.rows("bookie", "drain", bookies.control(extra))
    assert (state["step"], state["ledgers_left"]) == ("DONE", 0)
    assert extra not in [row["bookie_id"] for row in bookies.rows("bookie", "list-bookies", "--writable")]
    bookies.stop(extra)
    assert extra not in [row["bookie_id"] for row in bookies.rows("bookie", "list-bookies", "--all")]


@pytest.mark.changes_shared_servers
def test_recover_and_decommission(bookies: Bookies) -> None:
    """Last, as it changes which bookies there are."""
    options = LedgerOptions(ensemble_size=3, write_quorum=3, ack_quorum=2)
    ledger, open_ledger = write(bookies, options=options), write(bookies, options=options, close=False)
    stuck = write(bookies, options=LedgerOptions(ensemble_size=3, write_quorum=3, ack_quorum=1), close=False)
    lost, leaving = ids(3)[2], ids(3)[1]
    bookies.stop(lost)
    planned = bookies.run("bookie", "recover", lost, "--dry-run").stdout.split()
    assert {str(ledger), str(open_ledger)} <= set(planned)
    failed = bookies.run("bookie", "recover", lost, "--yes", "--ledger", ledger, code=1)
    assert f"ledger {ledger}: " in failed.stderr
    refused = bookies.run("bookie", "decommission", lost, "--yes", code=1)
    assert "add bookies first" in refused.stderr
    for bookie_id in ids(5)[3:]:
        bookies.start(bookie_id)
    # With Qa = 1 the lost bookie alone may have what was confirmed, so nobody can say where the ledger ends.
    not_all = bookies.rows("bookie", "recover", lost, "--yes", "--delete-cookie", "--ledger", stuck, code=1)
    assert "it is open and cannot be closed" in not_all["failed"][str(stuck)]
    bookies.run("bookie", "delete-ledger", stuck, "--yes")
    planned.remove(str(stuck))
    totals = bookies.rows("bookie", "recover", lost, "--yes", "--delete-cookie")
    assert totals["ledgers_done"] == totals["ledgers_total"] == len(planned)
    assert totals["failed"] == {}
    # Those of the closed ledger; recovering the open one may have written its own to another bookie already.
    assert totals["entries_copied"] >= 12
    assert bookies.rows("bookie", "list-ledgers", "--bookie", lost) == []
    assert lost not in [row["bookie_id"] for row in bookies.rows("bookie", "list-bookies", "--all")]
    running = bookies.run("bookie", "decommission", leaving, "--yes", code=1)
    assert "stop it, or have it drain itself" in running.stderr
    misspelt = bookies.run("bookie", "decommission", "127.0.0.1:31810", "--yes")
    assert "the cluster knows no bookie 127.0.0.1:31810" in misspelt.stderr
    bookies.stop(leaving)
    state = bookies.rows("bookie", "decommission", leaving, "--yes")
    assert (state["step"], state["ledgers_left"]) == ("DONE", 0)
    assert bookies.rows("bookie", "list-ledgers", "--bookie", leaving) == []
    found = bookies.rows("bookie", "read-ledger", ledger, "--format", "text")
    assert [row["text"] for row in found] == [f"entry {number}" for number in range(12)]


@pytest.mark.parametrize(
    ("cluster", "store", "url", "told"),
    [
        ("a b", "rocksdb:here", "http://x", "--cluster 'a b'"),
        ("..", "rocksdb:here", "http://x", "--cluster '..'"),
        ("x", "memory:", "http://x", "memory: ends with this command"),
        ("x", "rocksdb:here", "pulsar://x", "'pulsar://x' must begin with http://"),
        ("x", "rocksdb:here", "x:8080", "'x:8080' must begin with http://"),
    ],
)
def test_what_no_cluster_can_begin_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cluster: str, store: str, url: str, told: str
) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["init-metadata", "--cluster", cluster, "-m", store, "--web-service-url", url]
    shown = CliRunner().invoke(application, words)
    assert shown.exit_code == 2
    assert told in shown.stderr
    assert list(tmp_path.iterdir()) == []


def test_nobody_answers(bookies: Bookies) -> None:
    refused = bookies.run("bookie", "list-bookies", "-m", "nonsense", code=2)
    assert "is not one of memory:" in refused.stderr
    control = bookies.run("bookie", "state", "127.0.0.1:1", code=1)
    assert "the bookie's control port" in control.stderr
    for address in ("127.0.0.1", "127.0.0.1:0", "127.0.0.1:65536", "127.0.0.1:99999999999", "127.0.0.1:x", ":3182"):
        assert "is no HOST:PORT" in bookies.run("bookie", "state", address, code=2).stderr
