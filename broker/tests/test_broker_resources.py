"""Documents of metadata that many change at once."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from magnetar.broker.bundles.namespace_bundles import Bundles
from magnetar.broker.resources import Document, Documents, Resources, initialize_cluster_metadata
from magnetar.core.topic_name import NamespaceName
from magnetar.metadata.memory import MemoryMetadataStore

NAMESPACE = NamespaceName("public", "new")


async def test_what_is_there_already_is_not_written_again() -> None:
    store = MemoryMetadataStore()
    documents = Documents(store)
    await documents.create("/a", {"x": 1})

    def in_place(document: Document) -> Document:
        document["x"] = 2
        return document

    assert await documents.update("/a", lambda document: {**document, "x": 1}) == {"x": 1}
    node = await store.get("/a")
    assert node is not None
    assert node.stat.version == 0
    assert await documents.update("/a", in_place) == {"x": 2}
    assert await documents.get("/a") == {"x": 2}
    await store.close()


async def test_preparing_a_cluster_again_changes_what_is_said_and_nothing_else() -> None:
    store = MemoryMetadataStore()
    resources = Resources(store)
    path = Resources.cluster_path("here")
    await initialize_cluster_metadata(resources, "here", {"serviceUrl": "http://a", "serviceUrlTls": ""})
    assert await resources.documents.get(path) == {"serviceUrl": "http://a"}
    await resources.documents.update(path, lambda document: {**document, "peerClusterNames": ["there"]})
    await initialize_cluster_metadata(resources, "here", {"serviceUrl": "", "serviceUrlTls": "https://a"})
    assert await resources.documents.get(path) == {"serviceUrlTls": "https://a", "peerClusterNames": ["there"]}
    before = await store.get(path)
    await initialize_cluster_metadata(resources, "here", {"serviceUrl": "", "serviceUrlTls": "https://a"})
    after = await store.get(path)
    assert before is not None
    assert after is not None
    assert before.stat.version == after.stat.version
    resources.close()
    await store.close()


async def test_first_lookups_of_a_namespace_all_find_its_bundles(monkeypatch: pytest.MonkeyPatch) -> None:
    store = MemoryMetadataStore()
    put = store.put

    async def put_later(*arguments: Any, **named: Any) -> Any:
        await asyncio.sleep(0)
        return await put(*arguments, **named)

    monkeypatch.setattr(store, "put", put_later)
    resources = Resources(store, None)
    await resources.documents.create(Resources.namespace_path(NAMESPACE), {})
    # As left by a broker that knows no bundles there.
    await resources.local_documents.create(Resources.local_policies_path(NAMESPACE), {})
    bundles = Bundles(store, resources)
    found = await asyncio.gather(*(bundles.of_namespace(NAMESPACE) for _ in range(50)))
    assert {one.boundaries for one in found} == {found[0].boundaries}
    bundles.close()
    resources.close()
    await store.close()
