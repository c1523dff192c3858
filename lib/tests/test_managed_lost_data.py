"""Ledgers of a topic that somebody has removed, and those who ask for single entries of them again."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from magnetar.core.ids import EARLIEST
from magnetar.ledger.api import LedgerNotFound
from magnetar.managed.settings import ManagedLedgerSettings
from magnetar.managed.testing import ManagedWorld, append
from magnetar.sim.virtual_time import VirtualTimeLoop

new_event_loop = VirtualTimeLoop

NAME = "public/default/persistent/topic"
ROLLING = ManagedLedgerSettings(
    max_entries_per_ledger=2, minimum_rollover_ms=0, retention_time_ms=-1, retention_size_bytes=-1
)


@pytest.fixture
async def world() -> AsyncIterator[ManagedWorld]:
    world = ManagedWorld()
    yield world
    await world.close()


@pytest.mark.parametrize("skipped", [False, True])
async def test_entries_to_be_sent_again_that_are_lost_are_skipped_only_where_that_is_wanted(
    world: ManagedWorld, skipped: bool
) -> None:
    ledger = await world.factory(ROLLING, cache_bytes_max=0).open(NAME)
    cursor = await ledger.open_cursor("sub", EARLIEST)
    positions = [await append(ledger, [b"%d" % number]) for number in range(6)]
    del world.ledgers.stored[positions[2][0]]
    ledger.settings.skip_lost_data = skipped
    wanted = [positions[0], positions[3], positions[4]]
    if skipped:
        assert [entry.position for entry in await cursor.read_positions(wanted)] == [positions[0], positions[4]]
    else:
        with pytest.raises(LedgerNotFound):
            await cursor.read_positions(wanted)
