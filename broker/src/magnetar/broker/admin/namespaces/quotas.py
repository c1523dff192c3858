"""Retention and backlog quotas of a namespace, each of which limits the other."""

from __future__ import annotations

from aiohttp import web
from magnetar.broker.admin.namespaces.policies import ONE
from magnetar.broker.admin.web import policy_shapes as shapes
from magnetar.broker.admin.web.documents import NO_POLICIES, change_policies, policies_of, with_value
from magnetar.broker.admin.web.handlers import Handlers
from magnetar.broker.admin.web.responses import (
    BAD_REQUEST,
    NOT_FOUND,
    PRECONDITION_FAILED,
    AdminError,
    json,
    namespace_of,
    no_content,
)
from magnetar.broker.admin.web.shapes import body_of, required_body
from magnetar.broker.context import BrokerContext
from magnetar.broker.resources import Document

STORAGE = "destination_storage"
"""The type whose quota retention must exceed (Pulsar `AdminResource.checkQuotas`)."""
QUOTA_TYPES = (STORAGE, "message_age")


def routes(context: BrokerContext) -> list[web.RouteDef]:
    """What this file serves."""
    handlers = QuotaHandlers(context)
    return [
        web.post(ONE + "/retention", handlers.set_retention),
        web.get(ONE + "/backlogQuotaMap", handlers.quotas),
        web.post(ONE + "/backlogQuota", handlers.set_quota),
        web.delete(ONE + "/backlogQuota", handlers.remove_quota),
    ]


class QuotaHandlers(Handlers):
    """The handlers, over one broker."""

    async def set_retention(self, request: web.Request) -> web.Response:
        """Give it a value, which must be above the backlog quotas. Without a body it is removed."""
        value = await body_of(request, shapes.retention)

        def change(document: Document) -> Document:
            quotas: Document = document.get("backlog_quota_map") or {}
            if shapes.exceeds_retention(quotas.get(STORAGE), value):
                raise AdminError(
                    PRECONDITION_FAILED, "Retention Quota must exceed configured backlog quota for namespace."
                )
            return with_value("retention_policies", value)(document)

        await change_policies(self._context, namespace_of(request), change, NO_POLICIES)
        return no_content()

    async def quotas(self, request: web.Request) -> web.Response:
        """All backlog quotas by type."""
        return json((await policies_of(self._context, namespace_of(request))).get("backlog_quota_map") or {})

    async def set_quota(self, request: web.Request) -> web.Response:
        """Set the quota of one type, which must be below what retention keeps."""
        namespace, kind = namespace_of(request), quota_type(request)
        try:
            quota = await required_body(request, shapes.backlog_quota)
        except AdminError as problem:
            reason = f"Set namespace[{namespace}] backlog quota failed because the data validation failed. {problem}"
            raise AdminError(BAD_REQUEST, reason) from None

        def change(document: Document) -> Document:
            if kind == STORAGE and shapes.exceeds_retention(quota, document.get("retention_policies")):
                raise AdminError(
                    PRECONDITION_FAILED,
                    "Backlog Quota exceeds configured retention quota for namespace. "
                    "Please increase retention quota and retry",
                )
            return {**document, "backlog_quota_map": {**(document.get("backlog_quota_map") or {}), kind: quota}}

        await change_policies(self._context, namespace, change)
        return no_content()

    async def remove_quota(self, request: web.Request) -> web.Response:
        """Remove the quota of one type."""
        kind = quota_type(request)

        def change(document: Document) -> Document:
            quotas = {key: value for key, value in (document.get("backlog_quota_map") or {}).items() if key != kind}
            return {**document, "backlog_quota_map": quotas}

        await change_policies(self._context, namespace_of(request), change)
        return no_content()


def quota_type(request: web.Request) -> str:
    """Which of the two a request is about. Raises 404 for others, as Apache does."""
    kind = request.query.get("backlogQuotaType") or QUOTA_TYPES[0]
    if kind not in QUOTA_TYPES:
        raise AdminError(NOT_FOUND, f"There is no backlog quota type {kind}")
    return kind
