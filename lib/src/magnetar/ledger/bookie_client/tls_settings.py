"""TLS between bookies and their clients, as the settings files of bookies and of brokers say it.

BookKeeper has one set of names for both sides of a bookie: its server, and the client of its AutoRecovery
(conf/AbstractConfiguration, tls/TLSContextFactory). Pulsar's brokers have names of their own for the client
(broker/BookKeeperClientFactoryImpl).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from magnetar.core.errors import SettingError
from magnetar.core.setting import setting
from magnetar.net.key_stores import StoreType, check_type
from magnetar.net.tls import TlsSettings

TLS_FACTORY: Final = "org.apache.bookkeeper.tls.TLSContextFactory"
"""BookKeeper's only provider of TLS."""

REFRESH_SECONDS: Final = 300.0
"""How often certificates are looked at, as Pulsar's brokers do it; BookKeeper's bookies do not unless they are told."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BookieTlsSettings:
    """`bookkeeper.conf`: TLS of a bookie, of its AutoRecovery and of tools that are given the file."""

    provider: str = setting("tlsProviderFactoryClass", "")
    """The class name of BookKeeper's TLS; empty: no TLS."""
    client_authentication: bool = setting("tlsClientAuthentication", False)
    """A bookie refuses TLS clients without a certificate of a trusted authority; a client shows its own."""
    required: bool = setting("tlsRequired", False, ours=True)
    """A bookie refuses every request of clients that do not begin with START_TLS. BookKeeper serves those, too, unless
    an authentication provider refuses them."""
    key_type: StoreType = setting("tlsKeyStoreType", StoreType.JKS)
    key_store: Path | None = setting("tlsKeyStore", None)
    """The private key (PEM), or the store of the key and its certificates."""
    key_password_file: Path | None = setting("tlsKeyStorePasswordPath", None)
    certificate: Path | None = setting("tlsCertificatePath", None)
    """The certificates in PEM, the own one first."""
    trust_type: StoreType = setting("tlsTrustStoreType", StoreType.JKS)
    trust_store: Path | None = setting("tlsTrustStore", None)
    """The certificates of the authorities that the other side's certificate must be of."""
    trust_password_file: Path | None = setting("tlsTrustStorePasswordPath", None)
    refresh_seconds: float = setting("tlsCertFilesRefreshDurationSeconds", REFRESH_SECONDS, low=0)
    """How often the files are looked at, at most; 0: never again."""
    protocols: tuple[str, ...] = setting("tlsEnabledProtocols", ())
    """The TLS versions that are spoken, of TLSv1.2 and TLSv1.3; empty: both."""
    ciphers: tuple[str, ...] = setting("tlsEnabledCipherSuites", ())
    """OpenSSL's names, for TLS 1.2; empty: OpenSSL's own choice."""
    verify_host_name: bool = setting("tlsHostnameVerificationEnabled", False)
    """A client: the bookie's certificate must be for the host that is dialled."""

    @property
    def enabled(self) -> bool:
        """Whether there is TLS at all."""
        return bool(self.provider)

    def server_tls(self) -> TlsSettings | None:
        """For a bookie; None without TLS. `SettingError` names what is missing."""
        if not self.enabled:
            if self.required:
                raise SettingError(f"tlsRequired needs tlsProviderFactoryClass={TLS_FACTORY}")
            return None
        _check_provider(self.provider, "tlsProviderFactoryClass")
        check_type(self.key_type, "tlsKeyStoreType")
        _need(self.key_store, "tlsKeyStore", "the bookie's private key")
        if self.key_type is StoreType.PEM:
            _need(self.certificate, "tlsCertificatePath", "the bookie's certificate")
        if self.client_authentication:
            check_type(self.trust_type, "tlsTrustStoreType")
            _need(self.trust_store, "tlsTrustStore", "the authorities of clients' certificates")
        return TlsSettings(
            certificate_file=self.certificate if self.key_type is StoreType.PEM else None,
            key_file=self.key_store,
            key_type=self.key_type,
            key_password_file=self.key_password_file,
            trust_certificates_file=self.trust_store if self.client_authentication else None,
            trust_type=self.trust_type,
            trust_password_file=self.trust_password_file,
            require_client_certificate=self.client_authentication,
            protocols=self.protocols,
            ciphers=self.ciphers,
            refresh_seconds=_refresh(self.refresh_seconds),
        )

    def client_tls(self) -> TlsSettings | None:
        """For AutoRecovery and tools; None without TLS. `SettingError` names what is missing."""
        if not self.enabled:
            return None
        _check_provider(self.provider, "tlsProviderFactoryClass")
        check_type(self.trust_type, "tlsTrustStoreType")
        _need(self.trust_store, "tlsTrustStore", "the authorities of the other bookies' certificates")
        if self.client_authentication:
            check_type(self.key_type, "tlsKeyStoreType")
            _need(self.key_store, "tlsKeyStore", "the client's private key")
            if self.key_type is StoreType.PEM:
                _need(self.certificate, "tlsCertificatePath", "the client's certificate")
        shown = self.client_authentication
        return TlsSettings(
            certificate_file=self.certificate if shown and self.key_type is StoreType.PEM else None,
            key_file=self.key_store if shown else None,
            key_type=self.key_type,
            key_password_file=self.key_password_file if shown else None,
            trust_certificates_file=self.trust_store,
            trust_type=self.trust_type,
            trust_password_file=self.trust_password_file,
            verify_host_name=self.verify_host_name,
            protocols=self.protocols,
            ciphers=self.ciphers,
            refresh_seconds=_refresh(self.refresh_seconds),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerBookieTlsSettings:
    """`broker.conf`: the broker as a client of bookies."""

    enabled: bool = setting("bookkeeperTLSClientAuthentication", False)
    """TLS to bookies, with a client certificate; without it none of the other settings counts."""
    provider: str = setting("bookkeeperTLSProviderFactoryClass", TLS_FACTORY)
    key_type: StoreType = setting("bookkeeperTLSKeyFileType", StoreType.PEM)
    key_store: Path | None = setting("bookkeeperTLSKeyFilePath", None)
    """The broker's private key (PEM), or the store of the key and its certificates."""
    key_password_file: Path | None = setting("bookkeeperTLSKeyStorePasswordPath", None)
    certificate: Path | None = setting("bookkeeperTLSCertificateFilePath", None)
    """The broker's certificates in PEM, the own one first."""
    trust_type: StoreType = setting("bookkeeperTLSTrustCertTypes", StoreType.PEM)
    trust_store: Path | None = setting("bookkeeperTLSTrustCertsFilePath", None)
    """The certificates of the authorities that a bookie's certificate must be of."""
    trust_password_file: Path | None = setting("bookkeeperTLSTrustStorePasswordPath", None)
    refresh_seconds: float = setting("bookkeeperTlsCertFilesRefreshDurationSeconds", REFRESH_SECONDS, low=0)
    """How often the files are looked at, at most; 0: never again."""
    verify_host_name: bool = setting("bookkeeper_tlsHostnameVerificationEnabled", False)
    """A bookie's certificate must be for the host that is dialled. Pulsar passes settings that begin with
    `bookkeeper_` on to BookKeeper's client, which has this one."""

    def client_tls(self) -> TlsSettings | None:
        """None without TLS. `SettingError` names what is missing."""
        if not self.enabled:
            return None
        _check_provider(self.provider, "bookkeeperTLSProviderFactoryClass")
        check_type(self.key_type, "bookkeeperTLSKeyFileType")
        check_type(self.trust_type, "bookkeeperTLSTrustCertTypes")
        _need(self.key_store, "bookkeeperTLSKeyFilePath", "the broker's private key")
        if self.key_type is StoreType.PEM:
            _need(self.certificate, "bookkeeperTLSCertificateFilePath", "the broker's certificate")
        _need(self.trust_store, "bookkeeperTLSTrustCertsFilePath", "the authorities of the bookies' certificates")
        return TlsSettings(
            certificate_file=self.certificate if self.key_type is StoreType.PEM else None,
            key_file=self.key_store,
            key_type=self.key_type,
            key_password_file=self.key_password_file,
            trust_certificates_file=self.trust_store,
            trust_type=self.trust_type,
            trust_password_file=self.trust_password_file,
            verify_host_name=self.verify_host_name,
            refresh_seconds=_refresh(self.refresh_seconds),
        )


def _check_provider(provider: str, name: str) -> None:
    if provider.rpartition(".")[2] != TLS_FACTORY.rpartition(".")[2]:
        raise SettingError(f"{name} is {provider}; there is {TLS_FACTORY}")


def _need(file: Path | None, name: str, what: str) -> None:
    if file is None or not str(file).strip(".") or str(file) == "null":
        raise SettingError(f"{name} is not set: {what}")


def _refresh(seconds: float) -> float:
    return seconds if seconds > 0 else math.inf
