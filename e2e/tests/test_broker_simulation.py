"""The simulator of broker clusters: seeds keep every promise, planted mistakes are found, a seed is always the same.

`make sim-brokers` runs a thousand seeds. Here run the first ones, those that find a planted mistake, and those in which
a fault happens that is rare.
"""

from __future__ import annotations

import asyncio
import gc
import os
import subprocess
import sys
from types import SimpleNamespace
from typing import Any, Final

import pytest
from magnetar.sim.loop import SimulatedLoop

from e2e.broker_simulation.drawn.late import MOVES
from e2e.broker_simulation.drawn.read_only import READ_ONLY_FAULTS
from e2e.broker_simulation.drawn.regions import FORGETTING, LINK_FAULTS
from e2e.broker_simulation.history import History
from e2e.broker_simulation.mistakes import MISTAKES
from e2e.broker_simulation.parameters import BROKER_FAULTS, PROXY_FAULTS, STORAGE_FAULTS
from e2e.broker_simulation.run import run_seed
from e2e.broker_simulation.waiting import until_done
from e2e.simulation.planting import CodeIsCompiled, planted
from e2e.simulation_runner.running import Stuck

TRIED_HERE: Final = {
    "a-part-is-the-whole": 11,
    "acks-of-aborted-are-kept": 3,
    "acknowledged-up-to-but-one": 0,
    "answers-are-ignored": 22,
    "asked-for-again-and-dropped": 2,
    "behind-the-horizon-but-one": 9,
    "bindings-are-taken-by-force": 11,
    "blocked-for-good": 2,
    "confirmed-as-it-comes": 0,
    "counts-are-forgotten": 7,
    "cursor-goes-with-the-list": 12,
    "deliveries-are-counted": 0,
    "doubt-without-letting-go": 11,
    "ended-links-are-asked": 2,
    "horizon-one-too-far": 14,
    "nobody-is-asked": 22,
    "nobody-is-asked-about-acks": 22,
    "nobody-settles": 9,
    "nobody-connects-again": 12,
    "nothing-is-stored-at-the-close": 72,
    "old-ledgers-stay": 9,
    "one-broker-for-all": 1,
    "one-message-of-a-batch": 9,
    "one-that-hears-is-enough": 4,
    "owner-is-not-asked": 1,
    "positions-are-not-replayed": 94,
    "positions-without-their-ledgers": 12,
    "receipts-are-for-all-of-a-sequence-id": 42,
    "released-before-it-is-stored": 11,
    "replicated-is-sent-on": 12,
    "sent-is-confirmed": 12,
    "the-named-ledger-is-deleted": 36,
    "time-never-ends": 4,
    "transactions-are-not-looked-at": 14,
    "unconfirmed-is-passed-over": 12,
    "what-is-left-is-dropped": 2,
}
"""Each with a seed that finds it. The others: `make sim-brokers ARGS="--mistake all"`."""

HAPPENS_IN: Final = {
    "broker_power_loss": 17,
    "cut_link": 12,
    "cut_off_client": 58,
    "cut_off_proxy": 9,
    "cut_off_reading_broker": 5,
    "deafen_link": 105,
    "expire_broker_session": 27,
    "expire_reading_session": 32,
    "forget_remote": 251,
    "kill_bookie": 40,
    "kill_broker": 13,
    "kill_proxy": 17,
    "kill_reading_broker": 26,
    "lose_answers": 2,
    "metadata_away": 58,
    "name_remote_alone": 42,
    "one_way": 40,
    "partition": 58,
    "pause_bookie": 10,
    "pause_broker": 26,
    "pause_client": 13,
    "pause_proxy": 16,
    "pause_reading_broker": 5,
    "power_loss": 25,
    "resets": 18,
    "restart_broker": 16,
    "restart_client": 36,
    "restart_proxy": 16,
    "restart_reading_broker": 14,
    "slow_disk": 14,
    "slow_link": 19,
    "slow_links": 42,
    "split_broker_from_metadata": 28,
    "split_bundle": 36,
    "split_link": 42,
    "split_reading_from_bookies": 26,
    "split_reading_from_metadata": 37,
    "split_reading_from_owners": 113,
    "stop_bookie": 3,
    "transfer_bundle": 19,
    "unload_bundle": 19,
    "usurp_broker": 0,
}
"""Each kind of fault with a seed in which it happens."""

SEEDS: Final = sorted({*range(30), *TRIED_HERE.values(), *HAPPENS_IN.values()})
SEEDS_PER_TEST: Final = 4
"""Few, so that no worker ends long after the others."""


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, len(SEEDS), SEEDS_PER_TEST))
def test_every_promise_is_kept(first: int) -> None:
    confirmed = 0
    for seed in SEEDS[first : first + SEEDS_PER_TEST]:
        kinds = {kind for kind, known in HAPPENS_IN.items() if known == seed}
        verdict = run_seed(seed, keep_trace=bool(kinds))
        assert verdict.violations == [], f"again: python -m e2e.broker_simulation --seed {seed} --trace"
        happened = {line.split()[2] for line in verdict.trace_lines if line.split()[1] == "fault"}
        assert kinds <= happened, f"of seed {seed}: `HAPPENS_IN` needs another one"
        confirmed += verdict.counts["confirmed messages"]
    assert confirmed > 0


