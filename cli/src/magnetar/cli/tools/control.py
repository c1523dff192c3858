"""What a running bookie's control port says, as our own types."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Final

from magnetar.bookie.operations import BookieDrainState, BookieDrainStep, DirectoryUsage
from magnetar.control.client import BookieControl
from magnetar.control.filling import value_of
from magnetar.control.generated.bookie_pb2 import Drain, StorageState
from magnetar.control.generated.bookie_pb2 import DrainStep as DrainStepMessage

BEGIN_ATTEMPTS_MAX: Final = 20
BEGIN_PAUSE_SECONDS: Final = 0.25
"""Together five seconds for a drain to begin: it reads all ledgers' metadata only after that."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LimboProblem:
    """A ledger that could not be healed when it was tried last."""

    ledger_id: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningLimbo:
    """What a running bookie has lost and gets back from its peers: `magnetar.bookie.operations.LimboState`."""

    in_limbo: bool
    since_ms: int
    ledgers: int
    ledgers_total: int
    ledgers_unhealed: int
    entries_lost: int
    entries_fetched: int
    problems: tuple[LimboProblem, ...]
    damage: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningState:
    """What a running bookie holds, and whether it takes writes."""

    bookie_id: str
    running: bool
    shutting_down: bool
    read_only: bool
    read_only_reasons: tuple[str, ...]
    ledgers: int
    entries: int
    write_cache_bytes: int
    write_cache_bytes_max: int
    journal_queue_bytes: int
    entry_log_bytes: int
    directories: tuple[DirectoryUsage, ...]
    limbo: RunningLimbo


def running_state(message: StorageState) -> RunningState:
    """The answer of GetStorageState."""
    problems = tuple(value_of(LimboProblem, each) for each in message.limbo.problems)
    return value_of(
        RunningState,
        message,
        directories=tuple(value_of(DirectoryUsage, each) for each in message.directories),
        limbo=value_of(RunningLimbo, message.limbo, problems=problems),
    )


def drain_state(message: Drain) -> BookieDrainState:
    """The answer of every call about a drain."""
    step = DrainStepMessage.Name(message.step).removeprefix("DRAIN_STEP_")
    blockers = tuple((blocker.ledger_id, blocker.reason) for blocker in message.blockers)
    return value_of(
        BookieDrainState, message, step=BookieDrainStep.__members__.get(step, BookieDrainStep.NONE), blockers=blockers
    )


async def follow_drain(bookie: BookieControl) -> AsyncIterator[BookieDrainState]:
    """A drain that was just started, after each change, until it is done or cancelled."""
    begun = False
    for _ in range(BEGIN_ATTEMPTS_MAX):
        # A drain of a bookie that is older than this looks like none until its first look at the cluster.
        async for message in bookie.watch_drain():
            state = drain_state(message)
            begun = begun or state.step is not BookieDrainStep.NONE
            yield state
        if begun:
            return
        await asyncio.sleep(BEGIN_PAUSE_SECONDS)
