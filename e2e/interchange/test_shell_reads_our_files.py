"""`bookkeeper shell` on the files of a stopped bookie of ours: journals, entry logs, indexes, marks."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from magnetar.bookie.entry_log_format import EMPTIED_LOG

from e2e.interchange.apache import Shell
from e2e.interchange.cluster import Cluster
from e2e.interchange.ours import OurBookie
from e2e.processes import wait_for

ENTRIES = 20
SIZE = 100
STORED = SIZE + 36
"""Header of 32 bytes and a digest of 4."""
MASTER_KEY, FENCE, EXPLICIT_LAC = -0x1000, -0x2000, -0x8000
RECORD = re.compile(r"Lid=(\d+), Eid=(-?\d+)")
ONE_BOOKIE = {"e": 1, "qw": 1, "qa": 1}


@dataclass(frozen=True)
class Stopped:
    """A bookie that was stopped twice, with a plain ledger, a fenced one, and one with an explicit LAC."""

    cluster: Cluster
    bookie: OurBookie
    shell: Shell
    plain: int
    fenced: int
    explicit: int

    @property
    def journals(self) -> list[Path]:
        return sorted(self.bookie.journal.glob("*.txn"), key=lambda path: int(path.stem, 16))

    @property
    def logs(self) -> list[Path]:
        return sorted(self.bookie.ledgers.glob("*.log"), key=lambda path: int(path.stem, 16))


@pytest.fixture(scope="module")
def stopped(apache_is_here: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stopped]:
    with Cluster(tmp_path_factory.mktemp("files")) as cluster:
        bookie = cluster.our_bookie("bookie", journalFormatVersionToWrite="6")
        cluster.start(bookie)
        client = cluster.client(v2=False, explicitLacMs=100)
        plain = client.create("plain", **ONE_BOOKIE)
        plain.add(ENTRIES, size=SIZE)
        fenced = client.create("fenced", password="secret", **ONE_BOOKIE)
        fenced.add(ENTRIES, size=SIZE)
        client.open(fenced.ledger, "fenced", recovery=True, password="secret")
        explicit = client.create("explicit", **ONE_BOOKIE)
        explicit.add(ENTRIES, size=SIZE)
        following = client.open(explicit.ledger, "explicit", recovery=False)
        wait_for(lambda: following.last_confirmed("explicit-lac") == ENTRIES - 1, 10, "no explicit LAC")
        bookie.stop()
        cluster.start(bookie)
        plain.add(ENTRIES, size=SIZE)
        plain.close()
        bookie.stop()
        ledgers = (plain.ledger, fenced.ledger, explicit.ledger)
        yield Stopped(cluster, bookie, cluster.shell(bookie), *ledgers)


def records(text: str) -> list[tuple[int, int]]:
    return [(int(found[1]), int(found[2])) for found in RECORD.finditer(text)]


def test_readjournal(stopped: Stopped) -> None:
    """Every entry and every record of another kind, in both journals, by number and by path."""
    first, second = stopped.journals
    text = stopped.shell.expect("readjournal", "-dir", str(stopped.bookie.folder / "journal"), str(int(first.stem, 16)))
    found = records(text.said())
    assert "Journal Version : 6" in text.said()
    ledgers = (stopped.plain, stopped.fenced, stopped.explicit)
    entries = {(ledger, entry) for ledger, entry in found if entry >= 0}  # Recovery has written some a second time.
    assert entries == {(ledger, entry) for ledger in ledgers for entry in range(ENTRIES)}
    lacs = {ledger for ledger, entry in found if entry == EXPLICIT_LAC}
    assert stopped.explicit in lacs  # The client may have told the others', too, while they were open.
    special = {(ledger, entry) for ledger, entry in found if entry < 0 and entry != EXPLICIT_LAC}
    assert special == {*((ledger, MASTER_KEY) for ledger in ledgers), (stopped.fenced, FENCE)}
    again = stopped.shell.expect("readjournal", "-msg", str(second)).said()
    expected = [(stopped.plain, entry) for entry in range(ENTRIES, 2 * ENTRIES)]
    assert [record for record in records(again) if record[1] >= 0] == expected
    assert f"plain:{ENTRIES}:plain:{ENTRIES}:" in again


def test_readlog(stopped: Stopped) -> None:
    """Entry logs: every entry, those of one ledger, one entry, with their bytes."""
    first, second = stopped.logs
    shell = stopped.shell
    counts = Counter(ledger for ledger, _ in records(shell.expect("readlog", str(int(first.stem, 16))).said()))
    assert counts == {stopped.plain: ENTRIES, stopped.fenced: ENTRIES, stopped.explicit: ENTRIES}
    one = records(shell.expect("readlog", "-l", str(stopped.fenced), str(int(first.stem, 16))).said())
    assert one == [(stopped.fenced, entry) for entry in range(ENTRIES)]
    text = shell.expect("readlog", "-msg", "-l", str(stopped.plain), "-e", str(ENTRIES), str(int(second.stem, 16)))
    assert records(text.said()) == [(stopped.plain, ENTRIES)]
    assert f"plain:{ENTRIES}:plain:{ENTRIES}:" in text.said()


def test_readlogmetadata(stopped: Stopped) -> None:
    """The ledgers map at the end of an entry log."""
    said = stopped.shell.expect("readlogmetadata", str(int(stopped.logs[0].stem, 16))).said()
    bytes_each = ENTRIES * (STORED + 4)
    assert f"total size: {3 * bytes_each}, usage: 1.0" in said
    for ledger in (stopped.plain, stopped.fenced, stopped.explicit):
        assert f"Lid={ledger}, TotalSizeOfEntriesOfLedger={bytes_each} " in said


def test_a_log_that_was_emptied(stopped: Stopped) -> None:
    """It has no entries and a map of no ledgers, so that Apache's garbage collection deletes it as well."""
    emptied = stopped.bookie.ledgers / "9.log"
    emptied.write_bytes(EMPTIED_LOG)
    try:
        assert "total size: 0, " in stopped.shell.expect("readlogmetadata", "9").said()
        assert not records(stopped.shell.expect("readlog", "9").said())
    finally:
        emptied.unlink()


