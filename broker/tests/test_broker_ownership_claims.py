"""Bundles that are claimed, split or settled while the session is lost: what was true before is no proof after."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest
from magnetar.broker.bundles.namespace_bundles import namespace_of_cuts
from magnetar.broker.bundles.owned_bundles import OwnedBundle, OwnedBundles
from magnetar.broker.bundles.ownership import OwnershipLost, ownership_path
from magnetar.broker.states import BundleState
from magnetar.broker.testing.clusters import MemoryCluster, until
from magnetar.core.bundle import BundleName
from magnetar.core.topic_name import NamespaceName, TopicName
from magnetar.metadata.store import StoreUnavailable
from magnetar.wire.pulsar.generated import pulsar_api_pb2 as pb

TOPIC = "persistent://public/default/t"
HALVES = (
    BundleName.parse("public/default/0x00000000_0x80000000"),
    BundleName.parse("public/default/0x80000000_0xffffffff"),
)


@pytest.fixture
async def cluster() -> AsyncIterator[MemoryCluster]:
    async with MemoryCluster(2) as running:
        yield running


async def test_what_was_claimed_before_the_session_was_lost_is_not_owned(
    cluster: MemoryCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not for a moment, though nobody else has asked for it yet."""
    context = cluster[0].running.context
    bundle = await cluster.bundle_of(TOPIC)
    read_again = context.bundles.read_again

    async def lose_the_session(namespace: NamespaceName) -> Any:
        found = await read_again(namespace)
        cluster[0].store.expire_session()
        await asyncio.sleep(0)  # The news of it.
        return found

    with monkeypatch.context() as patched:
        patched.setattr(context.bundles, "read_again", lose_the_session)
        with pytest.raises(OwnershipLost):
            await context.ownership.acquire(bundle)
    assert bundle not in context.ownership.owned()


