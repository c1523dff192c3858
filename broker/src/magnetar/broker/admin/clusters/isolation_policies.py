"""Namespace isolation policies: which brokers some namespaces are served by, and nobody else's."""

from __future__ import annotations

import logging
from typing import Any, Final

import msgspec
from aiohttp import web
from magnetar.balance.isolation import IsolationPolicy, host_of, refusal
from magnetar.broker.admin.web.documents import require_cluster, require_writable
from magnetar.broker.admin.web.fan_out import call_all
from magnetar.broker.admin.web.handlers import Handlers
from magnetar.broker.admin.web.responses import BAD_REQUEST, NOT_FOUND, AdminError, json, no_content, node_name
from magnetar.broker.admin.web.shapes import Shape, list_of, map_of, one_of, required_body, text
from magnetar.broker.context import BrokerContext
from magnetar.broker.resources import Document, Resources
from magnetar.metadata.store import VersionConflict

logger: Final = logging.getLogger(__name__)

BASE: Final = "/admin/v2/clusters/{cluster}/namespaceIsolationPolicies"
ONE: Final = BASE + "/{policy}"

PARAMETERS: Final = ("min_limit", "usage_threshold")
"""What the only kind of failover policy has to say."""

ISOLATION_DATA: Final = Shape(
    {
        "namespaces": (list_of(text), None),
        "primary": (list_of(text), None),
        "secondary": (list_of(text), None),
        "auto_failover_policy": (
            Shape({"policy_type": (one_of("min_available"), None), "parameters": (map_of(text), None)}),
            None,
        ),
        "unload_scope": (one_of("all_matching", "none", "changed"), None),
    }
)
"""The members of a namespace isolation policy (Pulsar `NamespaceIsolationDataImpl`)."""


def routes(context: BrokerContext) -> list[web.RouteDef]:
    """What this file serves."""
    handlers = IsolationPolicyHandlers(context)
    return [
        web.get(BASE, handlers.all),
        web.get(BASE + "/brokers", handlers.brokers),
        web.get(BASE + "/brokers/{broker}", handlers.broker),
        web.get(ONE, handlers.get),
        web.post(ONE, handlers.set),
        web.delete(ONE, handlers.remove),
    ]


class IsolationPolicyHandlers(Handlers):
    """The handlers, over one broker."""

    async def all(self, request: web.Request) -> web.Response:
        """All of a cluster, by name."""
        cluster = node_name(request, "cluster")
        await require_cluster(self._context, cluster, NOT_FOUND)
        found = await self._documents.get(policies_path(cluster))
        if found is None:
            raise AdminError(NOT_FOUND, f"NamespaceIsolationPolicies for cluster {cluster} does not exist")
        return json(found)

    async def get(self, request: web.Request) -> web.Response:
        """One by its name."""
        cluster, name = node_name(request, "cluster"), request.match_info["policy"]
        found = (await self._policies(cluster)).get(name)
        if found is None:
            raise AdminError(NOT_FOUND, f"Cannot find NamespaceIsolationPolicy {name} for cluster {cluster}")
        return json(found)

    async def brokers(self, request: web.Request) -> web.Response:
        """The brokers that run, with what the policies say about each."""
        policies = await self._policies(node_name(request, "cluster"))
        return json([broker_described(policies, broker) for broker in sorted(self._context.load.brokers())])

    async def broker(self, request: web.Request) -> web.Response:
        """What the policies say about one broker, whether it runs or not."""
        policies = await self._policies(node_name(request, "cluster"))
        return json(broker_described(policies, request.match_info["broker"]))

    async def set(self, request: web.Request) -> web.Response:
        """Make one, or replace it; namespaces that should be served elsewhere now are unloaded."""
        cluster, name = node_name(request, "cluster"), request.match_info["policy"]
        data = await required_body(request, isolation_data(name))
        await require_cluster(self._context, cluster)
        await require_writable(self._context)
        former = (await self._policies(cluster)).get(name)
        await self._change(cluster, name, data)
        await self._unload(data, former)
        return no_content()

    async def remove(self, request: web.Request) -> web.Response:
        """Remove one; one that is not there is no error."""
        cluster = node_name(request, "cluster")
        await require_cluster(self._context, cluster)
        await require_writable(self._context)
        await self._change(cluster, request.match_info["policy"], None)
        return no_content()

    async def _policies(self, cluster: str) -> dict[str, Document]:
        await require_cluster(self._context, cluster)
        found: dict[str, Document] = await self._documents.get(policies_path(cluster)) or {}
        return found

    async def _change(self, cluster: str, name: str, data: Document | None) -> None:
        path = policies_path(cluster)

        def change(document: Document) -> Document:
            changed = {**document, name: data}
            if data is None:
                del changed[name]
            return changed

        if not await self._documents.exists(path):
            try:
                await self._documents.create(path, {})
            except VersionConflict:
                logger.debug("%s was made meanwhile", path)
        await self._documents.update(path, change)

    async def _unload(self, data: Document, former: Document | None) -> None:
        names = [
            name
            for tenant in await self._context.service.resources.tenants()
            for name in await self._context.service.resources.namespaces(tenant)
        ]
        moved = namespaces_to_unload(names, data, former)
        paths = [f"/admin/v2/namespaces/{name}/unload" for name in moved]
        await call_all(self._context, "PUT", paths, tolerated=(NOT_FOUND,))


