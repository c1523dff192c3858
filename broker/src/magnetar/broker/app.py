"""Puts a broker together and runs it. The only place that knows all of its parts."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from magnetar.broker.assembly import assemble, ledger_factory, usage_exchange, use_transactions
from magnetar.broker.broker_parts import AdminPort, BrokerParts
from magnetar.broker.bundles.namespace_bundles import heartbeat_bundle
from magnetar.broker.context import BrokerContext
from magnetar.broker.policies.change_events import ChangeEvents
from magnetar.broker.resource_groups.exchange import UsageExchange
from magnetar.broker.service_ports import ServicePorts, open_service_ports
from magnetar.broker.session.server_session import ServerSession
from magnetar.broker.settings.broker import BrokerSettings
from magnetar.managed.factory import ManagedLedgerFactory

if TYPE_CHECKING:
    pass

logger: Final = logging.getLogger(__name__)

LEAVE_SECONDS_MAX = 5.0
"""How long a stopping broker tries to be shown as draining: what matters, its unregistration, comes first."""


class RunningBroker:
    """A broker that serves."""

    def __init__(
        self,
        context: BrokerContext,
        topic_policies: ChangeEvents,
        managed: ManagedLedgerFactory,
        ports: ServicePorts,
        admin: AdminPort,
        usage: UsageExchange,
    ) -> None:
        self.context = context
        self._topic_policies = topic_policies
        self.settings = context.settings
        self._managed = managed
        self._ports = ports
        self.outboxes = ports.outboxes
        """Of the connections with clients: what makes entries durable in this process sends them early."""
        self._admin = admin
        self._usage = usage

    async def start(self) -> None:
        """Serve, then take part: only who answers may be sent clients."""
        context, settings = self.context, self.settings
        await self._ports.serve(context.service.limits.connections.refused)
        await context.dynamic.start()
        context.service.start()
        await self._admin.serve(context)
        await context.load.start()
        if settings.read_only.enabled:
            logger.info("read-only broker %s serves %s", settings.broker_id, settings.service_url)
            return
        self._usage.start()
        await context.lookup.find_bundle(heartbeat_bundle(settings.broker_id))
        logger.info("broker %s serves %s", settings.broker_id, settings.service_url)

    async def close(self) -> None:
        """Get no more bundles, let go of those there are, telling clients, then stop listening.

        What fails is logged: nothing of what comes after it may be left out."""
        context = self.context
        await _in_any_case(context.operations.close())
        await _in_any_case(self._leave())
        await _in_any_case(self._usage.close())
        await _in_any_case(self._topic_policies.close())
        if context.coordinators is not None:
            await _in_any_case(context.coordinators.close())
        await _in_any_case(context.service.transactions.close())
        await _in_any_case(context.client.close())
        await _in_any_case(self._hand_over())
        await _in_any_case(self._admin.close())
        context.dynamic.close()
        context.topic_lists.close()
        await _in_any_case(context.service.close())
        await _in_any_case(context.load.close())
        await _in_any_case(context.peers.close())
        await _in_any_case(context.ownership.close())
        context.bundles.close()
        if context.access is not None:
            context.access.close()
        context.service.resources.close()
        await _in_any_case(self._ports.close())
        await _in_any_case(self._managed.close())

    async def _leave(self) -> None:
        """Off the list of those that are alive; while others take the bundles over, this broker is shown as one that
        drains."""
        load = self.context.load
        if not load.several:
            await load.unregister()
            return
        async with asyncio.timeout(LEAVE_SECONDS_MAX):
            await load.leave()

    async def _hand_over(self) -> None:
        """Let go of all bundles: while there are other brokers, each to the one that is to have it, and slowly enough
        for those. Alone there is nobody to spare."""
        context = self.context
        try:
            async with asyncio.timeout(context.service.settings.load.unload_after_stop_ms_max / 1000):
                if context.load.several:
                    await context.operations.hand_over()
                await context.moves.unload_all()
        except TimeoutError:
            left = len(context.ownership.owned())
            logger.warning("stopping with %d bundles left, whose next owners recover their topics", left)
        finally:
            # What is still being released is left to the end of the session.
            context.ownership.refuse_more()


async def _in_any_case(step: Awaitable[None]) -> None:
    """One step of the stop."""
    try:
        await step
    except Exception:
        logger.exception("stopping goes on, though a part of it failed")


async def start_broker(settings: BrokerSettings, parts: BrokerParts) -> RunningBroker:
    """Start a broker. Ports that are 0 become free ones; `RunningBroker.settings` tells which.

    What was started is closed again when the rest cannot be."""
    contexts: list[BrokerContext] = []

    def left_of(host: str) -> int:
        return contexts[0].service.limits.connections.left_of(host)

    def left() -> int:
        return contexts[0].service.limits.connections.left()

    async with AsyncExitStack() as started:
        # The port that clients are told is known only once it is taken.
        ports, settings = await open_service_ports(
            settings, lambda connection: ServerSession(connection, contexts[0]), left_of, left
        )
        started.push_async_callback(ports.close)
        admin = parts.environment.admin_port(settings)
        started.push_async_callback(admin.close)
        settings = replace(settings, web_service_port=await admin.listen(), web_service_port_tls=admin.port_tls)
        managed = ledger_factory(settings, parts)
        started.push_async_callback(managed.close)
        context, topic_policies = assemble(settings, parts, managed)
        use_transactions(context)
        contexts.append(context)
        started.pop_all()
    running = RunningBroker(context, topic_policies, managed, ports, admin, usage_exchange(context))
    try:
        await running.start()
    except BaseException:
        await asyncio.shield(running.close())
        raise
    return running
