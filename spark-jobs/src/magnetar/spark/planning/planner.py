"""What the driver decides: which topics, from where to where, in which slices. Batches and streams plan alike."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple, TypeVar

from magnetar.spark.assembly.compaction import CompactedLedger, compacted_slices
from magnetar.spark.bookies.access import choose
from magnetar.spark.bounded_gather import bounded_gather
from magnetar.spark.cluster import ClusterConnections, cluster_of
from magnetar.spark.entries import EntrySource
from magnetar.spark.errors import ClusterUnreachable, DataLoss, TopicMissing
from magnetar.spark.options.offsets import LATEST, EndingPoint, StartingPoint, place_of
from magnetar.spark.options.pushdown import MessageFilters
from magnetar.spark.options.reading import SourceOptions
from magnetar.spark.planning.loss import Loss, LossKind, goes_on_from, losses, missing_compaction
from magnetar.spark.planning.plan import (
    ends_before,
    normalised,
    slices_of,
    slices_of_all,
    spans_between,
    stretch_ranges,
)
from magnetar.spark.planning.publish_times import PublishTimes
from magnetar.spark.planning.read_failover import ReadFailover
from magnetar.spark.planning.time_search import first_at, ledgers_searched
from magnetar.spark.positions import BEGINNING, MessagePosition
from magnetar.spark.slices import Slice
from magnetar.spark.topics import CLOSED_AT_UNKNOWN_TIME, TopicCatalog, TopicSelection, TopicState

T = TypeVar("T")

logger: Final = logging.getLogger(__name__)

TIMES_SOUGHT_AT_ONCE: Final = 16
"""Topics in which a time is looked for side by side: each search is some twenty reads, one after the other."""

ENTRIES_SECONDS: Final = 10.0
"""How long bookies that cannot be reached are waited for when the driver wants a few entries."""

NAMED_MAX: Final = 10
"""Topics in an error's text."""

PUBLISHED_BEFORE_STORED_MS_MAX: Final = 3_600_000
"""How far a producer's clock may be off, or a message have waited in it, before a filter on publish times overlooks its
ledger: such filters leave out ledgers by when they were closed."""


@dataclass(frozen=True, slots=True)
class TopicRange:
    """What is read of one topic: [first, end)."""

    state: TopicState
    first: MessagePosition
    end: MessagePosition


class Selected(NamedTuple):
    """What a look for the selected topics has found."""

    topics: list[str]
    """Complete names of those that are wanted."""
    missing: str
    """What is not there though it is asked for, for the user; empty: nothing."""


