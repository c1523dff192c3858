"""`magnetar.control.v1.Bookie`: the gRPC service of one bookie. Importing this module loads gRPC."""

# The methods have the names of the service's definition.
# ruff: noqa: N802

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Final

from magnetar.bookie.operations import BookieDrainState, BookieDrainStep, BookieOperations
from magnetar.control.errors import ControlRefused, RefusalReason
from magnetar.control.filling import message_of
from magnetar.control.generated import bookie_pb2 as messages
from magnetar.control.generated.bookie_pb2_grpc import BookieServicer, add_BookieServicer_to_server
from magnetar.control.server import ControlServer, ControlService
from magnetar.core.errors import Unavailable

SERVICE: Final = "magnetar.control.v1.Bookie"
PAGE_SIZE: Final = 1_000
PAGE_SIZE_MAX: Final = 10_000
"""A stored ledger takes at most 25 bytes, so a page stays far below gRPC's 4 MiB."""
BLOCKERS_MAX: Final = 1_000
"""Blockers told in one answer, for the same reason; how many ledgers are left is told besides."""
DRAIN_INTERVAL_MS: Final = (1_000, 100)
RECOVERY_INTERVAL_MS: Final = (5_000, 1_000)
"""(when 0 is asked for, the least): counting what is left asks the metadata store for many nodes."""


def bookie_service(operations: BookieOperations, stopping: asyncio.Event) -> ControlService:
    """The service, to be given to `ControlServer.start`; `stopping` is that server's."""
    service = BookieControlService(operations, stopping)
    return ControlService(SERVICE, lambda server: add_BookieServicer_to_server(service, server))


async def serve_bookie(server: ControlServer, operations: BookieOperations) -> None:
    """Start a server with this service alone, healthy from the first moment. Errors as `ControlServer.start`."""
    await server.start([bookie_service(operations, server.stopping)])
    await server.set_serving(SERVICE, serving=True)


