"""Puts a broker together and runs it. The only place that knows all of its parts."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Hashable, Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from functools import cache, partial
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Final, Protocol

from magnetar.admin_client.client import AdminClient
from magnetar.broker.admin.server import AdminServer
from magnetar.broker.bundles.lookup import Lookup
from magnetar.broker.bundles.moves import BundleMoves
from magnetar.broker.bundles.namespace_bundles import Bundles, heartbeat_bundle
from magnetar.broker.bundles.ownership import BundleOwnership
from magnetar.broker.context import BrokerContext
from magnetar.broker.load.drain import Drains
from magnetar.broker.load.manager import LoadParts, ModularLoadManager
from magnetar.broker.load.operations import BrokerOperations
from magnetar.broker.offload_stores import load_for, offloader_of
from magnetar.broker.peers.addresses import own_addresses
from magnetar.broker.peers.internal_client import InternalClient
from magnetar.broker.peers.known_peers import KnownPeers
from magnetar.broker.peers.peer_client import PeerClient
from magnetar.broker.policies.change_events import ChangeEvents
from magnetar.broker.policies.change_events_parts import ChangeEventsParts
from magnetar.broker.policies.ensembles import Ensembles
from magnetar.broker.resource_groups.exchange import ExchangeParts, UsageExchange
from magnetar.broker.resources import Resources
from magnetar.broker.schema.registry import SchemaRegistry
from magnetar.broker.schema.storage import SchemaStorage
from magnetar.broker.service_ports import ServicePorts, open_service_ports
from magnetar.broker.session.server_session import ServerSession
from magnetar.broker.settings.broker import SERVER_VERSION, BrokerSettings
from magnetar.broker.settings.dynamic import DynamicPart, DynamicSettings
from magnetar.broker.topics.lists import TopicLists
from magnetar.broker.topics.partitioned_topics import PartitionedTopics
from magnetar.broker.topics.service import BrokerService
from magnetar.broker.topics.topic import PersistentTopic
from magnetar.broker.transactions.api import CoordinatorService
from magnetar.core.bundle import BundleName
from magnetar.core.clock import Clock
from magnetar.core.limits import MIB
from magnetar.core.topic_name import TopicName
from magnetar.ledger.api import LedgerClient, LedgerOptions
from magnetar.managed.factory import ManagedLedgerFactory
from magnetar.managed.settings import ManagedLedgerSettings
from magnetar.metadata.store import MetadataStore
from magnetar.tiered.api import Offloader
from magnetar.tiered.offloaders import Offloaders

if TYPE_CHECKING:
    from magnetar.balance.settings import BalanceSettings
    from magnetar.broker.auth.access import AccessControl
    from magnetar.broker.peers.access import PeerAccess

logger: Final = logging.getLogger(__name__)

LEAVE_SECONDS_MAX = 5.0
"""How long a stopping broker tries to be shown as draining: what matters, its unregistration, comes first."""


class AdminPort(Protocol):
    """Where the admin API is served: `AdminServer`."""

    port_tls: int | None

    async def listen(self) -> int:
        """Take the ports; which the one without TLS is. OSError."""
        ...

    async def serve(self, context: BrokerContext) -> None:
        """Answer requests from now on."""
        ...

    async def close(self) -> None:
        """Finish the requests under way, then stop."""
        ...


def admin_server(settings: BrokerSettings) -> AdminServer:
    """The admin API on TCP, by aiohttp."""
    return AdminServer.of(settings)


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerEnvironment:
    """What a broker touches of its process and host beside the loop: the real ones, unless simulated."""

    admin_port: Callable[[BrokerSettings], AdminPort] = admin_server
    admin_client: Callable[..., AdminClient] = AdminClient
    """Makes the client that asks other brokers; takes what `AdminClient` takes."""
    offloader: Callable[[Hashable], Offloader] = offloader_of
    """Makes what reaches the store of offloaded ledgers, of the settings that policies give it."""
    host_root: Path = Path("/")
    """Where the system's own files are that tell how full the host is."""
    rng: Random | None = None
    """For pauses and names of the broker's own client; None: any."""


@dataclass(frozen=True, slots=True)
class BrokerParts:
    """What a broker stands on; whoever passes them closes them, after the broker."""

    store: MetadataStore
    ledgers: LedgerClient
    clock: Clock
    ledger_settings: ManagedLedgerSettings
    configuration_store: MetadataStore | None = None
    """Where the clusters of an instance keep what they share; None: in `store`."""
    balance_settings: BalanceSettings | None = None
    """How bundles are placed, split and moved; None: the defaults, loaded once there are several brokers."""
    request_stop: Callable[[], None] | None = None
    """Begins the stop of the whole process, as a signal would; None where the admin API must not."""
    environment: BrokerEnvironment = field(default_factory=BrokerEnvironment)


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

    async with AsyncExitStack() as started:
        # The port that clients are told is known only once it is taken.
        ports, settings = await open_service_ports(
            settings, lambda connection: ServerSession(connection, contexts[0]), left_of
        )
        started.push_async_callback(ports.close)
        admin = parts.environment.admin_port(settings)
        started.push_async_callback(admin.close)
        settings = replace(settings, web_service_port=await admin.listen(), web_service_port_tls=admin.port_tls)
        managed = _ledger_factory(settings, parts)
        started.push_async_callback(managed.close)
        context, topic_policies = _assemble(settings, parts, managed)
        _use_transactions(context.service, context.client, context.peers)
        contexts.append(context)
        started.pop_all()
    running = RunningBroker(context, topic_policies, managed, ports, admin, _usage_exchange(context))
    try:
        await running.start()
    except BaseException:
        await asyncio.shield(running.close())
        raise
    return running


