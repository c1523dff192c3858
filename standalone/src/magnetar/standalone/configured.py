"""A standalone cluster as settings files say it: what a broker and a bookie take, in one file.

What the data folder and the one process decide, such as directories, the metadata store and the bookie's port, is
without effect here, and told with the rest that is.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from magnetar.balance.settings import BalanceSettings
from magnetar.bookie.process.bookie import PROTECTIONS
from magnetar.bookie.setting_names import MISSING as BOOKIE_MISSING
from magnetar.bookie.setting_names import SETTINGS as BOOKIE_SETTINGS
from magnetar.bookie.settings import STANDALONE_JOURNAL, STANDALONE_STORAGE, DiskSettings
from magnetar.broker.setting_checks import check_broker
from magnetar.broker.settings.broker import BrokerSettings
from magnetar.broker.settings.names import MISSING as BROKER_MISSING
from magnetar.broker.settings.names import SETTINGS as BROKER_SETTINGS
from magnetar.core.errors import SettingError
from magnetar.core.exit_codes import EXIT_STOPPED, EXIT_USAGE
from magnetar.core.settings_file import GivenSettings
from magnetar.ledger.settings import LedgerClientSettings
from magnetar.managed.settings import ManagedLedgerSettings
from magnetar.process.protection import refuse_protection
from magnetar.process.service import SettingSources, say, show_setting_errors, tell_about
from magnetar.process.serving import prepare
from magnetar.standalone.run import run_standalone
from magnetar.standalone.settings import CLUSTER_NAME, COLLECTION, SHOWN_OF_ANY, ConfiguredParts, StandaloneSettings

OWN_STORES: Final = (
    "bookkeeperMetadataServiceUri",
    "configurationMetadataStoreUrl",
    "metadataStoreUrl",
    "metadataServiceUri",
    "zkServers",
    "zookeeperServers",
)
"""Names that ask for a store elsewhere: whoever gives one wants a broker of that cluster."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FolderOptions:
    """What only the command line says."""

    data_directory: Path
    accept_loss: bool = False


def run_configured(
    sources: SettingSources, folder: FolderOptions, *, fresh: bool, check_only: bool, log_level: str
) -> int:
    """Run a standalone cluster by settings files, environment and options; returns the exit code. With `check_only`
    nothing starts."""
    prepare(log_level)
    try:
        settings = read_settings(sources, folder)
    except SettingError as error:
        show_setting_errors(error)
        return EXIT_USAGE
    if check_only:
        say("standalone: the settings are valid")
        return EXIT_STOPPED
    return run_standalone(settings, fresh=fresh, log_level=log_level)


BOOKIE_TLS_NAMES: Final = (
    "bookieAuthProviderFactoryClass",
    "bookkeeperTLSClientAuthentication",
    "tlsProviderFactoryClass",
    "tlsRequired",
)
"""What protects the way to a bookie elsewhere."""


def read_settings(sources: SettingSources, folder: FolderOptions) -> StandaloneSettings:
    """Everything from what was given. `SettingError`, `SettingErrors`; what has no effect is told in the log."""
    given = GivenSettings(
        BROKER_SETTINGS.names | BOOKIE_SETTINGS.names, {**BOOKIE_SETTINGS.ignored, **BROKER_SETTINGS.ignored}
    )
    with given.gathering():
        sources.add_to(given)
        settings = standalone_settings(given, folder)
    tell_about(given, {**BOOKIE_MISSING, **BROKER_MISSING})
    return settings


def standalone_settings(given: GivenSettings, folder: FolderOptions) -> StandaloneSettings:
    """The cluster that was given. `SettingError`"""
    for name in OWN_STORES:
        if (url := given.text_unused(name)) is not None:
            given.problem(
                f"{name} is {url}: a standalone has its own store; `magnetar broker run` is for one elsewhere"
            )
    broker = given.build(BrokerSettings(cluster_name=CLUSTER_NAME))
    if given.text_unused("bindAddress") is not None and given.text_unused("advertisedAddress") is None:
        shown = SHOWN_OF_ANY.get(broker.bind_address, broker.bind_address)
        broker = replace(broker, advertised_address=shown)
    if broker.read_only.enabled:
        given.problem(
            "readOnlyBrokerEnabled is true, and a standalone's broker is the one that writes; `magnetar broker run` "
            "starts a broker that only reads"
        )
    check_broker(given, broker)
    refuse_protection(given, PROTECTIONS)
    for name in BOOKIE_TLS_NAMES:
        if (value := given.text(name)) is not None and value.lower() not in ("false", "null"):
            given.problem(
                f"{name} is {value}: a standalone's bookie is reached inside its process alone, without a port to "
                "protect; `magnetar bookie run` has TLS"
            )
    managed = given.build(ManagedLedgerSettings())
    if managed.ensemble_size > 1:
        given.problem(f"managedLedgerDefaultEnsembleSize is {managed.ensemble_size}, and a standalone has one bookie")
    parts = ConfiguredParts(
        broker=broker,
        managed=managed,
        ledgers=given.build(LedgerClientSettings()),
        balance=given.build(BalanceSettings()),
        journal=given.build(STANDALONE_JOURNAL),
        storage=given.build(STANDALONE_STORAGE),
        disk=given.build(DiskSettings()),
        collection=given.build(COLLECTION),
    )
    return StandaloneSettings(
        data_directory=folder.data_directory,
        address=broker.bind_address,
        broker_service_port=broker.broker_service_port,
        web_service_port=broker.web_service_port,
        journal_sync=parts.journal.sync_data,
        accept_loss=folder.accept_loss,
        configured=parts,
    )
