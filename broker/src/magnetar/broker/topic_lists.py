"""Lists of topics by pattern, and telling watchers what was added or removed."""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine
from typing import Any

from magnetar.broker.resources import Resources
from magnetar.broker.topic_patterns import TopicPattern
from magnetar.core.hashing import topics_hash
from magnetar.core.topic_name import NamespaceName, TopicName
from magnetar.metadata.store import Change, MetadataStore, Notification, SessionEvent, StoreUnavailable

logger = logging.getLogger(__name__)

SYSTEM_TOPIC_PREFIXES = ("__change_events", "__transaction_", "__transaction_buffer_snapshot")
"""Local names of topics that belong to brokers; never listed to clients."""


def is_system_topic(topic: str) -> bool:
    """Whether a topic belongs to brokers and is not shown to clients."""
    return TopicName.parse(topic).local_name.startswith(SYSTEM_TOPIC_PREFIXES)


class Watcher:
    """One client's interest in a namespace."""

    __slots__ = ("changed", "known", "missed", "namespace", "pattern", "started")

    def __init__(
        self,
        namespace: NamespaceName,
        pattern: TopicPattern,
        known: list[str],
        changed: Callable[[list[str], list[str], str], None],
    ) -> None:
        self.namespace = namespace
        self.pattern = pattern
        self.known = known
        self.changed = changed
        """Called with new topics, deleted topics, and the hash of the whole list."""
        self.started = False
        """Whether `known` is a list that was read, so that differences from it can be told."""
        self.missed = False
        """Whether the list changed before that."""


class TopicLists:
    """Lists topics and keeps watchers up to date from the metadata store's notifications."""

    def __init__(
        self,
        store: MetadataStore,
        resources: Resources,
        list_topics: Callable[[NamespaceName, str], Coroutine[Any, Any, list[str]]],
        spawn: Callable[[Coroutine[Any, Any, None]], None],
    ) -> None:
        self._resources = resources
        self._list_topics = list_topics
        self._spawn = spawn
        self._watchers: dict[str, set[Watcher]] = {}
        self._refreshing: set[str] = set()
        self._changed_meanwhile: set[str] = set()
        self._stops = [store.watch(self._notified), store.watch_session(self._take_session_event)]

    async def topics(self, namespace: NamespaceName, domain: str, pattern: str | None) -> list[str]:
        """Full names of the topics that clients may see."""
        names = [name for name in await self._list_topics(namespace, domain) if not is_system_topic(name)]
        return names if pattern is None else await TopicPattern(pattern).filter(names)

    async def watch(
        self, namespace: NamespaceName, pattern: str, changed: Callable[[list[str], list[str], str], None]
    ) -> Watcher:
        """Begin to watch the persistent topics of a namespace; `Watcher.known` is the list to start from."""
        watcher = Watcher(namespace, TopicPattern(pattern), [], changed)
        path = Resources.managed_ledgers_path(namespace)
        self._watchers.setdefault(path, set()).add(watcher)
        try:
            watcher.known = await watcher.pattern.filter(await self.topics(namespace, "persistent", None))
        except BaseException:
            self.unwatch(watcher)
            raise
        watcher.started = True
        if watcher.missed:
            self._refresh_later(path)
        return watcher

    def unwatch(self, watcher: Watcher) -> None:
        """Stop telling."""
        path = Resources.managed_ledgers_path(watcher.namespace)
        watchers = self._watchers.get(path)
        if watchers is not None:
            watchers.discard(watcher)
            if not watchers:
                del self._watchers[path]

    def close(self) -> None:
        """Stop listening to the store."""
        for stop in self._stops:
            stop()
        self._watchers.clear()

    def _notified(self, notification: Notification) -> None:
        if notification.change is Change.CHILDREN_CHANGED and notification.path in self._watchers:
            self._refresh_later(notification.path)

    def _take_session_event(self, event: SessionEvent) -> None:
        if event in (SessionEvent.RECONNECTED, SessionEvent.SESSION_RESTARTED):
            # Changes may have been missed, or could not be read.
            for path in self._watchers:
                self._refresh_later(path)

    def _refresh_later(self, path: str) -> None:
        # However many topics come and go while a list is read, one more read afterwards is enough.
        if path in self._refreshing:
            self._changed_meanwhile.add(path)
        else:
            self._refreshing.add(path)
            self._spawn(self._refresh(path))

    async def _refresh(self, path: str) -> None:
        try:
            while True:
                self._changed_meanwhile.discard(path)
                watchers = self._watchers.get(path)
                if not watchers:
                    return
                namespace = next(iter(watchers)).namespace
                names = await self.topics(namespace, "persistent", None)
                for watcher in list(watchers):
                    if not watcher.started:
                        watcher.missed = True
                        continue
                    matching = await watcher.pattern.filter(names)
                    if watcher in watchers:  # Still.
                        self._tell(watcher, matching)
                if path not in self._changed_meanwhile:
                    return
        except StoreUnavailable as error:
            logger.warning("those who watch %s are not told of changes until it can be read again: %s", path, error)
        finally:
            self._refreshing.discard(path)

    def _tell(self, watcher: Watcher, names: list[str]) -> None:
        before, after = set(watcher.known), set(names)
        watcher.known = names
        if before != after:
            watcher.changed(sorted(after - before), sorted(before - after), topics_hash(names))
