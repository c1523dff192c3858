"""What the plugin shows of a cluster: the resources themselves, and of pods and events what people look for."""

from __future__ import annotations

from typing import Any

import msgspec
from magnetar.operator.children.naming import READ_ONLY_BROKER
from magnetar.operator.resources.bookie import BookieMember, BookieSpec, BookieStatus
from magnetar.operator.resources.cluster import BrokerMember, PulsarClusterSpec, PulsarClusterStatus
from magnetar.operator.resources.common import Condition
from magnetar.operator.resources.read_only import ReadOnlyBrokerMember


class JsonView(msgspec.Struct, rename="camel", kw_only=True, frozen=True):
    """What the plugin shows in rows and `-o json` prints, with its fields in camel case."""


def ordinal(pod: str) -> tuple[str, int]:
    """To sort pods by: name and number, so that 10 comes after 9."""
    stem, _, number = pod.rpartition("-")
    return (stem, int(number)) if number.isdigit() else (pod, -1)


class PodView(JsonView, kw_only=True, frozen=True):
    """One pod."""

    name: str
    uid: str = ""
    cluster: str = ""
    component: str = ""
    pool: str = ""
    phase: str = "Pending"
    ready: bool = False
    deleting: bool = False
    node: str = ""
    address: str = ""
    image: str = ""
    containers: tuple[str, ...] = ()
    """Names of the pod's containers, the component's own first."""
    restarts: int = 0
    restarted_seconds: float | None = None
    """When its last container ended."""
    reason: str = ""
    """Why it does not run: CrashLoopBackOff, Unschedulable, OOMKilled."""
    message: str = ""
    """What it or its last container said of that."""
    created_seconds: float = 0.0
    annotations: dict[str, str] = {}

    @property
    def ordinal(self) -> tuple[str, int]:
        """The number to sort pods by."""
        return ordinal(self.name)


class EventView(JsonView, kw_only=True, frozen=True):
    """One event."""

    seconds: float
    type: str
    reason: str
    about: str
    """What the event is about, as kind/name."""
    message: str
    count: int = 1


class PoolSummary(JsonView, kw_only=True, frozen=True):
    """One pool of bookies."""

    name: str
    generation: int = 0
    deleting: bool = False
    spec: BookieSpec
    status: BookieStatus = BookieStatus()

    def member(self, pod: str) -> BookieMember | None:
        """What status says of a pod."""
        return next((member for member in self.status.members if member.name == pod), None)


class ClusterSummary(JsonView, kw_only=True, frozen=True):
    """One cluster with all that belongs to it."""

    namespace: str
    name: str
    generation: int = 0
    created_seconds: float = 0.0
    deleting: bool = False
    spec: PulsarClusterSpec = PulsarClusterSpec()
    status: PulsarClusterStatus = PulsarClusterStatus()
    pools: tuple[PoolSummary, ...] = ()
    pods: tuple[PodView, ...] = ()
    events: tuple[EventView, ...] = ()
    """The cluster's events, the latest one last."""
    addresses: tuple[str, ...] = ()
    """By which clients outside reach it: of a load balancer."""

    def of(self, component: str, pool: str | None = None) -> list[PodView]:
        """A component's pods by number, then name."""
        found = [pod for pod in self.pods if pod.component == component and pool in (None, pod.pool)]
        return sorted(found, key=lambda pod: pod.ordinal)

    def broker(self, pod: str) -> BrokerMember | None:
        """What status says of a broker's pod."""
        return next((member for member in self.status.broker_members if member.name == pod), None)

    def read_only_broker(self, pod: str) -> ReadOnlyBrokerMember | None:
        """What status says of a read-only broker's pod."""
        status = self.status.read_only_brokers
        return next((member for member in status.members if member.name == pod), None) if status is not None else None

    def condition(self, type_: str) -> Condition | None:
        """One of the cluster's conditions."""
        return next((found for found in self.status.conditions if found.type == type_), None)

    @property
    def entrance(self) -> str:
        """The component that clients connect to."""
        if self.spec.attach is not None:
            return READ_ONLY_BROKER
        return "proxy" if self.spec.proxy.replicas else "broker"


def plain(value: Any) -> Any:
    """The view in the form of JSON."""
    return msgspec.to_builtins(value)
