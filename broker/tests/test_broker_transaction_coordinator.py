"""One transaction coordinator: what it promises clients, keeps in its log and does after a crash, in virtual time."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from magnetar.broker.states import CoordinatorState, TransactionState
from magnetar.broker.transactions.api import Asker
from magnetar.broker.transactions.coordinator import END_WAIT_SECONDS_MAX, NAMES_CHARACTERS_MAX, TransactionCoordinator
from magnetar.broker.transactions.coordinator_timeouts import PURGED_FROM
from magnetar.broker.transactions.names import TransactionId, log_name
from magnetar.broker.transactions.records import MAX_LOCAL_TXN_ID, Stamp, opened, partitions_added, state_changed
from magnetar.client.errors import TimedOut
from magnetar.core.ids import EARLIEST
from magnetar.managed.paths import ledger_path
from magnetar.managed.settings import ManagedLedgerSettings
from magnetar.managed.testing import append, read_all
from magnetar.metadata.store import Node, StoreUnavailable
from magnetar.sim.virtual_time import EPOCH_MS, VirtualTimeLoop
from magnetar.wire.pulsar.errors import PulsarError, ServerError
from magnetar.wire.pulsar.transaction_log import BadTransactionRecord, Record, decode, encode_batch

from broker.tests.transaction_stage import NOBODY, CoordinatorStage, coordinator_stage

new_event_loop = VirtualTimeLoop

A, B = "persistent://t/n/a", "persistent://t/n/b"
MINUTE_MS = 60_000
ALICE, BOB, ROOT = Asker("alice", super_user=False), Asker("bob", super_user=False), Asker("root", super_user=True)


async def begin(coordinator: TransactionCoordinator, *topics: str, timeout_ms: int = MINUTE_MS) -> int:
    """A transaction in which these topics take part; its id."""
    sequence = (await coordinator.new_transaction(timeout_ms, NOBODY)).sequence
    if topics:
        await coordinator.add_partitions(sequence, NOBODY, topics)
    return sequence


async def refused(work: Any, code: ServerError) -> str:
    """What it is refused with."""
    with pytest.raises(PulsarError) as refusal:
        await work
    assert refusal.value.code is code, refusal.value
    return refusal.value.message


async def log_records(stage: CoordinatorStage) -> list[Record]:
    """Everything that is in the log and not acknowledged, as another broker finds it."""
    ledger = await stage.world.factory().open(log_name(3))
    cursor = await ledger.open_cursor("transaction.subscription", EARLIEST)
    return [record for data in await read_all(cursor) for record in decode(data)]


async def test_a_commit_is_told_to_all_before_it_is_over() -> None:
    async with coordinator_stage() as stage:
        coordinator = await stage.open()
        assert await coordinator.new_transaction(MINUTE_MS, NOBODY) == TransactionId(3, 0)
        await coordinator.add_partitions(0, NOBODY, [A, B])
        await coordinator.add_subscriptions(0, NOBODY, [(A, "s"), (B, "s")])
        stage.participants.held = asyncio.Event()
        end = asyncio.create_task(coordinator.end(0, NOBODY, commit=True))
        await stage.until(lambda: stage.participants.attempts == 4)
        assert coordinator.table.get(0).state is TransactionState.COMMITTING
        assert not end.done()
        stage.participants.held.set()
        await end
        assert stage.participants.outcomes() == {key: [(0, True)] for key in ((A, ""), (B, ""), (A, "s"), (B, "s"))}
        await refused(coordinator.end(0, NOBODY, commit=True), ServerError.TRANSACTION_NOT_FOUND)


async def test_the_log_of_one_life() -> None:
    async with coordinator_stage() as stage:
        coordinator = await stage.open()
        await begin(coordinator, A)
        await coordinator.add_subscriptions(0, NOBODY, [(B, "s")])
        stage.participants.refusals[A] = TimedOut("not now")
        end = asyncio.create_task(coordinator.end(0, NOBODY, commit=False))
        await stage.until(lambda: stage.participants.attempts > 3)
        found = [
            (record.metadata_op, record.txnid_most_bits, record.txnid_least_bits, record.max_local_txn_id)
            for record in await log_records(stage)
        ]
        assert found == [(operation, 3, 0, 0) for operation in range(4)]
        await asyncio.wait([end])
        assert isinstance(end.exception(), PulsarError)


@pytest.mark.parametrize("commit", [True, False])
async def test_the_low_water_mark_travels_along(commit: bool) -> None:
    async with coordinator_stage() as stage:
        coordinator = await stage.open()
        for _ in range(3):
            await begin(coordinator, A)
        for sequence in (1, 0, 2):
            await coordinator.end(sequence, NOBODY, commit=commit)
        assert [(one[0], one[1], one[2]) for one in stage.participants.told] == [
            (1, commit, -1),
            (0, commit, -1),
            (2, commit, 1),
        ]


async def test_what_does_not_fit_the_state_is_refused() -> None:
    async with coordinator_stage() as stage:
        coordinator = await stage.open()
        await begin(coordinator, A)
        stage.participants.held = asyncio.Event()
        end = asyncio.create_task(coordinator.end(0, NOBODY, commit=True))
        await stage.until(lambda: stage.participants.attempts == 1)
        for work in (
            coordinator.end(0, NOBODY, commit=False),
            coordinator.add_partitions(0, NOBODY, [B]),
            coordinator.add_subscriptions(0, NOBODY, [(B, "s")]),
        ):
            await refused(work, ServerError.INVALID_TXN_STATUS)
        again = asyncio.create_task(coordinator.end(0, NOBODY, commit=True))
        await asyncio.sleep(1)
        stage.participants.held.set()
        await asyncio.gather(end, again)
        assert stage.participants.attempts == 1
        for work in (
            coordinator.end(7, NOBODY, commit=False),
            coordinator.add_partitions(7, NOBODY, [B]),
            coordinator.add_subscriptions(7, NOBODY, [(B, "s")]),
        ):
            await refused(work, ServerError.TRANSACTION_NOT_FOUND)


async def test_an_addition_that_is_under_way_when_the_end_begins_counts_or_is_refused() -> None:
    async with coordinator_stage() as stage:
        coordinator = await stage.open()
        await begin(coordinator)
        before = asyncio.ensure_future(coordinator.add_partitions(0, NOBODY, [A]))
        await asyncio.sleep(0)
        end = asyncio.ensure_future(coordinator.end(0, NOBODY, commit=True))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        after = asyncio.ensure_future(coordinator.add_partitions(0, NOBODY, [B]))
        await asyncio.wait([before, end, after])
        assert [task.exception() for task in (before, end)] == [None, None]
        assert isinstance(after.exception(), PulsarError)
        assert stage.participants.outcomes() == {(A, ""): [(0, True)]}


async def test_the_owner_and_super_users_alone_change_a_transaction() -> None:
    async with coordinator_stage() as stage:
        coordinator = await stage.open()
        await coordinator.new_transaction(MINUTE_MS, ALICE)
        text = await refused(coordinator.add_partitions(0, BOB, [A]), ServerError.TRANSACTION_NOT_FOUND)
        assert "Client (bob) is neither the owner of the transaction (3,0) nor a super user" in text
        await refused(coordinator.add_subscriptions(0, NOBODY, [(A, "s")]), ServerError.TRANSACTION_NOT_FOUND)
        await refused(coordinator.end(0, BOB, commit=True), ServerError.TRANSACTION_NOT_FOUND)
        await coordinator.add_partitions(0, ALICE, [A])
        # Also after a restart.
        coordinator = await stage.open()
        assert coordinator.table.get(0).owner == "alice"
        await refused(coordinator.end(0, BOB, commit=True), ServerError.TRANSACTION_NOT_FOUND)
        await coordinator.end(0, ROOT, commit=True)
        # What nobody owns, anybody may change.
        await coordinator.new_transaction(MINUTE_MS, NOBODY)
        await coordinator.end(1, BOB, commit=True)


async def test_there_are_bounds_of_transactions_and_of_each() -> None:
    async with coordinator_stage() as stage:
        coordinator = await stage.open(open_per_coordinator_max=2)
        await begin(coordinator)
        both = await asyncio.gather(begin(coordinator), begin(coordinator), return_exceptions=True)
        assert [isinstance(one, PulsarError) and one.code for one in both] == [False, ServerError.TOO_MANY_REQUESTS]
        await coordinator.end(0, NOBODY, commit=True)
        assert await begin(coordinator) == 2
        names = [f"{A}{number}-{'x' * 1000}" for number in range(NAMES_CHARACTERS_MAX // 1000)]
        await refused(coordinator.add_partitions(2, NOBODY, names), ServerError.NOT_ALLOWED_ERROR)
        await coordinator.add_partitions(2, NOBODY, names[: len(names) // 2])
        await refused(coordinator.add_partitions(2, NOBODY, names), ServerError.NOT_ALLOWED_ERROR)


async def test_what_is_there_already_is_not_added_again() -> None:
    async with coordinator_stage() as stage:
        coordinator = await stage.open()
        await begin(coordinator, A, A)
        for _ in range(3):
            await coordinator.add_partitions(0, NOBODY, [A])
            await coordinator.add_subscriptions(0, NOBODY, [(A, "s"), (A, "s")])
        assert len(await log_records(stage)) == 3


# --- time-outs


@pytest.mark.parametrize(("timeout_ms", "seconds"), [(MINUTE_MS, 60.0), (1, 0.0), (0, 0.0), (7_200_000, 7_200.0)])
async def test_nobody_ends_it(timeout_ms: int, seconds: float) -> None:
    async with coordinator_stage() as stage:
        coordinator = await stage.open()
        started = asyncio.get_running_loop().time()
        await begin(coordinator, A, timeout_ms=timeout_ms)
        if seconds:
            await asyncio.sleep(started + seconds - 0.01 - asyncio.get_running_loop().time())
            assert stage.participants.told == []
        await asyncio.sleep(0.1)
        assert stage.participants.outcomes() == {(A, ""): [(0, False)]}
        assert len(coordinator.table) == 0


async def test_one_that_was_decided_does_not_time_out() -> None:
    async with coordinator_stage() as stage:
        coordinator = await stage.open()
        await begin(coordinator, A, timeout_ms=1_000)
        await begin(coordinator, A, timeout_ms=2_000)
        await coordinator.end(1, NOBODY, commit=True)
        stage.participants.held = asyncio.Event()
        end = asyncio.create_task(coordinator.end(0, NOBODY, commit=True))
        await asyncio.sleep(10)
        stage.participants.held.set()
        await end
        assert stage.participants.outcomes() == {(A, ""): [(1, True), (0, True)]}


async def test_a_shorter_time_is_not_held_up_by_a_longer_one() -> None:
    async with coordinator_stage() as stage:
        coordinator = await stage.open()
        for timeout_ms in (MINUTE_MS, 1 << 62, 1_000, 5_000):
            await begin(coordinator, A, timeout_ms=timeout_ms)
        await asyncio.sleep(10)
        assert [one[0] for one in stage.participants.told] == [2, 3]
        await asyncio.sleep(100)
        assert [one[0] for one in stage.participants.told] == [2, 3, 0]


async def test_thousands_that_time_out_at_once_are_all_aborted_some_at_a_time() -> None:
    async with coordinator_stage() as stage:
        coordinator = await stage.open(requests_at_once_max=1)
        count = 1_000
        for _ in range(count):
            await begin(coordinator, timeout_ms=MINUTE_MS)
        await begin(coordinator, A, timeout_ms=MINUTE_MS)
        await stage.until(lambda: not len(coordinator.table))
        assert stage.participants.outcomes() == {(A, ""): [(count, False)]}


async def test_the_times_of_what_is_over_are_not_kept() -> None:
    async with coordinator_stage() as stage:
        coordinator = await stage.open()
        await begin(coordinator, A, timeout_ms=MINUTE_MS)
        for _ in range(3 * PURGED_FROM):
            await coordinator.end(await begin(coordinator, timeout_ms=1 << 40), NOBODY, commit=True)
        assert len(coordinator._timeouts) <= PURGED_FROM
        await asyncio.sleep(61)
        assert stage.participants.outcomes() == {(A, ""): [(0, False)]}


async def test_no_more_than_the_setting_are_ended_at_a_time() -> None:
    async with coordinator_stage() as stage:
        coordinator = await stage.open(requests_at_once_max=1)  # 100 at least, as at Apache's.
        for _ in range(150):
            await begin(coordinator, A)
        stage.participants.held = asyncio.Event()
        ends = [asyncio.create_task(coordinator.end(sequence, NOBODY, commit=True)) for sequence in range(150)]
        await asyncio.sleep(1)
        assert stage.participants.at_once_max == 100
        stage.participants.held.set()
        await asyncio.gather(*ends)


# --- participants that cannot be told


async def test_it_is_tried_again_until_all_have_heard_and_nobody_needlessly() -> None:
    async with coordinator_stage() as stage:
        coordinator = await stage.open()
        await begin(coordinator, A, B)
        await coordinator.add_subscriptions(0, NOBODY, [(A, "s"), (B, "s")])
        stage.participants.refusals[A] = PulsarError(ServerError.SERVICE_NOT_READY, "it moves")
        end = asyncio.create_task(coordinator.end(0, NOBODY, commit=True))
        await asyncio.sleep(30.5)
        assert not end.done()
        assert stage.participants.outcomes() == {(B, ""): [(0, True)], (B, "s"): [(0, True)]}
        # Once a second, of A's two: both are tried in the same attempt.
        assert stage.participants.attempts == 2 + 2 * 31
        del stage.participants.refusals[A]
        await end
        assert stage.participants.outcomes() == {key: [(0, True)] for key in ((A, ""), (B, ""), (A, "s"), (B, "s"))}


async def test_a_client_does_not_wait_for_ever_and_may_ask_again() -> None:
    async with coordinator_stage() as stage:
        coordinator = await stage.open()
        await begin(coordinator, A)
        stage.participants.refusals[A] = TimedOut("it is away")
        started = asyncio.get_running_loop().time()
        await refused(coordinator.end(0, NOBODY, commit=True), ServerError.SERVICE_NOT_READY)
        assert asyncio.get_running_loop().time() - started == pytest.approx(END_WAIT_SECONDS_MAX, abs=0.01)
        again = asyncio.create_task(coordinator.end(0, NOBODY, commit=True))
        await asyncio.sleep(0)
        del stage.participants.refusals[A]
        await again
        assert stage.participants.outcomes() == {(A, ""): [(0, True)]}


async def test_who_asks_while_it_is_tried_again_begins_no_second_attempt() -> None:
    async with coordinator_stage() as stage:
        coordinator = await stage.open()
        await begin(coordinator, A)
        stage.participants.refusals[A] = TimedOut("it is away")
        end = asyncio.create_task(coordinator.end(0, NOBODY, commit=True))
        await asyncio.sleep(0.5)
        stage.participants.held = asyncio.Event()
        await asyncio.sleep(1)
        assert (stage.participants.attempts, stage.participants.at_once) == (2, 1)
        again = asyncio.create_task(coordinator.end(0, NOBODY, commit=True))
        await asyncio.sleep(0.1)
        del stage.participants.refusals[A]
        stage.participants.held.set()
        await asyncio.gather(end, again)
        await asyncio.sleep(10)
        assert (stage.participants.attempts, stage.participants.at_once_max) == (2, 1)


async def test_a_refusal_for_good_is_told_and_tried_again_in_a_while() -> None:
    async with coordinator_stage() as stage:
        coordinator = await stage.open()
        await begin(coordinator, A)
        stage.participants.refusals[A] = PulsarError(ServerError.NOT_ALLOWED_ERROR, "Transactions are not enabled.")
        text = await refused(coordinator.end(0, NOBODY, commit=True), ServerError.NOT_ALLOWED_ERROR)
        assert text == "Transactions are not enabled."
        # Whoever asks again has it tried at once.
        await refused(coordinator.end(0, NOBODY, commit=True), ServerError.NOT_ALLOWED_ERROR)
        assert stage.participants.attempts == 2
        assert coordinator.table.get(0).state is TransactionState.COMMITTING
        del stage.participants.refusals[A]
        await asyncio.sleep(59)
        assert stage.participants.told == []
        await asyncio.sleep(2)
        assert stage.participants.outcomes() == {(A, ""): [(0, True)]}


# --- restarts


async def test_after_a_crash_everything_goes_on() -> None:
    async with coordinator_stage() as stage:
        coordinator = await stage.open()
        for timeout_ms in (MINUTE_MS, MINUTE_MS, 5_000, MINUTE_MS):
            await begin(coordinator, A, timeout_ms=timeout_ms)
        await coordinator.add_subscriptions(3, NOBODY, [(B, "s")])
        stage.participants.refusals[A] = TimedOut("it is away")
        ends = [
            asyncio.create_task(coordinator.end(0, NOBODY, commit=True)),
            asyncio.create_task(coordinator.end(1, NOBODY, commit=False)),
        ]
        await stage.until(lambda: stage.participants.attempts == 2)
        stage.participants.refusals.clear()
        successor = await stage.open()
        assert successor.state is CoordinatorState.READY
        assert successor.recovery_started_ms >= EPOCH_MS
        assert successor.recovery_ended_ms >= successor.recovery_started_ms
        await asyncio.sleep(0.5)
        # What was decided is ended again, what was open is open.
        assert stage.participants.outcomes() == {(A, ""): [(0, True), (1, False)]}
        assert [(one.id.sequence, one.state.name) for one in successor.table] == [(2, "OPEN"), (3, "OPEN")]
        await asyncio.sleep(5)
        # The former one may have told them again: it does not know yet, and they have heard the same.
        assert stage.participants.outcomes()[A, ""][-1] == (2, False)
        assert set(stage.participants.outcomes()[A, ""]) == {(0, True), (1, False), (2, False)}
        await successor.end(3, NOBODY, commit=True)
        assert stage.participants.outcomes()[B, "s"] == [(3, True)]
        assert await begin(successor) == 4
        # The former one finds that it has lost its log, and tells whoever waits to look elsewhere.
        for outcome in await asyncio.gather(*ends, return_exceptions=True):
            assert isinstance(outcome, PulsarError)
            assert outcome.code is ServerError.TRANSACTION_COORDINATOR_NOT_FOUND
        assert len(stage.failures) == 1
        await refused(begin(coordinator), ServerError.TRANSACTION_COORDINATOR_NOT_FOUND)


async def test_the_log_is_given_up_as_transactions_end() -> None:
    async with coordinator_stage() as stage:
        settings = ManagedLedgerSettings(max_entries_per_ledger=10, minimum_rollover_ms=0)
        coordinator = await stage.open(stage.world.factory(settings))
        held = await begin(coordinator)
        for _ in range(30):
            await coordinator.end(await begin(coordinator, A), NOBODY, commit=True)
        assert len(coordinator.log.ledger.ledgers.ids) > 10
        await coordinator.end(held, NOBODY, commit=False)
        await stage.until(lambda: len(coordinator.log.ledger.ledgers.ids) <= 2)
        await coordinator.close()
        successor = await stage.open()
        assert len(successor.table) == 0


async def test_an_id_is_never_given_twice_wherever_the_log_is_cut() -> None:
    """Each record's ledger may be full, and every owner may be the last one that wrote anything."""
    async with coordinator_stage() as stage:
        settings = ManagedLedgerSettings(max_entries_per_ledger=3, minimum_rollover_ms=0)
        expected = 0
        for life in range(12):
            coordinator = await stage.open(stage.world.factory(settings))
            assert coordinator.table.last_sequence == expected - 1, f"life {life}"
            for _ in range(life % 4):
                sequence = await begin(coordinator)
                assert sequence == expected
                expected += 1
                await coordinator.end(sequence, NOBODY, commit=True)
            await asyncio.sleep(5 * (life % 2))  # Cursor stored, ledgers trimmed; or not.
            if life % 3 == 0:
                await coordinator.close()
        assert expected == 18


