"""A bookie's directories change sides: what ours wrote, Apache's serves, and the other way round.

Both run from the same settings file with the same id and directories, so the cookies match. What must survive: every
entry, fences, master keys, explicit LACs, and ledgers that are still being written.
"""

from __future__ import annotations

import json
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from magnetar.net.free_ports import free_port

from e2e import processes
from e2e.interchange import direct
from e2e.interchange.cluster import Cluster
from e2e.interchange.ledger_driver import ClientError, Handle, LedgerClient
from e2e.interchange.parts import BookiePart
from e2e.processes import wait_for

ENTRIES = 300
SIZE = 1_000
BEYOND = 1_000_000
# Version 6 of the journal keeps explicit LACs; Pulsar's settings file has 5.
SETTINGS = {"journalFormatVersionToWrite": "6", "fileInfoFormatVersionToWrite": "1"}
ONE_BOOKIE = {"e": 1, "qw": 1, "qa": 1}
SIDES = ["ours to Apache's", "Apache's to ours"]


@dataclass
class Ledgers:
    """One ledger of each kind that a bookie may hold."""

    client: LedgerClient
    closed: Handle = field(init=False)
    written: Handle = field(init=False)
    fenced: Handle = field(init=False)
    fenced_and_unknown: Handle = field(init=False)
    explicit: Handle = field(init=False)
    others: list[Handle] = field(init=False)

    def __post_init__(self) -> None:
        self.closed = self.client.create("closed", digest="MAC", password="secret", **ONE_BOOKIE)
        self.closed.add(ENTRIES, size=SIZE)
        self.closed.close()
        self.written = self.client.create("written", password="secret", **ONE_BOOKIE)
        self.fenced = self.client.create("fenced", **ONE_BOOKIE)
        self.fenced_and_unknown = self.client.create("unknown", **ONE_BOOKIE)
        self.explicit = self.client.create("explicit", **ONE_BOOKIE)
        # Something for each of three directories. Apache's storage writes a directory's fences and keys only together
        # with entries, but moves the journal's mark on without (SingleDirectoryDbLedgerStorage.checkpoint): a fence in
        # a directory that has no new entries would be lost by Apache's bookie itself when it is killed.
        self.others = [self.client.create(f"other{number}", **ONE_BOOKIE) for number in range(3)]

    def write(self) -> None:
        """More entries to those that are open."""
        self.written.add(ENTRIES, size=SIZE)
        self.explicit.add(10)
        for other in self.others:
            other.add(10)

    def fence(self) -> None:
        """One ledger that the bookie holds, and one of which it never heard."""
        self.fenced.add(ENTRIES, size=SIZE)
        for handle in (self.fenced, self.fenced_and_unknown):
            self.client.open(handle.ledger, handle.seed, recovery=True)

    def assert_all_is_there(self, written: int) -> None:
        """`written` is how often `write` was called."""
        closed = self.client.open(self.closed.ledger, "closed", recovery=False, digest="MAC", password="secret")
        assert closed.read(size=SIZE) == ENTRIES
        assert self.written.read(size=SIZE) == written * ENTRIES
        fenced = self.client.open(self.fenced.ledger, "fenced", recovery=False)
        assert fenced.read(size=SIZE) == ENTRIES
        for handle in (self.explicit, *self.others):
            assert handle.read() == written * 10

    def wait_for_explicit_lac(self, last: int) -> None:
        """Also waits for a bookie that has just started: Apache's resets its first connections."""

        def known() -> bool:
            try:
                following = self.client.open(self.explicit.ledger, "explicit", recovery=False)
                return following.last_confirmed("explicit-lac") == last
            except ClientError:
                return False

        wait_for(known, 20, f"the explicit LAC {last} is not there")


@dataclass(frozen=True)
class OneBookie:
    """Our bookie and Apache's, of which at most one runs, with one id and the same directories."""

    cluster: Cluster
    ours: BookiePart
    apaches: BookiePart

    def of(self, side: str) -> tuple[BookiePart, BookiePart]:
        """Who has the directories first, and who second."""
        return (self.ours, self.apaches) if side == SIDES[0] else (self.apaches, self.ours)

    def end(self, bookie: BookiePart, how: str) -> None:
        if how == "stopped":
            bookie.stop()
        else:
            bookie.kill()
        self.cluster.wait_for_bookies(set(), {bookie.id})


def one_bookie(cluster: Cluster, **settings: str) -> OneBookie:
    cluster.initialize_pulsar()
    settings = {**SETTINGS, **settings}
    ours, apaches = cluster.our_bookie("bookie", **settings), cluster.apache_bookie("bookie", **settings)
    apaches.take_place_of(ours)
    return OneBookie(cluster, ours, apaches)


