"""The simulator of shadow topics: seeds keep every promise, planted mistakes are found, its judge sees what is wrong.

`make sim-shadows` runs five hundred seeds. Here run the first ones, those that find a planted mistake, those in which a
fault happens, and those that found a mistake of a broker.
"""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Final

import pytest
from magnetar.core.ids import EARLIEST, LATEST, Position
from magnetar.wire.pulsar.enums import SubscriptionType

from e2e.broker_simulation.history import (
    Acknowledged,
    Content,
    Entry,
    Receipt,
    Session,
    Sought,
    SubscriptionHistory,
    TopicHistory,
)
from e2e.broker_simulation.shadows.mistakes import MISTAKES
from e2e.broker_simulation.shadows.parameters import SHADOW_FAULTS, TRIMMING, draw_shadow_parameters
from e2e.broker_simulation.shadows.rules import (
    NOBODY,
    all_of_the_source_is_there,
    needed,
    seeks_can_be_followed,
    told_at_once,
)
from e2e.broker_simulation.shadows.run import run_seed
from e2e.simulation.planting import CodeIsCompiled, planted

TRIED_HERE: Final = {
    "anybody-may-publish": 6,
    "end-is-not-asked-for": 1,
    "failed-deletions-are-followed": 214,
    "late-shadows-are-not-told": 6,
    "ledgers-are-listed": 0,
    "ledgers-go-with-the-shadow": 0,
    "nobody-is-told": 2,
    "one-asker-for-all": 31,
    "positions-are-not-reached": 5,
    "receipts-are-not-given": 1,
    "roll-overs-are-not-followed": 12,
    "source-is-recovered": 0,
    "the-next-entry-is-told": 57,
    "transactions-are-not-looked-at": 0,
}
"""Each mistake with a seed that finds it."""

HAPPENS_IN: Final = {
    "forget_shadows": 0,
    "kill_shadow_owner": 4,
    "kill_source_owner": 10,
    "pause_shadow_owner": 2,
    "pause_source_owner": 4,
    "recreate_shadow": 12,
    "split_owners": 12,
    "split_shadow_from_bookies": 4,
    "trim_sources": 9,
    "unload_shadow": 16,
    "unload_source": 4,
}
"""Each kind of fault with a seed in which it happens."""

FOUND: Final = {
    31: "two shadows of one source at one broker ask where it ends, by one name",
    117: "a cursor whose last write failed at the close is written behind the next owner's back",
    214: "a shadow whose deletion failed is followed for ever",
    415: "a broker that stops waits for topics that wait for their policies, which it does not read any more",
}
"""Seeds that found a mistake of a broker, which is mended since."""

SEEDS: Final = sorted({*range(8), *TRIED_HERE.values(), *HAPPENS_IN.values(), *FOUND})
SEEDS_PER_TEST: Final = 4

SOURCE: Final = "source"
SHADOW: Final = "shadow"
SOURCES: Final = {SOURCE: [SHADOW]}


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, len(SEEDS), SEEDS_PER_TEST))
def test_every_promise_is_kept(first: int) -> None:
    for seed in SEEDS[first : first + SEEDS_PER_TEST]:
        kinds = {kind for kind, known in HAPPENS_IN.items() if known == seed}
        verdict = run_seed(seed, keep_trace=bool(kinds))
        assert verdict.violations == [], f"again: python -m e2e.broker_simulation.shadows --seed {seed} --trace"
        happened = {line.split()[2] for line in verdict.trace_lines if line.split()[1] == "fault"}
        assert kinds <= happened, f"of seed {seed}: `HAPPENS_IN` needs another one"
        assert verdict.counts["confirmed messages"] > 0
        assert verdict.counts["entries read of shadows"] > 0


def test_every_mistake_is_tried() -> None:
    assert TRIED_HERE.keys() == MISTAKES.keys()


def test_every_kind_of_fault_happens() -> None:
    assert {*SHADOW_FAULTS, TRIMMING} == HAPPENS_IN.keys()


@pytest.mark.slow
@pytest.mark.parametrize(("name", "seed"), TRIED_HERE.items())
def test_a_planted_mistake_is_found(name: str, seed: int) -> None:
    try:
        with planted(MISTAKES[name]):
            pass
    except CodeIsCompiled as error:
        pytest.skip(str(error))
    assert run_seed(seed, mistake=MISTAKES[name]).violations
    assert seed in SEEDS  # Without the mistake it is fine.


