"""The brokers that are alive with their last load reports, kept up to date by the store's notifications."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Final

from magnetar.broker.load.broker_report import BrokerReport
from magnetar.broker.load.registration import BROKERS_PATH
from magnetar.core.clock import Clock
from magnetar.core.errors import MagnetarError, PeerError
from magnetar.metadata.store import MetadataStore, Notification, SessionEvent, StoreClosed

logger: Final = logging.getLogger(__name__)

RETRY_SECONDS: Final = 0.5
"""After a read that the store could not answer."""


class BrokerDirectory:
    """What was read last stays known while the store is away."""

    def __init__(
        self, store: MetadataStore, on_change: Callable[[], None], clock: Clock, *, folder: str = BROKERS_PATH
    ) -> None:
        """`on_change` is called after each change of what is known; `folder` has a node for each broker."""
        self._folder = folder
        self._store = store
        self._clock = clock
        self._on_change = on_change
        self._reports: dict[str, BrokerReport] = {}
        self._stale: set[str] = set()
        """Brokers to be read again."""
        self._wake_up = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._stops: list[Callable[[], None]] = []

    @property
    def reports(self) -> Mapping[str, BrokerReport]:
        """By broker id."""
        return self._reports

    async def start(self) -> None:
        """Read everything; follow from then on. `StoreUnavailable`."""
        self._stops = [self._store.watch(self._take_notification), self._store.watch_session(self._take_session_event)]
        await self._read()
        self._task = asyncio.get_running_loop().create_task(self._follow(), name="broker-directory")

    async def close(self) -> None:
        """Follow no more."""
        for stop in self._stops:
            stop()
        self._stops = []
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])

    async def refresh(self) -> None:
        """Read now what may have changed. `StoreUnavailable`."""
        await self._read()

    async def _follow(self) -> None:
        while True:
            await self._wake_up.wait()
            self._wake_up.clear()
            try:
                await self._read()
            except StoreClosed:
                return
            except MagnetarError as error:
                logger.warning("the brokers cannot be read now: %s", error)
                await asyncio.sleep(RETRY_SECONDS)
                self._wake_up.set()

    async def _read(self) -> None:
        stale, self._stale = self._stale, set()
        changed = False
        # What is read is what it was then, or something newer.
        began_seconds = self._clock.monotonic_seconds()
        try:
            alive = await self._store.children(self._folder)
            wanted = [broker_id for broker_id in alive if broker_id in stale or broker_id not in self._reports]
            nodes = await asyncio.gather(*(self._store.get(f"{self._folder}/{broker_id}") for broker_id in wanted))
        except BaseException:
            self._stale |= stale
            raise
        for broker_id in set(self._reports).difference(alive):
            del self._reports[broker_id]
            changed = True
        for broker_id, node in zip(wanted, nodes, strict=True):
            changed = True
            if node is None:
                self._reports.pop(broker_id, None)
                continue
            try:
                report = BrokerReport.decode(broker_id, node.value)
                before = self._reports.get(broker_id)
                known = before is not None and before.updated_ms == report.updated_ms
                report.seen_seconds = before.seen_seconds if before is not None and known else began_seconds
                self._reports[broker_id] = report
            except PeerError as error:
                logger.warning("passed over: %s", error)
                self._reports.pop(broker_id, None)
        if changed:
            self._on_change()

    def _take_notification(self, notification: Notification) -> None:
        path = notification.path
        if path == self._folder:
            self._wake_up.set()
        elif path.startswith(self._folder + "/"):
            self._stale.add(path[len(self._folder) + 1 :])
            self._wake_up.set()

    def _take_session_event(self, event: SessionEvent) -> None:
        if event in (SessionEvent.RECONNECTED, SessionEvent.SESSION_RESTARTED):
            self._stale.update(self._reports)
            self._wake_up.set()
