"""What a failed step of a bundle's life must not leave: nodes that nobody serves, nodes of others taken away, cuts of
others undone, doubts that nobody settles."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from typing import Any

import pytest
from magnetar.balance.settings import BalanceSettings
from magnetar.broker.bundles.lookup_answers import Connect, Redirect
from magnetar.broker.bundles.moves import TOPICS_CLOSED_AT_ONCE_MAX
from magnetar.broker.bundles.owned_bundles import OwnedBundle, OwnedBundles
from magnetar.broker.bundles.ownership import ownership_path
from magnetar.broker.testing.clusters import MemoryCluster, until
from magnetar.broker.topics.producer_admission import ProducerAdmission
from magnetar.core.bundle import BundleName
from magnetar.core.topic_name import NamespaceName, TopicName
from magnetar.metadata.store import StoreUnavailable, VersionConflict

TOPIC = "persistent://public/default/t"
NAMESPACE = NamespaceName("public", "default")
WHOLE = BundleName.parse("public/default/0x00000000_0xffffffff")
LOW = BundleName.parse("public/default/0x00000000_0x80000000")


@pytest.fixture
async def cluster() -> AsyncIterator[MemoryCluster]:
    async with MemoryCluster(2) as running:
        yield running


def test_who_owns_a_part_does_not_own_the_whole() -> None:
    bundles = OwnedBundles()
    low = OwnedBundle(LOW, 0, object())
    bundles.add(low)
    assert bundles.containing(LOW) is low
    assert bundles.containing(BundleName.parse("public/default/0x10000000_0x20000000")) is low
    assert bundles.containing(WHOLE) is None
    assert bundles.containing(BundleName.parse("public/default/0x70000000_0x90000000")) is None


async def test_a_cut_that_is_not_stored_leaves_no_nodes(
    cluster: MemoryCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = cluster[0].running.context
    bundle = await cluster.take(cluster[0], TOPIC)
    claimed: list[BundleName] = []

    async def refuse(_: BundleName, boundaries: list[int]) -> Any:
        claimed.extend(bundle.cut(boundaries))
        raise VersionConflict("somebody else keeps changing it")

    with monkeypatch.context() as patched:
        patched.setattr(context.bundles, "split", refuse)
        with pytest.raises(VersionConflict):
            await context.moves.split(bundle)
    assert len(claimed) == 2
    for part in claimed:
        assert await cluster[1].store.get(ownership_path(part)) is None
    assert cluster.owners(bundle) == [cluster[0]]
    assert len(await context.moves.split(bundle)) == 2


async def test_parts_that_are_served_keep_their_nodes_whatever_fails_then(
    cluster: MemoryCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last step of a split removes the node of the whole."""
    context = cluster[0].running.context
    bundle = await cluster.take(cluster[0], TOPIC)
    get = cluster[0].store.get

    async def get_unless_of_the_whole(path: str, **named: Any) -> Any:
        if path == ownership_path(bundle):
            raise RuntimeError("a mistake of ours")
        return await get(path, **named)

    with monkeypatch.context() as patched:
        patched.setattr(cluster[0].store, "get", get_unless_of_the_whole)
        with pytest.raises(RuntimeError, match="a mistake of ours"):
            await context.moves.split(bundle)
    parts = list(context.ownership.owned())
    assert bundle not in parts
    for part in parts:
        assert cluster.owners(part) == [cluster[0]]
        assert await cluster[1].store.get(ownership_path(part)) is not None


async def test_the_node_of_another_owner_is_not_marked_as_unloading(cluster: MemoryCluster) -> None:
    bundle = await cluster.take(cluster[1], TOPIC)
    before = await cluster[1].store.get(ownership_path(bundle))
    await cluster[0].running.context.ownership.disable(bundle)
    assert await cluster[1].store.get(ownership_path(bundle)) == before


