"""All settings of a bookie and of AutoRecovery; see `magnetar.core.setting`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from magnetar.bookie.autorecovery.settings import AutoRecoverySettings
from magnetar.bookie.gc.settings import GarbageCollectionSettings
from magnetar.bookie.settings import BookieSettings
from magnetar.core.setting_catalogue import Catalogue
from magnetar.process.control_settings import CONTROL_NAMES
from magnetar.process.missing_features import MissingFeature

PROCESS_NAMES: Final = (
    "allowLoopback",
    "autoRecoveryDaemonEnabled",
    "enforceMinNumRacksPerWriteQuorum",
    "ensemblePlacementPolicy",
    "httpServerEnabled",
    "httpServerHost",
    "httpServerPort",
    "httpServerTlsEnable",
    "listeningInterface",
    "metadataServiceUri",
    "metadataStoreConfigPath",
    "minNumRacksPerWriteQuorum",
    "prometheusStatsHttpAddress",
    "prometheusStatsHttpEnable",
    "prometheusStatsHttpPort",
    "useHostNameAsBookieID",
    "zkLedgersRootPath",
    "zkServers",
    "zkTimeout",
)
"""BookKeeper's names of settings that `magnetar.bookie.process` reads itself."""

DRAIN_RATE: Final = "drainRateByBytes"
"""Our own, as BookKeeper's bookies do not drain themselves: bytes per second, as replicationRateByBytes."""

MISSING: Final[Mapping[str, MissingFeature]] = {
    "allowStorageExpansion": MissingFeature("further ledger directories after a bookie's first start"),
    "dbStorage_directIOEntryLogger": MissingFeature("direct input and output for entry logs"),
    "entryLogPerLedgerEnabled": MissingFeature("entry logs of single ledgers"),
    "extraServerComponents": MissingFeature("further components in a bookie's process"),
    "journalWriteData": MissingFeature("bookie without a journal: every add goes through it", ("true",)),
    "ledgerStorageClass": MissingFeature("storage but DbLedgerStorage", ("dbledgerstorage",)),
    "localConsistencyCheckOnStartup": MissingFeature("consistency check at the start but the bookie's own"),
    "localScrubInterval": MissingFeature("scrubbing of a bookie's own entries"),
    "statsProviderClass": MissingFeature("metrics but those of Prometheus", ("prometheusmetricsprovider",)),
}
"""Settings that ask for features which are not there. Those that have an effect by now are not told of."""

SETTINGS: Final = Catalogue(
    Path(__file__).with_name("upstream_settings.txt"),
    BookieSettings,
    GarbageCollectionSettings,
    AutoRecoverySettings,
    ignored=Path(__file__).with_name("ignored_settings.txt"),
    read_apart=(*PROCESS_NAMES, *CONTROL_NAMES, DRAIN_RATE),
)


def known_names() -> frozenset[str]:
    """Every name that a `bookkeeper.conf` may hold."""
    return SETTINGS.names


def ignored_names() -> Mapping[str, str]:
    """Names that a `bookkeeper.conf` of another version may hold, and why they are passed over."""
    return SETTINGS.ignored


def missing_features() -> Mapping[str, MissingFeature]:
    """What some settings ask for in vain."""
    return MISSING
