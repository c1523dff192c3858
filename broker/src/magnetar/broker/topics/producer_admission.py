"""Lets producers into a topic, one after another where they have to wait, and tells them to leave.

`Producers` decides; here is what the decisions cause: epochs are stored, names held by dead connections are freed,
clients that wait hear that it is their turn.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any, Final

from magnetar.broker.topics.producer import Producer
from magnetar.broker.topics.producers import Admission, Producers
from magnetar.core.errors import MagnetarError
from magnetar.core.ids import signed64, unsigned64
from magnetar.managed.managed_ledger import ManagedLedger
from magnetar.wire.pulsar.errors import PulsarError, ServerError

DRAIN_SECONDS_MAX: Final = 5.0
"""How long a topic that closes waits for what it has taken to be stored; clients send again what has no receipt."""

TOPIC_EPOCH_PROPERTY: Final = "pulsar.topic.epoch"
"""Managed-ledger property of the exclusive producers' epoch (Pulsar `PersistentTopic.TOPIC_EPOCH_PROPERTY_NAME`)."""

EPOCH_DIGITS_MAX: Final = 19
"""Those of 2^63, the bound of what a client may ask for."""

logger: Final = logging.getLogger(__name__)

Admitted = Callable[[PulsarError | None], None]
"""Called once when a producer's waiting is over: None, or why it ended."""


class ProducerAdmission:
    """The door of one topic."""

    def __init__(
        self, spawn: Callable[[Coroutine[Any, Any, None]], object], ledger: ManagedLedger | None = None
    ) -> None:
        """`ledger` keeps the epoch; without one it lives as long as the topic does."""
        self.producers = Producers(None if ledger is None else _epoch_of(ledger))
        self._ledger = ledger
        self._spawn = spawn
        self._waiting: dict[Producer, Admitted] = {}

    async def add(self, producer: Producer, admitted: Admitted) -> bool:
        """Let a producer in. True when it has to wait: `admitted` is called later. Raises `PulsarError`."""
        admission = await self._admit(producer)
        for leaving in admission.fenced_out:
            waiting = self._waiting.pop(leaving, None)
            if waiting is not None:
                waiting(PulsarError(ServerError.PRODUCER_FENCED, f"Fenced out by {producer.name}"))
            else:
                leaving.disconnect()
        if admission.waits:
            self._waiting[producer] = admitted
        elif admission.epoch_changed:
            await self._store_epoch()
        return admission.waits

    async def _admit(self, producer: Producer) -> Admission:
        try:
            return self.producers.admit(producer)
        except PulsarError:
            holder = self.producers.by_name.get(producer.name)
            if holder is None or holder.connection is producer.connection or await holder.connection.alive():
                raise
        # The client lost its old connection and came back before we noticed.
        self.remove(holder)
        return self.producers.admit(producer)

    def remove(self, producer: Producer) -> None:
        """The producer is gone; the next one that waits may come in."""
        self._waiting.pop(producer, None)
        admitted, outdated = self.producers.remove(producer)
        for late in outdated:
            self._tell(late, PulsarError(ServerError.PRODUCER_FENCED, "Topic epoch has moved"))
        for next_one in admitted:
            self._spawn(self._admit_waiting(next_one))

    def disconnect(self) -> None:
        """Have every client open its producer again."""
        for producer in list(self.producers.by_name.values()):
            producer.disconnect()
        waiting, self._waiting = self._waiting, {}
        for admitted in waiting.values():
            admitted(PulsarError(ServerError.SERVICE_NOT_READY, "Topic is closing"))
        self.producers = Producers(self.producers.topic_epoch)

    async def drain(self) -> None:
        """Wait, a while, until everything that producers were taken off is stored and receipts are sent."""
        pending = [producer for producer in self.producers.by_name.values() if producer.batches_pending]
        if not pending:
            return
        done = asyncio.get_running_loop().create_future()
        left = len(pending)

        def drained() -> None:
            nonlocal left
            left -= 1
            if left == 0 and not done.done():
                done.set_result(None)

        for producer in pending:
            producer.when_drained(drained)
        await asyncio.wait([done], timeout=DRAIN_SECONDS_MAX)

    async def _store_epoch(self) -> None:
        assert self.producers.topic_epoch is not None
        if self._ledger is not None:
            await self._ledger.set_property(TOPIC_EPOCH_PROPERTY, str(self.producers.topic_epoch))

    def _tell(self, producer: Producer, error: PulsarError | None) -> None:
        admitted = self._waiting.pop(producer, None)
        if admitted is not None:
            admitted(error)

    async def _admit_waiting(self, producer: Producer) -> None:
        error: PulsarError | None = None
        try:
            await self._store_epoch()
        except MagnetarError as problem:
            error = PulsarError(ServerError.PERSISTENCE_ERROR, f"The topic epoch was not stored: {problem}")
        self._tell(producer, error)


def _epoch_of(ledger: ManagedLedger) -> int | None:
    """The epoch that is stored; None: there is none. Clients may note anything under that name, and a topic that cannot
    be loaded for it could not be rid of it."""
    text = ledger.properties.get(TOPIC_EPOCH_PROPERTY)
    if text is None:
        return None
    digits = text.removeprefix("-")
    if digits.isascii() and digits.isdecimal() and len(digits) <= EPOCH_DIGITS_MAX:
        epoch = int(text)
        if signed64(unsigned64(epoch)) == epoch:
            return epoch
    logger.warning("%s: what is stored as the topic's epoch is none: %.100r", ledger.name, text)
    return None
