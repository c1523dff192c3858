"""Runs seeds: `python -m e2e.simulation --seeds 1000`, `--seed N [--trace]`, `--mistake NAME`, `--mistake all`.

A seed that fails prints what was wrong and the one command that runs it again. The exit code is 1 when a promise was
broken; with a planted mistake it is 1 when no seed found it. `--mistake all` plants each in turn, and lists which seed
of a hundred found it.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import multiprocessing
import sys
import time
from collections.abc import Iterator
from typing import Final

from e2e.simulation.mistakes import MISTAKES
from e2e.simulation.run import Verdict, find_mistake, run_batch, run_seed

BAR_WIDTH: Final = 30
SEEDS_AT_A_TIME: Final = 5
VIOLATIONS_SHOWN: Final = 5
ALL: Final = "all"
SEEDS_PER_MISTAKE: Final = 1_000
"""Most are found in the first ten; some need what few worlds have."""


def main(arguments: list[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    if options.mistake == ALL:
        return _all_mistakes(options)
    if options.seed is not None:
        return _one(options)
    return _many(options)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m e2e.simulation", description=__doc__)
    parser.add_argument("--seeds", type=int, default=1_000, help="how many seeds to run (default: %(default)s)")
    parser.add_argument("--first", type=int, default=0, help="the first of them (default: %(default)s)")
    parser.add_argument("--seed", type=int, help="run this one only")
    parser.add_argument("--trace", action="store_true", help="with --seed: print everything that happened")
    parser.add_argument(
        "--mistake", choices=[ALL, *sorted(MISTAKES)], help="plant a known mistake, or each; it must be found"
    )
    parser.add_argument("--jobs", type=int, default=2, help="processes at a time (default: %(default)s)")
    return parser


def _one(options: argparse.Namespace) -> int:
    verdict = run_seed(
        options.seed, mistake=MISTAKES[options.mistake] if options.mistake else None, keep_trace=options.trace
    )
    if options.trace:
        sys.stdout.writelines(verdict.trace_lines)
    _say(
        f"seed {verdict.seed}: {verdict.ledgers} ledgers, {verdict.confirmed_entries} confirmed entries, "
        f"{verdict.virtual_seconds:.1f} virtual seconds in {verdict.real_seconds:.2f} s, trace {verdict.trace_digest}"
    )
    for violation in verdict.violations:
        _say(f"  {violation}")
    _say("" if verdict.violations else "  every promise was kept")
    return _code(bool(verdict.violations), options.mistake)


def _many(options: argparse.Namespace) -> int:
    began = time.monotonic()
    seeds = range(options.first, options.first + options.seeds)
    failed: list[int] = []
    confirmed = ledgers = done = 0
    for verdict in _verdicts(seeds, options.mistake, options.jobs):
        done += 1
        confirmed += verdict.confirmed_entries
        ledgers += verdict.ledgers
        if verdict.violations:
            failed.append(verdict.seed)
            _clear_bar()
            _tell_failure(verdict, options.mistake)
            if options.mistake:
                break
        _draw_bar(done, len(seeds), len(failed))
    _clear_bar()
    _say(
        f"{done} seeds in {time.monotonic() - began:.0f} s: {ledgers} ledgers, {confirmed} confirmed entries, "
        f"{len(failed)} seeds broke a promise"
    )
    return _code(bool(failed), options.mistake)


def _all_mistakes(options: argparse.Namespace) -> int:
    """One line for each mistake, as soon as it is known."""
    seeds = range(options.first, options.first + SEEDS_PER_MISTAKE)
    missed = 0
    context = multiprocessing.get_context("forkserver")
    with concurrent.futures.ProcessPoolExecutor(options.jobs, mp_context=context) as pool:
        for name, verdict in pool.map(find_mistake, ((name, seeds) for name in sorted(MISTAKES))):
            missed += verdict is None
            found = f"NOT found in {len(seeds)} seeds" if verdict is None else f"seed {verdict.seed}"
            _say(f"{name}: {found}{'' if verdict is None else ': ' + verdict.violations[0]}")
    _say(f"{len(MISTAKES)} mistakes, {missed} not found")
    return int(bool(missed))


def _verdicts(seeds: range, mistake: str | None, jobs: int) -> Iterator[Verdict]:
    """In the order of the seeds."""
    batches = [(seeds[at : at + SEEDS_AT_A_TIME], mistake) for at in range(0, len(seeds), SEEDS_AT_A_TIME)]
    if jobs <= 1:
        for batch in batches:
            yield from run_batch(batch)
        return
    context = multiprocessing.get_context("forkserver")
    with concurrent.futures.ProcessPoolExecutor(jobs, mp_context=context) as pool:
        try:
            for verdicts in pool.map(run_batch, batches):
                yield from verdicts
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def _tell_failure(verdict: Verdict, mistake: str | None) -> None:
    _say(f"seed {verdict.seed} broke a promise:")
    for violation in verdict.violations[:VIOLATIONS_SHOWN]:
        _say(f"  {violation}")
    more = len(verdict.violations) - VIOLATIONS_SHOWN
    if more > 0:
        _say(f"  and {more} more")
    planted = f" --mistake {mistake}" if mistake else ""
    _say(f"  again: python -m e2e.simulation --seed {verdict.seed}{planted} --trace")


def _code(found: bool, mistake: str | None) -> int:
    return int(found != bool(mistake))


def _draw_bar(done: int, total: int, failed: int) -> None:
    if sys.stderr.isatty():
        filled = BAR_WIDTH * done // total
        bar = "#" * filled + "." * (BAR_WIDTH - filled)
        sys.stderr.write(f"\r[{bar}] {done}/{total} seeds, {failed} failed")
        sys.stderr.flush()


def _clear_bar() -> None:
    if sys.stderr.isatty():
        sys.stderr.write("\r" + " " * (BAR_WIDTH + 40) + "\r")


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
