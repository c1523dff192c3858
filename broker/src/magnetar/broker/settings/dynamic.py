"""Settings that are changed for all brokers of a cluster while they run (Pulsar `/admin/configuration`).

The node holds an object of names and texts, which Apache's brokers read and write too: names that mean nothing here
stay there and change nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Final, Generic, TypeVar

from magnetar.broker.resources import Document, Documents, decode_document
from magnetar.broker.settings.load import SWITCHES
from magnetar.core.errors import MagnetarError, PeerError, SettingError
from magnetar.core.setting import rows_of
from magnetar.metadata.store import MetadataStore, NodeNotFound, Notification, SessionEvent, VersionConflict

logger: Final = logging.getLogger(__name__)

PATH: Final = "/admin/configuration"

T = TypeVar("T")


class NotDynamic(MagnetarError):
    """The setting is read when a broker starts, or not at all."""


class DynamicPart(Generic[T]):
    """One settings object of a running broker under those of its cluster. Its rows say which of its names take effect
    when they change: Pulsar's dynamic ones, as far as they do anything here."""

    def __init__(self, configured: Callable[[], T], apply: Callable[[T], None]) -> None:
        """`configured` is asked for when somebody sets something, as few clusters do; `apply` is called with the
        settings in force whenever they change."""
        self._configured = configured
        self._apply = apply
        self._changed: T | None = None

    @property
    def current(self) -> T:
        """The settings in force."""
        return self._configured() if self._changed is None else self._changed

    def names(self) -> frozenset[str]:
        """What can be changed."""
        rows = rows_of(type(self._configured()))
        return frozenset(name for row in rows if row.dynamic == "broker" for name in row.names)

    def check(self, name: str, value: str) -> None:
        """`SettingError` for a value that makes no sense."""
        self._with({name: value})

    def take(self, values: Mapping[str, object]) -> None:
        """Go by these values from now on; those that make no sense change nothing, and are told."""
        if not values and self._changed is None:
            return
        good: dict[str, object] = {}
        for name in sorted(self.names().intersection(values)):
            try:
                self._with({name: values[name]})
            except SettingError as error:
                logger.warning("the cluster's setting of %s has no effect here: %s", name, error)
            else:
                good[name] = values[name]
        try:
            settings = self._with(good)
        except SettingError as error:
            logger.warning("the cluster's settings do not go together, the former ones hold: %s", error)
            return
        if settings != self.current:
            self._changed = settings
            logger.info("settings of the cluster: %s", good)
            self._apply(settings)

    def _with(self, overrides: Mapping[str, object]) -> T:
        if not overrides:
            return self._configured()
        from magnetar.broker.settings.values import changed

        return changed(self._configured(), overrides, PATH)


class DynamicSettings:
    """The settings of one broker under those of its cluster."""

    def __init__(
        self,
        store: MetadataStore,
        spawn: Callable[[Coroutine[Any, Any, None]], object],
        *parts: DynamicPart[Any],
    ) -> None:
        """`parts`: all that can change; a name may be of several."""
        self._store = store
        self._documents = Documents(store)
        self._spawn = spawn
        self._parts = parts
        self._reading = asyncio.Lock()
        self._stops: list[Callable[[], None]] = []

    def names(self) -> list[str]:
        """What can be changed, with load management's own switches."""
        return sorted(frozenset(SWITCHES).union(*(part.names() for part in self._parts)))

    async def start(self) -> None:
        """Take what is set, and follow it from now on. `StoreUnavailable`; a node that makes no sense sets nothing."""
        self._stops = [self._store.watch(self._take_notification), self._store.watch_session(self._take_session_event)]
        try:
            await self._refresh()
        except PeerError as error:
            logger.warning("the cluster's settings have no effect here: %s", error)

    def close(self) -> None:
        """Follow no more."""
        for stop in self._stops:
            stop()
        self._stops.clear()

    async def values(self) -> dict[str, str]:
        """What is set for the cluster. `PeerError` when the node makes no sense."""
        node = await self._store.get(PATH)
        return {} if node is None else decode_document(PATH, node)

    async def set(self, name: str, value: str) -> None:
        """Set one for all brokers. `NotDynamic`; `SettingError` for a value that makes no sense."""
        self._require_dynamic(name)
        self._check(name, value)
        await self._change(lambda document: {**document, name: value})

    async def remove(self, name: str) -> None:
        """Go back to what each broker was started with. `NotDynamic`"""
        self._require_dynamic(name)
        await self._change(lambda document: {key: value for key, value in document.items() if key != name})

    async def _change(self, change: Callable[[Document], Document]) -> None:
        try:
            await self._documents.update(PATH, change)
        except NodeNotFound:
            try:
                await self._documents.create(PATH, change({}))
            except VersionConflict:
                await self._documents.update(PATH, change)
        # This broker acts on it by the time it answers.
        await self._refresh()

    def _require_dynamic(self, name: str) -> None:
        if name not in self.names():
            raise NotDynamic(name)

    def _check(self, name: str, value: str) -> None:
        for part in self._parts:
            if name in part.names():
                part.check(name, value)
        if name in SWITCHES:
            from magnetar.broker.settings.values import check_switch

            check_switch(name, value)

    async def _refresh(self) -> None:
        # One after the other: answers to reads side by side may overtake each other.
        async with self._reading:
            values = await self.values()
            for part in self._parts:
                part.take(values)

    async def _refresh_later(self) -> None:
        try:
            await self._refresh()
        except MagnetarError as error:
            logger.warning("%s is not read again now, the former settings hold: %s", PATH, error)

    def _take_notification(self, notification: Notification) -> None:
        if notification.path == PATH:
            self._spawn(self._refresh_later())

    def _take_session_event(self, event: SessionEvent) -> None:
        if event in (SessionEvent.RECONNECTED, SessionEvent.SESSION_RESTARTED):
            # Changes may have been missed.
            self._spawn(self._refresh_later())
