"""What a broker.conf says of load management that is not there."""

from __future__ import annotations

import pytest
from magnetar.broker.process import broker_process_settings
from magnetar.broker.settings.names import known_names
from magnetar.core.settings_file import GivenSettings

EXTENSIBLE = "org.apache.pulsar.broker.loadbalance.extensions.ExtensibleLoadManagerImpl"
MODULAR = "org.apache.pulsar.broker.loadbalance.impl.ModularLoadManagerImpl"


@pytest.mark.parametrize(("name", "told"), [(EXTENSIBLE, True), (MODULAR, False), ("", False)])
def test_another_load_manager_is_told_of(name: str, told: bool, caplog: pytest.LogCaptureFixture) -> None:
    given = GivenSettings(known_names())
    for setting, value in (("clusterName", "c"), ("metadataStoreUrl", "memory:"), ("loadManagerClassName", name)):
        given.add(setting, value, "here")
    broker_process_settings(given)
    assert "loadManagerClassName" not in given.without_effect()
    if told:
        (line,) = caplog.messages
        assert line.startswith(f"loadManagerClassName is {EXTENSIBLE}, which is not here")
        assert MODULAR in line
    else:
        assert not caplog.messages


def test_processes_write_the_load_history_unless_told_otherwise() -> None:
    def writes(**values: str) -> bool:
        settings = GivenSettings(known_names())
        for name, value in {"clusterName": "x", "metadataStoreUrl": "memory:", **values}.items():
            settings.add(name, value, "test")
        return broker_process_settings(settings).broker.load.history_enabled

    assert writes()
    assert not writes(loadBalancerHistoryEnabled="false")
