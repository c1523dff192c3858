"""What a `bookkeeper.conf` may say of TLS and of who is served, and what is told of what it lacks."""

from __future__ import annotations

from pathlib import Path

import pytest
from magnetar.bookie.process.autorecovery import autorecovery_process_settings
from magnetar.bookie.process.bookie import bookie_process_settings
from magnetar.bookie.server.protection import ROLES_PROVIDER, read_protection, tell_protection
from magnetar.bookie.server.roles import role_of, role_problem
from magnetar.bookie.setting_names import known_names
from magnetar.core.errors import SettingError
from magnetar.core.settings_file import GivenSettings
from magnetar.ledger.bookie_client.tls_settings import TLS_FACTORY
from magnetar.net.testing import Certificate, TestAuthority
from magnetar.net.tls import TlsSettings


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> TestAuthority:
    return TestAuthority(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def own(authority: TestAuthority) -> Certificate:
    return authority.issue("bookie")


@pytest.fixture
def good(authority: TestAuthority, own: Certificate) -> dict[str, str]:
    return {
        "tlsProvider": "OpenSSL",
        "tlsProviderFactoryClass": TLS_FACTORY,
        "tlsClientAuthentication": "true",
        "tlsKeyStoreType": "PEM",
        "tlsKeyStore": str(own.key_file),
        "tlsCertificatePath": str(own.certificate_file),
        "tlsTrustStoreType": "PEM",
        "tlsTrustStore": str(authority.certificate_file),
        "bookieAuthProviderFactoryClass": ROLES_PROVIDER,
        "authorizedRoles": "broker,auditor",
    }


def given(**values: str) -> GivenSettings:
    made = GivenSettings(known_names())
    for name, value in {"metadataServiceUri": "zk:a:1", "advertisedAddress": "a", **values}.items():
        made.add(name, value, "bookkeeper.conf")
    return made


def problems(**values: str) -> str:
    made = given(**values)
    with pytest.raises(SettingError) as raised, made.gathering():
        bookie_process_settings(made)
    return str(raised.value)


def test_an_operators_file(good: dict[str, str], own: Certificate, authority: TestAuthority) -> None:
    settings = bookie_process_settings(given(**good)).bookie
    protection = read_protection(settings)
    assert protection.tls is not None
    assert (protection.roles, protection.serves_plain) == (frozenset({"broker", "auditor"}), False)
    server = settings.tls.server_tls()
    assert server == TlsSettings(
        certificate_file=own.certificate_file,
        key_file=own.key_file,
        trust_certificates_file=authority.certificate_file,
        require_client_certificate=True,
    )
    # The client in the bookie's process, and AutoRecovery in its own.
    client = settings.tls.client_tls()
    assert client == TlsSettings(
        certificate_file=own.certificate_file,
        key_file=own.key_file,
        trust_certificates_file=authority.certificate_file,
    )
    assert autorecovery_process_settings(given(**good)).tls == client


def test_without_settings_nothing_changes() -> None:
    settings = bookie_process_settings(given()).bookie
    protection = read_protection(settings)
    assert (protection.tls, protection.roles, protection.serves_plain) == (None, None, True)
    assert settings.tls.client_tls() is None


def test_files_are_looked_at_as_often_as_is_said(good: dict[str, str]) -> None:
    def seconds(**values: str) -> float:
        server = bookie_process_settings(given(**good, **values)).bookie.tls.server_tls()
        assert server is not None
        return server.refresh_seconds

    assert seconds() == 300
    assert seconds(tlsCertFilesRefreshDurationSeconds="7") == 7
    assert seconds(tlsCertFilesRefreshDurationSeconds="0") == float("inf")


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"tlsKeyStore": "/nothing.key"}, "TLS cannot be set up with /nothing.key: No such file or directory"),
        ({"tlsCertificatePath": "/nothing.pem"}, "TLS cannot be set up with /nothing.pem: No such file or directory"),
        ({"tlsTrustStore": "/no.pem"}, "the trusted certificates /no.pem cannot be read: No such file or directory"),
        ({"tlsKeyStore": ""}, "tlsKeyStore is not set: the bookie's private key"),
        ({"tlsCertificatePath": ""}, "tlsCertificatePath is not set: the bookie's certificate"),
        ({"tlsTrustStore": ""}, "tlsTrustStore is not set: the authorities of clients' certificates"),
        ({"tlsKeyStoreType": "JKS"}, "convert the store with `keytool -importkeystore"),
        ({"tlsKeyStoreType": ""}, "tlsKeyStoreType is JKS (the default where it is not set)"),
        ({"tlsTrustStoreType": "JKS"}, "tlsTrustStoreType is JKS"),
        ({"tlsKeyStoreType": "BKS"}, "PEM, PKCS12, JKS"),
        ({"tlsProviderFactoryClass": "a.Mine"}, f"tlsProviderFactoryClass is a.Mine; there is {TLS_FACTORY}"),
        ({"tlsEnabledProtocols": "TLSv1.1"}, "TLS protocol 'TLSv1.1' is not one of TLSv1.2, TLSv1.3"),
        ({"bookieAuthProviderFactoryClass": "a.Sasl"}, f"is a.Sasl; there is {ROLES_PROVIDER}"),
        ({"authorizedRoles": ""}, "needs authorizedRoles: whom the bookie serves"),
        ({"bookieAuthProviderFactoryClass": ""}, "authorizedRoles needs bookieAuthProviderFactoryClass="),
        ({"tlsClientAuthentication": "false"}, "would serve nobody: it needs tlsProviderFactoryClass and"),
        ({"tlsProviderFactoryClass": ""}, "would serve nobody: it needs tlsProviderFactoryClass and"),
    ],
)
def test_what_cannot_be_is_told(good: dict[str, str], changes: dict[str, str], told: str) -> None:
    assert told in problems(**{**good, **changes})


