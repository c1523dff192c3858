"""Which bookies an ensemble is made of. Pure: the candidates and the randomness come from outside."""

from __future__ import annotations

import random
from collections.abc import Collection, Sequence

from magnetar.ledger.api import NotEnoughBookies


def choose_bookies(
    count: int,
    candidates: Sequence[str],
    rng: random.Random,
    *,
    excluded: Collection[str] = (),
    avoided: Collection[str] = (),
) -> list[str]:
    """`count` different candidates in random order, none of them excluded.

    Avoided ones are taken only when the others do not suffice: a bookie that failed lately is better than none.
    Raises `NotEnoughBookies`."""
    allowed = sorted(set(candidates).difference(excluded))
    if len(allowed) < count:
        raise NotEnoughBookies(f"{count} bookies are needed, {len(allowed)} of {len(set(candidates))} may be used")
    rng.shuffle(allowed)
    allowed.sort(key=lambda bookie: bookie in avoided)
    return allowed[:count]
