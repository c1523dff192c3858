"""What is on its way to a compacted ledger has a bound; what it fails with is heard."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from magnetar.broker.compaction.output import BYTES_IN_FLIGHT_MAX, ENTRIES_IN_FLIGHT_MAX, CompactedOutput
from magnetar.broker.compaction.record import CompactionRecord
from magnetar.core.clock import SystemClock
from magnetar.ledger.api import LedgerFenced
from magnetar.sim.virtual_time import VirtualTimeLoop

new_event_loop = VirtualTimeLoop


class SlowWriter:
    """A ledger whose entries are stored when the test says so."""

    def __init__(self) -> None:
        self.ledger_id = 7
        self.last_add_confirmed = -1
        self.last_add_pushed = -1
        self.length_bytes = 0
        self.times_closed: list[int] = []

    def append(self, payloads: Sequence[bytes]) -> int:
        first = self.last_add_pushed + 1
        self.last_add_pushed += len(payloads)
        self.length_bytes += sum(map(len, payloads))
        return first

    async def read(self, first_entry_id: int, last_entry_id: int) -> list[bytes]:
        raise NotImplementedError

    async def close(self) -> None:
        self.times_closed.append(self.last_add_confirmed)

    async def abandon(self) -> None:
        raise NotImplementedError


def output() -> tuple[CompactedOutput, SlowWriter, CompactionRecord]:
    record, writer = CompactionRecord(), SlowWriter()
    made = CompactedOutput(record, SystemClock())
    made.use(writer)
    return made, writer, record


async def turns() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


@pytest.mark.parametrize(
    ("group", "groups"), [([b"x"] * 100, ENTRIES_IN_FLIGHT_MAX // 100), ([bytes(4 << 20)], BYTES_IN_FLIGHT_MAX >> 22)]
)
async def test_so_much_is_in_flight(group: list[bytes], groups: int) -> None:
    made, writer, record = output()
    for _ in range(groups):
        await made.add(group)
    waiting = asyncio.create_task(made.add(group))
    await turns()
    assert writer.last_add_pushed == groups * len(group) - 1
    writer.last_add_confirmed = len(group) - 1
    made.confirmed(7, len(group) - 1)
    await waiting
    assert writer.last_add_pushed == (groups + 1) * len(group) - 1
    finished = asyncio.create_task(made.finish())
    await turns()
    assert writer.times_closed == []
    writer.last_add_confirmed = writer.last_add_pushed
    made.confirmed(7, writer.last_add_confirmed)
    await finished
    assert writer.times_closed == [writer.last_add_pushed]
    assert sum(record.latencies) == (groups + 1) * len(group)
    assert record.bytes_written == writer.length_bytes


async def test_a_group_that_is_larger_than_any_bound_goes_alone() -> None:
    made, writer, _ = output()
    await made.add([bytes(BYTES_IN_FLIGHT_MAX + 1)])
    waiting = asyncio.create_task(made.add([b"x"]))
    await turns()
    assert writer.last_add_pushed == 0
    made.confirmed(7, 0)
    await waiting


async def test_a_failure_is_heard() -> None:
    made, _, _ = output()
    await made.add([b"x"] * ENTRIES_IN_FLIGHT_MAX)
    waiting = asyncio.create_task(made.add([b"x"]))
    await turns()
    made.failed(7, LedgerFenced("by another"))
    with pytest.raises(LedgerFenced):
        await waiting
    with pytest.raises(LedgerFenced):
        await made.finish()
