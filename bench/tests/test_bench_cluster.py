"""What is computed from receipts, goals of figures themselves, and where tables go in the page."""

import pytest

from bench import page, report
from bench.cluster.receipts import Interruption, interruption, percentile
from bench.report import Metric

S = 1_000_000_000


def test_the_longest_pause_after_the_disturbance_is_what_counts() -> None:
    received = [at * S // 10 for at in (0, 20, 21, 22, 25, 26, 46)]
    found = interruption(received, int(2.05 * S), int(2.3 * S))
    assert found is not None
    assert (found.pause_s, found.served_again_s) == pytest.approx((0.3, 0.45))


def test_a_pause_that_began_before_counts_from_the_disturbance_on() -> None:
    assert interruption([0, 3 * S], 2 * S, 2 * S) == Interruption(1.0, 1.0)
    assert interruption([5 * S], 2 * S, 2 * S) == Interruption(3.0, 3.0)


def test_without_a_receipt_since_then_nothing_is_known() -> None:
    assert interruption([0, S], S, S) is None


def test_percentiles_are_values_that_were_seen() -> None:
    values = [float(value) for value in range(200, 0, -1)]
    assert (percentile(values, 0.5), percentile(values, 0.99), percentile(values, 1.0)) == (100.0, 198.0, 200.0)
    assert percentile([7.0], 0.99) == 7.0


def test_a_goal_may_be_one_for_the_figure_itself() -> None:
    metric = Metric("pause", "pause", "ms", goal=300.0, absolute=True)
    rows = report.rows({"ours": {"pause": 250.0}, "theirs": {"pause": 100.0}}, [metric], "ours", "theirs")
    assert rows == [["pause, ms", "250.0", "100.0", "2.50", "met (≤ 300.0)"]]
    assert report.rows({"ours": {"pause": 301.0}}, [metric], "ours", "theirs")[0][-1] == "missed (≤ 300.0)"


def test_a_table_takes_the_place_of_the_one_before() -> None:
    text = f"a\n{page.begin('x')}\nold\n{page.end('x')}\nb\n{page.begin('y')}\n{page.end('y')}\n"
    once = page.with_table(text, "x", "| new |\n")
    assert once == f"a\n{page.begin('x')}\n| new |\n{page.end('x')}\nb\n{page.begin('y')}\n{page.end('y')}\n"
    assert page.with_table(once, "x", "| new |") == once
    with pytest.raises(ValueError, match="no markers"):
        page.with_table(text, "z", "")


def test_the_page_has_markers_for_every_table() -> None:
    text = page.CLUSTER.path.read_text()
    for name in ("moves", "proxy", "lookups", "brokers", "topics", "connections"):
        assert page.with_table(text, name, "t") != text
