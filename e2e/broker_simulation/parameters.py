"""What a seed decides: the cluster's size, the topics, who publishes and consumes, and which faults are possible."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Final, NamedTuple

from magnetar.core.topic_name import TopicName
from magnetar.wire.pulsar.enums import SubscriptionType

from e2e.broker_simulation.drawn.compaction import CompactionParameters, draw_compaction
from e2e.broker_simulation.drawn.late import MOVES
from e2e.broker_simulation.drawn.read_only import ReadOnlyParameters, draw_read_only
from e2e.broker_simulation.drawn.regions import RegionsParameters, draw_regions
from e2e.broker_simulation.drawn.transactions import TransactionParameters, draw_transactions
from e2e.simulation import parameters as storage_parameters

STORAGE_FAULTS: Final = (
    "kill_bookie",
    "lose_answers",
    "metadata_away",
    "one_way",
    "partition",
    "pause_bookie",
    "power_loss",
    "resets",
    "slow_disk",
    "slow_links",
    "stop_bookie",
)
"""Of `e2e.simulation.faults`: those that any cluster survives."""

BROKER_FAULTS: Final = (
    "cut_off_client",
    "expire_broker_session",
    "kill_broker",
    "pause_broker",
    "pause_client",
    "broker_power_loss",
    "restart_broker",
    "restart_client",
    "split_bundle",
    "split_broker_from_metadata",
    "transfer_bundle",
    "unload_bundle",
    "usurp_broker",
)


PROXY_FAULTS: Final = ("cut_off_proxy", "kill_proxy", "pause_proxy", "restart_proxy")


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscriptionParameters:
    """One subscription of one topic, and those who share it."""

    name: str
    topic: int
    kind: SubscriptionType
    consumers: int
    permits: int
    """What a consumer takes ahead, in messages."""
    cumulative_share: float
    """Acknowledgements that are cumulative, where that is allowed."""
    partial_share: float
    """Batches that are acknowledged in parts."""
    receipt_share: float
    negative_share: float
    """Messages that are asked for again instead of acknowledged."""
    held_share: float
    """Messages that are held for long before they are acknowledged."""
    seek_share: float
    """Messages after which a consumer seeks."""
    restart_share: float
    """Messages after which a consumer closes and subscribes again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameters:
    """One run."""

    seed: int
    storage: storage_parameters.Parameters
    brokers: int
    proxies: int
    proxied_share: float
    """Clients that go through a proxy, where there is one."""
    topics: int
    bundles: int
    producers: int
    """Of each topic."""
    entries: int
    """Of each producer."""
    keys: int
    """0: messages have none."""
    batch_messages_max: int
    pending_max: int
    readers: int
    subscriptions: tuple[SubscriptionParameters, ...]
    deduplication: bool
    snapshot_entries: int
    entries_per_ledger: int
    cursor_ledger_entries: int
    ranges_in_node: int
    long_arrays: bool
    mark_delete_rate: float
    read_entries_max: int
    round_robin_messages_max: int
    unacked_messages_max: int
    failover_delay_ms: int
    transactions: TransactionParameters | None
    compaction: CompactionParameters | None
    read_only: ReadOnlyParameters | None
    regions: RegionsParameters | None
    """Two clusters, of which this is one."""
    region: str = ""
    """Which of two clusters this is; empty: there is one only."""
    pause_seconds: float
    """Mean between two messages of a producer."""

    @property
    def trims(self) -> bool:
        """Whether topics keep no more than they must."""
        return self.compaction is not None and self.compaction.trims

    @property
    def active_seconds(self) -> float:
        """How long faults are possible."""
        return self.storage.active_seconds


def topic_name(number: int) -> str:
    """The topics are numbered."""
    return str(TopicName.parse(f"persistent://public/default/topic{number}"))


def draw_parameters(seed: int) -> Parameters:
    """The same parameters for the same seed, everywhere."""
    rng = random.Random(f"{seed} brokers")
    # Drawn for themselves, so that runs without transactions stay as they are.
    transactions = draw_transactions(seed)
    topics = rng.choice((1, 1, 2))
    if transactions is not None:
        topics = rng.choice((1, 2, 2))
    active_seconds = rng.uniform(2.0, 8.0)
    producers = rng.choice((1, 1, 2))
    entries = rng.randint(15, 60) // producers
    if transactions is not None:
        # Each entry is taken once more, and what is made of it is delivered, too.
        entries = rng.randint(8, 24) // producers
    keys = rng.choice((0, 2, 4))
    batch_messages_max = rng.choice((1, 3, 6))
    features = _draw_features(seed, transactions)
    calm = features.read_only is not None and features.read_only.calm
    return Parameters(
        seed=seed,
        storage=_draw_storage(seed, rng, active_seconds, features.faults, calm=calm),
        brokers=rng.choice((1, 2, 3)),
        proxies=features.proxies,
        proxied_share=features.proxied_share,
        topics=topics,
        bundles=rng.choice((1, 2, 4)),
        producers=producers,
        entries=entries,
        keys=keys,
        batch_messages_max=batch_messages_max,
        pending_max=rng.choice((1, 3, 10)),
        readers=rng.choice((0, 0, 1)),
        subscriptions=tuple(
            draw_subscription(rng, topic, number, batches=batch_messages_max > 1)
            for topic in range(topics)
            for number in range(rng.choice((1, 1, 2)))
        ),
        deduplication=rng.random() < 0.5,
        snapshot_entries=rng.choice((3, 10, 1_000)),
        entries_per_ledger=rng.choice((4, 12, 100)),
        cursor_ledger_entries=rng.choice((2, 8, 1_000)),
        ranges_in_node=rng.choice((0, 2, 1_000)),
        long_arrays=rng.random() < 0.5,
        mark_delete_rate=rng.choice((1.0, 20.0)),
        read_entries_max=rng.choice((1, 5, 100)),
        round_robin_messages_max=rng.choice((1, 3, 20)),
        unacked_messages_max=rng.choice((0, 3, 10, 50_000)),
        transactions=transactions,
        compaction=features.compaction,
        read_only=features.read_only,
        regions=features.regions,
        failover_delay_ms=rng.choice((0, 50, 500)),
        pause_seconds=active_seconds / entries / 1.5,
    )


