"""`bookkeeper shell` against our bookies: what people who run bookies use it for."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from e2e.interchange.apache import Shell
from e2e.interchange.cluster import Cluster
from e2e.interchange.ledger_driver import Handle, LedgerClient
from e2e.interchange.ours import OurBookie
from e2e.processes import wait_for

ENTRIES = 50


@dataclass(frozen=True)
class Bookies:
    """Four bookies of ours, a closed ledger on three of them, a client."""

    cluster: Cluster
    bookies: list[OurBookie]
    client: LedgerClient
    ledger: Handle

    @property
    def ids(self) -> set[str]:
        return {bookie.id for bookie in self.bookies}

    @contextlib.contextmanager
    def one_killed(self, among: set[str]) -> Iterator[str]:
        """One of these bookies is killed and no longer registered; it is back afterwards. Its id."""
        victim = next(bookie for bookie in self.bookies if bookie.id in among)
        victim.kill()
        try:
            self.cluster.wait_for_bookies(self.ids - {victim.id}, {victim.id})
            yield victim.id
        finally:
            self.cluster.start(victim)


@pytest.fixture(scope="module")
def ours(apache_is_here: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bookies]:
    with Cluster(tmp_path_factory.mktemp("shell")) as cluster:
        bookies = [cluster.our_bookie(f"bookie{number}") for number in range(4)]
        cluster.start(*bookies)
        client = cluster.client(v2=False)
        ledger = client.create("shell", qa=3)
        ledger.add(ENTRIES, size=40)
        ledger.close()
        yield Bookies(cluster, bookies, client, ledger)


@pytest.fixture(params=["v2", "v3"])
def shell(request: pytest.FixtureRequest, ours: Bookies) -> Shell:
    """With BookKeeper's own metadata driver, speaking either version to bookies."""
    return ours.cluster.shell(native=True, useV2WireProtocol="true" if request.param == "v2" else "false")


@pytest.fixture(params=["pulsar", "native"])
def either_driver(request: pytest.FixtureRequest, ours: Bookies) -> Shell:
    """With Pulsar's metadata driver, then with BookKeeper's own."""
    return ours.cluster.shell(native=request.param == "native")


def test_simpletest(shell: Shell) -> None:
    """It writes and reads a ledger."""
    answer = shell.expect("simpletest", "-ensemble", "3", "-writeQuorum", "3", "-ackQuorum", "2", "-numEntries", "100")
    assert "100 entries written to ledger" in answer.said()


def test_readledger(shell: Shell, ours: Bookies) -> None:
    """By the ledger client, and from each single bookie."""
    last = str(ENTRIES - 1)
    answer = shell.expect("readledger", "-ledgerid", str(ours.ledger.ledger), "-lastentryid", last, "-msg")
    assert len(answer.lines_with("Eid=")) == ENTRIES
    assert f"shell:{last}:shell:{last}:" in answer.said()
    for bookie in ours.ledger.opened.bookies:
        # With a bookie given, the shell does not read the last entry.
        beyond = ["-lastentryid", str(ENTRIES), "-b", bookie]
        answer = shell.expect("readledger", "-ledgerid", str(ours.ledger.ledger), *beyond)
        assert len(answer.lines_with("Eid=")) == ENTRIES


def test_listbookies(either_driver: Shell, ours: Bookies) -> None:
    """All are writable, none is read-only."""
    writable = either_driver.expect("listbookies", "-rw", "-h").said()
    assert all(bookie in writable for bookie in ours.ids)
    assert not any(bookie in either_driver.expect("listbookies", "-ro").said() for bookie in ours.ids)


def test_listbookies_shows_a_read_only_one(ours: Bookies) -> None:
    """A bookie that starts in read-only mode is listed as such, and still read from."""
    bookie = ours.bookies[0]
    bookie.stop()
    bookie.settings["forceReadOnlyBookie"] = "true"
    bookie.start()
    shell = ours.cluster.shell(native=True)
    wait_for(lambda: bookie.id in ours.client.bookies()[1], 20, "the bookie is not read-only")
    assert bookie.id in shell.expect("listbookies", "-ro").said()
    assert bookie.id not in shell.expect("listbookies", "-rw").said()
    assert ours.client.open(ours.ledger.ledger, "shell", recovery=False).read(size=40) == ENTRIES
    bookie.stop()
    del bookie.settings["forceReadOnlyBookie"]
    ours.cluster.start(bookie)