def _ledger_factory(settings: BrokerSettings, parts: BrokerParts) -> ManagedLedgerFactory:
    load_for(settings.offload)
    factory = ManagedLedgerFactory(
        parts.store,
        parts.ledgers,
        parts.clock,
        asyncio.get_running_loop(),
        cache_bytes_max=settings.managed_ledger_cache_bytes_max,
        settings=parts.ledger_settings,
        offloaders=Offloaders(parts.environment.offloader),
    )
    factory.tiered_idle_seconds_max = settings.offload.idle_seconds_max
    return factory


def _schema_registry(parts: BrokerParts) -> SchemaRegistry:
    ledger_settings = parts.ledger_settings
    options = LedgerOptions(
        ensemble_size=ledger_settings.ensemble_size,
        write_quorum=ledger_settings.write_quorum,
        ack_quorum=ledger_settings.ack_quorum,
    )
    return SchemaRegistry(SchemaStorage(parts.store, parts.ledgers, options), parts.clock)


def _topic_policies(
    settings: BrokerSettings,
    store: MetadataStore,
    client: InternalClient,
    service: BrokerService,
    load: ModularLoadManager,
) -> ChangeEvents:
    """Policies of topics, as the brokers tell each other of them."""
    return ChangeEvents(
        ChangeEventsParts(
            client=client.get,
            store=store,
            resources=service.resources,
            cluster=settings.cluster_name,
            holder=settings.broker_id,
            in_use=service.namespaces_in_use,
            memory_bytes=lambda: load.host_usage().memory.limit * MIB,
        )
    )


def _assemble(
    settings: BrokerSettings, parts: BrokerParts, managed: ManagedLedgerFactory
) -> tuple[BrokerContext, ChangeEvents]:
    """Wire the parts together; nothing runs yet."""
    resources = Resources(parts.store, parts.configuration_store)
    bundles = Bundles(parts.store, resources)
    ownership = BundleOwnership(parts.store, own_addresses(settings), bundles, parts.clock)
    shown = _peer_access(settings)
    tls = shown is not None and shown.tls is not None
    environment = parts.environment
    web_service_url = (tls and settings.web_service_url_tls) or settings.web_service_url
    peers = PeerClient(web_service_url, shown, environment.admin_client)
    service_url = (tls and settings.service_url_tls) or settings.service_url
    client = InternalClient(lambda: service_url, parts.clock, SERVER_VERSION, shown, environment.rng)
    load = _load_manager(settings, parts, ownership, peers, client)
    peers.admin.known = KnownPeers(lambda: (ownership.own, *load.brokers().values()), load.brokers_now)
    lookup = Lookup(settings, resources, bundles, ownership, load)
    service = BrokerService(settings, parts.store, managed, _schema_registry(parts), parts.clock, lookup)
    moves = BundleMoves(service, bundles, load, peers, parts.balance_settings)
    drains = Drains(load, ownership, moves, settings.load)
    topic_policies = _topic_policies(settings, parts.store, client, service, load)
    access = _access_control(settings, resources, service)
    context = BrokerContext(
        settings=settings,
        clock=parts.clock,
        service=service,
        lookup=lookup,
        topic_lists=TopicLists(parts.store, resources, service.list_topics, service.spawn),
        peers=peers,
        client=client,
        topic_policies=topic_policies,
        load=load,
        bundles=bundles,
        ownership=ownership,
        moves=moves,
        operations=BrokerOperations(
            load,
            ownership.owned,
            moves,
            drains,
            resources.local_documents,
            _ensembles(resources, service, ownership).largest,
        ),
        dynamic=_dynamic_settings(service, load, moves, access),
        access=access,
        coordinators=_coordinators(settings, service, client, moves),
        request_stop=parts.request_stop,
    )
    service.policies.use_topic_policies(topic_policies)
    service.upkeep.use_partitioned_topics(PartitionedTopics(service, peers))
    return context, topic_policies


