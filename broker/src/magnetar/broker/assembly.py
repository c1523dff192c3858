"""Wires the parts of a broker together; nothing runs yet. With `app.py` the only place that knows all of them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from functools import cache, partial
from typing import TYPE_CHECKING, Final, NamedTuple

from magnetar.broker.broker_parts import BrokerParts
from magnetar.broker.bundles.lookup import Lookup
from magnetar.broker.bundles.moves import BundleMoves
from magnetar.broker.bundles.namespace_bundles import Bundles
from magnetar.broker.bundles.ownership import BundleOwnership
from magnetar.broker.context import BrokerContext
from magnetar.broker.load.drain import Drains
from magnetar.broker.load.manager import LoadParts, ModularLoadManager
from magnetar.broker.load.operations import BrokerOperations
from magnetar.broker.offload_stores import load_for
from magnetar.broker.peers.addresses import BrokerAddresses, own_addresses
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
from magnetar.broker.settings.broker import SERVER_VERSION, BrokerSettings
from magnetar.broker.settings.dynamic import DynamicPart, DynamicSettings
from magnetar.broker.topics.lists import TopicLists
from magnetar.broker.topics.partitioned_topics import PartitionedTopics
from magnetar.broker.topics.service import BrokerService
from magnetar.broker.topics.topic import PersistentTopic
from magnetar.broker.transactions.api import CoordinatorService
from magnetar.core.bundle import BundleName
from magnetar.core.limits import MIB
from magnetar.core.topic_name import TopicName, java_url_encode
from magnetar.ledger.api import LedgerOptions
from magnetar.managed.factory import ManagedLedgerFactory
from magnetar.metadata.store import MetadataStore
from magnetar.tiered.offloaders import Offloaders

if TYPE_CHECKING:
    from magnetar.balance.settings import BalanceSettings
    from magnetar.broker.auth.access import AccessControl
    from magnetar.broker.peers.access import PeerAccess
    from magnetar.managed.following.api import EndTeller

logger: Final = logging.getLogger(__name__)


class Roles(NamedTuple):
    """The parts that are others in a broker that only reads."""

    ownership: type[BundleOwnership] = BundleOwnership
    load: type[ModularLoadManager] = ModularLoadManager
    lookup: type[Lookup] = Lookup
    service: type[BrokerService] = BrokerService


def _roles_of(settings: BrokerSettings) -> Roles:
    if not settings.read_only.enabled:
        return Roles()
    from magnetar.broker.read_only.bundles import ReadOnlyBundles
    from magnetar.broker.read_only.lookup import ReadOnlyLookup
    from magnetar.broker.read_only.membership import ReadOnlyMembership
    from magnetar.broker.read_only.service import ReadOnlyService

    return Roles(ReadOnlyBundles, ReadOnlyMembership, ReadOnlyLookup, ReadOnlyService)


def ledger_factory(settings: BrokerSettings, parts: BrokerParts) -> ManagedLedgerFactory:
    """What opens the managed ledgers of topics."""
    load_for(settings.offload)
    factory = ManagedLedgerFactory(
        parts.store,
        parts.ledgers,
        parts.clock,
        asyncio.get_running_loop(),
        cache_bytes_max=settings.managed_ledger_cache_bytes_max,
        cache_seconds_max=settings.managed_ledger_cache_seconds_max,
        settings=parts.ledger_settings,
        offloaders=Offloaders(parts.environment.offloader),
    )
    factory.tiered_idle_seconds_max = settings.offload.idle_seconds_max
    return factory


def _schema_registry(settings: BrokerSettings, parts: BrokerParts) -> SchemaRegistry:
    ledger_settings = parts.ledger_settings
    options = LedgerOptions(
        ensemble_size=ledger_settings.ensemble_size,
        write_quorum=ledger_settings.write_quorum,
        ack_quorum=ledger_settings.ack_quorum,
    )
    registry = SchemaRegistry(SchemaStorage(parts.store, parts.ledgers, options), parts.clock)
    registry.unreadable_is_lost = settings.policies.schema_force_recovery
    return registry


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


def assemble(
    settings: BrokerSettings, parts: BrokerParts, managed: ManagedLedgerFactory
) -> tuple[BrokerContext, ChangeEvents]:
    """Wire the parts together; nothing runs yet."""
    resources = Resources(parts.store, parts.configuration_store)
    bundles = Bundles(parts.store, resources)
    roles = _roles_of(settings)
    ownership = roles.ownership(parts.store, own_addresses(settings), bundles, parts.clock)
    shown = _peer_access(settings)
    tls = shown is not None and shown.tls is not None
    environment = parts.environment
    # Both are asked when they are needed: a broker that only reads asks the brokers that write.
    peers = PeerClient(lambda: _web_url(settings, load.owner_to_ask(), tls), shown, environment.admin_client)

    def service_url() -> str:
        return _service_url(settings, load.owner_to_ask(), tls)

    client = InternalClient(service_url, parts.clock, SERVER_VERSION, shown, environment.rng)
    load = _load_manager(settings, parts, roles.load, ownership, peers, client)
    peers.admin.known = KnownPeers(lambda: (ownership.own, *load.brokers().values()), load.brokers_now)
    lookup = roles.lookup(settings, resources, bundles, ownership, load)
    service = roles.service(settings, parts.store, managed, _schema_registry(settings, parts), parts.clock, lookup)
    moves = BundleMoves(service, bundles, load, peers, parts.balance_settings)
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
        operations=_operations(service, load, moves),
        dynamic=_dynamic_settings(service, load, moves, access),
        access=access,
        coordinators=_coordinators(settings, service, client, moves),
        request_stop=parts.request_stop,
    )
    service.policies.use_topic_policies(topic_policies)
    service.shadows.use_owners(partial(_source_owner, context, parts.store))
    service.upkeep.use_partitioned_topics(PartitionedTopics(service, peers))
    if settings.read_only.enabled:
        from magnetar.broker.read_only.service import ReadOnlyService

        assert isinstance(service, ReadOnlyService)
        # One of its own, which closes after the topics: they tell their owners where consumers are until the end.
        owners = InternalClient(service_url, parts.clock, SERVER_VERSION, shown, environment.rng)
        service.use_owners(owners, peers)
    return context, topic_policies


def _source_owner(context: BrokerContext, store: MetadataStore, shadow: TopicName, source: TopicName) -> EndTeller:
    """Who knows where the source of a shadow topic ends that another broker serves."""
    from magnetar.broker.read_only.topic_owner import OwnerParts, RemoteTopicOwner

    parts = OwnerParts(
        client=context.client.get,
        admin=context.peers,
        store=store,
        clock=context.clock,
        broker_id=context.ownership.own.broker_id,
        asker="shadow topic at",
        asks_for=f"-{java_url_encode(str(shadow))}",
    )
    return RemoteTopicOwner(source, parts, lambda subscription, error: None)


def use_transactions(context: BrokerContext) -> None:
    """Topics with transaction buffers; a broker without transactions does not load what keeps these."""
    service, client, peers = context.service, context.client, context.peers
    settings = service.settings.transactions
    if not settings.enabled:
        return
    from magnetar.broker.transactions.buffers.segments import SegmentedSnapshots
    from magnetar.broker.transactions.buffers.snapshot_topic import SnapshotParts
    from magnetar.broker.transactions.buffers.snapshots import SingleSnapshots
    from magnetar.broker.transactions.inquiry import Inquiries
    from magnetar.broker.transactions.names import COORDINATORS_TOPIC
    from magnetar.broker.transactions.standings import CoordinatorStandings

    async def existing(name: TopicName) -> list[TopicName]:
        if count := await service.resources.partitions(name):
            return [name.partition(index) for index in range(count)]
        return [name] if await service.exists(name) else []

    call_later = asyncio.get_running_loop().call_later
    parts = SnapshotParts(
        client=client.get, existing=existing, spawn=service.spawn, call_later=call_later, clock=service.clock
    )
    segmented = settings.segmented_snapshots
    kept = SegmentedSnapshots(parts, settings.segment_bytes) if segmented else SingleSnapshots(parts)
    service.transactions.use_snapshots(kept, lambda: SegmentedSnapshots(parts, settings.segment_bytes))
    count = partial(service.resources.partitions, COORDINATORS_TOPIC)
    # A broker that only reads stores nothing, and has nobody to ask.
    here = context.coordinators
    standings = None if here is None else CoordinatorStandings(client.get, peers, count, here)
    service.transactions.use_inquiries(Inquiries(client.get, peers, count), standings)


def usage_exchange(context: BrokerContext) -> UsageExchange:
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
        service.schemas.unreadable_is_lost = new.policies.schema_force_recovery
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


def _operations(service: BrokerService, load: ModularLoadManager, moves: BundleMoves) -> BrokerOperations:
    resources, ownership = service.resources, service.ownership
    ensembles = _ensembles(resources, service, ownership)
    documents, settings = resources.local_documents, service.settings
    if not settings.read_only.enabled:
        drains = Drains(load, ownership, moves, settings.load)
        return BrokerOperations(load, ownership.owned, moves, drains, documents, ensembles.largest)
    from magnetar.broker.read_only.bundles import ReadOnlyBundles
    from magnetar.broker.read_only.drains import NOTHING, ReadOnlyDrains
    from magnetar.broker.read_only.membership import ReadOnlyMembership

    assert isinstance(load, ReadOnlyMembership)
    assert isinstance(ownership, ReadOnlyBundles)
    drains = ReadOnlyDrains(load, ownership, moves, settings.load)
    return BrokerOperations(load, lambda: NOTHING, moves, drains, documents, ensembles.largest)


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
    """The transaction coordinators; a broker without transactions does not load them, nor one that only reads: it would
    take the logs away from their owners."""
    if not settings.transactions.enabled or settings.read_only.enabled:
        return None
    from magnetar.broker.transactions.coordinator import CoordinatorParts
    from magnetar.broker.transactions.coordinator_participants import NearParticipants, RemoteParticipants
    from magnetar.broker.transactions.coordinators import TransactionCoordinators

    def loaded(name: str) -> PersistentTopic | None:
        topic = service.topics.get(name)
        return topic if isinstance(topic, PersistentTopic) else None

    elsewhere = RemoteParticipants(client.get, settings.transactions, service.resources.exists)
    parts = CoordinatorParts(
        settings=settings.transactions,
        log_limits=service.transactions.log_limits,
        clock=service.clock,
        participants=NearParticipants(loaded, elsewhere, settings.transactions, service.wait_for_at_close),
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


def _service_url(settings: BrokerSettings, other: BrokerAddresses | None, tls: bool) -> str:
    """The binary protocol of the broker that is asked: this one, or another."""
    asked = settings if other is None else other
    return (tls and asked.service_url_tls) or asked.service_url or asked.service_url_tls or ""


def _web_url(settings: BrokerSettings, other: BrokerAddresses | None, tls: bool) -> str:
    """The admin API of the broker that is asked: this one, or another."""
    asked = settings if other is None else other
    return (tls and asked.web_service_url_tls) or asked.web_service_url or asked.web_service_url_tls or ""


def _load_manager(
    settings: BrokerSettings,
    parts: BrokerParts,
    kind: type[ModularLoadManager],
    ownership: BundleOwnership,
    peers: PeerClient,
    client: InternalClient,
) -> ModularLoadManager:
    async def find_owner(bundle: BundleName) -> str | None:
        owner = await ownership.owner(bundle)
        return None if owner is None else owner.addresses.broker_id

    return kind(
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
