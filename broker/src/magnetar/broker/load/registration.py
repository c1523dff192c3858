"""This broker's node among those that are alive, or those that drain, with its load report as the value."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable
from typing import Any, Final

from magnetar.broker.load.broker_report import BrokerReport, addresses_of
from magnetar.core.errors import MagnetarError, PeerError
from magnetar.metadata.coordination import LockState, LockTaken, ResourceLock
from magnetar.metadata.store import MetadataStore, NodeNotFound, StoreClosed, StoreUnavailable, VersionConflict

logger: Final = logging.getLogger(__name__)

BROKERS_PATH: Final = "/loadbalance/brokers"

DRAINING_PATH: Final = "/loadbalance/draining"
"""Ours alone: brokers that drain are no longer among those that are alive, and operators want to see them."""

RETRY_SECONDS: Final = 0.5
"""Between attempts to take a node that another holds."""

ATTEMPTS_MAX: Final = 240
"""Two minutes: longer than sessions last after their process died."""


def broker_path(broker_id: str) -> str:
    """Where a broker's report is."""
    return f"{BROKERS_PATH}/{broker_id}"


class Registration:
    """Holds the node from `register` to `unregister`; a lost session makes it again by itself.

    A node that a former process of this very address has left is taken over at once: its ports are ours, so it is
    gone. One of another broker under the same name is waited for, a while, and then an error."""

    def __init__(self, store: MetadataStore, on_change: Callable[[bool], None], *, folder: str = BROKERS_PATH) -> None:
        """`on_change` is called with whether the node is there, after each change."""
        self._store = store
        self._folder = folder
        self._on_change = on_change
        self._lock: ResourceLock | None = None
        self._retry: asyncio.Task[None] | None = None
        self._report: BrokerReport | None = None
        self._told = False

    @property
    def registered(self) -> bool:
        """Whether others see this broker now."""
        return self._lock is not None and self._lock.state is LockState.HELD

    async def register(self, report: BrokerReport) -> None:
        """Make the node. `LockTaken` when another broker has the name and keeps it; `StoreUnavailable`."""
        self._report = report
        for attempt in range(ATTEMPTS_MAX):
            try:
                await self._acquire(report)
                return
            except LockTaken as error:
                if attempt == ATTEMPTS_MAX - 1:
                    raise
                if not await self._take_over(report, error.holder):
                    if attempt == 0:
                        logger.warning("another broker is registered as %s; waiting for it to go", report.broker_id)
                    await asyncio.sleep(RETRY_SECONDS)

    async def update(self, report: BrokerReport) -> None:
        """Replace the report. `StoreUnavailable`, also while the session is in doubt; try again with the next one."""
        self._report = report
        if self._lock is None or self._lock.state is not LockState.HELD:
            raise StoreUnavailable(f"{report.broker_id} is not registered now")
        try:
            await self._lock.update(report.encode())
        except LockTaken as error:
            raise StoreUnavailable(str(error)) from error

    async def unregister(self) -> None:
        """Remove the node: no new bundles come. Safe in any state."""
        retry, self._retry = self._retry, None
        if retry is not None:
            retry.cancel()
            await asyncio.wait([retry])
        lock, self._lock = self._lock, None
        if lock is not None:
            await lock.release()
        self._tell()

    async def _acquire(self, report: BrokerReport) -> None:
        lock = ResourceLock(self._store, self._path(report), report.encode(), self._state_changed)
        await lock.acquire()
        self._lock = lock
        self._tell()

    async def _take_over(self, report: BrokerReport, holder: bytes) -> bool:
        """Remove a leftover of a process that had our addresses; whether there was one."""
        if not _same_addresses(report, holder):
            return False
        path = self._path(report)
        try:
            node = await self._store.get(path)
            if node is not None and node.value == holder and node.stat.ephemeral:
                await self._store.delete(path, node.stat.version)
        except (NodeNotFound, VersionConflict):
            return True
        logger.info("took over the registration that a former process had left as %s", report.broker_id)
        return True

    def _path(self, report: BrokerReport) -> str:
        return f"{self._folder}/{report.broker_id}"

    def _state_changed(self, state: LockState) -> None:
        self._tell()
        if state is LockState.LOST and self._report is not None:
            logger.error("the registration of %s was taken by another", self._report.broker_id)
            self._lock = None
            self._retry = asyncio.get_running_loop().create_task(self._register_again(), name="register-again")

    async def _register_again(self) -> None:
        while True:
            assert self._report is not None
            try:
                await self.register(self._report)
            except StoreClosed:
                return
            except StoreUnavailable as error:
                logger.warning("not registered again yet: %s", error)
                await asyncio.sleep(RETRY_SECONDS)
            except MagnetarError as error:
                logger.critical("not registered again, this broker gets no bundles until it is restarted: %s", error)
                return
            else:
                return

    def _tell(self) -> None:
        if self.registered != self._told:
            self._told = self.registered
            self._on_change(self._told)


async def draining_brokers(store: MetadataStore, folder: str = DRAINING_PATH) -> dict[str, BrokerReport]:
    """The last reports of the brokers that drain, by id. `StoreUnavailable`."""
    found: dict[str, BrokerReport] = {}
    for broker_id in await store.children(folder):
        node = await store.get(f"{folder}/{broker_id}")
        if node is not None:
            try:
                found[broker_id] = BrokerReport.decode(broker_id, node.value)
            except PeerError as error:
                logger.warning("passed over: %s", error)
    return found


def _same_addresses(report: BrokerReport, holder: bytes) -> bool:
    try:
        document: dict[str, Any] = json.loads(holder)
        theirs = addresses_of(report.broker_id, document)
    except (ValueError, AttributeError, TypeError):
        return False
    ours = report.addresses
    return (theirs.service_url, theirs.web_service_url) == (ours.service_url, ours.web_service_url)
