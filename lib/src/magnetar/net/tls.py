"""TLS for listening and for connecting, with certificates that are read again when their files have changed.

Changes are looked for when a connection is made, so there is no timer: a server's listening context puts the newest
one in place of itself while a client says hello, and a client asks for the newest one before it connects. A file that
cannot be read then, such as one that is half written, leaves the certificates as they were.
"""

from __future__ import annotations

import logging
import ssl
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from magnetar.core.errors import SettingError
from magnetar.net.key_stores import StoreType, load_store, password_in, trust_store

logger: Final = logging.getLogger(__name__)

HANDSHAKE_SECONDS_MAX: Final = 30.0
"""How long a peer may take for its handshake."""

_VERSIONS: Final = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsSettings:
    """The files of one side and how it checks the other, as Pulsar's settings `tls…` of brokers and proxies say it."""

    certificate_file: Path | None = None
    """The own chain, PEM: a server's always, a client's where the server wants one."""
    key_file: Path | None = None
    """Its private key, PEM; with `key_type` PKCS12 the store of both."""
    key_type: StoreType = StoreType.PEM
    key_password_file: Path | None = None
    """Holds the password of the key or of its store; None: it has none."""
    trust_certificates_file: Path | None = None
    """The authorities of the other side. None: the system's for a client; a server asks for no certificate then."""
    trust_type: StoreType = StoreType.PEM
    trust_password_file: Path | None = None
    """Holds the password of a store of authorities; None: it has none."""
    require_client_certificate: bool = False
    """A server: refuse clients that show none. Without it they may show one, which must be of a trusted authority."""
    allow_insecure: bool = False
    """Take any certificate of the other side."""
    verify_host_name: bool = False
    """A client: the server's certificate must be for the host that is dialled."""
    protocols: tuple[str, ...] = ()
    """The TLS versions that are spoken, of TLSv1.2 and TLSv1.3; empty: both."""
    ciphers: tuple[str, ...] = ()
    """OpenSSL's names, for TLS 1.2; empty: OpenSSL's own choice."""
    refresh_seconds: float = 300.0
    """How often the files are looked at, at most."""

    def __post_init__(self) -> None:
        if self.key_type is StoreType.PEM and (self.certificate_file is None) != (self.key_file is None):
            raise SettingError("a TLS certificate and its key go together: tlsCertificateFilePath and tlsKeyFilePath")
        for name in self.protocols:
            if name not in _VERSIONS:
                raise SettingError(f"TLS protocol {name!r} is not one of {', '.join(_VERSIONS)}")


_BOTH_NAMES: Final = {
    "allow_insecure": "tlsAllowInsecureConnection",
    "refresh_seconds": "tlsCertRefreshCheckDurationSec",
}
SERVER_TLS_NAMES: Final = {
    **_BOTH_NAMES,
    "certificate_file": "tlsCertificateFilePath",
    "ciphers": "tlsCiphers",
    "key_file": "tlsKeyFilePath",
    "protocols": "tlsProtocols",
    "require_client_certificate": "tlsRequireTrustedClientCertOnConnect",
    "trust_certificates_file": "tlsTrustCertsFilePath",
}
"""Pulsar's names of the fields of `TlsSettings` for ports of brokers and proxies."""
CLIENT_TLS_NAMES: Final = {
    **_BOTH_NAMES,
    "certificate_file": "brokerClientCertificateFilePath",
    "ciphers": "brokerClientTlsCiphers",
    "key_file": "brokerClientKeyFilePath",
    "protocols": "brokerClientTlsProtocols",
    "trust_certificates_file": "brokerClientTrustCertsFilePath",
    "verify_host_name": "tlsHostnameVerificationEnabled",
}
"""Pulsar's names of the fields of `TlsSettings` for connections to brokers."""


class ServerTls:
    """What listens with TLS. `context` goes to the event loop."""

    def __init__(self, settings: TlsSettings) -> None:
        """`SettingError` for files that are missing, damaged, or do not belong together."""
        if settings.key_file is None:
            raise SettingError("a TLS port needs tlsCertificateFilePath and tlsKeyFilePath")
        self._newest = _Newest(settings, _server_context)
        self.context: ssl.SSLContext = _server_context(settings)
        self.context.sni_callback = self._hello

    @property
    def newest(self) -> ssl.SSLContext:
        """For the next connection, where TLS begins in its middle."""
        return self._newest.context()

    def _hello(self, connection: ssl.SSLObject, name: str | None, context: ssl.SSLContext) -> None:
        """OpenSSL: a client has said hello, with or without a server's name."""
        del name, context
        connection.context = self._newest.context()