@pytest.mark.timeout(240)
@pytest.mark.parametrize("how", ["stopped", "killed"])
@pytest.mark.parametrize("side", SIDES)
def test_the_other_sides_bookie_serves_the_directories(cluster: Cluster, side: str, how: str) -> None:
    """After a clean stop, and after kill -9 with a journal to replay behind entry logs of an earlier run; and back."""
    there_and_back(one_bookie(cluster), side, how)


@pytest.mark.timeout(240)
@pytest.mark.parametrize("side", SIDES)
def test_several_directories(cluster: Cluster, side: str) -> None:
    """Two journals and three ledger directories: both sides put a ledger into the same ones."""
    places = {
        "journalDirectories": ",".join(str(cluster.folder / f"journal{number}") for number in range(2)),
        "ledgerDirectories": ",".join(str(cluster.folder / f"ledgers{number}") for number in range(3)),
    }
    there_and_back(one_bookie(cluster, **places), side, "killed")
    logs = [list((cluster.folder / f"ledgers{number}" / "current").glob("*.log")) for number in range(3)]
    assert all(logs), "a ledger directory was never used"


@pytest.mark.timeout(240)
@pytest.mark.parametrize("side", SIDES)
def test_directories_that_were_compacted(cluster: Cluster, side: str) -> None:
    """One side deletes ledgers and compacts its entry logs, the other serves what is left, and compacts again."""
    port = free_port()
    http = {"httpServerEnabled": "true", "httpServerPort": str(port), "majorCompactionThreshold": "0.9"}
    one = one_bookie(cluster, **http)
    client = cluster.client(v2=True)
    kept: list[Handle] = []
    for round_number, bookie in enumerate(one.of(side)):
        cluster.start(bookie)
        ledgers = [client.create(f"round{round_number}-{number}", **ONE_BOOKIE) for number in range(10)]
        for ledger in ledgers:
            ledger.add(ENTRIES, size=SIZE)
            ledger.close()
        one.end(bookie, "stopped")
        cluster.start(bookie)  # The log of the run before is closed, and may be compacted.
        before = set(bookie.ledgers.glob("*.log"))
        for ledger in ledgers[::2]:
            client.delete(ledger.ledger)
        kept += ledgers[1::2]
        collect_garbage(port)
        wait_until_a_log_is_gone(bookie, before)
        assert_kept(client, kept)
        one.end(bookie, "killed")
    cluster.start(one.of(side)[0])
    assert_kept(client, kept)


def wait_until_a_log_is_gone(bookie: BookiePart, before: set[Path]) -> None:
    wait_for(lambda: before - set(bookie.ledgers.glob("*.log")), 60, "no log is compacted")


def collect_garbage(port: int) -> None:
    wait_for(lambda: processes.accepts(port), 20, "the admin port is not there")
    body = json.dumps({"forceMajor": True, "forceMinor": True}).encode()
    request = urllib.request.Request(f"http://127.0.0.1:{port}/api/v1/bookie/gc", data=body, method="PUT")
    with urllib.request.urlopen(request, timeout=30) as response:
        assert response.status == 200


def assert_kept(client: LedgerClient, kept: list[Handle]) -> None:
    for ledger in kept:
        assert client.open(ledger.ledger, ledger.seed, recovery=False).read(size=SIZE) == ENTRIES


def there_and_back(one: OneBookie, side: str, how: str) -> None:
    first, second = one.of(side)
    one.cluster.start(first)
    ledgers = Ledgers(one.cluster.client(v2=False, explicitLacMs=100))
    ledgers.write()
    one.end(first, "stopped")  # The first half of all is in entry logs now.
    one.cluster.start(first)
    ledgers.write()
    ledgers.fence()
    ledgers.wait_for_explicit_lac(19)
    one.end(first, how)

    one.cluster.start(second)
    ledgers.wait_for_explicit_lac(19)
    ledgers.assert_all_is_there(written=2)
    assert_guarded(second, ledgers)
    ledgers.write()
    ledgers.wait_for_explicit_lac(29)
    one.end(second, how)

    one.cluster.start(first)
    ledgers.wait_for_explicit_lac(29)
    ledgers.assert_all_is_there(written=3)
    assert_guarded(first, ledgers)


def assert_guarded(bookie: BookiePart, ledgers: Ledgers) -> None:
    """The bookie itself keeps to fences and master keys, whatever a client knows."""
    # Apache's says EIO instead as long as it has not had the ledger in its hands since the start.
    refused = direct.add(bookie.id, ledgers.written.ledger, BEYOND, "guess")
    assert refused in (direct.UNAUTHORIZED, direct.INPUT_OUTPUT_ERROR)
    for ledger in (ledgers.fenced, ledgers.fenced_and_unknown):
        assert direct.add(bookie.id, ledger.ledger, BEYOND, "") == direct.FENCED
