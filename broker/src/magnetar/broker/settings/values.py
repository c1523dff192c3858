"""A broker's settings from texts, and as texts: what only some commands, some requests and few clusters need."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from fractions import Fraction
from typing import TYPE_CHECKING, Final

from magnetar.broker.settings.broker import BrokerSettings
from magnetar.broker.settings.load import SWITCHES, LoadSettings
from magnetar.broker.settings.names import BROKER_NAMES, CREATION_TYPES, known_names
from magnetar.core.errors import SettingError
from magnetar.core.settings_file import GivenSettings, SettingNames, parse_value, unit_factor

if TYPE_CHECKING:
    from magnetar.balance.settings import BalanceSettings

SECRETS: Final = frozenset(
    {"basicAuthConf", "brokerClientAuthenticationParameters", "tokenPublicKey", "tokenSecretKey"}
)
"""Never told. Where certificates are is nobody's business either, though no secret."""


def changed(settings: BrokerSettings, texts: Mapping[str, object], where: str) -> BrokerSettings:
    """The settings with those replaced that have a text, under Pulsar's names. `SettingError` tells `where`."""
    given = GivenSettings(known_names())
    for name, value in texts.items():
        given.add(name, str(value), where)
    return given.build(settings, BROKER_NAMES)


def check_switch(name: str, text: str) -> None:
    """Whether load management's switch of that name can have the value. `SettingError`."""
    try:
        parse_value(text, type(getattr(LoadSettings(), SWITCHES[name])))
    except ValueError as error:
        raise SettingError(f"{name}: {error}") from None


def told(settings: BrokerSettings) -> dict[str, str]:
    """The settings by Pulsar's names, written as its configuration files write them; no secrets."""
    return _told(settings, BROKER_NAMES)


def told_of_balance(settings: BalanceSettings) -> dict[str, str]:
    """How bundles are placed, split and moved, by Pulsar's names and some of our own."""
    from magnetar.broker.settings.balance_names import BALANCE_NAMES

    return _told(settings, BALANCE_NAMES)


def _told(settings: object, names: SettingNames) -> dict[str, str]:
    texts = {}
    for name, path in names.fields.items():
        if name in SECRETS or ".tls." in f".{path}":
            continue
        value: object = settings
        for part in path.split("."):
            value = getattr(value, part)
        if name == "allowAutoTopicCreationType":
            texts[name] = CREATION_TYPES[bool(value)]
        else:
            texts[name] = _text(value, unit_factor(name, path, names.units.get(name)))
    return texts


def _text(value: object, unit: Fraction) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        scaled = value / unit
        return str(int(scaled) if scaled == int(scaled) else float(scaled))
    if isinstance(value, tuple):
        return ",".join(value)
    return str(value.value if isinstance(value, enum.Enum) else value)
