"""Which broker serves a subscription of those that only read: an ephemeral node for each, from its first consumer to
its last. It ends with the session of a broker that dies.

The owner of the topic lets one broker hold a subscription at a time, too. So two brokers that both believe to be bound
never both deliver for long.
"""

from __future__ import annotations

import logging
from typing import Final

from magnetar.broker.bundles.served_elsewhere import ServedElsewhere
from magnetar.broker.peers.addresses import BrokerAddresses, decode_owner, encode_owner
from magnetar.broker.read_only.paths import binding_path, bindings_path
from magnetar.core.topic_name import TopicName
from magnetar.metadata.coordination import claim, give_up
from magnetar.metadata.store import MetadataStore, NodeHasChildren, NodeNotFound, StoreUnavailable, VersionConflict

logger: Final = logging.getLogger(__name__)


class Bindings:
    """The bindings of one broker."""

    def __init__(self, store: MetadataStore, own: BrokerAddresses) -> None:
        self._store = store
        self._value = encode_owner(own, disabled=False)

    async def take(self, topic: TopicName, subscription: str) -> None:
        """Bind a subscription to this broker. `ServedElsewhere`, `StoreUnavailable`, `PeerError`."""
        path = binding_path(topic, subscription)
        node = await claim(self._store, path, self._value)
        if not node.stat.owned_by_this_session:
            raise ServedElsewhere(str(topic), subscription, decode_owner(path, node.value)[0])

    async def release(self, topic: TopicName, subscription: str) -> None:
        """Let others have it. While the store is away for long, the end of the session does."""
        await give_up(self._store, binding_path(topic, subscription))
        try:
            await self._store.delete(bindings_path(topic))
        except (NodeHasChildren, NodeNotFound, VersionConflict):
            return  # Other subscriptions of the topic are bound, or were released at the same time.
        except StoreUnavailable as error:
            logger.info("the empty node of the bindings of %s stays: %s", topic, error)
