"""Certificates of a cluster whose bookies speak TLS, and both sides' settings for them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from magnetar.ledger.bookie_client.tls_settings import TLS_FACTORY
from magnetar.net.testing import Certificate, TestAuthority

LOCAL = ("DNS:localhost", "IP:127.0.0.1")
ROLES_PROVIDER = "org.apache.bookkeeper.tls.BookieAuthZFactory"
ROLE = "broker"
OTHER_ROLE = "reporter"


@dataclass(frozen=True, slots=True)
class ClusterCertificates:
    """One authority, and what it gave to bookies, to brokers and to somebody who may nothing."""

    authority: Path
    bookie: Certificate
    broker: Certificate
    stranger: Certificate

    def bookie_settings(self, **settings: str) -> dict[str, str]:
        """A `bookkeeper.conf`: TLS, client certificates, only clients with the role."""
        return {
            "tlsProvider": "JDK",
            "tlsProviderFactoryClass": TLS_FACTORY,
            "tlsClientAuthentication": "true",
            "tlsKeyStoreType": "PEM",
            "tlsKeyStore": str(self.bookie.key_file),
            "tlsCertificatePath": str(self.bookie.certificate_file),
            "tlsTrustStoreType": "PEM",
            "tlsTrustStore": str(self.authority),
            "bookieAuthProviderFactoryClass": ROLES_PROVIDER,
            "authorizedRoles": ROLE,
            **settings,
        }

    def broker_settings(self, own: Certificate | None = None) -> dict[str, str]:
        """A `broker.conf`."""
        own = own or self.broker
        return {
            "bookkeeperTLSProviderFactoryClass": TLS_FACTORY,
            "bookkeeperTLSClientAuthentication": "true",
            "bookkeeperTLSKeyFileType": "PEM",
            "bookkeeperTLSKeyFilePath": str(own.key_file),
            "bookkeeperTLSCertificateFilePath": str(own.certificate_file),
            "bookkeeperTLSTrustCertTypes": "PEM",
            "bookkeeperTLSTrustCertsFilePath": str(self.authority),
            "bookkeeper_tlsHostnameVerificationEnabled": "true",
        }

    def client_file(self, folder: Path, own: Certificate) -> Path:
        """A file of settings for BookKeeper's Java client, and for tools of both sides."""
        file = folder / f"client-{own.key_file.stem}.conf"
        settings = self.bookie_settings(
            tlsKeyStore=str(own.key_file),
            tlsCertificatePath=str(own.certificate_file),
            tlsHostnameVerificationEnabled="true",
        )
        kept = {name: value for name, value in settings.items() if name.startswith("tls")}
        file.write_text("".join(f"{name}={value}\n" for name, value in kept.items()))
        return file


def make_certificates(folder: Path) -> ClusterCertificates:
    """Made by the `openssl` command below a folder. AutoRecovery of bookies is a client of the others, so that theirs
    have the brokers' role."""
    authority = TestAuthority(folder)
    return ClusterCertificates(
        authority=authority.certificate_file,
        bookie=authority.issue("bookie", *LOCAL, unit=f"0:{ROLE}"),
        broker=authority.issue("broker", unit=f"0:{ROLE}"),
        stranger=authority.issue("stranger", unit=f"0:{OTHER_ROLE}"),
    )
