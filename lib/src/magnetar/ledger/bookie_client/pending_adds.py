"""Adds that one bookie has not answered yet, matched by ledger and entry as version 2 of the protocol does."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Final

from magnetar.ledger.bookie_client.bookie_connection import AddCallback
from magnetar.wire.bookkeeper.codes import BookieCode

_UNREACHABLE: Final = int(BookieCode.UNREACHABLE)


class AddBatch:
    """The entries of one call."""

    __slots__ = ("done", "entry_ids", "ledger_id", "sent_at_seconds", "unanswered")

    def __init__(self, ledger_id: int, entry_ids: Sequence[int], done: AddCallback, now_seconds: float) -> None:
        self.ledger_id = ledger_id
        self.entry_ids = entry_ids
        self.done = done
        self.sent_at_seconds = now_seconds
        self.unanswered = len(entry_ids)


class PendingAdds:
    """Who waits for which entry. Bounded by what the writers may keep outstanding."""

    def __init__(self) -> None:
        self._by_ledger: dict[int, dict[int, AddBatch]] = {}
        self._batches: deque[AddBatch] = deque()

    def __bool__(self) -> bool:
        return bool(self._by_ledger)

    def overlaps(self, ledger_id: int, entry_ids: Sequence[int]) -> bool:
        """Whether one of these entries is waited for already: its answers could not be told apart."""
        waiting = self._by_ledger.get(ledger_id)
        return waiting is not None and not waiting.keys().isdisjoint(entry_ids)

    def put(self, batch: AddBatch) -> None:
        """Note that these entries are on their way."""
        waiting = self._by_ledger.get(batch.ledger_id)
        if waiting is None:
            waiting = self._by_ledger[batch.ledger_id] = {}
        waiting.update(dict.fromkeys(batch.entry_ids, batch))
        self._batches.append(batch)

    def answered(self, code: int, ledger_id: int, entry_ids: Sequence[int]) -> None:
        """Tell who waits, one call for neighbours that wait together. Unknown entries timed out before."""
        waiting = self._by_ledger.get(ledger_id)
        if waiting is None:
            return
        answered: list[int] = []
        done: AddCallback | None = None
        for entry_id in entry_ids:
            batch = waiting.pop(entry_id, None)
            if batch is None:
                continue
            batch.unanswered -= 1
            if done is not batch.done:
                if done is not None:
                    done(code, ledger_id, answered)
                    answered = []
                done = batch.done
            answered.append(entry_id)
        if not waiting:
            self._by_ledger.pop(ledger_id, None)
        batches = self._batches
        while batches and batches[0].unanswered == 0:
            batches.popleft()
        if done is not None:
            done(code, ledger_id, answered)

    def expire(self, sent_before_seconds: float) -> int:
        """Answer UNREACHABLE for all that was sent before; returns how many entries that were."""
        expired = 0
        while self._batches and self._batches[0].sent_at_seconds <= sent_before_seconds:
            batch = self._batches.popleft()
            waiting = self._by_ledger.get(batch.ledger_id, {})
            missing = [entry_id for entry_id in batch.entry_ids if waiting.get(entry_id) is batch]
            for entry_id in missing:
                del waiting[entry_id]
            if not waiting:
                self._by_ledger.pop(batch.ledger_id, None)
            if missing:
                expired += len(missing)
                batch.done(_UNREACHABLE, batch.ledger_id, missing)
        return expired

    def fail_all(self) -> None:
        """Answer UNREACHABLE for everything."""
        self.expire(float("inf"))
