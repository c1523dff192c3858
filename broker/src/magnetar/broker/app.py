"""Puts a broker together and runs it. The only place that knows all of its parts."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, replace

from magnetar.broker.admin.server import AdminServer
from magnetar.broker.context import BrokerContext
from magnetar.broker.lookup import Lookup
from magnetar.broker.resources import Resources
from magnetar.broker.schema.registry import SchemaRegistry
from magnetar.broker.schema.storage import SchemaStorage
from magnetar.broker.service import BrokerService
from magnetar.broker.session import ServerSession
from magnetar.broker.settings import BrokerSettings
from magnetar.broker.topic_lists import TopicLists
from magnetar.core.clock import Clock
from magnetar.ledger.api import LedgerClient, LedgerOptions
from magnetar.managed.factory import ManagedLedgerFactory
from magnetar.managed.settings import ManagedLedgerSettings
from magnetar.metadata.store import MetadataStore
from magnetar.net.endpoints import Listener, listen

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class BrokerParts:
    """What a broker stands on; whoever passes them closes them, after the broker."""

    store: MetadataStore
    ledgers: LedgerClient
    clock: Clock
    ledger_settings: ManagedLedgerSettings
    configuration_store: MetadataStore | None = None
    """Where the clusters of an instance keep what they share; None: in `store`."""


class RunningBroker:
    """A broker that serves."""

    def __init__(
        self, context: BrokerContext, managed: ManagedLedgerFactory, listener: Listener, admin: AdminServer
    ) -> None:
        self.context = context
        self.settings = context.settings
        self._managed = managed
        self._listener = listener
        self._admin = admin

    async def close(self) -> None:
        """Unload the topics, telling clients, then stop listening."""
        await self._admin.close()
        self.context.topic_lists.close()
        await self.context.service.close()
        await self._listener.close()
        await self._managed.close()


async def start_broker(settings: BrokerSettings, parts: BrokerParts) -> RunningBroker:
    """Start a broker. Ports that are 0 become free ones; `RunningBroker.settings` tells which."""
    managed = ManagedLedgerFactory(
        parts.store,
        parts.ledgers,
        parts.clock,
        asyncio.get_running_loop(),
        cache_bytes_max=settings.managed_ledger_cache_bytes_max,
        settings=parts.ledger_settings,
    )
    ledger_settings = parts.ledger_settings
    schema_ledgers = LedgerOptions(
        ensemble_size=ledger_settings.ensemble_size,
        write_quorum=ledger_settings.write_quorum,
        ack_quorum=ledger_settings.ack_quorum,
    )
    schemas = SchemaRegistry(SchemaStorage(parts.store, parts.ledgers, schema_ledgers))
    contexts: list[BrokerContext] = []
    # The port that clients are told is known only once the socket listens.
    listener = await listen(
        settings.bind_address, settings.broker_service_port, lambda connection: ServerSession(connection, contexts[0])
    )
    settings = replace(settings, broker_service_port=listener.port)
    admin = AdminServer(settings.bind_address, settings.web_service_port)
    settings = replace(settings, web_service_port=await admin.listen())
    resources = Resources(parts.store, parts.configuration_store)
    service = BrokerService(settings, parts.store, managed, schemas, parts.clock, resources)
    topic_lists = TopicLists(parts.store, service.resources, service.list_topics, service.spawn)
    context = BrokerContext(settings, parts.clock, service, Lookup(settings, service.resources), topic_lists)
    contexts.append(context)
    service.start()
    await admin.serve(context)
    logger.info("broker %s serves %s", settings.broker_id, settings.service_url)
    return RunningBroker(context, managed, listener, admin)
