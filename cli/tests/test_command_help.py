"""What all commands have in common: help with words and examples, completion, and a quick root."""

from __future__ import annotations

import importlib
import io
import itertools
import json
import os
import re
import resource
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import typer
from magnetar.cli.command_line import application
from magnetar.cli.commands.lazy import LazyGroup, rejoined
from magnetar.cli.commands.output import (
    BodyFormat,
    Column,
    body_lines,
    human_time,
    progress,
    show_rows,
    to_json,
)
from magnetar.core.text import human_bytes
from typer.core import TyperGroup
from typer.testing import CliRunner

PLAIN = {"COLUMNS": "80", "TERMINAL_WIDTH": "80", "NO_COLOR": "1", "TERM": "dumb"}
"""The same width as in every other test: the library reads it once, when it is imported."""
INTERPRETERS_MAX = 14
"""`magnetar --help` may take as much of the processor as so many interpreters that do nothing."""


def commands() -> Iterator[tuple[str, ...]]:
    """The words of every command."""
    root = typer.main.get_command(application)
    context = root.make_context("magnetar", ["--help"], resilient_parsing=True)

    def walk(group: TyperGroup, words: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
        for name in group.list_commands(context):
            command = group.get_command(context, name)
            if isinstance(command, TyperGroup):
                yield from walk(command, (*words, name))
            else:
                yield (*words, name)

    assert isinstance(root, TyperGroup)
    yield from walk(root, ())


ALL = list(commands())


@pytest.mark.parametrize("words", ALL, ids=" ".join)
def test_every_command_explains_itself(words: tuple[str, ...]) -> None:
    shown = CliRunner().invoke(application, [*words, "--help"], env=PLAIN, prog_name="magnetar")
    assert shown.exit_code == 0
    assert f"Usage: magnetar {' '.join(words)}" in shown.output
    for number, line in enumerate(shown.output.splitlines()):
        assert len(line) <= 80, f"line {number}"
    for example in re.findall(r"^ +magnetar ([a-z-]+(?: [a-z-]+)*)", shown.output, re.MULTILINE):
        named = tuple(example.split())
        # What is said of a command that stands in two groups names one of them.
        assert any(named[: len(known)] == known and known[-1] == words[-1] for known in ALL)


@pytest.mark.parametrize("words", ALL, ids=" ".join)
def test_every_option_is_there_to_its_last_letter(words: tuple[str, ...]) -> None:
    shown = CliRunner().invoke(application, [*words, "--help"], env=PLAIN, prog_name="magnetar").output
    rows = [line.strip("│ ") for line in shown.splitlines() if line.startswith("│")]
    assert not [row for row in rows if re.match(r"\*?\s*-[^…]*?-[\w-]+…", row)], "a name that is cut off"


@pytest.mark.parametrize("words", ALL, ids=" ".join)
def test_examples_can_be_copied_and_sentences_fill_the_lines(words: tuple[str, ...]) -> None:
    shown = CliRunner().invoke(application, [*words, "--help"], env=PLAIN, prog_name="magnetar").output
    told = [line.strip() for line in shown.partition("\n╭")[0].splitlines()[2:]]
    assert not [line for line in told if line.endswith("\\\\")], "a shell takes two backslashes for a name"
    for line, following in itertools.pairwise(told):
        if line.startswith("magnetar "):
            # What a terminal of 80 columns has broken goes on without a backslash.
            assert line.endswith("\\") or not following or following.startswith("magnetar "), line
        elif line and following and not following.startswith(("magnetar ", "--")) and line[-1] not in ".:\\":
            assert len(f"{line} {following.split()[0]}") > 78, line


def test_a_misspelt_group_is_told_of_those_that_are_like_it() -> None:
    for misspelt, meant in {"borker": "'broker'", "tokns": "'tokens'", "standalon": "'standalone'"}.items():
        shown = CliRunner().invoke(application, [misspelt], env=PLAIN)
        assert shown.exit_code == 2
        assert f"Did you mean {meant}" in shown.output
    assert "Did you mean" not in CliRunner().invoke(application, ["xyz"], env=PLAIN).output


def test_line_ends_of_docstrings_are_the_terminals() -> None:
    sentences = "First line\n    goes on.\n\n    A sentence that\n    ends.\n    Another."
    examples = "[dim]Example:[/]\n  one\n    two"
    assert rejoined(sentences) == "First line goes on.\n\nA sentence that ends.\nAnother."
    assert rejoined(f"Told.\n\n{examples}") == f"Told.\n\n{examples}"


def test_what_the_groups_are_called_and_do() -> None:
    assert ("bookie", "run") in ALL
    assert ("autorecovery", "who-is-auditor") in ALL
    assert ("bookie", "autorecovery", "who-is-auditor") in ALL
    assert ("init-metadata",) in ALL
    root = typer.main.get_command(application)
    assert isinstance(root, LazyGroup)
    for found in root.deferred.values():
        importlib.import_module(found.module)


def magnetar(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [str(Path(sys.executable).parent / "magnetar"), *arguments]
    return subprocess.run(
        command, capture_output=True, text=True, check=False, env={**os.environ, **PLAIN, **environment}
    )


def processor_seconds(act: Callable[[], object]) -> float:
    """What the processes that it starts take of the processor: the wall's clock goes on while others compute."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    act()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


@pytest.mark.slow
def test_the_root_is_quick_and_loads_no_command() -> None:
    bare: list[float] = []
    help_: list[float] = []
    # The best of several, in turns: beside other programs, and on another machine, the same work takes longer.
    while len(help_) < 5 or (min(help_) >= INTERPRETERS_MAX * min(bare) and len(help_) < 20):
        bare.append(processor_seconds(lambda: subprocess.run([sys.executable, "-c", "pass"], check=True)))
        help_.append(processor_seconds(lambda: magnetar("--help")))
    assert min(help_) < INTERPRETERS_MAX * min(bare)
    assert "init-metadata" in magnetar("--help").stdout
    script = """
import sys
from typer.testing import CliRunner
from magnetar.cli.command_line import application
before = set(sys.modules)
import contextlib, io
with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):
    application(["--help"])
print([name for name in set(sys.modules) - before if name.startswith(("magnetar", "rich"))])
"""
    loaded = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert loaded == "[]\n"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "number", "completion"),
    [
        ("magnetar boo", "1", "bookie"),
        ("magnetar bookie read-e", "2", "read-entry-log"),
        ("magnetar bookie read-ledger --fo", "3", "--format"),
        ("magnetar bookie read-ledger 5 --format h", "5", "hex"),
        ("magnetar autorecovery who", "2", "who-is-auditor"),
        ("magnetar broker dr", "2", "drain"),
        ("magnetar broker split x --algorithm topic", "5", "topic_count_equally_divide"),
    ],
)
def test_completion_reaches_every_command(words: str, number: str, completion: str) -> None:
    shown = magnetar(_MAGNETAR_COMPLETE="complete_bash", COMP_WORDS=words, COMP_CWORD=number)
    assert completion in shown.stdout.split()


def test_rows_as_json_are_an_array_whatever_their_number(capsys: pytest.CaptureFixture[str]) -> None:
    columns = (Column("n", lambda row: row["n"]),)
    for count in range(3):
        assert show_rows([{"n": number} for number in range(count)], columns, as_json=True) == count
        assert json.loads(capsys.readouterr().out) == [{"n": number} for number in range(count)]


def test_an_array_stays_open_after_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    def rows() -> Iterator[dict[str, int]]:
        yield {"n": 1}
        raise OSError("broken")

    with pytest.raises(OSError, match="broken"):
        show_rows(rows(), (), as_json=True)
    assert not capsys.readouterr().out.rstrip().endswith("]")


def test_values_for_people() -> None:
    assert [human_bytes(count) for count in (0, 1023, 1536, 200 * 1024, 3 << 40)] == [
        *("0 B", "1023 B", "1.5 KiB", "200 KiB", "3.0 TiB")
    ]
    assert human_time(1_000) == "1970-01-01 00:00:01Z"
    assert human_time(None) == human_time(-1) == ""
    assert to_json({"a": b"\x01", "b": BodyFormat.HEX, "c": (1, 2)}) == '{"a": "01", "b": "hex", "c": [1, 2]}'


def test_bodies() -> None:
    assert body_lines(b"abc\xff", BodyFormat.NONE) == []
    assert body_lines("é\x07\nx".encode(), BodyFormat.TEXT) == ["é·", "x"]
    lines = body_lines(bytes(range(20)), BodyFormat.HEX)
    assert lines[0] == "00000000  00 01 02 03 04 05 06 07 08 09 0a 0b 0c 0d 0e 0f  ................"
    assert lines[1].split() == ["00000010", "10", "11", "12", "13", "...."]


@pytest.mark.parametrize(("columns", "bar"), [(40, False), (100, True)])
def test_progress_in_a_narrow_terminal_tells_the_numbers(
    monkeypatch: pytest.MonkeyPatch, columns: int, bar: bool
) -> None:
    terminal = io.StringIO()
    monkeypatch.setattr(terminal, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("TERM", "xterm")
    with progress("Reading entry logs") as report:
        report(300, 1_200, "12.log")
    assert " 300/1200" in terminal.getvalue()
    assert ("━" in terminal.getvalue()) == bar


def test_progress_without_a_terminal_is_silent_at_first(capsys: pytest.CaptureFixture[str]) -> None:
    with progress("work") as report:
        report(1, 2, "")
    assert capsys.readouterr().err == ""
