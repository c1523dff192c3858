"""One topic, offloaded in turns by Apache's broker and by ours: each reads what the other has offloaded, and goes on
with an offload amid which the other was killed; ours gives up the copies on the bookies for both.

Driver `S3`, as Apache's `aws-s3` asks Amazon itself where a bucket lies, whatever its endpoint is."""

from __future__ import annotations

import asyncio
import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from magnetar.client.client import PulsarClient
from magnetar.client.consumer import ConsumerOptions
from magnetar.client.message import OutgoingMessage
from magnetar.client.reader import ReaderOptions
from magnetar.client.settings import ClientSettings
from magnetar.core.clock import SystemClock
from magnetar.core.topic_name import TopicName
from magnetar.ledger.ledger_paths import ledger_path
from magnetar.managed.info_codec import decode_ledger_info
from magnetar.managed.offload.context import OffloadedCopy, copy_of
from magnetar.managed.paths import ledger_path as managed_ledger_path
from magnetar.metadata.factory import open_store
from magnetar.metadata.store import MetadataStore

from e2e.interchange import brokers, parts
from e2e.interchange.cluster import Cluster
from e2e.interchange.parts import BrokerPart
from e2e.peers import distribution
from e2e.processes import wait_for
from lib.tests.s3_server import make_bucket, s3_server

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

TOPIC = TopicName.parse("persistent://public/default/orders")
BUCKET = "topics"
ENTRIES_PER_LEDGER = 50
PUBLISHED = 3 * ENTRIES_PER_LEDGER + 10
"""In each half of a turn: some ledgers are closed by it, and one is not full."""
SIZE_BYTES = 5_000
OFFLOADED_SECONDS_MAX = 120.0
OWNED_SECONDS_MAX = 60.0


class Place(NamedTuple):
    """Where ledgers are offloaded to."""

    settings: dict[str, str]
    files: Path | None
    endpoint: str

    def kept(self) -> int:
        """How many objects or files there are."""
        if self.files is not None:
            return sum(path.is_file() for path in self.files.rglob("*"))
        with urllib.request.urlopen(f"{self.endpoint}/{BUCKET}?list-type=2", timeout=60) as answer:
            return int(answer.read().count(b"<Key>"))


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """ZooKeeper, a bookie, and what brokers want to find."""
    reason = parts.missing()
    if reason is not None:
        pytest.skip(reason)
    with Cluster(tmp_path) as running:
        running.initialize_pulsar()
        running.start(running.our_bookie("bookie"))
        yield running


