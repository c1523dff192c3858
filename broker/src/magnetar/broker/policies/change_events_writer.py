"""Writes changes of topic policies, so that none of several writers' changes is lost.

Among our brokers a change is made under a lock in the metadata store: read to the end, change, write, read back.
Apache's brokers know nothing of the lock. There a topic has one owner, who alone changes its policies; should one of
them write between our reading and our writing nevertheless, the change is made again over what it wrote.
"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final, TypeAlias

from magnetar.broker.policies.api import TopicPolicies
from magnetar.broker.policies.change_events_namespace import (
    ChangeId,
    NamespaceChanges,
)
from magnetar.broker.policies.change_events_parts import ChangeEventsParts
from magnetar.broker.policies.change_state import NAMESPACE_POLICIES_BYTES_MAX, POLICIES_BYTES_MAX
from magnetar.broker.policies.event_codec import encode_update, event_key, properties_of, registered_schema
from magnetar.broker.policies.events_topic import PoliciesTooLarge, PoliciesUnavailable
from magnetar.client.message import OutgoingMessage
from magnetar.client.producer import ClientProducer, ProducerOptions
from magnetar.core.errors import MagnetarError, Misuse
from magnetar.core.hashing import java_string_hash
from magnetar.core.topic_name import TopicName, java_url_encode
from magnetar.metadata.coordination import LockState, LockTaken, ResourceLock

LOCKS_PATH: Final = "/magnetar/topic-policy-locks"
"""Ephemeral nodes, named after the topics whose policies some broker is changing just now."""

LOCK_RETRY_SECONDS: Final = 0.02
"""Pause before a lock that another broker holds is tried again: a change takes some milliseconds."""

PolicyChange: TypeAlias = Callable[[TopicPolicies], TopicPolicies]


class RefusedByCaller(Exception):
    """Carries what a caller's own change raised past those who look after the writing."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


class PolicyWriter:
    """Makes changes in one namespace, one at a time."""

    def __init__(self, changes: NamespaceChanges, parts: ChangeEventsParts) -> None:
        self._changes = changes
        self._parts = parts
        self._one_at_a_time = asyncio.Lock()

    @property
    def busy(self) -> bool:
        """Whether a change is being made."""
        return self._one_at_a_time.locked()

    async def update(self, topic: TopicName, change: PolicyChange, *, is_global: bool) -> None:
        """Change one scope; returns when this broker has read it back, or when nothing is different.

        Raises `PoliciesUnavailable`, `Misuse` for policies that cannot be written, and what `change` raises."""
        try:
            async with self._changing(topic):
                base = self._changes.state.get(topic, is_global=is_global)
                changed = _changed(change, base)
                if changed == (base or {}):
                    return
                self._check_room(topic, changed, is_global=is_global)
                async with self._producer(topic, is_global=is_global) as producer:
                    await self._write_until_it_counts(producer, topic, change, is_global=is_global)
        except RefusedByCaller as refused:
            raise refused.error from None

    async def delete(self, topic: TopicName) -> None:
        """Remove both scopes; returns when this broker has read that. Raises `PoliciesUnavailable`."""
        async with self._changing(topic):
            for is_global in (False, True):
                if self._changes.state.get(topic, is_global=is_global) is not None:
                    async with self._producer(topic, is_global=is_global) as producer:
                        await self._send(producer, topic, None, is_global=is_global)

    def _check_room(self, topic: TopicName, policies: TopicPolicies, *, is_global: bool) -> None:
        state = self._changes.state
        if not state.has_room(topic, policies, is_global=is_global):
            raise RefusedByCaller(
                PoliciesTooLarge(
                    f"the topic policies of {topic.namespace_name} take {state.held_bytes} bytes already; "
                    f"at most {NAMESPACE_POLICIES_BYTES_MAX} are kept"
                )
            )

    async def _write_until_it_counts(
        self, producer: ClientProducer, topic: TopicName, change: PolicyChange, *, is_global: bool
    ) -> None:
        state = self._changes.state
        base, base_id = state.get(topic, is_global=is_global), state.change_id(topic, is_global=is_global)
        for _ in range(self._parts.settings.update_attempts_max):
            change_id = await self._send(producer, topic, _changed(change, base), is_global=is_global)
            found = await self._changes.found_by(change_id)
            if found.change_id == base_id:
                return
            base, base_id = found.policies, change_id
        raise PoliciesUnavailable(f"the policies of {topic} kept changing under this change")

    async def _send(
        self, producer: ClientProducer, topic: TopicName, policies: TopicPolicies | None, *, is_global: bool
    ) -> ChangeId:
        payload = None
        if policies is not None:
            payload = encode_update(topic, policies, is_global=is_global, cluster=self._parts.cluster)
            if len(payload) > POLICIES_BYTES_MAX:
                size = f"the policies of {topic} would have {len(payload)} bytes"
                raise RefusedByCaller(PoliciesTooLarge(f"{size}; at most {POLICIES_BYTES_MAX} are kept"))
        properties = properties_of(policies or {})
        message = OutgoingMessage(payload, key=event_key(topic, is_global=is_global), properties=properties)
        if not is_global:
            message.replicate_to = (self._parts.cluster,)
        message_id = await producer.send(message)
        change_id = (max(message_id.partition, 0), *message_id.position)
        await self._changes.found_by(change_id)
        return change_id

    @asynccontextmanager
    async def _changing(self, topic: TopicName) -> AsyncIterator[None]:
        """Alone with a topic's policies, which are known to their end. What fails or lasts is `PoliciesUnavailable`."""
        try:
            async with asyncio.timeout(self._parts.settings.update_timeout_seconds):
                async with self._one_at_a_time:
                    lock = await self._lock(topic)
                    try:
                        with self._changes.remembering():
                            await self._changes.catch_up()
                            yield
                    finally:
                        await asyncio.shield(lock.release())
        except (Misuse, PoliciesUnavailable):
            raise
        except TimeoutError:
            raise PoliciesUnavailable(f"the policies of {topic} could not be changed in time") from None
        except MagnetarError as error:
            raise PoliciesUnavailable(f"the policies of {topic} cannot be changed: {error}") from error

    async def _lock(self, topic: TopicName) -> ResourceLock:
        while True:
            path = f"{LOCKS_PATH}/{java_url_encode(str(topic))}"
            lock = ResourceLock(self._parts.store, path, self._parts.holder.encode(), _ignore)
            try:
                await lock.acquire()
            except LockTaken:
                await asyncio.sleep(LOCK_RETRY_SECONDS)
                continue
            return lock

    @asynccontextmanager
    async def _producer(self, topic: TopicName, *, is_global: bool) -> AsyncIterator[ClientProducer]:
        """Of the system topic, which comes to be by it; the changes are followed by then."""
        changes = self._changes
        targets = changes.topics or [changes.system_topic]
        target = targets[java_string_hash(event_key(topic, is_global=is_global)) % len(targets)]
        options = ProducerOptions(schema=registered_schema())
        producer = await self._parts.client().producer(target, options)
        try:
            if not changes.topics:
                changes.look_again()
            await changes.until_followed()
            await changes.catch_up()
            yield producer
        finally:
            await asyncio.shield(producer.close())


def _changed(change: PolicyChange, base: TopicPolicies | None) -> TopicPolicies:
    try:
        return change(copy.deepcopy(base or {}))
    except Exception as error:
        raise RefusedByCaller(error) from error


def _ignore(state: LockState) -> None:
    """A lock that is lost while a change is on its way: the reading back finds what came between."""