async def test_what_was_claimed_before_the_session_was_lost_is_not_owned_and_left_to_who_has_it(
    cluster: MemoryCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    context, store = cluster[0].running.context, cluster[0].store
    bundle = await cluster.bundle_of(TOPIC)
    read_again, delete = context.bundles.read_again, store.delete
    deleted: list[str] = []

    async def lose_the_session(namespace: NamespaceName) -> Any:
        found = await read_again(namespace)
        store.expire_session()
        await cluster.take(cluster[1], TOPIC)
        return found

    async def seen_deleting(path: str, *arguments: Any, **named: Any) -> None:
        deleted.append(path)
        await delete(path, *arguments, **named)

    with monkeypatch.context() as patched:
        patched.setattr(context.bundles, "read_again", lose_the_session)
        patched.setattr(store, "delete", seen_deleting)
        with pytest.raises(OwnershipLost):
            await context.ownership.acquire(bundle)
    assert ownership_path(bundle) not in deleted
    assert cluster.owners(bundle) == [cluster[1]]


async def test_a_split_is_not_completed_over_a_lost_session(cluster: MemoryCluster) -> None:
    """The bundle is ours again, but the nodes of its parts went with the session."""
    ownership = cluster[0].running.context.ownership
    bundle = await cluster.take(cluster[0], TOPIC)
    owned = cluster.owned(cluster[0], bundle)
    assert owned is not None
    tenure = owned.tenure
    cluster[0].store.expire_session()
    await asyncio.sleep(0)
    await until(lambda: owned.state is BundleState.ACTIVE)
    with pytest.raises(OwnershipLost):
        await ownership.replace(owned, HALVES, tenure)
    assert cluster.owners(bundle) == [cluster[0]]


async def test_the_node_of_what_was_split_goes_when_the_store_is_back(
    cluster: MemoryCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would stand as long as the session, and say that a bundle is owned that others own in parts."""
    context, store = cluster[0].running.context, cluster[0].store
    bundle = await cluster.take(cluster[0], TOPIC)
    whole, delete = ownership_path(bundle), store.delete
    refused, removed, back = asyncio.Semaphore(0), asyncio.Event(), asyncio.Event()

    async def away_at_first(path: str, *arguments: Any, **named: Any) -> None:
        if path == whole and not back.is_set():
            refused.release()
            raise StoreUnavailable("the metadata store is out of reach")
        await delete(path, *arguments, **named)
        if path == whole:
            removed.set()

    monkeypatch.setattr(store, "delete", away_at_first)
    parts = await context.moves.split(bundle)
    assert all(cluster.owned(cluster[0], part) is not None for part in parts)
    for _ in range(2):  # At once, and while the store is still away.
        await refused.acquire()
    back.set()
    await removed.wait()
    assert await store.get(whole) is None
    assert [cluster.owners(part) for part in parts] == [[cluster[0]], [cluster[0]]]


async def test_a_cut_that_a_former_owner_stores_late_takes_the_bundle_from_its_owner(cluster: MemoryCluster) -> None:
    bundle = await cluster.take(cluster[1], TOPIC)
    client = await cluster[1].connect()
    await client.producer(TOPIC)
    parts = await cluster[0].running.context.bundles.split(bundle, [(bundle.range.low + bundle.range.high) // 2])
    await client.expect(pb.BaseCommand.CLOSE_PRODUCER)
    await until(lambda: cluster.owned(cluster[1], bundle) is None)
    assert await cluster[1].store.get(ownership_path(bundle)) is None
    part = await cluster.take(cluster[0], TOPIC)
    assert part in parts


async def test_a_bundle_that_is_cut_while_it_is_taken_is_let_go_of(
    cluster: MemoryCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cut is stored after it was read, and told before the bundle is owned."""
    ownership = cluster[1].running.context.ownership
    bundle = await cluster.bundle_of(TOPIC)
    check_current = ownership._check_current

    async def cut_afterwards(taken: BundleName) -> None:
        await check_current(taken)
        await cluster[0].running.context.bundles.split(taken, [(taken.range.low + taken.range.high) // 2])

    with monkeypatch.context() as patched:
        patched.setattr(ownership, "_check_current", cut_afterwards)
        with contextlib.suppress(OwnershipLost):
            await ownership.acquire(bundle)
    await until(lambda: cluster.owned(cluster[1], bundle) is None)
    await cluster.take(cluster[0], TOPIC)


async def test_a_cut_that_is_stored_after_its_bundle_was_lost_and_taken_again_leaves_nobody_with_the_whole(
    cluster: MemoryCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = cluster[0].running.context
    bundle = await cluster.take(cluster[0], TOPIC)
    owned = cluster.owned(cluster[0], bundle)
    assert owned is not None
    split = context.bundles.split

    async def lose_the_session_first(whole: BundleName, boundaries: list[int]) -> tuple[BundleName, ...]:
        cluster[0].store.expire_session()
        await asyncio.sleep(0)
        await until(lambda: owned.state is BundleState.ACTIVE)
        return await split(whole, boundaries)

    with monkeypatch.context() as patched:
        patched.setattr(context.bundles, "split", lose_the_session_first)
        with pytest.raises(OwnershipLost):
            await context.moves.split(bundle)
    await until(lambda: cluster.owned(cluster[0], bundle) is None)
    assert await cluster.take(cluster[1], TOPIC) != bundle


@pytest.mark.parametrize(
    "path", ["/admin/local-policies/a/b/c", "/admin/local-policies/a", "/admin/local-policies/a/ "]
)
async def test_nodes_beside_the_cuts_of_namespaces_disturb_nobody(cluster: MemoryCluster, path: str) -> None:
    bundle = await cluster.take(cluster[0], TOPIC)
    assert not await cluster[0].store.exists(path)
    await cluster[1].store.put(path, b"")
    assert namespace_of_cuts(path) is None
    assert cluster.owners(bundle) == [cluster[0]]


async def test_a_bundle_is_served_again_only_when_its_topics_were_let_go_of(cluster: MemoryCluster) -> None:
    bundle = await cluster.take(cluster[0], TOPIC)
    owned = cluster.owned(cluster[0], bundle)
    assert owned is not None
    let_go: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    cluster[0].running.context.ownership.on_doubt(lambda _: let_go)
    cluster[0].store.expire_session()
    for _ in range(200):
        await asyncio.sleep(0)
    assert owned.state is BundleState.IN_DOUBT
    let_go.set_result(None)
    await until(lambda: owned.state is BundleState.ACTIVE)


async def test_a_broker_that_stops_owns_nothing_in_the_end(cluster: MemoryCluster) -> None:
    bundle = await cluster.take(cluster[0], TOPIC)
    await cluster[0].running.context.moves.unload_all()
    assert not cluster[0].running.context.ownership.owned()
    assert await cluster[1].store.get(ownership_path(bundle)) is None
    with pytest.raises(OwnershipLost, match="shutting down"):
        await cluster[0].running.context.ownership.acquire(bundle)


async def test_topics_that_are_being_loaded_go_on_in_the_parts() -> None:
    bundles = OwnedBundles()
    whole = OwnedBundle(BundleName.parse("public/default/0x00000000_0xffffffff"), 0, object())
    bundles.add(whole)
    loading = asyncio.ensure_future(asyncio.Event().wait())
    whole.loading[TOPIC] = loading  # type: ignore[assignment]
    parts = [OwnedBundle(half, 0, whole.tenure) for half in HALVES]
    bundles.replace(whole, parts)
    topic = TopicName.parse(TOPIC)
    part = bundles.of_topic(topic)
    assert part in parts
    assert list(part.loading) == [TOPIC]
    assert not whole.loading
    loading.cancel()
