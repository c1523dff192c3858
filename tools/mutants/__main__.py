"""Plants mistakes and tells which nobody notices: `make mutants`, `python -m tools.mutants [options]`.

Each mutant is one line written otherwise, in one of the modules that keep the promises. First the tests of its part
run, until one fails, then, where there is one, the simulator. The exit code is 1 when too few were noticed, or when a
survivor is not on the list of those that are explained.
"""

from __future__ import annotations

import argparse
import functools
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from tools.mutants import report
from tools.mutants.catalog import Explanation, curated_mutants, explanations, reason_for
from tools.mutants.child import NOT_RUN, Work, preload
from tools.mutants.choice import choose, compiles
from tools.mutants.model import ROOT, Mutant, Outcome, Verdict
from tools.mutants.modules import PARTS, part_of
from tools.mutants.operators import candidates
from tools.mutants.parts import Part
from tools.mutants.running import Done, Job, run_jobs

GOAL_PERCENT: Final = 95.0
GENERATED_PER_MODULE: Final = 2
SEED: Final = 1
SIMULATOR_SEEDS: Final = 30
"""Within so many seeds each of the simulator's own planted mistakes shows."""
SEED_SECONDS_MAX: Final = 2.0
"""For one seed, on average; it takes a quarter of a second on an idle machine."""
SLOWER_MAX: Final = 5.0
"""A mutant's tests may take so many times what they take without it, ..."""
UNMUTATED_SECONDS_MAX: Final = 600.0
"""For all tests of a part."""
GRACE_SECONDS: Final = 20.0
"""... and this longer: the machine may have begun something else meanwhile."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line."""
    options = _parser().parse_args(arguments)
    # Told to stop, a run ends its processes first.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    console = Console()
    mutants = _chosen(options)
    if options.list:
        for mutant in mutants:
            place = f"{mutant.module.partition('/magnetar/')[2]}:{mutant.line}"
            console.print(
                f"{mutant.key} {place} {mutant.operator}: {report.shown(mutant)}", markup=False, soft_wrap=True
            )
        console.print(f"{len(mutants)} mutants in {len({mutant.module for mutant in mutants})} modules")
        return 0
    if not mutants:
        console.print("no mutant has such a name or module; --list shows all")
        return 2
    preload()
    return _Run(options, console, mutants).run()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tools.mutants", description=__doc__)
    parser.add_argument(
        "--module", action="append", default=[], help="only modules with this in their path; repeatable"
    )
    parser.add_argument("--only", action="append", default=[], help="only mutants with this key or name; repeatable")
    parser.add_argument("--curated", action="store_true", help="only those that somebody has thought of")
    parser.add_argument(
        "--per-module", type=int, default=GENERATED_PER_MODULE, help="generated ones a module (%(default)s)"
    )
    parser.add_argument("--seed", type=int, default=SEED, help="chooses other generated ones (default: %(default)s)")
    parser.add_argument("--seeds", type=int, default=SIMULATOR_SEEDS, help="of the simulator (default: %(default)s)")
    parser.add_argument("--jobs", type=int, default=2, help="mutants at a time (default: %(default)s)")
    parser.add_argument("--goal", type=float, default=GOAL_PERCENT, help="share to be noticed in percent (%(default)s)")
    parser.add_argument("--resume", action="store_true", help="leave out what an earlier run has noticed")
    parser.add_argument("--list", action="store_true", help="show the mutants and plant none")
    parser.add_argument("--keep", action="store_true", help="add to the stored results instead of replacing them")
    parser.add_argument("--seconds-max", type=float, help="for a mutant's tests, instead of measuring what they take")
    parser.add_argument("--results", type=Path, default=report.RESULTS_FILE, help="where they are stored (%(default)s)")
    parser.add_argument("--verbose", action="store_true", help="show what the failing test printed")
    return parser


def _chosen(options: argparse.Namespace) -> list[Mutant]:
    curated = curated_mutants()
    names = {mutant.key for mutant in curated}
    generates = not options.curated and options.per_module and not (options.only and names.issuperset(options.only))
    mutants: list[Mutant] = []
    for part in PARTS:
        # Code may have moved to modules that are not declared.
        moved = {mutant.module for mutant in curated if part_of(mutant.module) is part}.difference(part.paths())
        for module in (*part.paths(), *sorted(moved)):
            if options.module and not any(text in module for text in options.module):
                continue
            mutants += [mutant for mutant in curated if mutant.module == module]
            if generates and module not in moved:
                source = (ROOT / module).read_text()
                fits = functools.partial(compiles, source=source)
                mutants += choose(candidates(module, source), options.per_module, options.seed, fits)
    if options.only:
        mutants = [mutant for mutant in mutants if mutant.key in options.only]
    return mutants


