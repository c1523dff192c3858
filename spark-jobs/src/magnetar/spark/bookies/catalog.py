"""Topics, ledgers and ends from the metadata store and the bookies. Reads only: nothing is fenced, nothing written.

How far the ledger in use goes is what a broker says, if one is asked and answers (`ends`). Without, it is what bookies
know (see `magnetar.ledger.last_confirmed`): that lags by the writer's last entry, and by more while entries come
faster than they are confirmed. So who reads without brokers does not see the newest message of a topic that has fallen
silent until another one comes or the ledger is closed (a broker does that after some hours, or when it lets go of the
topic). Nothing is skipped: what was not seen is read later. Nor is it known then which transactions are open: messages
up to the last confirmed one are there, and it is the transaction markers among them that tell.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final, Protocol, TypeAlias

from magnetar.core.errors import PeerError, Unavailable
from magnetar.core.topic_name import TopicName
from magnetar.ledger.bookie_client.bookie_connection import ReadOnlyBookies
from magnetar.ledger.last_confirmed import ask_last_confirmed
from magnetar.ledger.ledger_paths import ledger_path
from magnetar.managed.info_codec import decode_ledger_info
from magnetar.managed.ledger_list import LedgerRecord
from magnetar.metadata.store import MetadataStore
from magnetar.spark.bookies.topic_nodes import (
    ledgers_path,
    matching_topics,
    partition_count,
    persistent_topic,
    topics_of,
)
from magnetar.spark.bounded_gather import bounded_gather
from magnetar.spark.errors import ClusterUnreachable
from magnetar.spark.options.topic_patterns import parse_pattern
from magnetar.spark.positions import BEGINNING, MessagePosition
from magnetar.spark.topics import TopicLedger, TopicSelection, TopicState
from magnetar.wire.bookkeeper.ledger_metadata import LedgerMetadata, LedgerState, decode_ledger_metadata

Ends: TypeAlias = Callable[[Sequence[str]], Awaitable[Mapping[str, MessagePosition]]]
"""Asks brokers: topic → the place right behind the last message that a consumer may get now, as `TopicState.end`.
Topics that no broker answers for are left out; `BEGINNING` for those that have no message."""

READS_AT_ONCE: Final = 64
"""Questions to store and bookies that are under way at a time: as many as keep either busy, few enough not to be felt
by brokers, who ask the same ones."""

CLOSED_KEPT_MAX: Final = 10_000
"""Closed ledgers whose metadata is kept, some 300 bytes each: a large topic's."""

ANSWER_SECONDS: Final = 5.0
"""How long bookies may take to say how far a ledger goes."""

SIZE_SECONDS: Final = 0.5
"""Seconds that bookies may take to say so where a broker has said it already and only the size is wanted."""

ENDS_KEPT_MAX: Final = 100_000
"""Topics of which it is kept what brokers told last, some 200 bytes each."""

SILENT_SECONDS: Final = 10.0
"""How long not one bookie may answer, where only the size is wanted: tasks would wait longer for them. A bookie that is
alone and is started again takes less."""

ASKED_AGAIN_SECONDS: Final = 0.5

GUESSED_ENTRY_BYTES: Final = 1024

logger: Final = logging.getLogger(__name__)


class ClusterStores(Protocol):
    """Where a catalog looks; the caller's."""

    @property
    def store(self) -> MetadataStore:
        """The brokers': topics and their lists of ledgers."""
        ...

    @property
    def ledgers_store(self) -> MetadataStore:
        """The bookies': each ledger's metadata."""
        ...

    @property
    def bookies(self) -> ReadOnlyBookies:
        """The connections to bookies."""
        ...


