"""The command line of every simulator.

`--seeds 1000` runs many, `--seed N [--trace]` one. `--mistake NAME` plants a known mistake, `--mistake all` each in
turn. A seed that fails prints what was wrong and the one command that runs it again. The exit code is 1 when a promise
was broken; with a planted mistake it is 1 when no seed found it. `--mistake all` lists which seed found each.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import importlib
import itertools
import multiprocessing
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, TypeVar

from e2e.collector import freeze_modules
from e2e.simulation_runner.running import Verdict

BAR_WIDTH: Final = 30
SEEDS_AT_A_TIME: Final = 5
BATCHES_OF_A_PROCESS: Final = 40
"""Then another one goes on: what runs leave behind, such as the brokers' HTTP applications, goes with it."""
START_METHOD: Final = "forkserver"
VIOLATIONS_SHOWN: Final = 5
ALL: Final = "all"
TOLD_EVERY: Final = 100
"""Seeds, where there is no terminal to draw a bar on."""

Work = TypeVar("Work")
Result = TypeVar("Result")


class Simulator:
    """A package with `run.run_seed` and `mistakes.MISTAKES`; each process loads it by its name."""

    def __init__(self, program: str, seeds_per_mistake: int = 1_000) -> None:
        """`seeds_per_mistake`: of `--mistake all`, after which one counts as not found."""
        self.program = program
        self.seeds_per_mistake = seeds_per_mistake
        self.mistakes: dict[str, Any] = importlib.import_module(f"{program}.mistakes").MISTAKES
        self._run_seed: Callable[..., Verdict] = importlib.import_module(f"{program}.run").run_seed

    def run(self, seed: int, mistake: str | None, *, keep_trace: bool = False) -> Verdict:
        """One seed."""
        planted = None if mistake is None else self.mistakes[mistake]
        return self._run_seed(seed, mistake=planted, keep_trace=keep_trace)


def main(simulator: Simulator, arguments: list[str] | None = None) -> int:
    """The exit code."""
    options = _parser(simulator).parse_args(arguments)
    if options.mistake == ALL:
        return _all_mistakes(simulator, options)
    if options.seed is not None:
        return _one(simulator, options)
    return _many(simulator, options)


