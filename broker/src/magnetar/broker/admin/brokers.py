"""`/admin/v2/brokers` and `/status.html`."""

from __future__ import annotations

import asyncio
import uuid

from aiohttp import web
from magnetar.broker.admin.owners import redirect, url_for
from magnetar.broker.admin.responses import NOT_FOUND, UNAVAILABLE, AdminError, json, text
from magnetar.broker.context import BrokerContext
from magnetar.broker.settings import SERVER_VERSION
from magnetar.broker.topic import PersistentTopic
from magnetar.core.errors import MagnetarError
from magnetar.core.ids import LATEST
from magnetar.core.topic_name import TopicName
from magnetar.wire.pulsar.batch import build_message
from magnetar.wire.pulsar.generated.pulsar_api_pb2 import MessageMetadata

BASE = "/admin/v2/brokers"
HEALTH_CHECK_SECONDS = 58
"""Apache's own limit for a health check."""


def routes(context: BrokerContext) -> list[web.RouteDef]:
    """What this file serves."""
    handlers = BrokerHandlers(context)
    return [
        web.get(BASE, handlers.names),
        web.get(BASE + "/leaderBroker", handlers.leader),
        web.get(BASE + "/health", handlers.health),
        web.get(BASE + "/ready", handlers.ready),
        web.get(BASE + "/version", handlers.version),
        web.get(BASE + "/configuration/runtime", handlers.runtime_configuration),
        web.get(BASE + "/{cluster}", handlers.names),
        web.get(BASE + "/{cluster}/{broker}/ownedNamespaces", handlers.owned_namespaces),
        web.get("/status.html", handlers.status),
    ]


class BrokerHandlers:
    """The handlers, over one broker."""

    def __init__(self, context: BrokerContext) -> None:
        self._context = context
        self._settings = context.settings
        self._resources = context.service.resources

    async def names(self, request: web.Request) -> web.Response:
        """Ids of the brokers that run."""
        cluster = request.match_info.get("cluster", self._settings.cluster_name)
        if cluster not in await self._resources.clusters():
            raise AdminError(NOT_FOUND, f"Cluster {cluster} does not exist.")
        return json(sorted(self._context.load.brokers()) if cluster == self._settings.cluster_name else [])

    async def leader(self, _: web.Request) -> web.Response:
        """The broker that decides for all."""
        leader = self._context.load.leader()
        if leader is None:
            raise AdminError(NOT_FOUND, "Couldn't find leader broker")
        return json({"brokerId": leader.broker_id, "serviceUrl": leader.web_service_url or leader.web_service_url_tls})

    async def health(self, _: web.Request) -> web.Response:
        """Whether a message can be published and read."""
        try:
            async with asyncio.timeout(HEALTH_CHECK_SECONDS):
                await check_health(self._context)
        except TimeoutError:
            raise AdminError(UNAVAILABLE, "The broker could not publish and read a message in time") from None
        return text("ok")

    async def ready(self, _: web.Request) -> web.Response:
        """The broker serves: before that, nobody answers here."""
        return text("ok")

    async def runtime_configuration(self, _: web.Request) -> web.Response:
        """The settings in force under Pulsar's names, all as text; tools look the cluster's name up here."""
        return json(self._settings.upstream())

    async def status(self, _: web.Request) -> web.Response:
        """What probes and load balancers ask."""
        return text("OK")

    async def version(self, _: web.Request) -> web.Response:
        """The version of Pulsar that clients may take this broker for."""
        return text(SERVER_VERSION.removeprefix("Pulsar Server"))

    async def owned_namespaces(self, request: web.Request) -> web.Response:
        """The bundles that a broker serves."""
        broker = request.match_info["broker"]
        if broker != self._settings.broker_id:
            there = self._context.load.brokers().get(broker)
            if there is None:
                raise AdminError(NOT_FOUND, f"Broker id '{broker}' not found in available brokers.")
            raise redirect(
                request, url_for(request, there.web_service_url, there.web_service_url_tls), authoritative=False
            )
        assigned = {
            str(bundle): {"broker_assignment": "shared", "is_controlled": False, "is_active": owned.active}
            for bundle, owned in self._context.ownership.owned().items()
        }
        return json(assigned)


async def check_health(context: BrokerContext) -> None:
    """Publish a message on the broker's own topic and read it back, as its clients would find it."""
    service = context.service
    name = TopicName.parse(f"persistent://pulsar/system/healthcheck-{context.settings.broker_id.replace(':', '-')}")
    topic = await service.topic(name, create=True)
    assert isinstance(topic, PersistentTopic)
    cursor = topic.ledger.new_non_durable_cursor(f"healthCheck-{uuid.uuid4()}", LATEST)
    try:
        metadata = MessageMetadata(producer_name="healthcheck", sequence_id=0, publish_time=context.clock.now_ms())
        message = build_message(metadata, uuid.uuid4().bytes)
        stored: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def appended(error: MagnetarError | None, ledger_id: int, first_entry_id: int, context: object) -> None:
            del ledger_id, first_entry_id, context
            if stored.done():
                return
            if error is None:
                stored.set_result(None)
            else:
                stored.set_exception(error)

        topic.ledger.append([message], appended, None)
        await stored
        while True:
            entries = await cursor.read(100, 1024 * 1024)
            if any(entry.data == message for entry in entries):
                return
            if not entries:
                raise AdminError(UNAVAILABLE, "The message of the health check was stored but cannot be read")
    finally:
        await cursor.close()
