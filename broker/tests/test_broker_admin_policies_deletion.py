"""Namespaces and topics with policies are deleted, also while these are being written."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest
from magnetar.broker.policies.change_events_writer import PolicyWriter
from magnetar.broker.resources import Resources
from magnetar.broker.settings.admin import AdminSettings
from magnetar.broker.settings.broker import BrokerSettings
from magnetar.broker.testing.sessions import MemoryBroker
from magnetar.core.topic_name import NamespaceName, TopicName

from broker.tests.conftest import Admin

FORCE = BrokerSettings(cluster_name="memory", admin=AdminSettings(force_delete_namespace_allowed=True))
NAMESPACE = "/admin/v2/namespaces/public/gone"
TOPIC = "/admin/v2/persistent/public/gone/t"
NAME = TopicName.parse("persistent://public/gone/t")
PATIENCE_SECONDS = 60.0


@pytest.fixture
async def force_admin() -> AsyncIterator[Admin]:
    """Of a broker that lets namespaces be deleted by force, with a namespace, a topic and its policies."""
    async with MemoryBroker(FORCE) as broker, aiohttp.ClientSession() as session:
        admin = Admin(broker, session)
        await make(admin)
        await admin.check(("POST", TOPIC + "/maxConsumers", 3, 204, None))
        yield admin


async def make(admin: Admin) -> None:
    """The namespace, and a topic in it."""
    await admin.check(("PUT", NAMESPACE, {"bundles": {"numBundles": 1}}, 204, None), ("PUT", TOPIC, None, 204, None))


async def test_policies_go_with_their_namespace_and_do_not_come_back_with_it(force_admin: Admin) -> None:
    """They are not written away one by one: what was read of them is forgotten with where they stood."""
    for _ in range(3):
        await force_admin.check(
            ("DELETE", NAMESPACE + "?force=true", None, 204, None),
            ("GET", NAMESPACE, None, 404, ...),
        )
        await make(force_admin)
        await force_admin.check(
            ("GET", TOPIC + "/maxConsumers", None, 200, None),
            ("POST", TOPIC + "/maxConsumers", 3, 204, None),
        )


@pytest.mark.parametrize("kind", ["plain", "partitioned"])
async def test_a_topic_that_is_deleted_as_its_namespace_begins_to_go_writes_no_policies(
    force_admin: Admin, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """Nobody is led any more to where they would be written: who deletes the topic would wait for that in vain."""
    service: Any = force_admin.broker.service
    of_it, gone = TOPIC, "t"
    if kind == "partitioned":
        of_it, gone = f"{TOPIC[:-1]}p/partitions", "p"
        await force_admin.check(("PUT", of_it, 2, 204, None), ("POST", f"{TOPIC[:-1]}p/maxConsumers", 3, 204, None))
    delete, deleting, go_on = service.delete, asyncio.Event(), asyncio.Event()

    async def slowly(name: TopicName, **options: Any) -> None:
        deleting.set()
        await go_on.wait()
        await delete(name, **options)

    monkeypatch.setattr(service, "delete", slowly)
    topic = asyncio.create_task(force_admin("DELETE", of_it + "?force=true"))
    await deleting.wait()
    path = Resources.namespace_path(NamespaceName.parse("public/gone"))
    await service.resources.documents.update(path, lambda document: {**document, "deleted": True})
    written: list[TopicName] = []

    async def write(name: TopicName) -> None:
        written.append(name)

    monkeypatch.setattr(PolicyWriter, "delete", lambda _, name: write(name))
    go_on.set()
    assert await topic == (204, None)
    assert written == []
    # All other times they are written away.
    await service.resources.documents.update(path, lambda document: {**document, "deleted": False})
    await force_admin("DELETE", of_it + "?force=true")
    assert [name.local_name for name in written] == [gone]


async def test_a_namespace_goes_while_policies_of_its_topics_are_written(force_admin: Admin) -> None:
    """Some of the writes are refused; the namespace goes, and nothing of it is left."""
    writes = [asyncio.create_task(force_admin("POST", TOPIC + "/maxConsumers", number)) for number in range(1, 20)]
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not any(one.done() for one in writes):
            await asyncio.sleep(0)
        status = await force_admin.until_answered("DELETE", NAMESPACE + "?force=true")
        while status == 409:
            status = await force_admin.until_answered("DELETE", NAMESPACE + "?force=true")
        assert status in (204, 404)
        for answered, _ in await asyncio.gather(*writes):
            assert answered in (204, 404, 409, 412, 503)
    await force_admin.check(("GET", NAMESPACE, None, 404, ...))
    assert not await force_admin.broker.service.exists(NAME)
    assert await force_admin.broker.store.get("/managed-ledgers/public/gone") is None


async def test_where_policies_are_goes_last(force_admin: Admin, monkeypatch: pytest.MonkeyPatch) -> None:
    """A topic that is loaded to be deleted reads them."""
    service: Any = force_admin.broker.service
    delete, deleted = service.delete, []

    async def noted(name: TopicName, **options: Any) -> None:
        deleted.append(name.local_name)
        await delete(name, **options)

    monkeypatch.setattr(service, "delete", noted)
    for name in ("a", "zz"):
        await force_admin.check(("PUT", f"{TOPIC[:-1]}{name}", None, 204, None))
    await force_admin.check(("DELETE", NAMESPACE + "?force=true", None, 204, None))
    assert sorted(deleted) == ["__change_events", "a", "t", "zz"]
    assert deleted[-1] == "__change_events"
