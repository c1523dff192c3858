"""Namespaces whose deletion a broker died over."""

from __future__ import annotations

from typing import Any

import pytest
from magnetar.broker.resources import Resources, bundles_document
from magnetar.broker.topics.partitioned_topics import PartitionedTopics
from magnetar.core.topic_name import NamespaceName, TopicName

PATH = "/admin/v2/namespaces/public/gone"
NAMESPACE = NamespaceName("public", "gone")


async def test_the_next_deletion_finishes_it(admin: Any) -> None:
    service = admin.broker.service
    await admin.check(
        ("PUT", PATH, {}, 204, None), ("PUT", PATH.replace("namespaces", "persistent") + "/t", None, 204, None)
    )
    await service.resources.documents.update(
        Resources.namespace_path(NAMESPACE), lambda policies: {**policies, "deleted": True}
    )
    await service.delete(TopicName.parse("public/gone/t"), force=True)
    await admin.check(("DELETE", PATH, None, 204, None), ("GET", PATH, None, 404, ...))
    for path in (
        Resources.local_policies_path(NAMESPACE),
        Resources.managed_ledgers_path(NAMESPACE),
        f"/namespace/{NAMESPACE}",
    ):
        assert not await admin.broker.store.exists(path), path


async def test_the_former_cut_is_not_the_next_ones(admin: Any) -> None:
    """Local policies go after the policies: they may be left."""
    resources = admin.broker.service.resources
    await resources.local_documents.create(
        Resources.local_policies_path(NAMESPACE), {"bundles": bundles_document(16), "namespaceAntiAffinityGroup": "g"}
    )
    await admin.check(
        ("PUT", PATH, {"bundles": {"numBundles": 3}}, 204, None),
        ("GET", PATH + "/bundles", None, 200, bundles_document(3)),
        ("GET", PATH + "/antiAffinity", None, 204, None),
        ("PUT", PATH, {"bundles": {"numBundles": 5}}, 409, "already exists"),
        ("GET", PATH + "/bundles", None, 200, bundles_document(3)),
    )


async def test_a_tenant_that_gets_a_namespace_meanwhile_stays(admin: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    tenant = "/admin/v2/tenants/busy"
    namespace = "/admin/v2/namespaces/busy/late"

    async def somebody_else_is_faster(*arguments: object, **options: object) -> None:
        del arguments, options
        await admin.check(("PUT", namespace, {}, 204, None))

    monkeypatch.setattr("magnetar.broker.admin.clusters.tenants.call_all", somebody_else_is_faster)
    await admin.check(
        ("PUT", tenant, {"adminRoles": [], "allowedClusters": ["standalone"]}, 204, None),
        ("DELETE", tenant, None, 409, "still has active namespaces"),
        ("GET", namespace, None, 200, ...),
    )


@pytest.mark.parametrize("partitioned", [False, True])
async def test_policies_of_a_topic_that_is_gone_can_be_deleted_after_it(admin: Any, *, partitioned: bool) -> None:
    """Whoever deleted the topic got no further: the next one of the name shall not have them."""
    topic = "/admin/v2/persistent/public/default/t"
    whole = topic + "/partitions" if partitioned else topic
    make = ("PUT", whole, 2 if partitioned else None, 204, None)
    await admin.check(
        make, ("POST", topic + "/maxProducers", 7, 204, None), ("GET", topic + "/maxProducers", None, 200, 7)
    )
    service, name = admin.broker.service, TopicName.parse("t")
    if partitioned:
        await PartitionedTopics(service, admin.broker.running.context.peers).delete(name, force=True)
    else:
        await service.delete(name, force=True)
    await admin.check(
        ("DELETE", whole, None, 404, "not found"),
        make,
        ("GET", topic + "/maxProducers", None, 200, None),
    )
