"""Reading and changing what the admin API keeps: policies, local policies, clusters, tenants."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from magnetar.broker.admin.web.responses import FORBIDDEN, NOT_FOUND, PRECONDITION_FAILED, AdminError
from magnetar.broker.context import BrokerContext
from magnetar.broker.resources import Document, Resources, bundles_document
from magnetar.core.topic_name import NamespaceName
from magnetar.metadata.store import NodeNotFound, VersionConflict

READ_ONLY_FLAG: Final = "/admin/flags/policies-readonly"
"""While this node exists nobody may change a policy (Pulsar `NamespaceResources.POLICIES_READONLY_FLAG_PATH`)."""

Change = Callable[[Document], Document]

NO_NAMESPACE: Final = "Namespace does not exist"
NO_POLICIES: Final = "Namespace policies does not exist"
"""Apache's broker has two ways of saying that there is no such namespace; each operation has one of them."""


async def require_writable(context: BrokerContext) -> None:
    """Raises 403 while policies may only be read."""
    if await context.service.resources.documents.exists(READ_ONLY_FLAG):
        raise AdminError(FORBIDDEN, "Broker is forbidden to do read-write operations")


async def policies_of(context: BrokerContext, namespace: NamespaceName, missing: str = NO_NAMESPACE) -> Document:
    """A namespace's policies, as they are in the store just now. Raises 404 with what is said of a missing one."""
    path = Resources.namespace_path(namespace)
    policies: Document | None = await context.service.resources.documents.get(path)
    if policies is None:
        raise AdminError(NOT_FOUND, missing)
    return policies


async def change_policies(
    context: BrokerContext, namespace: NamespaceName, change: Change, missing: str = NO_NAMESPACE
) -> None:
    """Change a namespace's policies; whoever enforces them sees the document change. Raises 403, 404, 409."""
    await require_writable(context)
    resources = context.service.resources
    try:
        await resources.documents.update(Resources.namespace_path(namespace), change)
    except NodeNotFound:
        raise AdminError(NOT_FOUND, missing) from None
    await context.service.policies_changed(namespace)


async def local_policies_of(context: BrokerContext, namespace: NamespaceName) -> Document | None:
    """What only this cluster keeps about a namespace; None while nothing is kept."""
    path = Resources.local_policies_path(namespace)
    found: Document | None = await context.service.resources.local_documents.get(path)
    return found


async def change_local_policies(context: BrokerContext, namespace: NamespaceName, change: Change) -> None:
    """Change them; made after the namespace's policies when there are none yet, with the bundles in force."""
    resources = context.service.resources
    path = Resources.local_policies_path(namespace)
    try:
        await resources.local_documents.update(path, change)
        return
    except NodeNotFound:
        policies = await resources.policies(namespace) or {}
    bundles = policies.get("bundles") or bundles_document(context.service.settings.default_namespace_bundles)
    try:
        await resources.local_documents.create(path, change({"bundles": bundles}))
    except VersionConflict:
        await resources.local_documents.update(path, change)


def with_value(key: str, value: object) -> Change:
    """A change that gives one member a value, or removes it when the value is None."""

    def change(document: Document) -> Document:
        changed = {**document, key: value}
        if value is None:
            del changed[key]
        return changed

    return change


async def cluster_data(context: BrokerContext, cluster: str) -> Document:
    """What is known of a cluster. Raises 404."""
    document: Document | None = await context.service.resources.documents.get(Resources.cluster_path(cluster))
    if document is None:
        raise AdminError(NOT_FOUND, "Cluster does not exist")
    return document


async def require_cluster(context: BrokerContext, cluster: str, status: int = PRECONDITION_FAILED) -> None:
    """Raises when there is no such cluster."""
    if cluster not in await context.service.resources.clusters():
        raise AdminError(status, f"Cluster {cluster} does not exist.")
