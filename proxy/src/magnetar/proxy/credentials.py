"""Who the proxy is towards brokers, and for whom it speaks.

Pulsar's plugins for clients are named by class; those that need nothing but a text or a certificate are understood.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final, NamedTuple

from magnetar.core.errors import SettingError
from magnetar.net.tls import TlsSettings
from magnetar.wire.pulsar.generated.pulsar_api_pb2 import CommandConnect

METHOD_NONE: Final = "none"
METHOD_TOKEN: Final = "token"  # noqa: S105  (a method's name)
METHOD_TLS: Final = "tls"


class OriginalClient(NamedTuple):
    """What brokers are told about the client; empty where nothing is known."""

    principal: str = ""
    """Who the proxy found it to be; never what a client said about itself."""
    auth_data: str = ""
    auth_method: str = ""
    """The client's own credentials, where the settings want them forwarded."""


NOBODY: Final = OriginalClient()


def original_client(connect: CommandConnect, *, forward_credentials: bool) -> OriginalClient:
    """The client of a CONNECT."""
    if not forward_credentials or not connect.HasField("auth_data"):
        return NOBODY
    # Pulsar's field is a text.
    return OriginalClient("", connect.auth_data.decode("utf-8", "replace"), connect.auth_method_name)


class ProxyCredentials:
    """How the proxy authenticates to brokers."""

    def __init__(self, plugin: str, parameters: str) -> None:
        """`SettingError` for a plugin that is not known or parameters that it does not take."""
        name = plugin.rpartition(".")[2]
        self._token_file: Path | None = None
        self._token = b""
        self._tls_files: dict[str, str] = {}
        if name in ("", "AuthenticationDisabled"):
            self.method = METHOD_NONE
        elif name == "AuthenticationToken" or plugin == METHOD_TOKEN:
            self.method = METHOD_TOKEN
            self._take_token(parameters)
        elif name == "AuthenticationTls" or plugin == METHOD_TLS:
            self.method = METHOD_TLS
            self._tls_files = _pairs(parameters)
        else:
            raise SettingError(
                f"brokerClientAuthenticationPlugin {plugin} is not known; AuthenticationToken and AuthenticationTls are"
            )

    def _take_token(self, parameters: str) -> None:
        kind, colon, rest = parameters.partition(":")
        if colon and kind == "token":
            self._token = rest.encode()
        elif colon and kind == "file":
            self._token_file = Path("/" + rest.lstrip("/"))
        elif parameters.lstrip().startswith("{"):
            self._token = str(json.loads(parameters).get("token", "")).encode()
        else:
            self._token = parameters.encode()

    @property
    def auth_data(self) -> bytes:
        """What CONNECT and AUTH_RESPONSE carry; a token's file is read each time, as it may be renewed. OSError."""
        return self._token if self._token_file is None else self._token_file.read_bytes().strip()

    def tls_files(self, tls: TlsSettings) -> tuple[Path | None, Path | None]:
        """Certificate and key to show to brokers: the plugin's, else those of the TLS settings."""
        certificate, key = self._tls_files.get("tlsCertFile"), self._tls_files.get("tlsKeyFile")
        if certificate and key:
            return Path(certificate), Path(key)
        return tls.certificate_file, tls.key_file

    def add_to(self, connect: CommandConnect, client: OriginalClient) -> None:
        """Write both into a CONNECT."""
        connect.auth_method_name = self.method
        if self.method != METHOD_NONE:
            connect.auth_data = self.auth_data
        if client.principal:
            connect.original_principal = client.principal
        if client.auth_data:
            connect.original_auth_data = client.auth_data
            connect.original_auth_method = client.auth_method


def _pairs(parameters: str) -> dict[str, str]:
    """`name:value,name:value`, or a JSON object."""
    if parameters.lstrip().startswith("{"):
        try:
            return {str(name): str(value) for name, value in json.loads(parameters).items()}
        except ValueError:
            raise SettingError("brokerClientAuthenticationParameters begin like JSON and are none") from None
    return {name: value for name, _, value in (pair.partition(":") for pair in parameters.split(",")) if name}
