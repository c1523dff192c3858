"""Option `predefinedSubscription`: a durable subscription that shows, in brokers' statistics, how far a query is.

It follows the query and never leads it: offsets are in Spark's checkpoint, and what is not told to a broker now is told
with the next batch. It keeps retention from deleting what the query has not read.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Iterable, Mapping
from typing import Any, Final

from magnetar.client.client import PulsarClient
from magnetar.client.consumer import ClientConsumer, ConsumerOptions
from magnetar.client.errors import is_final
from magnetar.core.errors import MagnetarError
from magnetar.core.topic_name import TopicName
from magnetar.spark.brokers.errors import HOW_TO_SHOW
from magnetar.spark.errors import AccessRefused, BadOption, SparkSourceError
from magnetar.spark.positions import MessagePosition
from magnetar.wire.pulsar.enums import SubscriptionType
from magnetar.wire.pulsar.errors import PulsarError, ServerError

logger: Final = logging.getLogger(__name__)

OPTION: Final = "predefinedSubscription"

MOVE_SECONDS_MAX: Final = 10.0
"""How long a micro-batch waits for its subscriptions at most."""

ATTEMPTS_MAX: Final = 5
PAUSE_SECONDS: Final = 0.1
"""After the first attempt, doubled after each: a broker that hands the topic over has done so in a second or two."""

AT_ONCE_MAX: Final = 64
"""Topics whose subscriptions are opened or moved at a time."""


class DurableCursor:
    """One subscription of each topic, of type Failover without permits: a second driver of the same query gets in
    beside the first, and no messages are sent to either. Reconnects by itself.

    What fails is logged as a warning and tried again with the next call, but for what no further attempt changes: a
    role that may not consume (`AccessRefused`), and a subscription that is not there and may not be made
    (`BadOption`)."""

    def __init__(self, client: PulsarClient, subscription: str, *, from_earliest: bool = True) -> None:
        """The client is the caller's and stays open. `from_earliest`: where `start` makes subscriptions that are not
        there, else at the topic's end."""
        self._client = client
        self._subscription = subscription
        self._from_earliest = from_earliest
        self._consumers: dict[str, ClientConsumer] = {}
        self._told: dict[str, MessagePosition] = {}
        """What brokers know already."""
        self._places = asyncio.Semaphore(AT_ONCE_MAX)

    async def start(self, topics: Iterable[str]) -> None:
        """Hold on to the subscriptions of these topics before it is known where reading begins. Topics that are held
        already stay as they are. Raises `AccessRefused` or `BadOption`."""
        wanted = [topic for topic in topics if self._holder(topic) is None]
        await self._all([self._open(topic, from_earliest=self._from_earliest) for topic in wanted])

    async def move(self, positions: Mapping[str, MessagePosition]) -> None:
        """Everything before these positions is read. A batch that is read in parts stays as a whole. Subscriptions
        never go back; those that are not there are made and begin at the position. Raises `AccessRefused` or
        `BadOption`."""
        moved = {topic: position for topic, position in positions.items() if self._told.get(topic) != position}
        try:
            async with asyncio.timeout(MOVE_SECONDS_MAX):
                await self._all([self._move(topic, position) for topic, position in moved.items()])
        except TimeoutError:
            logger.warning("subscription %s was not moved within %g s", self._subscription, MOVE_SECONDS_MAX)

    async def forget(self, topic: str) -> None:
        """The query does not read this topic any more. Its subscription stays where it is."""
        self._told.pop(topic, None)
        consumer = self._consumers.pop(topic, None)
        if consumer is not None:
            await consumer.close()

    async def close(self) -> None:
        """Let go; the subscriptions stay."""
        consumers, self._consumers = list(self._consumers.values()), {}
        await asyncio.gather(*(consumer.close() for consumer in consumers))

    def _holder(self, topic: str) -> ClientConsumer | None:
        consumer = self._consumers.get(topic)
        return consumer if consumer is not None and consumer.failure is None else None

    async def _open(self, topic: str, *, from_earliest: bool) -> ClientConsumer | None:
        options = ConsumerOptions(
            subscription=self._subscription,
            kind=SubscriptionType.FAILOVER,
            from_earliest=from_earliest,
            create_topic=False,
            receives=False,
        )
        try:
            async with self._places:
                consumer = await self._client.consumer(TopicName.parse(topic), options)
        except MagnetarError as error:
            self._judge(error, topic)
            return None
        self._consumers[topic] = consumer
        return consumer

    async def _move(self, topic: str, position: MessagePosition) -> None:
        # From the beginning, so that nothing behind the position is taken for read.
        consumer = self._holder(topic) or await self._open(topic, from_earliest=True)
        if consumer is None or position.ledger_id < 0:
            return
        for attempt in range(ATTEMPTS_MAX):
            try:
                async with self._places:
                    await consumer.acknowledge_up_to((position.ledger_id, position.entry_id - 1))
                self._told[topic] = position
                return
            except MagnetarError as error:
                if attempt == ATTEMPTS_MAX - 1 or is_final(error, was_open=True):
                    self._judge(error, topic)
                    return
            await asyncio.sleep(PAUSE_SECONDS * 2**attempt)

    def _judge(self, error: MagnetarError, topic: str) -> None:
        """Log it, or raise what the user has to know."""
        code = error.code if isinstance(error, PulsarError) else None
        if code in (ServerError.AUTHENTICATION_ERROR, ServerError.AUTHORIZATION_ERROR):
            raise AccessRefused(
                f"option {OPTION}: the role may not consume from {topic} with subscription {self._subscription} "
                f"({HOW_TO_SHOW}): {error}"
            )
        if code in (ServerError.SUBSCRIPTION_NOT_FOUND, ServerError.NOT_ALLOWED_ERROR):
            raise BadOption(
                f"option {OPTION}: subscription {self._subscription} of {topic} cannot be used: {error}. Create it "
                "beforehand, or take another name"
            )
        logger.warning("subscription %s of %s does not follow the query now: %s", self._subscription, topic, error)

    async def _all(self, calls: Iterable[Coroutine[Any, Any, object]]) -> None:
        """Each is given its chance before the first error of a user's is raised."""
        results = await asyncio.gather(*calls, return_exceptions=True)
        for result in results:
            if isinstance(result, SparkSourceError):
                raise result
        for result in results:
            if isinstance(result, BaseException):
                raise result
