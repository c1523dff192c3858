"""Both sides' brokers, clients, tools and AutoRecovery with TLS bookies of both sides: client certificates, roles."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from e2e.interchange import direct
from e2e.interchange.cluster import Cluster
from e2e.interchange.ledger_driver import UNAUTHORIZED, ClientError, Handle, LedgerClient
from e2e.interchange.ours import PROGRAM
from e2e.interchange.parts import BookiePart
from e2e.interchange.test_brokers_on_other_bookies import judge
from e2e.interchange.tls import ClusterCertificates, make_certificates
from e2e.processes import wait_for

ENTRIES = 60
QUORUMS = (3, 3, 2)
REPAIR_SECONDS_MAX = 90.0
TOOL_SECONDS_MAX = 60.0
RECOVERY = {"openLedgerRereplicationGracePeriod": "2000", "lostBookieRecoveryDelay": "0"}


@pytest.fixture
def certificates(tmp_path: Path) -> ClusterCertificates:
    return make_certificates(tmp_path / "certificates")


def assert_closed_to_strangers(bookies: Sequence[BookiePart]) -> None:
    """Whoever comes without TLS is answered EUA, by either side's bookies."""
    for bookie in bookies:
        assert direct.add(bookie.id, 2**40, 0, "") == direct.UNAUTHORIZED


@pytest.mark.timeout(300)
def test_apaches_broker_on_our_tls_bookies(cluster: Cluster, certificates: ClusterCertificates) -> None:
    """A stock Pulsar broker; a bookie is killed and replaced while clients publish."""
    settings = certificates.bookie_settings()
    bookies = [cluster.our_bookie(f"bookie{number}", **settings) for number in range(4)]
    judge(cluster, cluster.apache_broker(QUORUMS, **certificates.broker_settings()), bookies)
    assert_closed_to_strangers(bookies[1:])


@pytest.mark.timeout(300)
def test_our_broker_on_apaches_tls_bookies(cluster: Cluster, certificates: ClusterCertificates) -> None:
    """The same the other way round."""
    settings = certificates.bookie_settings()
    bookies = [cluster.apache_bookie(f"bookie{number}", **settings) for number in range(4)]
    judge(cluster, cluster.our_broker(QUORUMS, **certificates.broker_settings()), bookies)
    assert_closed_to_strangers(bookies[1:])


class Mixed:
    """Two TLS bookies of ours and two of Apache's, which know each other's certificates."""

    def __init__(self, cluster: Cluster, certificates: ClusterCertificates) -> None:
        self.cluster = cluster
        self.certificates = certificates
        settings = certificates.bookie_settings(**RECOVERY)
        cluster.initialize_pulsar()
        self.ours = [cluster.our_bookie(f"ours{number}", **settings) for number in range(2)]
        self.apaches = [cluster.apache_bookie(f"apache{number}", **settings) for number in range(2)]
        cluster.start(*self.ours, *self.apaches)

    @property
    def all(self) -> list[BookiePart]:
        return [*self.ours, *self.apaches]

    def client(self, *, v2: bool, stranger: bool = False) -> LedgerClient:
        """BookKeeper's Java client with TLS."""
        own = self.certificates.stranger if stranger else self.certificates.broker
        return self.cluster.client(v2=v2, conf=str(self.certificates.client_file(self.cluster.folder, own)))


@pytest.fixture
def mixed(cluster: Cluster, certificates: ClusterCertificates) -> Mixed:
    return Mixed(cluster, certificates)


def write(client: LedgerClient) -> list[Handle]:
    """Closed ledgers, spread over all bookies."""
    ledgers = [client.create(f"ledger{number}", e=3, qw=3, qa=2) for number in range(6)]
    for ledger in ledgers:
        ledger.add(ENTRIES)
        ledger.close()
    return ledgers


def assert_repaired(client: LedgerClient, ledgers: Sequence[Handle], dead: str) -> None:
    """Soon no ledger names the dead bookie, and every entry is read."""

    def names_the_dead() -> list[int]:
        opened = [client.open(ledger.ledger, ledger.seed, recovery=False) for ledger in ledgers]
        return [one.ledger for one in opened if dead in one.opened.bookies]

    assert names_the_dead(), "no ledger had an entry there"
    wait_for(lambda: not names_the_dead(), REPAIR_SECONDS_MAX, f"{dead} is still named")
    for ledger in ledgers:
        assert client.open(ledger.ledger, ledger.seed, recovery=False).read() == ENTRIES


@pytest.mark.timeout(300)
def test_a_mixed_cluster_and_its_clients(mixed: Mixed) -> None:
    """BookKeeper's Java client in both versions; whoever has another role, or no TLS, is refused and stores nothing."""
    assert_closed_to_strangers(mixed.all)
    for v2 in (True, False):
        client = mixed.client(v2=v2)
        ledgers = write(client)
        assert [client.open(one.ledger, one.seed, recovery=True).read() for one in ledgers] == [ENTRIES] * 6
        for refused in (mixed.client(v2=v2, stranger=True), mixed.cluster.client(v2=v2)):
            ledger = refused.create("refused", e=3, qw=3, qa=2)
            with pytest.raises(ClientError) as raised:
                ledger.add(1)
            assert raised.value.code == UNAUTHORIZED
            assert client.open(ledger.ledger, "refused", recovery=True).opened.last_confirmed == -1


@pytest.mark.timeout(300)
def test_either_sides_autorecovery_repairs_over_tls(mixed: Mixed) -> None:
    client = mixed.client(v2=False)
    ledgers = write(client)
    settings = mixed.certificates.bookie_settings(**RECOVERY)
    for recovery, dead in (
        (mixed.cluster.our_autorecovery(**settings), mixed.apaches[0]),
        (mixed.cluster.apache_autorecovery(**settings), mixed.ours[0]),
    ):
        recovery.start()
        dead.kill()
        assert_repaired(client, ledgers, dead.id)
        recovery.kill()
        mixed.cluster.start(dead)


@pytest.mark.timeout(300)
def test_either_sides_tools(mixed: Mixed) -> None:
    """`bookkeeper shell` and `magnetar bookie` write and read a ledger, with the settings files of one another."""
    quorums = ("-ensemble", "4", "-writeQuorum", "4", "-ackQuorum", "4", "-numEntries", "20")
    shell = mixed.cluster.shell(mixed.ours[0])
    assert "20 entries written to ledger" in shell.expect("simpletest", *quorums).said()
    sizes = ("--ensemble", "4", "--write-quorum", "4", "--ack-quorum", "4", "--entries", "20")
    answer = run_tool("simple-test", *sizes, "--conf", str(mixed.apaches[0].configuration))
    assert answer.returncode == 0, answer.stderr
    plain = run_tool("simple-test", *sizes, "--metadata-store", mixed.cluster.pulsar_uri)
    assert plain.returncode == 1
    assert "it wants TLS and a certificate with another role" in " ".join(plain.stderr.split()), plain.stderr


def run_tool(*words: str) -> subprocess.CompletedProcess[str]:
    """`magnetar bookie WORDS…`."""
    command = [PROGRAM, "bookie", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=TOOL_SECONDS_MAX, check=False)
