"""What topic policies in `__change_events` stand on."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from magnetar.broker.policies.change_events_settings import ChangeEventsSettings
from magnetar.broker.resources import Resources
from magnetar.core.topic_name import NamespaceName
from magnetar.metadata.store import MetadataStore

if TYPE_CHECKING:
    from magnetar.client.client import PulsarClient


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeEventsParts:
    """What topic policies stand on."""

    client: Callable[[], PulsarClient]
    """Asked for when the first system topic is to be read or written."""
    store: MetadataStore
    """The metadata store of this cluster, where its topics are."""
    resources: Resources
    cluster: str
    holder: str
    """This broker's own name, in locks: with one name two brokers would hold one lock."""
    settings: ChangeEventsSettings = field(default_factory=ChangeEventsSettings)
    in_use: Callable[[], Iterable[NamespaceName]] = tuple
    """Tells the namespaces of loaded topics, whose policies are read."""
    memory_bytes: Callable[[], float] = float
    """What this broker may have of memory; 0: nobody knows."""