@pytest.mark.slow
def test_a_seed_gives_the_same_trace_in_another_process_and_in_another_order() -> None:
    program = (
        "from e2e.broker_simulation.shadows.run import run_seed\n"
        "for seed in (1, 2, 3):\n"
        "    print(seed, run_seed(seed).trace_digest)\n"
    )
    environment = {**os.environ, "PYTHONHASHSEED": "1"}
    said = subprocess.run([sys.executable, "-c", program], env=environment, check=True, capture_output=True, text=True)
    here = [f"{seed} {run_seed(seed).trace_digest}" for seed in (3, 2, 1)]
    assert said.stdout.splitlines() == here[::-1]


def test_what_is_drawn_has_shadows_and_nothing_that_is_simulated_elsewhere() -> None:
    drawn = [draw_shadow_parameters(seed) for seed in range(200)]
    for one in drawn:
        cluster = one.cluster
        assert (cluster.compaction, cluster.read_only, cluster.regions, cluster.proxies) == (None, None, None, 0)
        assert not [kind for kind in cluster.storage.fault_kinds if "proxy" in kind or "reading" in kind]
        assert {subscription.topic for subscription in cluster.subscriptions} == set(range(len(one.names)))
        assert not (one.trims and (cluster.transactions is not None or cluster.readers))
    assert 30 < sum(one.trims for one in drawn) < 70
    assert any(len(shadows) > 1 for one in drawn for shadows in one.sources.values())


# --- the judge


def content(number: int, messages: int = 1) -> Content:
    return Content("p", number, messages)


def entry(place: Position, number: int = 0, messages: int = 1) -> Entry:
    return Entry(place, content(number, messages), "")


def topic(name: str, *log: Entry) -> TopicHistory:
    history = TopicHistory(name, deduplication=False)
    history.logs.append(list(log))
    return history


def session() -> Session:
    return Session(1, "consumer", SubscriptionType.SHARED, 1, "broker0", 0.0)


def test_a_shadow_has_what_its_source_has_where_that_stands() -> None:
    log = [entry((1, 0), 0), entry((1, 1), 1), entry((4, 0), 2)]
    assert list(all_of_the_source_is_there(topic(SOURCE, *log), topic(SHADOW, *log))) == []
    for other in (log[:2], [*log, entry((4, 1), 3)], [log[0], entry((1, 2), 1), log[2]]):
        (said,) = all_of_the_source_is_there(topic(SOURCE, *log), topic(SHADOW, *other))
        assert said.startswith(f"{SHADOW}: reading 0 has ")


def test_what_is_told_comes_at_once() -> None:
    receipts = [
        Receipt(content(0), (1, 0), "broker0", 1, 1.0, 2.0),
        Receipt(content(1), (1, 1), "broker0", 1, 2.0, 3.0),
    ]
    assert list(told_at_once(receipts, {(1, 0): 2.05, (1, 1): 2.9}, 0.1)) == []
    assert [each.rpartition("shadow ")[2] for each in told_at_once(receipts, {(1, 0): 2.5}, 0.1)] == [
        "0.500 s after that",
        "not at all",
    ]


def test_what_a_subscription_may_still_want() -> None:
    subscription = SubscriptionHistory(SOURCE, "s", SubscriptionType.SHARED)
    entries = [entry((1, 0)), entry((1, 1)), entry((1, 2), messages=2)]
    assert needed(subscription, entries) == []  # Nobody has subscribed.
    subscription.sessions.append(session())
    assert needed(subscription, entries) == [(1, 0), (1, 1), (1, 2)]
    subscription.events.append(Acknowledged(session(), 1.0, ((1, 1),), cumulative=True))
    subscription.events.append(Acknowledged(session(), 2.0, ((1, 2),), remaining=frozenset({1})))
    assert needed(subscription, entries) == [(1, 2)]
    subscription.events.append(Acknowledged(session(), 3.0, ((1, 2),), remaining=frozenset({0})))
    assert needed(subscription, entries) == []


@pytest.mark.parametrize(
    ("at", "position", "by", "known"),
    [
        (SOURCE, LATEST, session(), True),
        (SHADOW, (1, 0), session(), True),
        (SHADOW, EARLIEST, session(), True),
        (SHADOW, LATEST, session(), False),
        (SHADOW, EARLIEST, NOBODY, False),
    ],
)
def test_where_a_seek_leads_is_known(at: str, position: Position, by: Session, known: bool) -> None:
    subscription = SubscriptionHistory(at, "s", SubscriptionType.EXCLUSIVE)
    subscription.events.append(Sought(by, 1.0, position))
    assert seeks_can_be_followed(subscription, SOURCES) is known