async def test_the_list_of_ledgers_never_says_less_than_was_given() -> None:
    """What Apache's broker goes by when the last ledger is empty."""
    async with coordinator_stage() as stage:
        settings = ManagedLedgerSettings(max_entries_per_ledger=4, minimum_rollover_ms=0)
        coordinator = await stage.open(stage.world.factory(settings))
        for _ in range(10):
            sequence = await begin(coordinator)
            await coordinator.end(sequence, NOBODY, commit=True)
        await coordinator.log.ledger.roll()
        observer = await stage.world.factory().open(log_name(3))
        assert observer.properties == {MAX_LOCAL_TXN_ID: "9"}


async def test_an_append_without_an_answer_stops_the_coordinator() -> None:
    """COMMITTING may be stored or not: whoever said ABORT now would be wrong after the next restart."""
    async with coordinator_stage() as stage:
        coordinator = await stage.open()
        await begin(coordinator, A, timeout_ms=5_000)
        stage.world.ledgers.keep_failed = True
        stage.world.ledgers.fail_appends_after = 0
        stage.world.ledgers.not_enough_bookies()
        await refused(coordinator.end(0, NOBODY, commit=True), ServerError.TRANSACTION_COORDINATOR_NOT_FOUND)
        assert coordinator.state is CoordinatorState.CLOSED
        assert len(stage.failures) == 1
        await refused(begin(coordinator), ServerError.TRANSACTION_COORDINATOR_NOT_FOUND)
        await asyncio.sleep(10)
        assert stage.participants.told == []
        await coordinator.abandon()
        stage.world.ledgers.refuse_creation = None
        successor = await stage.open()
        await asyncio.sleep(10)
        (outcome,) = stage.participants.outcomes()[A, ""]
        assert outcome[0] == 0
        assert len(successor.table) == 0


