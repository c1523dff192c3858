"""The table's arithmetic and the reading of `pulsar-perf`'s lines."""

import pytest

from bench import features, generators, page, report, workloads
from bench.generators import Figures, Scenario
from bench.report import Metric
from bench.run import README, figures_of, in_turn

RATE = Metric("rate", "published", "msg/s", goal=1.0, more_is_better=True)
MEMORY = Metric("memory", "memory", "MB", goal=1 / 3)
BALANCED = Metric("rate", "published", "msg/s", goal=1.0, more_is_better=True, balance="out_to_in")
SEEN = Figures(
    published_per_s=1000.0,
    consumed_per_s=99_000.0,
    messages=990_000,
    failed=0,
    publish_p50_ms=1.0,
    publish_p99_ms=2.0,
    end_to_end_p50_ms=3.0,
    end_to_end_p99_ms=4.0,
    server_cpu_s=9.9,
    client_cpu_s=4.95,
)


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


@pytest.mark.parametrize(
    ("ours", "theirs", "verdict"),
    [
        (0.98, 1.02, "met (≥ 1.00)"),
        (0.97, 1.0, "not met: in is not out at ours"),
        (1.0, 1.03, "not met: in is not out at theirs"),
        (0.5, 0.5, "not met: in is not out at ours and theirs"),
    ],
)
def test_a_goal_is_met_only_where_both_sides_give_out_what_goes_in(ours: float, theirs: float, verdict: str) -> None:
    results = {"ours": {"rate": 2.0, "out_to_in": ours}, "theirs": {"rate": 1.0, "out_to_in": theirs}}
    assert report.rows(results, [BALANCED], "ours", "theirs")[0][-1] == verdict


def test_a_goal_is_not_met_where_nobody_knows_what_came_out() -> None:
    results = {"ours": {"rate": 2.0, "out_to_in": 1.0}, "theirs": {"rate": 1.0}}
    assert report.rows(results, [BALANCED], "ours", "theirs")[0][-1] == "not met: in is not out at theirs"


def test_what_comes_out_counts_once_for_each_subscription() -> None:
    assert generators.out_to_in(1000.0, 99_000.0, 100) == pytest.approx(0.99)
    assert generators.out_to_in(0.0, 5.0, 1) == 0.0


def test_cpu_is_counted_for_each_time_that_a_message_is_consumed() -> None:
    found = figures_of(SEEN, Scenario("fan-out", 1024, batched=True, subscriptions=100), 10.0)
    assert found["server_cpu_us"] == pytest.approx(10.0)
    assert found["client_cpu_us"] == pytest.approx(5.0)
    assert found["server_cpu_percent"] == pytest.approx(99.0)
    assert found["out_to_in"] == pytest.approx(0.99)


def test_a_drain_has_nothing_that_goes_in() -> None:
    assert "out_to_in" not in figures_of(SEEN, Scenario("drain", 1024, batched=True, backlog=10), 10.0)
    drain = [row for row in workloads.metrics(["go"]) if row.key.startswith("go.drain.")]
    assert [row.balance for row in drain] == ["", "", ""]


def test_a_range_stands_behind_a_median_of_several_rounds_that_differ() -> None:
    rounds = [{"a": {"rate": 1.0, "memory": 7.0}}, {"a": {"rate": 3.0, "memory": 7.0}}, {"a": {"rate": 2.0}}]
    spread = report.ranges(rounds)
    assert spread == {"a": {"rate": (1.0, 3.0), "memory": (7.0, 7.0)}}
    rows = report.rows(report.median(rounds), [RATE, MEMORY], "a", "none", spread)
    assert [row[1] for row in rows] == ["2.00 (1.00 to 3.00)", "7.00"]


def test_rounds_begin_with_another_server_by_turns() -> None:
    assert [in_turn(["a", "b"], index) for index in range(3)] == [["a", "b"], ["b", "a"], ["a", "b"]]


def test_producers_of_many_topics_share_what_may_be_pending() -> None:
    pending = {topics: Scenario("x", 1024, batched=False, topics=topics).pending for topics in (1, 100, 1000, 100_000)}
    assert pending == {1: 1000, 100: 500, 1000: 50, 100_000: 1}


def test_pulsar_perf_is_told_of_subscriptions_consumers_and_topics() -> None:
    scenario = Scenario("x", 1024, batched=False, topics=100, subscriptions=3, subscription_type="Shared", consumers=5)
    consuming, producing = generators.perf_options(scenario, "pulsar://h:1")
    assert " ".join(consuming) == "-u pulsar://h:1 -t 100 -ns 3 -n 5 -st Shared -sp Earliest"
    assert " ".join(producing) == "-u pulsar://h:1 -t 100 -s 1024 -r 10000000 -o 1000 -p 50000 -db"


def test_pulsar_perf_leaves_out_what_it_cannot_do() -> None:
    perf = generators.PulsarPerf()
    for scenario in (Scenario("x", 1, batched=True, backlog=1), Scenario("x", 1, batched=True, keys=1)):
        assert perf.run(scenario, "pulsar://h:1", 1.0, lambda: 0.0) is None


def test_each_load_has_rows_for_each_generator_and_keys_of_its_own() -> None:
    rows = workloads.metrics(["go", "pulsar-perf"])
    assert len({row.key for row in rows}) == len(rows)
    for scenario in workloads.SCENARIOS:
        for generator in ("go", "pulsar-perf"):
            assert any(row.key.startswith(f"{generator}.{scenario.name}.") for row in rows)


def test_the_readme_has_a_place_for_the_table() -> None:
    assert "| new |" in page.with_table(README.read_text(), "bench", "| new |")
