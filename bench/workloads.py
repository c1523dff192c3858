"""The loads of the comparison, and the rows and goals that they have in its table. Pure.

Goals are ratios to Apache's standalone at its leanest. One is met only when both servers gave out what they took in.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from bench.generators import KEY_SHARED, SHARED, Scenario
from bench.report import Metric

SCENARIOS: Final = (
    Scenario("1KiB-unbatched", 1024, batched=False),
    Scenario("1KiB-batched", 1024, batched=True),
    Scenario("100B-batched", 100, batched=True),
    Scenario("100-topics", 1024, batched=False, topics=100),
    Scenario("1000-topics", 1024, batched=False, topics=1000),
    Scenario("1000-per-s", 1024, batched=False, rate=1000),
    Scenario("fan-out", 1024, batched=True, subscriptions=100),
    Scenario("key-shared", 1024, batched=False, subscription_type=KEY_SHARED, consumers=50, keys=10_000),
    Scenario("drain", 1024, batched=True, subscription_type=SHARED, backlog=5_000_000),
)
"""`1000-topics` has a producer a topic, as all have; `fan-out` is one topic with 100 subscriptions; `drain` is 5 GB."""

QUICK_BACKLOG: Final = 200_000
RATE_GOALS: Final = {"fan-out": 1.2, "key-shared": 1.2, "drain": 1.5}
CPU_GOALS: Final = {"fan-out": 0.7, "key-shared": 0.7}
RATE_GOAL: Final = 1.5
CPU_GOAL: Final = 0.6
PUBLISH_P99_GOAL: Final = 0.5
"""At 1 000 messages a second."""
END_TO_END_P99_GOAL: Final = 1.0


def quick(scenario: Scenario) -> Scenario:
    """The same with a small backlog."""
    return replace(scenario, backlog=min(scenario.backlog, QUICK_BACKLOG))


def metrics(generators: list[str]) -> list[Metric]:
    """The rows of all loads under these generators, by their short names."""
    return [row for scenario in SCENARIOS for generator in generators for row in _rows(scenario, generator)]


def prefix(generator: str, scenario: Scenario) -> str:
    """How the figures of a load under a generator begin."""
    return f"{generator}.{scenario.name}"


def _rows(scenario: Scenario, generator: str) -> list[Metric]:
    key, label = prefix(generator, scenario), f"{scenario.name} ({generator})"
    balance = "" if scenario.backlog else f"{key}.out_to_in"
    cpu_goal = CPU_GOALS.get(scenario.name, CPU_GOAL)
    costs = [
        Metric(f"{key}.server_cpu_us", f"{label}: server CPU a message", "µs", goal=cpu_goal, balance=balance),
        Metric(f"{key}.client_cpu_us", f"{label}: client CPU a message", "µs"),
    ]
    rate_goal = RATE_GOALS.get(scenario.name, RATE_GOAL)
    if scenario.backlog:
        consumed = Metric(f"{key}.consumed_per_s", f"{label}: consumed", "msg/s", goal=rate_goal, more_is_better=True)
        return [consumed, *costs]
    steady = bool(scenario.rate)
    publish_goal, end_goal = (PUBLISH_P99_GOAL, None) if steady else (None, END_TO_END_P99_GOAL)
    return [
        Metric(
            f"{key}.published_per_s",
            f"{label}: published",
            "msg/s",
            goal=None if steady else rate_goal,
            more_is_better=True,
            balance=balance,
        ),
        Metric(f"{key}.consumed_per_s", f"{label}: consumed", "msg/s", more_is_better=True),
        Metric(f"{key}.out_to_in", f"{label}: out to in; below 0.98 the backlog grows", ""),
        *costs,
        Metric(f"{key}.publish_p50_ms", f"{label}: publish p50", "ms"),
        Metric(f"{key}.publish_p99_ms", f"{label}: publish p99", "ms", goal=publish_goal, balance=balance),
        Metric(f"{key}.end_to_end_p50_ms", f"{label}: end to end p50", "ms"),
        Metric(f"{key}.end_to_end_p99_ms", f"{label}: end to end p99", "ms", goal=end_goal, balance=balance),
    ]
