"""All settings of a proxy; see `magnetar.core.setting`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from magnetar.core.setting_catalogue import Catalogue
from magnetar.process.control_settings import CONTROL_NAMES
from magnetar.process.missing_features import MissingFeature
from magnetar.proxy.settings import ProxySettings

STORE_NAMES: Final = (
    "metadataStoreConfigPath",
    "metadataStoreSessionTimeoutMillis",
    "metadataStoreUrl",
    "zookeeperServers",
)
"""Pulsar's names that `magnetar.process` reads itself."""

MISSING: Final[Mapping[str, MissingFeature]] = {
    "httpReverseProxyConfigs": MissingFeature("further servers behind the proxy's HTTP port"),
    "proxyAdditionalServlets": MissingFeature("further servlets"),
    "proxyExtensions": MissingFeature("extensions"),
    "webSocketServiceEnabled": MissingFeature("WebSocket"),
}
"""Settings that ask for features which are not there. Those that have an effect by now are not told of."""

SETTINGS: Final = Catalogue(
    Path(__file__).with_name("upstream_settings.txt"),
    ProxySettings,
    unlisted=("tokenAllowedClockSkewSeconds", "tokenPublicAlg"),
    ignored=Path(__file__).with_name("ignored_settings.txt"),
    read_apart=(*CONTROL_NAMES, *STORE_NAMES),
)


def known_names() -> frozenset[str]:
    """Every name that a `proxy.conf` may hold."""
    return SETTINGS.names


def ignored_names() -> Mapping[str, str]:
    """Names that a `proxy.conf` of another version may hold, and why they are passed over."""
    return SETTINGS.ignored


def missing_features() -> Mapping[str, MissingFeature]:
    """What some settings ask for in vain."""
    return MISSING
