"""A transaction coordinator changes sides, and back, with everything in flight: killed here, gone on with there."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from magnetar.broker.peers.peer_client import PeerClient
from magnetar.broker.testing.sessions import ProtocolClient, Received, command_type
from magnetar.broker.transactions.api import coordinator_not_found
from magnetar.broker.transactions.earlier import EarlierTransactions
from magnetar.broker.transactions.standings import CoordinatorStandings
from magnetar.client.client import PulsarClient
from magnetar.core.clock import SystemClock
from magnetar.wire.pulsar.generated import pulsar_api_pb2 as pb

from e2e.cluster import admin
from e2e.interchange import parts
from e2e.interchange.cluster import Cluster
from e2e.interchange.parts import BrokerPart

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

TRANSACTIONS = "admin/v3/transactions"
COORDINATOR = "persistent://pulsar/system/transaction_coordinator_assign-partition-0"
TOPIC, OTHER = "persistent://public/default/never-made", "persistent://public/default/never-made-either"
LONG_MS = 600_000
CONNECT_SECONDS_MAX = 60.0
QUORUMS = (1, 1, 1)


async def until(holds: Callable[[], Awaitable[bool]], problem: str, seconds: float = CONNECT_SECONDS_MAX) -> None:
    """Wait for what comes to be by itself."""
    deadline = asyncio.get_running_loop().time() + seconds
    while not await holds():
        assert asyncio.get_running_loop().time() < deadline, f"{problem} after {seconds} s"
        await asyncio.sleep(0.5)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """ZooKeeper only."""
    lacking = parts.missing()
    if lacking is not None:
        pytest.skip(lacking)
    with Cluster(tmp_path) as running:
        yield running


class Side:
    """A broker that runs the coordinator, and a client of it."""

    def __init__(self, broker: BrokerPart, client: ProtocolClient) -> None:
        self.broker = broker
        self._client = client

    @classmethod
    async def take_over(cls, broker: BrokerPart) -> Side:
        """Start the broker, and have it read the coordinator's log."""
        broker.start()
        client = await ProtocolClient.connected(broker.port)
        side = cls(broker, client)
        # The dead one's session may still own the bundle.
        await until(side._connects, "the coordinator is not taken over")
        return side

    async def _connects(self) -> bool:
        found = await self._client.request(pb.BaseCommand.LOOKUP, topic=COORDINATOR)
        if found.body.response != pb.CommandLookupTopicResponse.Connect:
            return False
        if found.body.brokerServiceUrl != self.broker.service_url:
            return False
        answer = await self._client.request(pb.BaseCommand.TC_CLIENT_CONNECT_REQUEST, tc_id=0)
        return not answer.body.HasField("error")

    async def ask(self, kind: str, sequence: int | None = None, **fields: Any) -> Received:
        """A request that is granted."""
        if sequence is not None:
            fields |= {"txnid_most_bits": 0, "txnid_least_bits": sequence}
        answer = await self._client.request(command_type(kind), **fields)
        assert not answer.body.HasField("error"), answer
        return answer

    async def begin(self, timeout_ms: int = LONG_MS) -> int:
        answer = await self.ask("NEW_TXN", tc_id=0, txn_ttl_seconds=timeout_ms)
        sequence: int = answer.body.txnid_least_bits
        return sequence

    async def take_part(self, sequence: int, *topics: str) -> None:
        await self.ask("ADD_PARTITION_TO_TXN", sequence, partitions=topics)
        for topic in topics:
            subscription = pb.Subscription(topic=topic, subscription="s")
            await self.ask("ADD_SUBSCRIPTION_TO_TXN", sequence, subscription=[subscription])

    async def end(self, sequence: int, action: pb.TxnAction) -> None:
        await self.ask("END_TXN", sequence, txn_action=action)

    def shown(self, what: str) -> Any:
        """What the broker's admin API says."""
        return json.loads(admin.call("GET", f"{self.broker.admin_url}/{TRANSACTIONS}/{what}"))

    def stats(self) -> tuple[int, int, int]:
        """The newest id, the low-water mark, how many are open."""
        found = self.shown("coordinatorStats?coordinatorId=0")
        assert found["state"] == "Ready"
        return found["leastSigBits"], found["lowWaterMark"], found["ongoingTxnSize"]

    async def becomes(self, *stats: tuple[int, int, int]) -> None:
        """Wait until they are so."""

        async def so() -> bool:
            return self.stats() in stats

        await until(so, f"{self.stats()} does not become {stats}")

    async def kill(self) -> None:
        """SIGKILL."""
        await self._client.close()
        self.broker.kill()


