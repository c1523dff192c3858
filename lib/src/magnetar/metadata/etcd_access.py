"""How the servers of an etcd cluster are reached: their addresses, and TLS as Pulsar's file for etcd says it.

Pulsar's brokers name the file by `metadataStoreConfigPath` (metadata/impl/EtcdMetadataStore, EtcdConfig). Here it
stands at the end of the store's URL, `etcd:https://h1:2379?config=/etc/etcd.yaml`: so all tools take it that take a
URL. The files are read when the store is opened.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

import grpc
import grpc.aio
from magnetar.core.bounded_file import read_bounded
from magnetar.core.errors import SettingError
from magnetar.metadata.urls import CONFIG_MARK

FILE_BYTES_MAX: Final = 1024 * 1024
"""No certificate, key or settings file is larger."""

_TRUE: Final = ("true", "yes", "on")
_FALSE: Final = ("false", "no", "off")
_TRUST: Final = "tlsTrustCertsFilePath"
_KEY: Final = "tlsKeyFilePath"
_CERTIFICATE: Final = "tlsCertificateFilePath"
_NAMES: Final = ("useTls", "tlsProvider", _TRUST, _KEY, _CERTIFICATE, "authority")
_NOTHING: Final = ("", "~", "null")


@dataclass(frozen=True, slots=True, kw_only=True)
class EtcdAccess:
    """One etcd cluster."""

    addresses: tuple[str, ...]
    """Each host:port."""
    credentials: tuple[bool, ...]
    """Whether each is reached by TLS."""
    trust: bytes | None = None
    """The authorities of the servers' certificates, PEM; None: the system's."""
    key: bytes | None = None
    certificate: bytes | None = None
    """What the servers are shown, PEM; None: nothing."""
    authority: str = ""
    """Whom the servers' certificates are for, and who requests say that they are sent to; empty: the host."""

    def channels(self, options: list[tuple[str, int]]) -> list[grpc.aio.Channel]:
        """One to each server; nothing is sent yet."""
        named: list[tuple[str, int | str]] = [*options]
        if self.authority:
            named.append(("grpc.default_authority", self.authority))
            named.append(("grpc.ssl_target_name_override", self.authority.rpartition(":")[0] or self.authority))
        credentials = grpc.ssl_channel_credentials(self.trust, self.key, self.certificate)
        return [
            grpc.aio.secure_channel(address, credentials, named)
            if secure
            else grpc.aio.insecure_channel(address, named)
            for address, secure in zip(self.addresses, self.credentials, strict=True)
        ]


def read_access(url: str) -> EtcdAccess:
    """Everything that `etcd:http://h1:2379,https://h2:2379?config=FILE` says, its files read. `SettingError`."""
    _, mark, file = url.partition(CONFIG_MARK)
    endpoints = parse_endpoints(url)
    addresses = tuple(address for address, _ in endpoints)
    by_scheme = tuple(secure for _, secure in endpoints)
    if not mark:
        return EtcdAccess(addresses=addresses, credentials=by_scheme)
    given = parse_config(read_bounded(Path(file), "the etcd settings", FILE_BYTES_MAX).decode("utf-8", "replace"), file)
    authority = given.get("authority", "")
    if not _flag(given.get("useTls", "false"), file):
        return EtcdAccess(addresses=addresses, credentials=by_scheme, authority=authority)
    if (_KEY in given) != (_CERTIFICATE in given):
        raise SettingError(f"{file}: {_KEY} and {_CERTIFICATE} go together")
    return EtcdAccess(
        addresses=addresses,
        # Pulsar's client goes by the file alone.
        credentials=(True,) * len(addresses),
        trust=_named(given, _TRUST, file),
        key=_named(given, _KEY, file),
        certificate=_named(given, _CERTIFICATE, file),
        authority=authority,
    )


def parse_endpoints(url: str) -> list[tuple[str, bool]]:
    """(host:port, whether by TLS) of each server of `etcd:http://h1:2379,http://h2:2379`. `SettingError`."""
    endpoints = []
    for text in url.removeprefix("etcd:").partition(CONFIG_MARK)[0].split(","):
        scheme, separator, address = text.strip().partition("://")
        if not separator:
            scheme, address = "http", text.strip()
        address = address.rstrip("/")
        if scheme not in ("http", "https") or not address or "/" in address:
            raise SettingError(f"metadata URL {url!r}: {text!r} is not like http://host:2379")
        endpoints.append((address if ":" in address else f"{address}:2379", scheme == "https"))
    return endpoints


def parse_config(text: str, file: str) -> dict[str, str]:
    """Names and values of Pulsar's YAML for etcd, which is flat; those without a value are left out. `SettingError`
    names the line."""
    found: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), 1):
        said = line.strip()
        if not said or said.startswith("#") or said == "---":
            continue
        name, colon, value = said.partition(":")
        name, value = name.strip(), _unquoted(value.strip())
        if not colon or line[:1].isspace():
            raise SettingError(f"{file}, line {number}: {said!r} is not like NAME: VALUE")
        if name not in _NAMES:
            raise SettingError(f"{file}, line {number}: {name!r} is none of {', '.join(_NAMES)}")
        if value not in _NOTHING:
            found[name] = value
    return found


def _unquoted(value: str) -> str:
    if len(value) >= 2 and value[0] in "\"'" and value[-1] == value[0]:
        return value[1:-1]
    return value.partition(" #")[0].rstrip()


def _flag(value: str, file: str) -> bool:
    if value.lower() not in (*_TRUE, *_FALSE):
        raise SettingError(f"{file}: useTls is {value!r}, and neither true nor false")
    return value.lower() in _TRUE


def _named(given: dict[str, str], name: str, file: str) -> bytes | None:
    path = given.get(name)
    return None if path is None else read_bounded(Path(path), f"{file}: {name}", FILE_BYTES_MAX)
