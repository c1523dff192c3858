"""Waiting for clients to come to their end."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Final

from e2e.broker_simulation.clients import Host
from e2e.broker_simulation.history import History
from e2e.simulation_runner.running import Stuck

PATIENCE_SECONDS: Final = 30.0
"""How long, when nothing is wrong any more, something may take that must happen."""


async def until_done(
    history: History, hosts: Iterable[Host], complaint: str, patience_seconds: float = PATIENCE_SECONDS
) -> None:
    """Who has not come to an end then is complained of, and ended. `Stuck` when that ends the run."""
    deadline = asyncio.get_running_loop().time() + patience_seconds
    for host in hosts:
        try:
            async with asyncio.timeout_at(deadline):
                await host.done.wait()
        except TimeoutError:
            history.stuck.append(f"{host.node.name} {complaint}")
        host.node.kill()
    if history.ends_at_first and (history.stuck or history.wrong):
        raise Stuck("what comes next is not looked for")