@pytest.mark.parametrize("batched", [False, True], ids=["records", "batches"])
async def test_a_coordinator_changes_sides_and_back(cluster: Cluster, batched: bool) -> None:
    settings = {
        "transactionCoordinatorEnabled": "true",
        # The list of ledgers is written now and then, and old ones are trimmed.
        "managedLedgerMaxEntriesPerLedger": "7",
        "managedLedgerMinLedgerRolloverTimeMinutes": "0",
    }
    batches = {"transactionLogBatchedWriteEnabled": "true", "transactionLogBatchedWriteMaxDelayInMillis": "300"}
    cluster.initialize_pulsar(transaction_coordinators=1)
    cluster.start(cluster.our_bookie("bookie"))
    settings |= batches if batched else {}
    ours, apaches = cluster.our_broker(QUORUMS, **settings), cluster.apache_broker(QUORUMS, **settings)

    here = await Side.take_over(ours)
    for _ in range(6):
        await here.end(await here.begin(), pb.COMMIT)
    assert [await here.begin() for _ in range(3)] == [6, 7, 8]
    await here.take_part(7, TOPIC, OTHER)
    await here.begin(timeout_ms=1)
    before = here.stats()
    await here.kill()

    there = await Side.take_over(apaches)
    # The one whose time was over is aborted.
    await there.becomes((9, 5, 3))
    assert before[0] == 9
    shown = there.shown("transactionMetadata/0/6")
    assert (shown["status"], shown["timeoutAt"]) == ("OPEN", LONG_MS)
    await there.end(6, pb.ABORT)
    # Both topics are looked up, asked, and found not to be there.
    await there.end(7, pb.COMMIT)
    assert there.stats() == (9, 7, 1)
    begun = await asyncio.gather(*(there.begin() for _ in range(5)))
    assert sorted(begun) == [10, 11, 12, 13, 14]
    await there.take_part(11, TOPIC)
    await there.begin(timeout_ms=40_000)
    await asyncio.gather(*(there.end(sequence, pb.ABORT) for sequence in (8, 12)))
    before = there.stats()
    assert before == (15, 9, 5)
    await there.kill()

    here = await Side.take_over(ours)
    assert here.stats() in (before, (15, 9, 4))
    shown = here.shown("transactionMetadata/0/11")
    assert (shown["txnId"], shown["status"], list(shown["producedPartitions"])) == ("(0,11)", "OPEN", [TOPIC])
    assert {topic: list(names) for topic, names in shown["ackedPartitions"].items()} == {TOPIC: ["s"]}
    await asyncio.gather(*(here.end(sequence, pb.COMMIT) for sequence in (10, 13)))
    assert await here.begin() == 16
    # So is one whose time began at the other side.
    await here.becomes((16, 10, 3))
    await here.kill()

    there = await Side.take_over(apaches)
    # Apache's forgets what it finds ended once that is acknowledged.
    await there.becomes((16, 10, 3))
    for sequence in (11, 14, 16):
        await there.end(sequence, pb.COMMIT)
    assert there.stats() == (16, 0, 0)
    assert await there.begin() == 17
    await there.kill()


@pytest.mark.parametrize("kind", ["apache", "ours"])
async def test_owners_of_topics_learn_from_either_kind_what_is_open(cluster: Cluster, kind: str) -> None:
    cluster.initialize_pulsar(transaction_coordinators=1)
    cluster.start(cluster.our_bookie("bookie"))
    make = cluster.apache_broker if kind == "apache" else cluster.our_broker
    side = await Side.take_over(make(QUORUMS, transactionCoordinatorEnabled="true"))
    over, open_one = await side.begin(), await side.begin()
    await side.end(over, pb.COMMIT)
    client = PulsarClient(lambda: side.broker.service_url, SystemClock())
    peers = PeerClient(lambda: side.broker.admin_url)

    async def count() -> int:
        return 1

    nobody: Any = NoneHere()
    try:
        standings = CoordinatorStandings(lambda: client, peers, count, nobody)
        since, earlier = standings.moment(), EarlierTransactions()
        found = [await standings.is_open((0, number), since, earlier) for number in (over, open_one, open_one + 1)]
        assert found == [False, True, True]
        assert (earlier.includes((0, open_one)), earlier.includes((0, open_one + 1))) == (True, False)
    finally:
        await peers.close()
        await client.close()
        await side.kill()


class NoneHere:
    """The coordinators of a broker that runs none."""

    def __getattr__(self, name: str) -> Any:
        def not_here(_: object) -> None:
            raise coordinator_not_found(0)

        return not_here
