"""What producers and consumers have in common: they stay with whichever broker serves their topic."""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from dataclasses import dataclass
from random import Random
from typing import Any, Final

from magnetar.client.addresses import BrokerAddress, parse_service_url
from magnetar.client.connection import BrokerConnection
from magnetar.client.errors import ClientClosed, ConnectionFailed, TimedOut, is_final
from magnetar.client.lookup import LookupService
from magnetar.client.pauses import Pauses
from magnetar.client.pool import ConnectionPool
from magnetar.client.settings import ClientSettings
from magnetar.core.clock import Clock
from magnetar.core.errors import MagnetarError, SettingError
from magnetar.core.topic_name import TopicName

logger: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ClientParts:
    """What a client lends to its producers and consumers."""

    pool: ConnectionPool
    lookup: LookupService
    settings: ClientSettings
    clock: Clock
    rng: Random
    pauses: Pauses


class TopicEnd(ABC):
    """One producer or consumer: attached to a broker, or on its way to one, or over for good."""

    def __init__(self, parts: ClientParts, topic: TopicName) -> None:
        self.topic = topic
        self.failure: MagnetarError | None = None
        """Why it is over: `ClientClosed`, or what no further attempt would change."""
        self._parts = parts
        self._connection: BrokerConnection | None = None
        self._id = 0
        self._attached = asyncio.Event()
        """Set while attached, and for good once it is over: who waits looks at `failure`."""
        self._lost_meanwhile = False
        self._assigned_url = ""
        self._attached_at_seconds = 0.0
        self._backoff = parts.pauses.backoff()
        self._task: asyncio.Task[None] | None = None
        self._turn: asyncio.Future[Any] | None = None
        """Done once a producer that has to wait for others may begin."""
        self._open_seconds_max: float | None = parts.settings.operation_timeout_seconds

    # --- what each kind does

    @abstractmethod
    async def _attach(self, connection: BrokerConnection) -> None:
        """Open it on this connection; sets `_id`. Raises what `BrokerConnection.request` raises."""

    @abstractmethod
    def _has_attached(self, connection: BrokerConnection) -> None:
        """It stands: send what waits."""

    @abstractmethod
    def _has_ended(self, error: MagnetarError) -> None:
        """It is over: tell whoever waits."""

    @abstractmethod
    async def _take_leave(self, connection: BrokerConnection) -> None:
        """Tell the broker that it is closed."""

    def _is_final(self, error: MagnetarError, *, was_open: bool) -> bool:
        """Whether another attempt to attach is of no use."""
        return is_final(error, was_open=was_open)

    # --- life

    async def open(self) -> None:
        """Attach for the first time. Raises `PulsarError` when the broker refuses for good, else `Unavailable`."""
        failures: list[MagnetarError] = []
        try:
            async with asyncio.timeout(self._open_seconds_max):
                await self._attach_until_it_works(failures, was_open=False)
        except TimeoutError:
            last = failures[-1] if failures else None
            raise TimedOut(f"{self.topic} cannot be opened within {self._open_seconds_max:g} s: {last}") from last

    async def close(self) -> None:
        """Leave the topic. Nothing that the other side does makes this fail; twice is no error."""
        if self.failure is None:
            self._end(ClientClosed(f"{self.topic}: closed by its user"))
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        connection, self._connection = self._connection, None
        if connection is not None and not connection.closed:
            try:
                await self._take_leave(connection)
            except MagnetarError as error:
                logger.debug("%s: the broker was not told of the end: %s", self.topic, error)
            connection.detach(self._id)

    def detached(self, assigned_url: str) -> None:
        """From the connection: it is lost, or the broker serves the topic no more."""
        self._assigned_url = assigned_url
        if self._connection is None:
            self._lost_meanwhile = True
            self._give_up_turn()
            return
        self._connection = None
        self._attached.clear()
        if self.failure is None:
            self._task = asyncio.get_running_loop().create_task(self._come_back(), name=f"reattach {self.topic}")

    def moved(self, url: str, *, tls: bool) -> None:
        """From the connection: it goes on in another cluster."""
        self._parts.lookup.moved(self.topic, url, tls=tls)

    def _give_up_turn(self) -> None:
        """The broker owes no answer to who waits for its turn on a topic that it has let go of."""
        if self._turn is not None and not self._turn.done():
            self._turn.set_exception(ConnectionFailed(f"{self.topic} was let go of before it was our turn"))

    async def _come_back(self) -> None:
        settings = self._parts.settings
        if self._parts.clock.monotonic_seconds() - self._attached_at_seconds > settings.backoff_seconds_max:
            self._backoff.reset()
        await self._parts.pauses.wait(self._backoff)
        try:
            await self._attach_until_it_works([], was_open=True)
        except MagnetarError as error:
            logger.warning("%s is given up: %s", self.topic, error)
            self._end(error)

    async def _attach_until_it_works(self, failures: list[MagnetarError], *, was_open: bool) -> None:
        while True:
            try:
                await self._attach_once()
            except MagnetarError as error:
                if self._is_final(error, was_open=was_open):
                    raise
                # Once for each outage: a broker that is away may have thousands of these.
                level = logging.DEBUG if failures else logging.WARNING
                logger.log(level, "%s: other attempts follow: %s", self.topic, error)
                failures[:] = [error]
            else:
                if failures:
                    logger.info("%s is attached again", self.topic)
                return
            await self._parts.pauses.wait(self._backoff)

    async def _attach_once(self) -> None:
        connection = await self._parts.pool.get(await self._address())
        self._lost_meanwhile = False
        await self._attach(connection)
        if self._lost_meanwhile:
            raise ConnectionFailed(f"{self.topic} was closed by the broker as soon as it was open")
        self._connection = connection
        self._attached_at_seconds = self._parts.clock.monotonic_seconds()
        self._attached.set()
        self._has_attached(connection)

    async def _address(self) -> BrokerAddress:
        assigned, self._assigned_url = self._assigned_url, ""
        if assigned:
            try:
                return parse_service_url(assigned)[0]
            except SettingError as error:
                logger.warning("%s: the broker names a strange one to go to: %s", self.topic, error)
        return await self._parts.lookup.broker_of(self.topic)

    async def _wait_until_attached(self) -> BrokerConnection:
        """The connection, once there is one. Raises why it is over, or `TimedOut`."""
        while True:
            self._check()
            if self._connection is not None:
                return self._connection
            try:
                async with asyncio.timeout(self._parts.settings.operation_timeout_seconds):
                    await self._attached.wait()
            except TimeoutError:
                raise TimedOut(f"{self.topic}: no broker serves it") from None

    def _check(self) -> None:
        """Raises why it is over, if it is."""
        if self.failure is not None:
            raise self.failure.with_traceback(None)

    def _end(self, error: MagnetarError) -> None:
        if self.failure is None:
            self.failure = error
            self._attached.set()
            self._has_ended(error)
