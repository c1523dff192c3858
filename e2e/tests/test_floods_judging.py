"""How floods are judged, without any (e2e/tests)."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from e2e import processes
from e2e.floods import run
from e2e.floods.run import ARRIVAL_MS_MAX, RSS_BYTES_MAX, Numbers, Outcome, flood, floods

GOOD = Outcome(
    alone_p99_ms=1.0,
    before_p99_ms=10.0,
    arrival_p99_ms=ARRIVAL_MS_MAX,
    flooded_p99_ms=20.0,
    rss_peak_bytes=1,
    floor_ms=0.0,
)
SLOW = replace(GOOD, flooded_p99_ms=20.1)


@pytest.mark.parametrize(
    ("outcome", "paced"),
    [
        (GOOD, True),
        (SLOW, False),
        (replace(SLOW, floor_ms=25.0), True),
        (replace(GOOD, floor_ms=5.0), True),
        (replace(GOOD, arrival_p99_ms=ARRIVAL_MS_MAX + 1), False),
        (replace(GOOD, arrival_p99_ms=ARRIVAL_MS_MAX + 1, flooded_p99_ms=21.0), False),
        (replace(GOOD, alone_p99_ms=100.0, flooded_p99_ms=21.0), False),
    ],
)
def test_a_client_does_not_suffer_much(outcome: Outcome, paced: bool) -> None:
    assert outcome.paced is paced


class Server:
    """One that does nothing."""

    running = 0

    def __init__(self, folder: Path) -> None:
        self.name = folder.name
        self.pids = [1]
        self.service_url = ""

    def start(self) -> None:
        Server.running += 1

    def stop(self) -> None:
        Server.running -= 1

    def log_tail(self) -> str:
        return ""


@pytest.fixture
def outcomes(monkeypatch: pytest.MonkeyPatch) -> list[Outcome]:
    """What attempts come to."""
    made: list[Outcome] = []
    monkeypatch.setattr(run, "MagnetarStandalone", Server)
    monkeypatch.setattr(run, "make_topics", lambda *_: None)
    monkeypatch.setattr(run, "flood", lambda *_: made.pop(0))
    monkeypatch.setattr(time, "sleep", lambda _: None)
    monkeypatch.setattr(processes, "memory", lambda _: SimpleNamespace(rss_bytes=0))
    return made


@pytest.mark.parametrize(
    ("made", "attempts"),
    [([GOOD, SLOW, SLOW], 1), ([SLOW, GOOD, SLOW], 2), ([SLOW, SLOW, GOOD], 3), ([SLOW, SLOW, SLOW, GOOD], 3)],
)
def test_attempts_end_with_the_first_good_one(outcomes: list[Outcome], made: list[Outcome], attempts: int) -> None:
    outcomes[:] = made
    assert floods(Numbers(), topics=1, attempts=3) == made[:attempts]
    assert Server.running == 0


def test_memory_is_bounded_in_each_attempt(outcomes: list[Outcome]) -> None:
    outcomes[:] = [SLOW, replace(GOOD, rss_peak_bytes=RSS_BYTES_MAX)]
    with pytest.raises(AssertionError):
        floods(Numbers(), topics=1, attempts=3)
    assert Server.running == 0


class Client:
    """A stock client, alone."""

    def __init__(self, *_: object) -> None:
        pass

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def latencies_ms(self, _: float) -> list[float]:
        return [1.0]


def test_what_it_is_compared_with_is_taken_while_the_other_server_is_flooded(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    flooded: list[str] = []

    def flooded_p99_ms(target: Any, *_: object) -> tuple[float, float]:
        flooded.append(target.name)
        return {"other": (90.0, 10.0), "data": (200.0, 15.0)}[target.name]

    monkeypatch.setattr(run, "StockClient", Client)
    monkeypatch.setattr(run, "flooded_p99_ms", flooded_p99_ms)
    monkeypatch.setattr(run, "rss_peak_bytes", lambda _: 7)
    monkeypatch.setattr(time, "sleep", lambda _: None)
    server: Any = Server(tmp_path / "data")
    other: Any = Server(tmp_path / "other")
    assert flood(server, other, Numbers()) == Outcome(1.0, 10.0, 200.0, 15.0, 7, 0.0)
    assert flooded == ["other", "data"]
    assert flood(server, None, Numbers()).before_p99_ms is None