def policies_path(cluster: str) -> str:
    """Where a cluster's isolation policies are, all in one document."""
    return f"{Resources.cluster_path(cluster)}/namespaceIsolationPolicies"


def isolation_data(name: str) -> Any:
    """How a body is read as the policy of that name. Raises 400."""

    def read(value: Any) -> Document:
        data = ISOLATION_DATA(value)
        failover = data.get("auto_failover_policy") or {}
        parameters = failover.get("parameters") or {}
        if (
            not data.get("namespaces")
            or not data.get("primary")
            or "secondary" not in data
            or "policy_type" not in failover
            or any(parameter not in parameters for parameter in PARAMETERS)
        ):
            raise AdminError(BAD_REQUEST, invalid(name, data))
        for key in ("namespaces", "primary", "secondary"):
            for expression in data[key]:
                reason = refusal(expression)
                if reason is not None:
                    raise AdminError(
                        BAD_REQUEST,
                        f"{invalid(name, data)}; {key}: {expression!r} is no regular expression that brokers match: "
                        f"{reason}",
                    )
        return data

    return read


def invalid(name: str, data: Document) -> str:
    """What Apache's broker says."""
    shown = msgspec.json.encode(data).decode()
    return f"Invalid format of input policy data. policy: {name}; data: {shown}"


def policy_from(name: str, data: Document) -> IsolationPolicy:
    """One policy as load management matches with it."""
    return IsolationPolicy(
        name=name,
        namespaces=tuple(data.get("namespaces") or ()),
        primary=tuple(data.get("primary") or ()),
        secondary=tuple(data.get("secondary") or ()),
    )


def broker_described(policies: dict[str, Document], broker: str) -> Document:
    """What policies say about a broker (Pulsar `BrokerNamespaceIsolationData`)."""
    described: Document = {"brokerName": broker, "namespaceRegex": [], "primary": False}
    for name, data in policies.items():
        policy = policy_from(name, data)
        names = (broker, host_of(broker))
        primary = any(policy.is_primary(each) for each in names)
        if primary or any(policy.is_secondary(each) for each in names):
            described["policyName"] = name
            described["namespaceRegex"] += data["namespaces"]
            described["primary"] = described["primary"] or primary
    return described


def namespaces_to_unload(names: list[str], data: Document, former: Document | None) -> list[str]:
    """The namespaces whose brokers a policy changes, as far as its `unload_scope` goes.

    Pulsar: `all_matching` all that match, `changed` (where nothing is said) those that match newly or no more, and
    all when the brokers are others, `none` none."""
    scope = data.get("unload_scope") or "changed"
    if scope == "none":
        return []
    policy = policy_from("", data)
    matching = {name for name in names if policy.governs(name)}
    if scope == "all_matching":
        return sorted(matching)
    if former is None:
        return sorted(matching)
    before = policy_from("", former)
    governed = {name for name in names if before.governs(name)}
    same_brokers = (policy.primary, policy.secondary) == (before.primary, before.secondary)
    return sorted(matching ^ governed if same_brokers else matching | governed)
