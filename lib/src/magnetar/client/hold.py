"""A durable subscription that is held and not consumed: who reads the topic elsewhere keeps its position with the
broker that writes it, and nobody else can consume it there."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from magnetar.client.connection import BrokerConnection
from magnetar.client.consumer import ClientConsumer, ConsumerOptions
from magnetar.client.errors import ConnectionFailed, TimedOut
from magnetar.client.message import MessageId
from magnetar.client.topic_end import ClientParts
from magnetar.core.errors import MagnetarError
from magnetar.core.ids import Position, unsigned64
from magnetar.core.topic_name import TopicName
from magnetar.wire.pulsar import requests
from magnetar.wire.pulsar.errors import PulsarError, ServerError
from magnetar.wire.pulsar.generated.pulsar_api_pb2 import MessageIdData


class HoldKeeper(Protocol):
    """Who holds a subscription."""

    def held_again(self, *, let_go: bool) -> None:
        """The hold stands again. `let_go`: the broker had closed it in good order, as for a move of the topic or a
        change of the position, and is there until now; else it may have died."""
        ...

    def hold_ended(self, error: MagnetarError) -> None:
        """It is over for good: another one has the subscription, it is gone, or its user closed it."""
        ...


class PartOfBatch(NamedTuple):
    """An entry of which some messages are acknowledged."""

    position: Position
    remaining: Sequence[int]
    """Signed words: bit 1 = still unacknowledged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldSubscription:
    """What is to be held."""

    options: ConsumerOptions
    """Of the consumer; it must not receive."""
    keeper: HoldKeeper
    is_there: Callable[[], Awaitable[bool]]
    """Whether the subscription still exists. Asked before the hold is renewed, as that would make it anew."""


class SubscriptionHold(ClientConsumer):
    """An Exclusive consumer that asks for no messages. Opened with `PulsarClient.attach`.

    It comes back by itself wherever the topic goes. Acknowledgements and seeks do not wait for that, as the next broker
    may have another position: they fail while there is none. They also fail as soon as their broker lets go of the
    topic, since some brokers answer nothing then."""

    def __init__(self, parts: ClientParts, topic: TopicName, held: HeldSubscription) -> None:
        assert not held.options.receives
        super().__init__(parts, topic, held.options)
        self._held = held
        self._was_held = False
        self._let_go_by: BrokerConnection | None = None
        # As many as its keeper has in flight.
        self._asked: set[asyncio.Future[Any]] = set()

    async def wait_until_held(self) -> None:
        """Until it stands. Raises why it is over, or `TimedOut`."""
        await self._wait_until_attached()

    async def acknowledge_up_to(self, position: tuple[int, int]) -> None:
        """Everything up to and with this entry is done; otherwise as `acknowledge_each`."""
        ids = [MessageId(*position).to_wire()]
        await self._ask(lambda request_id: requests.ack(self._id, ids, cumulative=True, request_id=request_id))

    async def acknowledge_each(self, whole: Sequence[Position], parts: Sequence[PartOfBatch] = ()) -> None:
        """Entries beyond the mark are done, and parts of others; returns when the broker says so.

        Raises `PulsarError` when the broker refuses, else `Unavailable`: then it is open what it took."""
        ids = [MessageIdData(ledgerId=unsigned64(each[0]), entryId=unsigned64(each[1])) for each in whole]
        for position, remaining in parts:
            ledger_id, entry_id = position
            ids.append(
                MessageIdData(ledgerId=unsigned64(ledger_id), entryId=unsigned64(entry_id), ack_set=list(remaining))
            )
        await self._ask(lambda request_id: requests.ack(self._id, ids, cumulative=False, request_id=request_id))

    async def seek(self, position: Position) -> None:
        """The subscription goes on with this entry, and nothing from it on is acknowledged; returns when the broker
        says so. It lets go of the consumer meanwhile. Raises as `acknowledge_each`."""
        connection = self._attached_to()
        there = MessageId(*position).to_wire()
        await connection.request(lambda request_id: requests.seek(request_id, self._id, there))

    def detached(self, assigned_url: str) -> None:
        """From the connection."""
        connection = self._connection
        self._let_go_by = connection
        super().detached(assigned_url)
        for answer in self._asked:
            if not answer.done():
                answer.set_exception(ConnectionFailed(f"{self.topic}: its broker let go of it"))

    def _attached_to(self) -> BrokerConnection:
        self._check()
        if self._connection is None:
            raise ConnectionFailed(f"{self.topic}: its broker let go of it")
        return self._connection

    async def _ask(self, build: Callable[[int], bytes]) -> Any:
        connection = self._attached_to()
        request_id, answer = connection.start_request(build)
        self._asked.add(answer)
        try:
            async with asyncio.timeout(self._parts.settings.operation_timeout_seconds):
                return await answer
        except TimeoutError:
            raise TimedOut(f"{self.topic}: {connection.address.host_and_port} does not answer") from None
        finally:
            self._asked.discard(answer)
            connection.forget_request(request_id)

    async def _attach(self, connection: BrokerConnection) -> None:
        if self._was_held and not await self._held.is_there():
            name = self._held.options.subscription
            raise PulsarError(ServerError.SUBSCRIPTION_NOT_FOUND, f"Subscription {name} is not there any more")
        await super()._attach(connection)

    def _has_attached(self, connection: BrokerConnection) -> None:
        super()._has_attached(connection)
        if self._was_held:
            former = self._let_go_by
            self._held.keeper.held_again(let_go=former is not None and not former.closed)
        self._was_held = True

    def _is_final(self, error: MagnetarError, *, was_open: bool) -> bool:
        # Brokers make sure that the former consumer lives before they say so: it is another one's.
        if isinstance(error, PulsarError) and error.code == ServerError.CONSUMER_BUSY:
            return True
        return super()._is_final(error, was_open=was_open)

    def _has_ended(self, error: MagnetarError) -> None:
        super()._has_ended(error)
        self._held.keeper.hold_ended(error)
