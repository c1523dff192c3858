"""How this broker shows itself to other brokers, and to itself: its own client and its calls by HTTP."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from magnetar.auth.plugin import ClientCredentials
from magnetar.broker.settings.access import PeerSettings
from magnetar.client.pool import Connector
from magnetar.core.errors import SettingError
from magnetar.net.endpoints import connect
from magnetar.net.tls import ClientTls


class PeerAccess:
    """Credentials, and TLS if brokers are reached with it."""

    def __init__(self, settings: PeerSettings) -> None:
        """`SettingError` for parameters and files that cannot be used."""
        self.credentials = ClientCredentials(settings.plugin, settings.parameters)
        files = self.credentials.certificate_files
        if files is not None and not settings.tls_enabled:
            raise SettingError(
                "brokerClientAuthenticationPlugin shows a certificate, and brokerClientTlsEnabled is off"
            )
        tls = settings.tls
        if files is not None:
            tls = replace(tls, certificate_file=files.certificate, key_file=files.key)
        self.tls = ClientTls(tls) if settings.tls_enabled else None

    @property
    def connect_tls(self) -> Connector | None:
        """What `magnetar.client` opens connections with TLS by."""
        return None if self.tls is None else partial(connect, tls=self.tls)
