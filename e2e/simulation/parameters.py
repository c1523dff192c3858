"""What a seed decides: the cluster's size, the ledgers' shape, the load, and which faults are possible at all."""

from __future__ import annotations

import random
from dataclasses import dataclass

from e2e.simulation.fault_kinds import AT_TAKEOVER, FAULT_KINDS


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicParameters:
    """The managed ledger of a run, and those who own it one after the other, or believe so."""

    owners: int
    """Hosts; none: there is no managed ledger in this run."""
    entries: int
    """Of all owners together, at most."""
    entries_per_ledger: int
    cursor_ledger_entries: int
    ranges_in_node: int
    long_arrays: bool
    mark_delete_rate: float
    trims: bool
    """Ledgers that are consumed are deleted."""
    pause_seconds: float
    """Mean, between two things that an owner does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameters:
    """One run."""

    seed: int
    bookies: int
    ensemble_size: int
    write_quorum: int
    ack_quorum: int
    digest_type: str
    writers: int
    entries: int
    """Of one writer, over all its ledgers."""
    ledger_entries_max: int
    batch_entries_max: int
    payload_bytes_max: int
    pause_seconds: float
    """Mean of a writer's pauses."""
    idle_share: float
    """Pauses that take `idle_seconds` instead, in which a writer has nothing under way."""
    idle_seconds: float
    readers: int
    recoverers: int
    active_seconds: float
    """How long faults are possible."""
    flush_interval_seconds: float
    tight_limits: bool
    """Bookies have caches, queues and files so small that they are full all the time."""
    read_batch_bytes_max: int
    directories: int
    """Journal and ledger directories of each bookie."""
    metadata_lag_seconds: float
    """How far behind a follower of the metadata service may be, at most."""
    autorecovery: bool
    """Each bookie runs AutoRecovery; then every entry must be back on a write quorum of bookies at the end."""
    collection: bool
    """Each bookie collects garbage."""
    deleted_share: float
    """Ledgers that their writers delete when they have closed them."""
    fault_kinds: tuple[str, ...]
    faults: int
    losses_max: int
    """Bookies that may be lost for good, or damaged: fewer than the ack quorum, or the promise does not hold."""
    topic: TopicParameters


def draw_parameters(seed: int) -> Parameters:
    """The same parameters for the same seed, everywhere."""
    rng = random.Random(f"{seed} parameters")
    write_quorum = rng.choice((1, 2, 2, 3, 3, 3))
    ack_quorum = rng.randint(1, write_quorum)
    if rng.random() < 0.5:
        ack_quorum = max(ack_quorum, write_quorum // 2 + 1)
    ensemble_size = min(5, write_quorum + rng.choice((0, 0, 1, 2)))
    bookies = min(6, max(3, ensemble_size) + rng.choice((0, 1, 1, 2)))
    # Swarm testing: a run with every fault at once explores less than many runs with some.
    kinds = rng.sample(FAULT_KINDS, rng.randint(0, 6))
    takeovers = rng.random() < 0.4
    if takeovers:
        kinds += rng.sample(AT_TAKEOVER, rng.randint(1, 2))
    collection = rng.random() < 0.5
    active_seconds = rng.uniform(2.0, 10.0)
    topic = _draw_topic(random.Random(f"{seed} topic"), active_seconds)
    writers = rng.choice((0, 1)) if topic.owners else rng.choice((1, 1, 2))
    if topic.owners and "lose_answers" not in kinds and rng.random() < 0.5:
        # Owners write metadata all the time, and what they think of a lost answer is half of what they promise.
        kinds.append("lose_answers")
    return Parameters(
        seed=seed,
        bookies=bookies,
        ensemble_size=ensemble_size,
        write_quorum=write_quorum,
        ack_quorum=ack_quorum,
        digest_type=rng.choice(("CRC32C", "CRC32C", "CRC32", "HMAC", "DUMMY")),
        writers=writers,
        entries=rng.randint(50, 400) // max(1, writers),
        ledger_entries_max=rng.choice((15, 50, 400)),
        batch_entries_max=rng.choice((1, 4, 16)),
        payload_bytes_max=rng.choice((1_000, 20_000, 60_000) if collection else (10, 100, 1_000, 1_000, 20_000)),
        pause_seconds=active_seconds / rng.randint(30, 200),
        idle_share=0.5 if takeovers else rng.choice((0.0, 0.05, 0.3)),
        idle_seconds=rng.uniform(0.3, 2.0),
        readers=rng.choice((0, 1, 1, 2)),
        recoverers=2 if takeovers else rng.choice((0, 1, 2)),
        active_seconds=active_seconds,
        flush_interval_seconds=rng.choice((0.05, 0.3, 1.0, 30.0)),
        tight_limits=rng.random() < 0.5,
        read_batch_bytes_max=rng.choice((2_000, 4_000_000)),
        directories=rng.choice((1, 1, 1, 2)),
        metadata_lag_seconds=rng.choice((0.0, 0.02, 0.5, 1.0)),
        autorecovery=rng.random() < 0.5,
        collection=collection,
        deleted_share=rng.choice((0.1, 0.6)) if collection else 0.0,
        fault_kinds=tuple(kinds),
        faults=rng.choice((rng.randint(1, 6), rng.randint(6, 25))) if kinds else 0,
        losses_max=ack_quorum - 1,
        topic=topic,
    )


def _draw_topic(rng: random.Random, active_seconds: float) -> TopicParameters:
    return TopicParameters(
        owners=rng.choice((0, 0, 0, 2, 3)),
        entries=rng.randint(30, 200),
        entries_per_ledger=rng.choice((4, 12, 100)),
        cursor_ledger_entries=rng.choice((2, 8, 1_000)),
        ranges_in_node=rng.choice((0, 2, 1_000)),
        long_arrays=rng.random() < 0.5,
        mark_delete_rate=rng.choice((1.0, 20.0)),
        trims=rng.random() < 0.4,
        pause_seconds=active_seconds / rng.randint(40, 150),
    )
