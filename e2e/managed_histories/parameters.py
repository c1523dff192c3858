"""What a seed decides: which storage, which policies, and which faults are possible at all."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Final

from magnetar.managed.settings import ManagedLedgerSettings
from magnetar.tiered.policy import NO_OFFLOAD

from e2e.managed_histories.tiered import TieredParameters, draw_tiered

PAUSES_SECONDS: Final = (0.0, 0.0, 0.0, 0.003, 0.02, 0.1, 0.4, 2.0)
"""Between two steps; nothing happens in the loop but by these and by what waits."""

SUBSCRIPTIONS: Final = ("a", "b", "c")
PRODUCERS: Final = ("p", "q")


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameters:
    """One history."""

    seed: int
    bookkeeper: bool
    """The ledgers are those of the real client over bookies in memory; else they are in memory themselves."""
    steps: int
    unsure_share: float
    """Requests to the metadata store without an answer, while it is in trouble."""
    quiet_share: float
    """The same, while it is not."""
    delay_seconds: float
    """How long a request to the metadata store takes at most, one way."""
    append_seconds: float
    """How long an append takes, where ledgers are in memory."""
    late_seconds: float
    trouble_share: float
    """Steps that begin or end a trouble of the metadata store, of bookies, or of an owner."""
    zombie_share: float
    """Takeovers that leave the former owner alive."""
    deduplication: bool
    snapshot_entries: int
    trim: bool
    entries_per_ledger: int
    entries_per_cursor_ledger: int
    long_arrays: bool
    delete_at_end: bool
    tiered: TieredParameters | None

    def ledger_settings(self) -> ManagedLedgerSettings:
        """Of every owner."""
        size = 3 if self.bookkeeper else 1
        return ManagedLedgerSettings(
            ensemble_size=size,
            write_quorum=size,
            ack_quorum=min(size, 2),
            max_entries_per_ledger=self.entries_per_ledger,
            minimum_rollover_ms=0,
            inactive_rollover_ms=10_000,
            retention_time_ms=0 if self.trim else -1,
            retention_size_bytes=0 if self.trim else -1,
            mark_delete_rate=20.0,
            cursor_ledger_entries_max=self.entries_per_cursor_ledger,
            cursor_ledger_age_ms_max=60_000,
            unacked_ranges_in_metadata_max=3,
            persist_acks_as_long_array=self.long_arrays,
            offload=NO_OFFLOAD if self.tiered is None else self.tiered.policy(),
        )


def draw_parameters(seed: int) -> Parameters:
    """The same parameters for the same seed, everywhere."""
    rng = random.Random(f"{seed} parameters")
    return Parameters(
        seed=seed,
        bookkeeper=rng.random() < 0.25,
        steps=rng.randint(40, 100),
        unsure_share=rng.choice((0.0, 0.1, 0.3, 0.5)),
        quiet_share=rng.choice((0.0, 0.0, 0.02, 0.05)),
        delay_seconds=rng.choice((0.0, 0.002, 0.05)),
        append_seconds=rng.choice((0.0, 0.02, 0.4)),
        late_seconds=rng.choice((0.01, 0.5, 3.0)),
        trouble_share=rng.choice((0.05, 0.12, 0.2)),
        zombie_share=rng.choice((0.0, 0.3, 0.6)),
        deduplication=rng.random() < 0.5,
        snapshot_entries=rng.choice((1, 2, 4, 8)),
        trim=rng.random() < 0.3,
        entries_per_ledger=rng.choice((4, 8, 1000)),
        entries_per_cursor_ledger=rng.choice((1, 2, 3, 1000)),
        long_arrays=rng.random() < 0.5,
        delete_at_end=rng.random() < 0.15,
        # Drawn for itself, so that histories without it stay as they are.
        tiered=draw_tiered(seed),
    )
