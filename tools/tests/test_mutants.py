"""The mutation run: which mistakes it makes of a source, that it plants them, and that it notices who notices."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from tools.mutants import report
from tools.mutants.catalog import BadEntry, curated_mutants, explanations
from tools.mutants.child import end_descendants
from tools.mutants.choice import choose, compiles
from tools.mutants.import_hook import MutantFinder
from tools.mutants.model import CURATED, ROOT, Mutant, Outcome, Verdict, dotted_name
from tools.mutants.modules import PARTS, part_of
from tools.mutants.operators import candidates

SOURCE = '''"""A module."""

LIMIT = 1 + 1


class Queue:
    """Holds."""

    def take(self, first: int, last: int, label: str) -> list[int]:
        """Something < something else."""
        if first <= last and not self.closed:
            raise Closed(f"{first < last}")
        logger.warning("a < b: %s", first < last)
        self.taken = min(first, keep(first, last))
        self.file.sync()
        for one in self.items:
            if one is None:
                continue
        return [first + 1]

    async def is_open(self) -> bool:
        assert self.items
        await self.flush()
        return True

    def __repr__(self) -> str:
        return "x" if self.closed else "y"
'''


def edits(source: str = SOURCE) -> list[tuple[str, str, str]]:
    return [(mutant.operator, mutant.before, mutant.after) for mutant in candidates("lib/src/magnetar/a.py", source)]


@pytest.mark.parametrize(
    "edit",
    [
        ("negate a condition", "one is None", "not (one is None)"),
        ("the neighbour of a comparison", "first <= last", "first < last"),
        ("the neighbour of a comparison", "one is None", "one is not None"),
        ("swap and with or", "first <= last and not self.closed", "first <= last or not self.closed"),
        ("forget a condition", "first <= last and not self.closed", "first <= last"),
        ("remove a not", "not self.closed", "(self.closed)"),
        ("drop a raise", 'raise Closed(f"{first < last}")', "pass"),
        ("drop an assignment", "self.taken = min(first, keep(first, last))", "pass"),
        ("drop a call", "self.file.sync()", "pass"),
        ("drop a call", "await self.flush()", "pass"),
        ("drop a jump", "continue", "pass"),
        ("turn an answer round", "return True", "return False"),
        ("one off", "first + 1", "first"),
        ("the opposite of a call", "min", "max"),
        ("a wrong variable", "keep(first, last)", "keep(last, last)"),
    ],
    ids=lambda edit: f"{edit[0]}: {edit[1]}",
)
def test_each_kind_of_mistake_is_made(edit: tuple[str, str, str]) -> None:
    assert edit in edits()


def test_what_no_promise_rests_on_is_left_alone() -> None:
    """Texts, messages, logs, assertions, constants of the module."""
    assert not [before for _, before, _ in edits() if "logger" in before or before in ("1 + 1", "self.items", '"x"')]
    assert not [before for operator, before, _ in edits() if before == "first < last"]


def test_a_mutant_differs_in_its_place_only_and_compiles() -> None:
    for mutant in candidates("lib/src/magnetar/a.py", SOURCE):
        assert compiles(mutant, SOURCE)
        assert mutant.apply(SOURCE)[: mutant.start] == SOURCE[: mutant.start]
        assert SOURCE[mutant.start : mutant.end].split() == mutant.before.split()
        assert SOURCE.count("\n", 0, mutant.start) + 1 == mutant.line


def test_places_are_right_behind_letters_of_several_bytes() -> None:
    source = 'def f(x: str) -> bool:\n    return x == "ä" and not g("ö", x == "ü")\n'
    for mutant in candidates("lib/src/magnetar/a.py", source):
        assert compiles(mutant, source)


def test_the_choice_is_the_same_each_time_and_in_functions_that_did_not_change() -> None:
    changed = SOURCE.replace("return True", "return self.open and True")
    count = 4
    chosen = choose(candidates("a", SOURCE), count, 1, lambda _: True)
    assert chosen == choose(candidates("a", SOURCE), count, 1, lambda _: True)
    assert {mutant.function for mutant in chosen} == {"Queue.take", "Queue.is_open"}
    others = choose(candidates("a", changed), count, 1, lambda _: True)
    assert [mutant.key for mutant in chosen if mutant.function == "Queue.take"] == [
        mutant.key for mutant in others if mutant.function == "Queue.take"
    ]
    assert len(choose(candidates("a", SOURCE), 1_000, 1, lambda _: True)) == len(candidates("a", SOURCE))


def test_every_curated_mistake_has_its_place_and_its_promise() -> None:
    mutants = curated_mutants()
    assert len(mutants) >= 60
    for mutant in mutants:
        assert mutant.operator == CURATED
        assert mutant.module.startswith(part_of(mutant.module).folder)
        assert mutant.promise
        assert compiles(mutant, (ROOT / mutant.module).read_text()), mutant.name


def test_a_module_that_stands_in_no_part_belongs_to_the_one_that_is_there_for_its_folder() -> None:
    """Others of that folder name the modules that their tests are about."""
    folder = "broker/src/magnetar/broker/subscriptions"
    assert part_of(f"{folder}/subscription.py").name == "subscriptions"
    assert part_of(f"{folder}/delayed.py").name == "delayed entries"
    assert part_of("lib/src/magnetar/managed/cursors/recovery.py").name == "managed"


def test_a_curated_mistake_that_lost_its_place_is_told(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("x = 1\nx = 1\n")
    entry = '[[mistake]]\nname = "n"\nmodule = "a.py"\npromise = "p"\nbefore = "{}"\nafter = "x = 2"\n'
    for before in ("x = 1", "y = 1"):
        (tmp_path / "a.toml").write_text(entry.format(before))
        with pytest.raises(BadEntry):
            curated_mutants(tmp_path, tmp_path)


def test_a_curated_mistake_follows_code_that_moves_to_the_next_module(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("y = 1\n")
    (tmp_path / "b.py").write_text("x = 1\n")
    entry = '[[mistake]]\nname = "n"\nmodule = "a.py"\npromise = "p"\nbefore = "x = 1"\nafter = "x = 2"\n'
    (tmp_path / "a.toml").write_text(entry)
    (mutant,) = curated_mutants(tmp_path, tmp_path)
    assert (mutant.module, mutant.apply("x = 1\n")) == ("b.py", "x = 2\n")


def test_every_explained_survivor_is_still_in_the_sources() -> None:
    for explanation in explanations():
        source = " ".join((ROOT / explanation.module).read_text().split())
        assert " ".join(explanation.before.split()) in source, explanation
        assert explanation.reason


def test_modules_and_their_tests_are_there_and_stand_in_one_part() -> None:
    modules = [module for part in PARTS for module in part.paths()]
    assert len(modules) == len(set(modules))
    for path in [*modules, *(test for part in PARTS for test in part.tests)]:
        assert (ROOT / path).exists(), path


def test_the_mutated_source_is_what_is_imported_and_the_file_stays(tmp_path: Path) -> None:
    module = "lib/src/magnetar/ledger/made.py"
    (tmp_path / module).parent.mkdir(parents=True)
    (tmp_path / module).write_text("ANSWER = 1\n")
    mutant = Mutant(module, "", CURATED, 9, 10, 1, "1", "2")
    spec = MutantFinder(mutant, tmp_path).find_spec(dotted_name(module), None)
    assert spec is not None
    assert spec.loader is not None
    namespace: dict[str, object] = {}
    exec(spec.loader.get_code("magnetar.ledger.made"), namespace)  # type: ignore[attr-defined]
    assert namespace["ANSWER"] == 2
    assert (tmp_path / module).read_text() == "ANSWER = 1\n"


def test_what_is_stored_is_gone_on_from_unless_the_module_changed(tmp_path: Path) -> None:
    module = PARTS[0].paths()[0]
    outcomes = [
        Outcome(Mutant(module, "f", "o", 0, 1, 1, "a", "b"), Verdict.NOTICED, "test_a.py::test_b", 1.0),
        Outcome(Mutant(module, "f", "o", 0, 1, 1, "a", "c"), Verdict.SURVIVED, "nothing noticed it", 1.0),
    ]
    file = tmp_path / "results.json"
    report.store(outcomes, file)
    assert report.load(file) == {outcomes[0].mutant.key: outcomes[0]}
    assert report.share_noticed(outcomes) == 0.5
    stored = json.loads(file.read_text())
    for row in stored["mutants"]:
        row["digest"] = "another"
    file.write_text(json.dumps(stored))
    assert report.load(file) == {}


STARTS_ANOTHER = """
import os, subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
print(child.pid, flush=True)
os._exit(0 if child.wait() == 0 else 1)
"""


def planted(*arguments: str, results: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tools.mutants", "--seeds", "0", "--results", str(results), *arguments]
    return subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True)


class Planted(NamedTuple):
    """A mistake, the test that is said to have noticed it before, and the one that does."""

    name: str
    known: str
    by: str


SECOND = "proxy/tests/test_proxy_targets.py::test_ports_are_listed_or_in_ranges"

QUICK = [
    # Nothing is known.
    Planted(
        "slices-overlap",
        "",
        "spark-jobs/tests/test_spark_plan.py::test_each_entry_is_in_exactly_one_slice_and_slices_meet",
    ),
    # It notices again, though another one comes before it.
    Planted("proxy-any-port", SECOND, SECOND),
    # It is gone.
    Planted(
        "digest-not-compared",
        "lib/tests/test_wire_bookkeeper_entry.py::test_that_is_gone",
        "lib/tests/test_wire_bookkeeper_entry.py::test_any_flipped_byte_is_found",
    ),
    # It notices no more. Of a package with a pytest plugin, which pytest loads itself.
    Planted(
        "standalone-empties-any-folder",
        "standalone/tests/test_standalone_data_folder.py::test_what_is_stored_stays",
        "standalone/tests/test_standalone_data_folder.py::test_fresh_refuses_a_folder_with_other_things",
    ),
]


@pytest.mark.slow
def test_planted_mistakes_are_noticed_first_by_the_test_that_noticed_them(tmp_path: Path) -> None:
    file = tmp_path / "results.json"
    report.store_noticed_by({**{each.name: each.known for each in QUICK}, "another": "stays"}, file)
    chosen = [word for each in QUICK for word in ("--only", each.name)]
    done = planted("--seconds-max", "60", *chosen, results=file)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = {row["name"]: row for row in json.loads(file.read_text())["mutants"]}
    for each in QUICK:
        assert (rows[each.name]["verdict"], rows[each.name]["by"]) == (Verdict.NOTICED, each.by)
    assert report.load_noticed_by(file) == {**{each.name: each.by for each in QUICK}, "another": "stays"}


@pytest.mark.slow
def test_limits_are_measured_and_a_mistake_that_nobody_planted_is_refused(tmp_path: Path) -> None:
    """Without a mistake the tests pass: what makes mutants noticed is not that everything fails."""
    file = tmp_path / "results.json"
    done = planted("--only", QUICK[0].name, results=file)
    assert done.returncode == 0, done.stdout + done.stderr
    assert report.load_noticed_by(file) == {QUICK[0].name: QUICK[0].by}
    assert planted("--only", "no such mutant", results=file).returncode == 2


def test_what_a_process_has_started_ends_with_it_also_in_sessions_of_their_own() -> None:
    with subprocess.Popen([sys.executable, "-c", STARTS_ANOTHER], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        end_descendants(parent.pid)
        assert parent.wait() == 1, "it has seen its child die"
    assert not Path(f"/proc/{child}").exists()
