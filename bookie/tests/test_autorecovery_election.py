from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest
from magnetar.bookie.autorecovery import paths
from magnetar.bookie.autorecovery.election import Election, ElectionKind, current_auditor, election, election_of_uri
from magnetar.core.errors import PeerError
from magnetar.metadata.memory import MemoryMetadataStore
from magnetar.metadata.store import MetadataStore
from magnetar.metadata.testing import ZookeeperServer
from magnetar.metadata.zookeeper import ZookeeperMetadataStore

PATIENCE_SECONDS = 30.0
KINDS = pytest.mark.parametrize("kind", ElectionKind)


@pytest.fixture(scope="module")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZookeeperServer]:
    with ZookeeperServer(tmp_path_factory.mktemp("zookeeper")) as server:
        yield server


@pytest.fixture(params=["memory", pytest.param("zookeeper", marks=pytest.mark.zookeeper)])
async def stores(request: pytest.FixtureRequest) -> AsyncIterator[list[MetadataStore]]:
    """Three sessions on one empty tree."""
    opened: list[MetadataStore]
    if request.param == "memory":
        memory = MemoryMetadataStore()
        opened = [memory, memory.another_session(), memory.another_session()]
    else:
        server: ZookeeperServer = request.getfixturevalue("zookeeper")
        url = f"zk:{server.address}/t{random.randrange(10**9)}"
        opened = [await ZookeeperMetadataStore.open(url) for _ in range(3)]
    yield opened
    for store in opened:
        await store.close()


class Candidate:
    """A candidacy that remembers what it was told."""

    def __init__(self, kind: ElectionKind, store: MetadataStore, name: str) -> None:
        self.history: list[bool] = []
        self.election: Election = election(kind, store, name, lambda: self.history.append(self.election.leading))

    @property
    def leading(self) -> bool:
        return self.election.leading


