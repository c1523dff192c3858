"""What the owner of a topic has to be told so that it has a subscription acknowledged as this broker has.

Everything but a step back is an acknowledgement, and may be told twice. What was told and is not acknowledged any more
(a seek back, or forward with what was acknowledged behind it) only a seek at the owner takes back: it leaves a mark and
nothing beyond. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

from magnetar.core.ids import Position
from magnetar.managed.ack_state import AckState
from magnetar.managed.entry_bitmap import EntryBitmap, words_of

IDS_MAX: Final = 1_000
"""Message ids of one ACK, as many as Java's client sends at once: 10 to 20 KB, which a broker takes in one turn."""

WORDS_MAX: Final = 4_000
"""Words of the ack sets in one ACK, some 40 KB at most: a batch may have a hundred of them."""


class Stretch(NamedTuple):
    """Entries of one ledger, both ends included."""

    ledger_id: int
    first: int
    last: int


@dataclass(slots=True)
class Tell:
    """One acknowledgement to the owner: everything up to `mark`, or single entries and parts of batches."""

    mark: Position | None
    whole: list[Stretch]
    """Together at most `IDS_MAX` entries, with the parts."""
    parts: list[tuple[Position, int]]
    """Bit 1 = still unacknowledged."""

    def positions(self) -> list[Position]:
        """The single entries."""
        return [
            (stretch.ledger_id, entry) for stretch in self.whole for entry in range(stretch.first, stretch.last + 1)
        ]

    def words(self) -> list[tuple[Position, list[int]]]:
        """The parts, as signed words."""
        return [(position, words_of(left)) for position, left in self.parts]


class Kept:
    """What is acknowledged of a subscription: as `AckState`, but a copy that only grows until it is replaced. It takes
    about as much memory as the bits of the state that it is a copy of."""

    __slots__ = ("beyond", "mark", "partial")

    def __init__(
        self, mark: Position, beyond: dict[int, int] | None = None, partial: dict[Position, int] | None = None
    ) -> None:
        self.mark: Position = mark
        self.beyond: dict[int, int] = beyond if beyond is not None else {}
        """Acknowledged entries beyond the mark by ledger: bit n = entry n. None of them is 0."""
        self.partial: dict[Position, int] = partial if partial is not None else {}
        """What is left of batches beyond the mark that are acknowledged in part."""

    @staticmethod
    def of(acks: AckState) -> Kept:
        """A copy of what a cursor has acknowledged now."""
        mark_ledger, mark_entry = mark = acks.mark_delete
        beyond: dict[int, int] = {}
        if acks.individual_count:
            for ledger_id, bitmap in (acks.beyond or {}).items():
                if ledger_id < mark_ledger:
                    continue
                bits = int.from_bytes(bitmap.bits, "little") << bitmap.base
                if ledger_id == mark_ledger:
                    bits = _above(bits, mark_entry)
                if bits:
                    beyond[ledger_id] = bits
        partial = {each: left for each, left in (acks.partial or {}).items() if each > mark and left}
        return Kept(mark, beyond, partial)

    def has(self, position: Position) -> bool:
        """Whether an entry is acknowledged as a whole."""
        return position <= self.mark or bool(self.beyond.get(position[0], 0) >> position[1] & 1)

    def add(self, told: Tell) -> None:
        """The owner has been told."""
        for ledger_id, first, last in told.whole:
            bits = ((1 << (last - first + 1)) - 1) << first
            self.beyond[ledger_id] = self.beyond.get(ledger_id, 0) | bits
        if told.whole and self.partial:
            self.partial = {each: left for each, left in self.partial.items() if not self.has(each)}
        for position, left in told.parts:
            self.partial[position] = self.partial.get(position, -1) & left
        if told.mark is not None and told.mark > self.mark:
            self._move_mark(told.mark)

    def _move_mark(self, mark: Position) -> None:
        self.mark = mark
        for ledger_id in [each for each in self.beyond if each <= mark[0]]:
            bits = self.beyond.pop(ledger_id)
            if ledger_id == mark[0] and (left := _above(bits, mark[1])):
                self.beyond[ledger_id] = left
        for position in [each for each in self.partial if each <= mark]:
            del self.partial[position]


def takes_back(told: Kept, now: Kept) -> bool:
    """Whether something that the owner was told is not acknowledged now: it takes a seek."""
    if now.mark < told.mark:
        return True
    mark_ledger, mark_entry = now.mark
    for ledger_id, bits in told.beyond.items():
        if ledger_id < mark_ledger:
            continue
        if ledger_id == mark_ledger:
            bits = _above(bits, mark_entry)
        if bits & ~now.beyond.get(ledger_id, 0):
            return True
    for position, left in told.partial.items():
        if not now.has(position) and (position not in now.partial or now.partial[position] & ~left):
            return True
    return False


def start_after(mark: Position) -> Position:
    """Where a seek goes that leaves everything up to a mark acknowledged. Brokers move it on to the next entry that
    there is."""
    return (mark[0], mark[1] + 1)


def tell_next(told: Kept, now: Kept, count_max: int) -> list[Tell]:
    """The next acknowledgements, so many at most; none when the owner has all. Nothing may have been taken back."""
    found: list[Tell] = []
    if now.mark > told.mark:
        found.append(Tell(now.mark, [], []))
    whole = _missing(told, now)
    stretch = next(whole, None)
    while stretch is not None and len(found) < count_max:
        tell = Tell(None, [], [])
        room = IDS_MAX
        while stretch is not None and room:
            ledger_id, first, last = stretch
            taken = min(room, last - first + 1)
            tell.whole.append(Stretch(ledger_id, first, first + taken - 1))
            room -= taken
            stretch = Stretch(ledger_id, first + taken, last) if first + taken <= last else next(whole, None)
        found.append(tell)
    if stretch is None:
        _add_parts(found, told, now, count_max)
    return found


def _missing(told: Kept, now: Kept) -> Iterator[Stretch]:
    """What is acknowledged beyond the mark and not told, ascending."""
    for ledger_id in sorted(now.beyond):
        missing = now.beyond[ledger_id] & ~told.beyond.get(ledger_id, 0)
        if missing:
            first = (missing & -missing).bit_length() - 1
            bitmap = EntryBitmap(first)
            bitmap.add_all(missing)
            above = -1
            while runs := bitmap.ranges(above, IDS_MAX):
                for low, high in runs:
                    yield Stretch(ledger_id, low, high)
                above = runs[-1][1]


def _add_parts(found: list[Tell], told: Kept, now: Kept, count_max: int) -> None:
    """Parts of batches that are not told: behind all else, as the owner may take no notice of them."""
    tell: Tell | None = None
    words = 0
    for position in sorted(now.partial):
        left = now.partial[position]
        if now.has(position) or told.partial.get(position) == left:
            continue
        size = (left.bit_length() + 63) >> 6
        if tell is None or len(tell.parts) >= IDS_MAX or words + size > WORDS_MAX:
            if len(found) >= count_max:
                return
            tell = Tell(None, [], [])
            words = 0
            found.append(tell)
        tell.parts.append((position, left))
        words += size


def _above(bits: int, entry_id: int) -> int:
    """The bits after an entry."""
    return bits >> (entry_id + 1) << (entry_id + 1)
