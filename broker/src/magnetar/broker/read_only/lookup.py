"""Lookups at a broker that only reads: they lead to brokers that only read, whoever owns the topic's bundle."""

from __future__ import annotations

from magnetar.broker.bundles.lookup import Lookup
from magnetar.broker.bundles.lookup_answers import Answer, Connect
from magnetar.broker.bundles.namespace_bundles import Bundles
from magnetar.broker.bundles.ownership import BundleOwnership
from magnetar.broker.bundles.placement import LoadManager
from magnetar.broker.read_only.membership import ReadOnlyMembership
from magnetar.broker.read_only.spread import Spread
from magnetar.broker.resources import Resources
from magnetar.broker.settings.broker import BrokerSettings
from magnetar.core.bundle import BundleName
from magnetar.core.topic_name import TopicName
from magnetar.wire.pulsar.errors import PulsarError, ServerError


class ReadOnlyLookup(Lookup):
    """Clients are spread by load. What is asked of this very broker, as by the admin API, stays here."""

    def __init__(
        self,
        settings: BrokerSettings,
        resources: Resources,
        bundles: Bundles,
        ownership: BundleOwnership,
        load: LoadManager,
    ) -> None:
        super().__init__(settings, resources, bundles, ownership, load)
        assert isinstance(load, ReadOnlyMembership)
        self._membership = load
        self._spread = Spread(settings.read_only.lag_ms_max / 1000)
        self.find_now = _ask

    async def find_for_client(self, topic: TopicName, *, authoritative: bool = False, decide: bool = False) -> Answer:
        """The broker at which a client is to subscribe. `PulsarError` as `find`."""
        elsewhere = await self.check_namespace(topic.namespace_name)
        if elsewhere is not None:
            return elsewhere
        if topic.domain != "persistent":
            raise PulsarError(
                ServerError.NOT_ALLOWED_ERROR, f"{topic} is not stored: a read-only broker has nothing to read of it"
            )
        readers = self._membership.readers
        chosen = self._spread.choose(readers)
        if chosen is None or chosen == self.ownership.own.broker_id:
            return self.ownership.here
        return Connect(readers[chosen].addresses, ours=False)

    async def find(self, topic: TopicName, *, authoritative: bool = False, decide: bool = False) -> Answer:
        """This broker, for a topic of a namespace that this cluster serves. `PulsarError`."""
        elsewhere = await self.check_namespace(topic.namespace_name)
        return self.ownership.here if elsewhere is None else elsewhere

    async def find_bundle(self, bundle: BundleName, *, authoritative: bool = False, decide: bool = False) -> Answer:
        """This broker."""
        return self.ownership.here


def _ask(topic: TopicName) -> Connect | None:
    """Who is to get a client is not known before it is decided."""
    return None
