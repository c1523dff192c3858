"""Limbo: a bookie that has lost something it acknowledged says "I don't know" instead of "there is no such entry".

A recovery counts denials: enough of them prove that an entry was never acknowledged. So a bookie that may have lost
entries must not deny any, nor take adds of a writer that it may have been told to refuse. In limbo a ledger is fenced,
and what is missing is answered EUNKNOWNLEDGERSTATE, as BookKeeper does it (design BP-46; `LedgerData.limbo` in the
index, which Apache's bookies read as well). `healing` fetches what is missing and ends it, ledger by ledger.

Every ledger that names the bookie is put into limbo, closed ones too: a writer that was fenced here, and has not
noticed, could otherwise go on behind the end of its ledger. Ledgers that do not name it yet cannot have lost anything.
"""

from __future__ import annotations

import enum
import logging
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from magnetar.bookie.gc.live_ledgers import StoredLiveLedgers
from magnetar.bookie.ledger_state import LedgerStates, decode_state
from magnetar.bookie.operations import LimboState
from magnetar.bookie.storage.directories import BookieDirectories
from magnetar.bookie.storage.ledger_storage import LedgerStorage
from magnetar.core.transitions import Transitions
from magnetar.ledger.api import LedgerNotFound
from magnetar.ledger.metadata_ops import LedgerMetadataOps
from magnetar.metadata.store import MetadataStore
from magnetar.wire.bookkeeper.ledger_metadata import LedgerMetadata

logger: Final = logging.getLogger(__name__)

LIMBO_FILE: Final = "limbo"
"""In the first ledger directory: what is left to be done, while anything is. The stage; then since when, in
milliseconds since 1970, and of how many ledgers, which the files of older versions lack."""

PROBLEMS_TOLD_MAX: Final = 20
"""Ledgers told that cannot be healed for now; how many there are is told besides."""

STATES_PER_FLUSH: Final = 5_000
"""Ledgers that are put into limbo at once; bounds the memory for their states."""


class LimboStage(enum.Enum):
    """How far a bookie is."""

    NONE = b""
    ENTERING = b"entering\n"
    """Some ledgers are not in limbo yet: nothing is served before they are."""
    HEALING = b"healing\n"
    """Ledgers that may lack entries are in limbo, and are being healed from other bookies."""


TRANSITIONS: Final = Transitions(
    "a bookie's limbo",
    {
        LimboStage.NONE: {LimboStage.ENTERING},
        # Ended at once where losses are accepted.
        LimboStage.ENTERING: {LimboStage.ENTERING, LimboStage.HEALING, LimboStage.NONE},
        # A start that finds more damage begins anew.
        LimboStage.HEALING: {LimboStage.ENTERING, LimboStage.NONE},
    },
)


@dataclass(frozen=True, slots=True)
class Unhealed:
    """Why a ledger is in limbo still, after it was tried."""

    why: str
    entries_lost: int = 0
    """Entries that every bookie which must hold them says it has not: they are lost for certain."""


