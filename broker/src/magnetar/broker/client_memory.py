"""The memory that open producers, consumers and watchers take, counted and bounded: their names, metadata and
properties stay as long as they are open, and one connection may open any number."""

from __future__ import annotations

from collections.abc import Iterable
from sys import getsizeof
from typing import Final

from magnetar.core.limits import MIB
from magnetar.wire.pulsar.errors import PulsarError, ServerError
from magnetar.wire.pulsar.generated.pulsar_api_pb2 import (
    CommandProducer,
    CommandSubscribe,
    CommandWatchTopicList,
    KeyValue,
)

CLIENT_MEMORY_BYTES_MAX: Final = 256 * MIB
"""For one broker: an eighth of the memory that its pods have by default. With names of the usual length it is as much
as three hundred thousand producers and consumers take."""

CONNECTION_MEMORY_BYTES_MAX: Final = CLIENT_MEMORY_BYTES_MAX // 4
"""For one connection: a mistaken client does not lock the others out."""

CONNECTION_RESERVATIONS_MAX: Final = 50_000
"""Producers, consumers and watchers of one connection. Clients have one connection for all their topics of a broker,
and some have ten thousand of these."""

RESERVATION_BYTES: Final = 512
"""Bytes that each producer, consumer or watcher costs beside its texts."""

PAIR_BYTES: Final = 100
"""Bytes that a pair of properties costs beside its texts."""

HASH_RANGE_BYTES: Final = 200
"""A wanted range, kept by its consumer and by the subscription."""

WATCHER_BYTES: Final = 20_000
"""A watcher with its pattern, as measured: RE2 keeps a program for each."""


class ClientMemory:
    """What all connections of one broker have reserved, in bytes."""

    __slots__ = ("bytes_max", "held_bytes")

    def __init__(self, bytes_max: int = CLIENT_MEMORY_BYTES_MAX) -> None:
        self.bytes_max = bytes_max
        self.held_bytes = 0


class MemoryReservation:
    """The bytes of one producer, consumer or watcher. They count until it is released, or its connection is gone."""

    __slots__ = ("_connection", "_size_bytes")

    def __init__(self, connection: ConnectionMemory, size_bytes: int) -> None:
        self._connection: ConnectionMemory | None = connection
        self._size_bytes = size_bytes

    def release(self) -> None:
        """It is kept no more; again is no error."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.give_back(self._size_bytes)


class ConnectionMemory:
    """What one connection has reserved, in number and bytes."""

    __slots__ = ("_closed", "_count", "_held_bytes", "_in_all")

    def __init__(self, in_all: ClientMemory) -> None:
        self._in_all = in_all
        self._held_bytes = 0
        self._count = 0
        self._closed = False

    def reserve(self, size_bytes: int) -> MemoryReservation:
        """Reserve bytes for one more.

        Raises PulsarError: NOT_ALLOWED_ERROR when the connection has too many or too large ones, TOO_MANY_REQUESTS when
        all connections together have; that may pass. For a connection that has gone
        meanwhile nothing counts: nobody would take it back."""
        if self._closed:
            return MemoryReservation(self, size_bytes)
        if self._count >= CONNECTION_RESERVATIONS_MAX:
            raise PulsarError(
                ServerError.NOT_ALLOWED_ERROR,
                f"this connection has {self._count} producers, consumers and watchers already; "
                f"at most {CONNECTION_RESERVATIONS_MAX} are taken",
            )
        if self._held_bytes + size_bytes > CONNECTION_MEMORY_BYTES_MAX:
            raise PulsarError(
                ServerError.NOT_ALLOWED_ERROR,
                f"names and properties of this connection's producers and consumers have {self._held_bytes} bytes "
                f"already; at most {CONNECTION_MEMORY_BYTES_MAX} are kept",
            )
        in_all = self._in_all
        if in_all.held_bytes + size_bytes > in_all.bytes_max:
            raise PulsarError(
                ServerError.TOO_MANY_REQUESTS,
                f"names and properties of this broker's producers and consumers have {in_all.held_bytes} bytes "
                f"already; at most {in_all.bytes_max} are kept",
            )
        self._count += 1
        self._held_bytes += size_bytes
        in_all.held_bytes += size_bytes
        return MemoryReservation(self, size_bytes)

    def give_back(self, size_bytes: int) -> None:
        """One of this size is gone."""
        if not self._closed:
            self._count -= 1
            self._held_bytes -= size_bytes
            self._in_all.held_bytes -= size_bytes

    def close(self) -> None:
        """The connection is gone, and with it all that it reserved."""
        if not self._closed:
            self._closed = True
            self._in_all.held_bytes -= self._held_bytes


def producer_bytes(request: CommandProducer) -> int:
    """What is kept of a PRODUCER."""
    names = getsizeof(request.topic) + getsizeof(request.producer_name)
    return RESERVATION_BYTES + names + _pairs_bytes(request.metadata)


def consumer_bytes(request: CommandSubscribe) -> int:
    """What is kept of a SUBSCRIBE."""
    names = getsizeof(request.topic) + getsizeof(request.subscription) + getsizeof(request.consumer_name)
    ranges = HASH_RANGE_BYTES * len(request.keySharedMeta.hashRanges)
    pairs = _pairs_bytes(request.metadata) + _pairs_bytes(request.subscription_properties)
    return RESERVATION_BYTES + names + ranges + pairs


def watcher_bytes(request: CommandWatchTopicList) -> int:
    """What is kept of a WATCH_TOPIC_LIST, the list apart."""
    return WATCHER_BYTES + getsizeof(request.namespace)


def _pairs_bytes(pairs: Iterable[KeyValue]) -> int:
    return sum(PAIR_BYTES + getsizeof(pair.key) + getsizeof(pair.value) for pair in pairs)
