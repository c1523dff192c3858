from __future__ import annotations

from collections.abc import Sequence

from magnetar.ledger.bookie_client.pending_adds import AddBatch, PendingAdds
from magnetar.wire.bookkeeper.codes import BookieCode


class Heard:
    def __init__(self) -> None:
        self.calls: list[tuple[int, int, list[int]]] = []

    def __call__(self, code: int, ledger_id: int, entry_ids: Sequence[int]) -> None:
        self.calls.append((code, ledger_id, list(entry_ids)))


def test_answers_are_told_in_one_call_per_waiter() -> None:
    pending, first, second = PendingAdds(), Heard(), Heard()
    pending.put(AddBatch(1, range(3), first, 0.0))
    pending.put(AddBatch(1, range(3, 5), first, 0.0))
    pending.put(AddBatch(1, [5, 6], second, 0.0))
    pending.answered(0, 1, range(7))
    assert first.calls == [(0, 1, [0, 1, 2, 3, 4])]
    assert second.calls == [(0, 1, [5, 6])]
    assert not pending


def test_unknown_entries_are_ignored() -> None:
    pending, heard = PendingAdds(), Heard()
    pending.answered(0, 1, [1])
    pending.put(AddBatch(1, [1], heard, 0.0))
    pending.answered(0, 2, [1])
    pending.answered(0, 1, [2])
    assert heard.calls == []
    pending.answered(0, 1, [1, 1])
    assert heard.calls == [(0, 1, [1])]


def test_only_the_old_expire() -> None:
    pending, heard = PendingAdds(), Heard()
    pending.put(AddBatch(1, range(3), heard, 1.0))
    pending.put(AddBatch(1, [3], heard, 2.0))
    pending.answered(0, 1, [1])
    assert pending.expire(1.5) == 2
    assert heard.calls == [(0, 1, [1]), (BookieCode.UNREACHABLE, 1, [0, 2])]
    pending.answered(0, 1, [0])
    pending.fail_all()
    assert heard.calls[2:] == [(BookieCode.UNREACHABLE, 1, [3])]
    assert not pending


def test_overlaps() -> None:
    pending = PendingAdds()
    pending.put(AddBatch(1, range(3), Heard(), 0.0))
    assert pending.overlaps(1, [2, 9])
    assert not pending.overlaps(1, [3])
    assert not pending.overlaps(2, [2])