def test_tls_that_is_a_must_needs_tls() -> None:
    assert problems(tlsRequired="true") == f"tlsRequired needs tlsProviderFactoryClass={TLS_FACTORY}"


def test_a_key_of_another_certificate_is_told(good: dict[str, str], authority: TestAuthority) -> None:
    other = authority.issue("other")
    assert "TLS cannot be set up with" in problems(**{**good, "tlsKeyStore": str(other.key_file)})


def test_a_key_with_a_password(good: dict[str, str], own: Certificate, tmp_path: Path) -> None:
    from cryptography.hazmat.primitives.serialization import (
        BestAvailableEncryption,
        Encoding,
        PrivateFormat,
        load_pem_private_key,
    )

    key, password = tmp_path / "locked.key", tmp_path / "password"
    opened = load_pem_private_key(own.key_file.read_bytes(), None)
    key.write_bytes(opened.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"secret")))
    password.write_text("secret\n")
    locked = {**good, "tlsKeyStore": str(key)}
    assert "the key is encrypted, and no setting names the file of its password" in problems(**locked)
    bookie_process_settings(given(**locked, tlsKeyStorePasswordPath=str(password)))
    password.write_text("guess\n")
    assert "TLS cannot be set up with" in problems(**locked, tlsKeyStorePasswordPath=str(password))
    missing = problems(**locked, tlsKeyStorePasswordPath="/nothing")
    assert "the password file /nothing cannot be read: No such file or directory" in missing


@pytest.mark.parametrize(
    ("units", "role"),
    [
        (["0:broker"], "broker"),
        (["1:cluster;0: broker , backup"], "broker"),
        (["0:broker;0:auditor"], "auditor"),
        (["0:broker", "0:auditor"], "broker"),
        (["broker"], ""),
        (["0:"], ""),
        (["1:broker"], ""),
        ([" 0:broker"], ""),
        ([], ""),
    ],
)
def test_the_role_is_in_the_first_unit_as_bookkeeper_reads_it(units: list[str], role: str) -> None:
    subject = ((("commonName", "0:wrong"),), *((("organizationalUnitName", unit),) for unit in units))
    assert role_of({"subject": subject}) == role
    assert (role_problem({"subject": subject}, {"broker", "auditor"}) == "") == (role != "")


def test_who_showed_no_certificate_has_no_role() -> None:
    assert role_problem({}, {"broker"}) == "it showed no certificate"
    assert role_problem({"subject": ()}, {"broker"}).startswith("its certificate names no role")


def test_without_client_authentication_nobody_shows_or_asks_for_a_certificate(
    good: dict[str, str], authority: TestAuthority
) -> None:
    """The client keeps its key to itself, and the bookie knows no authorities of clients (BookKeeper:
    TLSContextFactory)."""
    offered = {**good, "tlsClientAuthentication": "false", "bookieAuthProviderFactoryClass": "", "authorizedRoles": ""}
    tls = bookie_process_settings(given(**offered)).bookie.tls
    client, server = tls.client_tls(), tls.server_tls()
    assert client is not None
    assert server is not None
    assert (client.certificate_file, client.key_file, client.key_password_file) == (None, None, None)
    assert client.trust_certificates_file == authority.certificate_file
    assert (server.trust_certificates_file, server.require_client_certificate) == (None, False)


def test_whether_the_name_of_a_bookies_host_is_verified(good: dict[str, str]) -> None:
    def verified(**values: str) -> bool:
        client = bookie_process_settings(given(**good, **values)).bookie.tls.client_tls()
        assert client is not None
        return client.verify_host_name

    assert not verified(), "BookKeeper's default"
    assert verified(tlsHostnameVerificationEnabled="true")


def test_who_offers_tls_hears_that_it_can_be_left_out(good: dict[str, str], caplog: pytest.LogCaptureFixture) -> None:
    """And only then."""
    offered = {**good, "bookieAuthProviderFactoryClass": "", "authorizedRoles": ""}
    for values, warned in (
        ({}, False),
        (offered, True),
        ({**offered, "tlsRequired": "true"}, False),
        (good, False),
    ):
        caplog.clear()
        tell_protection(read_protection(bookie_process_settings(given(**values)).bookie))
        assert ("those without are served as well" in caplog.text) is warned
