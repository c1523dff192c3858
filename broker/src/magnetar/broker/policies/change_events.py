"""Topic-level policies in `persistent://<tenant>/<namespace>/__change_events`, where Apache's brokers keep them, too.

Nothing is read, opened or imported before the first topic of a namespace is loaded. Then the metadata store is asked
whether the namespace has a system topic; without one that is all, until one appears.
"""

from __future__ import annotations

import asyncio
import copy
import logging
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Final

from magnetar.broker.policies.api import TopicPolicies
from magnetar.broker.policies.change_events_parts import ChangeEventsParts
from magnetar.broker.policies.events_topic import (
    PoliciesCrowded,
    PoliciesUnavailable,
    existing_events_topics,
    namespace_of_node,
)
from magnetar.broker.policies.system_topics import belongs_to_brokers
from magnetar.core.errors import MagnetarError
from magnetar.core.topic_name import NamespaceName, TopicName
from magnetar.metadata.store import NodeChange, Notification, SessionEvent
from magnetar.wire.pulsar.errors import PulsarError, ServerError

if TYPE_CHECKING:
    from magnetar.broker.policies.change_events_namespace import NamespaceChanges
    from magnetar.broker.policies.change_events_writer import PolicyWriter

logger: Final = logging.getLogger(__name__)

MEMORY_SHARE: Final = 0.25
"""Of the broker's memory for topic policies: where it is 2 GiB, those of four hundred thousand topics."""


