"""Records of a log that become one entry, as Apache's `TxnLogBufferedWriter` gathers them. Pure but for its timer.

A record waits for others until there are so many, until they have so many bytes, or for so long. One that alone has so
many bytes is an entry of its own, in the form of a single record; before it goes what waits. An entry never has more:
Apache's may have nearly twice as much, which bookies need not take.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from magnetar.broker.settings.transactions import TransactionSettings
from magnetar.core.clock import CallLater, TimerHandle

RecordT = TypeVar("RecordT")


@dataclass(slots=True, kw_only=True)
class BatchLimits:
    """When records that wait become an entry; shared by all logs of a kind."""

    enabled: bool
    """False: each record is an entry of its own, at once. May change at any time."""
    records_max: int
    bytes_max: int
    delay_ms: int


def log_limits(settings: TransactionSettings) -> BatchLimits:
    """How coordinators gather the records of their logs."""
    return BatchLimits(
        enabled=settings.log_batched,
        records_max=settings.log_batch_records_max,
        bytes_max=settings.log_batch_bytes_max,
        delay_ms=settings.log_batch_delay_ms,
    )


def pending_ack_limits(settings: TransactionSettings) -> BatchLimits:
    """How subscriptions gather the records of their pending acknowledgements."""
    return BatchLimits(
        enabled=settings.pending_ack_batched,
        records_max=settings.pending_ack_batch_records_max,
        bytes_max=settings.pending_ack_batch_bytes_max,
        delay_ms=settings.pending_ack_batch_delay_ms,
    )


class BatchedWrites(Generic[RecordT]):
    """The records of one log that wait: at most what the limits say, each of them with whatever its owner adds."""

    __slots__ = ("_call_later", "_limits", "_push", "_size_bytes", "_timer", "_waiting")

    def __init__(self, limits: BatchLimits, call_later: CallLater, push: Callable[[list[RecordT], bool], None]) -> None:
        """`push` takes the records of an entry, in order, and whether it has the form of several records, perhaps
        around a single one."""
        self._limits = limits
        self._call_later = call_later
        self._push = push
        self._waiting: list[RecordT] = []
        self._size_bytes = 0
        self._timer: TimerHandle | None = None

    def add(self, record: RecordT, size_bytes: int) -> None:
        """One more record. The order of the calls is that of the log."""
        limits = self._limits
        if not limits.enabled or size_bytes >= limits.bytes_max:
            self.flush()
            self._push([record], False)
            return
        if self._size_bytes + size_bytes > limits.bytes_max:
            self.flush()
        if not self._waiting:
            self._timer = self._call_later(limits.delay_ms / 1_000, self.flush)
        self._waiting.append(record)
        self._size_bytes += size_bytes
        if len(self._waiting) >= limits.records_max or self._size_bytes >= limits.bytes_max:
            self.flush()

    def flush(self) -> None:
        """Wait no longer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._waiting:
            waiting, self._waiting, self._size_bytes = self._waiting, [], 0
            self._push(waiting, True)