@pytest.fixture
def place(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    """A bucket of a real server, or a folder."""
    if request.param == "filesystem":
        folder = tmp_path / "offloaded"
        folder.mkdir()
        profile = distribution.home() / "conf" / "filesystem_offload_core_site.xml"
        yield Place(
            {
                "managedLedgerOffloadDriver": "filesystem",
                "fileSystemURI": f"file://{folder}",
                "fileSystemProfilePath": str(profile),
            },
            folder,
            "",
        )
        return
    monkeypatch.setenv("ACCESS_KEY_ID", "id")
    monkeypatch.setenv("ACCESS_KEY_SECRET", "secret")
    with s3_server() as endpoint:
        make_bucket(endpoint, BUCKET)
        yield Place(
            {
                "managedLedgerOffloadDriver": "S3",
                "managedLedgerOffloadBucket": BUCKET,
                "managedLedgerOffloadRegion": "us-east-1",
                "managedLedgerOffloadServiceEndpoint": endpoint,
            },
            None,
            endpoint,
        )


def ask(broker: BrokerPart, method: str, rest: str, body: Any = None) -> Any:
    """The answer of the admin API about the topic, decoded; None for an empty one."""
    url = f"{broker.admin_url}/admin/v2/{str(TOPIC).replace('://', '/')}{rest}"
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"}, method=method)
    with urllib.request.urlopen(request, timeout=60) as answer:
        content = answer.read()
    return json.loads(content) if content else None


def owns(broker: BrokerPart) -> bool:
    """Whether the broker serves the topic, now that the other one is gone."""
    try:
        ask(broker, "GET", "/stats")
    except (urllib.error.URLError, OSError):
        return False
    return True


def payload(number: int) -> bytes:
    return (b"order %d " % number).ljust(SIZE_BYTES, b".")


async def publish(broker: BrokerPart, first: int) -> None:
    client = PulsarClient(lambda: broker.service_url, SystemClock(), ClientSettings())
    try:
        await client.consumer(TOPIC, ConsumerOptions(subscription="audit"))  # It keeps everything.
        producer = await client.producer(TOPIC)
        await producer.send_all([OutgoingMessage(payload(number)) for number in range(first, first + PUBLISHED)])
    finally:
        await client.close()


async def read(broker: BrokerPart) -> list[bytes]:
    """All that the topic has."""
    client = PulsarClient(lambda: broker.service_url, SystemClock(), ClientSettings())
    try:
        reader = await client.reader(TOPIC, ReaderOptions())
        found = []
        while (message := await reader.next_or_end()) is not None:
            found.append(message.payload)
        return found
    finally:
        await client.close()


def begin_offload(broker: BrokerPart) -> None:
    """Ask for all closed ledgers."""
    last = ask(broker, "GET", "/internalStats")["ledgers"][-1]["ledgerId"]
    ask(broker, "PUT", "/offload", {"ledgerId": last, "entryId": 0, "partitionIndex": -1})


def offload(broker: BrokerPart) -> None:
    """Offload all closed ledgers, to the end."""
    begin_offload(broker)

    def ended() -> bool:
        status = ask(broker, "GET", "/offload")
        assert status["status"] != "ERROR", status
        return bool(status["status"] == "SUCCESS")

    wait_for(ended, OFFLOADED_SECONDS_MAX, "the topic is not offloaded")
    *closed, _ = ask(broker, "GET", "/internalStats")["ledgers"]
    assert all(ledger["offloaded"] for ledger in closed if ledger["entries"]), closed


class Records:
    """What the metadata store has of the topic's ledgers and their copies."""

    def __init__(self, cluster: Cluster) -> None:
        self._url = f"zk:{cluster.zookeeper.address}"

    def copies(self) -> dict[int, OffloadedCopy]:
        """Those that the topic's record names, by ledger."""
        return asyncio.run(self._with(self._copies))

    def on_bookies(self) -> set[int]:
        """Which of these ledgers the bookies have as well."""
        return asyncio.run(self._with(self._on_bookies))

    async def _with(self, work: Any) -> Any:
        store = await open_store(self._url)
        try:
            return await work(store)
        finally:
            await store.close()

    async def _copies(self, store: MetadataStore) -> dict[int, OffloadedCopy]:
        node = await store.get(managed_ledger_path("public/default/persistent/orders"), watch=False)
        assert node is not None
        records = decode_ledger_info(node.value).records
        return {record.ledger_id: copy for record in records if (copy := copy_of(record)) is not None}

    async def _on_bookies(self, store: MetadataStore) -> set[int]:
        copies = await self._copies(store)
        return {one for one in copies if await store.get(ledger_path(one), watch=False) is not None}


@pytest.mark.parametrize("place", ["S3", "filesystem"], indirect=True)
@pytest.mark.parametrize("turns", ["apache ours apache ours", "ours apache ours"])
def test_in_turns(cluster: Cluster, place: Place, turns: str, tmp_path: Path) -> None:
    """Each but the last one is killed amid a second offload, which the next one repeats."""
    common = {
        "managedLedgerMaxEntriesPerLedger": str(ENTRIES_PER_LEDGER),
        "managedLedgerMinLedgerRolloverTimeMinutes": "0",
        "narExtractionDirectory": str(tmp_path),
        "offloadersDirectory": str(distribution.offloaders()),
        **place.settings,
    }
    # Apache's keeps the copies on the bookies for its four hours; ours gives up its own, and those.
    sides: dict[str, BrokerPart] = {
        "apache": cluster.apache_broker((1, 1, 1), **common),
        "ours": cluster.our_broker((1, 1, 1), **common, managedLedgerOffloadDeletionLagMs="1000"),
    }
    records = Records(cluster)
    published = 0
    names = turns.split()
    for number, name in enumerate(names):
        broker = sides[name]
        brokers.start_with_namespace(cluster, broker)
        if published:
            wait_for(lambda: owns(broker), OWNED_SECONDS_MAX, "nobody owns the topic")  # noqa: B023
            assert asyncio.run(read(broker)) == [payload(one) for one in range(published)]
        asyncio.run(publish(broker, published))
        published += PUBLISHED
        offload(broker)
        copies = records.copies()
        assert copies
        assert all(copy.complete for copy in copies.values())
        if name == "ours":
            wait_for(lambda: not records.on_bookies(), OFFLOADED_SECONDS_MAX, "the bookies' copies stay")
            assert all(copy.bookkeeper_deleted for copy in records.copies().values())
        assert asyncio.run(read(broker)) == [payload(one) for one in range(published)]
        if number < len(names) - 1:
            asyncio.run(publish(broker, published))
            published += PUBLISHED
            begin_offload(broker)
            broker.kill()
    ask(broker, "DELETE", "?force=true")
    wait_for(lambda: place.kept() == 0, OFFLOADED_SECONDS_MAX, "copies of a topic that is deleted are left")
