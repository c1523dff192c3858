"""Columns copied out of pieces are what Python's own slices give, however long values and pieces are."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from magnetar.spark.decode.pieces import Joiner, Pieces, Ranges

LARGE = 40_000
"""Of such pieces nothing is joined."""


def pieces_and_ranges(sizes: list[int], value_bytes: tuple[int, int], seed: int) -> tuple[list[bytes], list[int]]:
    """Pieces of these sizes, and ranges in them as they are noted: ascending, some empty, some complemented."""
    rng = random.Random(seed)
    pieces = [rng.randbytes(size) for size in sizes]
    noted: list[int] = []
    base = 0
    for piece in pieces:
        at = 0
        for _ in range(rng.randint(1, 6)):
            start = at + rng.randint(0, 30)
            end = start + rng.choice((0, rng.randint(*value_bytes)))
            if end > len(piece):
                break
            pair = (base + start) | (base + end) << 32
            noted.append(~pair if rng.random() < 0.2 else pair)
            at = end
        base += len(piece)
    noted.append(base | base << 32)  # Empty, and behind everything.
    return pieces, noted


def expected(pieces: list[bytes], noted: list[int], rows: list[int]) -> list[bytes | None]:
    """By slices of all in one."""
    memory = b"".join(pieces)
    found = [None if noted[row] < 0 else noted[row] for row in rows]
    return [None if pair is None else memory[pair & 0xFFFF_FFFF : pair >> 32] for pair in found]


@settings(max_examples=60)
@given(
    sizes=st.lists(st.sampled_from((0, 1, 50, 3_000, LARGE)), min_size=1, max_size=6),
    value_bytes=st.sampled_from(((1, 5), (10, 14), (13, 13), (13, 2_000))),
    seed=st.integers(0, 10**6),
)
def test_columns_are_slices(sizes: list[int], value_bytes: tuple[int, int], seed: int) -> None:
    pieces, noted = pieces_and_ranges(sizes, value_bytes, seed)
    ranges = Ranges(Pieces(pieces, sum(sizes), Joiner()), noted)
    everything = list(range(len(noted)))
    some = everything[::2]
    for rows in (everything, some, []):
        column = ranges.take(np.array(rows, np.int64))
        column.validate(full=True)
        assert column.to_pylist() == expected(pieces, noted, rows)
    absent = np.arange(len(some)) % 2 == 0
    shown = ranges.take_but(np.array(some, np.int64), absent).to_pylist()
    positive = [~pair if pair < 0 else pair for pair in noted]
    assert shown == [None if place % 2 == 0 else each for place, each in enumerate(expected(pieces, positive, some))]


def test_long_values_of_large_pieces_are_copied_once(monkeypatch: pytest.MonkeyPatch) -> None:
    joiner = Joiner()
    monkeypatch.setattr(joiner, "joined", lambda *_: pytest.fail("joined"))
    pieces = [bytes([number]) * LARGE for number in range(3)]
    noted = [start | (start + 1_000) << 32 for start in range(0, 3 * LARGE, 1_000)]
    column = Ranges(Pieces(pieces, 3 * LARGE, joiner), noted).take(np.arange(len(noted)))
    assert column.to_pylist() == [bytes([number // 40]) * 1_000 for number in range(120)]


def test_no_rows_of_no_pieces() -> None:
    assert Ranges(Pieces([], 0, Joiner()), []).take(np.zeros(0, np.int64)).to_pylist() == []
