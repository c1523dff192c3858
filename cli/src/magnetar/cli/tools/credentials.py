"""What a tool shows to brokers: the same as they show to each other, given by options."""

from __future__ import annotations

from typing import Final

from magnetar.broker.peers.access import PeerAccess
from magnetar.broker.settings.access import PeerSettings
from magnetar.core.errors import SettingError

_OPTIONS: Final = {
    "brokerClientAuthenticationPlugin": "--auth-plugin",
    "brokerClientAuthenticationParameters": "--auth-params",
}
"""A broker's settings → the options that stand for them here."""


def shown_by(settings: PeerSettings) -> PeerAccess:
    """Credentials and TLS for these settings. `SettingError`, which names options instead of a broker's settings."""
    try:
        return PeerAccess(settings)
    except SettingError as error:
        told = str(error)
    for setting, option in _OPTIONS.items():
        told = told.replace(setting, option)
    raise SettingError(told)
