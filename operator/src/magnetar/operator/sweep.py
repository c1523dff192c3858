"""A look at all resources every minute: what watches should have told of, and a check that they do."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Final

from magnetar.core.errors import MagnetarError
from magnetar.operator.api import BOOKIE_POOL, PULSAR_CLUSTER, ApiServer
from magnetar.operator.handlers import Wakers
from magnetar.operator.reconcile import Key

SWEEP_SECONDS: Final = 60.0

logger: Final = logging.getLogger(__name__)


class Sweep:
    """Two lists a minute, of all namespaces or of some."""

    def __init__(self, api: ApiServer, wakers: Wakers, namespaces: Sequence[str]) -> None:
        """`namespaces`: none for all."""
        self._api = api
        self._wakers = wakers
        self._namespaces: Sequence[str | None] = namespaces or (None,)
        self._missed: dict[Key, int] = {}
        """What the watches had not told of the last time."""

    async def run(self) -> str:
        """For ever, or until watches are silent: then why the process had better start anew."""
        while True:
            await asyncio.sleep(SWEEP_SECONDS)
            missed = await self._look()
            if silent := [key for key, digest in missed.items() if self._missed.get(key) == digest]:
                return f"the watches have told nothing of {silent[0]} for more than {SWEEP_SECONDS:.0f} s"
            self._missed = missed

    async def _look(self) -> dict[Key, int]:
        """Wakes who is behind, and gives it with what it is behind of. A namespace that may not be read, or is gone,
        does not keep it from the others."""
        found = {}
        for namespace in self._namespaces:
            for kind in (PULSAR_CLUSTER, BOOKIE_POOL):
                try:
                    manifests = await self._api.list(kind, namespace)
                except MagnetarError as error:
                    logger.warning("%s could not be listed in %s: %s", kind, namespace or "all namespaces", error)
                    continue
                for manifest in manifests:
                    found.update(self._wakers.behind(kind, manifest))
        return found