class Limbo:
    """A bookie's: the stage is durable, counts are this process's."""

    def __init__(self, directories: BookieDirectories) -> None:
        """Reads the stage from the disk. OSError."""
        self._disk = directories.disk
        self._path = directories.ledgers[0] / LIMBO_FILE
        self._stage, self._since_ms, self._ledgers_total = _decode(self._disk.read_whole(self._path))
        self.ledgers = 0
        """How many ledgers are in limbo now."""
        self.entries_fetched = 0
        self.unhealed: dict[int, Unhealed] = {}
        self.damage: list[str] = []
        """What this start has found, and gone on without."""

    @property
    def stage(self) -> LimboStage:
        """How far the bookie is."""
        return self._stage

    def state(self) -> LimboState:
        """For whoever looks after the bookie."""
        problems = sorted((ledger_id, unhealed.why) for ledger_id, unhealed in self.unhealed.items())
        return LimboState(
            in_limbo=self._stage is not LimboStage.NONE,
            since_ms=self._since_ms,
            ledgers=self.ledgers,
            ledgers_total=self._ledgers_total,
            ledgers_unhealed=len(problems),
            entries_lost=sum(unhealed.entries_lost for unhealed in self.unhealed.values()),
            entries_fetched=self.entries_fetched,
            problems=tuple(problems[:PROBLEMS_TOLD_MAX]),
            damage=tuple(self.damage),
        )

    def begin(self, now_ms: int) -> None:
        """From here on every start enters limbo before it serves, durably. OSError."""
        self._write(LimboStage.ENTERING, self._since_ms or now_ms, self._ledgers_total)

    async def enter(
        self,
        states: LedgerStates,
        flush: Callable[[], Awaitable[None]],
        store: MetadataStore,
        bookie_id: str,
    ) -> int:
        """Put every ledger that names the bookie into limbo, durably; how many. `flush` makes states durable.

        `Unavailable` when the metadata store cannot list all ledgers, OSError."""
        count = 0
        async for ledger_id, _ in ledgers_of(store, bookie_id):
            state = states.get_or_create(ledger_id)
            state.fenced = state.fence_durable = state.limbo = True
            states.touch(state)
            count += 1
            if count % STATES_PER_FLUSH == 0:
                await flush()
        await flush()
        self._write(LimboStage.HEALING, self._since_ms, count)
        self.ledgers = count
        logger.warning("%d ledgers are in limbo: what is missing of them is fetched from the other bookies", count)
        return count

    def end(self) -> None:
        """No ledger is in limbo any more, durably. OSError."""
        none = TRANSITIONS.step(self._stage, LimboStage.NONE)
        self._disk.delete(self._path)
        self._disk.sync_directory(self._path.parent)
        self._stage, self._since_ms, self._ledgers_total = none, 0, 0
        self.ledgers, self.unhealed = 0, {}

    def _write(self, stage: LimboStage, since_ms: int, ledgers_total: int) -> None:
        TRANSITIONS.step(self._stage, stage)
        self._disk.replace_whole(self._path, stage.value + b"%d %d\n" % (since_ms, ledgers_total))
        self._stage, self._since_ms, self._ledgers_total = stage, since_ms, ledgers_total


def _decode(content: bytes | None) -> tuple[LimboStage, int, int]:
    """Stage, since when, of how many ledgers. What cannot be understood means that all is to be done."""
    if content is None:
        return LimboStage.NONE, 0, 0
    stage = LimboStage.HEALING if content.startswith(LimboStage.HEALING.value) else LimboStage.ENTERING
    numbers = re.fullmatch(rb"[a-z]+\n(\d{1,15}) (\d{1,15})\n", content)
    return (stage, int(numbers[1]), int(numbers[2])) if numbers else (stage, 0, 0)


async def ledgers_of(store: MetadataStore, bookie_id: str) -> AsyncIterator[tuple[int, LedgerMetadata]]:
    """All ledgers that name a bookie, ascending. `Unavailable` when the metadata store cannot list all."""
    live = StoredLiveLedgers(store, bookie_id)
    await live.catch_up()
    metadata_ops = LedgerMetadataOps(store)
    async for ledger_id in live.ledger_ids():
        try:
            metadata, _ = await metadata_ops.read(ledger_id)
        except LedgerNotFound:
            continue
        if any(bookie_id in bookies for _, bookies in metadata.ensembles):
            yield ledger_id, metadata


def ledgers_in_limbo(storage: LedgerStorage) -> list[int]:
    """Their ids, ascending, as the indexes have them. Blocks; OSError, `ValueError` for a state that is damaged."""
    found = []
    for directory in storage.directories:
        for ledger_id in directory.index.ledger_ids():
            value = directory.index.ledger(ledger_id)
            if value is not None and decode_state(ledger_id, value).limbo:
                found.append(ledger_id)
    return sorted(found)


def leave_limbo(storage: LedgerStorage, states: LedgerStates) -> int:
    """Take all ledgers out of limbo although something may be missing, which is denied from then on; how many. The
    next checkpoint makes it durable. Blocks; OSError."""
    ledger_ids = ledgers_in_limbo(storage)
    for ledger_id in ledger_ids:
        states.leave_limbo(ledger_id)
    return len(ledger_ids)
