"""One process's session with etcd: a lease that is renewed, and a watch on the whole tree."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from magnetar.metadata.etcd_client import EtcdClient
from magnetar.metadata.generated import etcd_pb2 as pb
from magnetar.metadata.store import SessionEvent, StoreClosed, StoreUnavailable

logger: Final = logging.getLogger(__name__)

RENEWALS_PER_LEASE: Final = 3
"""Two renewals may fail before the lease is in danger."""

RETRY_DELAY_SECONDS: Final = 0.2
"""Between attempts to renew a lease, to get a new one or to watch again; they go on for as long as the store lives."""

TREE_FIRST: Final = b"/"
TREE_END: Final = b"0"
"""The key after all that begin with a slash."""


class EtcdSession:
    """Tells how the session fares, and of every change in the tree. `lease` is what ephemeral keys hang on."""

    def __init__(
        self,
        client: EtcdClient,
        timeout_ms: int,
        on_event: Callable[[pb.Event], None],
        on_session_event: Callable[[SessionEvent], None],
    ) -> None:
        self.lease = 0
        """The id of the session's lease; 0 while there is none."""
        self._client = client
        self._ttl_seconds = max(1, timeout_ms // 1000)
        self._on_event = on_event
        self._on_session_event = on_session_event
        self._ends_at_seconds = 0.0
        """On the loop's clock: the lease may be over from then on."""
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Get a lease and begin to watch. `StoreUnavailable`."""
        await self._grant()
        revision = (await self._client.range(pb.RangeRequest(key=TREE_FIRST, limit=1))).header.revision
        self._tasks = [
            asyncio.create_task(self._keep(), name="etcd lease"),
            asyncio.create_task(self._watch(revision + 1), name="etcd watch"),
        ]

    async def close(self) -> None:
        """End the lease and with it the ephemeral keys; when etcd cannot be reached, they end by themselves."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        lease, self.lease = self.lease, 0
        if lease:
            try:
                await self._client.revoke(lease)
            except StoreUnavailable as error:
                logger.warning("the lease was not revoked, its nodes stay until it ends: %s", error)

    async def _grant(self) -> None:
        asked = asyncio.get_running_loop().time()
        answer = await self._client.grant(self._ttl_seconds)
        self.lease = answer.ID
        self._ttl_seconds = answer.TTL
        self._ends_at_seconds = asked + self._ttl_seconds

    async def _keep(self) -> None:
        connected = True
        while True:
            await asyncio.sleep(self._ttl_seconds / RENEWALS_PER_LEASE if connected else RETRY_DELAY_SECONDS)
            try:
                alive = await self._renew()
            except StoreClosed:
                return
            except StoreUnavailable as error:
                if connected:
                    connected = False
                    logger.warning("%s", error)
                    self._on_session_event(SessionEvent.CONNECTION_LOST)
                alive = asyncio.get_running_loop().time() < self._ends_at_seconds
                if alive:
                    continue
            if not alive:
                await self._begin_again()
                connected = True
            elif not connected:
                connected = True
                self._on_session_event(SessionEvent.RECONNECTED)

    async def _renew(self) -> bool:
        """Whether the lease lives on. Nobody waits longer for the answer than the lease may last."""
        asked = asyncio.get_running_loop().time()
        left = self._ends_at_seconds - asked
        if (
            left <= 0
            or await self._client.keep_alive(self.lease, min(left, self._ttl_seconds / RENEWALS_PER_LEASE)) <= 0
        ):
            return False
        # etcd counts from when it was asked, not from when its answer came.
        self._ends_at_seconds = asked + self._ttl_seconds
        return True

    async def _begin_again(self) -> None:
        """The lease has ended, or nobody knows; whatever hung on it must not be relied on."""
        self.lease = 0
        self._on_session_event(SessionEvent.SESSION_LOST)
        while not self.lease:
            try:
                await self._grant()
            except StoreClosed:
                return
            except StoreUnavailable as error:
                logger.warning("no new lease yet: %s", error)
                await asyncio.sleep(RETRY_DELAY_SECONDS)
        self._on_session_event(SessionEvent.SESSION_RESTARTED)

    async def _watch(self, revision: int) -> None:
        """From a revision on, over all breaks of the stream."""
        while True:
            try:
                create = pb.WatchCreateRequest(key=TREE_FIRST, range_end=TREE_END, start_revision=revision)
                async for answer in self._client.watch(create):
                    if answer.canceled:
                        revision = max(revision, answer.compact_revision, answer.header.revision + 1)
                        logger.warning("etcd ended the watch (%s): changes may have been missed", answer.cancel_reason)
                        self._on_session_event(SessionEvent.RECONNECTED)
                        break
                    for event in answer.events:
                        self._on_event(event)
                    revision = max(revision, _next_revision(answer))
            except StoreClosed:
                return
            except StoreUnavailable as error:
                logger.info("watching again: %s", error)
            await asyncio.sleep(RETRY_DELAY_SECONDS)


def _next_revision(answer: pb.WatchResponse) -> int:
    """From where to watch after this answer. Its header has the store's revision, which what comes next is behind: the
    first answer precedes all changes, and a long history comes in several."""
    if answer.events:
        last: int = answer.events[-1].kv.mod_revision
        return last + 1
    return 0 if answer.created else answer.header.revision + 1
