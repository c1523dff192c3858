"""The control port: gRPC's health service and reflection beside the services of a component.

Importing this module loads gRPC (30 MB): import it only where the port is wanted.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import grpc
import grpc.aio
from grpc_health.v1 import health, health_pb2, health_pb2_grpc  # type: ignore[import-untyped]  # It has no types.
from grpc_reflection.v1alpha import reflection  # type: ignore[import-untyped]  # It has no types.
from magnetar.control.gate import OPEN_CALLS_MAX, AccessInterceptor
from magnetar.control.settings import ControlServerTls, ControlSettings
from magnetar.control.token import ControlToken
from magnetar.core.errors import Misuse, SettingError
from magnetar.core.limits import KIB
from magnetar.net.descriptors import open_files_max

logger: Final = logging.getLogger(__name__)

OVERALL: Final = ""
"""The component as a whole, in the health service's words."""
LIVENESS: Final = "liveness"
"""Asked about this, health is SERVING whenever the process still answers: what restarts go by, while what gets work
goes by the rest."""

REQUEST_BYTES_MAX: Final = 256 * KIB
METADATA_BYTES_MAX: Final = 8 * KIB
STREAMS_PER_CONNECTION_MAX: Final = 64
"""Calls of one client at a time: the operator makes a few, its plugin one a pod."""

CONNECTIONS_MAX: Final = 1_024
"""Counted from the moment that they are accepted, so that half handshakes do not take all files."""

SHARE_OF_FILES: Final = 8
"""Connections have no more than this part of the files that the process may open."""

_OPTIONS: Final = (
    # A port that another process has is an error, not a port to share.
    ("grpc.so_reuseport", 0),
    # Clients may keep an idle connection alive with a ping every ten seconds; who pings more often is cut off.
    ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
    ("grpc.http2.max_ping_strikes", 2),
    # The longest request names a few bundles or ledgers.
    ("grpc.max_receive_message_length", REQUEST_BYTES_MAX),
    ("grpc.max_metadata_size", METADATA_BYTES_MAX),
    ("grpc.max_concurrent_streams", STREAMS_PER_CONNECTION_MAX),
    # Who connects and says nothing, who has nothing more to ask, and who is gone without a word.
    ("grpc.server_handshake_timeout_ms", 10_000),
    ("grpc.max_connection_idle_ms", 300_000),
    ("grpc.keepalive_time_ms", 60_000),
    ("grpc.keepalive_timeout_ms", 20_000),
    ("grpc.keepalive_permit_without_calls", 1),
)


@dataclass(frozen=True, slots=True)
class ControlService:
    """One service that the port offers."""

    name: str
    """In full, such as `magnetar.control.v1.Bookie`; also what health is asked about."""
    add_to: Callable[[grpc.aio.Server], None]


class ControlServer:
    """Serves until closed. The health of a service is NOT_SERVING until `set_serving` says otherwise."""

    def __init__(self, settings: ControlSettings) -> None:
        self._settings = settings
        self._server: grpc.aio.Server | None = None
        self._health = health.aio.HealthServicer()
        self._serving: dict[str, bool] = {}
        self.stopping = asyncio.Event()
        """Set when the server begins to close: watches end then."""
        self.port = 0
        """The port that the server listens on, known after `start`."""

    async def start(self, services: Sequence[ControlService]) -> None:
        """Take the port and answer. OSError when it is taken, `SettingError` for certificates or a token's file that
        cannot be read."""
        if self._server is not None:
            raise Misuse("the control server runs already")
        server = grpc.aio.server(
            interceptors=[AccessInterceptor(ControlToken(self._settings.token, self._settings.token_file))],
            options=[*_OPTIONS, ("grpc.max_allowed_incoming_connections", _connections_max())],
            # Beside these, health checks, which bring no token, have places of their own.
            maximum_concurrent_rpcs=self._settings.calls_at_once_max + OPEN_CALLS_MAX,
        )
        for service in services:
            service.add_to(server)
            self._serving[service.name] = False
        health_pb2_grpc.add_HealthServicer_to_server(self._health, server)
        names = [*self._serving, health.SERVICE_NAME, reflection.SERVICE_NAME]
        reflection.enable_server_reflection(names, server)
        await self._tell_all()
        self.port = self._bind(server)
        await server.start()
        self._server = server
        logger.info("the control port is %d", self.port)

    async def set_serving(self, name: str, *, serving: bool) -> None:
        """The health of one of the services. The component as a whole is healthy when all of them are."""
        if name not in self._serving:
            raise Misuse(f"{name} is none of this port's services: {', '.join(self._serving)}")
        self._serving[name] = serving
        await self._tell_all()

    async def close(self) -> None:
        """Turn unhealthy, let calls under way finish within the grace, stop. Closing twice is no error."""
        self.stopping.set()
        server, self._server = self._server, None
        if server is not None:
            await self._health.enter_graceful_shutdown()
            await server.stop(self._settings.stop_grace_seconds)

    async def _tell_all(self) -> None:
        for name, serving in (*self._serving.items(), (OVERALL, all(self._serving.values())), (LIVENESS, True)):
            status = health_pb2.HealthCheckResponse
            await self._health.set(name, status.SERVING if serving else status.NOT_SERVING)

    def _bind(self, server: grpc.aio.Server) -> int:
        address = f"{self._settings.host}:{self._settings.port}"
        try:
            if self._settings.tls is None:
                return server.add_insecure_port(address)
            return server.add_secure_port(address, _credentials(self._settings.tls))
        except RuntimeError as error:
            raise OSError(f"the control port {address} cannot be had: {error}") from None


def _connections_max() -> int:
    return min(CONNECTIONS_MAX, open_files_max() // SHARE_OF_FILES)


def _credentials(tls: ControlServerTls) -> grpc.ServerCredentials:
    files = _CertificateFiles(tls)
    first = files.read()
    return grpc.dynamic_ssl_server_credentials(
        first, files.changed, require_client_authentication=tls.client_authority_file is not None
    )


class _CertificateFiles:
    """The certificate's files, and whether they have changed. Asked by gRPC's threads, one at a time, per handshake."""

    def __init__(self, tls: ControlServerTls) -> None:
        self._tls = tls
        authority = [tls.client_authority_file] if tls.client_authority_file is not None else []
        self._paths: list[Path] = [tls.certificate_file, tls.key_file, *authority]
        self._stamps: list[int] = []

    def read(self) -> grpc.ServerCertificateConfiguration:
        """`SettingError` when a file cannot be read."""
        try:
            self._stamps = [path.stat().st_mtime_ns for path in self._paths]
            certificate, key, *authority = [path.read_bytes() for path in self._paths]
        except OSError as error:
            raise SettingError(f"a file of the control port's TLS cannot be read: {error}") from None
        return grpc.ssl_server_certificate_configuration(
            [(key, certificate)], root_certificates=authority[0] if authority else None
        )

    def changed(self) -> Any:
        """The new configuration, None to keep the old one (which gRPC's types do not allow)."""
        try:
            if [path.stat().st_mtime_ns for path in self._paths] == self._stamps:
                return None
            return self.read()
        except (OSError, SettingError) as error:
            # Half written: the old certificate serves until the next handshake finds the new one whole.
            logger.warning("the control port keeps its certificate: %s", error)
            return None
