"""The policies in force, from memory: namespaces' documents and topics' own ones, kept as fresh as their stores tell.

Whoever holds policies hears of changes by `watch`: nobody asks again per message, nor per minute.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Coroutine, Iterable, Mapping
from dataclasses import replace
from typing import Any, Final

from magnetar.broker.policies.api import TopicPolicyStore
from magnetar.broker.policies.effective import BrokerLevel, effective_policies
from magnetar.broker.policies.model import EffectivePolicies
from magnetar.broker.policies.system_topics import (
    LOAD_HISTORY,
    belongs_to_brokers,
    is_system_topic,
    load_history_policies,
)
from magnetar.broker.resources import LOCAL_POLICIES_ROOT, Document, Resources
from magnetar.core.errors import MagnetarError
from magnetar.core.topic_name import NamespaceName, TopicName
from magnetar.metadata.store import Notification, SessionEvent

logger: Final = logging.getLogger(__name__)

POLICIES_PATH: Final = Resources.tenant_path("")
"""The path above all namespaces' policies, which are nodes `<tenant>/<namespace>` below it."""

LOCAL_KEYS: Final = ("bookieAffinityGroup", "migrated")
"""What of the local policies policies are made of."""

NAMESPACES_KEPT: Final = 10_000
"""Namespaces without a loaded topic are forgotten when so many are kept, some kilobytes each."""

VARIANTS_MAX: Final = 10_000
"""Different topic policies per namespace that are kept to be shared; the oldest make room."""

Listener = Callable[[NamespaceName, TopicName | None], None]
"""Told that something changed for a whole namespace, or for one topic of it (named without a partition)."""


class NamespacePolicies:
    """What holds in one namespace; `variants` are of topics with policies of their own, by these."""

    __slots__ = ("_broker", "document", "local", "policies", "variants")

    def __init__(self, broker: BrokerLevel, document: Document, local: Document) -> None:
        self._broker = broker
        self.document = document
        self.local = local
        """What policies are made of that this cluster alone keeps."""
        self.policies = effective_policies(broker, document, {}, local)
        self.variants: dict[str, EffectivePolicies] = {}

    def over(self, own: Mapping[str, Any]) -> EffectivePolicies:
        """With a topic's own policies; the same object for all topics that have the same."""
        if not own:
            return self.policies
        key = json.dumps(own, sort_keys=True)
        variant = self.variants.get(key)
        if variant is None:
            if len(self.variants) >= VARIANTS_MAX:
                del self.variants[next(iter(self.variants))]
            variant = self.variants[key] = effective_policies(self._broker, self.document, own, self.local)
        return variant


