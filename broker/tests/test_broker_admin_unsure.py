"""Administrators who ask again because the metadata store lost an answer: they meet what is theirs, not a conflict."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from magnetar.broker.testing.clusters import MemoryCluster
from magnetar.broker.testing.sessions import MemoryBroker
from magnetar.broker.topics.partitioned_topics import PartitionedTopics
from magnetar.core.topic_name import NamespaceName, TopicName
from magnetar.metadata.faulty import FaultyStore, RequestFate
from magnetar.metadata.memory import MemoryMetadataStore
from magnetar.metadata.store import MetadataStore, StoreUnavailable, VersionConflict

UNSURE = [RequestFate.REFUSED, RequestFate.LOST, RequestFate.LATE]
TIMES = [1, 3, 5]
NAME = TopicName.parse("parts")
NAMESPACE = NamespaceName("public", "default")
RECORD = "/admin/partitioned-topics/public/default/persistent/parts"
PARTS = "/admin/v2/persistent/public/default/parts"
PARTITIONS = f"{PARTS}/partitions"
SCHEMA = "/schemas/public/default/parts"


class Faults:
    """What becomes of the next requests of a session, by verb and path."""

    def __init__(self) -> None:
        self.fates: dict[tuple[str, str], list[RequestFate]] = {}

    def next(self, verb: str, path: str, *fates: RequestFate) -> None:
        self.fates[verb, path] = list(fates)

    def keep_from_knowing(self, path: str, fate: RequestFate) -> None:
        """Whoever writes there is not told, however often it asks, until `fates` is cleared."""
        self.next("put", path, *[fate] * 10)
        self.next("get", path, *[RequestFate.REFUSED] * 10)

    def __call__(self, verb: str, path: str) -> RequestFate:
        fates = self.fates.get((verb, path))
        return fates.pop(0) if fates else RequestFate.DONE


@pytest.fixture(autouse=True)
def without_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("magnetar.metadata.sure_writes.PAUSE_SECONDS", 0.0)


@pytest.fixture
def faults() -> Faults:
    return Faults()


@pytest.fixture
async def memory_broker(faults: Faults) -> AsyncIterator[MemoryBroker]:
    """That `admin` asks: its session loses answers."""
    broker = MemoryBroker()
    broker.store = FaultyStore(broker.store, faults)
    async with broker:
        yield broker
        faults.fates.clear()


async def record(admin: Any) -> Any:
    return await admin.broker.service.resources.documents.get(RECORD)


async def partitions(admin: Any) -> list[int]:
    """Indexes of the partitions that exist."""
    names = await admin.broker.service.resources.persistent_topics(NAMESPACE)
    return sorted(TopicName.parse(name).partition_index for name in names)


TENANT = {"adminRoles": [], "allowedClusters": ["standalone"]}
CREATIONS = {
    "tenant": ("/admin/policies/other", "/admin/v2/tenants/other", TENANT),
    "namespace": ("/admin/policies/public/more", "/admin/v2/namespaces/public/more", {}),
    "cluster": ("/admin/clusters/far", "/admin/v2/clusters/far", {"serviceUrl": "http://far:8080"}),
    "partitions": (RECORD, PARTITIONS, 3),
    "non-persistent": (RECORD.replace("/pers", "/non-pers"), PARTITIONS.replace("/pers", "/non-pers"), 3),
}


@pytest.mark.parametrize("fate", UNSURE)
@pytest.mark.parametrize("times", TIMES)
@pytest.mark.parametrize("what", CREATIONS)
async def test_a_creation_may_be_asked_for_again(
    admin: Any, faults: Faults, fate: RequestFate, times: int, what: str
) -> None:
    node, path, body = CREATIONS[what]
    faults.next("put", node, *[fate] * times)
    assert await admin.until_answered("PUT", path, body) in (200, 204)
    assert await admin.broker.service.resources.documents.exists(node)
    await admin.check(("PUT", path, body, 409, ...))


@pytest.mark.parametrize("fate", UNSURE)
@pytest.mark.parametrize("what", CREATIONS)
async def test_a_creation_of_which_nothing_was_told_is_no_conflict_later(
    admin: Any, faults: Faults, fate: RequestFate, what: str
) -> None:
    node, path, body = CREATIONS[what]
    faults.keep_from_knowing(node, fate)
    await admin.check(("PUT", path, body, 503, ...))
    faults.fates.clear()
    assert await admin.until_answered("PUT", path, body) in (200, 204)
    await admin.check(("PUT", path, body, 409, ...))


@pytest.mark.parametrize("fate", UNSURE)
async def test_who_wants_something_else_meets_a_conflict(admin: Any, faults: Faults, fate: RequestFate) -> None:
    faults.keep_from_knowing(RECORD, fate)
    await admin.check(("PUT", PARTITIONS, 3, 503, ...))
    faults.fates.clear()
    await admin.broker.store.put(RECORD, b'{"partitions":2,"deleted":false}')
    await admin.check(("PUT", PARTITIONS, 3, 409, "already exists"), ("GET", PARTITIONS, None, 200, ...))
    assert (await record(admin))["partitions"] == 2


@pytest.mark.parametrize("fate", UNSURE)
@pytest.mark.parametrize("times", TIMES)
async def test_all_partitions_are_made(admin: Any, faults: Faults, fate: RequestFate, times: int) -> None:
    faults.next("put", "/managed-ledgers/public/default/persistent/parts-partition-2", *[fate] * times)
    assert await admin.until_answered("PUT", PARTITIONS, 4) == 204
    assert await partitions(admin) == [0, 1, 2, 3]
    await admin.check(("PUT", PARTITIONS, 4, 409, "already exists"))


async def test_a_creation_that_only_lacks_its_end_may_be_asked_for_again(admin: Any, faults: Faults) -> None:
    """All is made, but not whether the namespace still stands is known."""
    await admin.check(("GET", "/admin/v2/namespaces/public/default/topics", None, 200, []))
    faults.next("get", "/admin/policies/public/default", RequestFate.DONE, RequestFate.REFUSED)
    await admin.check(("PUT", PARTITIONS, 2, 503, ...), ("PUT", PARTITIONS, 2, 204, None))
    assert await partitions(admin) == [0, 1]


@pytest.mark.parametrize("fate", UNSURE)
async def test_another_broker_finishes_a_creation(faults: Faults, fate: RequestFate) -> None:
    tree = MemoryMetadataStore()
    sessions: list[MetadataStore] = []

    async def open_store() -> MetadataStore:
        # The first broker's session loses answers.
        session = tree.another_session()
        sessions.append(session if sessions else FaultyStore(session, faults))
        return sessions[-1]

    async with MemoryCluster(2, open_store=open_store) as cluster:
        one, other = (PartitionedTopics(each.service, each.running.context.peers) for each in (cluster[0], cluster[1]))
        faults.keep_from_knowing(RECORD, fate)
        with pytest.raises(StoreUnavailable):
            await one.create(NAME, 4, None)
        faults.fates.clear()
        await other.create(NAME, 4, None)
        topics = await cluster[1].service.resources.persistent_topics(NAMESPACE)
        assert topics == [str(NAME.partition(index)) for index in range(4)]
        for count in (4, 5):
            with pytest.raises(VersionConflict):
                await other.create(NAME, count, None)
    await tree.close()


@pytest.mark.parametrize("fate", UNSURE)
@pytest.mark.parametrize("times", TIMES)
@pytest.mark.parametrize("lost", [RECORD, "/managed-ledgers/public/default/persistent/parts-partition-3"])
async def test_a_growth_may_be_asked_for_again(
    admin: Any, faults: Faults, fate: RequestFate, times: int, lost: str
) -> None:
    await admin.check(("PUT", PARTITIONS, 2, 204, None), ("PUT", f"{PARTS}/subscription/sub", None, 204, None))
    faults.next("put", lost, *[fate] * times)
    assert await admin.until_answered("POST", PARTITIONS, 4) == 204
    assert (await record(admin), await partitions(admin)) == ({"partitions": 4, "deleted": False}, [0, 1, 2, 3])
    for index in range(4):
        await admin.check(("GET", f"{PARTS}-partition-{index}/subscriptions", None, 200, ["sub"]))


@pytest.mark.parametrize("times", TIMES)
async def test_what_was_added_does_not_count_twice(admin: Any, faults: Faults, times: int) -> None:
    """The namespace has room for four topics."""
    await admin.check(
        ("POST", "/admin/v2/namespaces/public/default/maxTopicsPerNamespace", 4, 204, None),
        ("PUT", PARTITIONS, 2, 204, None),
    )
    faults.next("put", RECORD, *[RequestFate.REFUSED] * times)
    assert await admin.until_answered("POST", PARTITIONS, 4) == 204
    await admin.check(("POST", PARTITIONS, 5, 422, "Exceed maximum number of topics"))


@pytest.mark.parametrize("fate", UNSURE)
@pytest.mark.parametrize("lost", [("put", RECORD), ("delete", RECORD), ("delete", SCHEMA)])
@pytest.mark.parametrize("times", TIMES)
async def test_a_deletion_may_be_asked_for_again(
    admin: Any, faults: Faults, fate: RequestFate, lost: tuple[str, str], times: int
) -> None:
    schema = {"type": "STRING", "schema": "", "properties": {}}
    await admin.check(
        ("PUT", PARTITIONS, 3, 204, None), ("POST", "/admin/v2/schemas/public/default/parts/schema", schema, 200, ...)
    )
    faults.next(*lost, *[fate] * times)
    # What is gone when it is asked for again is not found.
    assert await admin.until_answered("DELETE", PARTITIONS) in ((204,) if times == 1 else (204, 404))
    assert (await record(admin), await partitions(admin)) == (None, [])
    assert not await admin.broker.store.exists(SCHEMA)
    await admin.check(("PUT", PARTITIONS, 1, 204, None))


@pytest.mark.parametrize("fate", UNSURE)
@pytest.mark.parametrize("done", [0, 1])
@pytest.mark.parametrize("times", TIMES)
async def test_what_is_not_deleted_after_all_does_not_stay_marked(
    admin: Any, faults: Faults, fate: RequestFate, done: int, times: int
) -> None:
    """Nobody could make or add partitions any more."""
    await admin.check(("PUT", PARTITIONS, 2, 204, None))
    client = await admin.broker.connect()
    await client.producer("parts-partition-1")
    faults.next("put", RECORD, *[RequestFate.DONE] * done, *[fate] * times)
    for _ in range(3):
        assert await admin.until_answered("DELETE", PARTITIONS) == 412
    assert await record(admin) == {"partitions": 2, "deleted": False}


@pytest.mark.parametrize("fate", UNSURE)
@pytest.mark.parametrize("times", TIMES)
async def test_no_schema_is_left_of_a_topic_that_is_gone(
    admin: Any, faults: Faults, fate: RequestFate, times: int
) -> None:
    schema = {"type": "STRING", "schema": "", "properties": {}}
    await admin.check(
        ("PUT", PARTS, None, 204, None), ("POST", "/admin/v2/schemas/public/default/parts/schema", schema, 200, ...)
    )
    faults.next("delete", SCHEMA, *[fate] * times)
    assert await admin.until_answered("DELETE", PARTS) == 204
    assert not await admin.broker.store.exists(SCHEMA)
    await admin.check(("DELETE", PARTS, None, 404, ...))
