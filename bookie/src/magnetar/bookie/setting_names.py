"""What the names in a `bookkeeper.conf` mean here; see `magnetar.core.settings_file`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from magnetar.bookie.autorecovery import settings as autorecovery
from magnetar.bookie.gc import settings as garbage_collection
from magnetar.bookie.settings import UPSTREAM_NAMES
from magnetar.core.settings_file import SettingNames, Unit
from magnetar.process.control_settings import CONTROL_NAMES

UNITS: Final = {
    "auditorPeriodicBookieCheckInterval": Unit.SECONDS,
    "auditorPeriodicCheckInterval": Unit.SECONDS,
    "auditorPeriodicPlacementPolicyCheckInterval": Unit.SECONDS,
    "auditorReplicasCheckInterval": Unit.SECONDS,
    "bookieDeathWatchInterval": Unit.MS,
    "diskCheckInterval": Unit.MS,
    "entryLocationCompactionInterval": Unit.SECONDS,
    "explicitLacInterval": Unit.MS,
    "flushInterval": Unit.MS,
    "gcOverreplicatedLedgerWaitTime": Unit.MS,
    "gcWaitTime": Unit.MS,
    "localScrubInterval": Unit.SECONDS,
    "lockReleaseOfFailedLedgerGracePeriod": Unit.MS,
    "lostBookieRecoveryDelay": Unit.SECONDS,
    "majorCompactionInterval": Unit.SECONDS,
    "minorCompactionInterval": Unit.SECONDS,
    "openLedgerRereplicationGracePeriod": Unit.MS,
    "readTimeout": Unit.SECONDS,
    "speculativeReadTimeout": Unit.MS,
    "underreplicatedLedgerRecoveryGracePeriod": Unit.SECONDS,
    "zkTimeout": Unit.MS,
}
"""Units that names do not tell (BookKeeper: conf/ServerConfiguration, conf/ClientConfiguration)."""

ALIASES: Final = {"compactionRate": "compactionRateByEntries", "journalDirectory": "journalDirectories"}
"""Other names that BookKeeper takes for the same; they count when the right-hand one is not set."""

NODE_NAMES: Final = (
    "autoRecoveryDaemonEnabled",
    "enforceMinNumRacksPerWriteQuorum",
    "ensemblePlacementPolicy",
    "httpServerEnabled",
    "httpServerHost",
    "httpServerPort",
    "minNumRacksPerWriteQuorum",
    "prometheusStatsHttpAddress",
    "prometheusStatsHttpEnable",
    "prometheusStatsHttpPort",
)
"""BookKeeper's names of what stands beside the storage."""

DRAIN_RATE: Final = "drainRateByBytes"
"""Our own, as BookKeeper's bookies do not drain themselves: bytes per second, as replicationRateByBytes."""


def bookie_setting_names() -> SettingNames:
    """BookKeeper's names of the fields of `BookieSettings`."""
    return _names(UPSTREAM_NAMES)


def garbage_collection_names() -> SettingNames:
    """BookKeeper's names of the fields of `GarbageCollectionSettings`."""
    return _names(garbage_collection.UPSTREAM_NAMES)


def autorecovery_names() -> SettingNames:
    """BookKeeper's names of the fields of `AutoRecoverySettings`."""
    return _names(autorecovery.UPSTREAM_NAMES)


def known_names() -> frozenset[str]:
    """Every name that a `bookkeeper.conf` may hold (made by `tools/generate_setting_names.py`), and our own."""
    listed = Path(__file__).with_name("upstream_settings.txt").read_text(encoding="utf-8").split()
    parts = (bookie_setting_names(), garbage_collection_names(), autorecovery_names())
    return frozenset(listed).union(NODE_NAMES, CONTROL_NAMES, [DRAIN_RATE], *(part.fields for part in parts))


def _names(fields: Mapping[str, str]) -> SettingNames:
    # Aliases first: what is built later from the same field wins.
    aliases = {alias: fields[name] for alias, name in ALIASES.items() if name in fields}
    return SettingNames(fields={**aliases, **fields}, units=UNITS)
