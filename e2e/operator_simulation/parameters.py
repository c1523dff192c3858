"""What a seed decides: how large the cluster is, who interferes, and what goes wrong how often."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any, Final

from e2e.operator_simulation.fates import Rates
from e2e.operator_simulation.promises import STALE_SECONDS

USER_ACTIONS: Final = (
    "annotate_replace",
    "bad_image",
    "change_settings",
    "delete_pod",
    "grow_volumes",
    "hibernate",
    "new_version",
    "pause",
    "recreate",
    "repair_image",
    "scale_brokers",
    "scale_pool",
    "second_pool",
    "wake",
)
"""What people do."""

ACCIDENTS: Final = (
    "crash_bookie",
    "crash_broker",
    "crash_zookeeper",
    "hang_pod",
    "lose_volume",
    "wrong_volume",
)
"""What happens to pods."""

OPERATOR_FAULTS: Final = ("cancel_pass", "kill_operator", "two_operators")
"""What happens to the operator besides its calls."""

SLIPS: Final = ("misspell", "unreadable")
"""Mistakes of people in a spec: few runs have them, for nothing goes on with the new spec until it is corrected."""

RARE: Final = ("hang_bookie", "late_apply", "late_delete")
"""What comes on top in few runs, as it is too special to be among what is chosen from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameters:
    """Of one run."""

    seed: int
    bookies: int
    bookies_max: int
    """What users scale to at most."""
    replicas_in_cluster: bool
    """Whether the PulsarCluster says how many bookies there are, or the Bookie resource alone."""
    zookeepers: int
    ensemble_size: int
    brokers: int | None
    proxies: int
    driver: str
    storage_class: str | None
    journal_class: str | None
    journals: int
    deletion_policy: str
    actions: tuple[str, ...]
    """Which may happen, of all three kinds."""
    steps: int
    """How many do."""
    pause_seconds: float
    """Between two of them, on average."""
    rates: Rates
    delay_seconds: float
    """Of Kubernetes' controllers, at most."""
    start_seconds: float
    """Of pods, at most."""
    watch_loses: float
    """The share of changes that wake nobody."""
    copies_per_second: int
    lost_after_seconds: float
    reuse_addresses: bool
    knows_monitors: bool
    begins_ready: bool
    deleted_at_the_end: bool
    idle_seconds: float
    made_again_seconds: float
    """Until a deleted cluster is made again, at most."""

    def cluster_spec(self) -> dict[str, Any]:
        """Of the PulsarCluster, as people write it."""
        journal: dict[str, Any] = {"size": "10Gi", "count": self.journals}
        ledgers: dict[str, Any] = {"size": "50Gi"}
        if self.storage_class is not None:
            ledgers["storageClassName"] = self.storage_class
        if self.journal_class is not None:
            journal["storageClassName"] = self.journal_class
        bookkeeper: dict[str, Any] = {
            "ensembleSize": self.ensemble_size,
            "writeQuorum": self.ensemble_size,
            "ackQuorum": self.ensemble_size,
            "storage": {"journal": journal, "ledgers": ledgers},
        }
        if self.replicas_in_cluster:
            bookkeeper["replicas"] = self.bookies
        return {
            "version": "1.0",
            "deletionPolicy": self.deletion_policy,
            "metadata": {"zookeeper": {"replicas": self.zookeepers}},
            "bookkeeper": bookkeeper,
            "broker": {} if self.brokers is None else {"replicas": self.brokers},
            "proxy": {"replicas": self.proxies},
            "balance": {"driver": self.driver},
        }


def draw_parameters(seed: int) -> Parameters:
    """The same parameters for the same seed, everywhere."""
    rng = random.Random(f"{seed} operator parameters")
    large = rng.random() < 0.15
    ensemble_size = rng.choice((1, 2, 2, 2, 3))
    bookies = max(ensemble_size, rng.choice((9, 10, 11, 12) if large else (2, 3, 3, 4, 5)))
    # Swarm testing: a run with everything at once explores less than many runs with some.
    actions = rng.sample(USER_ACTIONS, rng.randint(2, 6))
    actions += rng.sample(ACCIDENTS, rng.choice((0, 1, 2, 3)))
    actions += rng.sample(OPERATOR_FAULTS, rng.choice((0, 1, 1, 2)))
    if rng.random() < 0.5 and "scale_pool" not in actions:
        actions.append("scale_pool")
    more = random.Random(f"{seed} more operator parameters")
    actions += [action for action in RARE if more.random() < 0.1]
    slips = random.Random(f"{seed} slips")
    actions += [action for action in SLIPS if slips.random() < 0.15]
    calm = rng.random() < 0.2
    rates = Rates(
        fails=0.0 if calm else rng.choice((0.0, 0.02, 0.1)),
        loses_answer=0.0 if calm else rng.choice((0.0, 0.02, 0.1)),
        slow=0.0 if calm else rng.choice((0.0, 0.01, 0.05, 0.2)),
        stale=0.0 if calm else rng.choice((0.0, 0.05, 0.3, 0.9)),
        kills=0.0 if calm else rng.choice((0.0, 0.0, 0.002, 0.01)),
        stale_seconds_max=rng.uniform(0.5, STALE_SECONDS - 1.0),
        slow_seconds_max=rng.choice((5.0, 15.0, 40.0)),
    )
    return Parameters(
        seed=seed,
        bookies=bookies,
        bookies_max=14 if large else 6,
        replicas_in_cluster=rng.random() < 0.5,
        zookeepers=rng.choice((1, 3, 3, 3)),
        ensemble_size=ensemble_size,
        brokers=rng.choice((None, 1, 2, 3)),
        proxies=rng.choice((0, 1, 2)),
        driver=rng.choice(("Leader", "Leader", "Operator", "None")),
        storage_class=rng.choice((None, "standard", "rigid")),
        journal_class=rng.choice((None, None, "rigid")),
        journals=rng.choice((1, 1, 1, 2)),
        deletion_policy=rng.choice(("Retain", "Delete")),
        actions=tuple(actions),
        steps=rng.choice((rng.randint(2, 6), rng.randint(2, 10), rng.randint(8, 20), rng.randint(15, 40))),
        pause_seconds=rng.choice((2.0, 10.0, 20.0, 40.0)),
        rates=rates,
        delay_seconds=rng.choice((0.1, 0.5, 2.0)),
        start_seconds=rng.choice((1.0, 4.0, 12.0)),
        watch_loses=0.0 if calm else rng.choice((0.0, 0.2, 0.9)),
        copies_per_second=rng.choice((1, 3, 20)),
        lost_after_seconds=rng.choice((0.0, 20.0, 20.0, 60.0)),
        reuse_addresses=rng.random() < 0.7,
        knows_monitors=rng.random() < 0.5,
        begins_ready=rng.random() < 0.75,
        deleted_at_the_end=rng.random() < 0.2,
        idle_seconds=rng.choice((600.0, 600.0, 600.0, 3600.0)),
        made_again_seconds=more.choice((3.0, 40.0, 40.0)),
    )