class Policies:
    """The policies of all namespaces that this broker has to do with."""

    def __init__(
        self,
        broker: BrokerLevel,
        resources: Resources,
        spawn: Callable[[Coroutine[Any, Any, None]], object],
        in_use: Callable[[], Iterable[NamespaceName]] = tuple,
    ) -> None:
        """`in_use` names the namespaces of loaded topics."""
        self.broker = broker
        self.defaults = effective_policies(broker, {}, {})
        """What the broker's settings say alone."""
        self._resources = resources
        self._spawn = spawn
        self._in_use = in_use
        self._topic_policies: TopicPolicyStore | None = None
        self._namespaces: dict[NamespaceName, NamespacePolicies] = {}
        self._namespaces_max = NAMESPACES_KEPT
        self._reading: dict[NamespaceName, asyncio.Task[NamespacePolicies | None]] = {}
        self._outdated: set[NamespaceName] = set()
        """Changed while they were being read, or could not be read again after a change."""
        self._listeners: list[Listener] = []
        self._stops = [
            stop
            for store in resources.stores
            for stop in (store.watch(self._take_notification), store.watch_session(self._take_session_event))
        ]

    def use_broker(self, broker: BrokerLevel) -> None:
        """The broker's own word changes: namespaces and topics that leave it to the broker follow."""
        self.broker = broker
        self.defaults = effective_policies(broker, {}, {})
        for namespace, kept in list(self._namespaces.items()):
            self._namespaces[namespace] = NamespacePolicies(broker, kept.document, kept.local)
            self._tell(namespace, None)

    def use_topic_policies(self, store: TopicPolicyStore) -> None:
        """Topics have policies of their own, which are there."""
        self._topic_policies = store
        self._stops.append(store.watch(self._topic_changed))

    def close(self) -> None:
        """Listen to no store any more."""
        for stop in self._stops:
            stop()
        self._stops.clear()

    def watch(self, listener: Listener) -> Callable[[], None]:
        """Be told of changes, after `of` tells of them; returns the way to stop."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    def of(self, topic: TopicName) -> EffectivePolicies:
        """What is in force for a topic, from memory; the broker's own words while its namespace is not loaded."""
        found = self._of(topic)
        if found.encryption_required and belongs_to_brokers(topic):
            # Brokers have no keys, whatever the clients of the namespace must have.
            return replace(found, encryption_required=False)
        return found

    def _of(self, topic: TopicName) -> EffectivePolicies:
        namespace = self._namespaces.get(topic.namespace_name)
        if namespace is None:
            return self.defaults
        if self._topic_policies is None or is_system_topic(str(topic)):
            return namespace.policies
        if str(topic) == LOAD_HISTORY:
            return namespace.over(load_history_policies(self.broker.settings.load))
        return namespace.over(self._topic_policies.peek(topic.partitioned_name()))

    async def load(self, topic: TopicName) -> EffectivePolicies | None:
        """What is in force for a topic, once everything about it is read; None when there is no such namespace.
        `StoreUnavailable`."""
        if await self.namespace(topic.namespace_name) is None:
            return None
        if self._topic_policies is not None and not is_system_topic(str(topic)):
            await self._topic_policies.get(topic.partitioned_name())
        return self.of(topic)

    async def delete_own(self, topic: TopicName) -> None:
        """The topic is gone, and so is what it had of its own."""
        if self._topic_policies is not None and self._topic_policies.peek(topic.partitioned_name()):
            await self._topic_policies.delete(topic.partitioned_name())

    async def namespace(self, namespace: NamespaceName) -> EffectivePolicies | None:
        """What holds for the namespace's topics without own policies; None when there is no such namespace."""
        kept = self._namespaces.get(namespace)
        if kept is None:
            kept = await self._read(namespace)
        return None if kept is None else kept.policies

    async def refresh(self, namespace: NamespaceName) -> None:
        """Return once a change that this broker made is in force here."""
        if namespace in self._namespaces or namespace in self._reading:
            self._outdated.add(namespace)
            await self._read(namespace)

    def retry(self) -> None:
        """Read again what could not be read; called now and then."""
        for namespace in [one for one in self._outdated if one not in self._reading]:
            self._spawn(self._refresh(namespace))

    async def _read(self, namespace: NamespaceName) -> NamespacePolicies | None:
        task = self._reading.get(namespace)
        if task is None:
            task = asyncio.get_running_loop().create_task(self._read_until_stable(namespace))
            self._reading[namespace] = task
            task.add_done_callback(lambda done: self._read_ended(namespace, done))
        # Others may wait for the same read.
        return await asyncio.shield(task)

    def _read_ended(self, namespace: NamespaceName, task: asyncio.Task[NamespacePolicies | None]) -> None:
        del self._reading[namespace]
        if not task.cancelled():
            task.exception()  # Looked at: nobody may be left to wait for it.

    async def _read_until_stable(self, namespace: NamespaceName) -> NamespacePolicies | None:
        while True:
            self._outdated.discard(namespace)
            try:
                document = await self._resources.policies(namespace)
                local = await self._local(namespace) if document is not None else {}
            except MagnetarError:
                if namespace in self._namespaces:
                    self._outdated.add(namespace)
                raise
            if namespace not in self._outdated:
                return self._keep(namespace, document, local)

    async def _local(self, namespace: NamespaceName) -> Document:
        """What of a namespace's local policies is about its topics; its bundles, which change often, are not."""
        found = await self._resources.local_documents.get(Resources.local_policies_path(namespace)) or {}
        return {key: found[key] for key in LOCAL_KEYS if key in found}

    def _keep(self, namespace: NamespaceName, document: Document | None, local: Document) -> NamespacePolicies | None:
        before = self._namespaces.get(namespace)
        if document is None or document.get("deleted"):
            self._namespaces.pop(namespace, None)
            return None
        if before is not None and (before.document, before.local) == (document, local):
            return before
        if before is None and len(self._namespaces) >= self._namespaces_max:
            self._forget_unused()
        kept = self._namespaces[namespace] = NamespacePolicies(self.broker, document, local)
        if before is not None:
            self._tell(namespace, None)
        return kept

    def _forget_unused(self) -> None:
        used = set(self._in_use())
        self._namespaces = {name: kept for name, kept in self._namespaces.items() if name in used}
        self._namespaces_max = max(NAMESPACES_KEPT, 2 * len(self._namespaces))

    def _take_notification(self, notification: Notification) -> None:
        path = notification.path
        root = next((root for root in (POLICIES_PATH, LOCAL_POLICIES_ROOT) if path.startswith(root)), None)
        if root is None:
            return
        tenant, slash, name = path[len(root) :].partition("/")
        if slash and "/" not in name:
            self._changed(NamespaceName(tenant, name))

    def _take_session_event(self, event: SessionEvent) -> None:
        if event in (SessionEvent.RECONNECTED, SessionEvent.SESSION_RESTARTED):
            # Changes may have been missed.
            for namespace in list(self._namespaces):
                self._changed(namespace)

    def _changed(self, namespace: NamespaceName) -> None:
        if namespace in self._reading:
            self._outdated.add(namespace)
        elif namespace in self._namespaces:
            self._outdated.add(namespace)
            self._spawn(self._refresh(namespace))

    async def _refresh(self, namespace: NamespaceName) -> None:
        try:
            await self._read(namespace)
        except MagnetarError as error:
            logger.warning("the policies of %s are not read again now, the former ones hold: %s", namespace, error)

    def _topic_changed(self, topic: TopicName) -> None:
        if topic.namespace_name in self._namespaces:
            self._tell(topic.namespace_name, topic.partitioned_name())

    def _tell(self, namespace: NamespaceName, topic: TopicName | None) -> None:
        for listener in list(self._listeners):
            listener(namespace, topic)
