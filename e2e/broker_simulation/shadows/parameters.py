"""What a seed decides about shadow topics: how many there are, who consumes there, what goes wrong with them."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from typing import Final

from magnetar.core.topic_name import NamespaceName, TopicName

from e2e.broker_simulation.parameters import (
    Parameters,
    SubscriptionParameters,
    draw_parameters,
    draw_subscription,
    topic_name,
)
from e2e.simulation import parameters as storage_parameters

NAMESPACE: Final = NamespaceName("public", "shadows")
"""Of shadows; that of their sources is the one of all other topics."""

OFFSET: Final = -1_000_000
"""What all clusters have in common is drawn as that of another seed, which nobody else runs."""

TRIMS_SHARE: Final = 1 / 3

SHADOW_FAULTS: Final = (
    "forget_shadows",
    "kill_shadow_owner",
    "kill_source_owner",
    "pause_shadow_owner",
    "pause_source_owner",
    "recreate_shadow",
    "split_owners",
    "split_shadow_from_bookies",
    "unload_shadow",
    "unload_source",
)

TRIMMING: Final = "trim_sources"
"""This one where nobody needs to find everything in the end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShadowParameters:
    """Of one run, beside what all clusters have."""

    cluster: Parameters
    """Its subscriptions are those of sources and of shadows: `names` says of which."""
    shadows: tuple[int, ...]
    """How many each source has."""
    made_first: bool
    """They are there, and are told, before clients come and anything goes wrong."""
    whole_address: bool
    """The record of the cluster names all of its brokers, else the first one alone."""
    intruders: int
    """Who try to publish to shadows."""

    @property
    def sources(self) -> dict[str, list[str]]:
        """The shadows of each source."""
        return {
            topic_name(number): [shadow_name(number, index) for index in range(count)]
            for number, count in enumerate(self.shadows)
        }

    @property
    def names(self) -> list[str]:
        """Of all topics: sources first, then shadows."""
        return [*self.sources, *(shadow for shadows in self.sources.values() for shadow in shadows)]

    @property
    def trims(self) -> bool:
        """Whether sources drop what their own subscriptions have acknowledged."""
        return TRIMMING in self.cluster.storage.fault_kinds


def shadow_name(number: int, index: int) -> str:
    """Of a source's shadows, which are numbered."""
    return str(TopicName.parse(f"persistent://{NAMESPACE}/shadow{number}-{index}"))


def draw_shadow_parameters(seed: int) -> ShadowParameters:
    """The same parameters for the same seed, everywhere."""
    rng = random.Random(f"{seed} shadows")
    drawn = draw_parameters(OFFSET - seed)
    shadows = tuple(rng.choice((1, 1, 2)) for _ in range(drawn.topics))
    transactions = None if drawn.transactions is None else replace(drawn.transactions, late=None)
    # Of what is trimmed nobody knows afterwards which transactions counted.
    trims = rng.random() < TRIMS_SHARE and transactions is None
    cluster = replace(
        drawn,
        brokers=rng.choice((1, 2, 3, 3)),
        proxies=0,
        readers=0 if trims else drawn.readers,
        transactions=transactions,
        compaction=None,
        read_only=None,
        regions=None,
        storage=_with_faults(drawn.storage, rng, trims=trims),
    )
    return ShadowParameters(
        cluster=replace(cluster, subscriptions=_draw_subscriptions(cluster, shadows, rng, trims=trims)),
        shadows=shadows,
        made_first=rng.random() < 0.6,
        whole_address=rng.random() < 0.7,
        intruders=rng.choice((0, 0, 1)),
    )


def _with_faults(
    storage: storage_parameters.Parameters, rng: random.Random, *, trims: bool
) -> storage_parameters.Parameters:
    kinds = [kind for kind in storage.fault_kinds if "proxy" not in kind and "reading" not in kind]
    kinds += rng.sample(SHADOW_FAULTS, rng.randint(1, 5))
    kinds += [TRIMMING, TRIMMING] if trims else []
    faults = rng.choice((0, rng.randint(2, 6), rng.randint(6, 14), rng.randint(14, 24)))
    return replace(storage, fault_kinds=tuple(kinds), faults=faults)


def _draw_subscriptions(
    cluster: Parameters, shadows: tuple[int, ...], rng: random.Random, *, trims: bool
) -> tuple[SubscriptionParameters, ...]:
    """Those of the sources, and as many of each shadow."""
    batches = cluster.batch_messages_max > 1
    drawn = [
        *cluster.subscriptions,
        *(
            draw_subscription(rng, len(shadows) + number, index, batches=batches)
            for number in range(sum(shadows))
            for index in range(rng.choice((1, 1, 2)))
        ),
    ]
    # Where the first entries may be gone nobody says which one a seek leads to.
    return tuple(replace(one, seek_share=0.0) if trims else one for one in drawn)