class ClientTls:
    """What connects with TLS."""

    def __init__(self, settings: TlsSettings) -> None:
        """`SettingError` as `ServerTls`."""
        self._newest = _Newest(settings, _client_context)

    @property
    def context(self) -> ssl.SSLContext:
        """For the next connection."""
        return self._newest.context()


def client_tls(settings: TlsSettings | None) -> ClientTls | None:
    """What connects by these settings; None without them. `SettingError` as `ServerTls`."""
    return None if settings is None else ClientTls(settings)


class _Newest:
    """A context as of the files now."""

    def __init__(self, settings: TlsSettings, make: Callable[[TlsSettings], ssl.SSLContext]) -> None:
        self._settings = settings
        self._make = make
        files = (
            *(settings.certificate_file, settings.key_file, settings.key_password_file),
            *(settings.trust_certificates_file, settings.trust_password_file),
        )
        self._files: Sequence[Path] = [file for file in files if file is not None]
        self._stamps = self._look()
        self._looked_seconds = time.monotonic()
        self._context = make(settings)

    def context(self) -> ssl.SSLContext:
        now = time.monotonic()
        if now - self._looked_seconds >= self._settings.refresh_seconds:
            self._looked_seconds = now
            self._refresh()
        return self._context

    def _refresh(self) -> None:
        stamps = self._look()
        if stamps == self._stamps:
            return
        try:
            self._context = self._make(self._settings)
        except SettingError as error:
            logger.warning("the TLS certificates stay as they were: %s", error)
            return
        self._stamps = stamps
        logger.info("TLS certificates were read again: %s", ", ".join(map(str, self._files)))

    def _look(self) -> list[tuple[int, int] | None]:
        return [_stamp(file) for file in self._files]


def _stamp(file: Path) -> tuple[int, int] | None:
    try:
        status = file.stat()
    except OSError:
        return None
    # Kubernetes replaces a file by another one: the inode changes where times are equal.
    return status.st_mtime_ns, status.st_ino


def _server_context(settings: TlsSettings) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    _set_up(context, settings)
    if settings.allow_insecure or (
        settings.trust_certificates_file is None and not settings.require_client_certificate
    ):
        context.verify_mode = ssl.CERT_NONE
        return context
    _trust(context, settings)
    context.verify_mode = ssl.CERT_REQUIRED if settings.require_client_certificate else ssl.CERT_OPTIONAL
    return context


def _client_context(settings: TlsSettings) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = settings.verify_host_name and not settings.allow_insecure
    _set_up(context, settings)
    if settings.allow_insecure:
        context.verify_mode = ssl.CERT_NONE
        return context
    _trust(context, settings)
    return context


def _set_up(context: ssl.SSLContext, settings: TlsSettings) -> None:
    versions = [_VERSIONS[name] for name in settings.protocols] or list(_VERSIONS.values())
    context.minimum_version, context.maximum_version = min(versions), max(versions)
    # Renegotiation lets a client make a server work for nothing.
    context.options |= ssl.OP_NO_RENEGOTIATION
    for file in (settings.certificate_file, settings.key_file):
        _check_readable(file)
    try:
        if settings.ciphers:
            context.set_ciphers(":".join(settings.ciphers))
        if settings.key_file is not None and settings.key_type is not StoreType.PEM:
            load_store(context, settings.key_file, settings.key_password_file)
        elif settings.certificate_file is not None:
            password = password_in(settings.key_password_file)
            context.load_cert_chain(settings.certificate_file, settings.key_file, password or _no_password)
    except (OSError, ValueError) as error:
        raise SettingError(f"TLS cannot be set up with {settings.certificate_file}: {_words(error)}") from None


def _check_readable(file: Path | None) -> None:
    """OpenSSL does not say which of several files it could not open."""
    if file is None:
        return
    try:
        with file.open("rb"):
            return
    except OSError as error:
        raise SettingError(f"TLS cannot be set up with {file}: {_words(error)}") from None


def _trust(context: ssl.SSLContext, settings: TlsSettings) -> None:
    authorities = settings.trust_certificates_file
    if authorities is None:
        context.load_default_certs()
        return
    try:
        if settings.trust_type is not StoreType.PEM:
            trust_store(context, authorities, settings.trust_password_file)
            return
        context.load_verify_locations(authorities)
    except (OSError, ValueError) as error:
        raise SettingError(f"the trusted certificates {authorities} cannot be read: {_words(error)}") from None


def _no_password(*_: Any) -> bytes:
    """OpenSSL would ask on the terminal."""
    raise ValueError("the key is encrypted, and no setting names the file of its password")


def _words(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error) or type(error).__name__
