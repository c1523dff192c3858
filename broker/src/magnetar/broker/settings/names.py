"""All settings of a broker's process; see `magnetar.core.setting`."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from magnetar.balance.settings import BalanceSettings
from magnetar.broker.settings.broker import BrokerSettings
from magnetar.core.setting_catalogue import Catalogue
from magnetar.ledger.bookie_client.tcp_bookie import TcpBookieSettings
from magnetar.ledger.settings import LedgerClientSettings
from magnetar.managed.settings import ManagedLedgerSettings
from magnetar.process.control_settings import CONTROL_NAMES

UNLISTED: Final = ("enableBrokerTopicListWatcher", "tokenAllowedClockSkewSeconds", "tokenPublicAlg")
"""The first is of later versions than the list is made from; the others are read by Pulsar's providers themselves."""

STORE_NAMES: Final = ("metadataStoreSessionTimeoutMillis", "zookeeperServers")
"""Pulsar's names of settings that `magnetar.process` reads itself."""

SETTINGS: Final = Catalogue(
    Path(__file__).with_name("upstream_settings.txt"),
    BrokerSettings,
    ManagedLedgerSettings,
    LedgerClientSettings,
    TcpBookieSettings,
    BalanceSettings,
    unlisted=UNLISTED,
    read_apart=(*CONTROL_NAMES, *STORE_NAMES),
)


def known_names() -> frozenset[str]:
    """Every name that a `broker.conf` may hold."""
    return SETTINGS.names
