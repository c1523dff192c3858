"""Topics that nobody uses are deleted. (Pulsar: `PersistentTopic.checkGC`, `NonPersistentTopic.checkGC`)

What other clusters replicate to a topic does not make it used: two of them would else keep each other's topic for ever.
So the replicators of each cluster rest first. The topic is deleted once no replicator of another cluster is connected.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from magnetar.broker.settings.policies import InactiveTopicDeleteMode
from magnetar.broker.topics.topic import PersistentTopic

if TYPE_CHECKING:
    from magnetar.broker.topics.topic import Topic


def is_active(topic: Topic) -> bool:
    """Whether somebody uses the topic, or is going to: who is connected, and subscriptions (that lag behind)."""
    if topic.producers.waiting or any(not one.is_replicator for one in topic.producers.by_name.values()):
        return True
    if topic.replicators is not None and topic.replicators.behind:
        return True
    if topic.shadow_replicators is not None and topic.shadow_replicators.running:
        return True  # Its shadows show its entries, and nothing here tells what they still need.
    if topic.policies.inactive_topics.mode is InactiveTopicDeleteMode.NO_SUBSCRIPTIONS:
        return bool(topic.subscriptions)
    if not isinstance(topic, PersistentTopic):
        return any(one.consumers for one in topic.subscriptions.values())
    return any(one.consumers or one.backlog for one in topic.subscriptions.values())


def is_idle(topic: Topic, now_seconds: float) -> bool:
    """Whether nobody used it for long enough and nothing in it is to be kept: its replicators may rest, and without any
    of another cluster it may be deleted. Remembers when somebody does use it."""
    policy = topic.policies.inactive_topics
    if not policy.delete or topic.of_broker or topic.closing:
        return False
    if is_active(topic):
        topic.last_active_seconds = now_seconds
        return False
    return now_seconds - topic.last_active_seconds > policy.after_seconds and not _retained(topic, now_seconds)


def may_rest(topic: Topic) -> bool:
    """Whether the replicators of an idle topic may rest. Each message connects them again, and messages of another
    cluster may still come, as often as somebody publishes there."""
    silent_ms = topic.clock.now_ms() - topic.last_publish_ms
    return not topic.producers.by_name or silent_ms > topic.policies.inactive_topics.after_seconds * 1000


def _retained(topic: Topic, now_seconds: float) -> bool:
    """What retention keeps outlives the interest in the topic."""
    if topic.number_of_entries == 0:
        return False
    minutes = topic.policies.retention_minutes
    return minutes < 0 or now_seconds - topic.last_active_seconds < minutes * 60
