"""What a broker.conf may hold that has no effect, and how that is told."""

from __future__ import annotations

from pathlib import Path

import pytest
from magnetar.broker.process import BrokerProcessSettings, broker_process_settings
from magnetar.broker.settings.names import MISSING, SETTINGS, ignored_names, known_names, missing_features
from magnetar.core.errors import SettingError
from magnetar.core.settings_file import GivenSettings
from magnetar.net.testing import TestAuthority
from magnetar.net.tls import TlsSettings
from magnetar.process.service import tell_about


def test_settings_of_other_versions_are_passed_over_with_a_line_each(caplog: pytest.LogCaptureFixture) -> None:
    given = GivenSettings(known_names(), ignored_names())
    values = {
        "clientLibraryVersionCheckAllowUnversioned": "true",
        "loadBalancerNamespaceBundleSplitIntervalMinutes": "5",
        "exposeCustomTopicMetricLabelsEnabled": "false",
        "zookeeperSessionExpiredPolicy": "shutdown",
    }
    for name, value in {"clusterName": "c", "metadataStoreUrl": "memory:", **values}.items():
        given.add(name, value, "broker.conf:7")
    broker_process_settings(given)
    tell_about(given, missing_features())
    assert caplog.messages == [
        "the setting clientLibraryVersionCheckAllowUnversioned is passed over (broker.conf:7): earlier versions of "
        "Apache's had it, those of today ignore it, and so does this one",
        "the setting loadBalancerNamespaceBundleSplitIntervalMinutes is passed over (broker.conf:7): earlier versions "
        "of Apache's had it, those of today ignore it, and so does this one",
        "the setting exposeCustomTopicMetricLabelsEnabled is passed over (broker.conf:7): it is of later versions of "
        "Apache's, and has no effect here",
        "settings without effect here: zookeeperSessionExpiredPolicy",
    ]


def test_a_feature_that_is_asked_for_and_is_not_there_has_its_own_line(caplog: pytest.LogCaptureFixture) -> None:
    given = GivenSettings(known_names(), ignored_names())
    values = {
        "functionsWorkerEnabled": "true",
        "webSocketServiceEnabled": "false",
        "entryFilterNames": "mine",
        "enablePersistentTopics": "true",
        "schemaRegistryStorageClassName": "org.apache.pulsar.broker.service.schema.BookkeeperSchemaStorageFactory",
        "bookkeeperClientAuthenticationPlugin": "a.B",
        "numIOThreads": "4",
    }
    for name, value in {"clusterName": "c", "metadataStoreUrl": "memory:", **values}.items():
        given.add(name, value, "broker.conf:7")
    broker_process_settings(given)
    tell_about(given, missing_features())
    assert [record.message for record in caplog.records if record.levelname == "ERROR"] == [
        "bookkeeperClientAuthenticationPlugin=a.B (broker.conf:7) asks for what is not there: no authentication at "
        "bookies",
        "entryFilterNames=mine (broker.conf:7) asks for what is not there: no entry filters",
        "functionsWorkerEnabled=true (broker.conf:7) asks for what is not there: no functions, sources and sinks",
    ]
    assert caplog.messages[-1] == (
        "settings without effect here: enablePersistentTopics, numIOThreads, schemaRegistryStorageClassName, "
        "webSocketServiceEnabled"
    )


def test_what_asks_for_features_are_names_that_apaches_knows() -> None:
    assert set(MISSING) <= SETTINGS.names


def test_tls_to_bookies_as_pulsar_sets_it(tmp_path: Path) -> None:
    authority = TestAuthority(tmp_path)
    own = authority.issue("broker")
    values = {
        "clusterName": "c",
        "metadataStoreUrl": "memory:",
        "bookkeeperTLSClientAuthentication": "true",
        "bookkeeperTLSKeyFilePath": str(own.key_file),
        "bookkeeperTLSCertificateFilePath": str(own.certificate_file),
        "bookkeeperTLSTrustCertsFilePath": str(authority.certificate_file),
        "bookkeeper_tlsHostnameVerificationEnabled": "true",
        "bookkeeperTlsCertFilesRefreshDurationSeconds": "60",
    }

    def read(**changes: str) -> BrokerProcessSettings:
        given = GivenSettings(known_names(), ignored_names())
        for name, value in {**values, **changes}.items():
            given.add(name, value, "broker.conf")
        with given.gathering():
            return broker_process_settings(given)

    assert read().bookie_tls == TlsSettings(
        certificate_file=own.certificate_file,
        key_file=own.key_file,
        trust_certificates_file=authority.certificate_file,
        verify_host_name=True,
        refresh_seconds=60,
    )
    assert read(bookkeeperTLSClientAuthentication="false", bookkeeperTLSKeyFilePath="/nothing").bookie_tls is None
    for name, value, told in (
        ("bookkeeperTLSKeyFilePath", "", "bookkeeperTLSKeyFilePath is not set: the broker's private key"),
        ("bookkeeperTLSKeyFilePath", "/nothing", "TLS cannot be set up with /nothing: No such file or directory"),
        ("bookkeeperTLSCertificateFilePath", "", "bookkeeperTLSCertificateFilePath is not set"),
        ("bookkeeperTLSTrustCertsFilePath", "", "bookkeeperTLSTrustCertsFilePath is not set"),
        ("bookkeeperTLSKeyFileType", "JKS", "bookkeeperTLSKeyFileType=PKCS12"),
        ("bookkeeperTLSProviderFactoryClass", "a.B", "bookkeeperTLSProviderFactoryClass is a.B; there is"),
    ):
        with pytest.raises(SettingError) as raised:
            read(**{name: value})
        assert told in str(raised.value)
