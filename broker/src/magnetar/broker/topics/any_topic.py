"""A topic of either kind."""

from __future__ import annotations

from typing import TypeAlias

from magnetar.broker.topics.non_persistent_topic import NonPersistentTopic
from magnetar.broker.topics.topic import PersistentTopic

Topic: TypeAlias = PersistentTopic | NonPersistentTopic
