"""Rounds of the bookies' benchmark, and its page."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.console import Console

from bench.bookies import run
from bench.bookies.run import PAGE, Plan, one_round, parse, write
from bench.bookies.scenarios import SCENARIOS


def plan(*, in_page: bool) -> Plan:
    return Plan(["magnetar", "apache"], SCENARIOS, 1.0, 1.0, 2, in_page)


def test_every_second_round_begins_with_the_other_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    measured: list[str] = []

    def measure(kind: str, *_: object) -> dict[str, float]:
        measured.append(kind)
        return {"start_s": float(len(measured))}

    monkeypatch.setattr(run, "measure", measure)
    rounds = [one_round(plan(in_page=False), index, "", Console(quiet=True)) for index in range(2)]
    assert measured == ["magnetar", "apache", "apache", "magnetar"]
    assert [list(each) for each in rounds] == 2 * [["magnetar", "apache"]]
    assert rounds[1]["magnetar"] == {"start_s": 4.0}


@pytest.mark.parametrize("in_page", [True, False])
def test_the_page_has_medians_and_ranges_of_a_whole_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, in_page: bool
) -> None:
    page = tmp_path / "page.md"
    page.write_text(PAGE.read_text())
    monkeypatch.setattr(run, "PAGE", page)
    monkeypatch.setattr(run, "RESULTS", tmp_path)
    name = "add-1KiB-Qw1.entries_per_s"
    rounds = [{"magnetar": {name: 3e5 + each}, "apache": {name: 2e5}} for each in (0.0, 5.0)]
    write(rounds, plan(in_page=in_page), Console(quiet=True))
    text = page.read_text()
    assert (text != PAGE.read_text()) is in_page
    assert ("medians of 2 rounds" in text) is in_page
    assert ("| 1.50 | met (≥ 1.20) |" in text) is in_page
    assert "What the rows mean" in text


@pytest.mark.parametrize(
    ("given", "expected"),
    [([], (3, 30.0, True)), (["--quick"], (1, 10.0, True)), (["--no-page", "--rounds", "2"], (2, 30.0, False))],
)
def test_a_part_never_takes_the_place_of_the_whole_table(
    monkeypatch: pytest.MonkeyPatch, given: list[str], expected: tuple[int, float, bool]
) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=1e12))

    def of(arguments: list[str]) -> Plan:
        monkeypatch.setattr("sys.argv", ["run", *arguments])
        return parse()

    chosen = of(given)
    assert (chosen.rounds, chosen.window_s, chosen.in_page) == expected
    for part in (["--scenarios", "replay"], ["--kinds", "magnetar"]):
        assert not of([*given, *part]).in_page


@pytest.mark.parametrize(("given", "free_bytes"), [([], 44e9), (["--quick"], 14e9)])
def test_a_disk_that_would_be_full_is_told_before(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], given: list[str], free_bytes: float
) -> None:
    monkeypatch.setattr("sys.argv", ["run", *given])
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=free_bytes))
    with pytest.raises(SystemExit):
        parse()
    assert "TMPDIR" in capsys.readouterr().err
