"""Starts several processes of one component, keeps them running and stops them; answers for their health and metrics.

Importing this module loads neither gRPC nor aiohttp; `Supervisor.start` does.
"""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from magnetar.control.settings import ControlSettings
from magnetar.net.accepting import bound
from magnetar.process.supervision.child import Child, ProcessPlan

if TYPE_CHECKING:
    from socket import socket

    from magnetar.process.supervision.health import ControlServices, GroupHealth
    from magnetar.process.supervision.metrics_port import MetricsPort

logger: Final = logging.getLogger(__name__)

KILL_SECONDS: Final = 5.0
"""A process that a clean stop did not end in its time gets SIGKILL so long before the supervisor gives up itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupPlan:
    """What a supervisor has to do."""

    processes: Sequence[ProcessPlan]
    host: str
    """Where the shared ports and the metrics are."""
    shared_ports: Sequence[int]
    """Ports at which all processes listen; they stay the supervisor's while none does."""
    metrics_port: int | None
    """Where the supervisor tells the metrics of all; None: nowhere."""
    control: ControlSettings | None
    stop_seconds_max: float
    """For a process to stop cleanly."""
    where: str
    """Where clients connect, for the ready line."""
    services: ControlServices | None = None
    """What the control port offers beside health."""
    all_must_start: bool = True
    """One that ends before it served for the first time ends all; else only if none serves. Brokers fail for what all
    of them have, bookies also for what stands in their own directories."""


class Supervisor:
    """Serves while its processes do. Has no part in what they do for clients."""

    def __init__(self, plan: GroupPlan) -> None:
        self._plan = plan
        self.children = [
            Child(each, must_start=plan.all_must_start, group_size=len(plan.processes)) for each in plan.processes
        ]
        self._reserved: list[socket] = []
        self._health: GroupHealth | None = None
        self._metrics: MetricsPort | None = None

    @property
    def metrics_port(self) -> int | None:
        """Where the metrics of all processes are; None: nowhere."""
        return self._plan.metrics_port if self._metrics is None else self._metrics.port

    async def start(self) -> None:
        """Start all processes; returns when each serves, or one does and the others have failed where not all must.
        `ProcessFailed` otherwise, OSError for a port that is taken; then none is left."""
        plan = self._plan
        try:
            for port in plan.shared_ports:
                self._reserved += await bound(plan.host, port, shared=True)
            if plan.metrics_port is not None:
                from magnetar.process.supervision.metrics_port import MetricsPort

                self._metrics = MetricsPort(self.children)
                await self._metrics.start(plan.host, plan.metrics_port)
            if plan.control is not None:
                from magnetar.process.supervision.health import GroupHealth

                self._health = GroupHealth(self.children, plan.control, plan.services)
                await self._health.start()
            for child in self.children:
                child.start()
            await self._until_started()
        except BaseException:
            await asyncio.shield(self.close())
            raise

    async def _until_started(self) -> None:
        ready = [child.first_ready for child in self.children]
        found = await asyncio.gather(*ready, return_exceptions=not self._plan.all_must_start)
        failures = [each for each in found if isinstance(each, BaseException)]
        if len(failures) == len(ready):
            raise failures[0]

    def describe(self) -> str:
        """Where clients and tools connect."""
        control = f", control port {self._health.port}" if self._health is not None else ""
        metrics = f", their metrics at port {self.metrics_port}" if self._metrics is not None else ""
        return f"{self._plan.where} by {len(self.children)} processes{control}{metrics}"

    async def close(self) -> None:
        """Stop all processes cleanly, at the same time; who does not end is killed."""
        for child in self.children:
            child.tell(signal.SIGTERM)
        if self._health is not None:
            await self._health.close()
        ends = [asyncio.ensure_future(child.ended()) for child in self.children]
        _, hanging = await asyncio.wait(ends, timeout=self._plan.stop_seconds_max)
        if hanging:
            logger.error("%d processes did not stop within %g s", len(hanging), self._plan.stop_seconds_max)
            for child in self.children:
                child.tell(signal.SIGKILL)
            await asyncio.wait(ends)
        if self._metrics is not None:
            await self._metrics.close()
        for one in self._reserved:
            one.close()
        for child in self.children:
            if child.first_ready.done() and not child.first_ready.cancelled():
                child.first_ready.exception()  # Another one's was raised.
