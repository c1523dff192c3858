"""What lies before and behind a slice: chunks that begin earlier, transactions that end later.

It is seldom needed, so a slice does not carry the topic's other ledgers: they are asked for when it is.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from magnetar.spark.entries import EntryBlock, EntrySource, Hole
from magnetar.spark.slices import LedgerRange
from magnetar.spark.topics import TopicLedger, TopicState

NO_ENTRY: Final = -1

STEP_BYTES: Final = 4 * 1024 * 1024
"""What one step of a walk asks for: one or two answers of a bookie, and most of what is sought is nearer."""

STEP_ENTRIES_MAX: Final = 64
"""However small the last ones were: 64 of the largest that brokers take by default are 320 MB, which a task may bear
once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """How far an assembler goes. What is beyond becomes a bad record whose reason names the bound."""

    message_bytes_max: int = 128 * 1024 * 1024
    """A chunked message, as it is sent: 25 of the largest entries that brokers take by default. It, its unpacked form
    and its Arrow column have to fit a Spark task's memory together."""
    unfinished_bytes_max: int = 256 * 1024 * 1024
    """Bytes of all chunked messages that are not complete: two of the largest. Those of producers that died stay until
    then."""
    uuids_max: int = 20_000
    """Chunked messages that are remembered, so that chunks which were sent twice are not taken for lonely ones. A
    producer sends again what is in its queue of 1000."""
    held_bytes_max: int = 64 * 1024 * 1024
    """Bytes of entries that wait for the end of a transaction. More, and the marker is looked for ahead of the
    reading."""
    held_entries_max: int = 50_000
    """Some 50 MB of small objects."""
    walk_bytes_max: int = 256 * 1024 * 1024
    """Each way, for a whole slice: seconds of what a topic takes in, while transactions and producers' resends take
    seconds, too; and twice what the slice itself has by default."""
    walk_entries_max: int = 200_000
    """Each way, for a whole slice: some ten seconds of reading."""


DEFAULT_BOUNDS: Final = Bounds()


LEDGERS_UNKNOWN: Final = (
    "brokers tell the topic's ledgers by the admin API alone: set admin.url, with a role that may "
    "see internal stats, or read from bookies (readMode)"
)


class Neighbours(Protocol):
    """The rest of a slice's topic, in steps. What cannot be read is left out; `ClusterUnreachable` as when reading."""

    async def read(self, ledger_id: int, first_entry_id: int, last_entry_id: int) -> EntryBlock:
        """The entries of this range that there are, ascending."""
        ...

    async def last_entry(self, ledger_id: int) -> int:
        """The last confirmed entry of one of the topic's ledgers; -1 when it has none or is not there any more."""
        ...

    async def previous(self, ledger_id: int) -> int | None:
        """The ledger before this one; None: the topic begins here, or what was before has been trimmed."""
        ...

    async def following(self, ledger_id: int) -> int | None:
        """The ledger behind this one; None: it is the topic's last."""
        ...

    async def unknown(self) -> str:
        """Why `previous` and `following` may have left out ledgers that there are; empty: they have not."""
        ...