def _parser(simulator: Simulator) -> argparse.ArgumentParser:
    mistakes = sorted(simulator.mistakes)
    parser = argparse.ArgumentParser(
        prog=f"python -m {simulator.program}",
        description=__doc__,
        epilog="\n  ".join(["known mistakes:", *mistakes]),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--seeds", type=int, default=1_000, help="how many seeds to run (default: %(default)s)")
    parser.add_argument("--first", type=int, default=0, help="the first of them (default: %(default)s)")
    parser.add_argument("--seed", type=int, help="run this one only")
    parser.add_argument("--trace", action="store_true", help="with --seed: print everything that happened")
    parser.add_argument(
        "--mistake",
        choices=[ALL, *mistakes],
        metavar="NAME",
        help=f"plant a known mistake, or each ({ALL}), to be found",
    )
    parser.add_argument("--jobs", type=int, default=2, help="processes at a time (default: %(default)s)")
    return parser


def run_batch(work: tuple[str, range, str | None]) -> list[Verdict]:
    """Some seeds in a row, with a planted mistake or none; for a pool of processes."""
    program, seeds, mistake = work
    simulator = Simulator(program)
    freeze_modules()
    return [simulator.run(seed, mistake) for seed in seeds]


def find_mistake(work: tuple[str, str, range]) -> tuple[str, Verdict | None]:
    """The mistake's name, and the first of some seeds that finds it; for a pool of processes."""
    program, name, seeds = work
    simulator = Simulator(program)
    freeze_modules()
    for seed in seeds:
        verdict = simulator.run(seed, name)
        if verdict.violations:
            return name, verdict
    return name, None


def _one(simulator: Simulator, options: argparse.Namespace) -> int:
    verdict = simulator.run(options.seed, options.mistake, keep_trace=options.trace)
    if options.trace:
        sys.stdout.writelines(verdict.trace_lines)
    _say(
        f"seed {verdict.seed}: {_told(verdict.counts)}, {verdict.virtual_seconds:.1f} virtual seconds in "
        f"{verdict.real_seconds:.2f} s, trace {verdict.trace_digest}"
    )
    for violation in verdict.violations:
        _say(f"  {violation}")
    _say("" if verdict.violations else "  every promise was kept")
    return _code(bool(verdict.violations), options.mistake)


def _many(simulator: Simulator, options: argparse.Namespace) -> int:
    began = time.monotonic()
    seeds = range(options.first, options.first + options.seeds)
    failed: list[int] = []
    counts: dict[str, int] = {}
    done = 0
    for verdict in _verdicts(simulator, seeds, options.mistake, options.jobs):
        done += 1
        for what, count in verdict.counts.items():
            counts[what] = counts.get(what, 0) + count
        if verdict.violations:
            failed.append(verdict.seed)
            _clear_bar()
            _tell_failure(simulator, verdict, options.mistake)
            if options.mistake:
                break
        _draw_bar(done, len(seeds), len(failed))
    _clear_bar()
    _say(f"{done} seeds in {time.monotonic() - began:.0f} s: {_told(counts)}, {len(failed)} seeds broke a promise")
    return _code(bool(failed), options.mistake)


def _all_mistakes(simulator: Simulator, options: argparse.Namespace) -> int:
    """One line for each mistake, as soon as it is known."""
    seeds = range(options.first, options.first + simulator.seeds_per_mistake)
    missed = 0
    work = ((simulator.program, name, seeds) for name in sorted(simulator.mistakes))
    for name, verdict in in_processes(find_mistake, work, options.jobs):
        missed += verdict is None
        found = f"NOT found in {len(seeds)} seeds" if verdict is None else f"seed {verdict.seed}"
        _say(f"{name}: {found}{'' if verdict is None else ': ' + verdict.violations[0]}")
    _say(f"{len(simulator.mistakes)} mistakes, {missed} not found")
    return int(bool(missed))


def _verdicts(simulator: Simulator, seeds: range, mistake: str | None, jobs: int) -> Iterator[Verdict]:
    """In the order of the seeds."""
    starts = range(0, len(seeds), SEEDS_AT_A_TIME)
    batches = [(simulator.program, seeds[at : at + SEEDS_AT_A_TIME], mistake) for at in starts]
    if jobs <= 1:
        for batch in batches:
            yield from run_batch(batch)
        return
    for verdicts in in_processes(run_batch, batches, jobs):
        yield from verdicts


def in_processes(function: Callable[[Work], Result], works: Iterable[Work], jobs: int) -> Iterator[Result]:
    """The results in the order of `works`; now and then in new processes.

    `max_tasks_per_child` would do that, but an executor of Python 3.11 may wait for ever then (gh-115634)."""
    context = multiprocessing.get_context(START_METHOD)
    left = iter(works)
    while share := list(itertools.islice(left, jobs * BATCHES_OF_A_PROCESS)):
        pool = concurrent.futures.ProcessPoolExecutor(jobs, mp_context=context)
        try:
            yield from pool.map(function, share)
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def _tell_failure(simulator: Simulator, verdict: Verdict, mistake: str | None) -> None:
    _say(f"seed {verdict.seed} broke a promise:")
    for violation in verdict.violations[:VIOLATIONS_SHOWN]:
        _say(f"  {violation}")
    more = len(verdict.violations) - VIOLATIONS_SHOWN
    if more > 0:
        _say(f"  and {more} more")
    planted = f" --mistake {mistake}" if mistake else ""
    _say(f"  again: python -m {simulator.program} --seed {verdict.seed}{planted} --trace")


def _told(counts: dict[str, int]) -> str:
    return ", ".join(f"{count} {what}" for what, count in counts.items())


def _code(found: bool, mistake: str | None) -> int:
    return int(found != bool(mistake))


def _draw_bar(done: int, total: int, failed: int) -> None:
    if sys.stderr.isatty():
        filled = BAR_WIDTH * done // total
        bar = "#" * filled + "." * (BAR_WIDTH - filled)
        sys.stderr.write(f"\r[{bar}] {done}/{total} seeds, {failed} failed")
        sys.stderr.flush()
    elif done % TOLD_EVERY == 0 and done < total:
        _say(f"{done} of {total} seeds, {failed} failed")


def _clear_bar() -> None:
    if sys.stderr.isatty():
        sys.stderr.write("\r" + " " * (BAR_WIDTH + 40) + "\r")


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()
