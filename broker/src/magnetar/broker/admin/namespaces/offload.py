"""Offload policies of a namespace: which ledgers go to cheaper storage, when, and where to."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from aiohttp import web
from magnetar.broker.admin.namespaces.offload_scan import scan_answer
from magnetar.broker.admin.namespaces.policies import ONE
from magnetar.broker.admin.web.documents import change_policies, policies_of, with_value
from magnetar.broker.admin.web.handlers import Handlers
from magnetar.broker.admin.web.responses import (
    NOT_IMPLEMENTED,
    PRECONDITION_FAILED,
    AdminError,
    json,
    namespace_of,
    no_content,
)
from magnetar.broker.admin.web.shapes import Shape, body_of, integer, long, map_of, required_body, text
from magnetar.broker.context import BrokerContext
from magnetar.broker.policies.offload import offload_policy
from magnetar.broker.resources import Document
from magnetar.core.limits import MIB

DRIVERS: Final = ("S3", "aws-s3", "google-cloud-storage", "filesystem", "azureblob", "aliyun-oss")
S3_DRIVERS: Final = ("S3", "aws-s3")

THRESHOLD_BYTES: Final = "managedLedgerOffloadThresholdInBytes"
THRESHOLD_SECONDS: Final = "managedLedgerOffloadThresholdInSeconds"
DELETION_LAG: Final = "managedLedgerOffloadDeletionLagInMillis"

OFFLOAD_POLICIES: Final = Shape(
    {
        "offloadersDirectory": (text, "./offloaders"),
        "managedLedgerOffloadDriver": (text, None),
        "managedLedgerOffloadMaxThreads": (integer, 2),
        "managedLedgerOffloadReadThreads": (integer, 2),
        "managedLedgerOffloadPrefetchRounds": (integer, 1),
        THRESHOLD_SECONDS: (long, None),
        THRESHOLD_BYTES: (long, None),
        DELETION_LAG: (long, None),
        "managedLedgerOffloadedReadPriority": (text, None),
        "managedLedgerExtraConfigurations": (map_of(text), {}),
        "s3ManagedLedgerOffloadRegion": (text, None),
        "s3ManagedLedgerOffloadBucket": (text, None),
        "s3ManagedLedgerOffloadServiceEndpoint": (text, None),
        "s3ManagedLedgerOffloadMaxBlockSizeInBytes": (integer, 64 * MIB),
        "s3ManagedLedgerOffloadReadBufferSizeInBytes": (integer, MIB),
        "s3ManagedLedgerOffloadCredentialId": (text, None),
        "s3ManagedLedgerOffloadCredentialSecret": (text, None),
        "s3ManagedLedgerOffloadRole": (text, None),
        "s3ManagedLedgerOffloadRoleSessionName": (text, "pulsar-s3-offload"),
        "gcsManagedLedgerOffloadRegion": (text, None),
        "gcsManagedLedgerOffloadBucket": (text, None),
        "gcsManagedLedgerOffloadMaxBlockSizeInBytes": (integer, 128 * MIB),
        "gcsManagedLedgerOffloadReadBufferSizeInBytes": (integer, MIB),
        "gcsManagedLedgerOffloadServiceAccountKeyFile": (text, None),
        "fileSystemProfilePath": (text, None),
        "fileSystemURI": (text, None),
        "managedLedgerOffloadBucket": (text, None),
        "managedLedgerOffloadRegion": (text, None),
        "managedLedgerOffloadServiceEndpoint": (text, None),
        "managedLedgerOffloadMaxBlockSizeInBytes": (integer, None),
        "managedLedgerOffloadReadBufferSizeInBytes": (integer, None),
    }
)
"""Pulsar's members of a namespace's offload policies, with their defaults (`OffloadPoliciesImpl`)."""


def offload_policies(value: Any) -> Document:
    """What is sent, with the defaults. Raises 412 for a driver that does not exist."""
    found = OFFLOAD_POLICIES(value)
    if found.get("managedLedgerOffloadDriver") not in DRIVERS:
        raise AdminError(PRECONDITION_FAILED, f"The driver is not supported, support value: {','.join(DRIVERS)}")
    return found


def described(policies: Document) -> Document:
    """A namespace's offload policies as GET answers them: with what follows from the driver."""
    driver = policies.get("managedLedgerOffloadDriver")
    return {
        **policies,
        "s3Driver": driver in S3_DRIVERS,
        "gcsDriver": driver == "google-cloud-storage",
        "fileSystemDriver": driver == "filesystem",
    }


