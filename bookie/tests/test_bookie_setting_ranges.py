"""Every numeric setting of a bookie has a range, and what passes `--check` starts."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Final

import pytest
from magnetar.bookie.app import start_bookie
from magnetar.bookie.process.bookie import BookieProcessSettings, bookie_process_settings
from magnetar.bookie.setting_names import SETTINGS, known_names
from magnetar.core.clock import SystemClock
from magnetar.core.errors import SettingError, SettingErrors
from magnetar.core.setting import Row
from magnetar.core.settings_file import GivenSettings, kind_of, range_of
from magnetar.metadata.memory import MemoryMetadataStore

NUMBERS: Final = [(row, name) for row in SETTINGS.rows for name in row.names if range_of(row, name) is not None]

TOGETHER: Final = {
    "dbStorage_writeCacheMaxSizeMb": "64",
    "diskUsageLwmThreshold": "0.01",
    "diskUsageThreshold": "1",
    "gcWaitTime": "1",
    "journalAlignmentSize": "4096",
    "journalMaxSizeMB": "2048",
    "majorCompactionInterval": "2",
    "majorCompactionThreshold": "0.5",
    "minorCompactionInterval": "1",
    "minorCompactionThreshold": "0.2",
}
"""Those that must fit to others, and what would take memory or disk of the machine that tests."""


def checked(**values: str) -> BookieProcessSettings:
    found = GivenSettings(known_names())
    with found.gathering():
        for name, value in {"advertisedAddress": "127.0.0.1", **values}.items():
            found.add(name, value, "here")
        return bookie_process_settings(found)


def bounds(row: Row, name: str) -> tuple[Fraction, Fraction]:
    found = range_of(row, name)
    assert found is not None
    return found


def test_every_number_has_a_range() -> None:
    for row in SETTINGS.rows:
        if kind_of(row) in (int, float):
            assert all(bounds(row, name)[0] < bounds(row, name)[1] < 2**63 for name in row.names), row.name


@pytest.mark.parametrize(("row", "name"), NUMBERS, ids=[name for _, name in NUMBERS])
def test_what_is_outside_is_refused_by_name_value_and_range(row: Row, name: str) -> None:
    low, high = bounds(row, name)
    for wrong in (int(low) - 1, int(high) + 1):
        with pytest.raises(SettingError, match=rf"here: {name} is '{wrong}', and not a (whole )?number"):
            checked(**{name: str(wrong)})


def test_all_that_is_wrong_is_told_at_once() -> None:
    with pytest.raises(SettingErrors) as refused:
        checked(
            advertisedAddress="",
            listeningInterface="lo",
            metadataServiceUri="zk+flat://one/ledgers",
            journalMaxSizeMB="0",
            gcWaitTime="x",
            httpServerTlsEnable="true",
            ensemblePlacementPolicy="Mine",
        )
    for part in ("allowLoopback", "'flat'", "journalMaxSizeMB is '0'", "gcWaitTime", "httpServerTlsEnable", "Mine"):
        assert any(part in problem for problem in refused.value.problems), (part, refused.value.problems)
    assert len(refused.value.problems) == 6


@pytest.mark.parametrize("end", [0, 1], ids=["lowest", "highest"])
async def test_all_settings_at_their_bounds_start(end: int, tmp_path: Path) -> None:
    values = {}
    for row, name in NUMBERS:
        bound = bounds(row, name)[end]
        values[name] = str(int(bound) if bound == int(bound) else float(bound))
    values |= TOGETHER | {"journalPreAllocSizeMB": "16", "bookiePort": "0", "bookieId": "b"}
    made = checked(**values)
    bookie = replace(
        made.bookie,
        journal_directories=(tmp_path / "journal",),
        ledger_directories=(tmp_path / "ledgers",),
        serve_tcp=False,
    )
    store = MemoryMetadataStore()
    running = await start_bookie(bookie, store, SystemClock())
    await running.close()
    await store.close()
