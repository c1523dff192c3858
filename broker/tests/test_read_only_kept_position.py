"""When an owner is told of a position, and what follows from its answers. In virtual time, with an owner in memory."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import pairwise

import pytest
from magnetar.broker.read_only.keep_settings import KeepSettings
from magnetar.broker.read_only.kept_position import (
    COMMANDS_AT_ONCE,
    KEPT_TRANSITIONS,
    KeepingParts,
    KeptPosition,
    KeptState,
    PositionMoved,
    Taken,
)
from magnetar.client.errors import ConnectionFailed
from magnetar.client.hold import PartOfBatch
from magnetar.core.errors import MagnetarError, Misuse, Unavailable
from magnetar.core.ids import Position
from magnetar.managed.ack_state import AckState
from magnetar.managed.cursors.store import CursorStore
from magnetar.managed.errors import CursorClosed
from magnetar.managed.following.api import KeptCursor
from magnetar.managed.ledger_list import LedgerList, LedgerRecord
from magnetar.sim.virtual_time import LoopClock, VirtualTimeLoop
from magnetar.wire.pulsar.errors import PulsarError, ServerError

new_event_loop = VirtualTimeLoop
ENTRIES = 20_000
SETTINGS = KeepSettings(rate_seconds=1.0, patience_seconds=30.0, close_seconds=10.0)


class MemoryHold:
    """A hold at an owner in memory, which a test may make slow, deaf or forgetful."""

    def __init__(self) -> None:
        self.ledgers = LedgerList([LedgerRecord(1, ENTRIES), LedgerRecord(2, 0)])
        self.acks = AckState(self.ledgers, (1, -1))
        self.failure: MagnetarError | None = None
        self.told: list[tuple[float, str]] = []
        self.answer_seconds = 0.0
        self.refuse: MagnetarError | None = None
        self.stores = True
        """Else what is acknowledged is held in memory, and answered with an error."""
        self.held = asyncio.Event()
        self.held.set()
        self.closed = 0
        self.in_flight = 0
        self.in_flight_max = 0
        self.there = True

    async def wait_until_held(self) -> None:
        await self.held.wait()

    async def mark_delete(self) -> Position:
        await self._answer("mark?")
        return self.acks.mark_delete

    async def acknowledge_up_to(self, position: tuple[int, int]) -> None:
        await self._answer(f"up to {position[0]}:{position[1]}")
        self.acks.acknowledge_cumulative(position)
        self._check_stored()

    async def acknowledge_each(self, whole: Sequence[Position], parts: Sequence[PartOfBatch] = ()) -> None:
        await self._answer(f"{len(whole)} and {len(parts)}")
        self.acks.acknowledge(whole)
        for position, remaining in parts:
            self.acks.acknowledge_batch_indexes(position, list(remaining), 0)
        self._check_stored()

    def _check_stored(self) -> None:
        if not self.stores:
            raise PulsarError(ServerError.METADATA_ERROR, "the metadata store is out of reach")

    async def seek(self, position: Position) -> None:
        await self._answer(f"seek {position[0]}:{position[1]}")
        self.acks.reset(self.ledgers.previous_position(position))

    async def unsubscribe(self) -> None:
        await self._answer("unsubscribe")
        self.there = False

    async def close(self) -> None:
        self.closed += 1

    async def _answer(self, what: str) -> None:
        loop = asyncio.get_running_loop()
        self.told.append((loop.time(), what))
        self.in_flight += 1
        self.in_flight_max = max(self.in_flight_max, self.in_flight)
        try:
            await asyncio.sleep(self.answer_seconds)
        finally:
            self.in_flight -= 1
        if self.refuse is not None:
            raise self.refuse

    def words(self) -> list[str]:
        """What was told, and is not looked at again."""
        told, self.told = self.told, []
        return [what for _, what in told]


class Stage:
    """A position that begins at the topic's first entry."""

    def __init__(self, settings: KeepSettings = SETTINGS) -> None:
        self.hold = MemoryHold()
        self.lost: list[MagnetarError] = []
        self.closed = 0
        self.parts = KeepingParts(
            name="topic s",
            settings=settings,
            clock=LoopClock(),
            wait_seconds=lambda began: max(0.0, began + settings.rate_seconds - LoopClock().monotonic_seconds()),
            on_lost=self.lost.append,
            on_closed=self._count,
            write_properties=self._refuse,
        )
        self.kept = KeptPosition(self.parts)
        self.acks = AckState(self.hold.ledgers, (1, -1))
        self.kept.begin(self.hold, Taken(mark_delete=(1, -1), acknowledged=(), cursor_properties={}))
        cursor: KeptCursor = self.kept
        self.store: CursorStore = cursor.store(self.acks)
        self.done: list[MagnetarError | None] = []

    def _count(self) -> None:
        self.closed += 1

    async def _refuse(self, properties: dict[str, str]) -> None:
        raise AssertionError(properties)

    def acknowledge(self, *entries: int) -> None:
        self.acks.acknowledge([(1, entry) for entry in entries])
        self.store.changed()

    def same(self) -> bool:
        """Whether the owner has what is acknowledged here."""
        mine, theirs = self.acks, self.hold.acks
        return (mine.mark_delete, mine.ranges(), mine.partial or {}) == (
            theirs.mark_delete,
            theirs.ranges(),
            theirs.partial or {},
        )