async def test_while_a_bookie_is_away_for_a_moment_nobody_notices() -> None:
    async with coordinator_stage() as stage:
        coordinator = await stage.open()
        stage.world.ledgers.fail_appends_after = 1
        for _ in range(3):
            await coordinator.end(await begin(coordinator, A), NOBODY, commit=True)
        assert stage.failures == []
        assert [one[0] for one in stage.participants.told] == [0, 1, 2]


async def test_a_closed_one_tells_whoever_waits() -> None:
    async with coordinator_stage() as stage:
        coordinator = await stage.open()
        await begin(coordinator, A)
        stage.participants.refusals[A] = TimedOut("it is away")
        end = asyncio.create_task(coordinator.end(0, NOBODY, commit=True))
        await asyncio.sleep(2)
        await coordinator.close()
        await refused(end, ServerError.TRANSACTION_COORDINATOR_NOT_FOUND)
        attempts = stage.participants.attempts
        await asyncio.sleep(100)
        assert stage.participants.attempts == attempts
        await refused(coordinator.end(0, NOBODY, commit=True), ServerError.TRANSACTION_COORDINATOR_NOT_FOUND)


# --- logs of Apache's coordinators


async def test_entries_of_several_records_are_read_and_given_up_record_by_record() -> None:
    def of(sequence: int) -> Record:
        return opened(TransactionId(3, sequence), MINUTE_MS, "", Stamp(EPOCH_MS, sequence))

    stamp = Stamp(EPOCH_MS, 2)
    batch = [
        of(0),
        of(1),
        partitions_added(TransactionId(3, 0), [A], stamp),
        state_changed(TransactionId(3, 0), TransactionState.OPEN, TransactionState.ABORTING, stamp),
        of(2),
        state_changed(TransactionId(3, 0), TransactionState.ABORTING, TransactionState.ABORTED, stamp),
    ]
    async with coordinator_stage() as stage:
        ledger = (await stage.open_log()).ledger
        position = await append(ledger, [encode_batch(batch)])
        await append(ledger, [encode_batch([partitions_added(TransactionId(3, 1), [B], stamp)])])
        coordinator = await stage.open()
        assert [one.id.sequence for one in coordinator.table] == [1, 2]
        cursor = coordinator.log.ledger.cursors["transaction.subscription"]
        assert cursor.remaining_ack_set(position) == [0b010010]
        assert coordinator.table.last_sequence == 2
        await coordinator.close()
        # What was acknowledged is not seen again, the rest goes with its transactions.
        coordinator = await stage.open()
        assert [one.id.sequence for one in coordinator.table] == [1, 2]
        assert list(coordinator.table.get(1).partitions) == [B]
        await coordinator.end(2, NOBODY, commit=True)
        await coordinator.close()
        # The records of its end are gone as a whole: that of its beginning may not make it anew.
        coordinator = await stage.open()
        assert [one.id.sequence for one in coordinator.table] == [1]
        await coordinator.end(1, NOBODY, commit=True)
        assert stage.participants.outcomes() == {(B, ""): [(1, True)]}
        assert coordinator.log.ledger.cursors["transaction.subscription"].backlog_entries == 0


