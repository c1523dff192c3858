"""What answers HTTP requests: the resources of the admin API, lookups and metrics, and errors as statuses.

Importing this module loads aiohttp; `server` does so when somebody first connects.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Final

from aiohttp import web
from magnetar.admin_client.errors import AdminRefused
from magnetar.balance.split_algorithms import BadSplit
from magnetar.broker.admin.brokers import brokers, dynamic_configuration, load_decisions, lookup, metrics
from magnetar.broker.admin.brokers import operations as broker_operations
from magnetar.broker.admin.brokers import stats as broker_stats
from magnetar.broker.admin.clusters import (
    bookies,
    clusters,
    failure_domains,
    isolation_policies,
    resource_groups,
    resource_quotas,
    tenants,
    transactions,
)
from magnetar.broker.admin.namespaces import bundles as namespace_bundles
from magnetar.broker.admin.namespaces import clusters as namespace_clusters
from magnetar.broker.admin.namespaces import namespaces
from magnetar.broker.admin.namespaces import offload as namespace_offload
from magnetar.broker.admin.namespaces import permissions as namespace_permissions
from magnetar.broker.admin.namespaces import placement as namespace_placement
from magnetar.broker.admin.namespaces import policies as namespace_policies
from magnetar.broker.admin.namespaces import properties as namespace_properties
from magnetar.broker.admin.namespaces import quotas as namespace_quotas
from magnetar.broker.admin.topics import resources as topic_resources
from magnetar.broker.admin.web import openapi
from magnetar.broker.admin.web.responses import (
    CONFLICT,
    INTERNAL_ERROR,
    NOT_FOUND,
    PRECONDITION_FAILED,
    STATUS_OF_SERVER_ERROR,
    TOO_LARGE,
    UNAVAILABLE,
    UNPROCESSABLE,
    AdminError,
    error,
)
from magnetar.broker.admin.web.shapes import STRICT
from magnetar.broker.bundles.lookup import NamespaceElsewhere
from magnetar.broker.bundles.moves import BundleNotOwned, UnknownDestination
from magnetar.broker.bundles.namespace_bundles import BundleNotFound
from magnetar.broker.context import BrokerContext
from magnetar.broker.policies.events_topic import PoliciesTooLarge
from magnetar.broker.schema.errors import InvalidSchemaData, NoSchema
from magnetar.broker.server_errors import server_error_of
from magnetar.core.errors import MagnetarError, Unavailable, forget_frames
from magnetar.core.limits import MIB
from magnetar.metadata.store import NodeNotFound, NodeTooLarge, VersionConflict
from magnetar.net.http.connections import SERVER_LOG, HttpConnections
from magnetar.net.http.pace import HttpLimits, head_bytes_max
from magnetar.wire.pulsar.errors import PulsarError

logger: Final = logging.getLogger(__name__)

BODY_BYTES_MAX: Final = 1 * MIB
"""The largest request body. What it says has to fit into a node of the metadata store, or is a schema. JSON of this
size takes up to a twentieth of a second to read, and nothing else is done meanwhile."""

SHUTDOWN_SECONDS: Final = 2.0

# What has a name comes before what takes any name there: for a cluster's (brokers), for a bundle's (namespace_bundles).
RESOURCES: Final = (
    clusters,
    failure_domains,
    isolation_policies,
    dynamic_configuration,
    load_decisions,
    broker_operations,
    brokers,
    tenants,
    namespaces,
    namespace_policies,
    namespace_quotas,
    namespace_properties,
    namespace_offload,
    namespace_permissions,
    namespace_clusters,
    namespace_placement,
    resource_groups,
    namespace_bundles,
    resource_quotas,
    bookies,
    transactions,
    topic_resources,
    broker_stats,
    openapi,
    lookup,
    metrics,
)

STATUS_OF_ERROR: Final[tuple[tuple[tuple[type[MagnetarError], ...], int], ...]] = (
    ((InvalidSchemaData,), UNPROCESSABLE),
    ((NoSchema, NodeNotFound), NOT_FOUND),
    ((VersionConflict,), CONFLICT),
    # A bundle may have moved, or been split, while the request was on its way.
    ((BundleNotOwned, BundleNotFound, UnknownDestination, BadSplit), PRECONDITION_FAILED),
    # As Apache's (`PulsarWebResource.checkLocalOrGetPeerReplicationCluster`); clients hear METADATA_ERROR.
    ((NamespaceElsewhere,), PRECONDITION_FAILED),
    ((NodeTooLarge, PoliciesTooLarge), TOO_LARGE),
    ((Unavailable,), UNAVAILABLE),
)
"""How errors of the layers below show over HTTP, the first that fits; others as their code of the protocol does."""

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def http_limits(context: BrokerContext) -> HttpLimits:
    """For the connections through which it will be asked."""
    settings = context.settings.admin
    return HttpLimits(
        connections_max=settings.http_connections_max,
        connections_setting="maxHttpServerConnections",
        body_bytes_max=BODY_BYTES_MAX,
        line_bytes_max=settings.http_header_bytes_max,
        head_bytes_max=head_bytes_max(settings.http_header_bytes_max),
        head_setting="httpMaxRequestHeaderSize",
    )


def make_runner(context: BrokerContext, connections: HttpConnections) -> web.AppRunner:
    """Everything that answers, not listening yet; `connections` are those that it will be asked through."""

    @web.middleware
    async def paced(request: web.Request, handler: Handler) -> web.StreamResponse:
        request[STRICT] = context.service.settings.admin.unknown_members_refused
        return await connections.serve(request, handler)

    middlewares = [paced, answer_errors]
    if context.access is not None:
        # A broker that lets everybody in does not load this.
        from magnetar.broker.admin.web.access import access_middleware

        middlewares.append(access_middleware(context.access, context.settings.broker_id))
    if context.settings.read_only.enabled:
        from magnetar.broker.admin.web.read_only import refuse_changes

        middlewares.append(refuse_changes)
    application = web.Application(middlewares=middlewares, client_max_size=BODY_BYTES_MAX)
    for resource in RESOURCES:
        application.add_routes(resource.routes(context))
    header_bytes_max = context.settings.admin.http_header_bytes_max
    return web.AppRunner(
        application,
        access_log=None,
        logger=SERVER_LOG,
        shutdown_timeout=SHUTDOWN_SECONDS,
        max_line_size=header_bytes_max,
        max_field_size=header_bytes_max,
        # As Apache's: a body is what it is, and a small one does not become a large one.
        auto_decompress=False,
    )


@web.middleware
async def answer_errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Every error becomes a status and a reason; what nobody expected is logged as well."""
    try:
        check_body(request)
        return await handler(request)
    except web.HTTPRequestEntityTooLarge as answer:
        return error(answer.status, f"the body is larger than {BODY_BYTES_MAX} bytes, which no setting changes")
    except web.HTTPException as answer:
        if answer.status < 400:
            return web.Response(body=answer.body, status=answer.status, reason=answer.reason, headers=answer.headers)
        return error(answer.status, answer.reason)
    except MagnetarError as problem:
        status = status_of(problem)
        if status == INTERNAL_ERROR:
            logger.warning("%s %s failed: %s", request.method, request.path, problem)
        forget_frames(problem)
        return error(status, reason_of(problem))
    except Exception as problem:
        logger.exception("%s %s failed", request.method, request.path)
        return error(INTERNAL_ERROR, f"{type(problem).__name__}: {problem}")


def check_body(request: web.Request) -> None:
    """Raises 413 for a body that is too long, also where nobody would read it."""
    size_bytes = request.content_length or 0
    if size_bytes > BODY_BYTES_MAX:
        raise AdminError(TOO_LARGE, f"The body has {size_bytes} bytes; at most {BODY_BYTES_MAX} are taken")


def status_of(problem: MagnetarError) -> int:
    """The status that an error is answered with."""
    if isinstance(problem, AdminError | AdminRefused):
        return problem.status
    for kinds, status in STATUS_OF_ERROR:
        if isinstance(problem, kinds):
            return status
    return STATUS_OF_SERVER_ERROR.get(server_error_of(problem), INTERNAL_ERROR)


def reason_of(problem: MagnetarError) -> str:
    """What the one who asked is told."""
    if isinstance(problem, PulsarError):
        return problem.message
    if isinstance(problem, VersionConflict):
        return f"Concurrent modification: {problem}"
    return f"Not found: {problem}" if isinstance(problem, NodeNotFound) else str(problem)
