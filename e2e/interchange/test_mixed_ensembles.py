"""Two bookies of ours and two of Apache's in one cluster; either side's AutoRecovery repairs what the other's held."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from e2e.interchange import direct
from e2e.interchange.cluster import Cluster
from e2e.interchange.ledger_driver import Handle, LedgerClient
from e2e.interchange.parts import BookiePart
from e2e.processes import wait_for

ENTRIES = 60
REPAIR_SECONDS_MAX = 90.0
# Ledgers that nobody closes are recovered and repaired after this long.
SETTINGS = {"openLedgerRereplicationGracePeriod": "2000", "lostBookieRecoveryDelay": "0"}
SHAPES = [{"e": 3, "qw": 3, "qa": 2}, {"e": 3, "qw": 2, "qa": 2}, {"e": 2, "qw": 2, "qa": 1}]


@dataclass(frozen=True)
class Mixed:
    """The four bookies, of which three suffice for every ledger."""

    cluster: Cluster
    ours: list[BookiePart]
    apaches: list[BookiePart]
    client: LedgerClient

    @property
    def ids(self) -> set[str]:
        return {bookie.id for bookie in (*self.ours, *self.apaches)}

    def write(self) -> list[Handle]:
        """Closed ledgers of several shapes, and one whose writer died, spread over all four."""
        ledgers = []
        for number in range(12):
            ledger = self.client.create(f"ledger{number}", **SHAPES[number % len(SHAPES)])
            ledger.add(ENTRIES)
            if number == 0:
                ledger.forget()
            else:
                ledger.close()
            ledgers.append(ledger)
        return ledgers


def mixed(cluster: Cluster, **settings: str) -> Mixed:
    cluster.initialize_pulsar()
    ours: list[BookiePart] = [cluster.our_bookie(f"ours{number}", **SETTINGS, **settings) for number in range(2)]
    apaches: list[BookiePart] = [
        cluster.apache_bookie(f"apache{number}", **SETTINGS, **settings) for number in range(2)
    ]
    cluster.start(*ours, *apaches)
    return Mixed(cluster, ours, apaches, cluster.client(v2=False))


@pytest.fixture
def without_autorecovery(cluster: Cluster) -> Mixed:
    return mixed(cluster)


def assert_repaired(found: Mixed, ledgers: list[Handle], dead: str) -> None:
    """Soon no ledger names the dead bookie, each bookie that is named holds its share, and every entry is read."""

    def names_the_dead() -> list[int]:
        opened = [found.client.open(ledger.ledger, ledger.seed, recovery=False) for ledger in ledgers]
        return [one.ledger for one in opened if dead in one.opened.bookies]

    assert names_the_dead(), "no ledger had an entry there"
    wait_for(lambda: not names_the_dead(), REPAIR_SECONDS_MAX, f"{dead} is still named")
    for number, ledger in enumerate(ledgers):
        repaired = found.client.open(ledger.ledger, ledger.seed, recovery=False)
        assert repaired.opened.state == "CLOSED" or dead not in ledger.opened.bookies
        replicas = [len(direct.entries_held(one, ledger.ledger, ENTRIES)) for one in repaired.opened.bookies]
        assert sum(replicas) >= ENTRIES * SHAPES[number % len(SHAPES)]["qw"], f"{ledger.ledger} has {replicas}"
        assert repaired.read(last=ENTRIES - 1, unconfirmed=True) == ENTRIES
    shell = found.cluster.shell(native=True)
    wait_for(lambda: "urL" not in shell.expect("listunderreplicated").said(), 20, "ledgers are still marked")


@pytest.mark.timeout(240)
@pytest.mark.parametrize("v2", [True, False], ids=["v2", "v3"])
def test_a_writer_outlives_a_bookie_of_each_side(without_autorecovery: Mixed, v2: bool) -> None:
    """It writes on through kill -9 of one of ours, then of one of Apache's; both come back, and a reader recovers."""
    found = without_autorecovery
    client = found.cluster.client(v2=v2)
    written = client.create("outlives", e=3, qw=2, qa=2)
    written.load()
    for dead in (found.ours[0], found.apaches[0]):
        confirmed = written.loaded()
        dead.kill()
        wait_for(lambda least=confirmed: written.loaded() > least + 1_000, 60, "the writer stands still")
        found.cluster.wait_for_bookies(found.ids - {dead.id}, {dead.id})
        found.cluster.start(dead)
    last = written.stop_load()
    recovered = found.client.open(written.ledger, "outlives", recovery=True)
    assert (recovered.opened.state, recovered.opened.last_confirmed) == ("CLOSED", last)
    assert len(recovered.opened.ensembles) > 1
    assert recovered.read() == last + 1


@pytest.mark.timeout(240)
def test_our_autorecovery_repairs_what_apaches_bookie_held(without_autorecovery: Mixed) -> None:
    """`magnetar autorecovery run` alone: an Apache bookie dies, and its ledgers are whole again without it."""
    found = without_autorecovery
    ledgers = found.write()
    found.cluster.our_autorecovery(**SETTINGS).start()
    found.apaches[0].kill()
    assert_repaired(found, ledgers, found.apaches[0].id)


@pytest.mark.timeout(240)
def test_apaches_autorecovery_repairs_what_our_bookie_held(without_autorecovery: Mixed) -> None:
    """`bookkeeper autorecovery` alone: one of our bookies dies."""
    found = without_autorecovery
    ledgers = found.write()
    found.cluster.apache_autorecovery(**SETTINGS).start()
    found.ours[0].kill()
    assert_repaired(found, ledgers, found.ours[0].id)


@pytest.mark.timeout(240)
def test_both_sides_autorecovery_at_once(cluster: Cluster) -> None:
    """It runs in all four bookies, as both sides' settings have it: they agree on one auditor, and share the work."""
    found = mixed(cluster, autoRecoveryDaemonEnabled="true")
    ledgers = found.write()
    auditor = cluster.shell().expect("whoisauditor").said()
    assert [bookie for bookie in found.ids if bookie in auditor], auditor
    for dead in (found.ours[0], found.apaches[0]):
        dead.kill()
        assert_repaired(found, ledgers, dead.id)
        cluster.start(dead)


@pytest.mark.timeout(240)
def test_shell_decommissions_our_bookie(cluster: Cluster) -> None:
    """`decommissionbookie` of a stopped bookie of ours: its ledgers move, its cookie goes."""
    found = mixed(cluster, autoRecoveryDaemonEnabled="true")
    ledgers = found.write()
    leaving = found.ours[0]
    leaving.stop()
    cluster.wait_for_bookies(set(), {leaving.id})
    cluster.shell().expect("decommissionbookie", "-bookieid", leaving.id, timeout_s=120)
    for ledger in ledgers:
        opened = found.client.open(ledger.ledger, ledger.seed, recovery=False).opened
        assert leaving.id not in opened.bookies
    answer = cluster.shell().run("cookie_get", leaving.id)
    assert "bookieHost" not in answer.said()
