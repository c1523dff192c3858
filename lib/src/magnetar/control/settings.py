"""How the control port is served and reached. Imports nothing of gRPC."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from magnetar.core.errors import SettingError

TOKEN_HEADER: Final = "authorization"  # noqa: S105  (a header's name)
TOKEN_SCHEME: Final = "Bearer "  # noqa: S105


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlServerTls:
    """The server's certificate; read again when the files change, so that a renewed one is taken without a restart."""

    certificate_file: Path
    """The server's certificate and the chain that vouches for it, in one PEM file."""
    key_file: Path
    client_authority_file: Path | None = None
    """Set: clients must show a certificate of this authority."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlSettings:
    """The control port of one component."""

    host: str = "0.0.0.0"  # noqa: S104  (a server's default; the standalone narrows it)
    port: int = 0
    """The TCP port of the control service; 0: any free one."""
    tls: ControlServerTls | None = None
    token: str = ""
    """Set: every call but health checks must bring `authorization: Bearer <token>`. Kubernetes' probes bring none."""
    token_file: Path | None = None
    """The token is in this file, and changes with it."""
    stop_grace_seconds: float = 5.0
    """How long calls under way may go on when the server closes; watches end at once."""
    calls_at_once_max: int = 256
    """Further calls are refused. A watch is one call; a component has a handful of watchers."""

    def __post_init__(self) -> None:
        if not 0 <= self.stop_grace_seconds <= 300:
            raise SettingError(f"controlStopGraceSeconds is out of bounds: {self.stop_grace_seconds}")
        if self.token and self.token_file is not None:
            raise SettingError("controlToken and controlTokenFile say the same: set one of them")
        if self.token and not self.token.isascii():
            raise SettingError("the control token must be ASCII: it is sent as a header")


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlClientTls:
    """How a client checks the server, and who the client is."""

    authority_file: Path | None = None
    """The authorities that the server's certificate must come from, as a PEM file; None: the system's."""
    certificate_file: Path | None = None
    """With `key_file`: the client's own."""
    key_file: Path | None = None
    server_name: str = ""
    """The name in the server's certificate, if it is not the host that is dialled."""