class ReadPlanner:
    """Plans reads of what the options select. Made by `open_planner`, on the process's event loop."""

    def __init__(self, options: SourceOptions, cluster: ClusterConnections, reason: str = "", *, direct: bool) -> None:
        """`direct`: bookies are read from. `reason`: why they are, or are not."""
        self.options = options
        self.cluster = cluster
        self.failover = ReadFailover(cluster, options.read_mode, reason, direct=direct)

    @property
    def direct(self) -> bool:
        """Whether bookies are read from. It changes between calls, see `ReadFailover`."""
        return self.failover.direct

    async def selected(self, filters: MessageFilters) -> Selected:
        """All topics that are selected and wanted, as far as they are there."""
        selection = self.options.selection
        found = await self._catalogued(lambda catalog: catalog.topics(selection))
        missing = "" if self.options.wait_for_topics else _missing(selection, found)
        return Selected([topic for topic in found if filters.wants_topic(topic)], missing)

    async def topics(self, filters: MessageFilters) -> list[str]:
        """All topics that are selected and wanted. Raises `TopicMissing` for what is selected and not there."""
        found = await self.selected(filters)
        if found.missing:
            raise TopicMissing(found.missing)
        return found.topics

    async def states(self, topics: Sequence[str]) -> dict[str, TopicState]:
        """Each topic as it is now; those that are gone are left out. Raises `ClusterUnreachable`."""
        return await self._catalogued(lambda catalog: catalog.states(topics))

    async def positions(
        self, point: StartingPoint | EndingPoint, states: Iterable[TopicState], option: str
    ) -> dict[str, MessagePosition]:
        """Where a point is in each topic. A time is looked up."""
        gate = asyncio.Semaphore(TIMES_SOUGHT_AT_ONCE)

        async def one(state: TopicState) -> MessagePosition:
            place = place_of(point, state.topic, option)
            if isinstance(place, MessagePosition):
                if place == LATEST:
                    return state.end
                return normalised(state, place) if place == BEGINNING else place
            return await self._first_at(state, place)

        wanted = list(states)
        found = await self.failover.ask(lambda: bounded_gather(gate, wanted, one))
        return {state.topic: position for state, position in zip(wanted, found, strict=True)}

    async def slices(
        self, reaches: Iterable[TopicRange], known_entries: Mapping[str, Mapping[int, int]], gone: Sequence[Loss] = ()
    ) -> list[Slice]:
        """The reaches cut into tasks; compacted ledgers come first where they are asked for.

        Raises `DataLoss` for what cannot be read any more, or logs it and goes on behind it, as the options say; and
        `ClusterUnreachable` when nobody knows."""
        asked = list(reaches)
        wanted = await self.failover.ask(lambda: asyncio.gather(*map(self._with_metadata, asked)))
        for reach in wanted:
            _check_end(reach)
        each = await asyncio.gather(*(self._lost(one, known_entries.get(one.state.topic, {})) for one in wanted))
        found = [*gone, *itertools.chain.from_iterable(each)]
        self.judge(found)
        lost = {loss.topic for loss in found}
        wanted = [
            replace(reach, first=goes_on_from(reach.state, reach.first)) if reach.state.topic in lost else reach
            for reach in wanted
        ]
        return await self.failover.ask(lambda: self._cut(wanted))

    async def _cut(self, wanted: Sequence[TopicRange]) -> list[Slice]:
        if self.options.read_compacted and not self.direct:
            # What a compaction has kept may be of ledgers that are no more.
            return [
                Slice(topic=one.state.topic, first=one.first, end=one.end, ranges=stretch_ranges(BEGINNING, one.end))
                for one in wanted
            ]
        if not self.options.read_compacted:
            return slices_of_all([(one.state, one.first, one.end) for one in wanted], self.options.split_bytes)
        slices: list[Slice] = []
        for reach in wanted:
            slices += await self._compacted(reach)
        return slices

    def judge(self, found: Sequence[Loss]) -> None:
        """Raises `DataLoss` for what is gone, or logs it, as `failOnDataLoss` says."""
        if not found:
            return
        text = "; ".join(map(str, found))
        if self.options.fail_on_data_loss:
            raise DataLoss(text)
        logger.warning("failOnDataLoss is false, so reading goes on: %s", text)

    async def source(self, topic: str) -> EntrySource:
        """An entry source of one topic, for a few entries that the driver reads itself."""
        if not self.direct:
            return self.cluster.broker_entries(topic)
        return (await self.cluster.direct()).entries(topic, give_up_seconds=ENTRIES_SECONDS)

    async def addresses(self) -> dict[str, tuple[str, int]]:
        """Bookies that tasks will read from."""

        async def known() -> dict[str, tuple[str, int]]:
            return (await self.cluster.direct()).addresses() if self.direct else {}

        return await self.failover.ask(known)

    async def _catalogued(self, ask: Callable[[TopicCatalog], Awaitable[T]]) -> T:
        """What the catalog of the present read path answers, store or brokers. Raises `ClusterUnreachable`."""
        self.failover.fail_back()

        async def call() -> T:
            return await ask(await self.cluster.catalog(direct=self.direct))

        return await self.failover.ask(call)

    async def _lost(self, reach: TopicRange, known_entries: Mapping[int, int]) -> list[Loss]:
        """What is missing of a reach (`losses`). Where it cannot be seen whether a trimmed ledger was read to its end,
        brokers are asked."""
        found = losses(reach.state, reach.first, reach.end, known_entries)
        if not any(loss.kind is LossKind.RETENTION and loss.entries is None for loss in found):
            return found
        try:
            told = await self.cluster.brokers.trimmed_entries(reach.state.topic, self.options.predefined_subscription)
        except ClusterUnreachable:
            if self.options.fail_on_data_loss:
                raise  # Asked again: a query does not fail for what may be none.
            return found
        return losses(reach.state, reach.first, reach.end, {**told, **known_entries})

    async def _with_metadata(self, reach: TopicRange) -> TopicRange:
        """Ledgers that are read have their metadata: where their entries are."""
        if not self.direct:
            return reach
        catalog = await self.cluster.direct_catalog()
        ledger_ids = {span.ledger.ledger_id for span in spans_between(reach.state, reach.first, reach.end)}
        return replace(reach, state=await catalog.with_metadata(reach.state, ledger_ids))

    async def _compacted(self, reach: TopicRange) -> list[Slice]:
        split_bytes = self.options.split_bytes
        topic = reach.state.topic

        async def told() -> CompactedLedger | None:
            try:
                return await self.cluster.brokers.compaction(topic)
            except ClusterUnreachable as error:
                logger.warning("%s: no broker tells of a newer compaction: %s", topic, error)
                return None

        found = await (await self.cluster.direct()).compaction(topic, told)
        if found is None:
            return slices_of(reach.state, reach.first, reach.end, split_bytes)
        compaction, ledger = found
        if ledger.missing:
            self.judge([missing_compaction(topic, ledger.ledger_id)])
        slices = compacted_slices(topic, compaction, ledger, (reach.first, reach.end), split_bytes)
        return slices + slices_of(reach.state, max(reach.first, compaction.rest), reach.end, split_bytes)

    async def _first_at(self, state: TopicState, time_ms: int) -> MessagePosition:
        if not state.ledgers_known and self.options.read_mode == "auto" and self.options.connection.metadata_url:
            # Options are as they should be.
            raise ClusterUnreachable(
                f"{state.topic}: a time is looked for in the topic's ledgers, which only the metadata store tells as "
                f"admin.url is not given; brokers were asked: {self.failover.reason}"
            )
        source = await self.source(state.topic)
        if self.direct:
            searched = ledgers_searched(state, time_ms)
            state = await (await self.cluster.direct_catalog()).with_metadata(state, searched)
            there = [ledger for ledger in state.ledgers if ledger.ledger_id in searched and not ledger.missing]
            if self.options.read_mode == "auto" and not all(ledger.metadata for ledger in there):
                # Some are in tiered storage alone: taken for unreadable, they would be taken for later.
                source = self.cluster.broker_entries(state.topic)
        times = PublishTimes(state, source)
        try:
            return await first_at(state, time_ms, times.of)
        finally:
            await times.close()


