"""Waiting for clients to come to their end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Final

from e2e.broker_simulation.clients import Host
from e2e.broker_simulation.history import History
from e2e.simulation_runner.running import Stuck

PATIENCE_SECONDS: Final = 30.0
"""How long, when nothing is wrong any more, something may take that must happen."""


async def until_done(
    history: History,
    hosts: Iterable[Host],
    complaint: str,
    patience_seconds: float = PATIENCE_SECONDS,
    progress: Callable[[], int] = lambda: 0,
) -> None:
    """Who has not come to an end then is complained of, and ended. `Stuck` when that ends the run.

    `progress` counts what they have done; while that grows they have time once more. It must have an end."""
    loop = asyncio.get_running_loop()
    deadline, done = loop.time() + patience_seconds, progress()
    for host in hosts:
        while not host.done.is_set():
            try:
                async with asyncio.timeout_at(deadline):
                    await host.done.wait()
            except TimeoutError:
                before, done = done, progress()
                if done == before:
                    history.stuck.append(f"{host.node.name} {complaint}")
                    break
                deadline = loop.time() + patience_seconds
        host.node.kill()
    if history.ends_at_first and (history.stuck or history.wrong):
        raise Stuck("what comes next is not looked for")
