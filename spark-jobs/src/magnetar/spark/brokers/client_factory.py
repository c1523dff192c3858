"""How drivers and executors come to a client: TLS and credentials as Pulsar's Java clients name them."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final

from magnetar.auth.plugin import ClientCredentials
from magnetar.client.addresses import parse_service_url
from magnetar.client.client import PulsarClient
from magnetar.client.settings import ClientSettings
from magnetar.core.clock import SystemClock
from magnetar.core.errors import SettingError
from magnetar.net.endpoints import connect
from magnetar.net.tls import ClientTls, TlsSettings
from magnetar.spark.errors import BadOption
from magnetar.spark.options.connection import ConnectionOptions

CLIENT_VERSION: Final = "Magnetar-Spark"
"""What brokers' statistics show of who is connected."""

PLUGIN_OPTION: Final = "authPluginClassName"
PARAMETERS_OPTION: Final = "authParams"
TRUST_OPTION: Final = "tlsTrustCertsFilePath"

TOKEN_PLUGIN: Final = "org.apache.pulsar.client.impl.auth.AuthenticationToken"  # noqa: S105 - a class's name


def make_client(options: ConnectionOptions, *, send_timeout_seconds: float = 30.0) -> PulsarClient:
    """A client, which connects when it is used. Called on the event loop that it is to run on; to be closed there.

    Raises `BadOption`: the service URL, an authentication plugin that is not known, credentials or certificates that
    cannot be read."""
    try:
        addresses = parse_service_url(options.service_url)
    except SettingError as error:
        raise BadOption(f"option service.url: {error}") from None
    credentials = credentials_of(options)
    tls = tls_of(options, credentials) if any(address.tls for address in addresses) else None
    if credentials.certificate_files is not None and tls is None:
        raise BadOption(
            f"option {PLUGIN_OPTION} shows a certificate, which needs TLS: service.url must begin with pulsar+ssl://"
        )
    settings = ClientSettings(
        client_version=CLIENT_VERSION,
        operation_timeout_seconds=options.operation_timeout_seconds,
        send_timeout_seconds=send_timeout_seconds,
    )
    return PulsarClient(
        lambda: options.service_url,
        SystemClock(),
        settings,
        authentication=credentials.shown if credentials.method != "none" else None,
        connect_tls=None if tls is None else partial(connect, tls=tls),
    )


def credentials_of(options: ConnectionOptions) -> ClientCredentials:
    """What is shown to brokers and to the admin API. Raises `BadOption`, which does not repeat the credentials."""
    plugin, parameters = options.auth_plugin, options.auth_params
    if options.token:
        plugin, parameters = TOKEN_PLUGIN, options.token
    try:
        found = ClientCredentials(plugin, parameters)
        found.data()
    except SettingError as error:
        text = str(error).replace("brokerClientAuthenticationPlugin", PLUGIN_OPTION)
        name = "token" if options.token else PARAMETERS_OPTION
        raise BadOption(f"option {text.replace('brokerClientAuthenticationParameters', name)}") from None
    except OSError as error:
        raise BadOption(f"option {PARAMETERS_OPTION}: the file of the token cannot be read: {error}") from None
    return found


def tls_of(options: ConnectionOptions, credentials: ClientCredentials) -> ClientTls:
    """TLS to brokers and to the admin API. Raises `BadOption`."""
    trusted = options.tls_trust_certificates_file
    settings = TlsSettings(
        trust_certificates_file=Path(trusted) if trusted else None,
        allow_insecure=options.tls_allow_insecure,
        verify_host_name=options.tls_hostname_verification,
    )
    files = credentials.certificate_files
    if files is not None:
        settings = replace(settings, certificate_file=files.certificate, key_file=files.key)
    try:
        return ClientTls(settings)
    except SettingError as error:
        name = TRUST_OPTION if files is None or str(files.certificate) not in str(error) else PARAMETERS_OPTION
        raise BadOption(f"option {name}: {error}") from None
