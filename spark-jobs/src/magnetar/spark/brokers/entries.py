"""Stored entries through a broker: a reader that takes entries as they come and decodes none of their messages.

What a broker leaves out it does not tell: markers, messages of transactions that were aborted, what compaction took,
what an entry filter of Apache's refuses, entries that are damaged in every copy. So a gap within a ledger is no hole
here. Of a ledger from which nothing comes at all the owner of the topic is asked, where the admin API may be used: one
that the topic has no more (retention, or another topic of the same name) is a hole. An entry whose checksum is wrong is
one, too.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final, TypeAlias

from magnetar.client.client import PulsarClient
from magnetar.client.connection import BrokerConnection
from magnetar.client.consumer import Receiver
from magnetar.client.errors import is_final
from magnetar.client.message import EARLIEST_ID, Message, MessageId
from magnetar.client.topic_end import ClientParts
from magnetar.core.errors import MagnetarError, Unavailable
from magnetar.core.ids import Position
from magnetar.core.topic_name import TopicName
from magnetar.spark.brokers.errors import user_error
from magnetar.spark.entries import EntryBlock, Hole, OnHole
from magnetar.spark.errors import ClusterUnreachable
from magnetar.spark.slices import LedgerRange
from magnetar.wire.pulsar import requests
from magnetar.wire.pulsar.errors import BadMetadata, PulsarError
from magnetar.wire.pulsar.generated.pulsar_api_pb2 import CommandMessage
from magnetar.wire.pulsar.metadata import broker_entry_metadata_end, checksum_ok, count_messages

LedgerIds: TypeAlias = Callable[[str], Awaitable[frozenset[int] | None]]
"""Which ledgers a topic has now; None: nobody can tell. `BrokerCatalog.ledger_ids`."""

BLOCK_BYTES: Final = 2 << 20
"""A block is given out when it has so much, or when no more comes for a moment."""

AHEAD_BYTES_MAX: Final = 8 << 20
"""What may be on its way or waiting: some blocks, so that the broker reads while the one before is decoded."""

AHEAD_ENTRIES_MAX: Final = 4_000
"""Entries that may be on their way, so that entries that suddenly are larger bring some thousand of those at most."""

UNREADABLE: Final = -1
"""Where the client's part of an entry begins that has no metadata."""

PERMITS_FIRST_MAX: Final = 100
"""What is asked for while nothing has come: the entries of one read of a broker."""

GUESSED_ENTRY_BYTES: Final = 1 << 20
"""While nobody tells. A broker sends all that it has permits for: a hundred of the largest entries would be half a
gigabyte, of the smallest ones the next hundred is asked for at once."""

QUIET_SECONDS: Final = 0.1
"""Without news for so long, what has come is given out; if there is none, the broker is asked whether more will."""


