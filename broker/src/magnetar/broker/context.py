"""What every session of a broker shares."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from magnetar.broker.bundles.lookup import Lookup
from magnetar.broker.bundles.moves import BundleMoves
from magnetar.broker.bundles.namespace_bundles import Bundles
from magnetar.broker.bundles.ownership import BundleOwnership
from magnetar.broker.load.manager import ModularLoadManager
from magnetar.broker.load.operations import BrokerOperations
from magnetar.broker.peers.internal_client import InternalClient
from magnetar.broker.peers.peer_client import PeerClient
from magnetar.broker.policies.api import TopicPolicyStore
from magnetar.broker.settings.broker import BrokerSettings
from magnetar.broker.settings.dynamic import DynamicSettings
from magnetar.broker.topics.lists import TopicLists
from magnetar.broker.topics.service import BrokerService
from magnetar.broker.transactions.api import CoordinatorService
from magnetar.core.clock import Clock

if TYPE_CHECKING:
    from magnetar.broker.auth.access import AccessControl


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerContext:
    """The parts that `app.py` has wired together."""

    settings: BrokerSettings
    clock: Clock
    service: BrokerService
    lookup: Lookup
    topic_lists: TopicLists
    peers: PeerClient
    client: InternalClient
    topic_policies: TopicPolicyStore
    load: ModularLoadManager
    bundles: Bundles
    ownership: BundleOwnership
    moves: BundleMoves
    operations: BrokerOperations
    dynamic: DynamicSettings
    access: AccessControl | None = None
    """Whom to let in, and who may do what; None where authentication is not enabled."""
    coordinators: CoordinatorService | None = None
    """The transaction coordinators that this broker runs; None where transactions are not enabled."""
    request_stop: Callable[[], None] | None = None
    """Begins the stop of the whole process, as a signal would; None where whoever runs the broker offers no way."""
