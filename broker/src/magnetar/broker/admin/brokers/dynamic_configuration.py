"""`/admin/v2/brokers/configuration`: the settings in force, and those that all brokers of the cluster change to."""

from __future__ import annotations

from typing import Final

from aiohttp import web
from magnetar.broker.admin.web.responses import PRECONDITION_FAILED, AdminError, json
from magnetar.broker.context import BrokerContext
from magnetar.broker.settings.dynamic import NotDynamic
from magnetar.broker.settings.values import told
from magnetar.core.errors import SettingError

BASE: Final = "/admin/v2/brokers/configuration"
LEDGERS_ROOT: Final = "/ledgers"


def routes(context: BrokerContext) -> list[web.RouteDef]:
    """What this file serves. It comes before `brokers`, which takes any other name there for a cluster's."""
    handlers = ConfigurationHandlers(context)
    return [
        web.get(BASE, handlers.names),
        web.get(BASE + "/values", handlers.values),
        web.get(BASE + "/runtime", handlers.runtime),
        web.post(BASE + "/{name}/{value:.*}", handlers.set),
        web.delete(BASE + "/{name}", handlers.remove),
        web.get("/admin/v2/brokers/internal-configuration", handlers.internal),
    ]


class ConfigurationHandlers:
    """The handlers, over one broker."""

    def __init__(self, context: BrokerContext) -> None:
        self._context = context
        self._dynamic = context.dynamic

    async def names(self, _: web.Request) -> web.Response:
        """Names of the settings that can be changed while brokers run."""
        return json(self._dynamic.names())

    async def values(self, _: web.Request) -> web.Response:
        """What they were changed to."""
        return json(await self._dynamic.values())

    async def runtime(self, _: web.Request) -> web.Response:
        """The settings in force under Pulsar's names, all as text; tools look the cluster's name up here."""
        context = self._context
        return json(told(context.load.balance_settings) | told(context.service.settings))

    async def set(self, request: web.Request) -> web.Response:
        """Change one for all brokers."""
        try:
            await self._dynamic.set(request.match_info["name"], request.match_info["value"])
        except NotDynamic:
            raise AdminError(PRECONDITION_FAILED, "Can't update non-dynamic configuration") from None
        except SettingError as problem:
            raise AdminError(PRECONDITION_FAILED, f"Invalid dynamic-config value: {problem}") from None
        return web.Response()

    async def remove(self, request: web.Request) -> web.Response:
        """Go back to what each broker was started with."""
        try:
            await self._dynamic.remove(request.match_info["name"])
        except NotDynamic:
            raise AdminError(PRECONDITION_FAILED, "Can't delete non-dynamic configuration") from None
        return web.Response()

    async def internal(self, _: web.Request) -> web.Response:
        """Where the cluster's metadata is (Pulsar `InternalConfigurationData`)."""
        settings = self._context.settings.admin
        local = settings.metadata_store_url
        shared = settings.configuration_metadata_store_url or local
        found = {
            "zookeeperServers": local.removeprefix("zk:"),
            "configurationStoreServers": shared.removeprefix("zk:"),
            "metadataStoreUrl": local,
            "configurationMetadataStoreUrl": shared,
            "ledgersRootPath": LEDGERS_ROOT,
        }
        if settings.bookkeeper_metadata_service_uri:
            found["bookkeeperMetadataServiceUri"] = settings.bookkeeper_metadata_service_uri
        return json(found)
