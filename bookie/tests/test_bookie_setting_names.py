"""The names of `bookkeeper.conf`, and what they become."""

from __future__ import annotations

from operator import attrgetter
from pathlib import Path

import pytest
from magnetar.bookie.autorecovery.settings import AutoRecoverySettings
from magnetar.bookie.gc.settings import GarbageCollectionSettings
from magnetar.bookie.setting_names import PROCESS_NAMES, SETTINGS, known_names
from magnetar.bookie.settings import BookieSettings
from magnetar.core.errors import SettingError
from magnetar.core.limits import MIB
from magnetar.core.setting import rows_of
from magnetar.core.settings_file import GivenSettings, unit_factor

LISTED = Path(__file__).parents[1] / "src" / "magnetar" / "bookie" / "upstream_settings.txt"


def settings() -> BookieSettings:
    return BookieSettings(journal_directories=(Path("j"),), ledger_directories=(Path("l"),))


def built(**values: str) -> BookieSettings:
    given = GivenSettings(known_names())
    for name, value in values.items():
        given.add(name, value, "here")
    return given.build(settings())


def test_every_name_is_one_of_bookkeepers() -> None:
    listed = set(LISTED.read_text().split())
    assert {name for row in SETTINGS.rows if not row.ours for name in row.names} <= listed
    # The brokers', who have a file for etcd; BookKeeper's bookies have none.
    assert set(PROCESS_NAMES) - listed == {"metadataStoreConfigPath"}
    assert {"zkServers", "metadataServiceUri", "bookieId", "dbStorage_readAheadCacheMaxSizeMb"} <= listed


@pytest.mark.parametrize("base", [settings(), GarbageCollectionSettings(), AutoRecoverySettings()])
def test_every_name_has_a_field_and_a_unit(base: object) -> None:
    for row in rows_of(type(base)):
        attrgetter(row.path)(base)
        assert all(unit_factor(row, name) > 0 for name in row.names)


def test_the_parts_take_pulsars_own_file() -> None:
    given = GivenSettings(known_names())
    for name, value in (
        ("compactionRateByEntries", "1000"),
        ("gcWaitTime", "900000"),
        ("majorCompactionInterval", "86400"),
        ("openLedgerRereplicationGracePeriod", "30000"),
        ("auditorPeriodicBookieCheckInterval", "86400"),
        ("lostBookieRecoveryDelay", "0"),
    ):
        given.add(name, value, "here")
    collection = given.build(GarbageCollectionSettings())
    assert (collection.wait_seconds, collection.major_interval_seconds) == (900, 86_400)
    recovery = given.build(AutoRecoverySettings())
    assert recovery.replication.open_ledger_grace_seconds == 30
    assert recovery.auditor.bookie_check_interval_seconds == 86_400
    assert given.without_effect() == []


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