async def test_a_look_at_a_node_that_fails_is_repeated(cluster: MemoryCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    bundle = await cluster.take(cluster[0], TOPIC)
    get = cluster[0].store.get
    failures = 2

    async def get_later(path: str, **named: Any) -> Any:
        nonlocal failures
        if path == ownership_path(bundle) and failures:
            failures -= 1
            raise StoreUnavailable("the connection broke")
        return await get(path, **named)

    monkeypatch.setattr(cluster[0].store, "get", get_later)
    await cluster[1].store.delete(ownership_path(bundle))
    await cluster.take(cluster[1], TOPIC)
    await until(lambda: cluster.owners(bundle) == [cluster[1]])
    assert failures == 0


async def test_a_claim_of_before_another_loss_settles_no_doubt(
    cluster: MemoryCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    context, store = cluster[0].running.context, cluster[0].store
    bundle = await cluster.take(cluster[0], TOPIC)
    read_again = context.bundles.read_again
    losses = 0

    async def lose_the_session_again(namespace: NamespaceName) -> Any:
        nonlocal losses
        found = await read_again(namespace)
        if not losses:
            losses += 1
            store.expire_session()
            await cluster.take(cluster[1], TOPIC)
        return found

    monkeypatch.setattr(context.bundles, "read_again", lose_the_session_again)
    store.expire_session()
    both = 0
    async with asyncio.timeout(30):
        while cluster.owned(cluster[0], bundle) is not None:
            await asyncio.sleep(0)
            both += len(cluster.owners(bundle)) > 1
    assert (losses, both) == (1, 0)
    assert cluster.owners(bundle) == [cluster[1]]


async def test_who_is_told_to_decide_gets_no_share_in_a_redirect(cluster: MemoryCluster) -> None:
    follower = next(broker for broker in cluster.brokers if not broker.running.context.load.leading)
    lookup, topic = follower.running.context.lookup, TopicName.parse(TOPIC)
    asked, decided = await asyncio.gather(lookup.find(topic), lookup.find(topic, authoritative=True))
    assert isinstance(asked, Redirect)
    assert isinstance(decided, Connect)
    assert decided.ours
    bundle = await cluster.bundle_of(TOPIC)
    assert cluster.owners(bundle) == [follower]


async def test_a_cut_that_another_broker_was_quicker_to_store_stays(
    cluster: MemoryCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a namespace that both see for the first time, one splits what the other is about to write down."""
    one, other = (broker.running.context for broker in cluster.brokers)
    namespace = NamespaceName("public", "fresh")
    document = {"replication_clusters": ["memory"], "bundles": {"boundaries": ["0x00000000", "0xffffffff"]}}
    await one.service.resources.documents.create(one.service.resources.namespace_path(namespace), document)
    policies = one.service.resources.policies
    whole = BundleName.parse("public/fresh/0x00000000_0xffffffff")

    async def split_meanwhile(wanted: NamespaceName) -> Any:
        found = await policies(wanted)
        await other.bundles.split(whole, [0x4000_0000])
        return found

    with monkeypatch.context() as patched:
        patched.setattr(one.service.resources, "policies", split_meanwhile)
        found = await one.bundles.of_namespace(namespace)
    assert whole not in found
    assert whole not in await other.bundles.read_again(namespace)


async def test_no_client_is_sent_to_an_owner_that_lets_go(cluster: MemoryCluster) -> None:
    """Not from memory either: it would only be sent back."""
    topic = TopicName.parse(TOPIC)
    bundle = await cluster.take(cluster[1], TOPIC)
    assert await cluster.lookup(cluster[0], TOPIC) is cluster[1]
    here = cluster[0].running.context
    assert here.lookup.find_now(topic) is not None
    await cluster[1].running.context.ownership.disable(bundle)
    await until(lambda: (owner := here.ownership.peek(bundle)) is None or owner.disabled)
    assert await here.ownership.owner(bundle) is not None
    assert here.lookup.find_now(topic) is None


async def test_topics_whose_turn_to_close_does_not_come_in_time_are_let_go_of(
    cluster: MemoryCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Behind so many slow ones that none of the others has begun."""
    service, moves = cluster[0].service, cluster[0].running.context.moves
    bundle = await cluster.take(cluster[0], TOPIC)
    names = (TopicName.parse(f"{TOPIC}{number}") for number in range(10_000))
    wanted = itertools.islice((name for name in names if name in bundle), TOPICS_CLOSED_AT_ONCE_MAX + 5)
    topics = [await service.topic(name, create=True) for name in wanted]

    async def never(_: ProducerAdmission) -> None:
        await asyncio.Event().wait()

    with monkeypatch.context() as patched:
        patched.setattr(ProducerAdmission, "drain", never)
        patched.setattr(moves, "_balance", BalanceSettings(unloading_timeout_ms=50))
        await moves.unload(bundle)
    assert not service.topics
    assert all(topic.closing for topic in topics)
