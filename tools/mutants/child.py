"""What happens in the process of one mutant: tests, or seeds of a simulator, until something notices."""

from __future__ import annotations

import contextlib
import importlib
import json
import logging
import os
import resource
import signal
import sys
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol, cast

from e2e.processes import tree
from tools.mutants.import_hook import install
from tools.mutants.model import ROOT, Mutant
from tools.mutants.parts import Simulator

MEMORY_BYTES_MAX: Final = 4 << 30
"""Of a mutant that takes memory without end. The largest tests take 1 GB."""
PRELOADED: Final = (
    *("pytest", "_pytest.assertion.rewrite", "hypothesis", "hypothesis.strategies", "hypothesis.stateful"),
    *("asyncio", "uvloop", "msgspec", "kazoo.client", "google.protobuf.message", "aiohttp", "aiohttp.web"),
    *("grpc", "grpc.aio", "rocksdict", "zstandard", "lz4.block", "snappy", "jwt", "cryptography.x509", "yaml"),
)
"""Libraries that most tests need, loaded once before the first fork. None of the project's own modules."""

NOT_RUN: Final = "the tests did not run"
"""No answer of a test: its files may have been renamed since the run began."""


@dataclass(frozen=True, slots=True)
class Work:
    """What one process does: either tests or seeds."""

    mutant: Mutant | None
    """None: the sources as they are."""
    tests: tuple[str, ...] = ()
    test_seconds_max: float = 60.0
    """Of a single test."""
    simulator: Simulator | None = None
    seeds: int = 0


@dataclass(frozen=True, slots=True)
class Answer:
    """What a process has found."""

    noticed_by: str
    """Empty when all is as it should be."""
    slowest_seconds: float = 0.0
    """The slowest of the tests."""


def preload() -> None:
    """Load libraries that every process would load again."""
    for name in PRELOADED:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)


def run(work: Work, folder: Path) -> None:
    """Do it in this process, which is a fresh fork, and end the process. The answer is left in the folder."""
    os.setsid()
    with (folder / "output.txt").open("wb") as output:
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_BYTES_MAX, MEMORY_BYTES_MAX))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    code = 1
    try:
        os.chdir(ROOT)
        install(work.mutant)
        answer = _simulate(work) if work.simulator is not None else _test(work, folder)
        _leave(folder, answer)
        code = 0
    except BaseException:  # noqa: BLE001  (a fork must not go on in its parent's code, whatever came)
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _leave(folder: Path, answer: Answer) -> None:
    (folder / "answer.json").write_text(json.dumps([answer.noticed_by, answer.slowest_seconds]))


def read_answer(folder: Path) -> Answer | None:
    """What a process has left; None when it came to nothing."""
    try:
        noticed_by, slowest_seconds = json.loads((folder / "answer.json").read_text())
    except (FileNotFoundError, json.JSONDecodeError):
        return None
    return Answer(noticed_by, slowest_seconds)


def end_descendants(process_id: int) -> None:
    """Kill what a process has started, in sessions of their own as well."""
    for descendant in tree(process_id)[1:]:
        with contextlib.suppress(ProcessLookupError):
            os.kill(descendant, signal.SIGKILL)


class _FirstFailure:
    """A plugin that ends the process at the first failure, and remembers how long the slowest test took.

    Pytest itself would end fixtures first, and wait for what the failed test may have left behind: a quarter of a
    minute, after which nothing more is known."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.slowest_seconds = 0.0

    def pytest_runtest_logreport(self, report: _Report) -> None:
        """Pytest: a test's setup, call or teardown is over."""
        self.slowest_seconds = max(self.slowest_seconds, report.duration)
        if report.failed:
            self._end(report, report.nodeid)

    def pytest_collectreport(self, report: _Report) -> None:
        """Pytest: a file was read."""
        if report.failed:
            self._end(report, f"{report.nodeid} (import)")

    def _end(self, report: _Report, name: str) -> None:
        with (self._folder / "output.txt").open("a") as output:
            output.write(f"\n{name}\n{report.longreprtext}\n")
        _leave(self._folder, Answer(name, self.slowest_seconds))
        end_descendants(os.getpid())
        os._exit(0)


class _Report(Protocol):
    nodeid: str
    failed: bool
    duration: float
    longreprtext: str


def _test(work: Work, folder: Path) -> Answer:
    import pytest
    from hypothesis import HealthCheck, Phase, configuration, settings

    # What is found is not made smaller, nor remembered: that it is found is enough.
    configuration.set_hypothesis_home_dir(folder / "hypothesis")
    settings.register_profile(
        "mutants",
        deadline=None,
        database=None,
        suppress_health_check=[HealthCheck.too_slow],
        phases=(Phase.explicit, Phase.generate),
    )
    first = _FirstFailure(folder)
    options = ["-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "--tb=short", "--hypothesis-profile=mutants"]
    options += ["--hypothesis-seed=0", f"--basetemp={folder / 'files'}", "-o", f"timeout={work.test_seconds_max:.0f}"]
    # Pytest's own import hook stands before ours: it would load `magnetar.standalone`, the home of a plugin, as it is.
    options += ["--assert=plain"]
    code = int(pytest.main([*options, *work.tests], plugins=[first]))
    if code in (pytest.ExitCode.USAGE_ERROR, pytest.ExitCode.NO_TESTS_COLLECTED):
        return Answer(NOT_RUN, first.slowest_seconds)
    return Answer(f"pytest ended with {code}" if code else "", first.slowest_seconds)


class _Simulation(Protocol):
    def run_seed(self, seed: int) -> _Verdict:
        """Run one."""
        ...


class _Verdict(Protocol):
    violations: list[str]


def _simulate(work: Work) -> Answer:
    sys.path.insert(0, str(ROOT))
    name = "e2e.operator_simulation.run" if work.simulator is Simulator.OPERATOR else "e2e.simulation.run"
    logging.getLogger("magnetar").setLevel(logging.ERROR)
    simulation = cast(_Simulation, importlib.import_module(name))
    for seed in range(work.seeds):
        verdict = simulation.run_seed(seed)
        if verdict.violations:
            print(*verdict.violations, sep="\n")
            return Answer(f"{work.simulator} simulator, seed {seed}")
    return Answer("")
