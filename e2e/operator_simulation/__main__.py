"""Runs seeds: `python -m e2e.operator_simulation --seeds 1000`, `--seed N [--trace]`, `--mistake NAME`.

A seed that fails prints what was wrong and the one command that runs it again. The exit code is 1 when a promise was
broken; with a planted mistake it is 1 when no seed found it.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import multiprocessing
import sys
import time
from collections.abc import Iterator
from typing import Final

from e2e.operator_simulation.mistakes import MISTAKES
from e2e.operator_simulation.run import Verdict, run_batch, run_seed

BAR_WIDTH: Final = 30
SEEDS_AT_A_TIME: Final = 5
VIOLATIONS_SHOWN: Final = 5
TOLD_EVERY: Final = 100
"""Seeds, where there is no terminal to draw a bar on."""


def main(arguments: list[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    if options.seed is not None:
        return _one(options)
    return _many(options)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m e2e.operator_simulation", description=__doc__)
    parser.add_argument("--seeds", type=int, default=1_000, help="how many seeds to run (default: %(default)s)")
    parser.add_argument("--first", type=int, default=0, help="the first of them (default: %(default)s)")
    parser.add_argument("--seed", type=int, help="run this one only")
    parser.add_argument("--trace", action="store_true", help="with --seed: print everything that happened")
    parser.add_argument("--mistake", choices=sorted(MISTAKES), help="plant a known mistake, which must be found")
    parser.add_argument("--jobs", type=int, default=2, help="processes at a time (default: %(default)s)")
    return parser


def _one(options: argparse.Namespace) -> int:
    verdict = run_seed(
        options.seed, mistake=MISTAKES[options.mistake] if options.mistake else None, keep_trace=options.trace
    )
    if options.trace:
        sys.stdout.writelines(verdict.trace_lines)
    _say(
        f"seed {verdict.seed}: {verdict.passes} passes, {verdict.calls} calls, as wished after "
        f"{verdict.converged_seconds:.0f} s, {verdict.virtual_seconds:.0f} virtual seconds in "
        f"{verdict.real_seconds:.2f} s, trace {verdict.trace_digest}"
    )
    for violation in verdict.violations:
        _say(f"  {violation}")
    _say("" if verdict.violations else "  every promise was kept")
    return _code(bool(verdict.violations), options.mistake)


def _many(options: argparse.Namespace) -> int:
    began = time.monotonic()
    seeds = list(range(options.first, options.first + options.seeds))
    failed: list[int] = []
    passes = calls = done = 0
    hours = 0.0
    for verdict in _verdicts(seeds, options.mistake, options.jobs):
        done += 1
        passes += verdict.passes
        calls += verdict.calls
        hours += verdict.virtual_seconds / 3600
        if verdict.violations:
            failed.append(verdict.seed)
            _clear_bar()
            _tell_failure(verdict, options.mistake)
            if options.mistake:
                break
        _draw_bar(done, len(seeds), len(failed))
    _clear_bar()
    _say(
        f"{done} seeds in {time.monotonic() - began:.0f} s: {passes} passes, {calls} calls, {hours:.0f} virtual hours, "
        f"{len(failed)} seeds broke a promise"
    )
    return _code(bool(failed), options.mistake)


def _verdicts(seeds: list[int], mistake: str | None, jobs: int) -> Iterator[Verdict]:
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
    _say(f"  again: python -m e2e.operator_simulation --seed {verdict.seed}{planted} --trace")


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


if __name__ == "__main__":
    sys.exit(main())
