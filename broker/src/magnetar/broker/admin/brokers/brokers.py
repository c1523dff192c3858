"""`/admin/v2/brokers` and `/status.html`."""

from __future__ import annotations

import os
from typing import Final

from aiohttp import web
from magnetar.balance.isolation import host_of, policy_of
from magnetar.broker.admin.brokers.health import require_health
from magnetar.broker.admin.clusters.isolation_policies import policies_path, policy_from
from magnetar.broker.admin.web.handlers import Handlers
from magnetar.broker.admin.web.owners import redirect, url_for
from magnetar.broker.admin.web.responses import (
    NOT_FOUND,
    NOT_IMPLEMENTED,
    PRECONDITION_FAILED,
    AdminError,
    json,
    no_content,
    text,
)
from magnetar.broker.context import BrokerContext
from magnetar.broker.settings.broker import SERVER_VERSION, VERSION_PREFIX

BASE: Final = "/admin/v2/brokers"
TOPIC_VERSIONS: Final = ("", "V1", "V2")


def routes(context: BrokerContext) -> list[web.RouteDef]:
    """What this file serves."""
    handlers = BrokerHandlers(context)
    return [
        web.get(BASE, handlers.names),
        web.get(BASE + "/leaderBroker", handlers.leader),
        web.get(BASE + "/health", handlers.health),
        web.get(BASE + "/ready", handlers.ready),
        web.get(BASE + "/version", handlers.version),
        web.get(BASE + "/backlog-quota-check", handlers.check_backlog_quotas),
        web.post(BASE + "/shutdown", handlers.shutdown),
        web.get(BASE + "/{cluster}", handlers.names),
        web.get(BASE + "/{cluster}/{broker}/ownedNamespaces", handlers.owned_namespaces),
        web.get("/status.html", handlers.status),
    ]


class BrokerHandlers(Handlers):
    """The handlers, over one broker."""

    def __init__(self, context: BrokerContext) -> None:
        super().__init__(context)
        self._settings = context.settings

    async def names(self, _: web.Request) -> web.Response:
        """Ids of the brokers that run; of this cluster, whichever is named, as Apache without authorization."""
        return json(sorted(self._context.load.brokers()))

    async def leader(self, _: web.Request) -> web.Response:
        """The broker that decides for all."""
        leader = await self._context.load.leader_now()
        if leader is None:
            raise AdminError(NOT_FOUND, "Couldn't find leader broker")
        return json({"brokerId": leader.broker_id, "serviceUrl": leader.web_service_url or leader.web_service_url_tls})

    async def health(self, request: web.Request) -> web.Response:
        """Whether a message can be published and read, here or at the broker of `brokerId`."""
        if request.query.get("topicVersion", "") not in TOPIC_VERSIONS:
            raise AdminError(NOT_FOUND, "There is no such version of the topic")
        broker = request.query.get("brokerId")
        if broker and broker != self._settings.broker_id:
            raise self._elsewhere(request, broker)
        await require_health(self._context)
        return text("ok")

    async def ready(self, _: web.Request) -> web.Response:
        """The broker serves: before that, nobody answers here."""
        return text("ok")

    async def check_backlog_quotas(self, _: web.Request) -> web.Response:
        """Check the backlog quotas of this broker's topics at once instead of when it is time."""
        if self._context.settings.policies.backlog_quota_check:
            await self._context.service.upkeep.check_now("backlog quotas")
        return no_content()

    async def shutdown(self, request: web.Request) -> web.Response:
        """Let go of all bundles, at most `maxConcurrentUnloadPerSec` of them per second, then stop the process."""
        stop = self._context.request_stop
        if stop is None:
            raise AdminError(NOT_IMPLEMENTED, "Whoever runs this broker does not let the admin API stop it")
        try:
            per_second = int(request.query.get("maxConcurrentUnloadPerSec", "0"))
        except ValueError:
            raise AdminError(PRECONDITION_FAILED, "maxConcurrentUnloadPerSec is no whole number") from None
        await self._context.load.unregister()
        await self._context.moves.unload_all(per_second=max(per_second, 0))
        stop()
        return no_content()

    async def status(self, _: web.Request) -> web.Response:
        """What load balancers ask: 404 when no client should be sent here.

        That is before the broker takes part in its cluster, from when it drains or stops, and while the file of
        `statusFilePath` is not there (Pulsar: VipStatus, which without a file's name always answers 404). Without its
        metadata store it stays 200: other brokers are no better off."""
        file = self._settings.admin.status_file
        if not self._context.load.taking_part or not _stands(file):
            raise AdminError(NOT_FOUND, "This broker is not to be sent clients now")
        return text("OK")

    async def version(self, _: web.Request) -> web.Response:
        """The version of Pulsar that clients may take this broker for."""
        return text(SERVER_VERSION.removeprefix(VERSION_PREFIX))

    async def owned_namespaces(self, request: web.Request) -> web.Response:
        """The bundles that a broker serves, and whether by an isolation policy."""
        broker = request.match_info["broker"]
        if broker != self._settings.broker_id:
            raise self._elsewhere(request, broker)
        documents = await self._resources.documents.get(policies_path(self._settings.cluster_name)) or {}
        policies = [policy_from(name, data) for name, data in documents.items()]
        host = host_of(broker)
        assigned = {}
        for bundle, owned in self._context.ownership.owned().items():
            policy = policy_of(policies, str(bundle.namespace))
            kind = "shared" if policy is None else "primary" if policy.is_primary(host) else "secondary"
            assigned[str(bundle)] = {
                "broker_assignment": kind,
                "is_controlled": policy is not None,
                "is_active": owned.active,
            }
        return json(assigned)

    def _elsewhere(self, request: web.Request, broker: str) -> web.HTTPTemporaryRedirect:
        there = self._context.load.brokers().get(broker)
        if there is None:
            raise AdminError(NOT_FOUND, f"Broker id '{broker}' not found in available brokers.")
        url = url_for(request, there.web_service_url, there.web_service_url_tls)
        return redirect(request, url, authoritative=False)


def _stands(file: str) -> bool:
    """Whether the file that says "send clients here" is there; always, when none is wanted."""
    return not file or os.path.isfile(file)
