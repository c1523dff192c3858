"""Events of resources: what people see in `kubectl describe`. What happens again is counted up, not told anew."""

from __future__ import annotations

import hashlib
import logging
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any, Final

from magnetar.core.clock import Clock
from magnetar.operator.api import ApiServer
from magnetar.operator.children.naming import FIELD_MANAGER, OwnerResource
from magnetar.operator.kubernetes.errors import API_ERRORS, NamespaceTerminating, NotFound
from magnetar.operator.plan.actions import EmitEvent
from magnetar.operator.plan.conditions import timestamp
from magnetar.operator.resources.common import API_VERSION

REMEMBERED_MAX: Final = 64
"""Different Events of one resource that may be counted up; older ones are told anew."""
REMEMBERED_SECONDS: Final = 3000.0
"""How long: the API server itself keeps Events for an hour."""
COUNT_EVERY_SECONDS: Final = 30.0
"""Between two writes of one Event: what happens more often is counted here meanwhile."""
BURST: Final = 25
"""Events of one resource that may be written at once; then one each `REFILL_SECONDS`. An upgrade of a large pool tells
two for each pod, minutes apart."""
REFILL_SECONDS: Final = 10.0
MESSAGE_BYTES_MAX: Final = 1000
"""The API server takes 1024."""

logger: Final = logging.getLogger(__name__)


@dataclass(slots=True)
class _RecordedEvent:
    """Times are of the clock that never goes back: people set the other one."""

    name: str
    uid: str
    count: int
    first_seconds: float
    written_seconds: float


class _Resource:
    """What was told of one resource."""

    __slots__ = ("allowance", "refilled_seconds", "told")

    def __init__(self, now_seconds: float) -> None:
        self.allowance = float(BURST)
        self.refilled_seconds = now_seconds
        self.told: OrderedDict[tuple[str, str, str], _RecordedEvent] = OrderedDict()

    def may_write(self, now_seconds: float) -> bool:
        """Takes one from the allowance, if there is one."""
        passed = now_seconds - self.refilled_seconds
        self.allowance = min(float(BURST), self.allowance + passed / REFILL_SECONDS)
        self.refilled_seconds = now_seconds
        if self.allowance < 1:
            return False
        self.allowance -= 1
        return True


class ApiEvents:
    """Writes Events by the API server. A failure to is no failure of what they tell of."""

    def __init__(self, api: ApiServer, clock: Clock, instance: str) -> None:
        """`instance`: which operator tells, such as its pod."""
        self._api = api
        self._clock = clock
        self._instance = instance
        self._resources: dict[tuple[str, str, str], _Resource] = {}
        """By namespace, kind, name; as many as there are resources."""

    async def tell(self, owner: OwnerResource, event: EmitEvent) -> None:
        """Write it, or count it up. Never fails: what cannot be written is dropped."""
        now_seconds = self._clock.monotonic_seconds()
        key = (owner.namespace, owner.kind, owner.name)
        resource = self._resources.setdefault(key, _Resource(now_seconds))
        what = (event.type, event.reason, event.message)
        told = resource.told.get(what)
        if told is not None and now_seconds - told.first_seconds > REMEMBERED_SECONDS:
            told = None
        if told is not None:
            told.count += 1
            if now_seconds - told.written_seconds < COUNT_EVERY_SECONDS:
                return
        if not resource.may_write(now_seconds):
            logger.info("%s %s/%s: %s: %s", owner.kind, owner.namespace, owner.name, event.reason, event.message)
            return
        try:
            if told is not None and await self._count_up(owner, told, now_seconds):
                return
            made = await self._api.create(self._manifest(owner, event))
        except (NamespaceTerminating, NotFound) as error:
            # Whoever deletes a namespace wants no more of it, and there is nowhere to write to.
            logger.debug("an Event is lost with its namespace: %s: %s", event.message, error)
            return
        except API_ERRORS as error:
            logger.warning("an Event is lost: %s: %s", event.message, error)
            return
        metadata = made["metadata"]
        resource.told[what] = _RecordedEvent(metadata["name"], metadata.get("uid", ""), 1, now_seconds, now_seconds)
        resource.told.move_to_end(what)
        if len(resource.told) > REMEMBERED_MAX:
            resource.told.popitem(last=False)

    def forget(self, namespace: str, kind: str, name: str) -> None:
        """The resource is gone."""
        self._resources.pop((namespace, kind, name), None)

    async def _count_up(self, owner: OwnerResource, told: _RecordedEvent, now_seconds: float) -> bool:
        """False: it is gone."""
        patch = {"count": told.count, "lastTimestamp": timestamp(self._clock.now_ms() / 1000)}
        try:
            await self._api.patch("Event", owner.namespace, told.name, patch, uid=told.uid)
        except NotFound:
            return False
        told.written_seconds = now_seconds
        return True

    def _manifest(self, owner: OwnerResource, event: EmitEvent) -> dict[str, Any]:
        now_ms = self._clock.now_ms()
        # Different for each, and the same for the same: a create whose answer is lost is not repeated under another
        # name by the pass after it, which counts up instead.
        content = f"{owner.uid} {event.type} {event.reason} {event.message} {self._instance} {now_ms}"
        name = f"{owner.name}.{hashlib.sha256(content.encode()).hexdigest()[:16]}"
        now = timestamp(now_ms / 1000)
        return {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": name, "namespace": owner.namespace},
            "involvedObject": {
                "apiVersion": API_VERSION,
                "kind": owner.kind,
                "name": owner.name,
                "namespace": owner.namespace,
                "uid": owner.uid,
            },
            "type": event.type,
            "reason": event.reason,
            "message": _shortened(event.message),
            "source": {"component": FIELD_MANAGER, "host": self._instance},
            "reportingComponent": FIELD_MANAGER,
            "reportingInstance": self._instance,
            "firstTimestamp": now,
            "lastTimestamp": now,
            "count": 1,
        }


def _shortened(message: str) -> str:
    content = message.encode()
    if len(content) <= MESSAGE_BYTES_MAX:
        return message
    return content[: MESSAGE_BYTES_MAX - 4].decode(errors="ignore") + " ..."