async def test_without_anybody_who_waits_it_is_told_once_a_second() -> None:
    stage = Stage()
    for number in range(100):
        stage.acknowledge(number)
        await asyncio.sleep(0.1)
    times = [when for when, _ in stage.hold.told]
    assert 10 <= len(times) <= 12
    assert all(later - earlier > 0.99 for earlier, later in pairwise(times))
    await asyncio.sleep(2.0)
    assert stage.same()
    stage.hold.words()
    await asyncio.sleep(60.0)
    assert stage.hold.words() == []
    await stage.kept.close()


async def test_who_waits_is_told_at_once_and_shares_the_next_round() -> None:
    stage = Stage()
    stage.hold.answer_seconds = 0.5
    stage.acknowledge(0)
    stage.store.persist(stage.done.append)
    stage.store.persist(stage.done.append)
    await asyncio.sleep(0.1)
    stage.acknowledge(1)
    for _ in range(5):
        stage.store.persist(stage.done.append)
    await asyncio.sleep(0.5)
    assert stage.done == [None, None]
    await asyncio.sleep(0.5)
    assert stage.done == [None] * 7
    assert stage.hold.words() == ["up to 1:0", "up to 1:1"]
    stage.store.persist(stage.done.append)
    await asyncio.sleep(0)
    assert len(stage.done) == 8
    await stage.kept.close()
    assert stage.hold.words() == []


async def test_nothing_is_called_durable_that_the_owner_has_not_confirmed() -> None:
    stage = Stage()
    stage.hold.answer_seconds = 100.0
    stage.acknowledge(0, 5)
    stage.store.persist(stage.done.append)
    await asyncio.sleep(29.0)
    assert stage.done == []
    await asyncio.sleep(2.0)
    (error,) = stage.done
    assert isinstance(error, Unavailable)
    assert "topic s" in str(error)
    stage.hold.answer_seconds = 1.0
    with pytest.raises(Unavailable):
        await stage.store.flush()  # It shares the attempt that began meanwhile.
    await stage.store.flush()
    assert stage.same()
    await stage.kept.close()


async def test_a_slow_owner_that_goes_on_is_waited_for() -> None:
    stage = Stage()
    stage.hold.answer_seconds = 20.0
    stage.acknowledge(*range(1, ENTRIES, 2))
    await asyncio.wait_for(stage.store.flush(), 20.0 * 10)
    assert stage.same()
    assert stage.hold.in_flight_max == COMMANDS_AT_ONCE
    assert len(stage.hold.words()) == 10
    await stage.kept.close()


async def test_a_part_that_was_refused_is_told_again() -> None:
    stage = Stage()
    stage.hold.refuse = PulsarError(ServerError.CONSUMER_NOT_FOUND, "The consumer is closed")
    stage.acknowledge(0, 2)
    stage.store.persist(stage.done.append)
    await asyncio.sleep(0.35)
    stage.hold.refuse = None
    await asyncio.sleep(0.2)
    assert stage.done == [None]
    assert stage.same()
    await stage.kept.close()


async def test_an_owner_that_forgot_is_told_all_again() -> None:
    stage = Stage()
    stage.acknowledge(0, 1, 2, 4)
    stage.acks.acknowledge_batch_indexes((1, 6), [0b101], 3)
    await stage.store.flush()
    stage.hold.acks.reset((1, 0))
    stage.hold.words()
    stage.kept.held_again(let_go=False)
    await asyncio.sleep(0.5)
    assert stage.hold.words() == ["mark?", "up to 1:2", "1 and 0", "0 and 1"]
    assert stage.same()
    assert stage.lost == []
    await stage.kept.close()


async def test_what_the_owner_has_and_may_not_have_stored_is_told_again() -> None:
    stage = Stage()
    stage.hold.stores = False
    stage.acknowledge(0, 1)
    stage.store.persist(stage.done.append)
    await asyncio.sleep(1.0)
    assert stage.same()
    stage.kept.held_again(let_go=False)
    await asyncio.sleep(1.0)
    assert stage.done == []
    stage.hold.stores = True
    await asyncio.sleep(1.0)
    assert stage.done == [None]