async def test_a_log_that_cannot_be_read_is_left_alone() -> None:
    async with coordinator_stage() as stage:
        coordinator = await stage.open()
        await begin(coordinator)
        await append(coordinator.log.ledger, [b"\xff\xff"])
        await begin(coordinator)
        with pytest.raises(BadTransactionRecord, match="__transaction_log_3 at "):
            await stage.open()
        await append(stage.opened[-1].log.ledger, [b"\xff\xff"])
        with pytest.raises(BadTransactionRecord):
            await stage.open_log()


async def test_a_fresh_log_begins_at_zero_and_its_cursor_at_its_beginning() -> None:
    async with coordinator_stage() as stage:
        log = await stage.open_log()
        assert log.last_sequence == -1
        assert list(log.ledger.cursors) == ["transaction.subscription"]
        assert log.ledger.name == "pulsar/system/persistent/__transaction_log_3"


async def test_what_passes_soon_is_tried_soon_beside_what_is_refused_for_good() -> None:
    async with coordinator_stage() as stage:
        coordinator = await stage.open()
        await begin(coordinator, A, B)
        stage.participants.refusals = {
            A: PulsarError(ServerError.NOT_ALLOWED_ERROR, "never"),
            B: PulsarError(ServerError.SERVICE_NOT_READY, "moving"),
        }
        ending = asyncio.ensure_future(coordinator.end(0, NOBODY, commit=True))
        await asyncio.sleep(0.5)
        del stage.participants.refusals[B]
        await asyncio.sleep(5)
        assert [told[3] for told in stage.participants.told] == [B]
        with pytest.raises(PulsarError):
            await ending


