"""What every session of a broker shares."""

from __future__ import annotations

from dataclasses import dataclass

from magnetar.broker.lookup import Lookup
from magnetar.broker.service import BrokerService
from magnetar.broker.settings import BrokerSettings
from magnetar.broker.topic_lists import TopicLists
from magnetar.core.clock import Clock


@dataclass(frozen=True, slots=True)
class BrokerContext:
    """The parts that `app.py` has wired together."""

    settings: BrokerSettings
    clock: Clock
    service: BrokerService
    lookup: Lookup
    topic_lists: TopicLists