def _use_transactions(service: BrokerService, client: InternalClient, peers: PeerClient) -> None:
    """Topics with transaction buffers; a broker without transactions does not load what keeps these."""
    settings = service.settings.transactions
    if not settings.enabled:
        return
    from magnetar.broker.transactions.buffers.segments import SegmentedSnapshots
    from magnetar.broker.transactions.buffers.snapshot_topic import SnapshotParts
    from magnetar.broker.transactions.buffers.snapshots import SingleSnapshots
    from magnetar.broker.transactions.inquiry import Inquiries
    from magnetar.broker.transactions.names import COORDINATORS_TOPIC

    async def existing(name: TopicName) -> list[TopicName]:
        if count := await service.resources.partitions(name):
            return [name.partition(index) for index in range(count)]
        return [name] if await service.exists(name) else []

    call_later = asyncio.get_running_loop().call_later
    parts = SnapshotParts(client=client.get, existing=existing, spawn=service.spawn, call_later=call_later)
    segmented = settings.segmented_snapshots
    kept = SegmentedSnapshots(parts, settings.segment_bytes) if segmented else SingleSnapshots(parts)
    service.transactions.use_snapshots(kept)
    coordinators = partial(service.resources.partitions, COORDINATORS_TOPIC)
    service.transactions.use_inquiries(Inquiries(client.get, peers, coordinators))


def _usage_exchange(context: BrokerContext) -> UsageExchange:
    """What this broker and the others tell each other of resource groups."""
    service = context.service
    parts = ExchangeParts(
        own=context.ownership.own,
        brokers=context.load.brokers,
        client=context.client.get,
        clock=context.clock,
        interval_seconds=lambda: service.settings.policies.resource_usage_interval_seconds,
    )
    return UsageExchange(service.groups, parts)


def _dynamic_settings(
    service: BrokerService, load: ModularLoadManager, moves: BundleMoves, access: AccessControl | None
) -> DynamicSettings:
    """What the cluster may change while this broker runs, and who goes by it."""
    settings, ledger_settings = service.settings, service.ledgers.settings

    def use_broker(new: BrokerSettings) -> None:
        service.use_settings(new)
        load.use_settings(new.load)
        if access is not None and access.authorizer is not None:
            access.authorizer.use_super_users(new.access.super_user_roles)

    def use_balance(new: BalanceSettings) -> None:
        load.use_balance(new)
        moves.use_balance(new)

    return DynamicSettings(
        service.store,
        service.spawn,
        DynamicPart(lambda: settings, use_broker),
        DynamicPart(lambda: ledger_settings, service.use_ledger_settings),
        DynamicPart(cache(lambda: load.balance_settings), use_balance),
    )


def _ensembles(resources: Resources, service: BrokerService, ownership: BundleOwnership) -> Ensembles:
    def stored() -> Iterator[PersistentTopic]:
        for owned in list(ownership.owned().values()):
            yield from (topic for topic in owned.topics.values() if isinstance(topic, PersistentTopic))

    return Ensembles(resources, lambda: service.policies.broker, stored)


def _access_control(settings: BrokerSettings, resources: Resources, service: BrokerService) -> AccessControl | None:
    """Whom to let in; a broker that lets everybody in does not load what checks it."""
    if not settings.access.authentication.enabled:
        return None
    from magnetar.broker.auth.access import AccessControl

    return AccessControl(settings.access, resources, service.clock, service.spawn)


def _coordinators(
    settings: BrokerSettings, service: BrokerService, client: InternalClient, moves: BundleMoves
) -> CoordinatorService | None:
    """The transaction coordinators; a broker without transactions does not load them."""
    if not settings.transactions.enabled:
        return None
    from magnetar.broker.transactions.coordinator import CoordinatorParts
    from magnetar.broker.transactions.coordinator_participants import RemoteParticipants
    from magnetar.broker.transactions.coordinators import TransactionCoordinators

    parts = CoordinatorParts(
        settings=settings.transactions,
        clock=service.clock,
        participants=RemoteParticipants(client.get, settings.transactions, service.resources.exists),
        spawn=service.spawn,
        call_later=asyncio.get_running_loop().call_later,
    )
    coordinators = TransactionCoordinators(service.lookup, service.resources, service.ledgers, parts)
    moves.guests = coordinators
    return coordinators


def _peer_access(settings: BrokerSettings) -> PeerAccess | None:
    """What this broker shows to others; None: nothing, and no TLS."""
    access, peers = settings.access, settings.access.peers
    if access.authentication.enabled and not peers.plugin and not access.authentication.anonymous_role:
        logger.warning(
            "brokers want credentials and have none: without brokerClientAuthenticationPlugin they refuse what they "
            "ask each other, and themselves for partitions and policies of topics"
        )
    if not peers.plugin and not peers.tls_enabled:
        return None
    from magnetar.broker.peers.access import PeerAccess

    return PeerAccess(peers)


def _load_manager(
    settings: BrokerSettings,
    parts: BrokerParts,
    ownership: BundleOwnership,
    peers: PeerClient,
    client: InternalClient,
) -> ModularLoadManager:
    async def find_owner(bundle: BundleName) -> str | None:
        owner = await ownership.owner(bundle)
        return None if owner is None else owner.addresses.broker_id

    return ModularLoadManager(
        LoadParts(
            settings=settings.load,
            addresses=ownership.own,
            cluster=settings.cluster_name,
            version=SERVER_VERSION.removeprefix("Pulsar Server"),
            store=parts.store,
            configuration_store=parts.configuration_store or parts.store,
            clock=parts.clock,
            peers=peers,
            owned=ownership.owned,
            find_owner=find_owner,
            client=client.get,
            balance=parts.balance_settings,
            host_root=parts.environment.host_root,
        )
    )
