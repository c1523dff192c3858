"""Partitioned topics that several brokers make, enlarge and delete at once, or one of which dies over."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable

import pytest
from magnetar.admin_client.errors import AdminRefused
from magnetar.broker.testing.clusters import MemoryCluster
from magnetar.broker.testing.sessions import MemoryBroker
from magnetar.broker.topics.partitioned_topics import PartitionedTopics
from magnetar.core.topic_name import NamespaceName, TopicName
from magnetar.wire.pulsar.errors import PulsarError, ServerError
from magnetar.wire.pulsar.generated import pulsar_api_pb2 as pb

NAME = TopicName.parse("parts")
NAMESPACE = NamespaceName("public", "default")


@pytest.fixture
async def cluster() -> AsyncIterator[MemoryCluster]:
    async with MemoryCluster(2) as running:
        yield running


class Interrupted(PartitionedTopics):
    """Does something else before the record is changed, or instead."""

    def __init__(self, broker: MemoryBroker) -> None:
        super().__init__(broker.service, broker.running.context.peers)
        self.meanwhile: Callable[[], Awaitable[None]] | None = None

    async def _copy_subscriptions(self, name: TopicName, indexes: Iterable[int]) -> None:
        await super()._copy_subscriptions(name, indexes)
        await self._interrupt()

    async def _delete_partitions(self, name: TopicName, indexes: range, *, force: bool) -> None:
        await super()._delete_partitions(name, indexes, force=force)
        await self._interrupt()

    async def _interrupt(self) -> None:
        meanwhile, self.meanwhile = self.meanwhile, None
        if meanwhile is not None:
            await meanwhile()


async def record(cluster: MemoryCluster) -> dict[str, object] | None:
    resources = cluster[0].service.resources
    found: dict[str, object] | None = await resources.documents.get(resources.partitioned_topic_path(NAME))
    return found


async def topics(cluster: MemoryCluster) -> list[str]:
    found: list[str] = await cluster[1].service.resources.persistent_topics(NAMESPACE)
    return found


async def test_the_largest_growth_stays(cluster: MemoryCluster) -> None:
    """However the brokers' changes come together, partitions that clients know do not vanish."""
    one, other = Interrupted(cluster[0]), Interrupted(cluster[1])
    await one.create(NAME, 2, None)
    one.meanwhile = lambda: other.grow(NAME, 8)
    await one.grow(NAME, 4)
    assert await record(cluster) == {"partitions": 8, "deleted": False}
    assert len(await topics(cluster)) == 8


async def test_what_is_deleted_does_not_grow(cluster: MemoryCluster) -> None:
    one, other = Interrupted(cluster[0]), Interrupted(cluster[1])
    await one.create(NAME, 2, None)
    one.meanwhile = lambda: other.delete(NAME, force=False)
    with pytest.raises(PulsarError) as caught:
        await one.grow(NAME, 4)
    assert caught.value.code == ServerError.TOPIC_NOT_FOUND
    assert (await record(cluster), await topics(cluster)) == (None, [])


async def test_what_is_being_deleted_is_not_made_anew(cluster: MemoryCluster) -> None:
    one, other = Interrupted(cluster[0]), Interrupted(cluster[1])
    await one.create(NAME, 2, None)

    async def others_try() -> None:
        assert await record(cluster) == {"partitions": 2, "deleted": True}
        with pytest.raises(PulsarError, match="not the partitioned"):
            await other.grow(NAME, 4)
        client = await cluster.client_of(str(NAME.partition(0)))
        refused = await client.request(pb.BaseCommand.PRODUCER, topic=str(NAME.partition(0)), producer_id=1)
        assert (refused.name, refused.body.error) == ("ERROR", pb.TopicNotFound)
        metadata = await client.request(pb.BaseCommand.PARTITIONED_METADATA, topic=str(NAME))
        assert metadata.body.partitions == 2

    one.meanwhile = others_try
    await one.delete(NAME, force=True)
    assert (await record(cluster), await topics(cluster)) == (None, [])


async def test_a_deletion_that_is_refused_leaves_no_mark(cluster: MemoryCluster) -> None:
    one = Interrupted(cluster[0])
    await one.create(NAME, 2, None)
    client = await cluster.client_of(str(NAME.partition(1)))
    await client.producer(str(NAME.partition(1)))
    with pytest.raises(AdminRefused, match="active"):
        await one.delete(NAME, force=False)
    assert await record(cluster) == {"partitions": 2, "deleted": False}
    await client.producer(str(NAME.partition(1)), producer_id=2)
    await one.delete(NAME, force=True)
    assert (await record(cluster), await topics(cluster)) == (None, [])


async def test_a_deletion_that_somebody_died_over_is_finished_by_the_next(cluster: MemoryCluster) -> None:
    one, other = Interrupted(cluster[0]), Interrupted(cluster[1])
    await one.create(NAME, 3, None)
    await one._service.resources.mark_deleted(NAME)
    await one._delete_partitions(NAME, range(1), force=True)
    await other.delete(NAME, force=False)
    assert (await record(cluster), await topics(cluster)) == (None, [])
    await other.create(NAME, 1, None)


async def test_partitions_that_nobody_counted_go_with_the_others(cluster: MemoryCluster) -> None:
    """Whoever added them died before the record said so."""
    one, other = Interrupted(cluster[0]), Interrupted(cluster[1])
    await one.create(NAME, 2, None)
    await cluster[0].service.partitioned.create_partitions(NAME, 5)
    await other.delete(NAME, force=False)
    assert (await record(cluster), await topics(cluster)) == (None, [])


async def test_nothing_is_left_in_a_namespace_that_goes_meanwhile(
    cluster: MemoryCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever deletes the namespace has looked for topics before these were made."""
    name = TopicName.parse("public/gone/parts")
    service, peers = cluster[0].service, cluster[1].running.context.peers
    await peers.call("PUT", "/admin/v2/namespaces/public/gone", body={})
    make = service.partitioned.create_partitions

    async def later(*arguments: object) -> int:
        # All of it but the look for topics, which has been.
        await service.resources.documents.delete("/admin/policies/public/gone")
        made: int = await make(*arguments)
        return made

    monkeypatch.setattr(service.partitioned, "create_partitions", later)
    with pytest.raises(PulsarError, match="does not exist") as caught:
        await PartitionedTopics(service, peers).create(name, 3, None)
    assert caught.value.code == ServerError.TOPIC_NOT_FOUND
    assert await service.resources.persistent_topics(name.namespace_name) == []
    assert await service.resources.partitions(name) is None