def test_ledger_metadata(either_driver: Shell, ours: Bookies) -> None:
    """`listledgers` and `ledgermetadata` by both metadata drivers."""
    ledger = ours.ledger.ledger
    assert f"ledgerID: {ledger}" in either_driver.expect("listledgers").said().splitlines()
    metadata = either_driver.expect("ledgermetadata", "-ledgerid", str(ledger)).said()
    assert f"state=CLOSED, length={ENTRIES * 40}, lastEntryId={ENTRIES - 1}, digestType=CRC32C" in metadata
    assert all(bookie in metadata for bookie in ours.ledger.opened.bookies)


def test_ledgers_of_a_bookie(ours: Bookies) -> None:
    """`listledgers -bookieid`."""
    shell = ours.cluster.shell(native=True)
    for bookie in ours.ids:
        listed = shell.expect("listledgers", "-bookieid", bookie).said().splitlines()
        assert (f"ledgerID: {ours.ledger.ledger}" in listed) == (bookie in ours.ledger.opened.bookies)


def test_bookiesanity(ours: Bookies) -> None:
    """With the settings file that our bookie itself runs from."""
    answer = ours.cluster.shell(ours.bookies[1]).expect("bookiesanity", "-entries", "20")
    assert "Bookie sanity test succeeded" in answer.said()


def test_what_bookies_tell_of_themselves(ours: Bookies) -> None:
    """`bookieinfo` asks each for its disks, `endpointinfo` reads its registration, `cookie_get` its cookie."""
    shell = ours.cluster.shell(native=True)
    bookie = ours.bookies[2]
    free = shell.expect("bookieinfo").said()
    assert all(f"{one.id}" in free for one in ours.bookies)
    endpoint = shell.expect("endpointinfo", "-b", bookie.id).said()
    assert f"Address: 127.0.0.1 : {bookie.port}" in endpoint
    cookie = shell.expect("cookie_get", bookie.id).said()
    assert f'bookieHost: "{bookie.id}"' in cookie
    instance = shell.expect("whatisinstanceid").said()
    assert instance.split()[-1] in cookie
    assert '"writableBookiesCount" : 4' in shell.expect("clusterinfo").said()


def test_autorecovery_switches(either_driver: Shell, ours: Bookies) -> None:
    """The switch and the delay that AutoRecovery of either side goes by."""
    either_driver.expect("lostbookierecoverydelay", "-set", "7")
    assert "in ZK: 7" in either_driver.expect("lostbookierecoverydelay", "-get").said()
    either_driver.expect("autorecovery", "-disable")
    again = either_driver.run("autorecovery", "-disable")
    assert "already disabled" in again.text
    either_driver.expect("autorecovery", "-enable")
    assert not either_driver.expect("listunderreplicated").lines_with("ledgerId")


def test_recover_moves_a_dead_bookies_ledgers(shell: Shell, ours: Bookies) -> None:
    """kill -9, then `recover`: every ledger of the dead bookie has its replicas on the three that live."""
    written = ours.client.create("recovered", e=3, qw=2, qa=2)
    written.add(ENTRIES)
    written.close()
    with ours.one_killed(written.opened.bookies) as victim:
        shell.expect("recover", "-f", "-ledger", str(written.ledger), victim)
        moved = ours.client.open(written.ledger, "recovered", recovery=False)
        assert moved.opened.bookies == ours.ids - {victim}
        assert moved.read() == ENTRIES
        assert sum(ours.client.entries_stored(bookie, written.ledger) for bookie in moved.opened.bookies) >= 2 * ENTRIES


def test_recover_closes_an_open_ledger(shell: Shell, ours: Bookies) -> None:
    """The writer died with a bookie: `recover` fences, closes at what was confirmed, and replicates."""
    written = ours.client.create("open", qa=3)
    confirmed = written.add(ENTRIES).last_confirmed
    written.forget()
    with ours.one_killed(written.opened.bookies) as victim:
        shell.expect("recover", "-f", "-ledger", str(written.ledger), victim)
        moved = ours.client.open(written.ledger, "open", recovery=False)
        assert (moved.opened.state, moved.opened.last_confirmed) == ("CLOSED", confirmed)
        assert moved.opened.bookies == ours.ids - {victim}
        assert moved.read() == ENTRIES


def test_deleteledger(ours: Bookies) -> None:
    """A ledger that the shell deletes is gone for clients."""
    written = ours.client.create("gone")
    written.add(1)
    written.close()
    shell = ours.cluster.shell(native=True)
    shell.expect("deleteledger", "-ledgerid", str(written.ledger), "-force")
    assert f"ledgerID: {written.ledger}" not in shell.expect("listledgers").said().splitlines()