async def test_a_transaction_of_a_broker_whose_clock_was_ahead_has_no_more_than_its_time() -> None:
    """Found by the simulator of broker clusters: clocks a minute apart."""
    async with coordinator_stage() as stage:
        ledger = (await stage.open_log()).ledger
        stamp = Stamp(EPOCH_MS + 3_600_000, 0)
        await append(ledger, [opened(TransactionId(3, 0), 2_000, "", stamp).SerializeToString()])
        await append(ledger, [partitions_added(TransactionId(3, 0), [A], stamp).SerializeToString()])
        await stage.open()
        await asyncio.sleep(3)
        assert stage.participants.outcomes() == {(A, ""): [(0, False)]}


@pytest.mark.parametrize(
    "ask",
    [
        lambda one: one.end(7, NOBODY, commit=True),
        lambda one: one.end(0, NOBODY, commit=False),
        lambda one: one.add_partitions(0, NOBODY, [B]),
        lambda one: one.add_partitions(1, NOBODY, [A]),
        lambda one: one.add_subscriptions(1, NOBODY, []),
        lambda one: one.end(2, BOB, commit=True),
        lambda one: one.add_partitions(1, NOBODY, ["x" * (NAMES_CHARACTERS_MAX + 1)]),
        lambda one: one.new_transaction(MINUTE_MS, NOBODY),
    ],
)
async def test_a_broker_that_was_paused_answers_nothing_from_its_memory(ask: Any) -> None:
    """Somebody else runs the coordinator by now, who may know better: each of these asks no bookie."""
    async with coordinator_stage() as stage:
        stage.participants.held = asyncio.Event()
        paused = await stage.open(open_per_coordinator_max=3)
        await begin(paused, A)
        await begin(paused, A)
        await paused.new_transaction(MINUTE_MS, ALICE)
        ending = asyncio.ensure_future(paused.end(0, NOBODY, commit=True))
        await stage.until(lambda: stage.participants.at_once == 1)
        await stage.open()
        await refused(ask(paused), ServerError.TRANSACTION_COORDINATOR_NOT_FOUND)
        assert len(stage.failures) == 1
        await refused(ending, ServerError.TRANSACTION_COORDINATOR_NOT_FOUND)


