"""Tells topics and subscriptions how transactions end, at the brokers that serve them: ours or Apache's.

By the broker's own client, with its credentials: brokers that check rights take this from super users alone. Pulsar:
`TransactionBufferHandlerImpl`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final

from magnetar.broker.settings.transactions import TransactionSettings
from magnetar.broker.transactions.api import EndedTransaction
from magnetar.client.client import PulsarClient
from magnetar.client.errors import TimedOut
from magnetar.core.topic_name import InvalidTopicName, NamespaceName, TopicName
from magnetar.wire.pulsar import requests
from magnetar.wire.pulsar.errors import PulsarError, ServerError
from magnetar.wire.pulsar.generated import pulsar_api_pb2 as pb

logger: Final = logging.getLogger(__name__)

_OF_THE_NAMESPACE: Final = frozenset({ServerError.METADATA_ERROR, ServerError.TOPIC_NOT_FOUND})
"""How lookups in a namespace that is gone are refused, by Apache's brokers and ours; and others, too."""


class RemoteParticipants:
    """A `Participants` over the network, bounded in requests without an answer."""

    def __init__(
        self,
        client: Callable[[], PulsarClient],
        settings: TransactionSettings,
        namespace_stands: Callable[[NamespaceName], Awaitable[bool]],
    ) -> None:
        """`namespace_stands` asks the configuration itself."""
        self._client = client
        self._seconds_max = settings.request_timeout_ms / 1000
        self._places = asyncio.Semaphore(settings.requests_max)
        self._namespace_stands = namespace_stands

    async def end_on_partition(self, ended: EndedTransaction, topic: str) -> None:
        """Returns when the topic has heard; also when it is gone."""
        action = pb.COMMIT if ended.commit else pb.ABORT
        mark = ended.low_water_mark
        await self._tell(
            topic, lambda request_id: requests.end_txn_on_partition(request_id, ended.id, topic, action, mark)
        )

    async def end_on_subscription(self, ended: EndedTransaction, topic: str, subscription: str) -> None:
        """Returns when the subscription has heard; also when it is gone."""
        action = pb.COMMIT if ended.commit else pb.ABORT
        mark = ended.low_water_mark
        one = topic, subscription
        await self._tell(
            topic, lambda request_id: requests.end_txn_on_subscription(request_id, ended.id, one, action, mark)
        )

    async def _tell(self, topic: str, build: Callable[[int], bytes]) -> None:
        try:
            name = TopicName.parse(topic)
        except InvalidTopicName as error:
            # Apache's coordinators take any name; nothing can ever have been published there.
            logger.warning("a transaction names a topic that cannot be: %s", error)
            return
        async with self._places:
            try:
                async with asyncio.timeout(self._seconds_max):
                    await self._client().ask(name, build)
            except TimeoutError:
                raise TimedOut(f"{topic} is not told within {self._seconds_max} s") from None
            except PulsarError as error:
                if error.code in _OF_THE_NAMESPACE and not await self._namespace_stands(name.namespace_name):
                    logger.info("%s is gone with its namespace, and need not hear of a transaction", topic)
                    return
                raise
