"""Listeners that are told of events on the event loop, after the call that caused them has returned."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from functools import partial
from typing import Final, Generic, TypeVar

from magnetar.metadata.store import MetadataStore, Notification, SessionEvent

logger: Final = logging.getLogger(__name__)

Event = TypeVar("Event")


class Listeners(Generic[Event]):
    """A set of callbacks. One that fails is logged and keeps nobody else from being told."""

    def __init__(self) -> None:
        self._listeners: dict[object, Callable[[Event], None]] = {}

    def add(self, listener: Callable[[Event], None]) -> Callable[[], None]:
        """Tell this listener too; returns the way to stop, which may be called more than once."""
        token = object()
        self._listeners[token] = listener
        return partial(self._drop, token)

    def clear(self) -> None:
        """Tell nobody any more, not even of what is on its way."""
        self._listeners.clear()

    def tell(self, events: Iterable[Event]) -> None:
        """Tell everybody, in order, in a later turn of the running loop."""
        told = list(events)
        if told and self._listeners:
            asyncio.get_running_loop().call_soon(self._deliver, told)

    def _drop(self, token: object) -> None:
        self._listeners.pop(token, None)

    def _deliver(self, events: list[Event]) -> None:
        for event in events:
            for token, listener in list(self._listeners.items()):
                if token not in self._listeners:
                    continue
                try:
                    listener(event)
                except Exception:
                    logger.exception("a listener failed on %r", event)


class ListenedStore:
    """The half of a `MetadataStore` that tells its listeners."""

    def __init__(self) -> None:
        self.changes: Listeners[Notification] = Listeners()
        self._session_events: Listeners[SessionEvent] = Listeners()

    def watch(self, listener: Callable[[Notification], None]) -> Callable[[], None]:
        """Have the listener told of changes of nodes that were read or listed; returns the way to stop."""
        return self.changes.add(listener)

    def watch_session(self, listener: Callable[[SessionEvent], None]) -> Callable[[], None]:
        """Have the listener told how the session fares; returns the way to stop."""
        return self._session_events.add(listener)

    def _take_session_event(self, event: SessionEvent) -> None:
        self._session_events.tell([event])

    def _tell_nobody(self) -> None:
        self.changes.clear()
        self._session_events.clear()


class PathWatches:
    """One listener at a store for all who follow single nodes: a change costs those of other nodes nothing. Whoever is
    told reads the node again, with `watch=True`.

    As many nodes as there are followers: they bound it."""

    def __init__(self, store: MetadataStore) -> None:
        self._store: MetadataStore = store
        self._followers: dict[str, dict[object, Callable[[], None]]] = {}
        self._stops: list[Callable[[], None]] = []
        self.connected: bool = True
        """Whether changes are told of now; what was missed meanwhile is told of when the store is back."""

    def add(self, path: str, changed: Callable[[], None]) -> Callable[[], None]:
        """Call `changed` after each change of the node, and after the store was away, when some may have been missed.
        Returns the way to stop, which may be called more than once."""
        if not self._stops:
            self._stops = [self._store.watch(self._notified), self._store.watch_session(self._session_changed)]
        token = object()
        self._followers.setdefault(path, {})[token] = changed
        return partial(self._drop, path, token)

    def close(self) -> None:
        """Tell nobody any more."""
        self._followers = {}
        self._stop()

    def _drop(self, path: str, token: object) -> None:
        followers = self._followers.get(path)
        if followers is None:
            return
        followers.pop(token, None)
        if not followers:
            del self._followers[path]
        if not self._followers:
            self._stop()

    def _stop(self) -> None:
        stops, self._stops = self._stops, []
        self.connected = True  # Whoever comes next finds out by reading.
        for stop in stops:
            stop()

    def _notified(self, notification: Notification) -> None:
        for changed in list(self._followers.get(notification.path, {}).values()):
            changed()

    def _session_changed(self, event: SessionEvent) -> None:
        self.connected = event in (SessionEvent.RECONNECTED, SessionEvent.SESSION_RESTARTED)
        if self.connected:
            for followers in list(self._followers.values()):
                for changed in list(followers.values()):
                    changed()