def test_lastmark(stopped: Stopped) -> None:
    """It names the last journal: all of it is in the entry logs."""
    said = stopped.shell.expect("lastmark").said()
    assert f"LastLogMark : Journal Id - {int(stopped.journals[-1].stem, 16)}(" in said


def test_listfilesondisc(stopped: Stopped) -> None:
    """Journals and entry logs by path."""
    listed = stopped.shell.expect("listfilesondisc", "-txn").said().splitlines()
    assert all(str(path) in listed for path in stopped.journals)
    listed = stopped.shell.expect("listfilesondisc", "-log").said().splitlines()
    assert all(str(path) in listed for path in stopped.logs)


def test_ledger(stopped: Stopped) -> None:
    """The index: where each entry of a ledger is."""
    said = stopped.shell.expect("ledger", str(stopped.plain)).said()
    places = re.findall(r"entry (\d+)\s*:\s*\(log: (\d+), pos: (\d+)\)", said)
    first_log, second_log = (int(path.stem, 16) for path in stopped.logs)
    assert [(int(entry), int(log)) for entry, log, _ in places] == [
        *((entry, first_log) for entry in range(ENTRIES)),
        *((entry, second_log) for entry in range(ENTRIES, 2 * ENTRIES)),
    ]


def test_checks_of_the_index(stopped: Stopped) -> None:
    """`localconsistencycheck` and `check-db-ledgers-index` find nothing wrong."""
    assert "Check passed" in stopped.shell.expect("localconsistencycheck").said()
    stopped.shell.expect("check-db-ledgers-index", "-v")


def test_indexes_that_apaches_shell_rebuilds_serve_our_bookie(stopped: Stopped) -> None:
    """It makes both indexes again from our entry logs and journals; our bookie starts on them and serves all."""
    stopped.shell.expect("rebuild-db-ledgers-index", "-v")
    stopped.shell.expect("rebuild-db-ledger-locations-index")
    stopped.cluster.start(stopped.bookie)
    client = stopped.cluster.client(v2=True)
    assert client.open(stopped.plain, "plain", recovery=False).read(size=SIZE) == 2 * ENTRIES
    fenced = client.open(stopped.fenced, "fenced", recovery=False, password="secret")
    assert fenced.read(size=SIZE) == ENTRIES
    stopped.bookie.stop()
