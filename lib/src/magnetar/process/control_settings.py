"""The settings of the control port, which bookies and brokers have alike."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from magnetar.control.settings import ControlSettings, ServerTls
from magnetar.core.errors import SettingError
from magnetar.core.settings_file import GivenSettings

CONTROL_NAMES: Final = (
    "controlEnabled",
    "controlHost",
    "controlPort",
    "controlTlsCertificateFile",
    "controlTlsClientAuthorityFile",
    "controlTlsKeyFile",
    "controlToken",
    "controlTokenFile",
)
"""Our own: Apache's have no such port."""

ANY_HOST: Final = "0.0.0.0"  # noqa: S104  (a server's default)


def control_settings(given: GivenSettings, default_port: int) -> ControlSettings | None:
    """What was given, None for no control port. `SettingError`."""
    if not given.flag("controlEnabled", True):
        return None
    certificate, key = given.text("controlTlsCertificateFile"), given.text("controlTlsKeyFile")
    authority = given.text("controlTlsClientAuthorityFile")
    if bool(certificate) != bool(key):
        raise SettingError("controlTlsCertificateFile and controlTlsKeyFile go together: set both or none")
    tls = None
    if certificate and key:
        client_authority = Path(authority) if authority else None
        tls = ServerTls(certificate_file=Path(certificate), key_file=Path(key), client_authority_file=client_authority)
    token_file = given.text("controlTokenFile")
    return ControlSettings(
        host=given.text("controlHost") or ANY_HOST,
        port=given.number("controlPort", default_port, 0, 65535),
        tls=tls,
        token=given.text("controlToken") or "",
        token_file=Path(token_file) if token_file else None,
    )
