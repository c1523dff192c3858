"""A broker's settings from texts, and as texts: what only some commands, some requests and few clusters need."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from operator import attrgetter
from typing import TYPE_CHECKING, TypeVar

from magnetar.broker.settings.broker import BrokerSettings
from magnetar.broker.settings.load import SWITCHES, LoadSettings
from magnetar.core.errors import SettingError
from magnetar.core.setting import Row, rows_of
from magnetar.core.settings_file import GivenSettings, parse_value, unit_factor

if TYPE_CHECKING:
    from magnetar.balance.settings import BalanceSettings

T = TypeVar("T")


def changed(settings: T, texts: Mapping[str, object], where: str) -> T:
    """The settings with those replaced that have a text, under Pulsar's names. `SettingError` tells `where`."""
    given = GivenSettings([name for row in rows_of(type(settings)) for name in row.names])
    for name, value in texts.items():
        given.add(name, str(value), where)
    return given.build(settings)


def check_switch(name: str, text: str) -> None:
    """Whether load management's switch of that name can have the value. `SettingError`."""
    try:
        parse_value(text, type(getattr(LoadSettings(), SWITCHES[name])))
    except ValueError as error:
        raise SettingError(f"{name}: {error}") from None


def told(settings: BrokerSettings | BalanceSettings) -> dict[str, str]:
    """The settings by Pulsar's names, written as its configuration files write them; no secrets, and not where
    certificates are, which is nobody's business either."""
    texts = {}
    for row in rows_of(type(settings)):
        if row.secret or ".tls." in f".{row.path}":
            continue
        value = attrgetter(row.path)(settings)
        for name in row.names:
            texts[name] = _text(value, row, name)
    return texts


def _text(value: object, row: Row, name: str) -> str:
    if row.words is not None:
        return next(word for word, meant in row.words.items() if meant == value)
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        scaled = value / unit_factor(row, name)
        return str(int(scaled) if scaled == int(scaled) else float(scaled))
    if isinstance(value, tuple):
        return ",".join(value)
    return str(value.value if isinstance(value, enum.Enum) else value)
