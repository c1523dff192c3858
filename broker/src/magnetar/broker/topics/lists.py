"""Lists of topics by pattern, and telling watchers what was added or removed.

A namespace's list is kept once for all who watch it, and so is what one pattern finds in it. A change is matched alone,
not the whole list again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeAlias

from magnetar.broker.resources import Resources
from magnetar.broker.slices import TimeSlice
from magnetar.broker.topics.listings import Listing, Listings
from magnetar.broker.topics.patterns import TopicPattern
from magnetar.core.hashing import topics_hash
from magnetar.core.topic_name import NamespaceName
from magnetar.metadata.store import MetadataStore, NodeChange, Notification, SessionEvent, StoreUnavailable
from magnetar.net.requests import Place
from magnetar.wire.pulsar.errors import PulsarError, ServerError

logger: Final = logging.getLogger(__name__)

WATCHED_NAMES_MAX: Final = 4_000_000
"""Of one broker: names in the lists of all watchers, those of the same pattern counted once. 8 bytes each, beside the
names themselves, which all lists share; a pattern that finds 10 000 topics, four hundred times."""

Told: TypeAlias = tuple[list[str], list[str], list[str], str]
"""New topics, deleted topics, the whole list, its hash."""


class Watcher:
    """One client's interest in a namespace."""

    __slots__ = ("changed", "known", "missed", "names", "namespace", "pattern", "started")

    def __init__(
        self, namespace: NamespaceName, pattern: TopicPattern, changed: Callable[[list[str], list[str], str], None]
    ) -> None:
        self.namespace = namespace
        self.pattern = pattern
        self.changed = changed
        """Called with new topics, deleted topics, and the hash of the whole list."""
        self.names: list[str] = []
        """The namespace's list in which `known` was found; others share it, so nobody changes it."""
        self.known: list[str] = []
        """What the pattern found; shared, too."""
        self.started = False
        """Whether `known` is a list that was read, so that differences from it can be told."""
        self.missed = False
        """Whether the list changed before that."""


