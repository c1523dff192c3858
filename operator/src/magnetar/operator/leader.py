"""One operator works, others wait: who holds a Lease, as Kubernetes' own controllers do it.

Nobody compares clocks: a waiting operator measures by its own how long the Lease has not changed, and the holder stops
by its own before others may think so (client-go: tools/leaderelection).
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

from magnetar.core.clock import Clock
from magnetar.core.errors import MagnetarError
from magnetar.operator.api import ApiServer
from magnetar.operator.kubernetes.errors import AlreadyExists, Conflict, NotFound
from magnetar.operator.kubernetes.kinds import KINDS, Manifest

LEASE_SECONDS: Final = 15
"""How long others leave a holder that says nothing."""
RENEW_EVERY_SECONDS: Final = 5.0
RENEW_WITHIN_SECONDS: Final = 10.0
"""After this long without a renewal the holder stops, a third of the Lease before anybody else begins."""
CONTACT_SECONDS: Final = 60.0
STUCK_SECONDS: Final = 120.0
RELEASE_SECONDS_MAX: Final = 3.0
"""The limit of handing the Lease over: nobody waits for an API server that does not answer for longer than the Lease
runs anyway."""
LOOK_EVERY_SECONDS: Final = 2.0
"""The pause between the looks of those that wait for the Lease."""

logger: Final = logging.getLogger(__name__)


class Leader:
    """This operator's part in it."""

    def __init__(self, api: ApiServer, clock: Clock, *, namespace: str, name: str, identity: str) -> None:
        self._api = api
        self._clock = clock
        self._namespace = namespace
        self._name = name
        self._identity = identity
        self._held: Manifest | None = None
        self._renewed_seconds = 0.0
        """When the last renewal that went well was begun."""
        self._tried_seconds = clock.monotonic_seconds()
        self._answered_seconds = -math.inf
        self._seen = ""
        """The Lease's version when it last changed."""
        self._seen_seconds = 0.0

    def leads(self) -> bool:
        """Whether this one may work, now: true only while nobody else can hold the Lease."""
        return self._held is not None and self._since_renewal() < RENEW_WITHIN_SECONDS

    def in_contact(self) -> bool:
        """Whether the API server has answered lately."""
        return self._clock.monotonic_seconds() - self._answered_seconds < CONTACT_SECONDS

    def stuck(self) -> bool:
        """Whether this has not even been tried for long: then nothing else in this process can be trusted to run."""
        return self._clock.monotonic_seconds() - self._tried_seconds > STUCK_SECONDS

    async def acquire(self) -> None:
        """Wait until it is ours."""
        waits_for = ""
        while True:
            try:
                holder = await self._try()
            except MagnetarError as error:
                logger.warning("the Lease cannot be had: %s", error)
            else:
                self._answered_seconds = self._clock.monotonic_seconds()
                if self._held is not None:
                    logger.info("this operator leads (%s)", self._identity)
                    return
                if holder != waits_for:
                    waits_for = holder
                    logger.info("waiting: %s leads", holder)
            self._tried_seconds = self._clock.monotonic_seconds()
            await asyncio.sleep(LOOK_EVERY_SECONDS)

    async def keep(self) -> str:
        """Renew it. Gives why it was lost, at the latest `RENEW_WITHIN_SECONDS` after the last renewal."""
        while True:
            self._tried_seconds = self._clock.monotonic_seconds()
            left_seconds = RENEW_WITHIN_SECONDS - self._since_renewal()
            try:
                async with asyncio.timeout(max(left_seconds, 0.0)):
                    await self._renew()
            except Conflict:
                return "another operator has taken the Lease"
            except (MagnetarError, TimeoutError) as error:
                if self._since_renewal() + 1.0 >= RENEW_WITHIN_SECONDS:
                    return f"the Lease could not be renewed: {str(error) or 'no answer in time'}"
                logger.warning("the Lease is not renewed yet: %s", error)
                await asyncio.sleep(1.0)
            else:
                await asyncio.sleep(RENEW_EVERY_SECONDS)

    async def release(self) -> None:
        """Let it go, when everything has stopped: the next one need not wait."""
        if self._held is None:
            return
        self._held = None
        try:
            async with asyncio.timeout(RELEASE_SECONDS_MAX):
                found = await self._api.get("Lease", self._namespace, self._name)
                if found is not None and self._is_holder(found):
                    await self._write(found, {"holderIdentity": "", "leaseDurationSeconds": 1})
        except (MagnetarError, TimeoutError) as error:
            logger.debug("the Lease is left to run out: %s", error)

    def _since_renewal(self) -> float:
        return self._clock.monotonic_seconds() - self._renewed_seconds

    async def _try(self) -> str:
        """Take the Lease if nobody holds it. Gives who does."""
        begun_seconds = self._clock.monotonic_seconds()
        found = await self._api.get("Lease", self._namespace, self._name)
        if found is None:
            return await self._create(begun_seconds)
        spec = found.get("spec") or {}
        holder = spec.get("holderIdentity") or ""
        version = found["metadata"]["resourceVersion"]
        if version != self._seen:
            self._seen, self._seen_seconds = version, begun_seconds
        silent_seconds = begun_seconds - self._seen_seconds
        # One that holds it under this very name is this one, before a restart.
        if holder in ("", self._identity) or silent_seconds > spec.get("leaseDurationSeconds", LEASE_SECONDS):
            try:
                transitions = spec.get("leaseTransitions", 0) + (holder != self._identity)
                self._held = await self._write(found, self._spec() | {"leaseTransitions": transitions})
                self._renewed_seconds = begun_seconds
            except (Conflict, NotFound):
                return "somebody else"
        return holder

    async def _create(self, begun_seconds: float) -> str:
        metadata = {"name": self._name, "namespace": self._namespace}
        lease = {"apiVersion": KINDS["Lease"].api_version, "kind": "Lease", "metadata": metadata, "spec": self._spec()}
        try:
            self._held = await self._api.create(lease)
        except AlreadyExists:
            return "somebody else"
        self._renewed_seconds = begun_seconds
        return self._identity

    async def _renew(self) -> None:
        """`Conflict` if it is somebody else's by now."""
        assert self._held is not None
        begun_seconds = self._clock.monotonic_seconds()
        renewal = {"renewTime": _now(self._clock)}
        try:
            self._held = await self._write(self._held, renewal)
        except (Conflict, NotFound) as error:
            # Perhaps a renewal of our own, whose answer was lost.
            found = await self._api.get("Lease", self._namespace, self._name)
            if found is None or not self._is_holder(found):
                raise Conflict(str(error)) from None
            self._held = await self._write(found, renewal)
        self._renewed_seconds = begun_seconds
        self._answered_seconds = begun_seconds

    def _is_holder(self, lease: Manifest) -> bool:
        return bool((lease.get("spec") or {}).get("holderIdentity") == self._identity)

    def _spec(self) -> dict[str, Any]:
        now = _now(self._clock)
        return {
            "holderIdentity": self._identity,
            "leaseDurationSeconds": LEASE_SECONDS,
            "acquireTime": now,
            "renewTime": now,
        }

    async def _write(self, lease: Manifest, spec: Mapping[str, Any]) -> Manifest:
        """Only if it is as it was: two cannot take it."""
        metadata = lease["metadata"]
        patch = {"metadata": {"resourceVersion": metadata["resourceVersion"]}, "spec": dict(spec)}
        return await self._api.patch("Lease", self._namespace, self._name, patch, uid=metadata["uid"])


def _now(clock: Clock) -> str:
    """The time of the clock in UTC, in the form that Leases have: RFC 3339 with microseconds."""
    return datetime.fromtimestamp(clock.now_ms() / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
