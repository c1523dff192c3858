"""What a seed decides about transactions: who uses them, how, and how brokers keep them."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Final

from magnetar.broker.settings.transactions import TransactionSettings
from magnetar.wire.pulsar.enums import SubscriptionType

from e2e.broker_simulation.drawn.late import LateParameters, draw_late

SUBSCRIPTION: Final = "transfer"
"""What transactors take from, on every topic."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionParameters:
    """Of one run."""

    coordinators: int
    transactors: int
    transactions: int
    """Of each transactor; afterwards it commits what is left, without tricks."""
    kind: SubscriptionType
    permits: int
    inputs_max: int
    """Entries that a transaction acknowledges."""
    outputs_max: int
    """Topics that a transaction publishes to."""
    messages_max: int
    """Of an entry that it publishes."""
    timeout_ms: int
    abort_share: float
    forgotten_share: float
    """Transactions that are never ended."""
    partial_share: float
    """Batches that are acknowledged in parts."""
    at_once_share: float
    """Transactions whose steps are under way at the same time."""
    pause_seconds: float
    settings: TransactionSettings
    late: LateParameters | None
    """Who sends frames of transactions that have ended."""


def draw_transactions(seed: int) -> TransactionParameters | None:
    """None in two of three runs."""
    rng = random.Random(f"{seed} transactions")
    if rng.random() >= 1 / 3:
        return None
    return TransactionParameters(
        coordinators=rng.choice((1, 1, 2, 4)),
        transactors=rng.choice((1, 2, 3)),
        transactions=rng.choice((4, 10, 20)),
        kind=rng.choice((SubscriptionType.SHARED, SubscriptionType.SHARED, SubscriptionType.FAILOVER)),
        permits=rng.choice((2, 10, 50)),
        inputs_max=rng.choice((1, 3, 6)),
        outputs_max=rng.choice((1, 2)),
        messages_max=rng.choice((1, 3)),
        timeout_ms=rng.choice((200, 1_000, 4_000)),
        abort_share=rng.choice((0.0, 0.2, 0.6)),
        forgotten_share=rng.choice((0.0, 0.1, 0.3)),
        partial_share=rng.choice((0.0, 0.5)),
        at_once_share=rng.choice((0.0, 0.5, 1.0)),
        pause_seconds=rng.choice((0.0, 0.02, 0.2)),
        settings=TransactionSettings(
            enabled=True,
            request_timeout_ms=rng.choice((500, 3_000)),
            snapshot_changes_max=rng.choice((1, 4, 1_000)),
            snapshot_interval_ms=rng.choice((20, 300, 5_000)),
            segmented_snapshots=rng.random() < 0.4,
            # A few ids in each segment, as Apache's brokers reckon it.
            segment_bytes=rng.choice((60, 262_144)),
            log_batched=rng.random() < 0.4,
            log_batch_records_max=rng.choice((2, 512)),
            log_batch_delay_ms=rng.choice((1, 20)),
            pending_ack_index_lag_min=rng.choice((1, 4, 500)),
            pending_ack_batched=rng.random() < 0.4,
            pending_ack_batch_records_max=rng.choice((2, 512)),
            pending_ack_batch_delay_ms=rng.choice((1, 20)),
        ),
        # Drawn for itself, so that runs without late frames stay as they are.
        late=draw_late(seed),
    )
