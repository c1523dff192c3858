"""Two clusters that share a configuration store: one list of clusters is the word for both."""

from __future__ import annotations

from magnetar.broker.testing.clusters import until
from magnetar.broker.testing.sessions import MemoryBroker
from magnetar.core.topic_name import TopicName

from broker.tests.two_clusters import TOPIC, caught_up, numbers, one_instance, publish, share, stored, topic_of


async def replicating(at: MemoryBroker) -> None:
    """Until a broker has heard of the list of clusters."""
    topic = await topic_of(at)
    await until(lambda: topic.replicators is not None and topic.replicators.running)


async def test_one_list_has_both_clusters_send_to_each_other() -> None:
    async with one_instance() as (east, west):
        for one in (east, west):
            await topic_of(one)
        await share(east, replication_clusters=["east", "west"])
        for one in (east, west):
            await replicating(one)
        await publish(east, 0, 20, "e")
        await publish(west, 0, 20, "w")
        for one in (east, west, east, west):
            await caught_up(one)
        for one in (east, west):
            entries = await stored(one)
            assert numbers(entries, "e") == numbers(entries, "w") == list(range(20))


async def test_a_cluster_that_is_only_let_in_sends_nothing_to_the_one_in_the_list() -> None:
    """Else what a namespace of another cluster stores here would go there, though nobody has asked for it."""
    async with one_instance() as (east, west):
        await publish(west, 0, 5)
        topic = await topic_of(west)
        await west.service.policies_changed(TopicName.parse(TOPIC).namespace_name)
        await publish(west, 5, 5)
        assert topic.replicators is None
        assert list(topic.ledger.cursors) == []
        assert await stored(east) == []


async def test_what_was_replicated_goes_on_with_the_one_cluster_that_is_left_in_the_list() -> None:
    async with one_instance() as (east, west):
        await share(east, replication_clusters=["east", "west"])
        await publish(west, 0, 5)
        await caught_up(west)
        await share(east, replication_clusters=["east"])
        topic = await topic_of(west)
        await until(lambda: topic.policies.only_cluster == "east")
        await publish(west, 5, 5)
        await caught_up(west)
        await west.service.unload(TopicName.parse(TOPIC))
        await publish(west, 10, 5)
        await caught_up(west)
        assert numbers(await stored(east)) == list(range(15))