class _Run:
    """One run: what is known so far, and what follows from it."""

    def __init__(self, options: argparse.Namespace, console: Console, mutants: Sequence[Mutant]) -> None:
        self._options: Final = options
        self._console: Final = console
        self._mutants: Final = mutants
        self._explained: Final[list[Explanation]] = explanations()
        self._known: Final = report.load(options.results) if options.resume or options.keep else {}
        self._outcomes: Final[dict[str, Outcome]] = {}
        self._noticed_by: Final = report.load_noticed_by(options.results)
        self._took: Final[dict[str, tuple[float, float]]] = {}
        """Of each part, unmutated: seconds of all tests, of the slowest test."""
        self._failed: Final[list[str]] = []
        """Parts whose tests fail as it is."""

    def run(self) -> int:
        """Do all of it. The exit code."""
        if self._options.resume:
            self._outcomes.update({m.key: self._known[m.key] for m in self._mutants if m.key in self._known})
        waiting = [mutant for mutant in self._mutants if mutant.key not in self._outcomes]
        self._measure({part.name: part for part in map(part_of, (m.module for m in waiting))})
        # Where tests fail as it is, nothing can be said of mutants.
        waiting = [mutant for mutant in waiting if part_of(mutant.module).name in self._took]
        columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
        with Progress(*columns, console=self._console, auto_refresh=False, transient=True) as progress:
            task = progress.add_task("mutants", total=len(waiting))
            jobs = [self._tests_job(mutant) for mutant in waiting]
            spent: dict[str, float] = {}
            for done in run_jobs(jobs, self._options.jobs, self._following, progress.refresh):
                mutant = done.subject
                if done.answer.noticed_by == NOT_RUN and not self._was_tried(done):
                    self._console.print(f"{part_of(mutant.module).name}: {NOT_RUN}", done.output, markup=False)
                    return 2
                spent[mutant.key] = spent.get(mutant.key, 0.0) + done.seconds
                if self._following(done) is None:
                    self._tell(done, spent[mutant.key])
                    progress.advance(task)
        return self._end()

    def _measure(self, parts: dict[str, Part]) -> None:
        """How long the tests of parts take without a mistake, where they pass."""
        if self._options.seconds_max:
            self._took.update(dict.fromkeys(parts, (self._options.seconds_max / SLOWER_MAX,) * 2))
            return
        work = [Job(name, Work(None, part.tests), UNMUTATED_SECONDS_MAX) for name, part in parts.items()]
        for done in run_jobs(work, self._options.jobs, lambda done: None, lambda: None):
            if not done.answer.noticed_by:
                self._took[done.subject] = (done.seconds, done.answer.slowest_seconds)
                continue
            self._failed.append(done.subject)
            self._console.print(f"{done.subject}: fails without any mistake: {done.answer.noticed_by}", markup=False)
            self._console.print(done.output, markup=False)

    def _tests_job(self, mutant: Mutant, *, again: bool = True) -> Job[Mutant]:
        """All tests of its part, or first the one that noticed it last time, alone."""
        part = part_of(mutant.module)
        all_seconds, slowest_seconds = self._took[part.name]
        test_seconds_max = GRACE_SECONDS + SLOWER_MAX * slowest_seconds
        likely = self._noticed_by.get(mutant.key, "")
        tests = (likely,) if again and likely.partition("::")[0] in part.tests else part.tests
        work = Work(mutant, tests, test_seconds_max=test_seconds_max)
        return Job(mutant, work, test_seconds_max + SLOWER_MAX * all_seconds)

    @staticmethod
    def _was_tried(done: Done[Mutant]) -> bool:
        """Whether it was only the test that noticed the mutant last time; it may be gone."""
        return done.work.simulator is None and done.work.tests != part_of(done.subject.module).tests

    def _following(self, done: Done[Mutant]) -> Job[Mutant] | None:
        """All tests, when the one that noticed it last time does not; the simulator, when none of them does."""
        if self._was_tried(done) and done.answer.noticed_by in ("", NOT_RUN):
            return self._tests_job(done.subject, again=False)
        simulator = part_of(done.subject.module).simulator
        if done.answer.noticed_by or done.work.simulator is not None or simulator is None or not self._options.seeds:
            return None
        work = Work(done.subject, simulator=simulator, seeds=self._options.seeds)
        return Job(done.subject, work, GRACE_SECONDS + SEED_SECONDS_MAX * self._options.seeds)

    def _tell(self, done: Done[Mutant], seconds: float) -> None:
        mutant = done.subject
        if done.answer.noticed_by:
            outcome = Outcome(mutant, Verdict.NOTICED, done.answer.noticed_by, seconds)
            if "::" in done.answer.noticed_by:
                self._noticed_by.pop(mutant.key, None)
                self._noticed_by[mutant.key] = done.answer.noticed_by
                report.store_noticed_by(self._noticed_by, self._options.results)
        elif (reason := reason_for(mutant, self._explained)) is not None:
            outcome = Outcome(mutant, Verdict.EXPLAINED, reason, seconds)
        else:
            outcome = Outcome(mutant, Verdict.SURVIVED, "nothing noticed it", seconds)
        self._outcomes[mutant.key] = outcome
        report.print_outcome(self._console, outcome)
        if self._options.verbose:
            self._console.print(done.output, markup=False, highlight=False)
        outcomes = {**self._known, **self._outcomes} if self._options.keep else self._outcomes
        report.store([*outcomes.values()], self._options.results)

    def _end(self) -> int:
        outcomes = [self._outcomes[mutant.key] for mutant in self._mutants if mutant.key in self._outcomes]
        survivors = [outcome for outcome in outcomes if outcome.verdict is Verdict.SURVIVED]
        self._console.print(report.summary(outcomes))
        share = 100 * report.share_noticed(outcomes)
        limited = sum(outcome.by.startswith("time limit") for outcome in outcomes)
        self._console.print(
            f"{share:.1f} % noticed (goal: {self._options.goal:g} %), {limited} of them by their limit of time; "
            f"{len(survivors)} survivors are not explained"
        )
        for outcome in survivors:
            report.print_outcome(self._console, outcome)
        if self._failed:
            self._console.print(f"not planted, as tests fail without: {', '.join(self._failed)}")
            return 2
        return int(share < self._options.goal or bool(survivors))


if __name__ == "__main__":
    sys.exit(main())
