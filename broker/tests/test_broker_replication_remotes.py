"""What the record of a cluster says of how to reach it."""

from __future__ import annotations

from pathlib import Path

import pytest
from magnetar.broker.replication.remote_clusters import service_url_of, shown_to
from magnetar.broker.replication.states import NoRemote
from magnetar.broker.settings.access import PeerSettings


def test_the_address_is_that_of_the_binary_protocol() -> None:
    record = {"serviceUrl": "http://west:8080", "brokerServiceUrl": "pulsar://west:6650"}
    assert service_url_of("west", record) == "pulsar://west:6650"
    secured = {**record, "brokerServiceUrlTls": "pulsar+ssl://west:6651"}
    assert service_url_of("west", secured) == "pulsar://west:6650"
    assert service_url_of("west", {**secured, "brokerClientTlsEnabled": True}) == "pulsar+ssl://west:6651"


@pytest.mark.parametrize("record", [{}, {"serviceUrl": "http://west:8080"}, {"brokerServiceUrl": None}])
def test_a_record_without_an_address_is_told(record: dict[str, object]) -> None:
    with pytest.raises(NoRemote, match="cluster west has no brokerServiceUrl"):
        service_url_of("west", record)


def test_credentials_of_the_record_win_over_the_brokers_own() -> None:
    own = PeerSettings(plugin="own", parameters="secret")
    assert shown_to({}, own) is own
    assert shown_to({"authenticationPlugin": "theirs"}, own) is own
    shown = shown_to({"authenticationPlugin": "theirs", "authenticationParameters": "token:x"}, own)
    assert (shown.plugin, shown.parameters) == ("theirs", "token:x")


def test_tls_of_the_record_is_used_with_its_files() -> None:
    shown = shown_to({"brokerClientTlsEnabled": True, "brokerClientTrustCertsFilePath": "/ca.pem"}, PeerSettings())
    assert shown.tls_enabled
    assert shown.tls.trust_certificates_file == Path("/ca.pem")
