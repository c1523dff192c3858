"""Runs seeds: `python -m e2e.managed_histories --seeds 1000`, `--seed N [--trace]`, `--mistake NAME`.

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

from e2e.managed_histories.mistakes import MISTAKES
from e2e.managed_histories.run import Verdict, run_batch, run_seed

SEEDS_AT_A_TIME: Final = 20
VIOLATIONS_SHOWN: Final = 5


def main(arguments: list[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    return _one(options) if options.seed is not None else _many(options)


def _parser() -> argparse.ArgumentParser:
    known = sorted(MISTAKES)
    parser = argparse.ArgumentParser(
        prog="python -m e2e.managed_histories",
        description=__doc__,
        epilog="\n  ".join(["known mistakes:", *known]),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--seeds", type=int, default=1_000, help="how many seeds to run (default: %(default)s)")
    parser.add_argument("--first", type=int, default=0, help="the first of them (default: %(default)s)")
    parser.add_argument("--seed", type=int, help="run this one only")
    parser.add_argument("--trace", action="store_true", help="with --seed: print everything that happened")
    parser.add_argument("--mistake", choices=known, metavar="NAME", help="plant a known mistake, which must be found")
    parser.add_argument("--jobs", type=int, default=2, help="processes at a time (default: %(default)s)")
    return parser


def _one(options: argparse.Namespace) -> int:
    verdict = run_seed(options.seed, mistake=options.mistake, keep_trace=options.trace)
    sys.stdout.writelines(verdict.trace_lines)
    _say(
        f"seed {verdict.seed}: {verdict.published} entries, {verdict.owners} owners, {verdict.looks} looks, "
        f"{verdict.virtual_seconds:.0f} virtual seconds in {verdict.real_seconds:.2f} s, trace {verdict.trace_digest}"
    )
    for violation in verdict.violations:
        _say(f"  {violation}")
    _say("" if verdict.violations else "  every promise was kept")
    return int(bool(verdict.violations) != bool(options.mistake))


def _many(options: argparse.Namespace) -> int:
    began = time.monotonic()
    seeds = range(options.first, options.first + options.seeds)
    failed: list[int] = []
    done = published = owners = looks = 0
    for verdict in _verdicts(seeds, options.mistake, options.jobs):
        done += 1
        published += verdict.published
        owners += verdict.owners
        looks += verdict.looks
        if verdict.violations:
            failed.append(verdict.seed)
            _tell_failure(verdict, options.mistake)
            if options.mistake:
                break
    _say(
        f"{done} seeds in {time.monotonic() - began:.0f} s: {published} entries, {owners} owners, "
        f"{looks} looks of fresh owners, {len(failed)} seeds broke a promise"
    )
    return int(bool(failed) != bool(options.mistake))


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
    _say(f"  again: python -m e2e.managed_histories --seed {verdict.seed}{planted} --trace")


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
