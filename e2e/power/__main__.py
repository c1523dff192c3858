"""Cuts the power, again and again: `python -m e2e.power [--subject standalone|bookie] [--seed N] [--mistake NAME]`.

A seed records a few seconds of traffic, then starts the server on what each of its cuts has left, and compares with
what clients were told. A cut that fails keeps its state and prints the command that repeats it: the seed fixes the
traffic and what is kept, the machine how both meet. With a planted mistake the exit code is 1 when no cut found it.
"""

from __future__ import annotations

import argparse
import logging
import random
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

from e2e import processes
from e2e.disturbing.building import NoCompiler
from e2e.power.bookie import BookieSubject
from e2e.power.mistakes import CODE, FORGOTTEN, OPTIONS
from e2e.power.recording import build
from e2e.power.standalone import StandaloneSubject
from e2e.power.trial import Trial, nothing_forgotten

logger: Final = logging.getLogger("e2e.power")


def main() -> int:
    """Run, and say how to run the same again."""
    parser = argparse.ArgumentParser(prog="python -m e2e.power", description=__doc__)
    parser.add_argument("--subject", choices=("standalone", "bookie"), default="standalone")
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--seeds", type=int, default=1, help="how many, from --seed on (default: %(default)s)")
    parser.add_argument("--cuts", type=int, default=40, help="of each seed (default: %(default)s)")
    parser.add_argument("--cut", type=int, default=None, help="this one of them alone")
    parser.add_argument("--focus", default="", help='cut only at such changes, as "synced data/metadata/rocksdb/#.log"')
    parser.add_argument("--seconds", type=float, default=4.0, help="of recorded traffic (default: %(default)s)")
    parser.add_argument("--mistake", choices=sorted([*FORGOTTEN, *CODE, *OPTIONS]), help="plant it; it must be found")
    options = parser.parse_args()
    logging.basicConfig(level=logging.ERROR, format="%(message)s")
    logger.setLevel(logging.INFO)
    first = options.seed if options.seed is not None else random.SystemRandom().randrange(1 << 31)
    processes.leave_nothing_behind()
    try:
        failed = sum(_run(seed, options) for seed in range(first, first + options.seeds))
    except NoCompiler as problem:
        logger.info("FAIL %s", problem)
        return 1
    if options.mistake:
        logger.info("%s: %s", options.mistake, "found" if failed else "NOT FOUND")
        return 0 if failed else 1
    logger.info("FAIL" if failed else "OK")
    return 1 if failed else 0


def _run(seed: int, options: argparse.Namespace) -> bool:
    folder = Path(tempfile.mkdtemp(prefix="magnetar-power-"))
    mistake = options.mistake or ""
    forget = FORGOTTEN.get(mistake, nothing_forgotten)
    given = OPTIONS.get(mistake, {}).get(options.subject, [])
    code = mistake if mistake in CODE else ""
    recorder = build(folder)
    trial: Trial[Any]
    if options.subject == "bookie":
        bookie = BookieSubject(folder / "disk", given, code)
        trial = Trial(bookie, recorder, folder, seed, forget, first_failure_ends=bool(mistake))
    else:
        cluster = StandaloneSubject(folder / "disk", given, code)
        trial = Trial(cluster, recorder, folder, seed, forget, first_failure_ends=bool(mistake))
    outcome = trial.run(options.seconds, options.cuts, options.cut, options.focus)
    repeat = f"python -m e2e.power --subject {options.subject} --seed {seed} --cuts {options.cuts}"
    repeat += f' --focus "{options.focus}"' if options.focus else ""
    logger.info(
        "%s, seed %d: %d changes, %d cuts (%d with a second one), %d failed, %.0f s",
        *(
            options.subject,
            seed,
            outcome.changes,
            outcome.cuts,
            outcome.second_cuts,
            outcome.failed_cuts,
            outcome.seconds,
        ),
    )
    if outcome.failures:
        logger.info("states and logs: %s\nrepeat: %s", folder, repeat + (f" --mistake {mistake}" if mistake else ""))
    else:
        shutil.rmtree(folder)
    return bool(outcome.failures)


if __name__ == "__main__":
    sys.exit(main())
