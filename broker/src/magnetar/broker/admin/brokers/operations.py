"""Brokers seen as a whole, and drains: `/admin/v2/brokers/load-reports`, `/admin/v2/brokers/{broker}/drain`. Ours
alone."""

from __future__ import annotations

from typing import Any, Final

from aiohttp import web
from magnetar.broker.admin.brokers.brokers import BASE
from magnetar.broker.admin.web.described import takes
from magnetar.broker.admin.web.owners import redirect, url_for
from magnetar.broker.admin.web.responses import NOT_FOUND, PRECONDITION_FAILED, AdminError, flag, json
from magnetar.broker.context import BrokerContext
from magnetar.broker.load.broker_report import BrokerReport
from magnetar.broker.load.drain import DrainRefused
from magnetar.broker.load.reporter import is_named

REPORTS: Final = BASE + "/load-reports"
DRAIN: Final = BASE + "/{broker}/drain"


def routes(context: BrokerContext) -> list[web.RouteDef]:
    """What this file serves."""
    handlers = OperationHandlers(context)
    return [
        web.get(REPORTS, handlers.reports),
        web.get(DRAIN, handlers.drain_state),
        web.post(DRAIN, handlers.drain),
        web.delete(DRAIN, handlers.cancel_drain),
    ]


class OperationHandlers:
    """The handlers, over one broker."""

    def __init__(self, context: BrokerContext) -> None:
        self._context = context
        self._operations = context.operations

    @takes("bundles")
    async def reports(self, request: web.Request) -> web.Response:
        """What every broker that is alive, or drains, reported last; with `bundles=true` also the bundles' names.

        A broker that only reads tells of those that only read as well."""
        leader = await self._context.load.leader_now()
        leader_id = leader.broker_id if leader is not None else None
        names = flag(request, "bundles")
        reports = [(report, "serving") for report in await self._operations.brokers()]
        readers = await self._context.load.readers_now()
        reports += [(readers[broker_id], "read-only") for broker_id in sorted(readers)]
        return json([report_document(report, leader_id, state, names=names) for report, state in reports])

    async def drain(self, request: web.Request) -> web.Response:
        """Have a broker give all its bundles to others and take none any more; asked again it goes on.

        It leaves the list of brokers, and comes back when that is cancelled or with a restart."""
        await self._require_here(request)
        try:
            state = await self._operations.drain()
        except DrainRefused as refusal:
            raise AdminError(PRECONDITION_FAILED, str(refusal)) from None
        return json(state.document(self._operations.broker_id))

    async def drain_state(self, request: web.Request) -> web.Response:
        """How far a broker's drain is: `none`, `running` or `done`, with the bundles that hold it up."""
        await self._require_here(request)
        return json(self._operations.drain_state().document(self._operations.broker_id))

    async def cancel_drain(self, request: web.Request) -> web.Response:
        """Have a broker keep what it still has, and take bundles again."""
        await self._require_here(request)
        return json((await self._operations.cancel_drain()).document(self._operations.broker_id))

    async def _require_here(self, request: web.Request) -> None:
        """Returns when this broker is the one that the path names; raises the redirect to it, or 404."""
        broker = request.match_info["broker"]
        if broker == self._operations.broker_id:
            return
        reports = [*await self._operations.brokers(), *(await self._context.load.readers_now()).values()]
        there = next((one.addresses for one in reports if one.broker_id == broker), None)
        if there is None:
            raise AdminError(NOT_FOUND, f"Broker id '{broker}' not found in available brokers.")
        url = url_for(request, there.web_service_url, there.web_service_url_tls)
        raise redirect(request, url, authoritative=False)


def report_document(report: BrokerReport, leader_id: str | None, state: str, *, names: bool) -> dict[str, Any]:
    """One broker, and what it does unless it drains. Usages in percent, rates a second, throughputs in bytes."""
    bundles = [name for name in report.bundles if not is_named(name)]
    document: dict[str, Any] = {
        "broker": report.broker_id,
        "state": "draining" if report.draining else state,
        "leader": report.broker_id == leader_id,
        "magnetar": report.ours,
        "version": report.version,
        "serviceUrl": report.addresses.service_url or report.addresses.service_url_tls,
        "webServiceUrl": report.addresses.web_service_url or report.addresses.web_service_url_tls,
        "cpu": report.host.cpu.percent,
        "memory": report.host.memory.percent,
        "bandwidthIn": report.host.bandwidth_in.percent,
        "bandwidthOut": report.host.bandwidth_out.percent,
        "msgRateIn": report.total("msg_rate_in"),
        "msgRateOut": report.total("msg_rate_out"),
        "msgThroughputIn": report.total("throughput_in"),
        "msgThroughputOut": report.total("throughput_out"),
        "topics": int(report.total("topics")),
        "producers": int(report.total("producers")),
        "consumers": int(report.total("consumers")),
        "bundles": len(bundles),
        "startedMillis": report.started_ms,
        "updatedMillis": report.updated_ms,
    }
    return {**document, "bundleNames": bundles} if names else document