async def eventually(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not condition():
            await asyncio.sleep(0.001)


@KINDS
async def test_one_at_a_time_and_the_next_when_it_goes(stores: list[MetadataStore], kind: ElectionKind) -> None:
    left = [Candidate(kind, store, f"b{number}:1") for number, store in enumerate(stores)]
    for candidate in left:
        await candidate.election.start()
    while left:
        await eventually(lambda: any(candidate.leading for candidate in left))
        (leader,) = [candidate for candidate in left if candidate.leading]
        if kind is not ElectionKind.LEADER:
            assert leader is left[0], "votes are counted in order"
        assert await current_auditor(stores[0], kind) is not None
        await leader.election.close()
        assert not leader.leading
        left.remove(leader)
    assert await current_auditor(stores[0], kind) is None


async def test_votes_are_apaches(stores: list[MetadataStore]) -> None:
    """Against what Apache's bookie on BookKeeper's own driver wrote."""
    candidate = Candidate(ElectionKind.VOTES, stores[0], "127.0.0.1:23282")
    await candidate.election.start()
    assert await stores[0].children("/ledgers/underreplication/auditorelection") == ["V_0000000000"]
    vote = await stores[0].get("/ledgers/underreplication/auditorelection/V_0000000000")
    root = await stores[0].get("/ledgers/underreplication/auditorelection")
    assert vote is not None
    assert root is not None
    assert vote.stat.ephemeral
    assert vote.value == root.value == b'bookieId: "127.0.0.1:23282"\n'
    await candidate.election.close()


async def test_the_leaders_node_is_pulsars(stores: list[MetadataStore]) -> None:
    """Against what Apache's bookie on Pulsar's driver wrote."""
    candidate = Candidate(ElectionKind.LEADER, stores[0], "127.0.0.1:23281")
    await candidate.election.start()
    node = await stores[0].get("/ledgers/underreplication/leader")
    assert node is not None
    assert node.stat.ephemeral
    assert node.value == b'"127.0.0.1:23281"'
    await candidate.election.close()


async def test_behind_an_apache_bookie_of_either_kind(stores: list[MetadataStore]) -> None:
    vote = await stores[1].put(paths.VOTE_PREFIX, b'bookieId: "x:1"\n', ephemeral=True, sequential=True)
    await stores[1].put(paths.LEADER, b'"y:1"', ephemeral=True)
    candidates = {kind: Candidate(kind, stores[0], "z:1") for kind in (ElectionKind.VOTES, ElectionKind.LEADER)}
    both = Candidate(ElectionKind.BOTH, stores[2], "w:1")
    for candidate in (*candidates.values(), both):
        await candidate.election.start()
    assert await current_auditor(stores[0], ElectionKind.VOTES) == "x:1"
    assert await current_auditor(stores[0], ElectionKind.LEADER) == "y:1"
    assert not any(candidate.leading for candidate in (*candidates.values(), both))
    await stores[1].delete(vote.path)
    await eventually(lambda: candidates[ElectionKind.VOTES].leading)
    await candidates[ElectionKind.VOTES].election.close()
    await candidates[ElectionKind.LEADER].election.close()
    await asyncio.sleep(0.05)
    assert not both.leading, "the leader's node is another's still"
    await stores[1].delete(paths.LEADER)
    await eventually(lambda: both.leading)
    await both.election.close()


@KINDS
async def test_a_lost_session_ends_the_lead_at_once(kind: ElectionKind) -> None:
    store = MemoryMetadataStore()
    other = store.another_session()
    first, second = Candidate(kind, store, "a:1"), Candidate(kind, other, "b:1")
    await first.election.start()
    await second.election.start()
    await eventually(lambda: first.leading)
    store.expire_session()
    await asyncio.sleep(0)
    assert not first.leading
    assert first.history == [True, False]
    await eventually(lambda: first.leading or second.leading)
    await asyncio.sleep(0.01)
    assert first.leading is not second.leading
    if kind is not ElectionKind.LEADER:
        assert second.leading, "the vote of a new session comes last"
    await second.election.close()
    await eventually(lambda: first.leading)
    await first.election.close()
    await store.close()
    await other.close()


async def test_a_withdrawn_vote_is_cast_again(stores: list[MetadataStore]) -> None:
    candidate = Candidate(ElectionKind.VOTES, stores[0], "a:1")
    await candidate.election.start()
    await stores[1].delete(f"{paths.VOTES}/V_0000000000")
    await eventually(lambda: candidate.leading)
    async with asyncio.timeout(PATIENCE_SECONDS):
        while await stores[1].children(paths.VOTES) != ["V_0000000001"]:
            await asyncio.sleep(0.001)
    await candidate.election.close()


async def test_of_two_own_votes_one_is_withdrawn(stores: list[MetadataStore]) -> None:
    """The store may carry out a request and yet report that it failed."""
    for _ in range(2):
        await stores[0].put(paths.VOTE_PREFIX, b'bookieId: "a:1"\n', ephemeral=True, sequential=True)
    candidate = Candidate(ElectionKind.VOTES, stores[0], "a:1")
    await candidate.election.start()
    assert candidate.leading
    assert await stores[1].children(paths.VOTES) == ["V_0000000000"]
    await candidate.election.close()
    assert await stores[1].children(paths.VOTES) == []


async def test_an_election_without_candidates(stores: list[MetadataStore]) -> None:
    for kind in ElectionKind:
        assert await current_auditor(stores[0], kind) is None


async def test_a_damaged_leader_is_said(stores: list[MetadataStore]) -> None:
    await stores[0].put(paths.LEADER, b"{}")
    with pytest.raises(PeerError):
        await current_auditor(stores[0], ElectionKind.LEADER)


@pytest.mark.parametrize(
    ("uri", "kind"),
    [
        ("", ElectionKind.VOTES),
        ("zk+hierarchical://h:2181/ledgers", ElectionKind.VOTES),
        ("metadata-store:zk:h:2181", ElectionKind.LEADER),
    ],
)
def test_the_election_follows_from_the_uri(uri: str, kind: ElectionKind) -> None:
    assert election_of_uri(uri) is kind


@pytest.mark.zookeeper
@pytest.mark.slow
@KINDS
async def test_a_paused_zookeeper_ends_the_lead(tmp_path: Path, kind: ElectionKind) -> None:
    with ZookeeperServer(tmp_path) as server:
        store = await ZookeeperMetadataStore.open(server.address, session_timeout_ms=2000)
        candidate = Candidate(kind, store, "a:1")
        await candidate.election.start()
        await eventually(lambda: candidate.leading)
        server.pause()
        await eventually(lambda: not candidate.leading)
        server.resume()
        await eventually(lambda: candidate.leading)
        await candidate.election.close()
        await store.close()
