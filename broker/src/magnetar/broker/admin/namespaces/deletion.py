"""Removes a namespace with everything of it in the metadata (Pulsar `NamespacesBase.internalDeleteNamespace`)."""

from __future__ import annotations

import logging
from typing import Final
from urllib.parse import quote

from aiohttp import web
from magnetar.broker.admin.namespaces.clusters import clusters_of, deleting_cluster, redirect_to_cluster
from magnetar.broker.admin.namespaces.topics import non_persistent_topics
from magnetar.broker.admin.web.documents import require_writable, with_value
from magnetar.broker.admin.web.fan_out import call_all
from magnetar.broker.admin.web.handlers import Handlers
from magnetar.broker.admin.web.responses import CONFLICT, METHOD_NOT_ALLOWED, NOT_FOUND, PRECONDITION_FAILED, AdminError
from magnetar.broker.policies.system_topics import is_system_topic
from magnetar.broker.resources import Document, Resources
from magnetar.core.topic_name import NamespaceName, TopicName
from magnetar.metadata.store import NodeHasChildren, NodeNotFound

logger: Final = logging.getLogger(__name__)

ATTEMPTS_MAX: Final = 5
"""How often it starts again because topics were made meanwhile, as often as Apache's broker does."""

DOMAINS: Final = ("persistent", "non-persistent")


class NamespaceDeletion(Handlers):
    """Deletes namespaces."""

    async def run(self, request: web.Request, namespace: NamespaceName, *, force: bool) -> None:
        """Raises 404 without the namespace, 405 when `force` is not allowed, 409 when it is not empty, 412 when it is
        in several clusters; redirects to the only one that it is in."""
        for _ in range(ATTEMPTS_MAX):
            policies = await self._check(request, namespace, force=force)
            await self._delete_topics(namespace, policies, force=force)
            await self._release_bundles(namespace)
            try:
                await self._clear(namespace)
            except NodeHasChildren as problem:
                logger.info("%s got topics while it was deleted, trying again: %s", namespace, problem)
                continue
            return
        raise AdminError(CONFLICT, f"Topics are made in {namespace} while it is being deleted, please try again")

    async def _check(self, request: web.Request, namespace: NamespaceName, *, force: bool) -> Document:
        await require_writable(self._context)
        if force and not self._context.service.settings.admin.force_delete_namespace_allowed:
            raise AdminError(METHOD_NOT_ALLOWED, "Broker doesn't allow forced deletion of namespaces")
        policies: Document | None = await self._resources.documents.get(Resources.namespace_path(namespace))
        if policies is None:
            raise AdminError(NOT_FOUND, f"Namespace {namespace} does not exist.")
        cluster = deleting_cluster(policies)
        if cluster is None:
            raise AdminError(
                PRECONDITION_FAILED,
                f"Cannot delete the global namespace {namespace}. There are still more than one replication clusters "
                "configured.",
            )
        if cluster != self._context.settings.cluster_name:
            raise await redirect_to_cluster(self._context, request, cluster)
        return policies

    async def _delete_topics(self, namespace: NamespaceName, policies: Document, *, force: bool) -> None:
        partitioned = [
            name for domain in DOMAINS for name in await self._resources.partitioned_topics(namespace, domain)
        ]
        names = await self._resources.persistent_topics(namespace)
        if self._context.settings.cluster_name in clusters_of(policies):
            names += await non_persistent_topics(self._context, namespace)
        if not force and any(not is_system_topic(name) for name in (*partitioned, *names)):
            raise AdminError(CONFLICT, "Cannot delete non empty namespace")
        if not policies.get("deleted"):
            path = Resources.namespace_path(namespace)
            await self._resources.documents.update(path, with_value("deleted", value=True))
        # What has topic policies comes last: a topic that is loaded to be deleted reads them.
        for system in (False, True):
            await self._delete([name for name in names if is_system_topic(name) is system])
        for name in partitioned:
            path = self._resources.partitioned_topic_path(TopicName.parse(name))
            try:
                await self._resources.documents.delete(path)
            except NodeNotFound:
                continue

    async def _delete(self, names: list[str]) -> None:
        paths = []
        for name in names:
            topic = TopicName.parse(name)
            paths.append(f"/admin/v2/{topic.domain}/{topic.namespace_name}/{quote(topic.local_name, safe='')}")
        # Who else deletes the namespace may have been faster with some.
        await call_all(self._context, "DELETE", paths, {"force": "true"}, tolerated=(NOT_FOUND,))

    async def _release_bundles(self, namespace: NamespaceName) -> None:
        bundles = (await self._context.bundles.of_namespace(namespace)).bundles
        owned = [bundle for bundle in bundles if await self._context.ownership.owner(bundle) is not None]
        paths = [f"/admin/v2/namespaces/{namespace}/{bundle.range}" for bundle in owned]
        # Whoever owned one may have let go of it meanwhile.
        await call_all(self._context, "DELETE", paths, {"force": "true"}, tolerated=(PRECONDITION_FAILED,))

    async def _clear(self, namespace: NamespaceName) -> None:
        """Raises `NodeHasChildren` when topics were made meanwhile; the policies go last but one."""
        local, shared = self._service.store, self._resources.configuration_store
        await local.delete_recursively(f"/namespace/{namespace}")
        for domain in DOMAINS:
            await shared.delete_recursively(self._resources.partitioned_topics_path(namespace, domain))
        for path in (
            *(f"/managed-ledgers/{namespace}/{domain}" for domain in DOMAINS),
            f"/managed-ledgers/{namespace}",
        ):
            try:
                await local.delete(path)
            except NodeNotFound:
                continue
        await shared.delete_recursively(f"/admin/partitioned-topics/{namespace}")
        try:
            await shared.delete(Resources.namespace_path(namespace))
        except NodeNotFound:
            logger.info("%s was deleted by another request, too", namespace)
        await local.delete_recursively(Resources.local_policies_path(namespace))
        await local.delete_recursively(f"/loadbalance/bundle-data/{namespace}")
