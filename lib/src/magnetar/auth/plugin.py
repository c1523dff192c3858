"""What a broker or a proxy shows to others: `brokerClientAuthenticationPlugin` and its parameters.

Pulsar's plugins for clients are named by class, or by their method; those are understood that need a text or a
certificate and nothing else.
"""

from __future__ import annotations

import base64
import json
import re
from pathlib import Path
from typing import Final, NamedTuple

from magnetar.auth.credentials import METHOD_BASIC, METHOD_NONE, METHOD_TLS, METHOD_TOKEN
from magnetar.auth.keys import file_of_url
from magnetar.core.errors import SettingError

_METHODS: Final = {
    "": METHOD_NONE,
    "AuthenticationDisabled": METHOD_NONE,
    "AuthenticationToken": METHOD_TOKEN,
    "AuthenticationBasic": METHOD_BASIC,
    "AuthenticationTls": METHOD_TLS,
}
_TOKEN: Final = re.compile(rb"[!-~]+")
"""What a header and CONNECT can carry; whether it is good is known to those who are shown it."""
PARAMETERS: Final = "brokerClientAuthenticationParameters"


class CertificateFiles(NamedTuple):
    """A client's certificate and its key, PEM."""

    certificate: Path
    key: Path


class ClientCredentials:
    """Credentials of a client, as its plugin's parameters say them."""

    def __init__(self, plugin: str = "", parameters: str = "") -> None:
        """`SettingError` for a plugin that is not known, parameters that it does not take, or a token's file that
        cannot be used now."""
        name = plugin.rpartition(".")[2]
        method = plugin if plugin in _METHODS.values() else _METHODS.get(name)
        if method is None:
            known = ", ".join(f"org.apache.pulsar.client.impl.auth.{each}" for each in _METHODS if each)
            raise SettingError(f"brokerClientAuthenticationPlugin {plugin} is not known; there are {known}")
        self.method: Final = method
        self._file: Path | None = None
        self._data = b""
        self.certificate_files: CertificateFiles | None = None
        """What TLS connections have to show."""
        if method == METHOD_TOKEN:
            self._take_token(parameters)
        elif method == METHOD_BASIC:
            self._data = _user_and_password(parameters)
        elif method == METHOD_TLS:
            self.certificate_files = _certificate_files(parameters)

    def _take_token(self, parameters: str) -> None:
        if parameters.startswith("file:"):
            self._file = Path(file_of_url(parameters))
            _look_at_token(self._file)
            return
        text = parameters.removeprefix("token:")
        if parameters.lstrip().startswith("{"):
            text = _named(parameters).get("token", "")
        if not text.strip():
            raise SettingError(f"{PARAMETERS} has no token: token:…, file:…, or the token itself")
        self._data = text.strip().encode()

    def data(self) -> bytes:
        """What CONNECT and AUTH_RESPONSE carry. A token's file is read each time, as it may have been renewed.
        OSError."""
        return self._data if self._file is None else self._file.read_bytes().strip()

    def shown(self) -> tuple[str, bytes]:
        """Method and data, as `magnetar.client` wants them. OSError."""
        return self.method, self.data()

    def http_headers(self) -> dict[str, str]:
        """What requests carry. OSError."""
        if self.method == METHOD_NONE:
            return {}
        headers = {"X-Pulsar-Auth-Method-Name": self.method}
        if self.method == METHOD_TOKEN:
            headers["Authorization"] = "Bearer " + self.data().decode("utf-8", "replace")
        elif self.method == METHOD_BASIC:
            headers["Authorization"] = "Basic " + base64.b64encode(self.data()).decode()
        return headers


def _look_at_token(file: Path) -> None:
    """A wrong file is told before it is shown to anybody: it may hold what nobody should see."""
    try:
        token = file.read_bytes().strip()
    except OSError as error:
        raise SettingError(f"{PARAMETERS}: {file} cannot be read: {error.strerror}") from None
    if not token:
        raise SettingError(f"{PARAMETERS}: {file} is empty, and should hold a token")
    if not _TOKEN.fullmatch(token):
        raise SettingError(f"{PARAMETERS}: {file} holds no token, which is one word without spaces")


def _user_and_password(parameters: str) -> bytes:
    """JSON with userId and password (Pulsar `AuthenticationBasic`), or `user:password`."""
    if not parameters.lstrip().startswith("{"):
        if ":" not in parameters:
            raise SettingError(f'{PARAMETERS} must be {{"userId":"…","password":"…"}}')
        return parameters.encode()
    named = _named(parameters)
    if not named.get("userId") or "password" not in named:
        raise SettingError(f"{PARAMETERS} names no userId and password")
    return f"{named['userId']}:{named['password']}".encode()


def _certificate_files(parameters: str) -> CertificateFiles | None:
    """The plugin's own files; None: those of the TLS settings."""
    named = _named(parameters)
    certificate, key = named.get("tlsCertFile"), named.get("tlsKeyFile")
    if bool(certificate) != bool(key):
        raise SettingError(f"{PARAMETERS}: tlsCertFile and tlsKeyFile go together")
    if not certificate or not key:
        return None
    return CertificateFiles(Path(file_of_url(certificate)), Path(file_of_url(key)))


def _named(parameters: str) -> dict[str, str]:
    """`name:value,name:value`, or a JSON object."""
    if not parameters.lstrip().startswith("{"):
        pairs = (pair.partition(":") for pair in parameters.split(","))
        return {name.strip(): value.strip() for name, _, value in pairs if name.strip()}
    try:
        return {str(name): str(value) for name, value in json.loads(parameters).items()}
    except ValueError:
        raise SettingError(f"{PARAMETERS} begins like JSON and is none") from None
