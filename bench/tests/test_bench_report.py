"""The table's arithmetic and the reading of `pulsar-perf`'s lines."""

from bench import features, generators, report
from bench.report import Metric

RATE = Metric("rate", "published", "msg/s", goal=1.0, more_is_better=True)
MEMORY = Metric("memory", "memory", "MB", goal=1 / 3)


def test_ratios_and_goals_look_the_right_way() -> None:
    results = {"ours": {"rate": 2000.0, "memory": 50.0}, "theirs": {"rate": 1000.0, "memory": 100.0}}
    rows = report.rows(results, [RATE, MEMORY], "ours", "theirs")
    assert [row[-2:] for row in rows] == [["2.00", "met (≥ 1.00)"], ["0.50", "missed (≤ 0.33)"]]


def test_a_missing_figure_leaves_a_gap_and_a_missing_row_is_left_out() -> None:
    rows = report.rows({"ours": {}, "theirs": {"rate": 1.0}}, [RATE, MEMORY], "ours", "theirs")
    assert rows == [["published, msg/s", "-", "1.00", "-", ""]]


def test_the_median_is_taken_figure_by_figure() -> None:
    rounds = [{"a": {"x": 1.0}}, {"a": {"x": 3.0, "y": 5.0}}, {"a": {"x": 9.0}}]
    assert report.median(rounds) == {"a": {"x": 3.0, "y": 5.0}}


def test_markdown_is_a_table() -> None:
    assert report.markdown(["a", "b"], [["1", "2"]], "T") == "# T\n\n| a | b |\n| --- | ---: |\n| 1 | 2 |\n"


def test_lines_of_pulsar_perf_are_found_among_others() -> None:
    output = (
        "2026-01-01T00:00:00,000+0000 [x] INFO  P - Created 1 producers\n"
        "2026-01-01T00:00:01,000+0000 INFO  P - Throughput produced:   45111 msg --- 20759.6 msg/s ---    162.2 Mbit/s"
        "  --- failure      0.0 msg/s --- Latency: mean:   7.826 ms - med:   9.023 - 95pct:  10.775 - 99pct:  12.319"
        " - 99.9pct:  12.5 - 99.99pct:  12.6 - Max:  12.7\n"
    )
    assert generators.intervals(output, generators.PRODUCED) == [generators.Interval(45111, 20759.6, 9.023, 12.319)]
    assert generators.intervals("nothing of the kind", generators.CONSUMED) == []


def test_the_consumer_spaces_its_lines_otherwise() -> None:
    output = (
        "Throughput received:    8001 msg --- 800.094  msg/s --- 6.251 Mbit/s  --- Latency: mean: 19.540 ms - med: 10"
        " - 95pct: 71 - 99pct: 229 - 99.9pct: 270 - 99.99pct: 270 - Max: 270"
    )
    assert generators.intervals(output, generators.CONSUMED) == [generators.Interval(8001, 800.094, 10.0, 229.0)]


def test_lines_of_pulsar_perf_transaction_are_found() -> None:
    output = (
        "Dumping latency stats to perf-transaction-1.hgrm\n"
        "Throughput transaction:    2738 transaction executes --- 272.292 transaction/s  --- send Latency: mean:"
        "  22.838 ms - med:  14.664 - 95pct:  53.856 - 99pct: 137.221 - 99.9pct: 422.247 - Max: 461.217 ---"
        " ack Latency: mean:   0.000 ms - med:   0.000 - 95pct:   0.000 - 99pct:   0.000\n"
    )
    assert features.intervals(output) == [features.Interval(272.292, 14.664, 137.221)]