def _missing(selection: TopicSelection, found: Sequence[str]) -> str:
    there = {*found, *(topic.rpartition("-partition-")[0] for topic in found)}
    names = [name for name in selection.names if name not in there]
    if names:
        more = f" and {len(names) - NAMED_MAX} others" if len(names) > NAMED_MAX else ""
        return f"there is no topic {', '.join(names[:NAMED_MAX])}{more}"
    return "" if found else f"there is no topic that matches {selection.pattern}"


def narrowed(reach: TopicRange, filters: MessageFilters) -> TopicRange:
    """Without the ledgers at both ends that were closed too early, or begun too late, for the wanted publish times."""
    first, end = reach.first, reach.end
    begun_ms = 0
    for ledger in reach.state.ledgers:
        behind = MessagePosition(ledger.ledger_id + 1, 0)
        earliest, latest = filters.publish_time_ms_min, filters.publish_time_ms_max
        if earliest is not None and 0 < ledger.closed_ms < earliest - PUBLISHED_BEFORE_STORED_MS_MAX:
            first = max(first, behind)
        if latest is not None and begun_ms > latest + PUBLISHED_BEFORE_STORED_MS_MAX:
            end = min(end, MessagePosition(ledger.ledger_id, 0))
        begun_ms = ledger.closed_ms if ledger.closed_ms < CLOSED_AT_UNKNOWN_TIME else 0
    return replace(reach, first=first if first == reach.first else normalised(reach.state, first), end=end)


async def open_planner(options: SourceOptions) -> ReadPlanner:
    """Decide who is read from, and be ready to plan. Raises `ClusterUnreachable`."""
    cluster = await cluster_of(options.connection)
    mode, reason = await choose(cluster.direct, options.read_mode)
    logger.info("reading from %s: %s", mode, reason)
    return ReadPlanner(options, cluster, reason, direct=mode == "bookies")


def _check_end(reach: TopicRange) -> None:
    """Raises `ClusterUnreachable` when its end may be there or not: what is left out now would never be read."""
    state = reach.state
    beyond = normalised(state, reach.end) > normalised(state, state.end)
    if beyond and not ends_before(state, reach.end):
        raise ClusterUnreachable(
            f"{state.topic} is to be read up to before {reach.end}: bookies know of what is before {state.end}, and no "
            "broker says whether there is more (see service.url)"
        )
