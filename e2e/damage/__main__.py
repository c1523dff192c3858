"""Damages files, one case after the other: `python -m e2e.damage --rounds 3`, or one case: `--case FILE KIND SEED`.

Each round damages every file in every way, at places that the seed chooses. With `--pool` the files are those of one
of three bookies, which has to get back what it lost; else those of a standalone cluster. A case that is neither right
nor told prints the command that repeats it. The exit code is 1 when there was one.
"""

from __future__ import annotations

import argparse
import asyncio
import collections
import logging
import sys
import tempfile
from pathlib import Path

from e2e import processes
from e2e.damage.kinds import Kind
from e2e.damage.pool import Pool
from e2e.damage.world import World


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m e2e.damage", description=__doc__)
    parser.add_argument("--rounds", type=int, default=1, help="every file in every way (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="of the first round (default: %(default)s)")
    parser.add_argument("--only", default="", help="files whose name has this in it")
    parser.add_argument("--case", nargs=3, metavar=("FILE", "KIND", "SEED"), help="this one only")
    parser.add_argument("--pool", action="store_true", help="one of three bookies, instead of a standalone cluster")
    parser.add_argument("--healing", action="store_true", help="with --pool: it may heal from its first start on")
    parser.add_argument("--list", action="store_true", help="print what became of each case")
    options = parser.parse_args(arguments)
    logging.lastResort = None  # The suite listens itself.
    processes.leave_nothing_behind()
    with tempfile.TemporaryDirectory(prefix="magnetar-damage-") as folder:
        path = Path(folder)
        return asyncio.run(_run(Pool(path, heals=options.healing) if options.pool else World(path), options))


async def _run(world: World | Pool, options: argparse.Namespace) -> int:
    await world.prepare()
    if options.case:
        name, kind, seed = options.case
        cases = [(name, Kind(kind), int(seed))]
    else:
        cases = [
            (name, kind, seed)
            for seed in range(options.seed, options.seed + options.rounds)
            for name in world.files
            for kind in Kind
            if options.only in name
        ]
    counts: collections.Counter[str] = collections.Counter()
    bad = 0
    for name, kind, seed in cases:
        verdict = await world.run(name, kind, seed)
        counts[verdict.outcome.name] += 1
        if options.list or options.case or not verdict.outcome.good:
            _say(f"{name} {kind} {seed}: {verdict.outcome.name}, {verdict.received} received. {verdict.said}")
        if not verdict.outcome.good:
            bad += 1
            pool = ("--pool " if options.pool else "") + ("--healing " if options.healing else "")
            _say(f"  {verdict.outcome.value}; again: python -m e2e.damage {pool}--case {name} {kind} {seed}")
    _say(f"{len(cases)} cases: " + ", ".join(f"{count} {name}" for name, count in sorted(counts.items())))
    return 1 if bad else 0


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    raise SystemExit(main())
