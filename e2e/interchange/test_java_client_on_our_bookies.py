"""BookKeeper's own Java client against our bookies: everything that it can ask a bookie, in both protocol versions."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from e2e.interchange import ledger_driver
from e2e.interchange.cluster import Cluster
from e2e.interchange.ledger_driver import ClientError, LedgerClient
from e2e.interchange.ours import OurBookie
from e2e.processes import wait_for

DIGESTS = ("CRC32C", "CRC32", "MAC", "DUMMY")
ENTRIES = 500


@dataclass(frozen=True)
class Bookies:
    """Four bookies of ours, and a client for each protocol version."""

    cluster: Cluster
    bookies: list[OurBookie]
    v2: LedgerClient
    v3: LedgerClient


@pytest.fixture(scope="module")
def ours(apache_is_here: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bookies]:
    with Cluster(tmp_path_factory.mktemp("ours")) as cluster:
        bookies = [cluster.our_bookie(f"bookie{number}") for number in range(4)]
        cluster.start(*bookies)
        yield Bookies(cluster, bookies, cluster.client(v2=True), cluster.client(v2=False))


@pytest.fixture(params=["v2", "v3"])
def client(request: pytest.FixtureRequest, ours: Bookies) -> LedgerClient:
    return ours.v2 if request.param == "v2" else ours.v3


@pytest.fixture(params=["v2", "v3"])
def reader(request: pytest.FixtureRequest, ours: Bookies) -> LedgerClient:
    return ours.v2 if request.param == "v2" else ours.v3


@pytest.mark.parametrize("digest", DIGESTS)
def test_entries_of_every_digest_are_written_and_read_back(client: LedgerClient, digest: str) -> None:
    """Create, add, read, close, open again: each entry's bytes, the LAC and the length are right."""
    options = {"digest": digest, "password": "secret"}
    written = client.create("digest", **options)
    state = written.add(ENTRIES, size=1_000)
    assert (state.last_confirmed, state.length) == (ENTRIES - 1, ENTRIES * 1_000)
    assert written.read(size=1_000) == ENTRIES
    written.close()
    opened = client.open(written.ledger, "digest", recovery=False, **options)
    assert opened.opened.state == "CLOSED"
    assert opened.read(size=1_000) == ENTRIES


def test_empty_and_large_entries(client: LedgerClient) -> None:
    """An entry without a byte, and one of 5 MB, which is near what a frame holds."""
    for size in (0, 5_000_000):
        written = client.create("sizes")
        written.add(3, size=size)
        assert written.read(size=size) == 3


def test_striped_ensemble(client: LedgerClient, reader: LedgerClient) -> None:
    """E=4, Qw=2: each bookie holds half of the entries."""
    written = client.create("striped", e=4, qw=2, qa=2)
    written.add(ENTRIES)
    written.close()
    assert reader.open(written.ledger, "striped", recovery=False).read() == ENTRIES