class DirectCatalog:
    """A `TopicCatalog` without brokers, except for `ends`.

    `states` gives the metadata of the ledger in use only: a topic may have ten thousand others, of which few will be
    read. `with_metadata` gives the metadata of those."""

    def __init__(
        self,
        access: ClusterStores,
        ends: Ends | None = None,
    ) -> None:
        """`access`: such as `DirectAccess`. Without `ends`, and while no broker answers (`ClusterUnreachable`), bookies
        tell how far topics go, see above."""
        self.go_on_with(access)
        self._ends = ends
        self._limit = asyncio.Semaphore(READS_AT_ONCE)
        # Closed ledgers change only when entries are moved; who finds no entry there looks again.
        self._closed: OrderedDict[int, bytes] = OrderedDict()
        # What was confirmed once stays so: a topic does not seem to shrink when its broker goes away.
        self._told: OrderedDict[str, MessagePosition] = OrderedDict()
        self._heard = False
        """Whether a bookie has said anything in the present look at topics."""
        self._silent: tuple[int, LedgerMetadata] | None = None
        """A ledger of which none has, in this look."""

    def go_on_with(self, access: ClusterStores) -> None:
        """Another access to the same cluster, as the one before has failed. What was learnt is kept."""
        self._store = access.store
        self._ledgers_store = access.ledgers_store
        self._bookies = access.bookies

    async def topics(self, selection: TopicSelection) -> list[str]:
        """Complete names of the selected topics and partitions that the metadata store has, sorted. Partitions that
        nobody has used yet are topics, empty ones. Raises `BadOption` and `ClusterUnreachable`."""
        try:
            if selection.pattern:
                return await matching_topics(self._store, parse_pattern(selection.pattern))
            named = [persistent_topic(name) for name in selection.names]
            found = await bounded_gather(self._limit, named, lambda topic: topics_of(self._store, topic))
        except (Unavailable, PeerError) as error:
            raise _unreachable(error) from error
        return sorted({name for names in found for name in names})

    async def states(self, topics: Sequence[str]) -> dict[str, TopicState]:
        """Each topic as it is now, some at a time; those that are no more are left out. Ends are what brokers say, or
        what bookies have where no broker answers. Raises `ClusterUnreachable`."""
        # Brokers first: their end then is in a ledger that the list of ledgers, read later, has.
        ends = await self._ask_ends(topics)
        self._heard, self._silent = False, None
        try:
            found = await bounded_gather(self._limit, topics, lambda topic: self._state(topic, ends.get(topic)))
            await self._check_bookies()
        except (Unavailable, PeerError) as error:
            raise _unreachable(error) from error
        return {state.topic: state for state in found if state is not None}

    async def with_metadata(self, state: TopicState, ledger_ids: Collection[int]) -> TopicState:
        """The state with `metadata` of these ledgers, or `missing` set. Ledgers that the topic has let go of since the
        state was asked for (retention) are left out."""
        wanted = [each.ledger_id for each in state.ledgers if each.ledger_id in ledger_ids and not each.metadata]
        try:
            found = await bounded_gather(self._limit, wanted, self.ledger_metadata)
            stored = dict(zip(wanted, found, strict=True))
            listed = set(stored)
            if None in stored.values():
                info = await self._records(persistent_topic(state.topic))
                listed = set() if info is None else {record.ledger_id for record in info[0]}
        except (Unavailable, PeerError) as error:
            raise _unreachable(error) from error
        ledgers: list[TopicLedger] = []
        for each in state.ledgers:
            if each.ledger_id not in stored:
                ledgers.append(each)
            elif (metadata := stored[each.ledger_id]) is not None:
                ledgers.append(replace(each, metadata=metadata, missing=False))
            elif each.ledger_id in listed:
                # What is in tiered storage is given out by brokers.
                ledgers.append(replace(each, missing=not each.offloaded))
        return replace(state, ledgers=tuple(ledgers))

    async def ledger_metadata(self, ledger_id: int) -> bytes | None:
        """LedgerMetadata as stored; None when there is none. That of a closed ledger may be older. Raises
        `Unavailable`, `PeerError`."""
        kept = self._closed.get(ledger_id)
        if kept is not None:
            self._closed.move_to_end(ledger_id)
            return kept
        node = await self._ledgers_store.get(ledger_path(ledger_id), watch=False)
        if node is None:
            return None
        if decode_ledger_metadata(node.value).state is LedgerState.CLOSED:
            self._closed[ledger_id] = node.value
            if len(self._closed) > CLOSED_KEPT_MAX:
                self._closed.popitem(last=False)
        return node.value

    async def close(self) -> None:
        """Do nothing: no connection is held."""

    async def _ask_ends(self, topics: Sequence[str]) -> Mapping[str, MessagePosition]:
        if self._ends is None or not topics:
            return {}
        try:
            ends = await self._ends(topics)
        except ClusterUnreachable as error:
            logger.warning("no broker says how far topics go, so bookies are asked, who know a little less: %s", error)
            return {}
        for topic, end in ends.items():
            self._told[topic] = end
            self._told.move_to_end(topic)
        while len(self._told) > ENDS_KEPT_MAX:
            self._told.popitem(last=False)
        return ends

    async def _records(self, topic: TopicName) -> tuple[list[LedgerRecord], dict[str, str]] | None:
        node = await self._store.get(ledgers_path(topic), watch=False)
        if node is None:
            return None
        info = decode_ledger_info(node.value)
        return info.records, info.properties

    async def _state(self, name: str, end: MessagePosition | None) -> TopicState | None:
        topic = persistent_topic(name)
        info = await self._records(topic)
        if info is None:
            whole = topic.partitioned_name()
            if topic.partition_index < 0 or topic.partition_index >= (await partition_count(self._store, whole) or 0):
                return None
            info = [], {}  # A partition that nobody has used yet.
        records, properties = info
        ledgers: list[TopicLedger] = []
        guess = _entry_bytes(records)
        before = self._told.get(name, BEGINNING)
        for record in sorted(records, key=lambda each: each.ledger_id):
            if record.closed_ms:
                ledgers.append(_closed_ledger(record))
            else:
                # The ledger in use, or one whose broker died before it wrote down what is in it.
                known = before.entry_id if before.ledger_id == record.ledger_id else 0
                ledgers.append(await self._open_ledger(record, known, guess, told=end is not None))
        return TopicState(
            topic=name,
            ledgers=tuple(ledgers),
            end=_end(ledgers, end),
            end_certain=end is not None or not ledgers or ledgers[-1].closed_ms > 0,
            properties=properties or None,
        )

    async def _open_ledger(self, record: LedgerRecord, known: int, guess: int, *, told: bool) -> TopicLedger:
        """`known`: so many entries are confirmed for certain; `told`: a broker has just said so."""
        ledger_id = record.ledger_id
        stored = await self.ledger_metadata(ledger_id)
        if stored is None:
            return TopicLedger(ledger_id=ledger_id, entries=0, size_bytes=0, missing=True)
        metadata = decode_ledger_metadata(stored)
        offloaded = _is_offloaded(record)
        if metadata.state is LedgerState.CLOSED:
            entries, size_bytes = metadata.last_entry_id + 1, metadata.length_bytes
        else:
            entries, size_bytes = await self._confirmed(ledger_id, metadata, told=told)
            if entries < known or not size_bytes:
                each = max(1, size_bytes // entries) if size_bytes else guess
                entries = max(entries, known)
                size_bytes = entries * each
        return TopicLedger(
            ledger_id=ledger_id, entries=entries, size_bytes=size_bytes, metadata=stored, offloaded=offloaded
        )

    async def _confirmed(self, ledger_id: int, metadata: LedgerMetadata, *, told: bool) -> tuple[int, int]:
        """(entries, bytes) of a ledger that somebody writes, as its bookies know; bytes are 0 when none of them
        tells."""
        seconds = SIZE_SECONDS if told else ANSWER_SECONDS
        found = await ask_last_confirmed(ledger_id, metadata, self._bookies, seconds)
        if found.answers:
            self._heard = True
        elif told:
            self._silent = ledger_id, metadata
        if not told and not found.covered:
            # As BookKeeper's client: fewer may not have heard of what is confirmed, and a stream would go back behind
            # what it was told before.
            raise Unavailable(
                f"only {found.answers} of the bookies {', '.join(metadata.ensembles[-1][1])} say how far ledger "
                f"{ledger_id} goes; the others may know of more"
            )
        entries = found.last_add_confirmed + 1
        # The length counts the entry that brought it, which is one further.
        return entries, found.length_bytes * entries // (entries + 1)

    async def _check_bookies(self) -> None:
        """Raises `Unavailable` when bookies say nothing at all, though brokers do: nothing could be read from them."""
        if self._heard or self._silent is None:
            return
        loop = asyncio.get_running_loop()
        give_up_at_seconds = loop.time() + SILENT_SECONDS
        ledger_id, metadata = self._silent
        while not (await ask_last_confirmed(ledger_id, metadata, self._bookies, ANSWER_SECONDS)).answers:
            if loop.time() >= give_up_at_seconds:
                bookies = ", ".join(metadata.ensembles[-1][1])
                raise Unavailable(f"for {SILENT_SECONDS:g} s none of the bookies {bookies} answers")
            await asyncio.sleep(ASKED_AGAIN_SECONDS)


def _closed_ledger(record: LedgerRecord) -> TopicLedger:
    return TopicLedger(
        ledger_id=record.ledger_id,
        entries=record.entries,
        size_bytes=record.size_bytes,
        closed_ms=record.closed_ms,
        offloaded=_is_offloaded(record),
    )


def _is_offloaded(record: LedgerRecord) -> bool:
    return record.rest is not None and record.rest.HasField("offloadContext") and record.rest.offloadContext.complete


def _entry_bytes(records: Iterable[LedgerRecord]) -> int:
    """An entry's size in the newest ledger that tells."""
    guess = GUESSED_ENTRY_BYTES
    for record in records:
        if record.entries and record.size_bytes:
            guess = max(1, record.size_bytes // record.entries)
    return guess


def _end(ledgers: Sequence[TopicLedger], told: MessagePosition | None) -> MessagePosition:
    """What brokers told, else right behind what is confirmed."""
    if not ledgers:
        return BEGINNING
    if told is None:
        return MessagePosition(ledgers[-1].ledger_id, ledgers[-1].entries)
    # Brokers that have no message to show do not tell where the next one will be.
    return MessagePosition(ledgers[0].ledger_id, 0) if told == BEGINNING else told


def _unreachable(error: Exception) -> ClusterUnreachable:
    return ClusterUnreachable(f"topics cannot be looked up directly: {error} (see options metadata.url and readMode)")
