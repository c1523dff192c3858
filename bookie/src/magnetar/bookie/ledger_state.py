"""What a bookie knows about one ledger beside its entries, and the ledgers it knows that about."""

from __future__ import annotations

import logging
import struct
from collections import OrderedDict
from collections.abc import Callable
from typing import Final

from magnetar.core.ids import NO_ENTRY
from magnetar.wire.bookkeeper.codes import BookieCode, BookieError
from magnetar.wire.bookkeeper.generated.db_ledger_storage_pb2 import LedgerData
from magnetar.wire.errors import BadProtobuf
from magnetar.wire.protobuf import parse

logger: Final = logging.getLogger(__name__)

LEDGER_STATES_MAX: Final = 20_000
"""Ledgers whose state stays in memory, some 400 bytes each; others are read again from the index."""

LOOKS_AT_ONCE: Final = 8
"""At the oldest states, when one more is kept than there should be: those that must stay are passed over, and however
many there are of them, a new ledger costs the same."""

UNSAVED_MAX: Final = 5_000
"""States that the index lacks before it should get them: making these ready takes some milliseconds of one turn of the
event loop."""

_EXPLICIT_LAC: Final = struct.Struct(">qq")


class BookieLedgerState:
    """What a bookie knows of one ledger: its key, its fence, its last add confirmed."""

    __slots__ = (
        "explicit_lac",
        "fence_durable",
        "fenced",
        "key_logged",
        "lac_waiters",
        "last_add_confirmed",
        "ledger_id",
        "limbo",
        "master_key",
    )

    def __init__(self, ledger_id: int) -> None:
        self.ledger_id = ledger_id
        self.master_key = b""
        """Empty until the first add or fencing read, which decides who owns the ledger."""
        self.fenced = False
        self.fence_durable = False
        self.limbo = False
        """Acknowledged entries may be missing here: none may be denied."""
        self.explicit_lac = b""
        """The packet of the explicit LAC write with the greatest LAC."""
        self.last_add_confirmed = NO_ENTRY
        """The greatest that an entry or an explicit write of this process's life has told."""
        self.key_logged = False
        """Whether the journal durably has a master key record of this process."""
        self.lac_waiters: list[Callable[[int], None]] = []
        """Called once, with the new last add confirmed, when it grows."""

    def take_explicit_lac(self, packet: bytes) -> bool:
        """Keep the packet of an explicit LAC write unless a greater LAC is known; whether it was kept. Writes may
        overtake each other, and the journal has them in the order in which they came."""
        if explicit_lac(packet) < explicit_lac(self.explicit_lac):
            return False
        self.explicit_lac = packet
        return True

    def encode(self) -> bytes:
        """The value in DbLedgerStorage's `ledgers` index."""
        data = LedgerData(exists=True, fenced=self.fenced, masterKey=self.master_key)
        if self.explicit_lac:
            data.explicitLac = self.explicit_lac
        if self.limbo:
            data.limbo = True
        return data.SerializeToString()


def explicit_lac(packet: bytes) -> int:
    """The LAC in the packet of an explicit LAC write; `NO_ENTRY` when there is none or it is cut short."""
    if len(packet) < _EXPLICIT_LAC.size:
        return NO_ENTRY
    lac: int = _EXPLICIT_LAC.unpack_from(packet)[1]
    return lac


def decode_state(ledger_id: int, value: bytes) -> BookieLedgerState:
    """The state that `encode` wrote. `ValueError` when it is damaged."""
    try:
        data = parse(LedgerData, value)
    except BadProtobuf as error:
        raise ValueError(f"the index's state of ledger {ledger_id} is damaged: {error}") from None
    state = BookieLedgerState(ledger_id)
    state.master_key = data.masterKey
    state.fenced = state.fence_durable = data.fenced
    state.explicit_lac = data.explicitLac
    state.limbo = data.limbo
    return state