class _WatchedNamespace:
    """A namespace that somebody watches."""

    __slots__ = ("names", "read", "watchers")

    def __init__(self) -> None:
        self.read = False
        """Whether it was, since somebody watches."""
        self.names: list[str] = []
        """The namespace's topics when they were read last."""
        self.watchers: dict[Watcher, None] = {}

    def keep(self, names: list[str]) -> list[str]:
        """A list that was read: the one kept before when it is the same, else made of the same names."""
        if names != self.names:
            shared = {name: name for name in self.names}
            self.names = [shared.get(name, name) for name in names]
        self.read = True
        return self.names


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
        self._listings = Listings(list_topics)
        self._spawn = spawn
        self._watched: dict[str, _WatchedNamespace] = {}
        self._refreshing: set[str] = set()
        self._changed_meanwhile: set[str] = set()
        self._known: dict[tuple[int, str], tuple[int, list[str]]] = {}
        """By list and pattern: what the pattern found in it, and for how many watchers."""
        self.watched_names = 0
        """How many names all lists of `_known` have together."""
        self._stops = [store.watch(self._notified), store.watch_session(self._take_session_event)]

    @property
    def kept_bytes(self) -> int:
        """Bytes of the lists that are kept for those who ask next."""
        return self._listings.kept_bytes

    def ticket(self) -> int:
        """To be taken when somebody asks: who is served later then shares what was read for others meanwhile."""
        return self._listings.ticket()

    async def topics(
        self, namespace: NamespaceName, domain: str, pattern: str | None, ticket: int, place: Place | None = None
    ) -> Listing:
        """Full names of the topics that clients may see, as they are after the ticket was taken. `place`: of the answer
        that they are for."""
        expression = None if pattern is None else TopicPattern(pattern)
        return await self._listings.find(namespace, domain, expression, ticket, place)

    async def watch(
        self,
        namespace: NamespaceName,
        pattern: str,
        changed: Callable[[list[str], list[str], str], None],
        place: Place | None = None,
    ) -> Watcher:
        """Begin to watch the persistent topics of a namespace; `Watcher.known` is the list to start from. `place`: of
        the answer that tells it.

        Raises PulsarError(NOT_ALLOWED_ERROR) when all watchers together know as many names as they may."""
        watcher = Watcher(namespace, TopicPattern(pattern), changed)
        path = Resources.managed_ledgers_path(namespace)
        watched = self._watched.setdefault(path, _WatchedNamespace())
        watched.watchers[watcher] = None
        try:
            if watched.read and path not in self._refreshing:
                # What others watch is up to date, or the store has not told yet; then this one is told, too.
                names = watched.names
            else:
                names = watched.keep((await self.topics(namespace, "persistent", None, self.ticket(), place)).names)
            found = self._known.get((id(names), watcher.pattern.text))
            known = await watcher.pattern.filter(names) if found is None else found[1]
            self._check_room(known)
        except BaseException:
            self.unwatch(watcher)
            raise
        if watcher in watched.watchers:
            self._learn(watcher, names, known)
            watcher.started = True
            if watcher.missed:
                self._refresh_later(path)
        return watcher

    def unwatch(self, watcher: Watcher) -> None:
        """Tell a watcher of no further changes."""
        path = Resources.managed_ledgers_path(watcher.namespace)
        watched = self._watched.get(path)
        if watched is None or watcher not in watched.watchers:
            return
        del watched.watchers[watcher]
        if watcher.started:
            self._forget(watcher)
        if not watched.watchers:
            del self._watched[path]

    def close(self) -> None:
        """Stop listening to the store."""
        for stop in self._stops:
            stop()
        for watched in self._watched.values():
            watched.watchers.clear()
        self._watched.clear()
        self._known.clear()

    def _check_room(self, known: list[str]) -> None:
        if self.watched_names + len(known) > WATCHED_NAMES_MAX:
            raise PulsarError(
                ServerError.NOT_ALLOWED_ERROR,
                "Unable to create topic list watcher: the watchers of this broker know too many topics already",
            )

    def _learn(self, watcher: Watcher, names: list[str], known: list[str]) -> None:
        """The watcher knows this now."""
        key = (id(names), watcher.pattern.text)
        count, shared = self._known.get(key, (0, known))
        if not count:
            self.watched_names += len(shared)
        self._known[key] = (count + 1, shared)
        watcher.names, watcher.known = names, shared

    def _forget(self, watcher: Watcher) -> None:
        """It knows nothing any more."""
        key = (id(watcher.names), watcher.pattern.text)
        count, shared = self._known.pop(key)
        if count > 1:
            self._known[key] = (count - 1, shared)
        else:
            self.watched_names -= len(shared)

    def _notified(self, notification: Notification) -> None:
        if notification.change is NodeChange.CHILDREN_CHANGED and notification.path in self._watched:
            self._refresh_later(notification.path)

    def _take_session_event(self, event: SessionEvent) -> None:
        if event in (SessionEvent.RECONNECTED, SessionEvent.SESSION_RESTARTED):
            # Changes may have been missed, or could not be read.
            for path in self._watched:
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
                watched = self._watched.get(path)
                if watched is None:
                    return
                namespace = next(iter(watched.watchers)).namespace
                names = watched.keep((await self.topics(namespace, "persistent", None, self.ticket())).names)
                await self._tell_all(watched, names)
                if path not in self._changed_meanwhile:
                    return
        except StoreUnavailable as error:
            logger.warning("those who watch %s are not told of changes until it can be read again: %s", path, error)
        finally:
            self._refreshing.discard(path)

    async def _tell_all(self, watched: _WatchedNamespace, names: list[str]) -> None:
        """Tell each watcher what has changed for it since it was told last."""
        turn = TimeSlice()
        changes: dict[int, tuple[list[str], list[str], set[str]]] = {}
        """By the list that was known before: that list, what is new since then, and what is gone."""
        told: dict[tuple[int, str], Told | None] = {}
        for watcher in list(watched.watchers):
            if turn.over:
                await turn.pause()
            if not watcher.started:
                watcher.missed = True
                continue
            before = watcher.names
            if before is names or watcher not in watched.watchers:
                continue
            if id(before) not in changes:
                gone = set(before)
                added = [name for name in names if name not in gone]
                changes[id(before)] = before, added, gone.difference(names)
            key = (id(before), watcher.pattern.text)
            if key not in told:
                told[key] = await _what_to_tell(watcher, *changes[id(before)][1:], turn)
            if watcher in watched.watchers:  # Still.
                self._tell(watcher, names, told[key])

    def _tell(self, watcher: Watcher, names: list[str], told: Told | None) -> None:
        known = watcher.known if told is None else told[2]
        self._forget(watcher)
        self._learn(watcher, names, known)
        if told is not None:
            watcher.changed(told[0], told[1], told[3])


async def _what_to_tell(watcher: Watcher, added: list[str], gone: set[str], turn: TimeSlice) -> Told | None:
    """What has changed for those who watch with this pattern; None: nothing."""
    new = await watcher.pattern.filter(added, turn)
    deleted = [name for name in watcher.known if name in gone]
    if not new and not deleted:
        return None
    kept = [name for name in watcher.known if name not in gone] if deleted else watcher.known
    known = sorted([*kept, *new])
    return sorted(new), sorted(deleted), known, topics_hash(known)
