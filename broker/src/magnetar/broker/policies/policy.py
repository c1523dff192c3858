"""One row of the catalogue of policies: what topics, namespaces and brokers call a policy, and what it may be.

What a topic or a namespace does otherwise than the rest stands in its part of the row; what a table cannot say has
handlers of its own (`special`).
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, Final, Literal


class PolicyKind(enum.Enum):
    """What a policy may be; `magnetar.broker.admin.web.policy_shapes` reads it from requests."""

    FLAG = enum.auto()
    SWITCH = enum.auto()
    """A flag that is set by the verb alone, without a body."""
    COUNT = enum.auto()
    """A whole number that is not negative."""
    SIZE = enum.auto()
    """A whole number of 64 bits that is not negative, as sizes in bytes are."""
    AUTO_SUBSCRIPTION_CREATION = enum.auto()
    AUTO_TOPIC_CREATION = enum.auto()
    AUTO_UPDATE_STRATEGY = enum.auto()
    DELAYED_DELIVERY = enum.auto()
    DISPATCH_RATE = enum.auto()
    ENTRY_FILTERS = enum.auto()
    INACTIVE_TOPICS = enum.auto()
    PERSISTENCE = enum.auto()
    PUBLISH_RATE = enum.auto()
    STRATEGY = enum.auto()
    SUBSCRIBE_RATE = enum.auto()
    SUBSCRIPTION_AUTH_MODE = enum.auto()
    SUBSCRIPTION_TYPES = enum.auto()
    TEXTS = enum.auto()
    """A list of texts, each of which counts once."""
    OTHER = enum.auto()
    """A value of a form of its own, read by handlers of its own."""


FLAGS: Final = (PolicyKind.FLAG, PolicyKind.SWITCH)
NUMBERS: Final = (PolicyKind.COUNT, PolicyKind.SIZE)
RATES: Final = {
    PolicyKind.DISPATCH_RATE: "dispatchThrottling",
    PolicyKind.PUBLISH_RATE: "publishThrottling",
    PolicyKind.SUBSCRIBE_RATE: "subscribeThrottling",
}
"""How the members of a rate begin. A namespace has one for each cluster."""


@dataclass(frozen=True, slots=True)
class Level:
    """A policy at one level."""

    path: str
    """The route's path, below the topic or the namespace; of a special one also several. Empty: it has no routes."""
    member: str = ""
    """The policy's member of the level's document; empty: it is called as the path."""
    _: KW_ONLY
    also: Sequence[str] = ()
    """Further members that are removed with it; namespaces also set them, as old brokers read them."""
    refusal: str = ""
    """What is said of a negative number; empty: "`path` must be 0 or more"."""
    unset: Any = None
    """What GET answers when it is not set; None: an empty body."""
    unset_status: int = 200
    removable: bool = True
    """Whether DELETE is an operation of the API."""
    special: Literal["", "set", "get set", "get set remove"] = ""
    """The operations that have handlers of their own; empty: the row says all."""

    @property
    def paths(self) -> list[str]:
        """All of them."""
        return self.path.split()

    @property
    def key(self) -> str:
        """The member of the level's document."""
        return self.member or self.path

    def serves(self, operation: str) -> bool:
        """Whether the row says all about this operation: get, set or remove."""
        return bool(self.path) and operation not in self.special and (operation != "remove" or self.removable)

    @property
    def keys(self) -> tuple[str, ...]:
        """All members that belong to it."""
        return (self.key, *self.also)


@dataclass(frozen=True, slots=True)
class OfTopic(Level):
    """A policy as single topics have it: Apache's `PersistentTopics` and `TopicPolicies`."""

    _: KW_ONLY
    applied: bool = True
    """Whether `applied=true` tells what is in force; otherwise it changes nothing."""
    null_refusal: str = ""
    """What is said to a body of null, where that does not remove the policy."""


@dataclass(frozen=True, slots=True)
class OfNamespace(Level):
    """A policy as namespaces have it: Apache's `Namespaces` and `Policies`."""

    _: KW_ONLY
    verb: str = "POST"
    """The HTTP verb that sets the policy."""
    removed: Any = None
    """What DELETE leaves in the document; None: nothing."""
    body_required: bool = True
    """Whether setting without a body is refused; otherwise that unsets it."""
    unset_is_brokers: bool = False
    """Whether GET answers the broker's setting when it is not set, instead of `unset`."""
    no_policies: Literal["", "change", "read"] = ""
    """Which operation says of a missing namespace that its policies are missing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """One policy, at all levels that have it."""

    name: str
    """The field of `EffectivePolicies` that has what is in force, if one does."""
    says: str = ""
    """What it is, for the API's description: "Tell …" and "Set …"."""
    access: str = ""
    """Apache's `PolicyName`, which authorization is asked for; empty: `access_table` has its routes."""
    kind: PolicyKind = PolicyKind.OTHER
    settings: Sequence[str] = ()
    """The broker's, by Pulsar's names. A rate has one for messages, one for bytes and maybe one that says whether it is
    relative to what is published."""
    broker_prevails: bool = False
    """Whether the broker can ask for it against the word of the levels below."""
    topic: OfTopic | None = None
    namespace: OfNamespace | None = None

    @property
    def levels(self) -> list[Level]:
        """Where it can be set."""
        return [level for level in (self.topic, self.namespace) if level is not None]

    @property
    def topic_keys(self) -> tuple[str, ...]:
        """The members of a topic's policies."""
        return self.topic.keys if self.topic is not None else ()

    @property
    def namespace_keys(self) -> tuple[str, ...]:
        """The members of a namespace's policies."""
        return self.namespace.keys if self.namespace is not None else ()
