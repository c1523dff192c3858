"""What a client asks of a bookie beside adds: one queue for each connection, answered in batches."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import Final, TypeAlias

from magnetar.bookie.bookie import Bookie
from magnetar.bookie.server.requests_v2 import answer_v2
from magnetar.bookie.server.requests_v3 import V3Answerer
from magnetar.core.limits import MIB
from magnetar.net.connection import Connection
from magnetar.wire.bookkeeper import v2, v3

logger: Final = logging.getLogger(__name__)

QUEUE_MAX: Final = 1_000
"""Requests of one connection, other than adds, that wait; reading stops at this number and goes on at half of it."""

QUEUE_BYTES_MAX: Final = 1 * MIB
"""Bytes that the waiting requests of one connection bring, such as explicit LACs. One of any size is taken."""

QUEUE_BATCH: Final = 64
"""Requests answered in one turn before the event loop serves others."""

REPLIES_BYTES_MAX: Final = 1 * MIB
"""Bytes of replies that are made at once; a read or a batch of entries, of 5 MB at most, may come on top. The next ones
are made when the client has taken most of these."""

PAUSE_QUEUE: Final = "requests in queue"

QueuedRequest: TypeAlias = v2.Read | v2.BatchRead | v2.Auth | v3.Request


class RequestQueue:
    """The requests of one connection that wait. Its task lives while there is something to answer."""

    def __init__(self, connection: Connection, bookie: Bookie, answerer: V3Answerer) -> None:
        self._connection = connection
        self._bookie = bookie
        self._answerer = answerer
        self._queue: deque[QueuedRequest] = deque()
        self._queue_bytes = 0
        self._worker: asyncio.Task[None] | None = None
        self._writable = asyncio.Event()
        self._writable.set()

    def put(self, request: QueuedRequest, size_bytes: int) -> None:
        """Have a request that brings so many bytes answered, after those before it."""
        self._queue.append(request)
        self._queue_bytes += size_bytes
        if len(self._queue) >= QUEUE_MAX or self._queue_bytes > QUEUE_BYTES_MAX:
            self._connection.pause_reading(PAUSE_QUEUE)
        if self._worker is None or self._worker.done():
            self._worker = asyncio.get_running_loop().create_task(self._work(), name="bookie-session")

    def writable_changed(self, writable: bool) -> None:
        """The peer has fallen behind or caught up."""
        if writable:
            self._writable.set()
        else:
            self._writable.clear()

    def close(self) -> None:
        """The connection is over: answer nothing more."""
        self._queue.clear()
        if self._worker is not None:
            self._worker.cancel()
            self._worker = None

    async def _work(self) -> None:
        try:
            while self._queue and not self._connection.closed:
                await self._writable.wait()
                batch: list[QueuedRequest] = []
                while self._queue and len(batch) < QUEUE_BATCH:
                    batch.append(self._queue.popleft())
                await self._answer(batch)
                if not self._queue:
                    self._queue_bytes = 0
                if len(self._queue) <= QUEUE_MAX // 2 and self._queue_bytes <= QUEUE_BYTES_MAX:
                    self._connection.resume_reading(PAUSE_QUEUE)
                # Only then can the connection turn unwritable.
                await asyncio.sleep(0)
        except Exception:
            # The edge of a connection: an error of ours must not leave its client waiting for ever.
            logger.exception("closing the connection from %s", self._connection.peer_address)
            self._connection.abort()

    async def _answer(self, batch: list[QueuedRequest]) -> None:
        of_v2 = [request for request in batch if not isinstance(request, v3.Request)]
        of_v3 = [request for request in batch if isinstance(request, v3.Request)]
        left: list[QueuedRequest] = []
        if of_v3:
            replies, left_v3 = await self._answerer.answer(of_v3, REPLIES_BYTES_MAX)
            self._connection.write_parts(replies)
            left += left_v3
        if of_v2:
            replies, left_v2 = await answer_v2(self._bookie, of_v2, REPLIES_BYTES_MAX)
            self._connection.write_parts(replies)
            left += left_v2
        self._queue.extendleft(reversed(left))
