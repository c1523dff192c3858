"""Drains of all bookies of one machine as one, at the supervisor's control port. Importing this module loads gRPC."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Sequence
from typing import Final

from magnetar.bookie.admin.control import BLOCKERS_MAX, DRAIN_INTERVAL_MS, SERVICE, watch_seconds
from magnetar.control.client import BookieControl, ControlChannel
from magnetar.control.errors import ControlRefused, ControlUnavailable, RefusalReason
from magnetar.control.generated import bookie_pb2 as messages
from magnetar.control.server import ControlService
from magnetar.control.some_methods import ControlMethod, service_of
from magnetar.core.errors import MagnetarError, Unavailable

logger: Final = logging.getLogger(__name__)

AWAY_SECONDS_MAX: Final = 60.0
"""So long a watch waits for a bookie that cannot be asked. The supervisor starts one that has ended again, after half a
minute at most."""


def drain_services(channels: Sequence[ControlChannel], stopping: asyncio.Event) -> list[ControlService]:
    """What the supervisor's port has beside health; `channels` lead to the bookies' own, `stopping` is its server's."""
    drains = GroupDrains([BookieControl(channel) for channel in channels], stopping)
    return [drains.service()]


def merged(drains: Sequence[messages.Drain]) -> messages.Drain:
    """Several drains as one: as far as the one that is least far of those under way; DONE when all are, else NONE."""
    steps = {each.step for each in drains}
    under_way = steps - {messages.DRAIN_STEP_NONE, messages.DRAIN_STEP_DONE}
    return messages.Drain(
        bookie_id=", ".join(each.bookie_id for each in drains),
        step=min(under_way or steps),
        ledgers_total=sum(each.ledgers_total for each in drains),
        ledgers_left=sum(each.ledgers_left for each in drains),
        bytes_copied=sum(each.bytes_copied for each in drains),
        bytes_per_second=sum(each.bytes_per_second for each in drains),
        blockers=[blocker for each in drains for blocker in each.blockers][:BLOCKERS_MAX],
    )


class GroupDrains:
    """The part of `magnetar.control.v1.Bookie` that makes sense for several: begin, look, watch, cancel."""

    def __init__(self, bookies: Sequence[BookieControl], stopping: asyncio.Event) -> None:
        self._bookies = bookies
        self._stopping = stopping
        self._cancellations = 0
        """Counted, so that a drain that is just being begun does not go on with the next bookie after one."""

    def service(self) -> ControlService:
        """What the port offers; the service's other methods are about one bookie."""
        return service_of(
            SERVICE,
            {
                "StartDrain": ControlMethod(self.start_drain, messages.StartDrainRequest),
                "GetDrain": ControlMethod(self.get_drain, messages.GetDrainRequest),
                "CancelDrain": ControlMethod(self.cancel_drain, messages.CancelDrainRequest),
                "WatchDrain": ControlMethod(self.watch_drain, messages.WatchDrainRequest, streams=True),
            },
        )

    async def start_drain(self, request: messages.StartDrainRequest, context: object) -> messages.Drain:
        """Begin all, or go on; none when one is refused, or when somebody cancels meanwhile."""
        del request, context
        found: list[messages.Drain] = []
        begun: list[BookieControl] = []
        cancellations = self._cancellations
        try:
            for bookie in self._bookies:
                if (await bookie.drain()).step == messages.DRAIN_STEP_NONE:
                    begun.append(bookie)
                found.append(await bookie.start_drain())
                if self._cancellations != cancellations:
                    raise ControlRefused(RefusalReason.FAILED_PRECONDITION, "the drain was cancelled as it began")
        except MagnetarError:
            await self._take_back(begun)
            raise
        return merged(found)

    async def get_drain(self, request: messages.GetDrainRequest, context: object) -> messages.Drain:
        """How far all are."""
        del request, context
        return await self._drain()

    async def watch_drain(self, request: messages.WatchDrainRequest, context: object) -> AsyncIterator[messages.Drain]:
        """The state now and after each change, until all are done or one has none. A bookie that is started again
        meanwhile does not end the watch: nothing is told until it is back."""
        del context
        loop = asyncio.get_running_loop()
        heard_seconds = loop.time()
        pause_seconds = watch_seconds(request.interval_ms, DRAIN_INTERVAL_MS)
        told: messages.Drain | None = None
        while True:
            try:
                found = await self._drain()
            except ControlUnavailable:
                if loop.time() - heard_seconds > AWAY_SECONDS_MAX:
                    raise
            else:
                heard_seconds = loop.time()
                if found != told:
                    yield found
                    told = found
                if found.step in (messages.DRAIN_STEP_DONE, messages.DRAIN_STEP_NONE):
                    return
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause_seconds):
                    await self._stopping.wait()
                    raise Unavailable("the bookies are stopping")

    async def cancel_drain(self, request: messages.CancelDrainRequest, context: object) -> messages.Drain:
        """Stop all that can be reached and are not past that; then the first refusal, or who is away."""
        del request, context
        self._cancellations += 1
        return await self._of_all([bookie.cancel_drain() for bookie in self._bookies])

    async def _drain(self) -> messages.Drain:
        return await self._of_all([bookie.drain() for bookie in self._bookies])

    async def _of_all(self, calls: Sequence[Awaitable[messages.Drain]]) -> messages.Drain:
        """What all answer. Else the first refusal, which stays, before who is away, which passes."""
        answers = await asyncio.gather(*calls, return_exceptions=True)
        found: list[messages.Drain] = []
        away: list[str] = []
        for number, answer in enumerate(answers, 1):
            if isinstance(answer, ControlUnavailable):
                away.append(f"bookie process {number} of {len(answers)} is away: {answer}")
            elif isinstance(answer, BaseException):
                raise answer
            else:
                found.append(answer)
        if away:
            raise ControlUnavailable("; ".join(away))
        return merged(found)

    async def _take_back(self, begun: Sequence[BookieControl]) -> None:
        for bookie in begun:
            try:
                await bookie.cancel_drain()
            except MagnetarError as error:
                # Whoever asked is told why not all drain; that one still does shows at its own port.
                logger.warning("a drain that was to be taken back goes on: %s", error)
