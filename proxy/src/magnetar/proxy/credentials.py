"""What brokers are told about who connects: the proxy, and the client that it connects for."""

from __future__ import annotations

from dataclasses import replace
from typing import Final, NamedTuple

from magnetar.auth.credentials import METHOD_NONE, METHOD_TLS
from magnetar.auth.plugin import ClientCredentials
from magnetar.core.errors import SettingError
from magnetar.net.tls import TlsSettings
from magnetar.proxy.settings import PROXY_VERSION, BrokerClientSettings
from magnetar.wire.pulsar import messages
from magnetar.wire.pulsar.generated.pulsar_api_pb2 import CommandConnect


class OriginalClient(NamedTuple):
    """A client as brokers get to know it; empty where nothing is known."""

    principal: str = ""
    """Who the proxy found it to be; never what a client said about itself."""
    auth_data: bytes = b""
    auth_method: str = ""
    """The client's own credentials, where brokers get them."""
    passed_on: bool = False
    """Brokers get the client's credentials instead of the proxy's, as if the client had come itself."""


NOBODY: Final = OriginalClient()


def own_credentials(settings: BrokerClientSettings) -> ClientCredentials:
    """The proxy's. `SettingError` as `ClientCredentials`, and for a certificate without TLS."""
    own = ClientCredentials(settings.authentication_plugin, settings.authentication_parameters)
    if own.certificate_files is not None and not settings.tls_enabled:
        raise SettingError("brokerClientAuthenticationPlugin shows a certificate, and tlsEnabledWithBroker is off")
    return own


def client_tls_settings(settings: BrokerClientSettings, own: ClientCredentials) -> TlsSettings:
    """TLS towards brokers: with the plugin's certificate, if it has one of its own."""
    files = own.certificate_files
    if files is None:
        return settings.tls
    return replace(settings.tls, certificate_file=files.certificate, key_file=files.key)


def unchecked_client(connect: CommandConnect, own: ClientCredentials, *, forward_credentials: bool) -> OriginalClient:
    """The client of a CONNECT to a proxy that authenticates nobody.

    A proxy without credentials of its own passes the client's on. It cannot do so with a certificate, as TLS ends
    here: a broker would look at the proxy's."""
    if not connect.auth_data:
        return NOBODY
    method = messages.auth_method_of(connect)
    if own.method == METHOD_NONE:
        passed_on = method not in (METHOD_NONE, METHOD_TLS)
        return OriginalClient("", connect.auth_data, method, passed_on=True) if passed_on else NOBODY
    return OriginalClient("", connect.auth_data, method) if forward_credentials else NOBODY


def introduce(connect: CommandConnect, own: ClientCredentials, client: OriginalClient) -> None:
    """Write into a CONNECT who comes, and for whom. OSError when the proxy's token cannot be read."""
    if client.passed_on:
        # Without a version: who names one must be in the broker's proxyRoles.
        connect.auth_method_name, connect.auth_data = client.auth_method, client.auth_data
        return
    connect.proxy_version = PROXY_VERSION
    connect.auth_method_name = own.method
    if own.method != METHOD_NONE:
        connect.auth_data = own.data()
    if client.principal:
        connect.original_principal = client.principal
    if client.auth_data:
        # Pulsar's field is a text.
        connect.original_auth_data = client.auth_data.decode("utf-8", "replace")
        connect.original_auth_method = client.auth_method