class TopicNeighbours:
    """Neighbours by a topic's catalog and an entry source of their own: one source serves one read at a time.

    Neither is touched before the first question. The state is that of the first question: it is later than the
    planning, and so has all that decides what was planned."""

    def __init__(
        self,
        topic: str,
        states: Callable[[Sequence[str]], Awaitable[dict[str, TopicState]]],
        make_source: Callable[[], EntrySource],
    ) -> None:
        self._topic = topic
        self._states = states
        self._make_source = make_source
        self._source: EntrySource | None = None
        self._ledgers: dict[int, TopicLedger] | None = None
        self._others_unknown = False
        """Brokers may tell the end alone; what ledgers hold they give out all the same."""
        self.holes: list[Hole] = []
        """What could not be read; whoever reads the slice these are in reports them."""

    async def read(self, ledger_id: int, first_entry_id: int, last_entry_id: int) -> EntryBlock:
        """The entries of this range that there are, ascending; what cannot be read is noted in `holes`. Raises
        `ClusterUnreachable`."""
        ledger = (await self._known()).get(ledger_id)
        entry_ids: list[int] = []
        entries: list[bytes] = []
        if ledger is None and self._others_unknown:
            ledger = TopicLedger(ledger_id=ledger_id, entries=0, size_bytes=0)
        if ledger is None or ledger.missing or last_entry_id < first_entry_id:
            return EntryBlock(ledger_id, entry_ids, entries)
        if self._source is None:
            self._source = self._make_source()
        count = last_entry_id - first_entry_id + 1
        wanted = LedgerRange(
            ledger_id=ledger_id,
            first_entry_id=first_entry_id,
            last_entry_id=last_entry_id,
            size_bytes=ledger.size_bytes * count // max(1, ledger.entries),
            metadata=ledger.metadata,
        )
        async for block in self._source.blocks((wanted,), self.holes.append):
            entry_ids.extend(block.entry_ids)
            entries.extend(block.entries)
        return EntryBlock(ledger_id, entry_ids, entries)

    async def last_entry(self, ledger_id: int) -> int:
        """The last confirmed entry of one of the topic's ledgers; -1 when it has none or is not there any more."""
        ledger = (await self._known()).get(ledger_id)
        return NO_ENTRY if ledger is None or ledger.missing else ledger.entries - 1

    async def previous(self, ledger_id: int) -> int | None:
        """The ledger before this one; None: the topic begins here, or what was before has been trimmed."""
        return max((each for each in await self._known() if each < ledger_id), default=None)

    async def following(self, ledger_id: int) -> int | None:
        """The ledger behind this one; None: it is the topic's last."""
        return min((each for each in await self._known() if each > ledger_id), default=None)

    async def unknown(self) -> str:
        """Why `previous` and `following` may have left out ledgers that there are; empty: they have not."""
        await self._known()
        return LEDGERS_UNKNOWN if self._others_unknown else ""

    async def close(self) -> None:
        """Let go of the source. Twice is no error, and the next read makes another one."""
        source, self._source = self._source, None
        if source is not None:
            await source.close()

    async def _known(self) -> dict[int, TopicLedger]:
        if self._ledgers is None:
            state = (await self._states((self._topic,))).get(self._topic)
            self._ledgers = {} if state is None else {each.ledger_id: each for each in state.ledgers}
            self._others_unknown = state is not None and not state.ledgers_known
        return self._ledgers


class EntryWalk:
    """Goes through a topic's entries from one place on, in one direction, step by step and within bounds."""

    def __init__(self, neighbours: Neighbours, bounds: Bounds, place: tuple[int, int], *, forward: bool) -> None:
        self._neighbours = neighbours
        self._bounds = bounds
        self._ledger_id, self._entry_id = place
        self._forward = forward
        self._entries_seen = 0
        self._bytes_seen = 0
        self._step_entries = 4
        self.ended = ""
        """Why there are no more steps; empty while there are."""

    async def step(self) -> EntryBlock | None:
        """The next entries, ascending within their step; None at the end, and then `ended` says why."""
        while not self.ended:
            if self._entries_seen >= self._bounds.walk_entries_max or self._bytes_seen >= self._bounds.walk_bytes_max:
                where = "behind" if self._forward else "before"
                self.ended = (
                    f"{self._entries_seen} entries, {self._bytes_seen >> 20} MiB, {where} what is read were looked at"
                )
                break
            first, last = await self._range()
            if first > last:
                await self._next_ledger()
                continue
            block = await self._neighbours.read(self._ledger_id, first, last)
            self._entry_id = last + 1 if self._forward else first - 1
            self._account(last - first + 1, block)
            return block
        return None

    def skip_to(self, place: tuple[int, int]) -> None:
        """Leave out what is before `place`: it was read otherwise. For walks forward."""
        if place > (self._ledger_id, self._entry_id):
            self._ledger_id, self._entry_id = place

    async def _range(self) -> tuple[int, int]:
        count = min(self._step_entries, self._bounds.walk_entries_max - self._entries_seen)
        if not self._forward:
            return max(0, self._entry_id - count + 1), self._entry_id
        last = await self._neighbours.last_entry(self._ledger_id)
        return self._entry_id, min(last, self._entry_id + count - 1)

    async def _next_ledger(self) -> None:
        if self._forward:
            following = await self._neighbours.following(self._ledger_id)
            if following is None:
                self.ended = await self._unknown("behind") or "the topic ends before it"
            else:
                self._ledger_id, self._entry_id = following, 0
        else:
            previous = await self._neighbours.previous(self._ledger_id)
            if previous is None:
                self.ended = (
                    await self._unknown("before") or "the topic begins there: what was before is gone by retention"
                )
            else:
                self._ledger_id, self._entry_id = previous, await self._neighbours.last_entry(previous)

    async def _unknown(self, where: str) -> str:
        why = await self._neighbours.unknown()
        return f"it is not known which ledgers are {where} ledger {self._ledger_id}: {why}" if why else ""

    def _account(self, entries: int, block: EntryBlock) -> None:
        size_bytes = sum(map(len, block.entries))
        self._entries_seen += entries
        self._bytes_seen += size_bytes
        largest = max(map(len, block.entries), default=0)
        self._step_entries = max(1, min(STEP_ENTRIES_MAX, 4 * self._step_entries, STEP_BYTES // max(1, largest)))
