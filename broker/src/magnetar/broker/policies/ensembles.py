"""How many bookies ledgers are spread over where it is most: who takes bookies away must leave as many."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final, Protocol

from magnetar.broker.policies.effective import BrokerLevel, effective_policies
from magnetar.broker.policies.model import EffectivePolicies
from magnetar.broker.resources import Resources
from magnetar.core.topic_name import NamespaceName, TopicName

READ_AT_ONCE: Final = 64
"""Namespaces whose policies are asked for at a time, if they are not in memory."""
TOPICS_AT_ONCE: Final = 1_000
"""Topics that are looked at before others get their turn: a fraction of a millisecond."""

SETTINGS: Final = "the brokers' settings"


@dataclass(frozen=True, slots=True)
class Ensemble:
    """An ensemble that somebody asks for."""

    size: int
    wanted_by: str
    """Who asks for it, in words: `namespace public/default`, `topic persistent://public/default/t`, or `SETTINGS`."""


class StoredTopic(Protocol):
    """A loaded topic."""

    @property
    def name(self) -> TopicName: ...
    @property
    def policies(self) -> EffectivePolicies: ...


class Ensembles:
    """What this broker knows of: its settings, all namespaces' policies, and those of the topics that it has loaded."""

    def __init__(
        self, resources: Resources, broker: Callable[[], BrokerLevel], topics: Callable[[], Iterable[StoredTopic]]
    ) -> None:
        self._resources = resources
        self._broker = broker
        self._topics = topics

    async def largest(self) -> Ensemble:
        """The largest one, and who wants it. `StoreUnavailable`; `PeerError` for policies that cannot be read."""
        found = Ensemble(self._broker().ledger.ensemble_size, SETTINGS)
        for tenant in await self._resources.tenants():
            names = [NamespaceName(tenant, name.partition("/")[2]) for name in await self._resources.namespaces(tenant)]
            for start in range(0, len(names), READ_AT_ONCE):
                some = names[start : start + READ_AT_ONCE]
                sizes = await asyncio.gather(*map(self._of_namespace, some))
                size, name = max(zip(sizes, some, strict=True), key=lambda pair: pair[0])
                if size > found.size:
                    found = Ensemble(size, f"namespace {name}")
        for number, topic in enumerate(list(self._topics())):
            if number % TOPICS_AT_ONCE == 0:
                await asyncio.sleep(0)
            if topic.policies.ledger.ensemble_size > found.size:
                found = Ensemble(topic.policies.ledger.ensemble_size, f"topic {topic.name}")
        return found

    async def _of_namespace(self, namespace: NamespaceName) -> int:
        document = await self._resources.policies(namespace)
        broker = self._broker()
        # Namespaces of other clusters of the instance have no topics here.
        clusters = (document or {}).get("replication_clusters") or [broker.settings.cluster_name]
        if not document or document.get("deleted") or broker.settings.cluster_name not in clusters:
            return 0
        return effective_policies(broker, document, {}).ledger.ensemble_size
