from __future__ import annotations

import random

import pytest
from magnetar.ledger.api import NotEnoughBookies
from magnetar.ledger.placement import choose_bookies

CANDIDATES = ["a", "b", "c", "d"]


def test_chosen_are_different_and_not_excluded() -> None:
    seen: set[str] = set()
    for seed in range(50):
        chosen = choose_bookies(2, CANDIDATES, random.Random(seed), excluded={"a", "zz"})
        assert len(set(chosen)) == 2
        seen.update(chosen)
    assert seen == {"b", "c", "d"}


def test_every_order_comes_up() -> None:
    orders = {tuple(choose_bookies(2, ["a", "b"], random.Random(seed))) for seed in range(50)}
    assert orders == {("a", "b"), ("b", "a")}


def test_avoided_ones_come_last() -> None:
    for seed in range(20):
        assert set(choose_bookies(2, CANDIDATES, random.Random(seed), avoided={"a", "b"})) == {"c", "d"}
        assert set(choose_bookies(3, CANDIDATES, random.Random(seed), avoided={"a", "b"})) > {"c", "d"}


def test_too_few() -> None:
    with pytest.raises(NotEnoughBookies, match="3 bookies are needed, 2 of 4"):
        choose_bookies(3, CANDIDATES, random.Random(0), excluded=["a", "b"])
    with pytest.raises(NotEnoughBookies):
        choose_bookies(2, ["a", "a"], random.Random(0))


def test_the_same_seed_chooses_the_same() -> None:
    assert choose_bookies(4, CANDIDATES, random.Random(3)) == choose_bookies(
        4, list(reversed(CANDIDATES)), random.Random(3)
    )
