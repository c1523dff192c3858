"""Single acknowledgements of replicated subscriptions, beside a ledger that is a list: what is looked at, and when."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Coroutine
from types import SimpleNamespace
from typing import Any

import pytest
from magnetar.broker.replicated_subscriptions.followed_subscription import FollowedSubscription
from magnetar.broker.replicated_subscriptions.kept_snapshots import KeptSnapshots
from magnetar.broker.replicated_subscriptions.single_acknowledgements import LOOK_BYTES_MAX, SingleAcknowledgements
from magnetar.broker.testing.sessions import message
from magnetar.core.ids import Position
from magnetar.core.limits import MIB
from magnetar.managed.entry import Entry

from broker.tests.subscription_stage import Timers

LEDGER = 5
ENTRIES = 100


class Reader:
    def __init__(self, ledger: Ledger, start: Position) -> None:
        self.read_position = start
        self._ledger = ledger

    async def read(self, count_max: int, size_bytes_max: int) -> list[Entry]:
        entry_id = self.read_position[1]
        self.read_position = (LEDGER, entry_id + 1)
        self._ledger.read += 1
        return [Entry(LEDGER, entry_id, self._ledger.data)]

    async def close(self) -> None:
        pass


class Ledger:
    """A hundred times the same message."""

    def __init__(self, data: bytes) -> None:
        self.name = "ledger"
        self.data = data
        self.read = 0
        self.last_confirmed = (LEDGER, ENTRIES - 1)

    @property
    def ledgers(self) -> Ledger:
        return self

    def next_position(self, after: Position) -> Position:
        return (after[0], after[1] + 1)

    def new_non_durable_cursor(self, name: str, start: Position) -> Reader:
        assert name
        return Reader(self, start)


class Cursor:
    """Of a subscription that has acknowledged everything but the first message."""

    def __init__(self) -> None:
        self.individual_count = ENTRIES - 1
        self.mark_delete = (LEDGER, -1)
        self.on_acknowledged: Any = None
        self.closed = False

    @property
    def acks(self) -> Cursor:
        return self

    def ranges(self, count_max: int) -> list[tuple[Position, Position]]:
        assert count_max
        return [((LEDGER, 0), (LEDGER, ENTRIES - 1))]

    def is_acknowledged(self, position: Position) -> bool:
        return position != (LEDGER, 0)


class Stage:
    def __init__(self, data: bytes = b"") -> None:
        self.timers = Timers()
        self.ledger = Ledger(data or message())
        self.busy = asyncio.Semaphore(1)
        self.work: list[Coroutine[Any, Any, None]] = []
        self.told: list[tuple[str, Any]] = []
        ledger: Any = self.ledger
        self.singles = SingleAcknowledgements(
            ledger,
            "east",
            1.0,
            self.timers.call_later,
            self.work.append,
            self.busy,
            lambda name, acknowledged: self.told.append((name, acknowledged)),
        )

    def follow(self) -> FollowedSubscription:
        subscription: Any = SimpleNamespace(name="s", keep_snapshots=lambda _: None)
        cursor: Any = Cursor()
        return FollowedSubscription(
            subscription,
            cursor,
            KeptSnapshots(3, lambda *_: 0),
            lambda *_: None,
            self.singles.acknowledged,
            (LEDGER, -1),
        )


async def test_looks_that_take_longer_than_the_interval_do_not_pile_up() -> None:
    stage = Stage()
    followed = stage.follow()
    for _ in range(5):
        followed.acknowledged((LEDGER, -1))
        stage.timers.advance(1_000)
    assert len(stage.work) == 1
    await stage.work.pop()
    assert stage.told == [("s", {"east": [(LEDGER, 1, ENTRIES - 1)]})]
    # What was acknowledged meanwhile is looked at after the interval.
    stage.timers.advance(1_000)
    assert len(stage.work) == 1
    await stage.work.pop()
    assert len(stage.told) == 1


async def test_of_large_messages_fewer_are_looked_at() -> None:
    stage = Stage(message(b"x" * 4 * MIB))
    stage.follow().acknowledged((LEDGER, -1))
    stage.timers.advance(1_000)
    await stage.work.pop()
    assert stage.ledger.read == LOOK_BYTES_MAX // (4 * MIB)
    assert stage.told == [("s", {"east": [(LEDGER, 1, stage.ledger.read - 1)]})]


async def test_nothing_is_told_of_a_subscription_that_is_deleted_meanwhile() -> None:
    stage = Stage()
    followed = stage.follow()
    followed.acknowledged((LEDGER, -1))
    stage.timers.advance(1_000)
    async with stage.busy:
        telling = asyncio.create_task(stage.work.pop())
        await asyncio.sleep(0)
        stage.singles.forget("s")
        followed.cursor.closed = True
    await telling
    assert stage.told == []


@pytest.mark.parametrize("waiting", ["acknowledged", "told"])
async def test_a_topic_that_goes_is_gone_without_the_collector(waiting: str) -> None:
    stage = Stage()
    followed = stage.follow()
    if waiting == "acknowledged":
        followed.acknowledged((LEDGER, -1))
    else:
        stage.singles.told(followed, {"west": [(1, 0, 0)]})
        stage.work.pop().close()
    gone = weakref.ref(stage.ledger)
    gc.disable()
    try:
        stage.singles.close()
        stage.timers._timers.clear()  # Those of the event loop keep no timer that is cancelled.
        followed.let_go()
        del stage, followed
        assert gone() is None
    finally:
        gc.enable()


async def test_a_topic_may_go_while_it_follows() -> None:
    stage = Stage()
    stage.singles.told(stage.follow(), {"west": [(1, 0, 0)]})
    async with stage.busy:
        following = asyncio.create_task(stage.work.pop())
        await asyncio.sleep(0)
        stage.singles.close()
    await following
    assert stage.ledger.read == 0


async def test_an_unexpected_error_keeps_nobody_from_what_is_told_next(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage()
    followed = stage.follow()

    def broken(name: str, start: Position) -> Any:
        raise RuntimeError(f"staged: {name} at {start}")

    with monkeypatch.context() as patched:
        patched.setattr(stage.ledger, "new_non_durable_cursor", broken)
        stage.singles.told(followed, {"west": [(1, 0, 0)]})
        with pytest.raises(RuntimeError, match="staged"):
            await stage.work.pop()
    stage.singles.told(followed, {"west": [(1, 0, 0)]})
    await stage.work.pop()
    assert stage.ledger.read == ENTRIES
