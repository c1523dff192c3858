"""Lists of topics by pattern, and telling watchers what was added or removed."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Coroutine
from typing import Any, Final

from magnetar.broker.resources import Resources
from magnetar.core.hashing import topics_hash
from magnetar.core.topic_name import NamespaceName, TopicName
from magnetar.metadata.store import Change, MetadataStore, Notification, SessionEvent, StoreUnavailable
from magnetar.wire.pulsar.errors import PulsarError, ServerError

logger = logging.getLogger(__name__)

SYSTEM_TOPIC_PREFIXES = ("__change_events", "__transaction_", "__transaction_buffer_snapshot")
"""Local names of topics that belong to brokers; never listed to clients."""


REPEATING: Final = ("*", "+", "{")

REPEATS_MAX: Final = 2
"""In one pattern: with three, a name of some hundred characters may take the event loop for tens of milliseconds."""


class TopicPattern:
    """A client's regular expression over topic names; domain and partition suffix do not count."""

    def __init__(self, pattern: str) -> None:
        try:
            self._expression = re.compile(without_domain(pattern))
        except (re.error, OverflowError) as error:
            raise PulsarError(
                ServerError.NOT_ALLOWED_ERROR, f"The topics pattern is not a regular expression: {error}"
            ) from None

    def matches(self, topic: str) -> bool:
        """Whether a full topic name is meant."""
        name = TopicName.parse(topic)
        return self._expression.fullmatch(without_domain(str(name.partitioned_name()))) is not None

    def filter(self, topics: list[str]) -> list[str]:
        """Those that are meant, in the same order."""
        return [topic for topic in topics if self.matches(topic)]


def may_take_long(pattern: str) -> bool:
    """Whether there are names for which Python's engine tries more ways than the square of their length, as it does for
    `(a+)+b`: repeats of what repeats or has a choice, and many repeats. Such patterns are left to the clients.

    Looks at the text alone, and rather finds too many."""
    repeats = index = 0
    ambiguous = [False]
    """Of each group that is open: whether it has repeats or a choice."""
    while index < len(pattern):
        character = pattern[index]
        index += 1
        if character == "\\":
            index += 1
        elif character == "[":
            index = _end_of_set(pattern, index)
        elif character == "(":
            ambiguous.append(False)
        elif character == ")" and len(ambiguous) > 1:
            inner = ambiguous.pop()
            if inner and pattern[index : index + 1] in REPEATING:
                return True
            ambiguous[-1] |= inner
        elif character == "|":
            ambiguous[-1] = True
        elif character in REPEATING:
            ambiguous[-1] = True
            repeats += 1
            # Lazy or possessive.
            index += pattern[index : index + 1] in ("?", "+")
    return repeats > REPEATS_MAX


def _end_of_set(pattern: str, index: int) -> int:
    """Behind the set `[…]` whose bracket is before the index; a bracket that comes first is a member."""
    index += pattern[index : index + 1] == "^"
    index += pattern[index : index + 1] == "]"
    while index < len(pattern) and pattern[index] != "]":
        index += 2 if pattern[index] == "\\" else 1
    return index + 1


def without_domain(name: str) -> str:
    """The name without `persistent://` or `non-persistent://`."""
    return name.partition("://")[2] or name


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
        return names if pattern is None else TopicPattern(pattern).filter(names)

    async def watch(
        self, namespace: NamespaceName, pattern: str, changed: Callable[[list[str], list[str], str], None]
    ) -> Watcher:
        """Begin to watch the persistent topics of a namespace; `Watcher.known` is the list to start from."""
        watcher = Watcher(namespace, TopicPattern(pattern), [], changed)
        path = Resources.managed_ledgers_path(namespace)
        self._watchers.setdefault(path, set()).add(watcher)
        try:
            watcher.known = watcher.pattern.filter(await self.topics(namespace, "persistent", None))
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
                    if watcher.started:
                        self._tell(watcher, watcher.pattern.filter(names))
                    else:
                        watcher.missed = True
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