async def test_a_broker_that_was_paused_does_not_say_that_an_end_is_under_way() -> None:
    async with coordinator_stage() as stage:
        paused = await stage.open()
        await begin(paused, A)
        stage.participants.held = asyncio.Event()
        ending = asyncio.ensure_future(paused.end(0, NOBODY, commit=True))
        await stage.until(lambda: stage.participants.at_once == 1)
        await stage.open()
        await refused(ending, ServerError.TRANSACTION_COORDINATOR_NOT_FOUND)


class Reads:
    """Holds back the answers to reads of a coordinator's node, one by one."""

    def __init__(self, stage: CoordinatorStage, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun: list[asyncio.Event] = []
        self.holds = True
        self.failure: StoreUnavailable | None = None
        get = stage.world.store.get

        async def held(path: str, *, watch: bool = True) -> Node | None:
            found: Node | None = await get(path, watch=watch)
            if not self.holds or path != ledger_path(log_name(3)):
                return found
            go_on = asyncio.Event()
            self.begun.append(go_on)
            async with asyncio.timeout(100):
                await go_on.wait()
            if self.failure is not None:
                raise self.failure
            return found

        monkeypatch.setattr(stage.world.store, "get", held)


async def test_hundreds_who_ask_at_once_share_reads_of_the_store(monkeypatch: pytest.MonkeyPatch) -> None:
    """However slow the store is: one read is under way, and one waits for all who came meanwhile."""
    async with coordinator_stage() as stage:
        coordinator = await stage.open()
        reads = Reads(stage, monkeypatch)
        first = asyncio.ensure_future(coordinator.check_owner())
        await stage.until(lambda: len(reads.begun) == 1)
        more = []
        for _ in range(300):
            asked = refused(coordinator.end(7, NOBODY, commit=True), ServerError.TRANSACTION_NOT_FOUND)
            more.append(asyncio.ensure_future(asked))
            await asyncio.sleep(0.01)
        # Who gives up takes the answer from nobody else.
        first.cancel()
        more[0].cancel()
        await asyncio.sleep(1)
        assert len(reads.begun) == 1
        reads.begun[0].set()
        await stage.until(lambda: len(reads.begun) == 2)
        assert not any(one.done() for one in more[1:])
        last = asyncio.ensure_future(coordinator.check_owner())
        reads.begun[1].set()
        await asyncio.gather(*more[1:])
        await stage.until(lambda: len(reads.begun) == 3)
        assert not last.done()
        reads.begun[2].set()
        await last


async def test_a_read_that_began_before_the_question_answers_it_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another broker takes the log over while the store's answer is on its way: who asks after that hears of it."""
    async with coordinator_stage() as stage:
        paused = await stage.open()
        await begin(paused, A)
        reads = Reads(stage, monkeypatch)
        before = asyncio.ensure_future(paused.check_owner())
        await stage.until(lambda: len(reads.begun) == 1)
        reads.holds = False
        await stage.open()
        after = asyncio.ensure_future(paused.add_partitions(0, NOBODY, [A]))
        await asyncio.sleep(1)
        reads.begun[0].set()
        await before
        await refused(after, ServerError.TRANSACTION_COORDINATOR_NOT_FOUND)


async def test_while_the_store_is_away_memory_answers_nothing_and_the_coordinator_stays(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with coordinator_stage() as stage:
        coordinator = await stage.open()
        await begin(coordinator, A)
        reads = Reads(stage, monkeypatch)
        reads.failure = StoreUnavailable("it is away")
        asked = [asyncio.ensure_future(coordinator.add_partitions(0, NOBODY, [A])) for _ in range(5)]
        await stage.until(lambda: len(reads.begun) == 1)
        reads.begun[0].set()
        assert await asyncio.gather(*asked, return_exceptions=True) == [reads.failure] * 5
        # What asks bookies goes on.
        await coordinator.add_partitions(0, NOBODY, [B])
        monkeypatch.undo()
        await coordinator.add_partitions(0, NOBODY, [A])
        assert stage.failures == []


async def test_a_coordinator_that_is_given_up_during_a_look_answers_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The store says that nobody else has its log; but it is not known any more what that says."""
    async with coordinator_stage() as stage:
        coordinator = await stage.open()
        await begin(coordinator, A)
        reads = Reads(stage, monkeypatch)
        asked = asyncio.ensure_future(coordinator.add_partitions(0, NOBODY, [A]))
        await stage.until(lambda: len(reads.begun) == 1)
        coordinator._give_up(TimedOut("an append has no answer"))
        reads.begun[0].set()
        await refused(asked, ServerError.TRANSACTION_COORDINATOR_NOT_FOUND)
