"""Offloads: by policy and by request, BookKeeper's copies after the lag, trimming, deletion, and a crash anywhere."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from uuid import UUID

import pytest
from magnetar.core.errors import MagnetarError
from magnetar.core.ids import EARLIEST
from magnetar.core.transitions import Transitions
from magnetar.ledger.api import LedgerUnavailable
from magnetar.managed.errors import ManagedLedgerFenced
from magnetar.managed.managed_ledger import ManagedLedger
from magnetar.managed.offload import upkeep
from magnetar.managed.offload.context import at_bookies, copy_of
from magnetar.managed.offload.offloads import InvalidOffloadPosition, Offloads, OffloadStatus, OffloadUnderWay
from magnetar.managed.offload.owed import owed_objects
from magnetar.managed.offload.run import OFFLOAD_TRANSITIONS, OffloadState
from magnetar.managed.offload.testing import MemoryOffloader
from magnetar.managed.paths import ledger_path
from magnetar.metadata.faulty import RequestFate
from magnetar.sim.virtual_time import VirtualTimeLoop
from magnetar.tiered.api import OffloadDamaged, OffloadRefused, OffloadUnavailable
from magnetar.tiered.policy import NO_OFFLOAD, OffloadPolicy

from lib.tests.managed_world import NAME, UNSURE
from lib.tests.offload_world import ASKED, HOUR_MS, OFFLOADED, OffloadWorld, keeping, prepared, until_done, with_policy

new_event_loop = VirtualTimeLoop

NODE = ledger_path(NAME)


@pytest.fixture
async def world() -> AsyncIterator[OffloadWorld]:
    world = OffloadWorld()
    yield world
    world.fates.clear()
    world.watching = False
    for _, copied in world.copies:
        await copied.close()
    await world.close()


async def offloaded(world: OffloadWorld) -> ManagedLedger:
    """A topic whose three full ledgers are in tiered storage, and at the bookies."""
    ledger = await world.filled()
    await until_done(ledger)
    return ledger


def a_uid(ledger: ManagedLedger, ledger_id: int) -> UUID:
    record = ledger.ledgers.get(ledger_id)
    assert record is not None
    copy = copy_of(record)
    assert copy is not None
    return copy.uid


async def test_full_ledgers_are_offloaded_after_the_rollover(world: OffloadWorld) -> None:
    """By themselves, and all that is there is read as before."""
    ledger = await offloaded(world)
    assert await world.offloaded_ids() == [0, 1, 2]
    await world.check_settled()
    assert await world.read_all(ledger) == world.sent
    assert ledger.offloads.counters.read_bytes == sum(map(len, world.sent[:12]))
    assert [each.offloaded for each in ledger.internal_stats().ledgers] == [True, True, True, False]


async def test_without_a_threshold_nothing_is_offloaded_unasked(world: OffloadWorld) -> None:
    ledger = await world.filled(keeping(ASKED))
    await until_done(ledger)
    assert await world.offloaded_ids() == []
    await ledger.offloads.offload_before((2, 0))
    assert ledger.offloads.status == OffloadStatus("RUNNING")
    with pytest.raises(OffloadUnderWay):
        await ledger.offloads.offload_before((2, 0))
    await ledger.offloads.until_idle()
    assert ledger.offloads.status == OffloadStatus("SUCCESS", first_unoffloaded=(2, 0))
    assert await world.offloaded_ids() == [0, 1]


async def test_up_to_the_end_while_the_ledger_in_use_is_empty(world: OffloadWorld) -> None:
    ledger = await world.filled(keeping(ASKED), ledgers=2)
    await ledger.roll()
    await ledger.offloads.offload_before((ledger.ledgers.ids[-1], 0))
    await ledger.offloads.until_idle()
    assert ledger.offloads.status.status == "SUCCESS"
    assert await world.offloaded_ids() == [0, 1, 2]


@pytest.mark.parametrize("position", [(9, 0), (1, 4), (1, -2)])
async def test_a_position_that_is_none(world: OffloadWorld, position: tuple[int, int]) -> None:
    ledger = await world.filled(keeping(ASKED))
    with pytest.raises(InvalidOffloadPosition):
        await ledger.offloads.offload_before(position)
    assert ledger.offloads.status.status == "NOT_RUN"


async def test_without_a_store_the_request_is_refused(world: OffloadWorld) -> None:
    ledger = await world.filled(keeping(NO_OFFLOAD))
    with pytest.raises(LedgerUnavailable, match="managedLedgerOffloadDriver"):
        await ledger.offloads.offload_before((2, 0))


async def test_by_age_without_another_append(world: OffloadWorld) -> None:
    """Whoever looks at what is due finds it."""
    ledger = await world.filled(keeping(OffloadPolicy(store="a-bucket", threshold_ms=HOUR_MS)))
    await until_done(ledger)
    assert await world.offloaded_ids() == []
    world.clock.ms += HOUR_MS
    assert ledger.offloads.due
    await until_done(ledger)
    assert await world.offloaded_ids() == [0, 1, 2]


async def test_the_copies_at_the_bookies_go_after_the_lag(world: OffloadWorld) -> None:
    ledger = await offloaded(world)
    world.clock.ms += 4 * HOUR_MS
    assert not ledger.offloads.due
    world.clock.ms += 1
    await until_done(ledger)
    assert set(world.ledgers.stored) == {3}
    await world.check_settled()
    assert await world.read_all(ledger) == world.sent


async def test_a_damaged_copy_keeps_the_one_at_the_bookies(world: OffloadWorld) -> None:
    """It is looked at before it becomes the only one, and again until it is whole."""
    ledger = await offloaded(world)
    key = f"{a_uid(ledger, 1)}-ledger-1"
    whole = world.objects.objects[key]
    world.objects.objects[key] = whole[:2]
    world.clock.ms += 5 * HOUR_MS
    await until_done(ledger)
    assert set(world.ledgers.stored) == {1, 3}
    assert await world.read_all(ledger) == world.sent
    world.objects.objects[key] = whole
    await asyncio.sleep(3_700)
    await until_done(ledger)
    assert set(world.ledgers.stored) == {3}


async def test_trimming_deletes_objects_too(world: OffloadWorld) -> None:
    ledger = await offloaded(world)
    cursor = await ledger.open_cursor("sub", EARLIEST)
    ledger.settings = keeping(retention_time_ms=0, retention_size_bytes=0)
    cursor.acknowledge_cumulative((1, 3))
    await ledger.trim()
    await until_done(ledger)
    assert ledger.ledgers.ids == [2, 3]
    await world.check_settled()


async def test_objects_that_cannot_be_deleted_are_remembered(world: OffloadWorld) -> None:
    """Over owners, and until the store can do it again; nobody reads what is to be deleted."""
    ledger = await offloaded(world)
    world.offloader.fail_at["delete"] = OffloadUnavailable("no answer")
    await ledger.truncate()
    await until_done(ledger)
    assert len(owed_objects((await world.info()).properties)) == 3
    assert ledger.offloads.counters.deletions_failed > 0
    await world.check_promises()
    after = await world.opened()
    await until_done(after)
    assert world.objects.objects == {}
    await world.check_settled()


async def test_they_are_tried_again_by_the_same_owner(world: OffloadWorld) -> None:
    ledger = await offloaded(world)
    world.offloader.fail_at["deleted-data"] = OffloadRefused("403")
    await ledger.truncate()
    await until_done(ledger)
    assert world.objects.objects
    world.offloader.fail_at.clear()
    await asyncio.sleep(3_700)
    await until_done(ledger)
    await world.check_settled()


async def test_no_more_is_trimmed_than_can_be_remembered(world: OffloadWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upkeep, "OWED_MAX", 2)
    ledger = await offloaded(world)
    world.offloader.fail_at["delete"] = OffloadUnavailable("no answer")
    await ledger.truncate()
    assert ledger.ledgers.ids[0] == 2
    world.offloader.fail_at.clear()
    await asyncio.sleep(3_700)
    await until_done(ledger)
    await ledger.truncate()
    await until_done(ledger)
    assert world.objects.objects == {}


async def test_what_cannot_be_trimmed_for_objects_that_wait_is_not_tried_in_each_turn(
    world: OffloadWorld, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A store may refuse deletions for days."""
    monkeypatch.setattr(upkeep, "OWED_MAX", 1)
    ledger = await offloaded(world)
    world.offloader.fail_at["delete"] = OffloadRefused("403")
    for cursor in ledger.cursors.values():
        await cursor.clear_backlog()
    ledger.use(keeping(retention_time_ms=0, retention_size_bytes=0))
    await world.settle()
    assert ledger.ledgers.ids[0] == 1
    assert ledger.due_for_trimming
    assert sum("wait for deletion" in record.getMessage() for record in caplog.records) < 4


