"""What one may set on a standalone cluster."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from magnetar.bookie.gc.settings import GarbageCollectionSettings
from magnetar.bookie.settings import DiskSettings, JournalSettings, StorageSettings
from magnetar.broker.settings.broker import BrokerSettings
from magnetar.ledger.settings import LedgerClientSettings
from magnetar.managed.settings import ManagedLedgerSettings

if TYPE_CHECKING:
    from magnetar.balance.settings import BalanceSettings

CLUSTER_NAME: Final = "standalone"
ADDRESS: Final = "127.0.0.1"
SHOWN_OF_ANY: Final = {"0.0.0.0": ADDRESS, "::": "::1"}  # noqa: S104  (compared with, not listened on)
"""All addresses of the machine, and which of them clients are told where nothing else is said."""

COLLECTION: Final = GarbageCollectionSettings(wait_seconds=60.0, disk_almost_full_share=0.95, disk_full_share=0.98)
"""A small store is looked through in milliseconds, so what was deleted need not stay for a quarter of an hour."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfiguredParts:
    """What settings files say of the parts."""

    broker: BrokerSettings
    managed: ManagedLedgerSettings
    ledgers: LedgerClientSettings
    balance: BalanceSettings
    journal: JournalSettings
    storage: StorageSettings
    disk: DiskSettings
    collection: GarbageCollectionSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class StandaloneSettings:
    """A whole cluster in one process."""

    data_directory: Path
    """Metadata, journal and entry logs; made when it is not there."""
    address: str = ADDRESS
    """Where to listen, and what clients are told."""
    broker_service_port: int = 6650
    """The port of Pulsar's binary protocol; 0: any free one."""
    web_service_port: int = 8080
    """The port of the admin API; 0: any free one."""
    journal_sync: bool = True
    """Force the journal to disk before a message is acknowledged."""
    accept_loss: bool = False
    """Start although acknowledged messages are damaged or gone, and do without them."""
    transactions: bool = False
    """Run a transaction coordinator: one, as Apache's standalone does."""
    persistent_metadata: bool = True
    """False keeps metadata in memory: a cluster that does not outlive its process starts faster."""

    configured: ConfiguredParts | None = None
    """None: the parts are as they are made for a standalone. Addresses, ports and `journal_sync` say the same as it."""

    @property
    def metadata_directory(self) -> Path:
        """Where metadata is kept, if it is persistent."""
        return self.data_directory.resolve() / "metadata"

    @property
    def metadata_url(self) -> str:
        """The metadata store's URL."""
        return f"rocksdb://{self.metadata_directory}" if self.persistent_metadata else "memory:"

    @property
    def bookie_directory(self) -> Path:
        """Where the bookie keeps its journal and ledgers."""
        return self.data_directory / "bookie"