def test_bookies_list_the_entries_that_they_have(ours: Bookies) -> None:
    """GET_LIST_OF_ENTRIES_OF_LEDGER, striped and not."""
    for ensemble, quorum in ((4, 2), (3, 3)):
        written = ours.v3.create("listed", e=ensemble, qw=quorum, qa=quorum)
        written.add(ENTRIES)
        counts = [ours.v3.entries_stored(bookie, written.ledger) for bookie in written.state().bookies]
        assert counts == [ENTRIES * quorum // ensemble] * ensemble


def test_readers_follow_the_writer_by_the_last_add_confirmed(client: LedgerClient, reader: LedgerClient) -> None:
    """A reader that did not recover sees up to the piggybacked LAC; what is beyond, only by reading unconfirmed."""
    written = client.create("followed")
    written.add(9)
    written.add(1)  # By itself: it says that the others are confirmed.
    following = reader.open(written.ledger, "followed", recovery=False)
    assert following.opened.state == "OPEN"
    assert following.last_confirmed() == 8
    assert following.last_confirmed("try-lac") == 8
    assert following.read(last=8) == 9
    assert following.read(last=9, unconfirmed=True) == 10
    with pytest.raises(ClientError) as refused:
        following.read(last=20, unconfirmed=True)
    assert refused.value.code == ledger_driver.NO_SUCH_ENTRY
    written.close()


def test_recovery_fences_the_writer(client: LedgerClient, reader: LedgerClient) -> None:
    """Opening with recovery closes the ledger with all that was confirmed; the writer's next add fails as fenced."""
    written = client.create("fenced", password="secret")
    confirmed = written.add(ENTRIES).last_confirmed
    recovered = reader.open(written.ledger, "fenced", recovery=True, password="secret")
    assert (recovered.opened.state, recovered.opened.last_confirmed) == ("CLOSED", confirmed)
    assert recovered.read() == ENTRIES
    with pytest.raises(ClientError) as refused:
        written.add(1)
    assert refused.value.code == ledger_driver.LEDGER_FENCED


def test_recovery_of_an_empty_ledger(client: LedgerClient) -> None:
    """No bookie has ever heard of it; still the fence holds."""
    written = client.create("empty")
    recovered = client.open(written.ledger, "empty", recovery=True)
    assert (recovered.opened.state, recovered.opened.last_confirmed) == ("CLOSED", -1)
    with pytest.raises(ClientError) as refused:
        written.add(1)
    assert refused.value.code == ledger_driver.LEDGER_FENCED


def test_a_wrong_password_is_refused(client: LedgerClient) -> None:
    """The client itself compares with the metadata; nothing is fenced by the attempt."""
    written = client.create("guarded", digest="MAC", password="secret")
    written.add(3)
    with pytest.raises(ClientError) as refused:
        client.open(written.ledger, "guarded", recovery=True, digest="MAC", password="guess")
    assert refused.value.code == ledger_driver.UNAUTHORIZED
    assert written.add(1).last_confirmed == 3


def test_deleted_ledgers_are_gone(client: LedgerClient) -> None:
    """A deleted ledger cannot be opened any more."""
    written = client.create("deleted")
    written.add(1)
    written.close()
    client.delete(written.ledger)
    with pytest.raises(ClientError) as refused:
        client.open(written.ledger, "deleted", recovery=False)
    assert refused.value.code == ledger_driver.NO_SUCH_LEDGER


def test_batch_read(ours: Bookies) -> None:
    """Many entries in one answer, which only v2 has: the answer ends where the size that was asked for is reached."""
    written = ours.v2.create("batch")
    written.add(100, size=100)
    assert written.read(batch=True, size=100) == 100
    large = ours.v2.create("large-batch")
    large.add(20, size=1_000_000)
    assert large.read(batch=True, size=1_000_000) == 20


def test_long_poll(ours: Bookies) -> None:
    """A reader waits at the bookies: at once when the LAC is beyond, with the entry; after the time without one."""
    written = ours.v3.create("polled")
    written.add(2)
    written.add(1)
    following = ours.v3.open(written.ledger, "polled", recovery=False)
    found = following.ask("long-poll", seed="polled", entry=1, timeoutMs=5_000)
    assert (found["has"], found["entry"]) == ("true", "1")
    begin = time.monotonic()
    waited = following.ask("long-poll", seed="polled", entry=3, timeoutMs=1_000)
    assert waited["has"] == "false"
    assert 0.8 < time.monotonic() - begin < 4
    written.load(pauseMs=100)
    found = following.ask("long-poll", seed="polled", entry=5, timeoutMs=10_000)
    assert (found["has"], found.get("entry")) == ("true", "5"), found
    written.stop_load()


def test_explicit_last_add_confirmed(ours: Bookies) -> None:
    """WRITE_LAC and READ_LAC: readers learn of the last entry though no other follows it."""
    writer = ours.cluster.client(v2=False, explicitLacMs=100)
    written = writer.create("explicit")
    written.add(10)
    following = ours.v3.open(written.ledger, "explicit", recovery=False)
    wait_for(lambda: following.last_confirmed("explicit-lac") == 9, 10, "the explicit LAC does not arrive")
    assert following.read(last=9) == 10
    writer.close()


def test_deferred_sync_and_force(ours: Bookies) -> None:
    """With DEFERRED_SYNC an add moves no LAC; force does, to all that was acknowledged before it."""
    written = ours.v3.create("deferred", deferred=True)
    assert written.add(20).last_confirmed == -1
    assert written.force().last_confirmed == 19
    assert written.read() == 20
    written.close()
    assert ours.v3.open(written.ledger, "deferred", recovery=False).read() == 20


def test_a_bookie_dies_under_the_writer_and_is_replaced(client: LedgerClient, ours: Bookies) -> None:
    """kill -9 under load: the writer changes the ensemble and no add fails; all entries are read back."""
    written = client.create("killed")
    written.load(size=100)
    wait_for(lambda: written.loaded() > 200, 20, "the load does not start")
    victim = next(bookie for bookie in ours.bookies if bookie.id in written.state().bookies)
    victim.kill()
    killed_at = written.loaded()
    wait_for(lambda: written.loaded() > killed_at + 500, 40, "the writer stands still")
    last = written.stop_load()
    state = written.state()
    assert len(state.ensembles) == 2
    assert victim.id not in state.ensembles[max(state.ensembles)]
    assert written.read(last=last) == last + 1
    ours.cluster.start(victim)
    written.close()
    assert client.open(written.ledger, "killed", recovery=False).read() == last + 1