def test_every_kind_of_fault_happens() -> None:
    kinds = {*STORAGE_FAULTS, *BROKER_FAULTS, *PROXY_FAULTS, *READ_ONLY_FAULTS, *LINK_FAULTS, FORGETTING, *MOVES}
    assert kinds == HAPPENS_IN.keys()


@pytest.mark.slow
@pytest.mark.parametrize(
    "seed",
    [
        pytest.param(1390, id="a consumer is told to leave in the moment in which it is let in"),
        pytest.param(1396, id="a client of the admin API is gone before it is served"),
        pytest.param(5010, id="two brokers behind one proxy each let one in, and one of them is the owner"),
        pytest.param(109470, id="a subscription is let go of that was never made, as its owner was out of reach"),
        pytest.param(104171, id="who unsubscribes hears late that it may be followed by another one"),
        pytest.param(103650, id="a transactor comes on, one commit in a second or two, and has much to take"),
    ],
)
def test_a_seed_that_was_held_against_a_broker_that_did_no_wrong(seed: int) -> None:
    assert run_seed(seed).violations == []


@pytest.mark.slow
@pytest.mark.parametrize(
    "seed",
    [
        pytest.param(207, id="the last message is of a transaction that was aborted, at a broker that only reads"),
        pytest.param(621, id="an append fails while others wait for the topic's first snapshot"),
        pytest.param(3983, id="an acknowledgement comes after the end of its transaction"),
        pytest.param(5407, id="the metadata store is away when the node of a split bundle is to go"),
        pytest.param(109684, id="all up to a batch, part of which is named and all of which is acknowledged"),
        pytest.param(105940, id="an owner that cannot store a position tells of it, and counts as if it had"),
        pytest.param(72071, id="a refusal is lost, and whoever sends again is told that nobody knows"),
    ],
)
def test_a_seed_that_found_a_mistake_of_a_broker(seed: int) -> None:
    assert run_seed(seed).violations == []


@pytest.mark.parametrize("name", sorted(MISTAKES))
def test_every_mistake_still_has_its_place(name: str) -> None:
    """Also those that only `--mistake all` tries: code that moves takes its mistakes along."""
    try:
        with planted(MISTAKES[name]):
            pass
    except CodeIsCompiled as error:
        pytest.skip(str(error))


@pytest.mark.slow
@pytest.mark.parametrize(("name", "seed"), TRIED_HERE.items())
def test_a_planted_mistake_is_found(name: str, seed: int) -> None:
    try:
        with planted(MISTAKES[name]):
            pass
    except CodeIsCompiled as error:
        pytest.skip(str(error))
    assert run_seed(seed, mistake=MISTAKES[name]).violations
    # It is the mistake: without it the seed is fine, as `test_every_promise_is_kept` shows.
    assert seed in SEEDS


async def test_what_is_stuck_ends_a_run_with_a_mistake_and_no_other() -> None:
    node: Any = SimpleNamespace(name="consumer0", kill=lambda: None)
    waited_for: Any = SimpleNamespace(done=asyncio.Event(), node=node)
    history = History()
    await until_done(history, [waited_for], "does not come to an end", 0.01)
    assert history.stuck == ["consumer0 does not come to an end"]
    with pytest.raises(Stuck):
        await until_done(History(ends_at_first=True), [waited_for], "does not come to an end", 0.01)


def test_another_seed_is_another_run() -> None:
    assert run_seed(7).trace_digest != run_seed(13).trace_digest


TWICE: Final = (0, 1, 2, 3, 4, 9, 22, 32, 42)
"""4 and 22 have transactions, 22 with late frames; 9 and 32 have compaction, and 42 has two clusters."""

PROGRAM: Final = f"""
from e2e.broker_simulation.run import run_seed
for seed in {TWICE}:
    verdict = run_seed(seed)
    print(seed, verdict.trace_digest, verdict.steps)
"""


@pytest.mark.slow
def test_a_seed_gives_the_same_trace_in_another_process_and_in_another_order() -> None:
    environment = {**os.environ, "PYTHONHASHSEED": "1"}
    said = subprocess.run([sys.executable, "-c", PROGRAM], env=environment, check=True, capture_output=True, text=True)
    here = []
    for seed in reversed(TWICE):
        verdict = run_seed(seed, keep_trace=True)
        assert verdict.trace_lines
        here.append(f"{seed} {verdict.trace_digest} {verdict.steps}")
    assert said.stdout.splitlines() == here[::-1]


def test_a_run_leaves_nothing_behind() -> None:
    """Of those in which nobody asks the admin API: what that keeps goes with the next collection."""
    count_worlds = (
        "import gc\n"
        "from e2e.simulation.cluster import World\n"
        "from e2e.simulation_runner.command import run_batch\n"
        "for seed in range(2):\n"
        "    run_batch(('e2e.broker_simulation', range(seed, seed + 1), None))\n"
        "gc.unfreeze()\n"
        "print(sum(isinstance(each, World) for each in gc.get_objects()))\n"
    )
    printed = subprocess.run([sys.executable, "-c", count_worlds], check=True, capture_output=True, text=True)
    assert printed.stdout.strip() == "0"


def test_nothing_of_a_seed_is_kept() -> None:
    before = loops()
    # Its brokers serve the admin API, whose library keeps handlers.
    run_seed(102)
    assert loops() == before


def loops() -> int:
    """Simulated loops that are there."""
    gc.collect()
    return sum(isinstance(each, SimulatedLoop) for each in gc.get_objects())
