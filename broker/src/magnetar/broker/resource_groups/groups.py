"""The resource groups of the cluster: their limits as the metadata store has them, and those that topics here are in.

Limits are read when the broker starts and kept by watches: whoever needs them finds them in memory.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Final
from weakref import WeakValueDictionary

from magnetar.broker.policies.system_topics import belongs_to_brokers
from magnetar.broker.resource_groups.group import NO_LIMITS, GroupLimits, ResourceGroup, limits_of
from magnetar.broker.slices import in_slices
from magnetar.core.errors import MagnetarError, PeerError
from magnetar.metadata.store import Notification, SessionEvent

if TYPE_CHECKING:
    from collections.abc import Coroutine
    from typing import Any

    from magnetar.broker.resources import Resources
    from magnetar.core.clock import CallLater, Clock, TimerHandle
    from magnetar.core.topic_name import TopicName

logger: Final = logging.getLogger(__name__)

ROOT: Final = "/admin/resourcegroups"
"""Where groups stand in the configuration store (Pulsar: `ResourceGroupResources`)."""

TENANT_PREFIX: Final = "tenant:"
"""A group that is called so, with a tenant's name behind it, limits all topics of the tenant together. Ours: for
Apache's brokers it is a group that no namespace is in."""

RETRY_SECONDS: Final = 5.0
"""After a failed read of the store; until then the limits of before hold."""


class ResourceGroups:
    """All groups, by name."""

    def __init__(
        self,
        resources: Resources,
        clock: Clock,
        call_later: CallLater,
        spawn: Callable[[Coroutine[Any, Any, None]], object],
    ) -> None:
        self.brokers: Callable[[], int] = _one
        """How many brokers the cluster has; at least one."""
        self.on_changed: Callable[[], None] = _nothing
        """Told when there are groups that were not there before, or some are gone: topics may be in others now."""
        self._documents = resources.documents
        self._store = resources.configuration_store
        self._clock = clock
        self._call_later = call_later
        self._spawn = spawn
        self._limits: dict[str, GroupLimits] = {}
        """Of all groups that there are: some hundred bytes each, and only super users make them."""
        self._in_use: WeakValueDictionary[str, ResourceGroup] = WeakValueDictionary()
        self._outdated: set[str] = set()
        self._all_outdated = True
        self._reading = False
        self._retry: TimerHandle | None = None
        self._stops: list[Callable[[], None]] = []

    def start(self) -> None:
        """Read them, and go by every change from now on."""
        self._stops = [self._store.watch(self._take_notification), self._store.watch_session(self._take_session_event)]
        self._look()

    def close(self) -> None:
        """Hear of no change any more."""
        for stop in self._stops:
            stop()
        self._stops = []
        if self._retry is not None:
            self._retry.cancel()

    def of(self, topic: TopicName, group: str) -> tuple[ResourceGroup, ...]:
        """The groups that a topic is in: its namespace's (empty: none) and its tenant's, as far as there are such. A
        group that is both counts once."""
        limits = self._limits
        if not limits or belongs_to_brokers(topic):
            return ()
        names = dict.fromkeys((group, f"{TENANT_PREFIX}{topic.tenant}"))
        return tuple([self._group(name) for name in names if name in limits])

    def in_use(self) -> list[ResourceGroup]:
        """Those that a topic of this broker is in, by name."""
        return sorted(self._in_use.values(), key=lambda group: group.name)

    def get(self, name: str) -> ResourceGroup | None:
        """One that a topic of this broker is in."""
        return self._in_use.get(name)

    def _group(self, name: str) -> ResourceGroup:
        group = self._in_use.get(name)
        if group is None:
            group = self._in_use[name] = ResourceGroup(name, self._clock, self._call_later)
            group.use_limits(self._limits[name], self.brokers())
        return group

    # --- from the metadata store

    def _take_notification(self, notification: Notification) -> None:
        path = notification.path
        if path == ROOT:
            self._all_outdated = True
            self._look()
        elif path.startswith(f"{ROOT}/"):
            self._outdated.add(path[len(ROOT) + 1 :])
            self._look()

    def _take_session_event(self, event: SessionEvent) -> None:
        if event in (SessionEvent.RECONNECTED, SessionEvent.SESSION_RESTARTED):
            # Changes may have been missed.
            self._all_outdated = True
            self._look()

    def _look(self) -> None:
        if not self._reading:
            self._reading = True
            self._spawn(self._read())

    async def _read(self) -> None:
        try:
            while self._all_outdated or self._outdated:
                await self._read_outdated()
        except MagnetarError as error:
            logger.warning("limits of resource groups are not read, those of before hold: %s", error)
            self._all_outdated = True
            self._retry = self._call_later(RETRY_SECONDS, self._look)
        finally:
            self._reading = False

    async def _read_outdated(self) -> None:
        every, self._all_outdated = self._all_outdated, False
        names, self._outdated = self._outdated, set()
        if every:
            names.update(self._limits, await self._documents.children(ROOT))
        wanted = sorted(names)
        found = dict(zip(wanted, await in_slices(self._limits_of, wanted), strict=True))
        before = set(self._limits)
        for name, limits in found.items():
            if limits is None:
                self._limits.pop(name, None)
            else:
                self._limits[name] = limits
            group = self._in_use.get(name)
            if group is not None:
                group.use_limits(limits if limits is not None else NO_LIMITS, self.brokers())
        if before != set(self._limits):
            self.on_changed()

    async def _limits_of(self, name: str) -> GroupLimits | None:
        """None: there is no such group."""
        try:
            document = await self._documents.get(f"{ROOT}/{name}")
        except PeerError as error:
            logger.warning("resource group %s limits nothing: %s", name, error)
            return NO_LIMITS
        return None if document is None else limits_of(document)


def _one() -> int:
    return 1


def _nothing() -> None:
    """Before anybody listens."""