def routes(context: BrokerContext) -> list[web.RouteDef]:
    """What this file serves."""
    handlers = OffloadHandlers(context)
    table = [
        web.get(ONE + "/offloadPolicies", handlers.get),
        web.post(ONE + "/offloadPolicies", handlers.set),
        web.delete(ONE + "/removeOffloadPolicies", handlers.remove),
        web.get(ONE + "/scanOffloadedLedgers", handlers.scan),
    ]
    for path, key, former, status in (
        ("offloadThreshold", THRESHOLD_BYTES, "offload_threshold", 204),
        ("offloadThresholdInSeconds", THRESHOLD_SECONDS, "offload_threshold_in_seconds", 200),
        ("offloadDeletionLagMs", DELETION_LAG, "offload_deletion_lag_ms", 204),
    ):
        limit = LimitHandlers(context, key, former, status)
        table += [web.get(f"{ONE}/{path}", limit.get), web.put(f"{ONE}/{path}", limit.set)]
        if key == DELETION_LAG:
            table.append(web.delete(f"{ONE}/{path}", limit.remove))
    return table


class OffloadHandlers(Handlers):
    """All offload policies at once."""

    async def get(self, request: web.Request) -> web.Response:
        """All of them; an empty body when none is set."""
        found = (await policies_of(self._context, namespace_of(request))).get("offload_policies")
        return web.Response() if found is None else json(described(found))

    async def set(self, request: web.Request) -> web.Response:
        """Replace all of them."""
        wanted = await body_of(request, offload_policies)
        if wanted is None:
            raise AdminError(PRECONDITION_FAILED, "The offloadPolicies must be specified for namespace offload.")
        await change_policies(self._context, namespace_of(request), lambda document: merged(document, wanted))
        return no_content()

    async def remove(self, request: web.Request) -> web.Response:
        """Go back to the broker's own."""

        def change(document: Document) -> Document:
            changed = {**document, "offload_threshold": -1, "offload_threshold_in_seconds": -1}
            for key in ("offload_policies", "offload_deletion_lag_ms"):
                changed.pop(key, None)
            return changed

        await change_policies(self._context, namespace_of(request), change)
        return no_content()

    async def scan(self, request: web.Request) -> web.StreamResponse:
        """Every object of the namespace's store, with what the topics' records say of it, as it is found."""
        namespace = namespace_of(request)
        policy = offload_policy(self._context.settings.offload, await policies_of(self._context, namespace), {})
        if policy.store is None:
            raise AdminError(
                NOT_IMPLEMENTED, policy.problem or "No offload driver is configured: see managedLedgerOffloadDriver"
            )
        service = self._context.service
        lease = service.ledgers.offloaders.lease(policy.store)
        try:
            return await scan_answer(request, lease.offloader, service.store, self._context.settings.cluster_name)
        finally:
            await lease.give_back()


class LimitHandlers:
    """One limit of the offload policies, which has an operation of its own."""

    def __init__(self, context: BrokerContext, key: str, former: str, status: int) -> None:
        self._context = context
        self._key = key
        self._former = former
        self._status = status

    async def get(self, request: web.Request) -> web.Response:
        """The limit; where none is set, the member of before there were offload policies."""
        policies = await policies_of(self._context, namespace_of(request))
        value = (policies.get("offload_policies") or {}).get(self._key)
        if value is None:
            value = policies.get(self._former, None if self._key == DELETION_LAG else -1)
        return web.Response() if value is None else json(value)

    async def set(self, request: web.Request) -> web.Response:
        """Set the limit."""
        value = await required_body(request, long)
        await self._change(request, lambda offload: {**offload, self._key: value})
        return web.Response(status=self._status)

    async def remove(self, request: web.Request) -> web.Response:
        """Go back to the broker's own."""
        await self._change(request, with_value(self._key, None))
        return web.Response(status=self._status)

    async def _change(self, request: web.Request, change: Callable[[Document], Document]) -> None:
        def on_policies(document: Document) -> Document:
            return merged(document, change(document.get("offload_policies") or OFFLOAD_POLICIES({})))

        await change_policies(self._context, namespace_of(request), on_policies)


def merged(policies: Document, offload: Document) -> Document:
    """The policies with these offload policies; limits of before there were any move into them where they are unset."""
    offload = dict(offload)
    for key, former, unset in (
        (DELETION_LAG, "offload_deletion_lag_ms", None),
        (THRESHOLD_BYTES, "offload_threshold", -1),
        (THRESHOLD_SECONDS, "offload_threshold_in_seconds", -1),
    ):
        if offload.get(key) is None and policies.get(former, unset) != unset:
            offload[key] = policies[former]
    changed = {**policies, "offload_policies": offload, "offload_threshold": -1, "offload_threshold_in_seconds": -1}
    changed.pop("offload_deletion_lag_ms", None)
    return changed
