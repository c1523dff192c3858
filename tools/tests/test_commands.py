"""What the commands of `make` do with their options."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

from tools import run_compiled_tests
from tools.compile import ROOT

OPTIONS = ("COUNT", "SEED", "ARGS")


def _rides(*arguments: str) -> dict[str, int]:
    """How often what is done, as `make -n` tells."""
    return {fault: int(count) for fault, count in re.findall(r"--fault (\w+) --count (\d+)", _told(*arguments))}


def _told(*arguments: str) -> str:
    """What would be run, without the options of a `make` that runs this test."""
    environment = {name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "MFLAGS", *OPTIONS)}
    command = ["make", "-n", "--no-print-directory", *arguments]
    return subprocess.run(command, cwd=ROOT, env=environment, check=True, stdout=subprocess.PIPE, text=True).stdout


@pytest.mark.parametrize(("target", "first", "whole"), [("storm", "kill", 100), ("faults", "owner", 5)])
def test_a_count_shrinks_all_parts_of_a_storm(target: str, first: str, whole: int) -> None:
    full = _rides(target)
    assert full[first] == whole
    assert len(full) > 5
    assert _rides(target, "COUNT=1") == {fault: -(-count // whole) for fault, count in full.items()}
    assert _rides(target, f"COUNT={2 * whole}") == {fault: 2 * count for fault, count in full.items()}


@pytest.mark.parametrize("target", ["storm", "faults"])
def test_a_storm_passes_options_on(target: str) -> None:
    lines = _told(target, "COUNT=1", "SEED=7", "ARGS=--mistake forgetful-disk").split("\n")
    lines = [line for line in lines if line.strip() and "--remove-stale" not in line]
    assert lines
    assert all(line.endswith("--seed 7 --mistake forgetful-disk") for line in lines), "nothing else is done"


@pytest.mark.parametrize("target", ["run", "cluster"])
def test_a_cluster_runs_as_plain_python_where_that_is_asked_for_or_nothing_compiles(target: str) -> None:
    compiling, told = "make --no-print-directory compile", 'echo "Not compiled: running as plain Python'
    assert f"{compiling} || {told}" in _told(target)
    assert "compile" not in _told(target, "COMPILE=no").replace(told, "")


@pytest.mark.parametrize("asked", ["--help", "--version"])
def test_questions_to_the_compiled_tests_compile_nothing(
    asked: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def compiles() -> None:
        raise AssertionError("the work has begun")

    monkeypatch.setattr(run_compiled_tests, "update_copy", compiles)
    monkeypatch.setattr(sys, "argv", ["run_compiled_tests", "-n", "2", asked])
    assert run_compiled_tests.main() == 0
    assert "pytest" in "".join(capfd.readouterr())
