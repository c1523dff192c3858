"""The log of a coordinator with several records in one entry, in virtual time: as Apache's brokers write it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from magnetar.broker.transactions.coordinator import TransactionCoordinator
from magnetar.broker.transactions.names import LOG_CURSOR, log_name
from magnetar.core.ids import EARLIEST
from magnetar.managed.errors import ManagedLedgerFenced
from magnetar.managed.testing import read_all
from magnetar.sim.virtual_time import VirtualTimeLoop
from magnetar.wire.pulsar.errors import PulsarError, ServerError
from magnetar.wire.pulsar.transaction_log import Record, decode

from broker.tests.transaction_stage import NOBODY, CoordinatorStage, coordinator_stage

new_event_loop = VirtualTimeLoop

TOPIC = "persistent://t/n/a"
MINUTE_MS = 60_000
BATCHED: dict[str, Any] = {"log_batched": True, "log_batch_records_max": 3, "log_batch_delay_ms": 50}
HEADER = b"\x0e\x01\x00\x01"


async def entries(stage: CoordinatorStage) -> list[bytes]:
    """Of the log, as another broker finds them."""
    ledger = await stage.world.factory().open(log_name(3))
    return await read_all(await ledger.open_cursor("somebody-else", EARLIEST))


async def begin(coordinator: TransactionCoordinator, count: int) -> list[int]:
    """So many at once."""
    begun = await asyncio.gather(*(coordinator.new_transaction(MINUTE_MS, NOBODY) for _ in range(count)))
    return [one.sequence for one in begun]


def sequences(entry: bytes) -> list[int]:
    return [int(record.txnid_least_bits) for record in decode(entry)]


async def test_records_that_come_together_are_one_entry_in_their_order() -> None:
    async with coordinator_stage() as stage:
        coordinator = await stage.open(**BATCHED)
        assert await begin(coordinator, 5) == [0, 1, 2, 3, 4]
        found = await entries(stage)
        assert [sequences(entry) for entry in found] == [[0, 1, 2], [3, 4]]
        assert all(entry.startswith(HEADER) for entry in found)


async def test_a_record_alone_waits_no_longer_than_set_and_has_the_form_of_several() -> None:
    async with coordinator_stage() as stage:
        coordinator = await stage.open(**BATCHED)
        before = asyncio.get_running_loop().time()
        await begin(coordinator, 1)
        assert asyncio.get_running_loop().time() - before == pytest.approx(0.05, abs=0.01)
        (entry,) = await entries(stage)
        assert entry.startswith(HEADER)


async def test_an_entry_has_no_more_bytes_than_set_and_what_is_larger_goes_alone() -> None:
    async with coordinator_stage() as stage:
        bytes_max = 200
        coordinator = await stage.open(
            **{**BATCHED, "log_batch_records_max": 512, "log_batch_bytes_max": bytes_max, "log_batch_delay_ms": 1_000}
        )
        await begin(coordinator, 20)
        long_name = "persistent://t/n/" + "x" * bytes_max
        await asyncio.gather(
            coordinator.add_partitions(0, NOBODY, [TOPIC]),
            coordinator.add_partitions(0, NOBODY, [long_name]),
            coordinator.add_partitions(1, NOBODY, [TOPIC]),
        )
        found = await entries(stage)
        records = [record for entry in found for record in decode(entry)]
        assert [int(record.txnid_least_bits) for record in records] == [*range(20), 0, 0, 1]
        (alone,) = [entry for entry in found if not entry.startswith(HEADER)]
        assert list(decode(alone)[0].partitions) == [long_name]
        for entry in found:
            if entry is not alone:
                assert sum(record.ByteSize() for record in decode(entry)) <= bytes_max
        assert len(found) < len(records)


@pytest.mark.parametrize("again", [BATCHED, {}], ids=["batched", "one-by-one"])
async def test_what_is_over_is_forgotten_and_the_rest_goes_on_after_a_crash(again: dict[str, Any]) -> None:
    async with coordinator_stage() as stage:
        coordinator = await stage.open(**BATCHED)
        await begin(coordinator, 6)
        await coordinator.add_partitions(4, NOBODY, [TOPIC])
        await asyncio.gather(*(coordinator.end(sequence, NOBODY, commit=True) for sequence in (0, 2, 5)))
        await coordinator.abandon()
        after = await stage.open(**again)
        assert [one.id.sequence for one in after.table] == [1, 3, 4]
        assert list(after.table.get(4).partitions) == [TOPIC]
        assert (await after.new_transaction(MINUTE_MS, NOBODY)).sequence == 6
        for sequence in (1, 3, 4, 6):
            await after.end(sequence, NOBODY, commit=False)
        await after.close()
        cursor = await (await stage.world.factory().open(log_name(3))).open_cursor(LOG_CURSOR, EARLIEST)
        assert await read_all(cursor) == []


async def test_what_waits_when_a_coordinator_is_closed_is_stored() -> None:
    async with coordinator_stage() as stage:
        coordinator = await stage.open(**{**BATCHED, "log_batch_delay_ms": 10_000})
        begun = asyncio.ensure_future(coordinator.new_transaction(MINUTE_MS, NOBODY))
        await asyncio.sleep(0)
        await coordinator.close()
        assert (await begun).sequence == 0
        assert [one.id.sequence for one in (await stage.open()).table] == [0]


async def test_what_waits_when_a_coordinator_is_abandoned_is_refused() -> None:
    async with coordinator_stage() as stage:
        coordinator = await stage.open(**{**BATCHED, "log_batch_delay_ms": 10_000})
        begun = asyncio.ensure_future(coordinator.new_transaction(MINUTE_MS, NOBODY))
        await asyncio.sleep(0)
        await coordinator.abandon()
        with pytest.raises(PulsarError) as refusal:
            await begun
        assert refusal.value.code is ServerError.TRANSACTION_COORDINATOR_NOT_FOUND
        assert await entries(stage) == []


async def test_all_records_of_an_entry_that_is_not_stored_are_refused() -> None:
    async with coordinator_stage() as stage:
        coordinator = await stage.open(**BATCHED)
        await stage.open()
        outcomes = await asyncio.gather(
            *(coordinator.new_transaction(MINUTE_MS, NOBODY) for _ in range(3)), return_exceptions=True
        )
        assert all(isinstance(outcome, PulsarError) for outcome in outcomes)
        assert [type(error) for error in stage.failures] == [ManagedLedgerFenced]


async def test_the_newest_id_of_an_entry_of_several_is_never_given_again() -> None:
    async with coordinator_stage() as stage:
        coordinator = await stage.open(**BATCHED)
        await begin(coordinator, 3)
        records = decode((await entries(stage))[-1])
        assert [record.metadata_op for record in records] == [Record.NEW] * 3
        after = await stage.open(**BATCHED)
        assert (await after.new_transaction(MINUTE_MS, NOBODY)).sequence == 3