async def test_what_was_taken_over_and_may_not_be_stored_is_told_again() -> None:
    """Its owner refused an acknowledgement that it has in memory; the client moved here, and asks again."""
    stage = Stage()
    stage.hold.acks.reset((1, 9))
    stage.hold.stores = False
    kept = KeptPosition(stage.parts)
    kept.begin(stage.hold, Taken(mark_delete=(1, 9), acknowledged=(), cursor_properties={}))
    store = kept.store(AckState(stage.hold.ledgers, (1, 9)))
    store.persist(stage.done.append)
    await asyncio.sleep(1.0)
    assert stage.done == []
    stage.hold.stores = True
    await asyncio.sleep(1.0)
    assert stage.done == [None]
    assert set(stage.hold.words()) == {"up to 1:9"}
    await store.flush()
    assert stage.hold.words() == []
    await kept.close()


async def test_an_owner_that_crashed_before_another_let_go_may_have_lost_answers() -> None:
    stage = Stage()
    stage.acknowledge(0, 1, 2)
    await stage.store.flush()
    stage.hold.held.clear()
    stage.hold.acks.reset((1, 0))
    stage.kept.held_again(let_go=False)
    await asyncio.sleep(0.5)
    stage.kept.held_again(let_go=True)
    stage.hold.held.set()
    await asyncio.sleep(0.5)
    assert stage.lost == []
    assert stage.same()
    await stage.kept.close()


async def test_a_mark_that_was_moved_back_to_what_was_confirmed_is_not_told_again() -> None:
    """The owner had more in memory, and somebody moved its mark back."""
    stage = Stage()
    stage.acknowledge(0)
    await asyncio.sleep(1.0)
    stage.hold.stores = False
    stage.acknowledge(1, 2)
    await asyncio.sleep(1.0)
    stage.kept.held_again(let_go=False)
    await asyncio.sleep(1.0)
    assert stage.hold.acks.mark_delete == (1, 2)
    stage.hold.acks.reset((1, 1))
    stage.kept.held_again(let_go=True)
    await asyncio.sleep(1.0)
    assert isinstance(stage.lost[0], PositionMoved)


async def test_what_apache_may_have_forgotten_of_a_seek_is_sought_again() -> None:
    stage = Stage()
    stage.acknowledge(0, 1, 2, 4)
    await stage.store.flush()
    stage.acks.reset((1, 0))
    stage.store.changed()
    await stage.store.flush()
    stage.kept.held_again(let_go=True)
    await asyncio.sleep(1.0)
    assert [each for each in stage.hold.words() if each.startswith("seek")] == ["seek 1:1"]
    stage.hold.acks.acknowledge([(1, 4)])
    stage.kept.held_again(let_go=False)
    await asyncio.sleep(1.0)
    assert [each for each in stage.hold.words() if each.startswith("seek")] == ["seek 1:1"]
    assert stage.same()
    await stage.kept.close()


async def test_a_seek_without_an_answer_is_sought_again() -> None:
    stage = Stage()
    stage.acknowledge(*range(10))
    await stage.store.flush()
    stage.acks.reset((1, 2))
    stage.store.changed()
    stage.hold.refuse = ConnectionFailed("lost")
    stage.store.persist(stage.done.append)
    await asyncio.sleep(0.05)
    # As if it was done: now the seek is owed though nothing that was confirmed is taken back.
    stage.hold.acks.reset((1, 2))
    stage.acks.acknowledge_cumulative((1, 9))
    stage.hold.refuse = None
    await asyncio.sleep(1.0)
    assert stage.hold.words()[-1] == "seek 1:10"
    assert stage.done == [None]
    assert stage.same()
    await stage.kept.close()


@pytest.mark.parametrize("mark", [(1, 0), (1, 9)])
async def test_a_position_that_others_moved_is_given_up(mark: Position) -> None:
    stage = Stage()
    stage.acknowledge(0, 1, 2)
    await stage.store.flush()
    stage.hold.acks.reset(mark)
    stage.acknowledge(3)
    stage.store.persist(stage.done.append)
    stage.kept.held_again(let_go=True)
    await asyncio.sleep(0.5)
    assert [type(error) for error in stage.lost] == [PositionMoved]
    assert isinstance(stage.done[0], PositionMoved)
    assert (stage.hold.acks.mark_delete, stage.hold.closed, stage.closed) == (mark, 1, 0)
    stage.store.persist(stage.done.append)
    await asyncio.sleep(0)
    assert stage.done[-1] is stage.lost[0]
    await stage.kept.close()
    await stage.kept.abandon()