class _Features(NamedTuple):
    """What was drawn for itself."""

    proxies: int
    proxied_share: float
    read_only: ReadOnlyParameters | None
    compaction: CompactionParameters | None
    regions: RegionsParameters | None
    faults: list[str]
    """Those of these features."""


def _draw_features(seed: int, transactions: TransactionParameters | None) -> _Features:
    """Each for itself, so that clusters without one stay as they are."""
    proxy_rng = random.Random(f"{seed} proxies")
    proxies = proxy_rng.choice((0, 0, 0, 1, 2))
    proxy_faults = proxy_rng.sample(PROXY_FAULTS, proxy_rng.randint(0, 2)) if proxies else []
    proxied_share = proxy_rng.choice((0.5, 1.0))
    read_only = draw_read_only(seed)
    compaction = draw_compaction(seed, alone=transactions is None and read_only is None)
    regions = None
    if transactions is None and read_only is None and compaction is None:
        regions = draw_regions(seed)
    if regions is not None:
        proxies, proxy_faults = 0, []
    faults = [*proxy_faults, *(() if read_only is None else read_only.fault_kinds)]
    if transactions is not None and transactions.late is not None:
        faults += MOVES
    return _Features(proxies, proxied_share, read_only, compaction, regions, faults)


def _draw_storage(
    seed: int, rng: random.Random, active_seconds: float, more_faults: list[str], *, calm: bool
) -> storage_parameters.Parameters:
    write_quorum = rng.choice((1, 1, 2, 3))
    ensemble_size = min(3, write_quorum + rng.choice((0, 0, 1)))
    # Swarm testing: a run with every fault at once explores less than many runs with some.
    kinds = [*rng.sample(BROKER_FAULTS, rng.randint(0, 6)), *rng.sample(STORAGE_FAULTS, rng.choice((0, 0, 1, 2, 3)))]
    kinds += more_faults
    if calm:
        kinds = []
    return storage_parameters.Parameters(
        seed=seed,
        bookies=ensemble_size + rng.choice((0, 0, 1)),
        ensemble_size=ensemble_size,
        write_quorum=write_quorum,
        ack_quorum=rng.randint(1, write_quorum),
        digest_type="CRC32C",
        writers=0,
        entries=0,
        ledger_entries_max=1,
        batch_entries_max=1,
        payload_bytes_max=10,
        pause_seconds=1.0,
        idle_share=0.0,
        idle_seconds=1.0,
        readers=0,
        recoverers=0,
        active_seconds=active_seconds,
        flush_interval_seconds=30.0,
        tight_limits=False,
        read_batch_bytes_max=4_000_000,
        directories=1,
        metadata_lag_seconds=rng.choice((0.0, 0.02, 0.2)),
        autorecovery=False,
        collection=False,
        deleted_share=0.0,
        fault_kinds=tuple(kinds),
        faults=rng.choice((rng.randint(1, 4), rng.randint(4, 12), rng.randint(12, 20))) if kinds else 0,
        losses_max=0,
        topic=storage_parameters.TopicParameters(
            owners=0,
            entries=1,
            entries_per_ledger=1,
            cursor_ledger_entries=1,
            ranges_in_node=1,
            long_arrays=False,
            mark_delete_rate=1.0,
            trims=False,
            pause_seconds=1.0,
        ),
    )


def draw_subscription(rng: random.Random, topic: int, number: int, *, batches: bool) -> SubscriptionParameters:
    """One of a topic; `batches`: entries have several messages."""
    kind = rng.choice(tuple(SubscriptionType))
    alone = kind is SubscriptionType.EXCLUSIVE
    ordered = alone or kind is SubscriptionType.FAILOVER
    return SubscriptionParameters(
        name=f"sub{number}",
        topic=topic,
        kind=kind,
        consumers=rng.choice((1, 2)) if alone else rng.choice((1, 2, 2, 3)),
        permits=rng.choice((2, 5, 50)),
        cumulative_share=rng.choice((0.0, 0.5, 1.0)) if ordered else 0.0,
        partial_share=rng.choice((0.0, 0.5)) if batches else 0.0,
        receipt_share=rng.choice((0.2, 1.0)),
        negative_share=rng.choice((0.0, 0.05, 0.2)),
        held_share=rng.choice((0.0, 0.1, 0.3)),
        seek_share=rng.choice((0.0, 0.0, 0.0, 0.02)),
        restart_share=rng.choice((0.0, 0.02, 0.08)),
    )
