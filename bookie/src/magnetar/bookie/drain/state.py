"""What a drain keeps in the metadata store, and when it must not begin. Pure.

Only the intention is kept: that a bookie is to leave. Where the drain stands follows from what is: whether the bookie
takes writes, which ledgers name it, whether its cookie is there.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

import msgspec
from magnetar.bookie.operations import BookieDrainStep
from magnetar.core.errors import PeerError
from magnetar.core.transitions import Transitions
from magnetar.metadata.store import Node
from magnetar.wire.bookkeeper.ledger_metadata import LedgerMetadata


class Phase(enum.Enum):
    """How far the intention goes."""

    DRAINING = "DRAINING"
    """The bookie's ledgers are being moved to others; the drain may be cancelled."""
    REMOVING = "REMOVING"
    """No ledger names the bookie; its cookie is being removed: no way back."""
    DONE = "DONE"


PHASE_TRANSITIONS: Final = Transitions(
    "the intention to drain a bookie",
    {
        # Again, for a start that asks for the removal of the cookie, too.
        Phase.DRAINING: {Phase.DRAINING, Phase.REMOVING, Phase.DONE},
        Phase.REMOVING: {Phase.DONE},
        Phase.DONE: (),
    },
)

_EACH_ROUND: Final = frozenset(BookieDrainStep) - {BookieDrainStep.REMOVE_COOKIE}
"""A round goes by what it finds: the bookie may take writes again, and a ledger may name it again."""

STEP_TRANSITIONS: Final = Transitions(
    "a drain",
    {
        step: {*_EACH_ROUND, BookieDrainStep.REMOVE_COOKIE} if step is BookieDrainStep.VERIFY else _EACH_ROUND
        for step in BookieDrainStep
    },
)
"""The cookie goes only after all was verified."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Intention:
    """A bookie is to leave."""

    bookie_id: str
    phase: Phase
    started_ms: int
    remove_cookie: bool = True
    """False: only its ledgers are moved; it may come back empty."""
    cookie_created_ms: int | None = None
    """`Stat.made` of the cookie that is to be removed; None if there was none. A later one is another bookie's. 0 if
    nobody noted it."""
    finished_ms: int | None = None

    def moved_to(self, phase: Phase, now_ms: int) -> Intention:
        """This intention in its next phase. `Misuse` for a phase that this one does not lead to."""
        finished_ms = now_ms if phase is Phase.DONE else None
        return dataclasses.replace(self, phase=PHASE_TRANSITIONS.step(self.phase, phase), finished_ms=finished_ms)

    def is_another(self, cookie: Node) -> bool:
        """Whether this is not the cookie that is to be removed, but one that was made after it."""
        return self.cookie_created_ms not in (cookie.stat.made, 0)

    def has_removed(self, found: Node | None) -> bool:
        """Whether the last step is made: the cookie that was to go is gone. `found`: the one that is there now."""
        return self.phase is Phase.REMOVING and (found is None or self.is_another(found))


class _Stored(msgspec.Struct, rename="camel", omit_defaults=True):
    bookie_id: str
    phase: str
    started_ms: int
    remove_cookie: bool = True
    cookie_created_ms: int | None = None
    finished_ms: int | None = None


def encode_intention(intention: Intention) -> bytes:
    """The intention as JSON, which is the value of its node."""
    return msgspec.json.encode(
        _Stored(
            bookie_id=intention.bookie_id,
            phase=intention.phase.value,
            started_ms=intention.started_ms,
            remove_cookie=intention.remove_cookie,
            cookie_created_ms=intention.cookie_created_ms,
            finished_ms=intention.finished_ms,
        )
    )


def decode_intention(value: bytes) -> Intention:
    """The node's value. Raises `PeerError`."""
    try:
        stored = msgspec.json.decode(value, type=_Stored)
        phase = Phase(stored.phase)
    except (msgspec.DecodeError, msgspec.ValidationError, ValueError) as error:
        raise PeerError(f"the intention to drain a bookie cannot be read: {error}") from None
    return Intention(
        bookie_id=stored.bookie_id,
        phase=phase,
        started_ms=stored.started_ms,
        remove_cookie=stored.remove_cookie,
        cookie_created_ms=stored.cookie_created_ms,
        finished_ms=stored.finished_ms,
    )


class Capacity:
    """Whether the other bookies can take the places of the one that is to leave; is shown all ledgers' metadata."""

    def __init__(self, bookie_id: str, writable: Collection[str]) -> None:
        self._bookie_id = bookie_id
        self._writable = frozenset(writable) - {bookie_id}
        self._ledgers = 0
        self._stuck = 0
        self._ensemble_size_max = 0

    def add(self, metadata: LedgerMetadata) -> None:
        """A ledger, whether or not it names the bookie."""
        ensembles = [bookies for _, bookies in metadata.ensembles if self._bookie_id in bookies]
        if not ensembles:
            return
        self._ledgers += 1
        if any(self._writable.issubset(bookies) for bookies in ensembles):
            self._stuck += 1
            self._ensemble_size_max = max(self._ensemble_size_max, *map(len, ensembles))

    @property
    def refusal(self) -> str | None:
        """Why the bookie must not leave now; None if it may."""
        if self._stuck == 0:
            return None
        return (
            f"{self._stuck} of the {self._ledgers} ledgers on bookie {self._bookie_id} have ensembles of up to "
            f"{self._ensemble_size_max} bookies, and without it only {len(self._writable)} bookies take writes: "
            "nobody could take its place; add bookies first"
        )
