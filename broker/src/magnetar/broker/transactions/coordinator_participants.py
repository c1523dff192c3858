"""Tells topics and subscriptions how transactions end: those that this broker has loaded directly, all others at the
brokers that serve them, ours or Apache's.

There by the broker's own client, with its credentials: brokers that check rights take this from super users alone.
Pulsar: `TransactionBufferHandlerImpl`, which asks by the network wherever a topic is.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import Any, Final, Protocol

from magnetar.broker.server_errors import server_error_of
from magnetar.broker.settings.transactions import TransactionSettings
from magnetar.broker.transactions.api import EndedTransaction, Participants
from magnetar.broker.transactions.buffers.buffer import TransactionBuffer
from magnetar.broker.transactions.pending_topic import HoldingTopic, end_on_subscription
from magnetar.client.client import PulsarClient
from magnetar.client.errors import TimedOut
from magnetar.core.errors import MagnetarError
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


class EndingTopic(HoldingTopic, Protocol):
    """A topic that this broker serves."""

    @property
    def buffer(self) -> TransactionBuffer | None: ...


class NearParticipants:
    """A `Participants` that spares the network where this broker has loaded the topic: a lookup and a request for each
    topic were a third of what a transaction costs."""

    def __init__(
        self,
        loaded: Callable[[str], EndingTopic | None],
        others: Participants,
        settings: TransactionSettings,
        close_after: Callable[[asyncio.Task[None]], None],
    ) -> None:
        """`loaded` gives the topic of this name, if this broker has loaded it. `others` tells all others. The broker
        only closes after a task that `close_after` is given."""
        self._loaded = loaded
        self._others = others
        self._seconds_max = settings.request_timeout_ms / 1000
        self._close_after = close_after
        self._telling: dict[object, asyncio.Task[None]] = {}
        """The ends under way, one for each participant of a transaction. Those that took too long are here, too: the
        next attempt waits for the same one."""

    async def end_on_partition(self, ended: EndedTransaction, topic: str) -> None:
        """Returns when the topic has heard; also when it is gone."""
        loaded = self._loaded(topic)
        if loaded is None or loaded.buffer is None:
            await self._others.end_on_partition(ended, topic)
            return
        end = partial(loaded.buffer.end, ended.id, commit=ended.commit, low_water_mark=ended.low_water_mark)
        await self._tell((ended.id, ended.commit, loaded), topic, end)

    async def end_on_subscription(self, ended: EndedTransaction, topic: str, subscription: str) -> None:
        """Returns when the subscription has heard; also when it is gone."""
        loaded = self._loaded(topic)
        if loaded is None or loaded.pending_acks is None:
            await self._others.end_on_subscription(ended, topic, subscription)
            return
        commit, mark = ended.commit, ended.low_water_mark
        end = partial(end_on_subscription, loaded, subscription, ended.id, commit=commit, low_water_mark=mark)
        await self._tell((ended.id, commit, loaded, subscription), topic, end)

    async def _tell(self, key: object, topic: str, end: Callable[[], Coroutine[Any, Any, None]]) -> None:
        telling = self._telling.get(key)
        if telling is None:
            # A task: whoever waits may give up, and what is cut off between two writes would do harm.
            telling = self._telling[key] = asyncio.get_running_loop().create_task(end())
            self._close_after(telling)
            telling.add_done_callback(partial(self._told, key))
        await asyncio.wait((telling,), timeout=self._seconds_max)
        if not telling.done():
            raise TimedOut(f"{topic} is not told within {self._seconds_max} s")
        # All as the network would tell it: the code decides when to try again, and no topic keeps others from hearing.
        if telling.cancelled():
            raise PulsarError(ServerError.UNKNOWN_ERROR, f"{topic} is not told: a mistake of ours, which the log tells")
        error = telling.exception()
        if isinstance(error, PulsarError):
            raise error
        if isinstance(error, MagnetarError):
            raise PulsarError(server_error_of(error), str(error)) from error
        if error is not None:
            logger.error("%s is not told how a transaction ends", topic, exc_info=error)
            raise PulsarError(ServerError.UNKNOWN_ERROR, f"{topic} is not told: {error!r}") from error

    def _told(self, key: object, telling: asyncio.Task[None]) -> None:
        del self._telling[key]
        if not telling.cancelled():
            telling.exception()  # Looked at: nobody may wait for it.