class LedgerStates:
    """The states in memory; the rest is in the index. On the event loop only."""

    def __init__(self, load: Callable[[int], bytes | None], was_deleted: Callable[[int], bool]) -> None:
        """`load` reads a ledger's value from the index, which also knows which ones were deleted last."""
        self._load = load
        self._was_deleted = was_deleted
        self._states: OrderedDict[int, BookieLedgerState] = OrderedDict()
        self._dirty: set[int] = set()
        self._flushing: set[int] = set()
        self.left_limbo = 0
        """How often a ledger has left limbo: what was missing before that may be here since."""

    def get(self, ledger_id: int) -> BookieLedgerState | None:
        """The state of a ledger that this bookie has seen, or None."""
        state = self._states.get(ledger_id)
        if state is not None:
            return state
        value = self._load(ledger_id)
        if value is None:
            return None
        return self._keep(decode_state(ledger_id, value))

    def known(self, ledger_id: int) -> BookieLedgerState | None:
        """The state if it is in memory; the index is not asked."""
        return self._states.get(ledger_id)

    def get_or_create(self, ledger_id: int) -> BookieLedgerState:
        """The state of a ledger; a new one is not dirty until something is put into it.

        One that was deleted is fenced: its writer may not know yet that somebody has taken it over and deleted it. As a
        new ledger it would take that writer's entries, and nobody would ever read them."""
        state = self._states.get(ledger_id)
        if state is not None:
            return state
        found = self.get(ledger_id)
        if found is None:
            found = self._keep(BookieLedgerState(ledger_id))
            found.fenced = self._was_deleted(ledger_id)
        return found

    def touch(self, state: BookieLedgerState) -> None:
        """Something that the index must know has changed."""
        assert self._states.get(state.ledger_id) is state
        self._dirty.add(state.ledger_id)

    def leave_limbo(self, ledger_id: int) -> None:
        """Nothing of the ledger is missing here any more, or nobody wants it."""
        state = self.get_or_create(ledger_id)
        state.limbo = False
        self.left_limbo += 1
        self.touch(state)

    def anything_dirty(self) -> bool:
        """Whether the index lacks some state."""
        return bool(self._dirty)

    def crowded(self) -> bool:
        """Whether a checkpoint should store states before more come."""
        return len(self._dirty) >= UNSAVED_MAX

    def take_dirty(self) -> list[tuple[int, bytes]]:
        """(ledger id, value) of every state that the index has not got; `flushed` says how it went."""
        assert not self._flushing
        self._flushing = self._dirty
        self._dirty = set()
        return [(ledger_id, self._states[ledger_id].encode()) for ledger_id in sorted(self._flushing)]

    def flushed(self, *, stored: bool) -> None:
        """The states of the last `take_dirty` are in the index, or are not."""
        if not stored:
            self._dirty |= self._flushing & self._states.keys()
        self._flushing = set()

    def forget(self, ledger_id: int) -> None:
        """The ledger was deleted from the index, which remembers that: know nothing of it any more."""
        self._states.pop(ledger_id, None)
        self._dirty.discard(ledger_id)

    def _keep(self, state: BookieLedgerState) -> BookieLedgerState:
        self._states[state.ledger_id] = state
        for _ in range(LOOKS_AT_ONCE):
            if len(self._states) <= LEDGER_STATES_MAX:
                break
            self._evict_oldest()
        return state

    def _evict_oldest(self) -> None:
        # Those that the index cannot give back, or that somebody waits for, stay, and count as the newest.
        ledger_id, old = next(iter(self._states.items()))
        unsaved = ledger_id in self._dirty or ledger_id in self._flushing
        if unsaved or old.lac_waiters or (old.fenced and not old.fence_durable):
            self._states.move_to_end(ledger_id)
        else:
            del self._states[ledger_id]


def unreadable_state(ledger_id: int, error: Exception) -> BookieError:
    """The answer when the index cannot give a ledger's state."""
    logger.error("the state of ledger %d cannot be read: %s", ledger_id, error)
    return BookieError(BookieCode.EIO, f"ledger {ledger_id}: {error}")