async def test_a_ledger_that_is_trimmed_in_the_middle_of_its_offload(world: OffloadWorld) -> None:
    """It ends cleanly, and nothing of it stays."""
    ledger = await world.filled(keeping(ASKED))
    await prepared(ledger)
    world.offloader.stop_at = "index"
    await ledger.offloads.offload_before((3, 0))
    await world.offloader.stopped.wait()
    assert ledger.offloads.under_way is not None
    assert world.objects.objects
    world.offloader.stop_at = None
    await ledger.truncate()
    await until_done(ledger)
    assert ledger.offloads.status.status == "SUCCESS"
    assert world.objects.objects == {}
    await world.check_settled()


async def test_offloads_rest_while_a_trim_waits(world: OffloadWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it is about to remove is not begun again in each turn of the loop; what stays in the end goes."""
    ledger = await world.filled(keeping(ASKED))
    await prepared(ledger)
    for cursor in list(ledger.cursors.values()):
        await cursor.clear_backlog()
    begun: list[Sequence[int]] = []
    right = Offloads._run_all

    async def run_all(self: Offloads, ledger_ids: Sequence[int]) -> MagnetarError | None:
        begun.append(ledger_ids)
        return await right(self, ledger_ids)

    monkeypatch.setattr(Offloads, "_run_all", run_all)
    ledger.settings = keeping(retention_time_ms=0, retention_size_bytes=0)
    async with ledger.offloads._parts.node.lock:  # As while the metadata store does not answer.
        ledger.trim_later()
        await turns(10)
        ledger.offloads.later()
        await turns(100)
        assert begun == []
        ledger.settings = keeping()
    await turns(20)
    await until_done(ledger)
    assert await world.offloaded_ids() == ledger.ledgers.ids[:-1]
    await world.check_promises()


@pytest.mark.timeout(20)
async def test_an_offload_is_stopped_before_its_first_step(world: OffloadWorld) -> None:
    """A task that is cancelled so early runs nothing of itself, not even what says that it is over."""
    ledger = await world.filled(keeping(ASKED))
    await prepared(ledger)
    await ledger.offloads.offload_before((3, 0))
    await ledger.offloads.stop()
    assert (ledger.offloads.status.status, ledger.offloads.status.last_error) == ("ERROR", "the offload was stopped")
    ledger.settings = keeping()
    ledger.offloads.later()
    await ledger.offloads.stop()
    await ledger.offloads.offload_before((3, 0))
    await until_done(ledger)
    assert ledger.offloads.status.status == "SUCCESS"


async def turns(count: int) -> None:
    """So many of the loop."""
    for _ in range(count):
        await asyncio.sleep(0)


async def test_the_topic_goes_with_its_objects(world: OffloadWorld) -> None:
    ledger = await offloaded(world)
    world.clock.ms += 5 * HOUR_MS
    await until_done(ledger)
    await ledger.delete()
    assert world.objects.objects == {}
    await world.settle()
    assert world.ledgers.stored == {}


async def test_the_topic_stays_when_its_objects_cannot_go(world: OffloadWorld) -> None:
    """Or nobody would know of them; it is still there, and can be deleted later."""
    ledger = await offloaded(world)
    world.offloader.fail_at["delete"] = OffloadUnavailable("no answer")
    with pytest.raises(OffloadUnavailable):
        await ledger.delete()
    assert await world.read_all(ledger) == world.sent
    world.offloader.fail_at.clear()
    await ledger.delete()
    assert world.objects.objects == {}


async def test_a_topic_that_is_not_open_goes_with_its_objects(world: OffloadWorld) -> None:
    ledger = await offloaded(world)
    await ledger.close()
    await world.another().delete(NAME)
    assert world.objects.objects == {}
    await world.settle()
    assert world.ledgers.stored == {}


async def test_without_a_store_the_topic_goes_and_the_objects_are_told(
    world: OffloadWorld, caplog: pytest.LogCaptureFixture
) -> None:
    ledger = await offloaded(world)
    ledger.settings = keeping(NO_OFFLOAD)
    uid = a_uid(ledger, 0)
    await ledger.delete()
    assert str(uid) in caplog.text


async def test_a_store_that_fails_is_asked_again_later(world: OffloadWorld) -> None:
    """Not for the next ledger, and not at once."""
    ledger = await world.filled(keeping(ASKED))
    await prepared(ledger)
    world.offloader.fail_at["data"] = OffloadUnavailable("no answer")
    ledger.settings = keeping()
    ledger.offloads.later()
    await ledger.offloads.until_idle()
    counters = ledger.offloads.counters
    assert (counters.offload_errors, counters.write_errors, counters.last_error) == (1, 1, "no answer")
    assert not ledger.offloads.due
    world.offloader.fail_at.clear()
    await asyncio.sleep(11)
    await until_done(ledger)
    assert await world.offloaded_ids() == [0, 1, 2]
    await world.check_settled()


async def test_a_ledger_that_cannot_be_read_holds_up_no_other(world: OffloadWorld) -> None:
    ledger = await world.filled(keeping(ASKED))
    world.ledgers.away.add(1)
    await ledger.offloads.offload_before((3, 0))
    await ledger.offloads.until_idle()
    assert ledger.offloads.status.status == "ERROR"
    assert "ledger 1" in ledger.offloads.status.last_error
    assert await world.offloaded_ids() == [0, 2]


async def test_a_copy_that_is_not_whole_is_not_complete(world: OffloadWorld) -> None:
    """Whatever the offloader says."""
    ledger = await world.filled(keeping(ASKED))
    await prepared(ledger)
    world.offloader.fail_at["read"] = OffloadDamaged((0, 3), "cut short")
    await ledger.offloads.offload_before((2, 0))
    await ledger.offloads.until_idle()
    assert ledger.offloads.status == OffloadStatus("ERROR", "cut short")
    assert await world.offloaded_ids() == []
    world.offloader.fail_at.clear()
    await asyncio.sleep(3_700)
    await until_done(ledger)
    await world.check_settled()


async def test_only_so_many_at_a_time(world: OffloadWorld) -> None:
    """Over all topics of a process."""
    factory = world.another(keeping(ASKED))
    ledgers = [await factory.open(f"{NAME}-{number}", keeping(ASKED)) for number in range(5)]
    for ledger in ledgers:
        await prepared(ledger)
        outcome: list[object] = []
        for _ in range(5):
            ledger.appends.append([b"x"], lambda *told: outcome.append(told), None)  # noqa: B023 - heard at once
            await world.settle()
    for ledger in ledgers:
        ledger.settings = with_policy(keeping(), runs_max=2)
        ledger.offloads.later()
    for ledger in ledgers:
        await until_done(ledger)
    assert world.offloader.most_under_way == 2
    assert len(world.stores.made) == 1
    assert len(world.objects.uids()) == 5


async def test_the_offloader_is_closed_with_its_last_user(world: OffloadWorld) -> None:
    ledger = await offloaded(world)
    offloader: MemoryOffloader = world.offloader
    assert not offloader.closed
    await ledger.close()
    assert offloader.closed


@pytest.mark.parametrize("fate", UNSURE)
@pytest.mark.parametrize("write", range(4))
async def test_a_lost_answer_decides_nothing(world: OffloadWorld, fate: RequestFate, write: int) -> None:
    """Whichever write of an offload has none: it is done, or done again, and nothing is left over."""
    ledger = await world.filled(keeping(ASKED), ledgers=1)
    world.next_fates(NODE, *[RequestFate.DONE] * write, fate)
    ledger.settings = with_policy(keeping(), deletion_lag_ms=-1)
    await until_done(ledger)
    await world.check_promises()
    await asyncio.sleep(3_700)
    await until_done(ledger)
    await world.check_settled()
    assert await world.offloaded_ids() == [0]
    assert set(world.ledgers.stored) == {1}
    assert await world.read_all(ledger) == world.sent
    assert len(world.objects.uids()) == 1


@pytest.mark.parametrize("fate", UNSURE)
@pytest.mark.parametrize("times", [1, 3, 9])
async def test_a_trim_without_an_answer(world: OffloadWorld, fate: RequestFate, times: int) -> None:
    """What it names no more is deleted only once that is sure."""
    ledger = await offloaded(world)
    for cursor in list(ledger.cursors.values()):
        await cursor.clear_backlog()
    ledger.settings = keeping(retention_time_ms=0, retention_size_bytes=0)
    world.next_fates(NODE, *[fate] * times)
    ledger.trim_later()
    await world.settle()
    await world.check_promises()
    await asyncio.sleep(3_700)
    for _ in range(times):
        await ledger.trim_if_due()
        await world.check_promises()
    await asyncio.sleep(3_700)
    await until_done(ledger)
    assert ledger.ledgers.ids == [3]
    await world.check_settled()


async def test_what_an_attempt_that_failed_has_left_is_deleted_with_the_next_one(world: OffloadWorld) -> None:
    """Each has a UUID of its own."""
    ledger = await world.filled(keeping(ASKED), ledgers=1)
    await prepared(ledger)
    world.offloader.fail_at["index"] = OffloadRefused("403")
    await ledger.offloads.offload_before((1, 0))
    await ledger.offloads.until_idle()
    assert len(world.objects.uids()) == 1
    world.offloader.fail_at.clear()
    await ledger.offloads.offload_before((1, 0))
    await ledger.offloads.until_idle()
    assert len(world.objects.uids()) == 2
    await world.check_promises()
    await until_done(ledger)
    await world.check_settled()


async def test_a_completion_whose_answer_was_lost_keeps_its_objects(world: OffloadWorld) -> None:
    """The record may name them: the next owner reads there."""
    ledger = await world.filled(keeping(ASKED), ledgers=1)
    world.next_fates(NODE, RequestFate.DONE, RequestFate.LOST, *[RequestFate.REFUSED] * 4)
    await ledger.offloads.offload_before((1, 0))
    await ledger.offloads.until_idle()
    assert ledger.offloads.status.status == "ERROR"
    assert await world.offloaded_ids() == [0]
    await world.check_promises()
    after = await world.opened()
    assert await world.read_all(after) == world.sent
    assert after.offloads.counters.read_errors == 0


async def life(world: OffloadWorld) -> None:
    """Of a topic: offloaded by itself, copies at the bookies given up, trimmed."""
    ledger = await world.filled(keeping(ASKED), ledgers=2)
    await prepared(ledger)
    world.watch()
    ledger.settings = keeping()
    await until_done(ledger)
    world.clock.ms += 5 * HOUR_MS
    await until_done(ledger)
    world.sent = world.sent[-1:]
    ledger.settings = keeping(retention_time_ms=0, retention_size_bytes=0)
    await ledger.trim()
    await until_done(ledger)
    world.watching = False
    await world.check_settled()


async def test_the_next_owner_goes_on_wherever_the_one_before_was_killed(world: OffloadWorld) -> None:
    """Before each step of a whole life: nothing is lost, and in the end nothing is left over."""
    await life(world)
    steps = [step.partition(": ")[2] for step, _ in world.copies]
    assert {"before data", "before index", "before open", "before delete", "before deleted-data"} < set(steps)
    assert steps.count("before a write of metadata") >= 8
    for step, copied in world.copies:
        await copied.check_promises()
        ledger = await copied.opened()
        await until_done(ledger)
        found = await copied.read_all(ledger)
        assert found[-1] == world.sent[-1], step
        assert found == copied.sent or "trim" in step or len(found) in (1, 9), step
        copied.clock.ms += 5 * HOUR_MS
        await until_done(ledger)
        await copied.check_settled()
        assert await copied.read_all(ledger) == found, step
        await copied.settle()


async def test_killed_again_and_again(world: OffloadWorld) -> None:
    """Each of those who take over from a killed one is killed at each of its steps, too."""
    ledger = await world.filled(keeping(ASKED), ledgers=1)
    await prepared(ledger)
    world.watch()
    ledger.settings = keeping()
    await until_done(ledger)
    world.watching = False
    for _, copied in world.copies:
        second = await copied.opened(keeping(ASKED))
        await prepared(second)
        copied.watch()
        second.settings = keeping()
        await until_done(second)
        copied.watching = False
        for step, again in copied.copies:
            await again.check_promises()
            third = await again.opened()
            await until_done(third)
            again.clock.ms += 5 * HOUR_MS
            await until_done(third)
            await again.check_settled()
            assert await again.read_all(third) == world.sent, step
            await again.close()


@pytest.mark.parametrize("step", ["offload", "data", "index", "open", "read"])
async def test_a_former_owner_that_lives_on_leaves_nothing(world: OffloadWorld, step: str) -> None:
    """It writes under a UUID that the next owner has cleared away, and clears that itself when it finds out."""
    ledger = await world.filled(keeping(ASKED), ledgers=1)
    await prepared(ledger)
    former = world.offloader
    gate = asyncio.Event()
    came = asyncio.Event()
    right = former.step

    async def slow(name: str) -> None:
        if name == step:
            came.set()
            await gate.wait()
        await right(name)

    former.step = slow  # type: ignore[method-assign] # Only to wait.
    await ledger.offloads.offload_before((1, 0))
    await came.wait()
    after = await world.opened(keeping())
    await until_done(after)
    await world.check_settled()
    gate.set()
    await ledger.offloads.until_idle()
    assert ledger.offloads.status.status == "ERROR"
    with pytest.raises(ManagedLedgerFenced):
        await ledger.set_property("a", "b")
    await world.check_settled()
    assert await world.read_all(after) == world.sent


async def test_what_apache_offloaded_in_a_terminated_topic_is_not_taken_for_gone(world: OffloadWorld) -> None:
    """Apache's brokers offload its last ledger, too; recovery would not find it at the bookies."""
    ledger = await world.filled(keeping(ASKED), ledgers=1)
    await ledger.terminate()
    record = ledger.ledgers.last()
    ledger.ledgers.add(record_after := type(record)(record.ledger_id + 1))
    await ledger.offloads.offload_before((record_after.ledger_id, 0))
    await ledger.offloads.until_idle()
    ledger.settings = with_policy(keeping(ASKED), deletion_lag_ms=-1)
    await until_done(ledger)
    ledger.ledgers.remove((record_after.ledger_id,))
    await ledger.set_property("a", "b")
    await ledger.close()
    assert not at_bookies(record)
    again = await world.opened()
    assert again.ledgers.ids == [0, 1]
    assert await world.read_all(again) == world.sent


async def test_an_offload_by_policy_ends_quietly_when_another_owner_came(
    world: OffloadWorld, caplog: pytest.LogCaptureFixture
) -> None:
    ledger = await world.filled(keeping(ASKED), ledgers=1)
    await prepared(ledger)
    await world.opened(keeping(ASKED))
    ledger.settings = keeping()
    with caplog.at_level(logging.INFO):
        ledger.offloads.later()
        await until_done(ledger)
    assert "no more offloads" in caplog.text
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []


async def test_an_offload_says_how_far_it_is(world: OffloadWorld) -> None:
    ledger = await world.filled(keeping(ASKED), ledgers=1)
    await prepared(ledger)
    seen: list[tuple[str, OffloadState]] = []
    right = world.offloader.step

    async def noting(name: str) -> None:
        assert ledger.offloads._current is not None
        seen.append((name, ledger.offloads._current[0].state))
        await right(name)

    world.offloader.step = noting  # type: ignore[method-assign] # Only to look.
    await ledger.offloads.offload_before((1, 0))
    await ledger.offloads.until_idle()
    states = dict(seen)
    assert states["data"] is states["index"] is OffloadState.COPYING
    assert states["open"] is states["read"] is OffloadState.VERIFYING


def test_the_states_of_an_offload() -> None:
    """In order; it may fail anywhere before its end."""
    assert isinstance(OFFLOAD_TRANSITIONS, Transitions)
    order = [state for state in OffloadState if state is not OffloadState.FAILED]
    for index, before in enumerate(OffloadState):
        for after in OffloadState:
            allowed = before in order[:-1] and (after is OffloadState.FAILED or after is order[index + 1])
            assert OFFLOAD_TRANSITIONS.allows(before, after) == allowed


def test_a_policy_offloads_by_itself_with_a_store_and_a_threshold() -> None:
    assert OFFLOADED.by_itself
    assert not ASKED.by_itself
    assert not replace(OFFLOADED, store=None).by_itself
