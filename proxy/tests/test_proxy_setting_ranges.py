"""Every numeric setting of a proxy has a range, and `--check` tells all that is wrong."""

from __future__ import annotations

from fractions import Fraction
from typing import Final

import pytest
from magnetar.core.errors import SettingError, SettingErrors
from magnetar.core.setting import Row
from magnetar.core.settings_file import GivenSettings, kind_of, range_of
from magnetar.proxy.process import ProxyProcessSettings, proxy_process_settings
from magnetar.proxy.setting_names import SETTINGS, known_names

NUMBERS: Final = [(row, name) for row in SETTINGS.rows for name in row.names if range_of(row, name) is not None]


def checked(**values: str) -> ProxyProcessSettings:
    found = GivenSettings(known_names())
    with found.gathering():
        for name, value in {"metadataStoreUrl": "memory:", **values}.items():
            found.add(name, value, "here")
        return proxy_process_settings(found)


def bounds(row: Row, name: str) -> tuple[Fraction, Fraction]:
    found = range_of(row, name)
    assert found is not None
    return found


def test_every_number_has_a_range() -> None:
    for row in SETTINGS.rows:
        if kind_of(row) in (int, float, int | None):
            assert all(bounds(row, name)[0] < bounds(row, name)[1] < 2**63 for name in row.names), row.name


@pytest.mark.parametrize(("row", "name"), NUMBERS, ids=[name for _, name in NUMBERS])
def test_what_is_outside_is_refused_and_the_bounds_are_not(row: Row, name: str) -> None:
    low, high = bounds(row, name)
    for wrong in (int(low) - 1, int(high) + 1):
        with pytest.raises(SettingError, match=rf"here: {name} is '{wrong}', and not a (whole )?number"):
            checked(**{name: str(wrong)})
    for right in (low, high):
        checked(**{name: str(int(right))})


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"metadataStoreUrl": ""}, "must know its brokers: set metadataStoreUrl, or brokerServiceURL and"),
        ({"metadataStoreUrl": "", "brokerServiceURL": "broker-1"}, "'broker-1' is not a URL of the form pulsar://"),
        ({"brokerWebServiceURL": "http://broker-1"}, "'http://broker-1' in the settings lacks a host or a port"),
    ],
)
def test_a_check_tells_that_no_broker_could_be_found(values: dict[str, str], said: str) -> None:
    with pytest.raises(SettingError, match=said):
        checked(**values)


def test_all_that_is_wrong_is_told_at_once() -> None:
    with pytest.raises(SettingErrors) as refused:
        checked(
            tlsEnabledWithKeyStore="true",
            metadataStoreUrl="ftp:x",
            brokerProxyAllowedTargetPorts="70000",
            httpProxyTimeout="0",
            controlPort="-1",
        )
    assert len(refused.value.problems) == 5, refused.value.problems
