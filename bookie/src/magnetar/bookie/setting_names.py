"""All settings of a bookie and of AutoRecovery; see `magnetar.core.setting`."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from magnetar.bookie.autorecovery.settings import AutoRecoverySettings
from magnetar.bookie.gc.settings import GarbageCollectionSettings
from magnetar.bookie.settings import BookieSettings
from magnetar.core.setting_catalogue import Catalogue
from magnetar.process.control_settings import CONTROL_NAMES

PROCESS_NAMES: Final = (
    "allowLoopback",
    "autoRecoveryDaemonEnabled",
    "bookieAuthProviderFactoryClass",
    "enforceMinNumRacksPerWriteQuorum",
    "ensemblePlacementPolicy",
    "httpServerEnabled",
    "httpServerHost",
    "httpServerPort",
    "httpServerTlsEnable",
    "listeningInterface",
    "metadataServiceUri",
    "minNumRacksPerWriteQuorum",
    "prometheusStatsHttpAddress",
    "prometheusStatsHttpEnable",
    "prometheusStatsHttpPort",
    "tlsProviderFactoryClass",
    "useHostNameAsBookieID",
    "zkLedgersRootPath",
    "zkServers",
    "zkTimeout",
)
"""BookKeeper's names of settings that `magnetar.bookie.process` reads itself."""

DRAIN_RATE: Final = "drainRateByBytes"
"""Our own, as BookKeeper's bookies do not drain themselves: bytes per second, as replicationRateByBytes."""

SETTINGS: Final = Catalogue(
    Path(__file__).with_name("upstream_settings.txt"),
    BookieSettings,
    GarbageCollectionSettings,
    AutoRecoverySettings,
    read_apart=(*PROCESS_NAMES, *CONTROL_NAMES, DRAIN_RATE),
)


def known_names() -> frozenset[str]:
    """Every name that a `bookkeeper.conf` may hold."""
    return SETTINGS.names
