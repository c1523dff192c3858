"""One replicated subscription, as the parts of replicated subscriptions see it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from magnetar.wire.pulsar.enums import SNAPSHOT_MARKER
from magnetar.wire.pulsar.errors import BadMetadata
from magnetar.wire.pulsar.subscription_markers import ClusterSnapshot, read_marker

if TYPE_CHECKING:
    from magnetar.broker.replicated_subscriptions.kept_snapshots import KeptSnapshots
    from magnetar.broker.subscriptions.subscription import Subscription
    from magnetar.core.ids import Position
    from magnetar.managed.cursors.cursor import Cursor
    from magnetar.managed.entry import Entry

logger: Final = logging.getLogger(__name__)


class FollowedSubscription:
    """Keeps the snapshots that the subscription reads, and tells when it has acknowledged all up to one of them, and
    that it has acknowledged anything."""

    __slots__ = ("_changed", "_kept", "_tell", "cursor", "subscription", "told_until")

    def __init__(
        self,
        subscription: Subscription,
        cursor: Cursor,
        kept: KeptSnapshots,
        tell: Callable[[str, ClusterSnapshot], None],
        changed: Callable[[FollowedSubscription], None],
        told_until: Position,
    ) -> None:
        self.subscription = subscription
        self.cursor = cursor
        self.told_until = told_until
        """Up to here others know what is acknowledged, or are about to be told by the next snapshot."""
        self._kept = kept
        self._tell = tell
        self._changed = changed
        cursor.on_acknowledged = self.acknowledged
        subscription.keep_snapshots(self)

    def read(self, markers: list[Entry]) -> None:
        """The subscription has come to these markers. Those of other clusters mean nothing here."""
        for entry in markers:
            metadata = entry.metadata()
            if metadata.replicated_from:
                continue
            try:
                snapshot = read_marker(SNAPSHOT_MARKER, entry.data[metadata.payload_start :])
            except BadMetadata as error:
                logger.warning("%s: passing over a snapshot: %s", self.subscription.topic_name, error)
                continue
            if isinstance(snapshot, ClusterSnapshot):
                self._kept.add(snapshot)

    def acknowledged(self, mark_delete: Position) -> None:
        """Something is acknowledged, and everything up to here."""
        snapshot = self._kept.take(mark_delete)
        if snapshot is not None:
            self.told_until = snapshot.position
            self._tell(self.subscription.name, snapshot)
        self._changed(self)

    def let_go(self) -> None:
        """Hear of nothing any more."""
        self.cursor.on_acknowledged = None
        self.subscription.keep_snapshots(None)
