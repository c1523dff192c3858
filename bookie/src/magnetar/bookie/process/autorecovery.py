"""AutoRecovery as a process of its own, set up by a `bookkeeper.conf`."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
from dataclasses import dataclass
from typing import Final

from magnetar.bookie.autorecovery.app import RunningAutoRecovery, start_autorecovery
from magnetar.bookie.autorecovery.settings import AutoRecoverySettings
from magnetar.bookie.process.bookie import bookie_client_tls, bookkeeper_metadata, placement_settings, recovery_settings
from magnetar.bookie.setting_names import ignored_names, known_names, missing_features
from magnetar.core.clock import SystemClock
from magnetar.core.settings_file import GivenSettings
from magnetar.ledger.settings import LedgerClientSettings
from magnetar.metadata.store import MetadataStore
from magnetar.net.tls import TlsSettings, client_tls
from magnetar.process.metadata_settings import MetadataSettings
from magnetar.process.service import Service
from magnetar.process.serving import STORE_SILENCE_SECONDS_MAX

logger: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class AutoRecoveryProcessSettings:
    """What an AutoRecovery process needs to know."""

    metadata: MetadataSettings
    recovery: AutoRecoverySettings
    client: LedgerClientSettings
    name: str
    """The name by which the process signs its votes and locks."""
    tls: TlsSettings | None = None
    """How bookies are reached; None: without TLS."""


def autorecovery_process_settings(given: GivenSettings) -> AutoRecoveryProcessSettings:
    """Everything from what was given. `SettingError`."""
    return AutoRecoveryProcessSettings(
        metadata=bookkeeper_metadata(given),
        recovery=recovery_settings(given),
        client=LedgerClientSettings(placement=placement_settings(given)),
        tls=given.attempt(lambda: bookie_client_tls(given), None),
        name=f"{socket.gethostname()}:autorecovery-{os.getpid()}",
    )


class AutoRecoveryProcess:
    """Running AutoRecovery and the store that it stands on. When a part of it dies the process ends."""

    def __init__(self, store: MetadataStore, name: str, running: RunningAutoRecovery) -> None:
        self._store = store
        self.name = name
        self.running = running
        self._watch = asyncio.get_running_loop().create_task(self._end_with_it(), name="autorecovery-death-watch")
        self._death: Exception | None = None

    async def close(self) -> None:
        """Stop, then end the session. Raises why a part died, if one did."""
        self._store.limit_waiting(STORE_SILENCE_SECONDS_MAX)
        self._watch.cancel()
        await asyncio.gather(self._watch, return_exceptions=True)
        await self.running.close()
        await self._store.close()
        if self._death is not None:
            raise self._death

    def describe(self) -> str:
        """Who the process is, for its log and its user."""
        return self.name

    async def _end_with_it(self) -> None:
        self._death = await self.running.wait_until_died()
        logger.critical("AutoRecovery has died: %s", self._death)
        # As an operator would: whoever runs this process starts it again when it exits with an error.
        signal.raise_signal(signal.SIGTERM)


async def start_autorecovery_process(settings: AutoRecoveryProcessSettings) -> AutoRecoveryProcess:
    """Start. What was opened is closed again on failure."""
    store = await settings.metadata.open()
    try:
        running = await start_autorecovery(
            settings.recovery,
            store,
            SystemClock(),
            bookie_id=settings.name,
            client_settings=settings.client,
            tls=client_tls(settings.tls),
        )
        return AutoRecoveryProcess(store, settings.name, running)
    except BaseException:
        await asyncio.shield(store.close())
        raise


AUTORECOVERY_SERVICE: Final = Service(
    name="autorecovery",
    known=known_names,
    ignored=ignored_names,
    missing=missing_features,
    settings=autorecovery_process_settings,
    start=start_autorecovery_process,
    describe=AutoRecoveryProcess.describe,
)