async def test_the_same_place_under_another_name_was_not_moved() -> None:
    stage = Stage()
    stage.acks.acknowledge_cumulative((1, ENTRIES - 1))
    stage.store.changed()
    await stage.store.flush()
    stage.hold.acks.reset((2, -1))
    stage.kept.held_again(let_go=True)
    await asyncio.sleep(0.5)
    assert stage.lost == []
    await stage.kept.close()


async def test_a_hold_that_was_lost_early_is_told_once_there_is_a_cursor() -> None:
    stage = Stage()
    kept = KeptPosition(stage.parts)
    kept.begin(stage.hold, Taken(mark_delete=(1, -1), acknowledged=(), cursor_properties={}))
    error = PulsarError(ServerError.CONSUMER_BUSY, "another one's")
    kept.hold_ended(error)
    await asyncio.sleep(0)
    assert stage.lost == []
    kept.store(stage.acks)
    assert stage.lost == []
    await asyncio.sleep(0)
    assert stage.lost == [error]
    await asyncio.sleep(2.5)
    assert stage.lost == [error] * 3
    await kept.close()
    await asyncio.sleep(60.0)
    assert stage.lost == [error] * 3
    await stage.kept.close()


async def test_nothing_is_told_to_an_owner_that_is_not_known() -> None:
    """What was waited for in the middle of a round goes to nobody whose position was not asked for."""
    stage = Stage()
    stage.hold.held.clear()
    stage.acknowledge(0, 1)
    stage.store.persist(stage.done.append)
    await asyncio.sleep(5.0)
    assert (stage.hold.words(), stage.done) == ([], [])
    stage.hold.held.set()
    stage.kept.held_again(let_go=True)
    await asyncio.sleep(0.5)
    assert stage.hold.words() == ["mark?", "up to 1:1"]
    assert stage.done == [None]
    await stage.kept.close()


async def test_the_end_waits_for_the_owner_but_not_for_long(caplog: pytest.LogCaptureFixture) -> None:
    stage = Stage()
    stage.hold.answer_seconds = 5.0
    stage.acknowledge(0, 1)
    await stage.store.close()
    assert stage.same()
    assert caplog.records == []
    stage = Stage()
    stage.hold.answer_seconds = 1_000.0
    stage.acknowledge(0, 1)
    began = asyncio.get_running_loop().time()
    await stage.store.close()
    assert asyncio.get_running_loop().time() - began == pytest.approx(10.0)
    assert "topic s: the owner was not told of what is acknowledged up to 1:1" in caplog.text
    assert "it has 1:-1" in caplog.text
    assert (stage.hold.closed, stage.closed, stage.lost) == (1, 1, [])


async def test_to_delete_it_may_be_tried_again() -> None:
    stage = Stage()
    stage.hold.refuse = Unavailable("no answer")
    with pytest.raises(Unavailable):
        await stage.store.delete()
    assert stage.store.deleting
    stage.acknowledge(0)
    stage.store.persist(stage.done.append)
    await asyncio.sleep(3.0)
    assert isinstance(stage.done[0], CursorClosed)
    stage.hold.refuse = PulsarError(ServerError.SUBSCRIPTION_NOT_FOUND, "gone")
    await stage.store.delete()
    assert stage.hold.words() == ["unsubscribe"] * 2
    assert stage.lost == []


async def test_to_delete_what_was_lost_says_why_not() -> None:
    stage = Stage()
    busy = PulsarError(ServerError.CONSUMER_BUSY, "another one's")
    stage.hold.failure = busy
    stage.kept.hold_ended(busy)
    with pytest.raises(PulsarError, match="another one"):
        await stage.store.delete()
    stage = Stage()
    gone = PulsarError(ServerError.SUBSCRIPTION_NOT_FOUND, "gone")
    stage.hold.failure = gone
    stage.kept.hold_ended(gone)
    await stage.store.delete()


async def test_it_has_no_ledger() -> None:
    stage = Stage()
    kept = stage.kept
    assert (kept.last_entry_id, kept.ledger_id, kept.switched_ms, kept.ledgers_in_doubt()) == (-1, -1, 0, set())
    await kept.abandon()


def test_the_states_of_a_kept_position() -> None:
    allowed = {
        (before.name, after.name)
        for before in KeptState
        for after in KeptState
        if KEPT_TRANSITIONS.allows(before, after)
    }
    assert allowed == {
        ("OPEN", "LOST"),
        ("OPEN", "CLOSED"),
        ("OPEN", "DELETING"),
        ("LOST", "CLOSED"),
        ("LOST", "DELETING"),
        ("CLOSED", "CLOSED"),
        ("CLOSED", "DELETING"),
        ("DELETING", "DELETING"),
    }
    with pytest.raises(Misuse):
        KEPT_TRANSITIONS.step(KeptState.LOST, KeptState.OPEN)
