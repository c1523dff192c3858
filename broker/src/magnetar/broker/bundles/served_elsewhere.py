"""The answer to who comes to a broker with what another one serves."""

from __future__ import annotations

from magnetar.broker.peers.addresses import BrokerAddresses
from magnetar.wire.pulsar.errors import PulsarError, ServerError


class ServedElsewhere(PulsarError):
    """Another broker that only reads serves the subscription."""

    def __init__(self, topic: str, subscription: str, broker: BrokerAddresses) -> None:
        super().__init__(
            # What an Exclusive consumer hears at that broker, too.
            ServerError.CONSUMER_BUSY,
            f"Subscription {subscription} of {topic} has consumers at {broker.broker_id}",
        )
        self.broker = broker
