"""Which broker serves a topic (pulsar-protocol section 4; Pulsar `NamespaceService.findBrokerServiceUrl`).

Whoever owns the topic's bundle does. When nobody does, the leader says who should take it: a broker that does not
lead sends the client there, the leader sends it on to the chosen one with the authoritative flag, and who is asked
with that flag takes the bundle.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from magnetar.broker.bundles.known_owners import KnownOwners
from magnetar.broker.bundles.lookup_answers import Answer, Connect, Redirect
from magnetar.broker.bundles.namespace_bundles import HEARTBEAT_TENANT, BundleNotFound, Bundles, named_broker
from magnetar.broker.bundles.ownership import BundleOwnership, Owner, OwnershipLost
from magnetar.broker.bundles.placement import LoadManager
from magnetar.broker.peers.addresses import BrokerAddresses
from magnetar.broker.resources import Document, Resources
from magnetar.broker.settings.broker import BrokerSettings
from magnetar.core.bundle import BundleName
from magnetar.core.topic_name import NamespaceName, TopicName
from magnetar.wire.pulsar.errors import PulsarError, ServerError

ATTEMPTS_MAX: Final = 5
"""How often a lookup starts again because the namespace was cut in another way meanwhile."""


class NamespaceElsewhere(PulsarError):
    """A namespace that this cluster does not serve, and no peer of it."""


class Lookup:
    """Answers lookups, a bounded number at a time."""

    def __init__(
        self,
        settings: BrokerSettings,
        resources: Resources,
        bundles: Bundles,
        ownership: BundleOwnership,
        load: LoadManager,
    ) -> None:
        self.resources = resources
        self.bundles = bundles
        self.ownership = ownership
        self.load = load
        self._settings = settings
        self._known = known = KnownOwners(settings, resources, bundles, ownership)
        self.find_now: Callable[[TopicName], Connect | None] = known.find_now
        """`KnownOwners.find_now`, without a call in between."""
        self._finding: dict[tuple[BundleName, bool], asyncio.Task[Answer]] = {}

    def use_settings(self, settings: BrokerSettings) -> None:
        """Go on with other settings."""
        self._settings = settings
        self._known.use_settings(settings)

    @property
    def full(self) -> bool:
        """Whether a further lookup is refused at present."""
        return self._known.full

    def check_room(self) -> None:
        """Raises TooManyRequests when there is no place among the lookups under way."""
        if self.full:
            raise PulsarError(ServerError.TOO_MANY_REQUESTS, "Failed due to too many pending lookup requests")

    @contextmanager
    def place(self) -> Iterator[None]:
        """A place among the lookups under way. Raises TooManyRequests when there is none."""
        self.check_room()
        self._known.running += 1
        try:
            yield
        finally:
            self._known.running -= 1

    async def find(self, topic: TopicName, *, authoritative: bool = False, decide: bool = False) -> Answer:
        """Who serves a topic; takes its bundle when this broker is to.

        `authoritative`: whoever sent the client here has decided for this broker. `decide`: it was sent here as to the
        leader; should another lead, decide anyway, so that two brokers that each believe the other to lead do not send
        a client to and fro. `PulsarError`: TOPIC_NOT_FOUND without the namespace, SERVICE_NOT_READY while the bundle
        moves or when no broker may have it; `StoreUnavailable`."""
        elsewhere = await self.check_namespace(topic.namespace_name)
        if elsewhere is not None:
            return elsewhere
        for _ in range(ATTEMPTS_MAX):
            bundle = await self.bundles.bundle_of(topic)
            try:
                return await self.find_bundle(bundle, authoritative=authoritative, decide=decide)
            except BundleNotFound:
                continue
        raise PulsarError(ServerError.SERVICE_NOT_READY, f"The bundle of {topic} keeps changing, look it up again")

    async def find_for_client(self, topic: TopicName, *, authoritative: bool = False, decide: bool = False) -> Answer:
        """Where a client is to go: to who serves the topic, as `find` says."""
        return await self.find(topic, authoritative=authoritative, decide=decide)

    async def find_bundle(self, bundle: BundleName, *, authoritative: bool = False, decide: bool = False) -> Answer:
        """Who serves a bundle of a namespace that this cluster is known to serve; takes it when this broker is to
        (`authoritative` and `decide` mean what they mean to `find`). `BundleNotFound`, `PulsarError`,
        `StoreUnavailable`."""
        owner = await self.ownership.owner(bundle)
        if owner is not None:
            return self._connect(bundle, owner)
        key = bundle, authoritative
        finding = self._finding.get(key)
        if finding is None:
            finding = asyncio.get_running_loop().create_task(self._assign(bundle, authoritative, decide))
            if not decide:
                self._finding[key] = finding
                finding.add_done_callback(lambda task: self._found(key, task))
        return await asyncio.shield(finding)

    async def check_namespace(self, namespace: NamespaceName) -> Redirect | None:
        """Whether this cluster serves a namespace: None, or where to go when a peer cluster does.

        `PulsarError`: TOPIC_NOT_FOUND when there is none, `NamespaceElsewhere` when it is another cluster's."""
        if named_broker(namespace) is not None:
            return None
        policies = await self.resources.policies(namespace)
        if policies is None or policies.get("deleted"):
            raise PulsarError(ServerError.TOPIC_NOT_FOUND, "Namespace not found")
        if not self._known.foreign(namespace, policies):
            return None
        clusters = policies["replication_clusters"]
        peer = await self._peer(clusters)
        if peer is None:
            own = self._settings.cluster_name
            raise NamespaceElsewhere(
                ServerError.METADATA_ERROR,
                f"Namespace missing local cluster name in clusters list: local_cluster={own} ns={namespace} "
                f"clusters={clusters}",
            )
        return Redirect(peer, authoritative=True)

    async def bundle(self, topic: TopicName) -> str:
        """The range of the hash space that a topic falls into, as its name `0x…_0x…`."""
        return str((await self.bundles.bundle_of(topic)).range)

    def _connect(self, bundle: BundleName, owner: Owner) -> Connect:
        if owner.disabled:
            raise PulsarError(ServerError.SERVICE_NOT_READY, f"Namespace bundle {bundle} is being unloaded")
        return owner.answer

    def _found(self, key: tuple[BundleName, bool], task: asyncio.Task[Answer]) -> None:
        if self._finding.get(key) is task:
            del self._finding[key]
        if not task.cancelled():
            task.exception()  # Looked at: nobody may be left to wait for it.

    async def _assign(self, bundle: BundleName, authoritative: bool, decide: bool) -> Answer:
        candidate, flag = await self._candidate(bundle, authoritative=authoritative, decide=decide)
        if candidate is None:
            raise PulsarError(ServerError.SERVICE_NOT_READY, f"No broker was available to own {bundle}")
        if candidate.broker_id != self.ownership.own.broker_id:
            return Redirect(candidate, authoritative=flag)
        try:
            return self._connect(bundle, await self.ownership.acquire(bundle))
        except OwnershipLost as error:
            raise PulsarError(ServerError.SERVICE_NOT_READY, str(error)) from error

    async def _candidate(
        self, bundle: BundleName, *, authoritative: bool, decide: bool
    ) -> tuple[BrokerAddresses | None, bool]:
        """Who should take a bundle that nobody owns, or should be asked; and whether that is decided."""
        load, own = self.load, self.ownership.own
        named = named_broker(bundle.namespace)
        if named is not None:
            there = own if named == own.broker_id else load.brokers().get(named)
            if there is not None or bundle.namespace.tenant == HEARTBEAT_TENANT:
                return there, True
        if authoritative or await self.ownership.left_behind(bundle):
            return own, True
        leader = load.leader()
        if load.leading or decide or leader is None or leader.broker_id == own.broker_id:
            return await load.place(bundle), True
        return leader, False

    async def _peer(self, clusters: list[str]) -> BrokerAddresses | None:
        """A peer cluster of ours among these."""
        documents = self.resources.documents
        own: Document = await documents.get(Resources.cluster_path(self._settings.cluster_name)) or {}
        for name in own.get("peerClusterNames") or ():
            if name in clusters:
                data: Document = await documents.get(Resources.cluster_path(name)) or {}
                return BrokerAddresses(
                    broker_id=name,
                    service_url=data.get("brokerServiceUrl"),
                    service_url_tls=data.get("brokerServiceUrlTls"),
                    web_service_url=data.get("serviceUrl"),
                    web_service_url_tls=data.get("serviceUrlTls"),
                )
        return None
