"""Markers of the remote cluster that a replicator comes to are read in turns."""

from __future__ import annotations

from typing import Any

import pytest
from magnetar.broker.replication.outgoing import Outgoing
from magnetar.broker.replication.replicator import TURN_MARKERS_BYTES_MAX, Replicator
from magnetar.broker.subscriptions.entry_reader import SubscriptionRuntime
from magnetar.core.ids import Position

from broker.tests.subscription_stage import LEDGER, MemoryCursor, Reads, Timers, stored_message

MARKERS = 40


class Remote:
    """It takes everything, and is its own producer."""

    unanswered = unanswered_bytes = 0
    oldest = None

    def __init__(self) -> None:
        self.sent: list[Position] = []

    async def producer(self, receiver: Any) -> Remote:
        assert receiver
        return self

    async def open(self) -> None:
        pass

    async def close(self) -> None:
        pass

    def send(self, entries: list[Any]) -> None:
        self.sent += [one.position for one in entries]


@pytest.mark.parametrize("cached", [True, False], ids=["cached", "read"])
def test_markers_that_wait_at_once_are_read_in_turns_and_none_is_left_out(*, cached: bool) -> None:
    timers, reads, cursor, remote = Timers(), Reads(), MemoryCursor(), Remote()
    size_bytes = TURN_MARKERS_BYTES_MAX // 4
    marker = stored_message(b"m" * size_bytes, marker_type=13, replicated_from="west")
    for _ in range(MARKERS):
        cursor.append(marker)
        cursor.append(stored_message())
    cursor.cached_from = 0 if cached else 2 * MARKERS
    any_cursor: Any = cursor
    any_remote: Any = remote
    runtime = SubscriptionRuntime(timers, reads.spawn, timers.call_later)
    replicator = Replicator("r", any_cursor, Outgoing("east", "west"), any_remote, runtime, lambda: None, lambda: 1_000)
    read: list[int] = []
    replicator.on_marker = lambda position, data: read.append(position[1])
    replicator.start()
    turns = []
    while len(read) < MARKERS:
        before = len(read)
        reads.finish()
        for timer in timers.due():
            timer.callback()
        turns.append(len(read) - before)
        assert turns[-1]
    assert max(turns) * size_bytes <= 2 * (TURN_MARKERS_BYTES_MAX + size_bytes)
    assert read == list(range(0, 2 * MARKERS, 2))
    reads.finish()
    for timer in timers.due():
        timer.callback()
    assert remote.sent == [(LEDGER, entry_id) for entry_id in range(1, 2 * MARKERS, 2)]
    assert sorted(cursor.acknowledged) == read
    replicator.terminate()
    reads.finish()
