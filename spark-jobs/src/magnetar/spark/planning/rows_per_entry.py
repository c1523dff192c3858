"""How many messages entries have on average, so that limits in rows can be kept by whole entries."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Final

from magnetar.spark.entries import Hole
from magnetar.spark.planning.plan import slices_of
from magnetar.spark.planning.planner import ReadPlanner
from magnetar.spark.positions import MessagePosition
from magnetar.spark.slices import LedgerRange
from magnetar.spark.topics import TopicState
from magnetar.wire.pulsar.errors import BadMetadata
from magnetar.wire.pulsar.metadata import skim

logger: Final = logging.getLogger(__name__)

LOOKED_AT_MAX: Final = 16
"""Entries that are read of each topic: enough for a mean, and one small read."""

LOOKED_AT_ONCE_MAX: Final = 16
"""Topics: one after the other, a thousand of them would hold a micro-batch up for seconds."""


class RowsPerEntry:
    """Looks at the next entries to be read, before each micro-batch: producers change what they batch."""

    def __init__(self, planner: ReadPlanner) -> None:
        self._planner = planner
        self._seen: dict[str, tuple[MessagePosition, float]] = {}

    async def estimates(
        self, states: Mapping[str, TopicState], begin: Mapping[str, MessagePosition]
    ) -> dict[str, float]:
        """Messages per entry, by topic; nothing of topics that have nothing new."""
        gate = asyncio.Semaphore(LOOKED_AT_ONCE_MAX)

        async def one(topic: str, state: TopicState) -> tuple[MessagePosition, float] | None:
            first, seen = begin[topic], self._seen.get(topic)
            if first >= state.end:
                return None
            if seen is not None and seen[0] == first:
                return seen
            async with gate:
                mean = await self._look(state, first)
            return None if mean is None else (first, mean)

        found = dict(zip(states, await asyncio.gather(*(one(*item) for item in states.items())), strict=True))
        self._seen = {topic: seen for topic, seen in found.items() if seen is not None}
        return {topic: mean for topic, (_, mean) in self._seen.items()}

    async def _look(self, state: TopicState, first: MessagePosition) -> float | None:
        slices = slices_of(state, first, state.end, self._planner.options.split_bytes)
        if not slices:
            return None
        part = slices[0].ranges[0]
        last = min(part.last_entry_id, part.first_entry_id + LOOKED_AT_MAX - 1)
        some = LedgerRange(
            ledger_id=part.ledger_id,
            first_entry_id=part.first_entry_id,
            last_entry_id=last,
            size_bytes=part.size_bytes * (last - part.first_entry_id + 1) // part.entries,
            metadata=part.metadata,
        )
        source = await self._planner.source(state.topic)
        counts: list[int] = []
        try:
            async for block in source.blocks((some,), _passed_over):
                counts += [_messages(data) for data in block.entries]
        finally:
            await source.close()
        return sum(counts) / len(counts) if counts else None


def _messages(data: bytes) -> int:
    try:
        return skim(data).num_messages
    except BadMetadata:
        return 1


def _passed_over(hole: Hole) -> None:
    """The task that reads these entries reports it."""
    logger.debug("not counted: %s", hole)
