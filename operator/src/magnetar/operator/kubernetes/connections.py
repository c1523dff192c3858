"""The connections to one API server. They are made anew when the certificate that they show is another one."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

from kubernetes.aio.client.api_client import ApiClient
from kubernetes.aio.client.configuration import Configuration


class _PoolOfCertificate:
    """Connections that show one certificate."""

    def __init__(self, configuration: Configuration) -> None:
        self.certificates: Final = _certificates(configuration)
        self.api: Final = ApiClient(configuration)
        self.users = 0
        """Requests whose answers are still read."""


class ApiServerConnections:
    """One pool of connections, and those before it as long as somebody reads from them: one per renewal at most."""

    def __init__(self, configuration: Configuration) -> None:
        """OSError for certificates that cannot be used."""
        self._configuration = configuration
        self._pool = _PoolOfCertificate(configuration)

    @contextlib.asynccontextmanager
    async def used(self) -> AsyncIterator[ApiClient]:
        """What to ask by, until the answer is read."""
        pool = self._pool
        pool.users += 1
        try:
            yield pool.api
        finally:
            pool.users -= 1
            if pool is not self._pool and not pool.users:
                await pool.api.close()

    async def renew(self) -> None:
        """Show what the configuration names by now. A connection shows its certificate when it is opened and never
        again, so that the open ones are of no more use. OSError for certificates that cannot be used."""
        if _certificates(self._configuration) == self._pool.certificates:
            return
        before, self._pool = self._pool, _PoolOfCertificate(self._configuration)
        if not before.users:
            await before.api.close()

    async def close(self) -> None:
        """Let the connections go."""
        await self._pool.api.close()


def _certificates(configuration: Configuration) -> tuple[bytes, ...]:
    """What stands in the files: a file may have been replaced by another one of the same name."""
    files = (configuration.cert_file, configuration.key_file, configuration.ssl_ca_cert)
    return tuple(Path(file).read_bytes() if file else b"" for file in files)