class BrokerEntries:
    """An `EntrySource` of one topic. The client is the caller's and stays open."""

    def __init__(
        self,
        client: PulsarClient,
        topic: str,
        *,
        read_compacted: bool = False,
        patience_seconds: float = 30.0,
        ledger_ids: LedgerIds | None = None,
    ) -> None:
        """`read_compacted`: only the last message of each key, as far as the topic is compacted. `patience_seconds`:
        how long nothing may come, while something should, until `ClusterUnreachable`."""
        self._client = client
        self._topic = TopicName.parse(topic)
        self._read_compacted = read_compacted
        self._patience_seconds = patience_seconds
        self._ledger_ids = ledger_ids
        self._reader: BrokerEntryReader | None = None

    async def blocks(self, ranges: Sequence[LedgerRange], on_hole: OnHole) -> AsyncIterator[EntryBlock]:
        """All entries between the first range's beginning and the last one's end, in order: the ranges of a slice
        follow one another. A ledger id below 0 is the beginning of the topic.

        Raises `TopicMissing`, `AccessRefused` or `ClusterUnreachable`, and what `on_hole` raises."""
        if not ranges:
            return
        await self.close()
        reader = await self._open(ranges)
        seen: set[int] = set()
        try:
            while True:
                blocks = await self._next(reader)
                for hole in reader.take_damaged():
                    on_hole(hole)
                if not blocks:
                    break
                for block in blocks:
                    seen.add(block.ledger_id)
                    yield block
            await self._report_missing(ranges, seen, on_hole)
        finally:
            await self.close()

    async def close(self) -> None:
        """Close the reader, if one is open. Twice is no error."""
        reader, self._reader = self._reader, None
        if reader is not None:
            await reader.close()

    async def _open(self, ranges: Sequence[LedgerRange]) -> BrokerEntryReader:
        make = partial(
            BrokerEntryReader,
            topic=self._topic,
            first=(ranges[0].ledger_id, ranges[0].first_entry_id),
            last=(ranges[-1].ledger_id, ranges[-1].last_entry_id),
            entry_bytes=-(-ranges[0].size_bytes // max(1, ranges[0].entries)),
            read_compacted=self._read_compacted,
        )
        try:
            self._reader = await self._client.attach(make)
        except MagnetarError as error:
            raise user_error(error, f"reading {self._topic}") from error
        return self._reader

    async def _next(self, reader: BrokerEntryReader) -> list[EntryBlock]:
        """Some blocks; none at the end."""
        loop = asyncio.get_running_loop()
        heard_seconds = loop.time()
        heard_entries = reader.entries_seen
        while not reader.has_block:
            if await reader.news(QUIET_SECONDS):
                continue
            self._check(reader)
            if reader.has_entries and reader.entries_seen == heard_entries:
                break
            if reader.entries_seen != heard_entries:
                heard_seconds, heard_entries = loop.time(), reader.entries_seen
            elif await self._is_over(reader):
                break
            elif loop.time() - heard_seconds > self._patience_seconds:
                raise ClusterUnreachable(
                    f"reading {self._topic}: no broker has sent anything for {self._patience_seconds:g} s, and "
                    f"{reader.wanted_text} is still to come (option readMode=bookies does without brokers)"
                )
        self._check(reader)
        return reader.take()

    def _check(self, reader: BrokerEntryReader) -> None:
        if reader.failure is not None and not reader.has_entries and not reader.is_done:
            raise user_error(reader.failure, f"reading {self._topic}") from reader.failure

    async def _is_over(self, reader: BrokerEntryReader) -> bool:
        """Whether the broker has nothing more of the ranges, though their last entry has not come."""
        if not reader.attached:
            return False
        try:
            last = await reader.last_message_id()
        except Unavailable:
            return False
        except PulsarError as error:
            if is_final(error, was_open=True):
                raise user_error(error, f"reading {self._topic}") from error
            return False
        # Its answer comes behind all that was sent before; a last message that has not come is still on its way.
        return not reader.has_entries and (last.entry_id < 0 or last.position <= reader.passed)

    async def _report_missing(self, ranges: Sequence[LedgerRange], seen: set[int], on_hole: OnHole) -> None:
        silent = [part for part in ranges if part.ledger_id >= 0 and part.entries > 0 and part.ledger_id not in seen]
        if not silent or self._ledger_ids is None or self._read_compacted:
            # Of a compacted topic a ledger may be gone whose messages were all replaced by newer ones.
            return
        there = await self._ledger_ids(str(self._topic))
        for part in silent:
            if there is not None and part.ledger_id not in there:
                on_hole(
                    Hole(
                        topic=str(self._topic),
                        ledger_id=part.ledger_id,
                        first_entry_id=part.first_entry_id,
                        last_entry_id=part.last_entry_id,
                        reason="the topic does not have this ledger any more: retention, or the topic was made anew",
                    )
                )


class BrokerEntryReader(Receiver):
    """A reader without a subscription that stays, which hands over whole entries from `first` to `last`.

    Permits count messages, memory counts bytes: how many bytes a message has is learnt from what comes. A broker may
    send one read (100 entries, 5 MB) above the permits. When the broker changes, reading goes on behind the last entry
    that came. An ack set beside an entry is not looked at: nothing of this reader's own is acknowledged in parts."""

    def __init__(
        self,
        parts: ClientParts,
        topic: TopicName,
        first: Position,
        last: Position,
        *,
        entry_bytes: int = 0,
        read_compacted: bool,
    ) -> None:
        """`entry_bytes`: about how large the first entries are; 0: nobody knows."""
        super().__init__(parts, topic)
        self._subscription = f"reader-{parts.rng.getrandbits(40):010x}"
        self._first = first
        self._last = last
        self._entry_bytes = entry_bytes or GUESSED_ENTRY_BYTES
        self._read_compacted = read_compacted
        self.passed: Position = (first[0], first[1] - 1)
        """The last entry that came, whether it was wanted or not."""
        self.entries_seen = 0
        self._blocks: deque[_OpenBlock] = deque()
        """Bounded by `AHEAD_BYTES_MAX`, through the permits."""
        self._held_bytes = 0
        self._permits = 0
        """That the broker has; below 0 when it sent more."""
        self._refill_below = 1
        self._seen_messages = 0
        self._seen_bytes = 0
        self._damaged: list[Hole] = []

    # --- for `BrokerEntries`

    @property
    def is_done(self) -> bool:
        """The last entry has come, or one after it."""
        return self.passed >= self._last

    @property
    def has_entries(self) -> bool:
        """Whether `take` has something to give."""
        return bool(self._blocks)

    @property
    def has_block(self) -> bool:
        """Whether `take` should be called without waiting any longer."""
        return self._held_bytes >= BLOCK_BYTES or self.is_done

    @property
    def attached(self) -> bool:
        """Whether a broker is there."""
        return self._connection is not None

    @property
    def wanted_text(self) -> str:
        """What is still to come."""
        return f"{self.passed[0]}:{self.passed[1] + 1} to {self._last[0]}:{self._last[1]}"

    async def news(self, seconds: float) -> bool:
        """Wait for a block, the end, or an error; False when there was none of them for so long."""
        self._news.clear()
        if self.has_block or self.failure is not None:
            return self.failure is None
        try:
            async with asyncio.timeout(seconds):
                await self._news.wait()
        except TimeoutError:
            return False
        return self.failure is None

    def take(self) -> list[EntryBlock]:
        """Take all entries that have come."""
        blocks = [EntryBlock(each.ledger_id, each.entry_ids, each.entries) for each in self._blocks]
        self._blocks.clear()
        self._held_bytes = 0
        self._ask_for_more()
        return blocks

    def take_damaged(self) -> list[Hole]:
        """Entries with wrong checksums, once each."""
        damaged, self._damaged = self._damaged, []
        return damaged

    # --- from the connection

    def arrived(self, command: CommandMessage, entry: bytes) -> None:
        """A stored entry."""
        message_id = command.message_id
        ledger_id, entry_id = message_id.ledgerId, message_id.entryId
        size_bytes = len(entry)
        self.entries_seen += 1
        self._seen_bytes += size_bytes
        try:
            start = broker_entry_metadata_end(entry)
            count = count_messages(entry)
        except BadMetadata:
            start, count = UNREADABLE, 1
        self._seen_messages += count
        self._permits -= count
        position = (ledger_id, entry_id)
        if self.passed < position:
            self.passed = position
            if position <= self._last:
                if start != UNREADABLE and checksum_ok(entry, start, size_bytes):
                    self._add(ledger_id, entry_id, entry)
                else:
                    self._damaged.append(self._hole(ledger_id, entry_id))
        if self.has_block:
            self._news.set()
        if self._permits < self._refill_below:
            self._ask_for_more()

    def _add(self, ledger_id: int, entry_id: int, entry: bytes) -> None:
        blocks = self._blocks
        if not blocks or blocks[-1].ledger_id != ledger_id or blocks[-1].size_bytes >= BLOCK_BYTES:
            blocks.append(_OpenBlock(ledger_id))
        block = blocks[-1]
        block.entry_ids.append(entry_id)
        block.entries.append(entry)
        block.size_bytes += len(entry)
        self._held_bytes += len(entry)

    def _hole(self, ledger_id: int, entry_id: int) -> Hole:
        return Hole(
            topic=str(self.topic),
            ledger_id=ledger_id,
            first_entry_id=entry_id,
            last_entry_id=entry_id,
            reason="the broker sends it damaged: without readable metadata, or with a checksum that is wrong",
        )

    def _ask_for_more(self) -> None:
        connection = self._connection
        room_bytes = AHEAD_BYTES_MAX - self._held_bytes
        if connection is None or room_bytes <= 0 or self.is_done:
            return
        wanted = self._permits_wanted(room_bytes)
        self._refill_below = max(1, wanted // 2)
        if self._permits < self._refill_below:
            connection.write(requests.flow(self._id, wanted - self._permits))
            self._permits = wanted

    def _permits_wanted(self, room_bytes: int) -> int:
        entries_max = AHEAD_ENTRIES_MAX
        if self.passed[0] == self._last[0]:
            # What comes behind the last entry is thrown away.
            entries_max = min(entries_max, self._last[1] - self.passed[1])
        if self.entries_seen == 0:
            return max(1, min(PERMITS_FIRST_MAX, entries_max, room_bytes // self._entry_bytes))
        by_size = room_bytes * self._seen_messages // max(self._seen_bytes, 1)
        return max(1, min(by_size, entries_max * self._seen_messages // self.entries_seen))

    # --- life

    def _subscribe_request(self) -> requests.SubscribeRequest:
        start = self._first if self.entries_seen == 0 else self.passed
        start_id = MessageId(*start) if start[0] >= 0 else EARLIEST_ID
        return requests.SubscribeRequest(
            topic=str(self.topic),
            subscription=self._subscription,
            durable=False,
            # The broker begins with this entry itself.
            start_message_id=start_id.to_wire(),
            read_compacted=self._read_compacted,
            from_earliest=start_id == EARLIEST_ID,
            create_topic=False,
        )

    def _has_attached(self, connection: BrokerConnection) -> None:
        self._permits = 0
        self._ask_for_more()

    def _has_ended(self, error: MagnetarError) -> None:
        self._news.set()

    def _wanted(self, messages: list[Message]) -> list[Message]:
        return messages


@dataclass(slots=True, eq=False)
class _OpenBlock:
    """A block that is filled."""

    ledger_id: int
    entry_ids: list[int] = field(default_factory=list)
    entries: list[bytes] = field(default_factory=list)
    size_bytes: int = 0
