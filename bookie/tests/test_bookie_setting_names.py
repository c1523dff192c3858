"""The names of `bookkeeper.conf`, and what they become."""

from __future__ import annotations

from pathlib import Path

import pytest
from magnetar.bookie.setting_names import ALIASES, UNITS, bookie_setting_names, known_names
from magnetar.bookie.settings import UPSTREAM_NAMES, BookieSettings
from magnetar.core.errors import SettingError
from magnetar.core.limits import MIB
from magnetar.core.settings_file import GivenSettings, unit_factor

LISTED = Path(__file__).parents[1] / "src" / "magnetar" / "bookie" / "upstream_settings.txt"


def settings() -> BookieSettings:
    return BookieSettings(journal_directories=(Path("j"),), ledger_directories=(Path("l"),))


def built(**values: str) -> BookieSettings:
    given = GivenSettings(known_names())
    for name, value in values.items():
        given.add(name, value, "here")
    return given.build(settings(), bookie_setting_names())


def test_every_name_is_one_of_bookkeepers() -> None:
    listed = set(LISTED.read_text().split())
    assert set(UPSTREAM_NAMES) <= listed
    assert set(UNITS) <= listed
    assert set(ALIASES) <= listed
    assert {"zkServers", "metadataServiceUri", "bookieId", "dbStorage_readAheadCacheMaxSizeMb"} <= listed


def test_every_name_has_a_field_and_a_unit() -> None:
    for name, path in bookie_setting_names().fields.items():
        value: object = settings()
        for part in path.split("."):
            value = getattr(value, part)
        assert unit_factor(name, path, UNITS.get(name)) > 0


def test_units_become_ours() -> None:
    found = built(
        journalMaxSizeMB="512",
        flushInterval="1500",
        diskCheckInterval="2500",
        dbStorage_writeCacheMaxSizeMb="64",
        logSizeLimit="1073741824",
        journalSyncData="false",
        journalDirectories="/a,/b",
        diskUsageThreshold="0.97",
        dbStorage_rocksDB_blockCacheSize="",
    )
    assert found.journal.size_bytes_max == 512 * MIB
    assert found.storage.flush_interval_seconds == 1.5
    assert found.disk.check_interval_seconds == 2.5
    assert found.storage.write_cache_bytes_max == 64 * MIB
    assert found.storage.entry_log_bytes_max == 1 << 30
    assert found.journal.sync_data is False
    assert found.journal_directories == (Path("/a"), Path("/b"))
    assert found.storage.block_cache_bytes == settings().storage.block_cache_bytes


def test_the_old_name_of_the_journal_directory_counts_less() -> None:
    assert built(journalDirectory="/old").journal_directories == (Path("/old"),)
    assert built(journalDirectory="/old", journalDirectories="/new").journal_directories == (Path("/new"),)


def test_what_is_out_of_bounds_is_named_as_it_was_given() -> None:
    with pytest.raises(SettingError, match=r"journalMaxSizeMB .*\(here: journalMaxSizeMB=1\)"):
        built(journalMaxSizeMB="1")
