"""Lookups that memory can answer: what is looked up again and again costs no task and no read.

What has to be asked or decided first is in `lookup.py`.

Hot: compiled by mypyc (see CONTRIBUTING).
"""

from __future__ import annotations

from typing import Final

from magnetar.broker.bundles.lookup_answers import Connect
from magnetar.broker.bundles.namespace_bundles import Bundles, named_broker
from magnetar.broker.bundles.ownership import BundleOwnership
from magnetar.broker.resources import Document, Resources
from magnetar.broker.settings.broker import BrokerSettings
from magnetar.core.topic_name import NamespaceName, TopicName

SYSTEM_NAMESPACE: Final = NamespaceName("pulsar", "system")
"""Belongs to every cluster, whatever its policies say."""


class KnownOwners:
    """Who owns which bundle, as far as this broker knows without asking."""

    def __init__(
        self, settings: BrokerSettings, resources: Resources, bundles: Bundles, ownership: BundleOwnership
    ) -> None:
        self._resources: Resources = resources
        self._bundles: Bundles = bundles
        self._ownership: BundleOwnership = ownership
        self._cluster_name: str = settings.cluster_name
        self._lookups_max: int = settings.lookups_max
        self.running: int = 0
        """Lookups under way that memory could not answer."""

    def use_settings(self, settings: BrokerSettings) -> None:
        """Go on with other settings."""
        self._cluster_name = settings.cluster_name
        self._lookups_max = settings.lookups_max

    @property
    def full(self) -> bool:
        """Whether a further lookup is refused at present."""
        return self.running >= self._lookups_max

    def find_now(self, topic: TopicName) -> Connect | None:
        """The answer, if memory is enough for it: what is looked up again and again costs no task and no read."""
        if self.full:
            return None
        namespace = topic.namespace_name
        policies = self._resources.peek_policies(namespace)
        if policies is None or self.foreign(namespace, policies):
            return None
        owned = self._ownership.serving(topic)
        if owned is not None:
            return self._ownership.here if owned.active else None
        bundles = self._bundles.peek(namespace)
        owner = None if bundles is None else self._ownership.peek(bundles.bundle_of(topic))
        return None if owner is None or owner.disabled or owner.ours else owner.answer

    def foreign(self, namespace: NamespaceName, policies: Document) -> bool:
        """Whether the policies leave this cluster out."""
        clusters = policies.get("replication_clusters")
        if not clusters or self._cluster_name in clusters or policies.get("deleted"):
            return bool(policies.get("deleted"))
        return (
            namespace != SYSTEM_NAMESPACE
            and self._cluster_name not in (policies.get("allowed_clusters") or ())
            and named_broker(namespace) is None
        )
