"""What a bookkeeper.conf says about what stands beside the storage."""

from __future__ import annotations

import pytest
from magnetar.bookie.node import NodeSettings
from magnetar.bookie.process.bookie import bookie_process_settings
from magnetar.bookie.setting_names import known_names
from magnetar.core.errors import SettingError
from magnetar.core.settings_file import GivenSettings


def node(**given: str) -> NodeSettings:
    settings = GivenSettings(known_names())
    for name, value in {"advertisedAddress": "10.0.0.1", **given}.items():
        settings.add(name, value, "test")
    return bookie_process_settings(settings).node


def test_a_bookie_serves_metrics_and_its_control_port_without_being_asked() -> None:
    plain = node()
    assert plain.http is not None
    assert (plain.http.port, plain.http.metrics_only) == (8000, True)
    assert plain.control is not None
    assert (plain.control.port, plain.control.token, plain.control.tls) == (3182, "", None)
    assert plain.recovery_enabled


def test_http_control_and_recovery_are_switched() -> None:
    http = node(httpServerEnabled="true", httpServerPort="8888", httpServerHost="127.0.0.1").http
    assert http is not None
    assert (http.host, http.port, http.metrics_only) == ("127.0.0.1", 8888, False)
    off = node(prometheusStatsHttpEnable="false", controlEnabled="false", autoRecoveryDaemonEnabled="false")
    assert (off.http, off.control, off.recovery_enabled) == (None, None, False)


def test_drains_have_autorecoverys_rate_unless_they_are_given_their_own() -> None:
    plain = node(replicationRateByBytes="1000000")
    assert (plain.recovery.replication.bytes_per_second, plain.drain_bytes_per_second) == (1_000_000, 0)
    assert node(drainRateByBytes="5000000").drain_bytes_per_second == 5_000_000
    with pytest.raises(SettingError, match="drainRateByBytes"):
        node(drainRateByBytes="-1")


def test_tls_of_the_control_port_needs_both_files() -> None:
    with pytest.raises(SettingError, match="controlTlsKeyFile go together"):
        node(controlTlsCertificateFile="/c.pem")
    control = node(controlTlsCertificateFile="/c.pem", controlTlsKeyFile="/k.pem", controlToken="secret").control
    assert control is not None
    assert control.tls is not None
    assert (str(control.tls.key_file), control.token) == ("/k.pem", "secret")


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"bookiePort": "3182"}, "bookiePort and controlPort are both 3182"),
        ({"controlPort": "8000"}, "controlPort and prometheusStatsHttpPort are both 8000"),
        ({"httpServerEnabled": "true", "httpServerPort": "3181"}, "bookiePort and httpServerPort are both 3181"),
    ],
)
def test_ports_differ(given: dict[str, str], told: str) -> None:
    with pytest.raises(SettingError, match=told):
        node(**given)


def test_ports_of_two_addresses_and_free_ones_may_be_the_same() -> None:
    http = node(controlHost="10.0.0.1", controlPort="8000", prometheusStatsHttpAddress="10.0.0.2").http
    assert http is not None
    assert http.port == 8000
    assert node(bookiePort="0", controlPort="0", prometheusStatsHttpPort="0").bookie.port == 0


def test_secrets_are_not_shown() -> None:
    shown = node(controlToken="secret", tlsKeyStorePasswordPath="secret", gcWaitTime="60000").shown
    assert shown["gcWaitTime"] == "60000"
    assert "secret" not in shown.values()


def test_the_placement_policy_of_autorecovery_and_drains() -> None:
    policy = "org.apache.bookkeeper.client.RegionAwareEnsemblePlacementPolicy"
    placement = node(
        ensemblePlacementPolicy=policy, minNumRacksPerWriteQuorum="3", enforceMinNumRacksPerWriteQuorum="true"
    ).client.placement
    assert (placement.region_aware, placement.racks_per_write_quorum_min, placement.enforce_racks) == (True, 3, True)
    assert node(ensemblePlacementPolicy="a.DefaultEnsemblePlacementPolicy").client.placement.rack_aware is False
    with pytest.raises(SettingError, match="ZoneawareEnsemblePlacementPolicy; known are"):
        node(ensemblePlacementPolicy="a.ZoneawareEnsemblePlacementPolicy")
