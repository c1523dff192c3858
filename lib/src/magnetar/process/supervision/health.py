"""The health of several processes as one: the supervisor's control port. Importing this module loads gRPC."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

from magnetar.control.client import ControlChannel
from magnetar.control.errors import ControlUnavailable
from magnetar.control.server import ControlServer, ControlService
from magnetar.control.settings import ControlSettings
from magnetar.process.supervision.child import Child, ChildState
from magnetar.process.supervision.ports import LOOPBACK

logger: Final = logging.getLogger(__name__)

LOOK_SECONDS: Final = 1.0
"""Between two looks at all processes."""
ANSWER_SECONDS_MAX: Final = 10.0
"""For a process to tell its health; one that takes longer hangs. Far more than a loaded machine needs."""
SERVICE: Final = "magnetar.processes"
"""What health is asked about, beside the whole: that all processes serve."""
ControlServices: TypeAlias = Callable[[Sequence[ControlChannel], asyncio.Event], Sequence[ControlService]]
"""Further services of the port, which ask the processes; the event is set when the port begins to close."""


class GroupHealth:
    """A control port that is healthy while every process is."""

    def __init__(
        self, children: Sequence[Child], settings: ControlSettings, services: ControlServices | None = None
    ) -> None:
        self._children = children
        self._more_services = services
        self._service_names = [SERVICE]
        self._server = ControlServer(settings)
        self._channels = {
            child.plan.number: ControlChannel(f"{LOOPBACK}:{child.plan.control_port}", token=settings.token)
            for child in children
            if child.plan.control_port is not None
        }
        self._looking: asyncio.Task[None] | None = None

    @property
    def port(self) -> int:
        """Where it listens."""
        return self._server.port

    async def start(self) -> None:
        """Take the port. Errors as `ControlServer.start`."""
        services = [ControlService(SERVICE, lambda _: None)]
        if self._more_services is not None:
            services += self._more_services(list(self._channels.values()), self._server.stopping)
        self._service_names = [service.name for service in services]
        await self._server.start(services)
        self._looking = asyncio.get_running_loop().create_task(self._look(), name="health-of-processes")

    async def close(self) -> None:
        """Turn unhealthy and stop. Twice is no error."""
        looking, self._looking = self._looking, None
        if looking is not None:
            looking.cancel()
            await asyncio.wait((looking,))
        await self._server.close()
        for channel in self._channels.values():
            await channel.close()

    async def _look(self) -> None:
        told: bool | None = None
        while True:
            found = await asyncio.gather(*(self._healthy(child) for child in self._children))
            healthy = all(found)
            if healthy != told:
                sick = [child.plan.number for child, well in zip(self._children, found, strict=True) if not well]
                logger.info("all processes are healthy" if healthy else f"processes that are not healthy: {sick}")
                for name in self._service_names:
                    await self._server.set_serving(name, serving=healthy)
                told = healthy
            await asyncio.sleep(LOOK_SECONDS)

    async def _healthy(self, child: Child) -> bool:
        if child.state is not ChildState.SERVING:
            return False
        channel = self._channels.get(child.plan.number)
        if channel is None:
            return True
        try:
            async with asyncio.timeout(ANSWER_SECONDS_MAX):
                return await channel.healthy()
        except (ControlUnavailable, TimeoutError) as error:
            logger.debug("process %d does not tell its health: %r", child.plan.number, error)
            return False