class ChangeEvents:
    """A `TopicPolicyStore` over system topics, whichever broker serves them, Apache's or ours."""

    def __init__(self, parts: ChangeEventsParts) -> None:
        self._parts = parts
        # Both: the namespaces of loaded topics, and a bounded number of others.
        self._open: dict[NamespaceName, tuple[NamespaceChanges, PolicyWriter]] = {}
        self._absent: dict[NamespaceName, None] = {}
        self._looking: dict[NamespaceName, asyncio.Task[None]] = {}
        self._notifications = 0
        self._let_go_at = parts.settings.idle_namespaces_max
        self._crowded_look_seconds = 0.0
        """When idle ones are looked for again for want of memory."""
        self._asked_seconds: dict[NamespaceName, float] = {}
        """When each open one was asked for last."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._listeners: list[Callable[[TopicName], None]] = []
        self._closed = False
        store = parts.store
        self._stops = [store.watch(self._take_notification), store.watch_session(self._take_session_event)]

    async def close(self) -> None:
        """Stop reading, before the client is closed. `peek` goes on telling what was in force."""
        self._closed = True
        for stop in self._stops:
            stop()
        self._stops = []
        tasks = [*self._looking.values(), *self._tasks]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.gather(*(changes.close() for changes, _ in self._open.values()))

    # --- as a `TopicPolicyStore`

    async def get(self, topic: TopicName, *, is_global: bool = False) -> TopicPolicies | None:
        """What is set at one scope; None when nothing is. Waits until the namespace's policies are read.

        Raises `PoliciesUnavailable` or `StoreUnavailable` when they cannot be read in a bounded time."""
        if belongs_to_brokers(topic):
            return None
        self._refuse_when_closed()
        if topic.namespace_name not in self._open:
            await self._look(topic.namespace_name)
        opened = self._open.get(topic.namespace_name)
        if opened is None:
            return None
        self._asked_seconds[topic.namespace_name] = asyncio.get_running_loop().time()
        await opened[0].wait_until_read()
        return copy.deepcopy(opened[0].state.get(topic.partitioned_name(), is_global=is_global))

    def peek(self, topic: TopicName) -> TopicPolicies:
        """What is in force over both scopes, from memory; not to be changed by the caller."""
        opened = self._open.get(topic.namespace_name)
        return {} if opened is None else opened[0].state.in_force(topic.partitioned_name())

    async def update(
        self, topic: TopicName, change: Callable[[TopicPolicies], TopicPolicies], *, is_global: bool = False
    ) -> None:
        """Change one scope; returns once this broker has read the change back. `change` may be called several times.

        Raises `PoliciesUnavailable`, `Misuse` for policies that have no place in Pulsar's, `PulsarError` for a topic
        that can have none."""
        if belongs_to_brokers(topic):
            raise PulsarError(ServerError.NOT_ALLOWED_ERROR, f"{topic} is a system topic: it has no topic policies")
        self._refuse_when_closed()
        _, writer = self._opened(topic.namespace_name)
        await writer.update(topic.partitioned_name(), change, is_global=is_global)

    async def delete(self, topic: TopicName) -> None:
        """Remove both scopes, as when the topic is deleted. Raises `PoliciesUnavailable`.

        In a namespace that is being deleted they go with all others of it: nobody is led to where they are written."""
        if belongs_to_brokers(topic):
            return
        self._refuse_when_closed()
        namespace = await self._parts.resources.policies(topic.namespace_name)
        if namespace is None or namespace.get("deleted"):
            return
        if topic.namespace_name not in self._open:
            await self._look(topic.namespace_name)
        if topic.namespace_name in self._open:
            _, writer = self._opened(topic.namespace_name)
            await writer.delete(topic.partitioned_name())

    def watch(self, listener: Callable[[TopicName], None]) -> Callable[[], None]:
        """Be told of each topic whose policies changed; returns the way to stop."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    def _refuse_when_closed(self) -> None:
        if self._closed:
            raise PoliciesUnavailable("the broker is stopping")

    def _tell(self, topic: TopicName) -> None:
        for listener in list(self._listeners):
            listener(topic)

    # --- namespaces

    async def _look(self, namespace: NamespaceName) -> None:
        """Learn whether there is a system topic, and begin to read it if so. Who asks meanwhile shares the answer."""
        if namespace in self._absent:
            return
        looking = self._looking.get(namespace)
        if looking is None:
            looking = asyncio.get_running_loop().create_task(self._look_once(namespace))
            self._looking[namespace] = looking
            looking.add_done_callback(lambda _: self._looking.pop(namespace))
        await asyncio.shield(looking)

    async def _look_once(self, namespace: NamespaceName) -> None:
        while True:
            notifications = self._notifications
            if await existing_events_topics(self._parts.store, self._parts.resources, namespace):
                self._opened(namespace)
                return
            if notifications == self._notifications:
                self._absent[namespace] = None
                await self._let_go()
                return

    def _opened(self, namespace: NamespaceName) -> tuple[NamespaceChanges, PolicyWriter]:
        """Begin to read a namespace's policies, unless that was begun."""
        opened = self._open.get(namespace)
        if opened is None:
            # Here, not above: who has no topic policies shall not pay for Avro and a client.
            from magnetar.broker.policies.change_events_namespace import NamespaceChanges
            from magnetar.broker.policies.change_events_writer import PolicyWriter

            changes = NamespaceChanges(namespace, self._parts, self._tell, self._require_room)
            self._asked_seconds[namespace] = asyncio.get_running_loop().time()
            opened = self._open[namespace] = changes, PolicyWriter(changes, self._parts)
            self._absent.pop(namespace, None)
            self._spawn(self._let_go())
        return opened

    async def _let_go(self, *, crowded: bool = False) -> None:
        """Forget namespaces without a loaded topic here when there are many, the oldest first, or when they take the
        room of others (`crowded`)."""
        settings = self._parts.settings
        now = asyncio.get_running_loop().time()
        crowded = crowded and now >= self._crowded_look_seconds
        if not crowded and len(self._open) + len(self._absent) < self._let_go_at:
            return
        used = set(self._parts.in_use())
        idle = [namespace for namespace in (*self._absent, *self._open) if namespace not in used]
        closing: list[NamespaceChanges] = []
        oldest = now - settings.idle_seconds_min
        for place, namespace in enumerate(idle):
            too_many = place < len(idle) - settings.idle_namespaces_max // 2
            opened = self._open.get(namespace)
            if too_many:
                self._absent.pop(namespace, None)
            elif opened is None or not crowded or self._asked_seconds.get(namespace, 0.0) > oldest:
                continue
            if opened is not None and not opened[1].busy:
                del self._open[namespace]
                self._asked_seconds.pop(namespace, None)
                closing.append(opened[0])
        # So that the names of all loaded topics are gone through rarely, whatever their number.
        self._let_go_at = 2 * (len(self._open) + len(self._absent)) + settings.idle_namespaces_max
        if crowded:
            self._crowded_look_seconds = now + settings.idle_seconds_min
        await asyncio.gather(*(changes.close() for changes in closing))

    @property
    def held_bytes(self) -> int:
        """About what all policies take of memory."""
        return sum(changes.held_bytes for changes, _ in self._open.values())

    @property
    def _held_bytes_max(self) -> int:
        return max(self._parts.settings.held_bytes_max, int(self._parts.memory_bytes() * MEMORY_SHARE))

    def _require_room(self) -> None:
        held_bytes, bytes_max = self.held_bytes, self._held_bytes_max
        if held_bytes <= bytes_max:
            return
        if not self._closed:
            self._spawn(self._let_go(crowded=True))
        raise PoliciesCrowded(f"those of all namespaces take {held_bytes} bytes of this broker, more than {bytes_max}")

    # --- from the metadata store

    def _take_notification(self, notification: Notification) -> None:
        if notification.change not in (NodeChange.CREATED, NodeChange.DELETED):
            return
        namespace = namespace_of_node(notification.path)
        if namespace is None:
            return
        self._notifications += 1
        opened = self._open.get(namespace)
        if opened is not None:
            opened[0].look_again(gone=notification.change is NodeChange.DELETED)
        elif self._absent.pop(namespace, ...) is None:
            self._spawn(self._look_unasked([namespace]))

    def _take_session_event(self, event: SessionEvent) -> None:
        if event not in (SessionEvent.RECONNECTED, SessionEvent.SESSION_RESTARTED):
            return
        # Changes may have been missed while the store was away.
        self._notifications += 1
        for changes, _ in self._open.values():
            changes.look_again()
        absent, self._absent = list(self._absent), {}
        if absent:
            self._spawn(self._look_unasked(absent))

    async def _look_unasked(self, namespaces: list[NamespaceName]) -> None:
        for namespace in namespaces:
            try:
                await self._look(namespace)
            except MagnetarError as error:
                # It stays out of `absent`, so that the next load of a topic looks.
                logger.warning("whether %s has topic policies is not known: %s", namespace, error)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