class BookieControlService(BookieServicer):
    """Answers from `BookieOperations`; what those raise becomes a status in `magnetar.control.gate`."""

    def __init__(self, operations: BookieOperations, stopping: asyncio.Event) -> None:
        self._operations = operations
        self._stopping = stopping

    async def GetStorageState(self, request: messages.GetStorageStateRequest, context: object) -> messages.StorageState:
        """What the bookie holds."""
        del request, context
        return storage_state(self._operations)

    async def SetReadOnly(self, request: messages.SetReadOnlyRequest, context: object) -> messages.StorageState:
        """Switch read-only mode."""
        del context
        now = self._operations.bookie.state()
        if now.read_only_forced and not request.read_only:
            raise ControlRefused(
                RefusalReason.FAILED_PRECONDITION,
                "the settings force read-only mode: take forceReadOnlyBookie out of them and restart the bookie",
            )
        await self._operations.bookie.set_read_only(read_only=request.read_only)
        return storage_state(self._operations)

    async def StartDrain(self, request: messages.StartDrainRequest, context: object) -> messages.Drain:
        """Begin the drain, or go on with it."""
        del request, context
        return drain(await self._operations.drains.start_drain())

    async def GetDrain(self, request: messages.GetDrainRequest, context: object) -> messages.Drain:
        """How far the drain has come."""
        del request, context
        return drain(self._operations.drains.drain())

    async def WatchDrain(self, request: messages.WatchDrainRequest, context: object) -> AsyncIterator[messages.Drain]:
        """The state now and after each change, until the drain is done or none runs."""
        del context
        interval_seconds = watch_seconds(request.interval_ms, DRAIN_INTERVAL_MS)
        told: BookieDrainState | None = None
        while True:
            state = self._operations.drains.drain()
            if state != told:
                yield drain(state)
                told = state
            if state.step in (BookieDrainStep.DONE, BookieDrainStep.NONE):
                return
            await self._pause(interval_seconds)

    async def CancelDrain(self, request: messages.CancelDrainRequest, context: object) -> messages.Drain:
        """Stop the drain."""
        del request, context
        return drain(await self._operations.drains.cancel_drain())

    async def TriggerGarbageCollection(
        self, request: messages.TriggerGarbageCollectionRequest, context: object
    ) -> messages.TriggerGarbageCollectionResponse:
        """Begin a collection."""
        del context
        self._operations.collection.trigger_collection(
            force_major=request.force_major if request.HasField("force_major") else None,
            force_minor=request.force_minor if request.HasField("force_minor") else None,
        )
        return messages.TriggerGarbageCollectionResponse()

    async def ListLedgers(
        self, request: messages.ListLedgersRequest, context: object
    ) -> AsyncIterator[messages.ListLedgersResponse]:
        """Ledgers of which this bookie holds entries, page by page."""
        del context
        if not 0 <= request.page_size <= PAGE_SIZE_MAX:
            raise ControlRefused(RefusalReason.INVALID_ARGUMENT, f"page_size is 0 (for {PAGE_SIZE}) to {PAGE_SIZE_MAX}")
        if request.count_max < 0:
            raise ControlRefused(RefusalReason.INVALID_ARGUMENT, "count_max is 0 (for no limit) or more")
        page_size = request.page_size or PAGE_SIZE
        after = request.after_ledger_id if request.HasField("after_ledger_id") else -1
        left = request.count_max or None
        while left is None or left > 0:
            wanted = page_size if left is None else min(page_size, left)
            page = [ledger async for ledger in self._operations.storage.stored_ledgers(after, wanted)]
            if page:
                yield messages.ListLedgersResponse(ledgers=[message_of(messages.StoredLedger, one) for one in page])
                after = page[-1].ledger_id
            if len(page) < wanted:
                return
            left = None if left is None else left - len(page)
            self._check_running()

    async def GetAutoRecovery(self, request: messages.GetAutoRecoveryRequest, context: object) -> messages.AutoRecovery:
        """What AutoRecovery does."""
        del request, context
        return await self._auto_recovery()

    async def WatchAutoRecovery(
        self, request: messages.WatchAutoRecoveryRequest, context: object
    ) -> AsyncIterator[messages.AutoRecovery]:
        """Tell the state of AutoRecovery again and again."""
        del context
        interval_seconds = watch_seconds(request.interval_ms, RECOVERY_INTERVAL_MS)
        while True:
            yield await self._auto_recovery()
            await self._pause(interval_seconds)

    async def EnableAutoRecovery(
        self, request: messages.EnableAutoRecoveryRequest, context: object
    ) -> messages.AutoRecovery:
        """Switch it on for the whole cluster."""
        del request, context
        await self._operations.recovery.enable_auto_recovery(enabled=True)
        return await self._auto_recovery()

    async def DisableAutoRecovery(
        self, request: messages.DisableAutoRecoveryRequest, context: object
    ) -> messages.AutoRecovery:
        """Switch it off for the whole cluster."""
        del request, context
        await self._operations.recovery.enable_auto_recovery(enabled=False)
        return await self._auto_recovery()

    async def GetLostBookie(self, request: messages.GetLostBookieRequest, context: object) -> messages.LostBookie:
        """What the cluster has of another bookie."""
        del context
        found = await self._operations.recovery.lost_bookie(_other_bookie(request.bookie_id))
        return message_of(messages.LostBookie, found)

    async def RetireLostBookie(self, request: messages.RetireLostBookieRequest, context: object) -> messages.LostBookie:
        """The next step to have it forgotten."""
        del context
        found = await self._operations.recovery.retire_lost_bookie(_other_bookie(request.bookie_id))
        return message_of(messages.LostBookie, found)

    async def _auto_recovery(self) -> messages.AutoRecovery:
        return message_of(messages.AutoRecovery, await self._operations.recovery.auto_recovery())

    async def _pause(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._stopping.wait()
        self._check_running()

    def _check_running(self) -> None:
        if self._stopping.is_set():
            raise Unavailable("the bookie is stopping")


def watch_seconds(asked_ms: int, bounds: tuple[int, int]) -> float:
    """How long a watch waits between two looks; `bounds` as `DRAIN_INTERVAL_MS`. `ControlRefused`."""
    usual, least = bounds
    if asked_ms and asked_ms < least:
        raise ControlRefused(RefusalReason.INVALID_ARGUMENT, f"interval_ms is 0 (for {usual}) or at least {least}")
    return (asked_ms or usual) / 1000


def _other_bookie(bookie_id: str) -> str:
    if not bookie_id or "/" in bookie_id:
        raise ControlRefused(RefusalReason.INVALID_ARGUMENT, f"{bookie_id!r} is no bookie id")
    return bookie_id


def storage_state(operations: BookieOperations) -> messages.StorageState:
    """All that is known of the bookie's storage without waiting."""
    lacks = operations.bookie.limbo()
    problems = [messages.LimboProblem(ledger_id=ledger_id, reason=reason) for ledger_id, reason in lacks.problems]
    collections = operations.collection.collections()
    return message_of(
        messages.StorageState,
        operations.bookie.state(),
        operations.storage.totals(),
        bookie_id=operations.bookie.bookie_id,
        directories=[message_of(messages.Directory, usage) for usage in operations.storage.directories()],
        journal_marks=[message_of(messages.JournalMark, mark) for mark in operations.storage.last_marks()],
        collections=[message_of(messages.Collection, status, status.counters) for status in collections],
        limbo=message_of(messages.Limbo, lacks, problems=problems),
    )


def drain(state: BookieDrainState) -> messages.Drain:
    """A drain; of its blockers the first ones."""
    blockers = [
        messages.DrainBlocker(ledger_id=ledger_id, reason=reason) for ledger_id, reason in state.blockers[:BLOCKERS_MAX]
    ]
    return message_of(messages.Drain, state, step=f"DRAIN_STEP_{state.step.name}", blockers=blockers)
