"""Publishes that wait while a topic's first snapshot is written: they are appended after it, in order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from magnetar.broker.subscriptions.entry_reader import Spawn
from magnetar.broker.transactions.buffers.buffer import TransactionBuffer
from magnetar.core.errors import MagnetarError

Batch = TypeVar("Batch")


class HeldAppends(Generic[Batch]):
    """The batches of one topic; bounded by the bytes that connections may have unanswered.

    Those without transactions wait, too: a producer's receipts come in the order of its SENDs."""

    __slots__ = ("_append", "_buffer", "_drop", "_failed", "_held", "_spawn")

    def __init__(
        self,
        buffer: TransactionBuffer,
        spawn: Spawn,
        append: Callable[[Batch], None],
        drop: Callable[[Batch, MagnetarError], None],
        failed: Callable[[MagnetarError], None],
    ) -> None:
        """A batch is appended or dropped; then `failed` hears once why."""
        self._buffer = buffer
        self._spawn = spawn
        self._append = append
        self._drop = drop
        self._failed = failed
        self._held: list[Batch] | None = None

    @property
    def holding(self) -> bool:
        """Whether everything has to wait."""
        return self._held is not None

    def take(self, batch: Batch, *, transactional: bool) -> bool:
        """True when the batch has to wait; false: it is the caller's to append."""
        if transactional:
            self._buffer.unstored += 1
        if self._held is not None:
            self._held.append(batch)
            return True
        if not transactional or not self._buffer.lacks_snapshot:
            return False
        self._held = [batch]
        self._spawn(self._begin())
        return True

    def drop_waiting(self, error: MagnetarError) -> None:
        """What was appended before them is not stored, so they may not be either: clients send all again, in order.
        What comes from now on waits as they did."""
        if self._held:
            held, self._held = self._held, []
            for batch in held:
                self._drop(batch, error)

    def drop_all(self, error: MagnetarError) -> None:
        """Nothing of it is stored: clients send again what waits."""
        held, self._held = self._held or [], None
        for batch in held:
            self._drop(batch, error)

    def close(self, error: MagnetarError) -> None:
        """The topic is let go of, and its buffer with it."""
        self._buffer.close()
        self.drop_all(error)

    async def _begin(self) -> None:
        try:
            await self._buffer.first_snapshot()
        except MagnetarError as error:
            self._give_up(error)
            return
        except BaseException:
            # Nothing may wait for ever, whatever went wrong.
            self._give_up(MagnetarError("the first snapshot was cut short"))
            raise
        held, self._held = self._held or [], None
        for batch in held:
            self._append(batch)

    def _give_up(self, error: MagnetarError) -> None:
        self.drop_all(error)
        self._failed(error)
