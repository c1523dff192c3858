"""The bundles of a broker that only reads: one, which has every topic and stands in no metadata store.

So that topics are loaded, unloaded and let go of in the same way as those of other brokers. Nobody is kept from owning
the real bundles, and no cut of a namespace concerns it.
"""

from __future__ import annotations

from typing import Final

from magnetar.broker.bundles.namespace_bundles import Bundles
from magnetar.broker.bundles.owned_bundles import OwnedBundle
from magnetar.broker.bundles.ownership import BundleOwnership, Owner
from magnetar.broker.peers.addresses import BrokerAddresses
from magnetar.broker.states import BundleState
from magnetar.core.bundle import BundleName, BundleRange
from magnetar.core.clock import Clock
from magnetar.core.topic_name import NamespaceName, TopicName
from magnetar.metadata.store import MetadataStore, Notification, SessionEvent

EVERYTHING: Final = BundleName(NamespaceName("magnetar", "read-only"), BundleRange(0, 0xFFFFFFFF))


class ReadOnlyBundles(BundleOwnership):
    """Serves any topic, until the session with the metadata store is lost: then all are let go of, as others may be
    bound to their subscriptions."""

    def __init__(self, store: MetadataStore, own: BrokerAddresses, bundles: Bundles, clock: Clock) -> None:
        super().__init__(store, own, bundles, clock)
        self._everything = OwnedBundle(EVERYTHING, clock.now_ms(), object())
        self._owned.add(self._everything)

    def serving(self, topic: TopicName) -> OwnedBundle | None:
        """The one bundle, whatever the topic."""
        return self._everything

    def peek(self, bundle: BundleName) -> Owner | None:
        """This broker, whatever the bundle."""
        return self._ours if self._everything.active else self._ours_disabled

    async def owner(self, bundle: BundleName) -> Owner | None:
        """This broker, whatever the bundle."""
        return self.peek(bundle)

    async def left_behind(self, bundle: BundleName) -> bool:
        """Never: no node says that a bundle is this broker's."""
        return False

    async def acquire(self, bundle: BundleName) -> Owner:
        """This broker, without a claim."""
        return self._ours

    async def disable(self, bundle: BundleName) -> None:
        """Nothing: there is no node to mark."""

    async def release(self, bundle: BundleName) -> None:
        """All topics are let go of: begin anew, unless the broker stops. There is no node to remove."""
        if not self._closing and not self._everything.active:
            self._owned.remove(self._everything)
            self._everything = OwnedBundle(EVERYTHING, self._clock.now_ms(), object())
            self._owned.add(self._everything)

    async def still_ours(self, owned: OwnedBundle) -> bool:
        """Whether the bundle is served: as long as the session with the metadata store stands."""
        return owned.active

    def _take_session_event(self, event: SessionEvent) -> None:
        if event is SessionEvent.SESSION_LOST:
            self._doubts += 1
            self._doubt([self._everything])
        elif event is SessionEvent.SESSION_RESTARTED:
            self._settle_later()

    def _take_notification(self, notification: Notification) -> None:
        """Nothing that concerns others' bundles does."""

    async def _settle(self, owned: OwnedBundle) -> None:
        """All topics are let go of: begin anew, with a tenure of its own."""
        if owned.state is BundleState.IN_DOUBT:
            owned.become(BundleState.ACTIVE)
